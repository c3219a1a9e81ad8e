//! One bridge in front of the kube-apiservers that list themselves in the `EndpointSlice` of the Service
//! `kubernetes` (`--upstream=endpoints`): servers join and leave under load.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_e2e::{
    Bridge, ControlPlane, HttpClient, Protocol, Request, ServerSpec, VersionSpecificApi, Via,
    old_and_new_versions, run_in_network_namespace,
};
use skewbridge_testkit::eventually;
use tokio::time::sleep;

use crate::peer_pair::PEER_DISCOVERY_TIMEOUT;

/// The value of `--upstream` is the address of this server.
const SEED: usize = 0;
const OTHER: usize = 1;
/// Joins later.
const JOINING: usize = 2;

/// The port of all servers of a cluster.
const PORT: u16 = 6443;

/// The network of the servers, in the namespace of the test only.
const NETWORK: [u8; 3] = [10, 78, 0];

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The pause between two requests of the load.
const PAUSE: Duration = Duration::from_millis(20);

fn ip(server: usize) -> IpAddr {
    let [a, b, c] = NETWORK;
    let last = u8::try_from(server + 1).unwrap();
    [a, b, c, last].into()
}

/// Waits until exactly these servers get requests.
async fn wait_until_used(plane: &ControlPlane, bridge: &Bridge, servers: &[usize]) {
    let what = format!("the servers {servers:?} get requests");
    eventually(&what, PEER_DISCOVERY_TIMEOUT, async || {
        let Some((_, text)) = bridge.admin_page("/readyz?verbose").await else {
            return false;
        };
        [SEED, OTHER, JOINING].iter().all(|server| {
            let address = plane.servers[*server].address.to_string();
            let line = text.lines().find(|line| line.contains(&address));
            let is_used =
                line.is_some_and(|line| line.starts_with("[+]") && !line.contains("is not ready"));
            is_used == servers.contains(server)
        })
    })
    .await;
}

struct Load {
    stop: AtomicBool,
    rounds: AtomicUsize,
}

impl Load {
    /// Reads and writes until it is stopped. Returns what has failed. It runs in a task of its own: a
    /// server that is stopped may wait for a request of which only the head was sent.
    async fn run(self: Arc<Self>, mut client: HttpClient, prefix: &'static str) -> Vec<String> {
        let mut failed = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let number = self.rounds.fetch_add(1, Ordering::Relaxed);
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": format!("{prefix}-{number}")}});
            let create =
                Request::new("POST", CONFIG_MAPS).body("application/json", &map.to_string());
            for (request, good) in [(create, 201), (Request::get(CONFIG_MAPS), 200)] {
                let status = client.send(&request).await.map(|it| it.status);
                if !status.as_ref().is_ok_and(|it| *it == good) {
                    failed.push(format!("{} {}: {status:?}", request.method, request.target));
                }
            }
            sleep(PAUSE).await;
        }
        failed
    }

    async fn wait(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        eventually("the clients continue", PEER_DISCOVERY_TIMEOUT, async || {
            self.rounds.load(Ordering::Relaxed) > before + 20
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_join_and_leave_as_they_are_listed_without_a_failed_request() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let servers = [SEED, OTHER, JOINING].map(ip);
    let name = "servers_join_and_leave_as_they_are_listed_without_a_failed_request";
    if !run_in_network_namespace(&format!("balancer_endpoints::{name}"), &servers) {
        return;
    }
    let spec = |server: usize, version: &str| {
        ServerSpec::of(version)
            .published_at(SocketAddr::new(ip(server), PORT))
            .without_bridge()
    };
    let mut plane =
        ControlPlane::prepare(&[spec(SEED, &old), spec(OTHER, &old), spec(JOINING, &new)]);
    for server in [SEED, OTHER] {
        plane.start_server(server);
        let address = plane.servers[server].address;
        plane.wait_for_ready("a server", address).await;
    }
    let flags = [
        "--upstream=endpoints",
        "--upstream-server-name=kubernetes.default.svc",
    ];
    let bridge = plane
        .start_bridge_for(plane.servers[SEED].address, &flags)
        .await;
    wait_until_used(&plane, &bridge, &[SEED, OTHER]).await;

    let load = Arc::new(Load {
        stop: AtomicBool::new(false),
        rounds: AtomicUsize::new(0),
    });
    let client = |protocol| HttpClient::new(plane.client("admin"), bridge.address, protocol);
    let loads = [
        tokio::spawn(load.clone().run(client(Protocol::H2), "one")),
        tokio::spawn(load.clone().run(client(Protocol::H1), "other")),
    ];
    let new_api = VersionSpecificApi::POLICIES;
    let mut reader = client(Protocol::H2);
    let changes = async {
        // A newer server joins: requests for what only it serves are answered.
        load.wait().await;
        plane.start_server(JOINING);
        wait_until_used(&plane, &bridge, &[SEED, OTHER, JOINING]).await;
        eventually(new_api.path, PEER_DISCOVERY_TIMEOUT, async || {
            let answer = reader.send(&Request::get(new_api.path)).await;
            answer.is_ok_and(|it| it.status == 200)
        })
        .await;
        load.wait().await;
        // The server of the flag leaves. It removes itself from the EndpointSlice.
        plane.stop_server(SEED, "TERM");
        wait_until_used(&plane, &bridge, &[OTHER, JOINING]).await;
        load.wait().await;
        let (_, text) = bridge.admin_page("/readyz?verbose").await.unwrap();
        assert!(
            text.contains("it is not listed in the EndpointSlices"),
            "{text}"
        );
        // It returns, and another one leaves.
        plane.start_server(SEED);
        wait_until_used(&plane, &bridge, &[SEED, OTHER, JOINING]).await;
        plane.stop_server(OTHER, "TERM");
        wait_until_used(&plane, &bridge, &[SEED, JOINING]).await;
        load.wait().await;
        load.stop.store(true, Ordering::Relaxed);
    };
    let [one, other] = loads;
    changes.await;
    let (one, other) = (one.await.unwrap(), other.await.unwrap());
    let rounds = load.rounds.load(Ordering::Relaxed);
    println!("{} requests through the bridge", 2 * rounds);
    assert_eq!([one, other].concat(), Vec::<String>::new());
    // Each server is known once.
    let (_, page) = bridge.admin_page("/debug/peers").await.unwrap();
    let page: Value = serde_json::from_str(&page).unwrap();
    let backends = page["backends"].as_array().unwrap();
    let mut names: Vec<_> = (backends.iter())
        .filter_map(|it| it["upstream"].as_str())
        .collect();
    names.sort_unstable();
    let mut expected: Vec<_> = (plane.servers.iter())
        .map(|it| it.address.to_string())
        .collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
    // What is written through the bridge is in the cluster.
    let mut direct = plane.http_client(SEED, Via::Server, Protocol::H2);
    let list = direct.send(&Request::get(CONFIG_MAPS)).await.unwrap();
    let list: Value = serde_json::from_slice(&list.body).unwrap();
    let written = list["items"].as_array().unwrap().iter();
    let written = written.filter(|it| {
        let name = it["metadata"]["name"].as_str().unwrap_or_default();
        name.starts_with("one-") || name.starts_with("other-")
    });
    assert_eq!(written.count(), rounds, "each write is processed once");
}
