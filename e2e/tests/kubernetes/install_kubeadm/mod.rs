//! `docs/install-kubeadm.md`, followed literally on three nodes that kubeadm has made: the commands
//! of the page are extracted from it and run on each node.
//!
//! A node has network, host name and mounts of its own, so that paths, ports and addresses are those
//! of the page. The command lines of static pods and of the unit are started as they are.

mod audit;
mod unit;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use skewbridge_e2e::{bridge_program, old_and_new_versions, run_in_network_namespace};
use skewbridge_testkit::eventually;

use crate::documentation_page::Page;
use crate::kubeadm_cluster::client::Client;
use crate::kubeadm_cluster::load::{Load, ReadsAndWrites};
use crate::kubeadm_cluster::{Cluster, Node, READY_TIMEOUT};
use audit::{Sender, senders, since_the_bridge_started};

/// The page.
pub(crate) const PAGE: &str = include_str!("../../../../docs/install-kubeadm.md");

/// The sections that every node follows before its bridge is started.
pub(crate) const PREPARE: [&str; 6] = [
    "1. Install the program and its user",
    "2. Let the bridge read the keys",
    "3. Generate the files",
    "Check that the bridge can start",
    NEEDS_A_SERVER,
    "4. Let kubeadm keep the layout",
];

/// The one of them that connects to the kube-apiserver of the node.
pub(crate) const NEEDS_A_SERVER: &str = "Check that the bridge will work";

const UPGRADE: &str = "7. kubeadm upgrade";

const READS_AND_WRITES: &str = "reads and writes";

/// The node whose bridge is a static pod, and which is upgraded first.
const STATIC_POD: usize = 2;

/// The node whose certificates are renewed.
const RENEWED: usize = 1;

/// For the namespace controller.
const CONTROLLER_TIMEOUT: Duration = Duration::from_mins(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_is_followed_literally() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    if !run_in_network_namespace("install_kubeadm::the_page_is_followed_literally", &[]) {
        return;
    }
    let page = Page::parse(PAGE);
    let mut cluster = Cluster::start(&old, 3).await;
    let before: Vec<_> = cluster.nodes.iter().map(Node::kubeadm_files).collect();
    let administrator = Client::of_administrator(&cluster.nodes[0], cluster.directory());
    let mut load = Load::new(administrator);
    load.add(READS_AND_WRITES, ReadsAndWrites);

    let logged = install(&page, &cluster).await;
    every_node_is_published(&cluster).await;
    for node in &cluster.nodes {
        all_peers_are_reached(node).await;
        page.run("6. Verify", &node.machine, cluster.directory());
        let report = check(node, "");
        assert!(report.is_empty(), "{}: {report:#?}", node.machine.name);
    }
    certificates_are_renewed(&page, &cluster);
    for node in &cluster.nodes {
        page.run(UPGRADE, &node.machine, cluster.directory());
    }
    upgrade(&cluster, &new).await;
    for node in &cluster.nodes {
        let report = check_of_mixed_versions(node, "");
        assert!(report.is_empty(), "{}: {report:#?}", node.machine.name);
    }
    a_deleted_namespace_leaves_nothing(&cluster).await;
    all_requests_go_through_bridges(&cluster, &logged);

    roll_back(&page, &cluster, &new).await;
    everything_is_restored(&cluster, &before);
    every_node_is_published(&cluster).await;
    let outcome = load.end(READS_AND_WRITES);
    assert_eq!(outcome.failed, Vec::<String>::new());
    assert!(outcome.succeeded > 100, "{}", outcome.succeeded);

    another_port(&page, &mut cluster);
    everything_is_restored(&cluster, &before);
    for node in &cluster.nodes {
        page.run("Remove the user", &node.machine, cluster.directory());
        let user = node.machine.shell("getent passwd skewbridge || true");
        assert_eq!(user, "");
    }
    assert_eq!(page.not_run(), Vec::<&str>::new());
}

