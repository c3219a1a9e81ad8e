//! `docs/upgrade-day.md`, rehearsed: its commands are extracted and run on three nodes with bridges, in
//! the layout of `docs/install-kubeadm.md`, for an upgrade of all three and the way back, while
//! clients use the load balancer. No request fails, no API that exists is answered with 404, and fields
//! of the new version are kept.
//!
//! The page goes from 1.35 to 1.36, these servers from 1.34 to 1.36: they are what the other tests use,
//! and two versions are the most that may share an etcd. kubeadm does not skip a minor version; `programs`
//! does in its place what it would do. `skewbridge check upgrade` finds the jump, and nothing else.
//!
//! There are no containers, and so no streams into Pods. The page says that those through a node end
//! when its kube-apiserver restarts; so do watches, which go on at another one.

mod programs;
mod report;
mod traffic;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use skewbridge_e2e::{Machine, old_and_new_versions, run_in_network_namespace};
use skewbridge_testkit::eventually;

use crate::documentation_page::{CommandRun, FIRST_NODE, Page, run_commands};
use crate::install_kubeadm;
use crate::kubeadm_cluster::client::{Client, Request};
use crate::kubeadm_cluster::kubelets::Kubelets;
use crate::kubeadm_cluster::load::{Load, Outcome, ReadsAndWrites};
use crate::kubeadm_cluster::watch::Watch;
use crate::kubeadm_cluster::{CONFIG, Cluster, Node};
use report::{Finding, findings};
use traffic::{Discovery, FieldUpdates, NEW_API, NEW_FIELD, NewApis};

const PAGE: &str = include_str!("../../../../docs/upgrade-day.md");

/// The versions in the page.
const PAGE_OLD: &str = "1.35.8";
const PAGE_NEW: &str = "1.36.4";

/// The sections that are not run, and why.
const NOT_RUN: [(&str, &str); 2] = [
    ("Worker nodes", "all nodes are control plane nodes"),
    (
        "With a balancer",
        "the bridges are beside the servers; the suites `balancer` and `balancer_endpoints` have one in front",
    ),
];

const BEFORE: &str = "Before you start";
const EVENING: &str = "1. The evening before";
const SNAPSHOT: &str = "2. Save a snapshot of etcd";
const FIRST: &str = "3. The first control plane node";
const MIXED: &str = "What the cluster is like while versions are mixed";
const OTHERS: &str = "4. The other control plane nodes";
const DECIDE: &str = "5. Decide: stay, or return";
const KUBELETS: &str = "6. The kubelets";
const FINISH: &str = "7. Finish";
const ROLL_BACK: &str = "Roll back";

/// The clients.
const READS_AND_WRITES: &str = "reads and writes";
const DISCOVERY: &str = "discovery";
const NEW_APIS: &str = "APIs of the new version";
const FIELD_UPDATES: &str = "fields of the new version";

/// For what controllers and kubelets do.
const CONTROLLER_TIMEOUT: Duration = Duration::from_mins(1);

/// The topic of findings about the jump over a minor version.
const JUMP: &str = "versions";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: cargo xtask e2e --all"]
async fn the_page_is_rehearsed_under_load() {
    let Some([old, new]) = old_and_new_versions().filter(|[_, new]| new.starts_with("1.36."))
    else {
        return;
    };
    if !run_in_network_namespace("upgrade_day::the_page_is_rehearsed_under_load", &[]) {
        return;
    }
    let mut rehearsal = Rehearsal::start(old, new).await;
    let before = rehearsal.manifests();

    rehearsal.evening_before();
    rehearsal.first_node();
    rehearsal.other_nodes();
    rehearsal.decide();
    rehearsal.kubelets().await;
    rehearsal.finish();
    rehearsal.roll_back().await;

    assert_eq!(rehearsal.manifests(), before);
    rehearsal.end_of_load().await;
    let not_run = NOT_RUN.map(|(section, _)| section);
    assert_eq!(rehearsal.page.not_run(), not_run);
}

struct Rehearsal {
    page: Page,
    /// What a shell of the administrator begins with.
    prelude: String,
    old: String,
    new: String,
    started: Instant,
    client: Client,
    has_new_apis: Arc<AtomicBool>,
    load: Load,
    watch: Option<Watch>,
    /// Ends before the cluster.
    _kubelets: Kubelets,
    cluster: Cluster,
}

