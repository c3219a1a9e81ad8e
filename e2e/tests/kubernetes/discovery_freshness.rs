//! How soon every bridge shows changes in discovery.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skewbridge_e2e::{
    AGGREGATED, ControlPlane, DiscoveredResource, HttpClient, Protocol, Request, ServerSpec, Via,
    control_planes, newest, old_and_new_versions, oldest,
};
use skewbridge_testkit::eventually;
use tokio::time::sleep;

/// From the last readiness to the time when all servers know each other.
const PEER_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// The documented bound: from a peer's readiness to the time when every bridge shows its APIs.
const MAX_PROPAGATION: Duration = Duration::from_secs(5);

/// The interval between two requests for an unavailable API.
const REQUEST_INTERVAL: Duration = Duration::from_millis(500);

/// For a server to publish a new resource.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(20);

const CUSTOM_RESOURCES: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Without it kube-apiserver keeps watches open when it is terminated, and waits a minute
/// for them.
const WATCH_TERMINATION_FLAG: &str = "--shutdown-watch-termination-grace-period=10s";

/// How many resources are created and deleted.
const ROUNDS: u32 = 10;

/// How many changes are made after a bridge has begun to answer from memory, which takes 5 s each.
const SETTLED_ROUNDS: u32 = 3;

/// The same in the test that takes long.
const MANY_SETTLED_ROUNDS: u32 = 100;

const MEMORY_ANSWERS: &str = "skewbridge_discovery_memory_answers_total";

/// The test blocks its thread while servers exit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_shown_in_time() {
    for versions in control_planes() {
        let (old, new) = (oldest(&versions), newest(&versions));
        if versions.len() == 2 && old != new {
            println!("plane {versions:?}");
            check_versions(old, new).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes ten minutes"]
async fn a_hundred_changes_made_elsewhere_are_shown_in_time() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let server = |version| ServerSpec::of(version).peer().flag(WATCH_TERMINATION_FLAG);
    let plane = ControlPlane::start(&[server(&old), server(&new)]).await;
    wait_until_all_show_the_union(&plane, &[0, 1], PEER_DISCOVERY_TIMEOUT).await;
    changes_made_elsewhere_end_answers_from_memory(&plane, (0, 1), MANY_SETTLED_ROUNDS).await;
}

async fn check_versions(old: &str, new: &str) {
    let server = |version| ServerSpec::of(version).peer().flag(WATCH_TERMINATION_FLAG);
    let mut plane = ControlPlane::start(&[server(old), server(new)]).await;
    wait_until_all_show_the_union(&plane, &[0, 1], PEER_DISCOVERY_TIMEOUT).await;
    custom_resources_are_shown_immediately(&plane, 0).await;
    custom_resources_are_shown_immediately(&plane, 1).await;
    changes_made_elsewhere_end_answers_from_memory(&plane, (0, 1), SETTLED_ROUNDS).await;

    // In place, under a bridge that keeps running.
    for (node, version) in [(1, old), (0, new)] {
        plane.stop_server(node, "TERM");
        plane.replace_server(node, version);
        plane.start_server(node);
        wait_until_shown(&plane, node, "the bridge kept running").await;
    }
    // Together with their bridges.
    stop_and_check_unavailable(&mut plane, 0, 1).await;
    restart(&mut plane, 0, old).await;
    stop(&mut plane, 1);
    restart(&mut plane, 1, new).await;
    stop_and_check_unavailable(&mut plane, 0, 1).await;
}

fn stop(plane: &mut ControlPlane, node: usize) {
    plane.stop_bridge(node, "TERM");
    plane.stop_server(node, "TERM");
}

async fn restart(plane: &mut ControlPlane, node: usize, version: &str) {
    plane.replace_server(node, version);
    plane.start_server(node);
    plane.start_bridge(node);
    wait_until_shown(plane, node, "with its bridge").await;
}

/// A server and its bridge stop together, as when their host restarts. The APIs that only
/// that server has are unavailable then, and not "not found": a controller that reads 404
/// treats its objects as deleted. The end of that period is a rule of the pure core
/// (`ROLLOUT_GRACE`).
async fn stop_and_check_unavailable(plane: &mut ControlPlane, node: usize, other: usize) {
    let other_names = names(plane, other, Via::Server).await;
    let mut own = plane.discovered(node, Via::Server).await.into_iter();
    let only = own.find(|it| it.verbs.contains("list") && !other_names.contains(&path(it)));
    let only = path(&only.expect("an API that only this server serves"));
    stop(plane, node);
    let left = Instant::now();
    while left.elapsed() < MAX_PROPAGATION {
        assert_eq!(plane.status(other, Via::Bridge, &only).await, 503, "{only}");
        assert!(names(plane, other, Via::Bridge).await.contains(&only));
        sleep(REQUEST_INTERVAL).await;
    }
}

/// Waits until a server is back, and every bridge shows what all servers serve.
async fn wait_until_shown(plane: &ControlPlane, node: usize, how: &str) {
    let server = &plane.servers[node];
    let what = format!("{node} as {}", server.version);
    plane.wait_for_ready(&what, server.address).await;
    let ready = Instant::now();
    plane.wait_for_ready(&what, server.bridge).await;
    wait_until_all_show_the_union(plane, &[0, 1], PEER_DISCOVERY_TIMEOUT).await;
    let elapsed = ready.elapsed();
    println!("node {what}, {how}: {elapsed:.1?}");
    assert!(elapsed < MAX_PROPAGATION, "{elapsed:?}");
}

/// Waits until the bridges of these servers show what these servers serve, and nothing else.
async fn wait_until_all_show_the_union(plane: &ControlPlane, servers: &[usize], within: Duration) {
    let mut union = BTreeSet::new();
    for server in servers {
        union.extend(names(plane, *server, Via::Server).await);
    }
    eventually("all bridges show everything", within, async || {
        for server in servers {
            if names(plane, *server, Via::Bridge).await != union {
                return false;
            }
        }
        true
    })
    .await;
}

async fn names(plane: &ControlPlane, server: usize, via: Via) -> BTreeSet<String> {
    let all = plane.discovered(server, via).await;
    all.iter().map(path).collect()
}

fn path(of: &DiscoveredResource) -> String {
    format!("{}/{}", of.prefix, of.resource)
}

/// Waits until the bridge responds from its cache: it caches permissions once discovery has
/// not changed for 5 s. Servers add an audit ID to their own responses.
async fn wait_until_cached(client: &mut HttpClient) {
    eventually(
        "the bridge answers from its cache",
        PUBLISH_TIMEOUT,
        async || {
            let request = Request::get("/apis").header("Accept", AGGREGATED);
            let answer = client.send(&request).await.unwrap();
            answer.status == 200 && answer.header("audit-id").is_none()
        },
    )
    .await;
}

/// For a client that has sent a request before, and whose permission is cached.
async fn custom_resources_are_shown_immediately(plane: &ControlPlane, server: usize) {
    let mut direct = plane.http_client(server, Via::Server, Protocol::H2);
    let mut bridged = plane.http_client(server, Via::Bridge, Protocol::H2);
    let mut longest = Duration::ZERO;
    for round in 0..ROUNDS {
        let group = format!("round{round}.s{server}.example.com");
        let name = format!("things.{group}");
        if round == 0 {
            wait_until_cached(&mut bridged).await;
        }
        assert!(!shows(&mut bridged, &group).await);
        let request = Request::new("POST", CUSTOM_RESOURCES);
        let request = request.body("application/json", &custom_resource(&group).to_string());
        let made = direct.send(&request).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.text());
        for is_present in [true, false] {
            // kubectl wait --for=condition=Established; then discovery.
            let what = format!("{group} straight: {is_present}");
            eventually(&what, PUBLISH_TIMEOUT, async || {
                shows(&mut direct, &group).await == is_present
            })
            .await;
            let began = Instant::now();
            assert_eq!(shows(&mut bridged, &group).await, is_present, "{group}");
            longest = longest.max(began.elapsed());
            assert_eq!(
                shows(&mut bridged, &group).await,
                is_present,
                "{group}, again"
            );
            if is_present {
                if round == 0 {
                    wait_until_cached(&mut bridged).await;
                }
                let path = format!("{CUSTOM_RESOURCES}/{name}");
                let deleted = direct.send(&Request::new("DELETE", &path)).await;
                assert_eq!(deleted.unwrap().status, 200);
            }
        }
    }
    println!("{ROUNDS} custom resources at bridge {server}: shown at once, within {longest:.1?}");
}