/// A node whose files the newer kubeadm has made from nothing, not by an upgrade.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_the_newer_kubeadm_is_read() {
    let Some([_, new]) = old_and_new_versions() else {
        return;
    };
    if !run_in_network_namespace("install_kubeadm::a_node_of_the_newer_kubeadm_is_read", &[]) {
        return;
    }
    let page = Page::parse(PAGE);
    let cluster = Cluster::start(&new, 1).await;
    let node = &cluster.nodes[0];
    let before = node.kubeadm_files();
    for section in PREPARE {
        page.run(section, &node.machine, cluster.directory());
    }
    let start = "5. Move kube-apiserver and start the bridge";
    page.run(start, &node.machine, cluster.directory());
    node.wait_until_ready().await;
    assert!(node.version().contains(&format!("\"v{new}\"")));
    let report = check(node, "");
    assert!(report.is_empty(), "{report:#?}");
    for section in [UPGRADE, "8. Roll back", "Remove what is left"] {
        page.run(section, &node.machine, cluster.directory());
    }
    assert_eq!(node.kubeadm_files(), before);
    node.wait_until_ready().await;
}

/// One node at a time. Returns the length of each audit log before the bridge was started: `check` sends
/// requests like those of a bridge earlier.
async fn install(page: &Page, cluster: &Cluster) -> Vec<usize> {
    let mut logged = Vec::new();
    for (number, node) in cluster.nodes.iter().enumerate() {
        for section in PREPARE {
            page.run(section, &node.machine, cluster.directory());
        }
        if number == RENEWED {
            step_3_replaces_an_old_manifest(page, cluster);
        }
        let start = if number == STATIC_POD {
            "As a static pod"
        } else {
            "5. Move kube-apiserver and start the bridge"
        };
        nothing_fails_before_the_move(node);
        logged.push(node.audit_log().len());
        page.run(start, &node.machine, cluster.directory());
        node.wait_until_ready().await;
        if number == STATIC_POD {
            page.run("Restart a static pod", &node.machine, cluster.directory());
        }
        // Repeated on its own, the step stops before it changes the manifest.
        let manifest = "/etc/kubernetes/manifests/kube-apiserver.yaml";
        let installed = node.machine.read(manifest);
        if number != STATIC_POD {
            page.fails(start, &node.machine, cluster.directory());
        }
        assert_eq!(node.machine.read(manifest), installed);
        if number + 1 == STATIC_POD {
            a_backend_without_a_bridge_is_found(cluster);
        }
    }
    logged
}

/// `check` as the user of the bridge has no ✗ while kube-apiserver has not moved.
fn nothing_fails_before_the_move(node: &Node) {
    node.machine.shell(
        "setpriv --reuid=skewbridge --regid=skewbridge --clear-groups \
         skewbridge check --config=/etc/skewbridge/config.yaml",
    );
}

/// The load balancer sends two of three connections to bridges.
fn a_backend_without_a_bridge_is_found(cluster: &Cluster) {
    let check = "skewbridge check --kubeconfig=/etc/kubernetes/admin.conf -o json";
    let output = cluster.nodes[0].machine.try_shell(Path::new("/"), check);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let failures = findings.iter().filter(|it| it["outcome"] == "failure");
    let names: Vec<_> = failures.filter_map(|it| it["name"].as_str()).collect();
    for name in [
        "leads to a bridge at 10.0.0.13:6443",
        "the administrator (/etc/kubernetes/admin.conf) uses a bridge",
    ] {
        let is_found = names.iter().any(|it| it.contains(name));
        assert!(is_found, "{name}: {report:#}");
    }
    // The node without a bridge gets one, and its kubeconfigs stay as kubeadm writes them. The program is
    // not installed there yet.
    let program = bridge_program().display().to_string();
    let output = cluster.nodes[STATIC_POD]
        .machine
        .try_shell(Path::new("/"), &check.replace("skewbridge", &program));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let mut failures = findings.iter().filter(|it| it["outcome"] == "failure");
    let scheduler = failures.find(|it| it["name"].as_str().unwrap().contains("kube-scheduler ("));
    let remedy = &scheduler.unwrap_or_else(|| panic!("{report:#}"))["remedy"];
    assert_eq!(
        remedy["command"], "skewbridge manifest kubeadm",
        "{remedy:#}"
    );
}

/// A file of an earlier attempt is not installed by step 5.
fn step_3_replaces_an_old_manifest(page: &Page, cluster: &Cluster) {
    let node = &cluster.nodes[RENEWED];
    let manifest = "/etc/skewbridge/kube-apiserver.yaml";
    let generated = node.machine.read(manifest);
    node.machine
        .shell(&format!("echo '# of an older version' >> {manifest}"));
    for section in PREPARE {
        page.repeat(section, &node.machine, cluster.directory());
    }
    assert_eq!(node.machine.read(manifest), generated);
}

