//! How soon every bridge shows what has changed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skewbridge_e2e::{
    AGGREGATED, ControlPlane, DiscoveredResource, HttpClient, Protocol, Request, ServerSpec, Via,
    control_planes, newest, oldest,
};
use skewbridge_testkit::eventually;
use tokio::time::sleep;

/// From the last readiness to when everybody knows everybody.
const FOUND: Duration = Duration::from_secs(30);

/// What is promised: from a peer's readiness to when every bridge shows it.
const PROMISE: Duration = Duration::from_secs(5);

/// Between two requests for what is unavailable.
const BETWEEN_REQUESTS: Duration = Duration::from_millis(500);

/// For a server to show what it was given.
const SHOWN: Duration = Duration::from_secs(20);

const CUSTOM_RESOURCES: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Without it kube-apiserver leaves watches open when it is told to end, and
/// waits a minute for them.
const END_WATCHES: &str = "--shutdown-watch-termination-grace-period=10s";

/// How many are made and deleted.
const ROUNDS: u32 = 10;

/// The test itself blocks while servers end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_changed_is_shown_in_time() {
    for versions in control_planes() {
        let (old, new) = (oldest(&versions), newest(&versions));
        if versions.len() == 2 && old != new {
            println!("plane {versions:?}");
            judge(old, new).await;
        }
    }
}

async fn judge(old: &str, new: &str) {
    let server = |version| ServerSpec::of(version).peer().flag(END_WATCHES);
    let mut plane = ControlPlane::start(&[server(old), server(new)]).await;
    everybody_shows_the_union(&plane, &[0, 1], FOUND).await;
    custom_resources_are_right_at_once(&plane, 0).await;
    custom_resources_are_right_at_once(&plane, 1).await;

    // In place, under a bridge that stays.
    for (node, version) in [(1, old), (0, new)] {
        plane.stop_server(node, "TERM");
        plane.replace_server(node, version);
        plane.start_server(node);
        is_shown_in_time(&plane, node, "its bridge stayed").await;
    }
    // With their bridges.
    leave(&mut plane, 0, 1).await;
    come_back(&mut plane, 0, old).await;
    end(&mut plane, 1);
    come_back(&mut plane, 1, new).await;
    leave(&mut plane, 0, 1).await;
}

fn end(plane: &mut ControlPlane, node: usize) {
    plane.stop_bridge(node, "TERM");
    plane.stop_server(node, "TERM");
}

async fn come_back(plane: &mut ControlPlane, node: usize, version: &str) {
    plane.replace_server(node, version);
    plane.start_server(node);
    plane.start_bridge(node);
    is_shown_in_time(plane, node, "with its bridge").await;
}

/// A server and its bridge end together, as when their host restarts. What only that server
/// has is unavailable then, and not "not found": a controller that reads 404 treats its
/// objects as gone. The end of that time is a rule of the pure core (`ROLLOUT_GRACE`).
async fn leave(plane: &mut ControlPlane, node: usize, other: usize) {
    let other_names = names(plane, other, Via::Server).await;
    let mut own = plane.discovered(node, Via::Server).await.into_iter();
    let only = own.find(|it| it.verbs.contains("list") && !other_names.contains(&path(it)));
    let only = path(&only.expect("something that only it serves"));
    end(plane, node);
    let left = Instant::now();
    while left.elapsed() < PROMISE {
        assert_eq!(plane.status(other, Via::Bridge, &only).await, 503, "{only}");
        assert!(names(plane, other, Via::Bridge).await.contains(&only));
        sleep(BETWEEN_REQUESTS).await;
    }
}

/// Waits until a server is back, and every bridge shows what all servers serve.
async fn is_shown_in_time(plane: &ControlPlane, node: usize, how: &str) {
    let server = &plane.servers[node];
    let what = format!("{node} as {}", server.version);
    plane.wait_for_ready(&what, server.address).await;
    let ready = Instant::now();
    plane.wait_for_ready(&what, server.bridge).await;
    everybody_shows_the_union(plane, &[0, 1], FOUND).await;
    let took = ready.elapsed();
    println!("node {what}, {how}: {took:.1?}");
    assert!(took < PROMISE, "{took:?}");
}

/// Waits until the bridges of these servers show what these servers serve, and
/// nothing else.
async fn everybody_shows_the_union(plane: &ControlPlane, servers: &[usize], within: Duration) {
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

/// Waits until the bridge answers by itself: it remembers who may read, once it
/// has heard of no change for 5 s. Servers give their own answers an id.
async fn is_remembered(client: &mut HttpClient) {
    eventually("the bridge answers by itself", SHOWN, async || {
        let request = Request::get("/apis").header("Accept", AGGREGATED);
        let answer = client.send(&request).await.unwrap();
        answer.status == 200 && answer.header("audit-id").is_none()
    })
    .await;
}

/// Of one who has asked a moment before, and whose permission is remembered.
async fn custom_resources_are_right_at_once(plane: &ControlPlane, server: usize) {
    let mut straight = plane.http_client(server, Via::Server, Protocol::H2);
    let mut bridged = plane.http_client(server, Via::Bridge, Protocol::H2);
    let mut longest = Duration::ZERO;
    for round in 0..ROUNDS {
        let group = format!("round{round}.s{server}.example.com");
        let name = format!("things.{group}");
        if round == 0 {
            is_remembered(&mut bridged).await;
        }
        assert!(!shows(&mut bridged, &group).await);
        let request = Request::new("POST", CUSTOM_RESOURCES);
        let request = request.body("application/json", &custom_resource(&group).to_string());
        let made = straight.send(&request).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.text());
        for there in [true, false] {
            // kubectl wait --for=condition=Established; after that discovery.
            let what = format!("{group} straight: {there}");
            eventually(&what, SHOWN, async || {
                shows(&mut straight, &group).await == there
            })
            .await;
            let began = Instant::now();
            assert_eq!(shows(&mut bridged, &group).await, there, "{group}");
            longest = longest.max(began.elapsed());
            assert_eq!(shows(&mut bridged, &group).await, there, "{group}, again");
            if there {
                if round == 0 {
                    is_remembered(&mut bridged).await;
                }
                let path = format!("{CUSTOM_RESOURCES}/{name}");
                let deleted = straight.send(&Request::new("DELETE", &path)).await;
                assert_eq!(deleted.unwrap().status, 200);
            }
        }
    }
    println!(
        "{ROUNDS} custom resources at bridge {server}: at once, by answers of at most {longest:.1?}"
    );
}

fn custom_resource(group: &str) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("things.{group}")},
        "spec": {"group": group, "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}})
}

/// Whether a group is shown with what is in it.
async fn shows(client: &mut HttpClient, group: &str) -> bool {
    let request = Request::get("/apis").header("Accept", AGGREGATED);
    let answer = client.send(&request).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let document: Value = serde_json::from_slice(&answer.body).unwrap();
    let mut groups = document["items"].as_array().unwrap().iter();
    let group = groups.find(|it| it["metadata"]["name"] == group);
    group.is_some_and(|it| it["versions"][0]["resources"][0]["resource"] == "things")
}