/// A bridge answers from memory; then a custom resource is created at another server. Once the bridge's
/// own server shows it, the next answer of the bridge shows it too: it is never later than its server.
async fn changes_made_elsewhere_end_answers_from_memory(
    plane: &ControlPlane,
    (server, other): (usize, usize),
    rounds: u32,
) {
    let mut direct = plane.http_client(server, Via::Server, Protocol::H2);
    let mut bridged = plane.http_client(server, Via::Bridge, Protocol::H2);
    let mut elsewhere = plane.http_client(other, Via::Server, Protocol::H2);
    for round in 0..rounds {
        let group = format!("elsewhere{round}.example.com");
        eventually("answers from memory", PUBLISH_TIMEOUT, async || {
            let before = memory_answers(plane, server).await;
            assert!(!shows(&mut bridged, &group).await);
            memory_answers(plane, server).await > before
        })
        .await;
        let request = Request::new("POST", CUSTOM_RESOURCES);
        let request = request.body("application/json", &custom_resource(&group).to_string());
        let made = elsewhere.send(&request).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.text());
        eventually(&group, PUBLISH_TIMEOUT, async || {
            shows(&mut direct, &group).await
        })
        .await;
        assert!(shows(&mut bridged, &group).await, "{group}");
    }
    println!("{rounds} of {rounds} changes made elsewhere are shown with the next answer");
}

async fn memory_answers(plane: &ControlPlane, server: usize) -> u64 {
    let metrics = plane.metrics(plane.servers[server].admin).await;
    metrics.sum(MEMORY_ANSWERS, &[])
}

fn custom_resource(group: &str) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("things.{group}")},
        "spec": {"group": group, "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}})
}

/// Whether a group is shown with its resources.
async fn shows(client: &mut HttpClient, group: &str) -> bool {
    let request = Request::get("/apis").header("Accept", AGGREGATED);
    let answer = client.send(&request).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let document: Value = serde_json::from_slice(&answer.body).unwrap();
    let mut groups = document["items"].as_array().unwrap().iter();
    let group = groups.find(|it| it["metadata"]["name"] == group);
    group.is_some_and(|it| it["versions"][0]["resources"][0]["resource"] == "things")
}