/// A bridge finds those of other nodes within seconds.
async fn all_peers_are_reached(node: &Node) {
    let script = "curl -sf 'http://127.0.0.1:10270/readyz?verbose'";
    let what = format!("the bridge of {} reaches all peers", node.machine.name);
    eventually(&what, READY_TIMEOUT, async || {
        let output = node.machine.try_shell(Path::new("/"), script);
        String::from_utf8_lossy(&output.stdout).contains("peers ok: 2 of 2 reachable")
    })
    .await;
}

/// The addresses in the `EndpointSlice` are those of the nodes, where the bridges listen.
async fn every_node_is_published(cluster: &Cluster) {
    let query = "get endpointslices kubernetes -o \
                 jsonpath='{.endpoints[*].addresses[0]} {.ports[*].port}'";
    let expected = ["10.0.0.11", "10.0.0.12", "10.0.0.13", "6443"];
    // A kube-apiserver that has just started publishes its address within seconds.
    eventually("all nodes are published", READY_TIMEOUT, async || {
        let slice = cluster.nodes[0].kubectl(query);
        let mut words: Vec<_> = slice.split_whitespace().collect();
        words.sort_unstable();
        words == expected
    })
    .await;
}

/// kubeadm keeps group and mode of the keys.
fn certificates_are_renewed(page: &Page, cluster: &Cluster) {
    let node = &cluster.nodes[RENEWED];
    let keys = "stat -c '%n %A %U:%G' /etc/kubernetes/pki/*.key";
    let before = node.machine.shell(keys);
    node.machine
        .shell("kubeadm certs renew all --config=/etc/kubeadm/config.yaml");
    assert_eq!(node.machine.shell(keys), before);
    page.run(
        "Check that the bridge can start",
        &node.machine,
        cluster.directory(),
    );
}

/// kubeadm of the newer version writes the manifests again, with the patches of the page.
async fn upgrade(cluster: &Cluster, new: &str) {
    let node = &cluster.nodes[STATIC_POD];
    node.upgrade(new, Some("/etc/kubernetes/patches"));
    let manifest = node
        .machine
        .read("/etc/kubernetes/manifests/kube-apiserver.yaml")
        .unwrap();
    assert!(
        manifest.contains(&format!("kube-apiserver:v{new}\n")),
        "{manifest}"
    );
    assert!(
        manifest.contains("    - --bind-address=127.0.0.1\n"),
        "{manifest}"
    );
    assert_eq!(
        manifest.matches("        host: 127.0.0.1\n").count(),
        3,
        "{manifest}"
    );
    eventually(
        "the upgraded kube-apiserver answers",
        READY_TIMEOUT,
        async || node.version().contains(&format!("\"v{new}\"")),
    )
    .await;
    node.wait_until_ready().await;
    // The bridges know what it serves.
    for node in &cluster.nodes {
        let url = format!("https://{}:6443/apis/autoscaling/v2", node.machine.address);
        let script = format!(
            "cd {}; curl -sf --cacert ca.crt --cert admin.certificate --key admin.key {url}",
            cluster.directory().display()
        );
        eventually(
            "autoscalers are served through every bridge",
            READY_TIMEOUT,
            async || {
                node.machine
                    .try_shell(cluster.directory(), &script)
                    .status
                    .success()
            },
        )
        .await;
    }
}

/// What `skewbridge check` finds on a node that is not as it should be, or could not be checked.
/// None is a ✗.
fn check(node: &Node, flags: &str) -> Vec<Value> {
    let check = "skewbridge check --kubeconfig=/etc/kubernetes/admin.conf --wait=60s";
    println!(
        "{}:\n{}",
        node.machine.name,
        node.machine.shell(&format!("{check} {flags}"))
    );
    let report = node.machine.shell(&format!("{check} {flags} -o json"));
    let report: Value = serde_json::from_str(&report).unwrap();
    let findings = report["findings"].as_array().unwrap().iter();
    let others = findings.filter(|it| it["outcome"] != "ok");
    others.cloned().collect()
}

