//! A client that uses discovery runs through an upgrade and a downgrade of the control plane,
//! one node at a time.
//!
//! The guarantee: as long as some ready server serves a kind, no client gets "no matches for
//! kind". When the last server that serves it is terminated, the kind disappears, which is
//! correct.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, Protocol, Request, ServerSpec, User, Via, VirtualIp, control_planes, newest,
    oldest,
};
use skewbridge_testkit::eventually;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::task::JoinSet;

/// The time from the readiness of a server until its kinds are in discovery.
const PEER_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// How often the output of the client is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// For an operation that takes seconds on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(2);

/// Without it kube-apiserver keeps watches open when it is terminated, and waits a minute
/// for them.
const WATCH_TERMINATION_FLAG: &str = "--shutdown-watch-termination-grace-period=10s";

/// Bridges spread the end of watches over this time; the default is twelve times as long.
const DRAIN_FLAG: &str = "--shutdown-drain-timeout=5s";

const NAMESPACE: &str = "rolling";

/// The test blocks its thread while servers exit: the load balancer has its own thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_kind_is_lost_while_servers_are_replaced() {
    for versions in control_planes() {
        if newest(&versions) != oldest(&versions) {
            println!("plane {versions:?}");
            upgrade_and_downgrade(&versions).await;
        }
    }
}

/// As many servers as the control plane has, all of its oldest version at first.
async fn upgrade_and_downgrade(versions: &[String]) {
    let (old, new) = (oldest(versions), newest(versions));
    let server = ServerSpec::of(old)
        .peer()
        .flag(WATCH_TERMINATION_FLAG)
        .bridge_flag(DRAIN_FLAG);
    let mut plane = ControlPlane::start(&vec![server; versions.len()]).await;
    let vip = VirtualIp::start(plane.servers[0].bridge).await;
    let mut client = Client::start(&plane, &vip);
    let mut kinds = Vec::new();
    for server in 0..versions.len() {
        kinds.push(plane.kinds(server, Via::Server).await);
    }
    client.add_kinds(&kinds.union()).await;
    client.wait_until_all_are_found().await;

    let old_kinds = kinds[0].clone();
    for version in [new, old] {
        for node in 0..versions.len() {
            // Load balancers do not use a server that is about to stop.
            let other = (node + 1) % versions.len();
            vip.redirect(plane.servers[other].bridge).await;
            let lost_kinds = std::mem::take(&mut kinds[node]);
            let left = kinds.union();
            client.remove_kinds(lost_kinds.difference(&left)).await;
            client.resolve_all(&format!("{version}-{node}-goes")).await;

            replace(&mut plane, node, version).await;
            let ready = Instant::now();
            kinds[node] = plane.kinds(node, Via::Server).await;
            client.add_kinds(&kinds.union()).await;
            client.wait_until_all_are_found().await;
            println!(
                "node {node} is {version}: found {:.1?} after",
                ready.elapsed()
            );
            wait_until_every_bridge_shows(&plane, &kinds.union()).await;
            // The informers receive the written object.
            let name = format!("node-{node}-is-{version}");
            write(&plane, node, &name).await;
            client.wait_for_line(&format!("configmap {name}")).await;
        }
        if version == new {
            assert_ne!(kinds[0], old_kinds, "the versions serve the same kinds");
        }
    }
    assert_eq!(kinds[0], old_kinds);
    client.finish().await;
}

trait UnionOfSets {
    fn union(&self) -> BTreeSet<String>;
}

impl UnionOfSets for Vec<BTreeSet<String>> {
    fn union(&self) -> BTreeSet<String> {
        self.iter().flatten().cloned().collect()
    }
}

/// Replaces one node as an administrator does.
async fn replace(plane: &mut ControlPlane, node: usize, version: &str) {
    plane.stop_bridge(node, "TERM");
    plane.stop_server(node, "TERM");
    plane.replace_server(node, version);
    plane.start_server(node);
    plane.start_bridge(node);
    let address = plane.servers[node].bridge;
    plane
        .wait_for_ready(&format!("node {node} as {version}"), address)
        .await;
}

async fn wait_until_every_bridge_shows(plane: &ControlPlane, kinds: &BTreeSet<String>) {
    eventually(
        "every bridge shows all kinds",
        PEER_DISCOVERY_TIMEOUT,
        async || {
            let mut is_shown = true;
            for server in 0..plane.servers.len() {
                is_shown &= kinds.is_subset(&plane.kinds(server, Via::Bridge).await);
            }
            is_shown
        },
    )
    .await;
}