impl Rehearsal {
    async fn start(old: String, new: String) -> Self {
        let started = Instant::now();
        let old_minor = old.rsplit_once('.').unwrap().0;
        let page = PAGE
            .replace(PAGE_OLD, &old)
            .replace("1.35", old_minor)
            .replace(PAGE_NEW, &new);
        let page = Page::parse(&page);
        let cluster = Cluster::start_prepared(&old, 3, install_bridge).await;
        for node in &cluster.nodes {
            programs::install(node, [&old, &new]);
        }
        let client = Client::of_administrator(&cluster.nodes[0], cluster.directory());
        let kubelets = Kubelets::start(&cluster, &client, &old);
        for phase in ["upload-config kubeadm", "addon kube-proxy"] {
            cluster.nodes[0]
                .machine
                .shell(&format!("kubeadm init phase {phase} --config={CONFIG}"));
        }
        let has_new_apis = Arc::new(AtomicBool::new(false));
        let watch = Watch::start(client.clone());
        let mut load = Load::new(client.clone());
        load.add(READS_AND_WRITES, ReadsAndWrites);
        let discovery = Discovery {
            has_new_apis: has_new_apis.clone(),
        };
        load.add(DISCOVERY, discovery);
        let rehearsal = Self {
            prelude: page.script(BEFORE, 0).to_owned(),
            page,
            old,
            new,
            started,
            client,
            has_new_apis,
            load,
            watch: Some(watch),
            _kubelets: kubelets,
            cluster,
        };
        rehearsal.wait_for_components().await;
        rehearsal
    }

    /// Everything that `check upgrade` reads versions of has been reported, and all servers have published
    /// their addresses.
    async fn wait_for_components(&self) {
        let node = &self.cluster.nodes[0];
        let published = "get endpointslices kubernetes -o jsonpath='{.endpoints[*].addresses[0]}'";
        let what = "all servers are published";
        eventually(what, CONTROLLER_TIMEOUT, async || {
            let addresses = node.kubectl(published);
            addresses.split_whitespace().count() == self.cluster.nodes.len()
        })
        .await;
        let what = "all pods are reported";
        eventually(what, CONTROLLER_TIMEOUT, async || {
            let pods = node.kubectl("-n kube-system get pods --no-headers");
            let running = pods.lines().filter(|it| it.contains(" 1/1 "));
            // etcd, three programs of Kubernetes and kube-proxy.
            running.count() == 5 * self.cluster.nodes.len()
        })
        .await;
    }

    /// Runs a block of the page on a node, which it stands for with its name and address.
    fn run(&self, node: &Node, section: &str, block: usize) -> Vec<CommandRun> {
        println!(
            "--- {:?}: {}: {section}",
            self.started.elapsed(),
            node.machine.name
        );
        let Machine { name, address, .. } = &*node.machine;
        let script = self.page.script(section, block);
        let script = script
            .replace(FIRST_NODE, &address.to_string())
            .replace("NODE", name);
        let script = format!("{}\n{script}", self.prelude);
        let mut runs = run_commands(&script, &node.machine, self.cluster.directory());
        runs.remove(0);
        runs
    }

    /// The same, where no command may fail.
    fn succeed(&self, node: &Node, section: &str, block: usize) -> Vec<CommandRun> {
        let runs = self.run(node, section, block);
        for run in &runs {
            assert_eq!(run.exit_code, 0, "{}: {}", run.command, run.output);
        }
        runs
    }

    fn evening_before(&self) {
        let [first, ..] = &*self.cluster.nodes else {
            panic!("no nodes");
        };
        let [upgrade, plan, check, certificates] = &*self.run(first, EVENING, 0) else {
            panic!("{EVENING}: other commands");
        };
        assert_only_the_jump(upgrade, "upgrade to 1.36");
        assert_eq!(plan.exit_code, upgrade.exit_code, "{}", plan.output);
        let plan = std::fs::read_to_string(self.cluster.directory().join("upgrade.md")).unwrap();
        for node in &self.cluster.nodes {
            assert!(plan.contains(&node.machine.address.to_string()), "{plan}");
        }
        assert_no_cross(check);
        assert_eq!(certificates.exit_code, 0, "{}", certificates.output);
        assert_valid_for_a_week(&certificates.output);
        for node in &self.cluster.nodes {
            self.succeed(node, EVENING, 1);
        }
        self.succeed(first, SNAPSHOT, 0);
    }