/// The same where the versions are 1.34 and 1.36, which is reported.
fn check_of_mixed_versions(node: &Node, flags: &str) -> Vec<Value> {
    let (versions, others): (Vec<_>, Vec<_>) = check(node, flags).into_iter().partition(|it| {
        it["outcome"] == "warning"
            && it["name"] == "kube-apiservers are at most one minor version apart"
    });
    assert_eq!(versions.len(), 1, "{}: {others:#?}", node.machine.name);
    others
}

/// Any controller manager may have become the leader. That of the new server stops until another one
/// leads, as when its node restarts.
async fn an_old_controller_manager_leads(cluster: &Cluster) {
    let node = &cluster.nodes[0];
    let new = &cluster.nodes[STATIC_POD];
    let leader = || {
        node.kubectl(
            "get lease -n kube-system kube-controller-manager -o jsonpath='{.spec.holderIdentity}'",
        )
    };
    let is_old = |leader: &str| !leader.is_empty() && !leader.starts_with(&new.machine.name);
    if !is_old(&leader()) {
        let manifest = "/etc/kubernetes/manifests/kube-controller-manager.yaml";
        let aside = "/etc/kubernetes/kube-controller-manager.yaml";
        new.machine.shell(&format!("mv {manifest} {aside}"));
        let what = "an old controller manager leads";
        eventually(what, CONTROLLER_TIMEOUT, async || is_old(&leader())).await;
        new.machine.shell(&format!("mv {aside} {manifest}"));
    }
    println!("the controller manager that leads: {}", leader());
}

/// The namespace controller is connected to an old server, and the namespace has an object of an API
/// that only the new server has.
async fn a_deleted_namespace_leaves_nothing(cluster: &Cluster) {
    let node = &cluster.nodes[0];
    an_old_controller_manager_leads(cluster).await;
    let scaler = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\n\
        metadata: {name: scaler, namespace: story}\n\
        spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}\n";
    let file = cluster.directory().join("scaler.yaml");
    std::fs::write(&file, scaler).unwrap();
    let local = format!("--server=https://{}:6443", node.machine.address);
    node.kubectl(&format!("{local} create namespace story"));
    node.kubectl(&format!("{local} create -f {}", file.display()));
    let scalers = format!("{local} get hpa -n story -o name");
    let expected = "horizontalpodautoscaler.autoscaling/scaler\n";
    assert_eq!(node.kubectl(&scalers), expected);
    node.kubectl(&format!("{local} delete namespace story --wait=false"));
    eventually("the namespace is deleted", CONTROLLER_TIMEOUT, async || {
        node.kubectl(&format!(
            "{local} get namespaces -o name --field-selector=metadata.name=story"
        ))
        .is_empty()
    })
    .await;
    node.kubectl(&format!("{local} create namespace story"));
    assert_eq!(node.kubectl(&scalers), "", "the autoscaler has reappeared");
    node.kubectl(&format!("{local} delete namespace story"));
}

/// The audit logs from the start of each bridge on.
fn all_requests_go_through_bridges(cluster: &Cluster, logged: &[usize]) {
    for (node, logged) in cluster.nodes.iter().zip(logged) {
        let log = node.audit_log();
        let senders = senders(since_the_bridge_started(&log[*logged..]));
        println!("{}: {senders:?}", node.machine.name);
        let count = |sender| {
            senders
                .get(&sender)
                .map_or(0, |it| it.values().sum::<usize>())
        };
        assert_eq!(senders.get(&Sender::Direct), None, "{}", node.machine.name);
        assert!(count(Sender::Bridge) > 0);
        assert!(count(Sender::Probe) > 0);
        for program in ["kube-controller-manager", "kube-scheduler"] {
            let through = senders[&Sender::ThroughBridge].get(program);
            assert!(through.is_some(), "{program}");
        }
    }
}

async fn roll_back(page: &Page, cluster: &Cluster, new: &str) {
    for (number, node) in cluster.nodes.iter().enumerate() {
        let section = if number == STATIC_POD {
            "Roll back a static pod"
        } else {
            "8. Roll back"
        };
        page.run(section, &node.machine, cluster.directory());
        node.wait_until_ready().await;
        page.run("Remove what is left", &node.machine, cluster.directory());
    }
    // The file of the upgraded node is the one that kubeadm writes without patches.
    let node = &cluster.nodes[STATIC_POD];
    let manifest = "/etc/kubernetes/manifests/kube-apiserver.yaml";
    let undone = node.machine.read(manifest);
    node.upgrade(new, None);
    assert_eq!(node.machine.read(manifest), undone);
}

