//! The local server is a candidate like its peers: while it is not available, available peers get its
//! requests.

use std::sync::{Arc, Mutex};

use h2::Reason;
use serde_json::Value;
use skewbridge_gateway::Handle;
use skewbridge_testkit::{RecordedRequest, Reply, Response, TEST_TIMEOUT, eventually};

use crate::support::admin_client;
use crate::support::cluster::{
    ClusterFixture, NEW, OWN, PeerServer, SHARED_PATH, send_request, served_by, status_message,
};

const B: &str = "apiserver-b";
const HOP: &str = "x-kubernetes-peer-proxied";
const NOT_PROCESSED: &str = "x-skewbridge-not-processed";

async fn fixture() -> (ClusterFixture, PeerServer, Handle) {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    wait_until_available(&bridge, true).await;
    (cluster, b, bridge)
}

async fn explain(bridge: &Handle) -> Value {
    let path = format!("/debug/route?path={SHARED_PATH}");
    let answer = admin_client::get(bridge.admin_address(), &path).await;
    serde_json::from_str(&answer.body).unwrap()
}

async fn wait_until_available(bridge: &Handle, expected: bool) {
    eventually(
        "the availability of the local server is known",
        TEST_TIMEOUT,
        async || {
            let explanation = explain(bridge).await;
            let candidates = explanation["candidates"].as_array().unwrap();
            let local = candidates.iter().find(|it| it["server"] == "local");
            let ready = admin_client::get(bridge.admin_address(), "/readyz/upstream").await;
            local.is_some_and(|it| it["available"] == expected) && (ready.status == 200) == expected
        },
    )
    .await;
}

async fn send(cluster: &ClusterFixture, bridge: &Handle, method: &str) -> Response {
    let body = if method == "GET" { "" } else { "body" };
    send_request(&cluster.alice(), bridge, method, SHARED_PATH, &[], body).await
}

async fn placed(bridge: &Handle) -> Option<f64> {
    let scrape = admin_client::scrape(bridge.admin_address()).await;
    scrape.value("skewbridge_placed_requests_total", &[("rule", "available")])
}

fn is_client_request(recorded: &RecordedRequest) -> bool {
    !recorded.is_probe() && recorded.path() == SHARED_PATH
}

#[tokio::test]
async fn requests_go_to_a_peer_while_the_local_server_is_down() {
    let (cluster, b, bridge) = fixture().await;
    assert_eq!(served_by(&send(&cluster, &bridge, "GET").await), OWN);
    cluster.local.server.stop_listening().await;
    cluster.local.server.kill_connections().await;
    // From the first request on, which meets the closed port.
    for method in ["POST", "GET", "DELETE", "GET"] {
        let answer = send(&cluster, &bridge, method).await;
        assert_eq!(served_by(&answer), B, "{method}");
    }
    wait_until_available(&bridge, false).await;
    let explanation = explain(&bridge).await;
    assert_eq!(
        explanation["reason"],
        "the local server is not available, a peer is (rule available)"
    );
    assert_eq!(explanation["candidates"][0]["server"], B);
    for method in ["POST", "GET"] {
        assert_eq!(served_by(&send(&cluster, &bridge, method).await), B);
    }
    assert_eq!(b.client_requests().len(), 6, "each request is sent once");
    assert_eq!(placed(&bridge).await, Some(6.0));
    cluster.local.server.listen_again().await;
    wait_until_available(&bridge, true).await;
    for method in ["POST", "GET"] {
        assert_eq!(served_by(&send(&cluster, &bridge, method).await), OWN);
    }
}

#[tokio::test]
async fn requests_go_to_a_peer_while_the_local_server_is_not_ready() {
    let (cluster, _b, bridge) = fixture().await;
    cluster
        .local
        .set_hook(|recorded| (recorded.path() == "/readyz").then(|| Reply::new(500)));
    wait_until_available(&bridge, false).await;
    for method in ["GET", "POST"] {
        assert_eq!(served_by(&send(&cluster, &bridge, method).await), B);
    }
    cluster.local.remove_hook();
    wait_until_available(&bridge, true).await;
    assert_eq!(served_by(&send(&cluster, &bridge, "POST").await), OWN);
}

