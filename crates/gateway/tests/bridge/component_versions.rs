//! Components are sent to a server that is not older than themselves, if one is available.

use h2::Reason;
use serde_json::{Value, json};
use skewbridge_gateway::Handle;
use skewbridge_k8s_api::component::GuardedComponents;
use skewbridge_testkit::{Reply, TEST_TIMEOUT, eventually};

use crate::support::admin_client;
use crate::support::cluster::{
    ClusterFixture, NEW, NEW_PATH, OWN, PeerServer, SHARED, SHARED_PATH, send_request, served_by,
};
use crate::support::fake_apiserver::DiscoveryFormat;

const B: &str = "apiserver-b";
const NEWER: &str = "kubelet/v1.36.2 (linux/amd64) kubernetes/0e0e0e0";
const SAME: &str = "kubelet/v1.34.9 (linux/amd64) kubernetes/0e0e0e0";
const NEWEST: &str = "kubelet/v1.37.0 (linux/amd64) kubernetes/0e0e0e0";
const OTHER: &str = "kubectl/v1.36.2 (linux/amd64) kubernetes/0e0e0e0";

/// The local server has version 1.34.4, the peer 1.36.4.
async fn mixed_cluster(guarded: GuardedComponents) -> (ClusterFixture, PeerServer, Handle) {
    let cluster = ClusterFixture::new(&[]).await;
    let version = ("v1.34.4", DiscoveryFormat::V2);
    cluster.local.set_version(version.0, version.1);
    let b = cluster.peer(B, &[SHARED]).await;
    let mut config = cluster.config();
    config.peers.guards.components = guarded;
    let bridge = cluster.start_with(&config).await;
    (cluster, b, bridge)
}

async fn send(
    cluster: &ClusterFixture,
    bridge: &Handle,
    method: &str,
    user_agent: &str,
) -> skewbridge_testkit::Response {
    let headers = [("user-agent", user_agent)];
    let client = cluster.alice();
    send_request(&client, bridge, method, SHARED_PATH, &headers, "").await
}

async fn metric(bridge: &Handle, name: &str, rule: &str) -> Option<f64> {
    let scrape = admin_client::scrape(bridge.admin_address()).await;
    scrape.value(name, &[("rule", rule)])
}

#[tokio::test]
async fn a_component_uses_a_server_that_is_not_older() {
    let (cluster, _b, bridge) = mixed_cluster(GuardedComponents::default()).await;
    for (user_agent, expected, warns) in [
        (NEWER, B, false),
        (SAME, OWN, false),
        (OTHER, OWN, false),
        // No server is as new: the newest one gets the request.
        (NEWEST, B, true),
    ] {
        for method in ["GET", "POST"] {
            let answer = send(&cluster, &bridge, method, user_agent).await;
            assert_eq!(served_by(&answer), expected, "{method} {user_agent}");
            let warning = answer.header("warning");
            assert_eq!(warning.is_some(), warns, "{user_agent} {warning:?}");
        }
    }
    let placed = metric(&bridge, "skewbridge_placed_requests_total", "version").await;
    assert_eq!(placed, Some(4.0));
    let unmet = metric(&bridge, "skewbridge_unmet_placements_total", "version").await;
    assert_eq!(unmet, Some(2.0));
}

#[tokio::test]
async fn the_rule_can_be_turned_off() {
    let (cluster, b, bridge) = mixed_cluster(GuardedComponents::none()).await;
    let answer = send(&cluster, &bridge, "GET", NEWER).await;
    assert_eq!(served_by(&answer), OWN);
    assert!(b.client_requests().is_empty());
}

