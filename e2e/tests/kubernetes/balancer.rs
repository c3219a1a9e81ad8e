//! One bridge in front of three servers, beside `HAProxy` with the settings of kubeadm's guide in front
//! of the same servers: an upgrade and a downgrade, one server at a time, under reads, writes, watches
//! and execs through both.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skewbridge_e2e::{
    Bridge, ControlPlane, HttpClient, Node, Protocol, Request, ResponseStream, ServerSpec, User,
    VersionSpecificApi, Via, old_and_new_versions,
};
use skewbridge_testkit::{TEST_TIMEOUT, eventually};
use tokio::task::JoinSet;

/// Without it kube-apiserver keeps watches open when it is terminated, and waits a minute for them.
const WATCH_TERMINATION_FLAG: &str = "--shutdown-watch-termination-grace-period=10s";

/// The pauses of the clients.
const READ_PAUSE: Duration = Duration::from_millis(20);
const WRITE_PAUSE: Duration = Duration::from_millis(100);
const EXEC_PAUSE: Duration = Duration::from_secs(1);
const FAILED_WATCH_PAUSE: Duration = Duration::from_millis(100);

/// The time from the readiness of a server until the bridge has read its APIs.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

const NAMESPACE: &str = "balanced";
const CONFIG_MAPS: &str = "/api/v1/namespaces/balanced/configmaps";
const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";

/// A field of `CSIDriver` that 1.36 has and 1.34 does not.
const NEW_FIELD: &str = "serviceAccountTokenInSecrets";

/// APIs that one of the versions does not serve.
const APIS: [VersionSpecificApi; 2] = [
    VersionSpecificApi::POLICIES,
    VersionSpecificApi::ATTRIBUTES_CLASSES,
];

/// The test blocks its thread while servers exit.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_request_fails_while_servers_are_replaced() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let server = ServerSpec::of(&old)
        .without_bridge()
        .flag(WATCH_TERMINATION_FLAG);
    let plane = ControlPlane::start(&[server.clone(), server.clone(), server]).await;
    let plane = Upgrade::prepare(plane).await;
    let others = [1, 2].map(|it| format!("--upstream=https://{}", plane.0.servers[it].address));
    let others: Vec<_> = others.iter().map(String::as_str).collect();
    let bridge = (plane.0)
        .start_bridge_for(plane.0.servers[0].address, &others)
        .await;
    let haproxy = plane.0.start_haproxy_in_front().await;
    let mut plane = plane;

    let through_bridge = Workload::start("skewbridge", &plane.0, bridge.address);
    let through_haproxy = Workload::start("HAProxy", &plane.0, haproxy.address);
    let both = [&through_bridge, &through_haproxy];
    for version in [&new, &old] {
        for node in 0..3 {
            plane.replace(node, version, &both).await;
            plane.wait_until_versions_are_known(&bridge).await;
            plane
                .count_erased_fields(&format!("{version}-{node}"), &both)
                .await;
        }
    }
    let results = [through_bridge.end().await, through_haproxy.end().await];
    println!(
        "{:<12} {:>9} {:>9} {:>10} {:>14} {:>12} {:>16}",
        "through",
        "requests",
        "failures",
        "false 404s",
        "erased fields",
        "lost events",
        "without service"
    );
    for it in &results {
        println!(
            "{:<12} {:>9} {:>9} {:>10} {:>14} {:>12} {:>16.1?}",
            it.name,
            it.requests,
            it.failures,
            it.false_404s,
            it.erased_fields,
            it.lost_events,
            it.without_service
        );
        for example in &it.examples {
            println!("  {example}");
        }
    }
    let [through_bridge, _] = results;
    assert!(through_bridge.requests > 500, "{}", through_bridge.requests);
    assert_eq!(through_bridge.erased_fields, 0);
    assert_eq!(through_bridge.failures, 0);
    assert_eq!(through_bridge.false_404s, 0);
    assert_eq!(through_bridge.lost_events, 0);
    assert_eq!(through_bridge.without_service, Duration::ZERO);
}