/// As a kube-apiserver that starts, until it has read the RBAC objects.
#[tokio::test]
async fn a_denial_of_a_local_server_that_is_not_ready_is_not_passed_on() {
    let (cluster, b, bridge) = fixture().await;
    let deny = |recorded: &RecordedRequest| is_client_request(recorded).then(|| Reply::new(403));
    cluster.local.set_hook(move |recorded| {
        if recorded.path() == "/readyz" {
            return Some(Reply::new(500));
        }
        deny(recorded)
    });
    wait_until_available(&bridge, false).await;
    let hop = [(HOP, "true"), ("x-remote-user", "bob")];
    let peer = cluster.pki.peer();
    for method in ["GET", "DELETE"] {
        let answer = send_request(&peer, &bridge, method, SHARED_PATH, &hop, "").await;
        let message = status_message(&answer, 503);
        assert!(message.contains("it may be starting"), "{message}");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.header(NOT_PROCESSED), Some("true"));
    }
    assert!(b.client_requests().is_empty(), "at most one hop");

    // Without an available peer a client cannot know whether it has the right.
    b.shut_down().await;
    eventually("the peer is not available", TEST_TIMEOUT, async || {
        let answer = send(&cluster, &bridge, "GET").await;
        answer.text().contains("it may be starting") && answer.header("retry-after") == Some("1")
    })
    .await;

    // The denial of a server that is ready is right.
    cluster.local.set_hook(deny);
    wait_until_available(&bridge, true).await;
    let answer = send_request(&peer, &bridge, "DELETE", SHARED_PATH, &hop, "").await;
    assert_eq!(answer.status, 403);
}

#[tokio::test]
async fn a_request_that_the_local_server_rejects_during_its_shutdown_goes_to_a_peer() {
    let (cluster, b, bridge) = fixture().await;
    cluster.local.set_hook(|recorded| {
        is_client_request(recorded).then(|| {
            Reply::new(503)
                .header("Retry-After", "1")
                .header("X-Content-Type-Options", "nosniff")
                .body("apiserver is shutting down.\n")
        })
    });
    for method in ["GET", "POST"] {
        assert_eq!(served_by(&send(&cluster, &bridge, method).await), B);
    }
    // Without an available peer the client gets the response of the local server.
    b.shut_down().await;
    let answer = send(&cluster, &bridge, "POST").await;
    assert_eq!(answer.text(), "apiserver is shutting down.\n");
    assert_eq!(answer.status, 503);
}

#[tokio::test]
async fn a_write_that_the_local_server_may_have_processed_is_not_sent_to_a_peer() {
    let (cluster, b, bridge) = fixture().await;
    let lost = Arc::new(Mutex::new(0));
    let count = lost.clone();
    cluster.local.set_hook(move |recorded| {
        is_client_request(recorded).then(|| {
            *count.lock().unwrap() += 1;
            Reply::reset(Reason::INTERNAL_ERROR)
        })
    });
    assert_eq!(send(&cluster, &bridge, "POST").await.status, 502);
    assert_eq!(*lost.lock().unwrap(), 1);
    assert!(b.client_requests().is_empty());
    // A read may be sent twice.
    assert_eq!(served_by(&send(&cluster, &bridge, "GET").await), B);
}

#[tokio::test]
async fn a_request_of_a_peer_is_not_sent_on_while_the_local_server_is_down() {
    let (cluster, b, bridge) = fixture().await;
    cluster.local.server.stop_listening().await;
    cluster.local.server.kill_connections().await;
    wait_until_available(&bridge, false).await;
    let headers = [
        ("x-kubernetes-peer-proxied", "true"),
        ("x-remote-user", "alice"),
    ];
    let peer = cluster.pki.peer();
    let answer = send_request(&peer, &bridge, "GET", SHARED_PATH, &headers, "").await;
    status_message(&answer, 503);
    assert!(b.client_requests().is_empty(), "at most one hop");
}