/// The files of kubeadm are those of the time before the installation, to the last byte. Renewed
/// certificates are no part of the installation on one node, and the manifests of a newer version
/// on another.
fn everything_is_restored(cluster: &Cluster, before: &[String]) {
    for (number, (node, before)) in cluster.nodes.iter().zip(before).enumerate() {
        let is_other: fn(&str) -> bool = match number {
            RENEWED => is_digest_of_renewed,
            STATIC_POD => is_digest_of_upgraded,
            _ => |_| false,
        };
        let files = node.kubeadm_files();
        let lines = |files: &str| -> Vec<String> {
            let lines = files.lines().filter(|line| !is_other(line));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(lines(&files), lines(before), "{}", node.machine.name);
    }
}

/// A line of `sha256sum`, not of `stat`.
fn digested(line: &str) -> Option<&str> {
    let (digest, file) = line.split_once("  ./")?;
    (digest.len() == 64).then_some(file)
}

/// What `kubeadm certs renew all` writes: all certificates but those of CAs, and the kubeconfigs but
/// that of kubelet, which renews its own.
fn is_digest_of_renewed(line: &str) -> bool {
    digested(line).is_some_and(|file| {
        let extension = Path::new(file).extension().unwrap_or_default();
        let is_ca = file.ends_with("ca.crt") || file.ends_with("ca.key") || file.contains("/sa.");
        let is_certificate = extension == "crt" || extension == "key";
        let is_kubeconfig = extension == "conf" && file != "kubelet.conf";
        (is_certificate && !is_ca) || is_kubeconfig
    })
}

/// What `kubeadm init phase control-plane all` writes.
fn is_digest_of_upgraded(line: &str) -> bool {
    let written = [
        "manifests/kube-apiserver.yaml",
        "manifests/kube-controller-manager.yaml",
        "manifests/kube-scheduler.yaml",
    ];
    digested(line).is_some_and(|file| written.contains(&file))
}

/// The layout with another port, on all nodes, and its rollback.
fn another_port(page: &Page, cluster: &mut Cluster) {
    for node in &cluster.nodes {
        for section in [PREPARE[0], PREPARE[1], "Another port"] {
            page.run(section, &node.machine, cluster.directory());
        }
    }
    cluster.point_load_balancer_at(7443);
    for node in &cluster.nodes {
        page.run("Verify another port", &node.machine, cluster.directory());
        let report = check_of_mixed_versions(node, "--layout=other-port");
        // Pods and components that use NODE:6443.
        let by_design = |it: &&Value| it["outcome"] == "warning" && it["section"] == "clients";
        let others: Vec<_> = report.iter().filter(|it| !by_design(it)).collect();
        assert!(others.is_empty(), "{}: {others:#?}", node.machine.name);
        assert!(report.len() >= 3, "{report:#?}");
        // Without the flag the same is a mistake.
        let same_port = "skewbridge check --kubeconfig=/etc/kubernetes/admin.conf";
        let output = node.machine.try_shell(Path::new("/"), same_port);
        assert_eq!(output.status.code(), Some(1));
    }
    cluster.point_load_balancer_at(6443);
    for node in &cluster.nodes {
        for section in ["Roll back another port", "Remove what is left"] {
            page.run(section, &node.machine, cluster.directory());
        }
    }
}

#[test]
fn digests_that_differ_by_intention_are_those_of_the_files_that_were_written() {
    let line = |file: &str| format!("{}  ./{file}", "0".repeat(64));
    for file in ["pki/apiserver.crt", "pki/etcd/server.key", "admin.conf"] {
        assert!(is_digest_of_renewed(&line(file)), "{file}");
    }
    for file in [
        "pki/ca.crt",
        "pki/etcd/ca.key",
        "pki/sa.key",
        "kubelet.conf",
    ] {
        assert!(!is_digest_of_renewed(&line(file)), "{file}");
    }
    assert!(!is_digest_of_renewed(
        "./pki/apiserver.crt -rw-r--r-- root:root"
    ));
    assert!(is_digest_of_upgraded(&line(
        "manifests/kube-apiserver.yaml"
    )));
    assert!(!is_digest_of_upgraded(&line("manifests/etcd.yaml")));
}