    fn first_node(&mut self) {
        let first = &self.cluster.nodes[0];
        self.succeed(first, FIRST, 0);
        self.checks(first, &self.new);

        // Every bridge serves them now, as `skewbridge check` has shown.
        self.has_new_apis.store(true, Ordering::Relaxed);
        self.load.add(NEW_APIS, NewApis);
        self.send(&FieldUpdates::create());
        self.load.add(FIELD_UPDATES, FieldUpdates);

        // At the bridge of a server that does not have them.
        let old = &self.cluster.nodes[1];
        let [servers, fields, route] = &*self.run(old, MIXED, 0) else {
            panic!("{MIXED}: other commands");
        };
        assert_eq!(
            [servers.exit_code, fields.exit_code, route.exit_code],
            [2, 2, 0]
        );
        for (run, expected) in [
            (servers, "mutatingadmissionpolicies"),
            (fields, NEW_FIELD),
            (route, "Route:     peer"),
        ] {
            assert!(run.output.contains(expected), "{expected}: {}", run.output);
        }
    }

    fn other_nodes(&self) {
        let [_, second, last] = &*self.cluster.nodes else {
            panic!("three nodes");
        };
        self.succeed(second, OTHERS, 0);
        self.checks(second, &self.new);
        let [upgrade] = &*self.run(last, OTHERS, 1) else {
            panic!("{OTHERS}: other commands");
        };
        assert_only_the_jump(upgrade, "upgrade to 1.36");
        self.succeed(last, OTHERS, 0);
        self.checks(last, &self.new);
    }

    fn decide(&self) {
        let [rollback, proxies] = &*self.run(&self.cluster.nodes[0], DECIDE, 0) else {
            panic!("{DECIDE}: other commands");
        };
        self.assert_names_the_field(rollback);
        assert_eq!(proxies.exit_code, 0, "{}", proxies.output);
    }

    async fn kubelets(&self) {
        for node in &self.cluster.nodes {
            self.succeed(node, KUBELETS, 0);
            self.succeed(node, KUBELETS, 1);
            self.succeed(node, KUBELETS, 2);
            self.wait_for_kubelet(node, &self.new).await;
        }
    }

    async fn wait_for_kubelet(&self, node: &Node, version: &str) {
        let name = &node.machine.name;
        let what = format!("the kubelet of {name} is {version}");
        let query = format!("get node {name} -o jsonpath='{{.status.nodeInfo.kubeletVersion}}'");
        eventually(&what, CONTROLLER_TIMEOUT, async || {
            node.kubectl(&query) == format!("v{version}")
        })
        .await;
    }

    fn finish(&self) {
        let [check, next] = &*self.run(&self.cluster.nodes[0], FINISH, 0) else {
            panic!("{FINISH}: other commands");
        };
        assert_no_cross(check);
        assert!(
            next.output.starts_with("upgrade to 1.37: "),
            "{}",
            next.output
        );
        let unknown = findings(&next.output)
            .into_iter()
            .filter(|it| it.is_unknown);
        assert_eq!(unknown.collect::<Vec<_>>(), []);
    }

    /// The blocks of the section, in their order.
    async fn roll_back(&mut self) {
        let nodes = &self.cluster.nodes;
        let first = &nodes[0];
        let [plan, rollback] = &*self.run(first, ROLL_BACK, 0) else {
            panic!("{ROLL_BACK}: other commands");
        };
        self.assert_names_the_field(rollback);
        assert_eq!(plan.exit_code, rollback.exit_code, "{}", plan.output);
        for node in nodes {
            self.succeed(node, KUBELETS, 0);
            self.succeed(node, ROLL_BACK, 1);
            self.succeed(node, KUBELETS, 2);
            self.wait_for_kubelet(node, &self.old).await;
        }
        self.succeed(first, ROLL_BACK, 2);
        for node in nodes {
            self.succeed(node, ROLL_BACK, 3);
        }
        let what = "the controller managers and schedulers are old";
        eventually(what, CONTROLLER_TIMEOUT, async || {
            let [images] = &*self.succeed(first, ROLL_BACK, 4) else {
                panic!("{ROLL_BACK}: other commands");
            };
            images.output.matches(&format!(":v{}", self.old)).count() == 2 * nodes.len()
        })
        .await;
        for number in (0..self.cluster.nodes.len()).rev() {
            if number == 0 {
                self.new_apis_go();
            }
            let node = &self.cluster.nodes[number];
            self.succeed(node, ROLL_BACK, 5);
            self.checks(node, &self.old);
        }
        for node in &self.cluster.nodes {
            self.succeed(node, ROLL_BACK, 6);
        }
        let runs = self.succeed(&self.cluster.nodes[0], ROLL_BACK, 7);
        assert_no_cross(runs.last().unwrap());
        let config = "-n kube-system get configmap kubeadm-config -o yaml";
        let config = self.cluster.nodes[0].kubectl(config);
        let version = format!("kubernetesVersion: v{}\n", self.old);
        assert!(config.contains(&version), "{config}");
    }

