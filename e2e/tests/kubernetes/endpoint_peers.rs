//! One bridge, and kube-apiservers without bridges: the bridge finds them in the `EndpointSlice` of
//! the Service `kubernetes`, which they write themselves. A second bridge starts, stops and is
//! killed.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use skewbridge_e2e::{
    ControlPlane, DiscoveredResource, HttpClient, Protocol, Request, ServerSpec,
    VersionSpecificApi, Via, old_and_new_versions, run_in_network_namespace,
};
use skewbridge_testkit::eventually;
use tokio::time::sleep;

use crate::peer_pair::{PEER_DISCOVERY_TIMEOUT, debug_peers, identity};

/// The server with a bridge. It serves neither of the two version-specific APIs.
const BRIDGED: usize = 0;
/// A new server, which gets a bridge later.
const NEW: usize = 1;
/// Another old server, without a bridge.
const PLAIN: usize = 2;

/// The port of all servers: kube-apiserver requires that all servers of a cluster have the same one.
const PORT: u16 = 6443;

/// The network of the servers, in the namespace of the test only.
const NETWORK: [u8; 3] = [10, 77, 0];

/// Two APIs: the new server serves one, and the old server without a bridge the other.
const APIS: [VersionSpecificApi; 2] = [
    VersionSpecificApi::POLICIES,
    VersionSpecificApi::ATTRIBUTES_CLASSES,
];

/// Clients that send requests at the same time.
const CLIENTS: usize = 2;

/// Rounds that the clients complete at least between two changes.
const MIN_ROUNDS: usize = 10;

/// A bridge is started and ended three times; in a round a client sends three requests to each API.
const MIN_REQUESTS: usize = 2 * 3 * MIN_ROUNDS * 3 * APIS.len();

/// The pause between two requests of the load.
const PAUSE: Duration = Duration::from_millis(5);

fn ip(server: usize) -> IpAddr {
    let [a, b, c] = NETWORK;
    let last = u8::try_from(server + 1).unwrap();
    [a, b, c, last].into()
}

fn spec(server: usize, version: &str) -> ServerSpec {
    ServerSpec::of(version).published_at(SocketAddr::new(ip(server), PORT))
}

/// Runs a test in its own network namespace.
fn is_in_namespace(test: &str) -> bool {
    let servers = [BRIDGED, NEW, PLAIN].map(ip);
    run_in_network_namespace(&format!("endpoint_peers::{test}"), &servers)
}

/// The old server that has a bridge, a new server, and an old server that serves more APIs.
fn specs(old: &str, new: &str, sources: &str) -> [ServerSpec; 3] {
    let registry = format!("--peer-registry={sources}");
    let bridge = |spec: ServerSpec| {
        spec.peer()
            .bridge_flag(&registry)
            .bridge_flag("--upstream-server-name=kubernetes")
    };
    let fewer = "api/all=true,storage.k8s.io/v1alpha1=false";
    [
        bridge(spec(BRIDGED, old).runtime_config(fewer)),
        bridge(spec(NEW, new)),
        spec(PLAIN, old).without_bridge(),
    ]
}

/// Starts the servers, and the bridge of the first.
async fn start(specs: &[ServerSpec]) -> ControlPlane {
    let mut plane = ControlPlane::prepare(specs);
    for server in 0..specs.len() {
        plane.start_server(server);
    }
    plane.start_bridge(BRIDGED);
    let bridge = plane.servers[BRIDGED].bridge;
    plane.wait_for_ready("the bridge", bridge).await;
    for server in &plane.servers {
        plane.wait_for_ready(&server.version, server.address).await;
    }
    plane
}

async fn wait_until_served(plane: &ControlPlane) {
    for api in APIS {
        eventually(api.path, PEER_DISCOVERY_TIMEOUT, async || {
            plane.status(BRIDGED, Via::Bridge, api.path).await == 200
        })
        .await;
    }
}