/// The PROXY header as `HAProxy` writes it, in both versions.
#[tokio::test]
async fn a_bridge_reads_the_proxy_header_of_haproxy() {
    let Some([_, new]) = old_and_new_versions() else {
        return;
    };
    let plane = ControlPlane::start(&[ServerSpec::of(&new).without_bridge()]).await;
    let flags = ["--proxy-protocol-cidrs=127.0.0.0/8"];
    let bridge = plane.spawn_bridge_for(plane.servers[0].address, &flags);
    for option in ["send-proxy", "send-proxy-v2"] {
        let haproxy = plane
            .start_haproxy_with_proxy_header(bridge.address, option)
            .await;
        plane.wait_for_ready(option, haproxy.address).await;
    }
    let direct = plane.client("admin").http2(bridge.address).await;
    assert!(direct.is_err(), "a connection without a header is closed");
}

/// The control plane while its servers are replaced.
struct Upgrade(
    ControlPlane,
    #[expect(dead_code, reason = "kept running")] Node,
);

impl Upgrade {
    async fn prepare(plane: ControlPlane) -> Self {
        let node = plane.start_node().await;
        let mut client = plane.http_client(0, Via::Server, Protocol::H2);
        let namespace = json!({"metadata": {"name": NAMESPACE}});
        let create = Request::new("POST", "/api/v1/namespaces")
            .body("application/json", &namespace.to_string());
        assert_eq!(client.send(&create).await.unwrap().status, 201);
        let created = client.send(&config_map("probe")).await.unwrap();
        assert_eq!(created.status, 201);
        Self(plane, node)
    }

    /// Replaces one server as an administrator does.
    async fn replace(&mut self, node: usize, version: &str, workloads: &[&Workload; 2]) {
        let plane = &mut self.0;
        let is_served = |plane: &ControlPlane, api: &VersionSpecificApi, without: Option<usize>| {
            let servers = plane.servers.iter().enumerate();
            let mut left = servers.filter(|(index, _)| Some(*index) != without);
            left.any(|(_, server)| api.is_served_by(&server.version))
        };
        for api in APIS.iter().filter(|it| !is_served(plane, it, Some(node))) {
            for workload in workloads {
                workload.expect_no_more(api.path);
            }
        }
        let began = Instant::now();
        plane.stop_server(node, "TERM");
        let stopped = began.elapsed();
        plane.replace_server(node, version);
        plane.start_server(node);
        let address = plane.servers[node].address;
        let what = format!("server {node} as {version}");
        plane.wait_for_ready(&what, address).await;
        println!(
            "{what}: stopped in {stopped:.1?}, ready after {:.1?}",
            began.elapsed()
        );
        for api in APIS.iter().filter(|it| is_served(plane, it, None)) {
            let through_bridge = workloads[0].client();
            eventually(api.path, DISCOVERY_TIMEOUT, async || {
                let mut client = through_bridge.with_new_connection();
                let answer = client.send(&Request::get(api.path)).await;
                answer.is_ok_and(|it| it.status == 200)
            })
            .await;
            for workload in workloads {
                workload.expect(api.path);
            }
        }
    }

    /// Waits until each backend has read the versions of all servers.
    async fn wait_until_versions_are_known(&self, bridge: &Bridge) {
        let mut expected: Vec<_> = (self.0.servers.iter())
            .map(|it| it.version.clone())
            .collect();
        expected.sort();
        eventually("the versions of all servers", TEST_TIMEOUT, async || {
            let Some((_, page)) = bridge.admin_page("/debug/peers").await else {
                return false;
            };
            let page: Value = serde_json::from_str(&page).unwrap();
            let mut backends = page["backends"].as_array().unwrap().iter();
            backends.all(|backend| {
                let mut versions = Vec::new();
                collect_versions(backend, &mut versions);
                versions.sort();
                versions == expected
            })
        })
        .await;
    }

    /// Writes an object with a field that only new servers have, and changes something else of it
    /// through each balancer.
    async fn count_erased_fields(&self, step: &str, workloads: &[&Workload; 2]) {
        let plane = &self.0;
        let new = VersionSpecificApi::POLICIES;
        let mut servers = plane.servers.iter();
        let Some(new) = servers.position(|it| new.is_served_by(&it.version)) else {
            return;
        };
        let mut direct = plane.http_client(new, Via::Server, Protocol::H2);
        for workload in workloads {
            let name = format!("{}-{step}", workload.name.to_lowercase());
            let driver = json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name},
                "spec": {NEW_FIELD: true, "tokenRequests": [{"audience": "vault"}]},
            });
            let create =
                Request::new("POST", DRIVERS).body("application/json", &driver.to_string());
            assert_eq!(direct.send(&create).await.unwrap().status, 201);
            let path = format!("{DRIVERS}/{name}");
            let client = workload.client();
            for number in 0..6 {
                let change = json!({"metadata": {"annotations": {"step": number.to_string()}}});
                let request = Request::new("PATCH", &path)
                    .body("application/merge-patch+json", &change.to_string());
                let answer = client.with_new_connection().send(&request).await;
                workload.record(&answer.map(|it| it.status), &[200], "PATCH csidrivers");
            }
            let driver = direct.send(&Request::get(&path)).await.unwrap();
            let driver: Value = serde_json::from_slice(&driver.body).unwrap();
            if driver["spec"][NEW_FIELD] != true {
                workload.state().erased_fields += 1;
            }
        }
    }
}