    /// The last server that serves them is about to return.
    fn new_apis_go(&mut self) {
        self.has_new_apis.store(false, Ordering::Relaxed);
        assert_succeeded(&self.load.end(NEW_APIS));
        assert_succeeded(&self.load.end(FIELD_UPDATES));
    }

    async fn end_of_load(&mut self) {
        let what = "the APIs of the new version have gone";
        eventually(what, CONTROLLER_TIMEOUT, async || {
            self.client.send(&Request::get(NEW_API)).status == 404
        })
        .await;
        assert_succeeded(&self.load.end(DISCOVERY));
        let outcome = self.load.end(READS_AND_WRITES);
        assert_succeeded(&outcome);
        let watch = self.watch.take().unwrap();
        let created: Vec<_> = ReadsAndWrites::objects(outcome.succeeded).collect();
        eventually(
            "the watch has all objects",
            CONTROLLER_TIMEOUT,
            async || {
                let seen = watch.seen();
                created.iter().all(|it| seen.added.contains(it))
            },
        )
        .await;
        let seen = watch.finish();
        println!(
            "the watch has delivered {} objects, and was opened {} times",
            seen.added.len(),
            seen.opened
        );
        assert_eq!(seen.failed, Vec::<String>::new());
    }

    /// The checks of step 3, on a node whose kube-apiserver has to have this version.
    fn checks(&self, node: &Node, version: &str) {
        let runs = self.succeed(node, FIRST, 1);
        let rows = self.page.rows(FIRST);
        let rows = rows.iter().filter(|row| row[0].starts_with('`'));
        let mut checked = 0;
        for row in rows {
            let command = row[0].trim_matches('`');
            let run = runs.iter().find(|it| matches(command, &it.command));
            let run = run.unwrap_or_else(|| panic!("the page does not run {command}"));
            for expected in row[1].split('`').skip(1).step_by(2) {
                let expected = expected.replace(&self.new, version);
                let is_shown = run.output.contains(&expected);
                assert!(is_shown, "{command}: {expected}: {}", run.output);
            }
            checked += 1;
        }
        // The others wait.
        let waits = runs.iter().filter(|it| it.command.starts_with("until "));
        assert_eq!(checked + waits.count(), runs.len());
        assert_no_cross(runs.last().unwrap());
        self.assert_pods_run(&runs[runs.len() - 2].output);
    }

    /// `kubectl get pods` of the control plane.
    fn assert_pods_run(&self, table: &str) {
        let pods: Vec<Vec<_>> = table
            .lines()
            .skip(1)
            .map(|it| it.split_whitespace().collect())
            .collect();
        assert_eq!(pods.len(), 4 * self.cluster.nodes.len(), "{table}");
        for pod in pods {
            assert_eq!(&pod[1..3], ["1/1", "Running"], "{table}");
        }
    }

    /// A rollback erases the field that the clients use.
    fn assert_names_the_field(&self, run: &CommandRun) {
        assert_eq!(run.exit_code, 2, "{}", run.output);
        let old_minor = self.old.rsplit_once('.').unwrap().0;
        let verdict = format!("rollback to {old_minor}: ");
        assert!(run.output.starts_with(&verdict), "{}", run.output);
        let findings = findings(&run.output);
        let others: Vec<_> = findings.iter().filter(|it| it.topic != JUMP).collect();
        let [Finding { topic, text, .. }] = &*others else {
            panic!("{others:?}");
        };
        assert_eq!(topic, "fields that are erased");
        assert!(text.contains(NEW_FIELD), "{text}");
    }