async fn write(plane: &ControlPlane, node: usize, name: &str) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    let request = Request::new("POST", &path).body("application/json", &map.to_string());
    let mut client = plane.http_client(node, Via::Bridge, Protocol::H2);
    let created = client.send(&request).await.unwrap();
    assert_eq!(created.status, 201, "{}", created.text());
}

/// The check `rest-mapper` of `e2e/client-go`.
struct Client {
    child: Child,
    stdin: ChildStdin,
    lines: Arc<Mutex<Vec<String>>>,
    reading: JoinSet<()>,
    wanted_kinds: BTreeSet<String>,
}

impl Client {
    fn start(plane: &ControlPlane, vip: &VirtualIp) -> Self {
        let mut command = plane.client_go_command(vip.address, User::Admin, NAMESPACE);
        let mut child = command
            .arg("rest-mapper")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Informers log each watch that ends.
            .stderr(Stdio::null())
            .spawn()
            .expect("client-go starts");
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let mut reading = JoinSet::new();
        reading.spawn({
            let lines = Arc::clone(&lines);
            async move {
                while let Ok(Some(line)) = output.next_line().await {
                    lines.lock().unwrap().push(line);
                }
            }
        });
        Self {
            stdin: child.stdin.take().unwrap(),
            child,
            lines,
            reading,
            wanted_kinds: BTreeSet::new(),
        }
    }

    async fn send(&mut self, command: &str, arguments: impl IntoIterator<Item = impl AsRef<str>>) {
        let mut text = String::new();
        for argument in arguments {
            text.extend([command, " ", argument.as_ref(), "\n"]);
        }
        self.stdin.write_all(text.as_bytes()).await.unwrap();
    }

    async fn add_kinds(&mut self, kinds: &BTreeSet<String>) {
        self.send("add-kind", kinds).await;
        self.wanted_kinds.clone_from(kinds);
    }

    async fn remove_kinds(&mut self, kinds: impl IntoIterator<Item = &String>) {
        let kinds: Vec<_> = kinds.into_iter().cloned().collect();
        self.send("remove-kind", &kinds).await;
        // When a kind is added again, it has to be found again.
        let mut lines = self.lines.lock().unwrap();
        lines.retain(|line| !matches!(line.strip_prefix("found "), Some(it) if kinds.iter().any(|kind| kind == it)));
    }

    async fn wait_until_all_are_found(&self) {
        let missing = || -> BTreeSet<String> {
            let lines = self.lines.lock().unwrap();
            let found = lines.iter().filter_map(|line| line.strip_prefix("found "));
            let found: BTreeSet<_> = found.map(str::to_owned).collect();
            self.wanted_kinds.difference(&found).cloned().collect()
        };
        let all = async {
            while !missing().is_empty() {
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
        };
        let in_time = tokio::time::timeout(PEER_DISCOVERY_TIMEOUT, all).await;
        assert!(in_time.is_ok(), "not found: {:?}", missing());
    }

    /// Waits until the client has resolved all kinds once more, from a new discovery.
    async fn resolve_all(&mut self, id: &str) {
        self.send("resolve-all", [id]).await;
        self.wait_for_line(&format!("resolve-all {id}")).await;
    }

    async fn wait_for_line(&self, line: &str) {
        eventually(line, PEER_DISCOVERY_TIMEOUT, async || {
            self.lines.lock().unwrap().iter().any(|it| it == line)
        })
        .await;
    }

    /// Asserts that no kind was lost and that the informers have synced.
    async fn finish(mut self) {
        drop(self.stdin);
        let ended = tokio::time::timeout(COMMAND_TIMEOUT, self.child.wait()).await;
        assert!(ended.expect("it ends").unwrap().success());
        while self.reading.join_next().await.is_some() {}
        let lines = std::mem::take(&mut *self.lines.lock().unwrap());
        let failures = lines
            .iter()
            .filter(|line| line.starts_with("lost ") || line.starts_with("failed "));
        for failure in failures {
            println!("{failure}");
        }
        let seen: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
        println!("{seen}");
        assert_eq!(seen["Lost"], 0, "no matches for kind");
        assert_eq!(seen["Failed"], 0, "discovery failed");
        assert!(seen["Discoveries"].as_u64() > Some(50), "{seen}");
        assert!(seen["Synced"].as_u64() > Some(50), "{seen}");
    }
}