/// Waits until the peers are the two other servers, each once, by their identities.
async fn wait_until_all_are_known(plane: &ControlPlane) -> Vec<Value> {
    let mut expected = [NEW, PLAIN].map(|server| identity(plane, server).to_string());
    expected.sort();
    let peers = async || debug_peers(plane, BRIDGED).await["peers"].clone();
    let what = "the peers are the other servers, each once";
    eventually(what, PEER_DISCOVERY_TIMEOUT, async || {
        let peers = peers().await;
        let peers = peers.as_array().unwrap();
        let known: Vec<_> = peers
            .iter()
            .filter_map(|it| it["identity"].as_str())
            .collect();
        known == expected && peers.iter().all(|it| it["reachable"] == true)
    })
    .await;
    peers().await.as_array().unwrap().clone()
}

/// Every list of every server is answered through the one bridge.
async fn every_api_is_reachable(plane: &ControlPlane) {
    let mut client = plane.http_client(BRIDGED, Via::Bridge, Protocol::H2);
    let mut count = 0;
    for server in [BRIDGED, NEW, PLAIN] {
        let resources = plane.discovered(server, Via::Server).await;
        let can_be_listed = |it: &&DiscoveredResource| it.verbs.contains("list");
        for resource in resources.iter().filter(can_be_listed) {
            let path = format!("{}/{}", resource.prefix, resource.resource);
            let response = client.send(&Request::get(&path)).await.unwrap();
            assert_eq!(response.status, 200, "{path}: {}", response.text());
            count += 1;
        }
    }
    println!("{count} lists of three servers through one bridge");
    assert!(count > 100, "{count}");
    let unknown = "/apis/storage.k8s.io/v1alpha1/nothings";
    assert_eq!(plane.status(BRIDGED, Via::Bridge, unknown).await, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bridge_serves_the_apis_of_all_servers() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    if !is_in_namespace("one_bridge_serves_the_apis_of_all_servers") {
        return;
    }
    let plane = start(&specs(&old, &new, "endpoints")).await;
    wait_until_served(&plane).await;
    for peer in wait_until_all_are_known(&plane).await {
        assert_eq!(peer["addressSource"], "endpoints", "{peer}");
        assert_eq!(peer["bridge"], false, "{peer}");
    }
    let ready = plane.admin_page(BRIDGED, "/readyz?verbose").await;
    for line in [
        "[+]registry ok: endpoints\n",
        "[+]peers ok: 2 of 2 reachable\n",
    ] {
        assert!(ready.contains(line), "{ready}");
    }
    every_api_is_reachable(&plane).await;
}

/// Stops the load, and reports its progress.
#[derive(Default)]
struct LoadControl {
    stop: AtomicBool,
    /// A bridge is about to be killed, or has been: writes that it was processing are lost.
    is_killed: AtomicBool,
    /// How often the clients have sent their requests.
    rounds: AtomicUsize,
}

impl LoadControl {
    /// Waits until the clients have sent more requests.
    async fn wait_for_load(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        eventually("the clients continue", PEER_DISCOVERY_TIMEOUT, async || {
            self.rounds.load(Ordering::Relaxed) > before + CLIENTS + MIN_ROUNDS
        })
        .await;
    }
}

/// A client that reads both version-specific APIs, and creates and deletes objects.
struct Load {
    client: HttpClient,
    succeeded: usize,
    /// Writes that the killed bridge may have processed, so that a failure is permitted.
    lost: Vec<(u16, String)>,
    /// Status, method, path and body of the others; status 0 without a response.
    failed: Vec<(u16, String)>,
}

impl Load {
    fn new(plane: &ControlPlane, protocol: Protocol) -> Self {
        Self {
            client: plane.http_client(BRIDGED, Via::Bridge, protocol),
            succeeded: 0,
            lost: Vec::new(),
            failed: Vec::new(),
        }
    }

    async fn run(mut self, name: &str, control: &LoadControl) -> Self {
        while !control.stop.load(Ordering::Relaxed) {
            let number = control.rounds.fetch_add(1, Ordering::Relaxed);
            let name = format!("{name}-{number}");
            for api in APIS {
                self.send(&Request::get(api.path), &[200], control).await;
                let create = Request::new("POST", api.path);
                let create = create.body("application/json", &api.object(&name));
                let is_created = self.send(&create, &[201], control).await;
                let delete = format!("{}/{name}", api.path);
                let delete = Request::new("DELETE", &delete);
                // A lost create may not have been processed.
                let good: &[u16] = if is_created { &[200] } else { &[200, 404] };
                self.send(&delete, good, control).await;
                sleep(PAUSE).await;
            }
        }
        self
    }

    /// Returns whether the request has succeeded.
    async fn send(&mut self, request: &Request, good: &[u16], control: &LoadControl) -> bool {
        let response = self.client.send(request).await;
        let (status, text, may_retry) = response.map_or((0, String::new(), false), |response| {
            let text = String::from_utf8_lossy(&response.body).into_owned();
            let mut names = response.headers.iter().map(|(name, _)| name);
            let may_retry = names.any(|name| name.eq_ignore_ascii_case("retry-after"));
            (response.status, text, may_retry)
        });
        if good.contains(&status) {
            self.succeeded += 1;
            return true;
        }
        let what = format!("{} {}: {text}", request.method, request.target);
        let is_lost = control.is_killed.load(Ordering::Relaxed)
            && request.method != "GET"
            && status == 503
            && !may_retry
            && text.contains("may have been processed");
        let failures = if is_lost {
            &mut self.lost
        } else {
            &mut self.failed
        };
        failures.push((status, what));
        false
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_while_a_second_bridge_starts_and_stops() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    if !is_in_namespace("no_request_fails_while_a_second_bridge_starts_and_stops") {
        return;
    }
    let mut plane = start(&specs(&old, &new, "etcd,endpoints")).await;
    wait_until_served(&plane).await;
    wait_until_all_are_known(&plane).await;
    let control = LoadControl::default();
    let protocols: [_; CLIENTS] = [Protocol::H2, Protocol::H1];
    let loads = protocols.map(|protocol| Load::new(&plane, protocol));
    let changes = async {
        for signal in ["TERM", "KILL", "TERM"] {
            plane.start_bridge(NEW);
            let bridge = plane.servers[NEW].bridge.to_string();
            wait_for_address(&plane, &bridge).await;
            wait_until_all_are_known(&plane).await;
            let server = plane.servers[NEW].address.to_string();
            wait_for_fallback(&plane, &server).await;
            control.wait_for_load().await;
            control.is_killed.store(signal == "KILL", Ordering::Relaxed);
            plane.stop_bridge(NEW, signal);
            control.wait_for_load().await;
            wait_for_address(&plane, &server).await;
            wait_until_all_are_known(&plane).await;
        }
        control.stop.store(true, Ordering::Relaxed);
    };
    let [one, other] = loads;
    let loads = (one.run("one", &control), other.run("other", &control));
    let (one, other, ()) = tokio::join!(loads.0, loads.1, changes);
    let succeeded = one.succeeded + other.succeeded;
    let failed = [one.failed, other.failed].concat();
    // Each client has one request in flight.
    for lost in [&one.lost, &other.lost] {
        assert!(lost.len() <= 1, "{lost:?}");
    }
    let lost = one.lost.len() + other.lost.len();
    println!(
        "{succeeded} requests succeeded, {} failed; {lost} writes were in flight at the killed bridge",
        failed.len()
    );
    assert!(failed.is_empty(), "{failed:?}");
    assert!(succeeded >= MIN_REQUESTS, "{succeeded}");
}

/// Waits until the bridge reaches the new server at this address.
async fn wait_for_address(plane: &ControlPlane, address: &str) {
    let new = identity(plane, NEW).to_string();
    let what = format!("the new server is reached at {address}");
    eventually(&what, PEER_DISCOVERY_TIMEOUT, async || {
        let peers = debug_peers(plane, BRIDGED).await["peers"].clone();
        let mut peers = peers.as_array().unwrap().iter();
        peers.any(|it| it["identity"] == new && it["address"] == address && it["reachable"] == true)
    })
    .await;
}

/// Waits until the bridge knows the address of the new server besides that of its bridge. While servers
/// start, they remove addresses of each other from the `EndpointSlice` for up to 10 s.
async fn wait_for_fallback(plane: &ControlPlane, address: &str) {
    let new = identity(plane, NEW).to_string();
    let what = format!("the new server can be reached at {address} too");
    eventually(&what, PEER_DISCOVERY_TIMEOUT, async || {
        let peers = debug_peers(plane, BRIDGED).await["peers"].clone();
        let mut peers = peers.as_array().unwrap().iter();
        peers.any(|it| it["identity"] == new && it["fallbackAddress"] == address)
    })
    .await;
}