    fn send(&self, request: &Request) {
        let sent = self.client.send_and_repeat(request, &mut 0);
        assert!(sent.is_ok(), "{sent:?}");
    }

    /// The manifests of kubeadm on all nodes.
    fn manifests(&self) -> Vec<String> {
        let nodes = self.cluster.nodes.iter();
        let texts = nodes.map(|node| node.machine.shell("cat /etc/kubernetes/manifests/*.yaml"));
        texts.collect()
    }
}

/// A bridge beside a kube-apiserver that has not started yet.
fn install_bridge(machine: &Machine, directory: &std::path::Path) {
    let page = Page::parse(install_kubeadm::PAGE);
    let sections = install_kubeadm::PREPARE.into_iter();
    for section in sections.filter(|it| *it != install_kubeadm::NEEDS_A_SERVER) {
        page.run(section, machine, directory);
    }
    machine.shell(
        "install -m 0644 /etc/skewbridge/skewbridge.service /etc/systemd/system/\n\
         mv /etc/skewbridge/kube-apiserver.yaml /etc/kubernetes/manifests/\n\
         mkdir -p /run/units/wanted\n\
         touch /run/units/wanted/skewbridge",
    );
}

/// The page says `go`. These servers skip a minor version, which is found.
fn assert_only_the_jump(run: &CommandRun, direction: &str) {
    let findings = findings(&run.output);
    let others: Vec<_> = findings
        .iter()
        .filter(|it| it.topic != JUMP || it.is_unknown)
        .collect();
    assert!(others.is_empty(), "{others:#?}");
    let verdict = format!("{direction}: {} findings\n", findings.len());
    assert!(run.output.starts_with(&verdict), "{}", run.output);
    assert_eq!(run.exit_code, 2, "{}", run.output);
}

/// `skewbridge check`.
fn assert_no_cross(run: &CommandRun) {
    assert!(run.command.starts_with("skewbridge check"));
    assert_eq!(run.exit_code, 0, "{}", run.output);
    assert!(!run.output.contains('✗'), "{}", run.output);
}

/// The table of `kubeadm certs check-expiration`.
fn assert_valid_for_a_week(table: &str) {
    let days = |line: &str| {
        let mut words = line.split_whitespace();
        words.find_map(|it| match it.split_at_checked(it.len() - 1)? {
            (number, "d") => number.parse::<u32>().ok(),
            (number, "y") => Some(365 * number.parse::<u32>().ok()?),
            _ => None,
        })
    };
    let lines: Vec<_> = table.lines().filter(|it| it.contains(" UTC ")).collect();
    assert!(lines.len() > 10, "{table}");
    for line in lines {
        assert!(days(line).is_some_and(|it| it > 7), "{line}");
    }
}

fn assert_succeeded(outcome: &Outcome) {
    assert_eq!(outcome.failed, Vec::<String>::new());
    assert!(outcome.succeeded > 20, "{}", outcome.succeeded);
}

/// Whether a command is the one that a table of the page names: `…` stands for any text, and options
/// may follow.
fn matches(named: &str, command: &str) -> bool {
    let mut rest = command;
    named.split('…').enumerate().all(|(number, part)| {
        let at = rest.find(part);
        let found = at.filter(|at| number > 0 || *at == 0);
        if let Some(at) = found {
            rest = &rest[at + part.len()..];
        }
        found.is_some()
    })
}

#[test]
fn commands_are_found_by_their_names_in_tables() {
    for (named, command, expected) in [
        (
            "curl …/readyz?verbose",
            "curl -s 'http://a/readyz?verbose'",
            true,
        ),
        ("curl …/readyz?verbose", "curl -s 'http://a/readyz'", false),
        ("skewbridge check", "skewbridge check --wait=1m", true),
        ("skewbridge check", "x skewbridge check", false),
    ] {
        assert_eq!(matches(named, command), expected, "{named}: {command}");
    }
}

#[test]
fn sections_that_are_not_run_exist() {
    let page = Page::parse(PAGE);
    let sections = page.not_run();
    for (section, _) in NOT_RUN {
        assert!(sections.contains(&section), "{section}");
    }
}