#[tokio::test]
async fn a_component_uses_the_older_server_while_no_newer_one_accepts_requests() {
    let (cluster, b, bridge) = mixed_cluster(GuardedComponents::default()).await;
    b.shut_down().await;
    // The first request meets the closed port, and none fails.
    for _ in 0..3 {
        for method in ["GET", "POST"] {
            let answer = send(&cluster, &bridge, method, NEWER).await;
            assert_eq!(served_by(&answer), OWN, "{method}");
        }
    }
    eventually("a warning", TEST_TIMEOUT, async || {
        let answer = send(&cluster, &bridge, "GET", NEWER).await;
        let warning = answer.header("warning").map(str::to_owned);
        warning.is_some_and(|it| it.starts_with("299 - \"no available kube-apiserver is as new"))
    })
    .await;
    for recorded in cluster.local.client_requests() {
        assert_eq!(recorded.header("x-kubernetes-peer-proxied"), None);
        assert_eq!(recorded.all("x-remote-user"), ["alice"], "{recorded:#?}");
    }
}

#[tokio::test]
async fn a_write_that_a_peer_may_have_processed_is_not_sent_to_the_local_server() {
    let (cluster, b, bridge) = mixed_cluster(GuardedComponents::default()).await;
    b.apiserver.set_hook(|recorded| {
        (recorded.path() == SHARED_PATH).then(|| Reply::reset(Reason::INTERNAL_ERROR))
    });
    let answer = send(&cluster, &bridge, "POST", NEWER).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(cluster.local.client_requests().is_empty());
}

#[tokio::test]
async fn the_local_server_gets_a_request_that_the_bridge_of_the_newer_server_cannot_send() {
    let (cluster, b, bridge) = mixed_cluster(GuardedComponents::default()).await;
    // The server behind that bridge has ended.
    b.apiserver.set_hook(|recorded| {
        let not_processed = || Reply::new(503).header("x-skewbridge-not-processed", "true");
        (recorded.path() == SHARED_PATH).then(not_processed)
    });
    for method in ["GET", "POST"] {
        let answer = send(&cluster, &bridge, method, NEWER).await;
        assert_eq!(served_by(&answer), OWN, "{method}");
    }
}

#[tokio::test]
async fn a_list_whose_options_the_older_server_rejects_is_sent_to_a_newer_one() {
    let (cluster, b, bridge) = mixed_cluster(GuardedComponents::default()).await;
    let rejected = |message: &'static str| {
        move |recorded: &skewbridge_testkit::RecordedRequest| {
            (recorded.path() == SHARED_PATH).then(|| Reply::new(400).body(message))
        }
    };
    cluster
        .local
        .set_hook(rejected("\"spec.x\" is not a known field selector"));
    let list = format!("{SHARED_PATH}?fieldSelector=spec.x%3Da");
    let get = async |path: &str| {
        let headers = [("user-agent", OTHER)];
        send_request(&cluster.alice(), &bridge, "GET", path, &headers, "").await
    };
    assert_eq!(served_by(&get(&list).await), B);
    // Without options no newer server would answer differently.
    assert_eq!(get(SHARED_PATH).await.status, 400);
    // The newer server rejects it too.
    b.apiserver.set_hook(rejected("newer"));
    let answer = get(&list).await;
    assert_eq!((answer.status, answer.text()), (400, "newer".to_owned()));
    // No newer server accepts requests: the response of the local one counts.
    b.shut_down().await;
    let answer = get(&list).await;
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("not a known field selector"));
}

#[tokio::test]
async fn a_deletion_of_a_collection_whose_options_the_older_server_rejects_is_sent_to_a_newer_one()
{
    let (cluster, b, bridge) = mixed_cluster(GuardedComponents::default()).await;
    let answer_with = |status: u16| {
        cluster.local.set_hook(move |recorded| {
            (recorded.path() == SHARED_PATH).then(|| Reply::new(status).body("rejected"))
        });
    };
    let delete = async |path: &str| {
        let headers = [("user-agent", OTHER)];
        send_request(&cluster.alice(), &bridge, "DELETE", path, &headers, "{}").await
    };
    let selected = format!("{SHARED_PATH}?fieldSelector=spec.x%3Da");
    answer_with(400);
    assert_eq!(served_by(&delete(&selected).await), B);
    assert_eq!(b.client_requests().len(), 1);
    // Some of the objects may have been deleted.
    answer_with(422);
    assert_eq!(delete(&selected).await.status, 422);
    // Without options no newer server would answer differently.
    answer_with(400);
    assert_eq!(delete(SHARED_PATH).await.status, 400);
    assert_eq!(b.client_requests().len(), 1);
}