/// The versions of Kubernetes in a page, without a `v`.
fn collect_versions(page: &Value, versions: &mut Vec<String>) {
    match page {
        Value::Object(object) => {
            for (name, value) in object {
                match value.as_str() {
                    Some(text)
                        if name == "version" && text.trim_start_matches('v').contains('.') =>
                    {
                        versions.push(text.trim_start_matches('v').to_owned());
                    }
                    _ => collect_versions(value, versions),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                collect_versions(item, versions);
            }
        }
        _ => {}
    }
}

fn config_map(name: &str) -> Request {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    Request::new("POST", CONFIG_MAPS).body("application/json", &map.to_string())
}

/// The results of the clients of one balancer.
#[derive(Debug, Clone, Default)]
struct Results {
    name: &'static str,
    requests: u64,
    failures: u64,
    false_404s: u64,
    erased_fields: u64,
    lost_events: usize,
    without_service: Duration,
    /// The first failures.
    examples: Vec<String>,
}

/// The state that all clients of one balancer share.
#[derive(Debug, Default)]
struct State {
    results: Results,
    /// Paths that a ready server serves.
    expected: BTreeSet<&'static str>,
    created: BTreeSet<String>,
    seen: BTreeSet<String>,
    is_ending: bool,
}

impl std::ops::Deref for State {
    type Target = Results;

    fn deref(&self) -> &Results {
        &self.results
    }
}

impl std::ops::DerefMut for State {
    fn deref_mut(&mut self) -> &mut Results {
        &mut self.results
    }
}

/// The clients of one balancer.
struct Workload {
    name: &'static str,
    client: HttpClient,
    state: Arc<Mutex<State>>,
    clients: JoinSet<()>,
}

/// One client of a workload.
#[derive(Clone)]
struct Recorder(Arc<Mutex<State>>);

impl Workload {
    fn start(name: &'static str, plane: &ControlPlane, address: SocketAddr) -> Self {
        let state = Arc::<Mutex<State>>::default();
        state.lock().unwrap().name = name;
        let new_client = || HttpClient::new(plane.client("admin"), address, Protocol::H2);
        let mut clients = JoinSet::new();
        clients.spawn(read(Recorder(state.clone()), new_client()));
        clients.spawn(read_specific_apis(Recorder(state.clone()), new_client()));
        clients.spawn(write(
            Recorder(state.clone()),
            new_client(),
            name.to_lowercase(),
        ));
        clients.spawn(watch(
            Recorder(state.clone()),
            new_client(),
            name.to_lowercase(),
        ));
        let version = plane.servers[0].version.clone();
        let mut exec = plane.kubectl_at(&version, address, User::Admin);
        exec.args(["exec", "-n", Node::NAMESPACE, Node::POD, "--", "true"]);
        clients.spawn(run_execs(Recorder(state.clone()), exec));
        Self {
            name,
            client: new_client(),
            state,
            clients,
        }
    }

    fn client(&self) -> HttpClient {
        self.client.with_new_connection()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn expect(&self, path: &'static str) {
        self.state().expected.insert(path);
    }

    fn expect_no_more(&self, path: &'static str) {
        self.state().expected.remove(path);
    }

    fn record(&self, status: &std::io::Result<u16>, good: &[u16], what: &str) {
        Recorder(self.state.clone()).record(status, good, what);
    }

    /// Ends the clients.
    async fn end(self) -> Results {
        self.state().is_ending = true;
        let state = self.state.clone();
        let mut clients = self.clients;
        let deadline = tokio::time::sleep(DISCOVERY_TIMEOUT);
        tokio::select! {
            () = async { while clients.join_next().await.is_some() {} } => {}
            () = deadline => {}
        }
        let state = state.lock().unwrap();
        let mut results = state.results.clone();
        results.lost_events = state.created.difference(&state.seen).count();
        results
    }
}

impl Recorder {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn is_ending(&self) -> bool {
        self.state().is_ending
    }

    /// Counts a request. Returns whether it has succeeded.
    fn record(&self, status: &std::io::Result<u16>, good: &[u16], what: &str) -> bool {
        let mut state = self.state();
        state.requests += 1;
        if status.as_ref().is_ok_and(|it| good.contains(it)) {
            return true;
        }
        if matches!(status, Ok(404)) {
            state.false_404s += 1;
        } else {
            state.failures += 1;
        }
        if state.examples.len() < 12 {
            state.examples.push(format!("{what}: {status:?}"));
        }
        false
    }
}

async fn read(recorder: Recorder, mut client: HttpClient) {
    let request = Request::get(&format!("{CONFIG_MAPS}/probe"));
    let mut failing_since: Option<Instant> = None;
    while !recorder.is_ending() {
        let status = client.send(&request).await.map(|it| it.status);
        let began = Instant::now();
        if recorder.record(&status, &[200], "GET configmap") {
            if let Some(since) = failing_since.take() {
                recorder.state().without_service += since.elapsed();
            }
        } else {
            failing_since.get_or_insert(began);
            client = client.with_new_connection();
        }
        tokio::time::sleep(READ_PAUSE).await;
    }
}

/// Reads APIs that a ready server serves, on new connections.
async fn read_specific_apis(recorder: Recorder, client: HttpClient) {
    while !recorder.is_ending() {
        let paths = recorder.state().expected.clone();
        for path in paths {
            let answer = client.with_new_connection().send(&Request::get(path)).await;
            // The last server that serves it may have been stopped meanwhile.
            if recorder.state().expected.contains(path) {
                recorder.record(&answer.map(|it| it.status), &[200], path);
            }
        }
        tokio::time::sleep(WRITE_PAUSE).await;
    }
}

async fn write(recorder: Recorder, mut client: HttpClient, prefix: String) {
    for number in 0.. {
        if recorder.is_ending() {
            return;
        }
        let name = format!("{prefix}-{number}");
        let status = client.send(&config_map(&name)).await.map(|it| it.status);
        if recorder.record(&status, &[201], "POST configmap") {
            recorder.state().created.insert(name);
        } else {
            client = client.with_new_connection();
        }
        tokio::time::sleep(WRITE_PAUSE).await;
    }
}

/// Watches the written objects from the last event on, as a client-go informer does.
async fn watch(recorder: Recorder, client: HttpClient, prefix: String) {
    let mut revision = "0".to_owned();
    loop {
        let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={revision}");
        let opened = client.stream(&Request::get(&path)).await;
        let status = opened.as_ref().map(|it| it.status);
        let status = status.map_err(|error| std::io::Error::other(error.to_string()));
        recorder.record(&status, &[200], "WATCH configmaps");
        if let Ok(stream) = opened
            && stream.status == 200
        {
            follow(&recorder, stream, &prefix, &mut revision).await;
        } else {
            tokio::time::sleep(FAILED_WATCH_PAUSE).await;
        }
        let state = recorder.state();
        if state.is_ending && state.created.is_subset(&state.seen) {
            return;
        }
    }
}

async fn follow(
    recorder: &Recorder,
    mut stream: ResponseStream,
    prefix: &str,
    revision: &mut String,
) {
    let mut buffer = Vec::new();
    // The end of a watch is not a failure: its client begins it again.
    while let Ok(Some(part)) = stream.next().await {
        buffer.extend_from_slice(&part);
        while let Some(end) = buffer.iter().position(|it| *it == b'\n') {
            let line: Vec<_> = buffer.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line).unwrap();
            let metadata = &event["object"]["metadata"];
            if let Some(latest) = metadata["resourceVersion"].as_str() {
                latest.clone_into(revision);
            }
            if let Some(name) = metadata["name"].as_str()
                && name.starts_with(prefix)
            {
                recorder.state().seen.insert(name.to_owned());
            }
        }
        let state = recorder.state();
        if state.is_ending && state.created.is_subset(&state.seen) {
            return;
        }
        if part.is_empty() {
            return;
        }
    }
}

async fn run_execs(recorder: Recorder, mut exec: tokio::process::Command) {
    while !recorder.is_ending() {
        let output = exec.output().await.unwrap();
        let status = if output.status.success() {
            Ok(200)
        } else {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(std::io::Error::other(text))
        };
        recorder.record(&status, &[200], "exec");
        tokio::time::sleep(EXEC_PAUSE).await;
    }
}