#[tokio::test]
async fn a_list_whose_options_an_older_peer_rejects_is_sent_to_a_newer_peer() {
    const C: &str = "apiserver-c";
    const TURNS: usize = 20;
    let cluster = ClusterFixture::new(&[]).await;
    let b = cluster.peer(B, &[NEW]).await;
    (b.apiserver).set_version("v1.35.1", DiscoveryFormat::V2);
    let c = cluster.peer(C, &[NEW]).await;
    let bridge = cluster.start().await;
    let rejected = |message: &'static str| {
        move |recorded: &skewbridge_testkit::RecordedRequest| {
            (recorded.path() == NEW_PATH).then(|| Reply::new(400).body(message))
        }
    };
    b.apiserver.set_hook(rejected("older"));
    let list = format!("{NEW_PATH}?fieldSelector=spec.x%3Da");
    for _ in 0..TURNS {
        let answer = cluster.get(&bridge, &list).await;
        assert_eq!(served_by(&answer), C);
    }
    assert!(!b.client_requests().is_empty());
    // It is not a failure of the older peer: both get requests.
    let before = b.client_requests().len();
    for _ in 0..TURNS {
        cluster.get(&bridge, NEW_PATH).await;
    }
    assert!(b.client_requests().len() > before);
    // The newer peer does not accept requests: the client gets the reason of the older one.
    c.shut_down().await;
    for _ in 0..TURNS {
        let answer = cluster.get(&bridge, &list).await;
        assert_eq!((answer.status, answer.text()), (400, "older".to_owned()));
    }
}

#[tokio::test]
async fn debug_route_explains_a_decision() {
    let (_cluster, _b, bridge) = mixed_cluster(GuardedComponents::default()).await;
    let explain = async |query: &str| {
        let path = format!("/debug/route?{query}");
        let answer = admin_client::get(bridge.admin_address(), &path).await;
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        (answer.status, body)
    };
    let newer = format!("path={SHARED_PATH}&user-agent=kubelet/v1.36.2%20(linux/amd64)");
    let (status, explanation) = explain(&newer).await;
    assert_eq!(status, 200);
    assert_eq!(
        explanation,
        json!({
            "verb": "list", "group": "apps", "version": "v1", "resource": "deployments",
            "component": "kubelet 1.36.2", "route": "peer",
            "reason": "a peer satisfies the rule version, the local server does not",
            "candidates": [
                {"server": B, "host": "host-of-apiserver-b", "version": "1.36.4", "available": true},
                {"server": "local", "version": "1.34.4", "available": true, "unmet": ["version"]},
            ],
        })
    );
    for (query, route, reason) in [
        (
            format!("method=post&path={SHARED_PATH}"),
            "local",
            "the local server satisfies every rule",
        ),
        (
            format!("path={SHARED_PATH}&user-agent=kubelet/v1.37.0"),
            "peer",
            "the local server does not satisfy the rule version; no available server satisfies version, the newest one that satisfies most is used",
        ),
        (
            "path=/apis/none/v1/nothings".to_owned(),
            "local",
            "no server serves this; the local server answers 404",
        ),
        (
            "path=/version".to_owned(),
            "local",
            "paths outside of the resource API are answered locally",
        ),
    ] {
        let (_, explanation) = explain(&query).await;
        assert_eq!(explanation["route"], route, "{query}");
        assert_eq!(explanation["reason"], reason, "{query}");
    }
    for wrong in [
        "",
        "path=api",
        "path=/api&verb=get",
        "path=/api&method=a%20b",
        "path=/%25",
    ] {
        let (status, problem) = explain(wrong).await;
        assert_eq!((status, &problem["code"]), (400, &json!(400)), "{wrong}");
    }
}
