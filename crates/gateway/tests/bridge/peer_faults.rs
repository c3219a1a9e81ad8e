//! Failing peers, and servers that change: a request is sent to another peer whenever it cannot
//! have been processed, and no request is processed twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use h2::Reason;
use http::Request;
use skewbridge_gateway::Handle;
use skewbridge_testkit::{RecordedRequest, Reply, TEST_TIMEOUT, eventually};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};

use crate::support::admin_client;
use crate::support::cluster::{
    ClusterFixture, NEW, NEW_PATH, OWN, PeerServer, SHARED_PATH, peer_view, send_request,
    served_by, status_message,
};
use crate::support::fake_apiserver::page_not_found;

const B: &str = "apiserver-b";
const C: &str = "apiserver-c";
const NOT_PROCESSED: &str = "x-skewbridge-not-processed";
const PROXY_ERROR: &str = "Error while proxying request to destination apiserver";

/// Enough for the random choice to begin with either of two peers.
const ATTEMPTS: usize = 16;

async fn two_peers() -> (ClusterFixture, [PeerServer; 2], Handle) {
    ClusterFixture::with_peers(&[], [(B, &[NEW]), (C, &[NEW])]).await
}

/// Answers requests for the API that only peers serve.
fn reply_to_all(server: &PeerServer, reply: impl Fn() -> Reply + Send + Sync + 'static) {
    server
        .apiserver
        .set_hook(move |recorded: &RecordedRequest| (recorded.path() == NEW_PATH).then(&reply));
}

/// How many requests for the API that only peers serve have failed at a peer with this kind of
/// error.
async fn error_count(bridge: &Handle, kind: &str) -> Option<f64> {
    let metrics = admin_client::scrape(bridge.admin_address()).await;
    let labels = [
        ("type", kind),
        ("group", "storage.k8s.io"),
        ("version", "v1alpha1"),
        ("resource", "volumeattributesclasses"),
    ];
    metrics.value("apiserver_peer_proxy_errors_total", &labels)
}

#[tokio::test]
async fn a_dead_peer_is_skipped_and_used_again_within_seconds() {
    let (cluster, [b, c], bridge) = two_peers().await;
    b.shut_down().await;
    for turn in 0..ATTEMPTS {
        let answer = if turn % 2 == 0 {
            cluster.get(&bridge, NEW_PATH).await
        } else {
            cluster.post(&bridge, NEW_PATH, "{}").await
        };
        assert_eq!(served_by(&answer), C, "{turn}");
    }
    eventually(
        "the peer is reported as unreachable",
        TEST_TIMEOUT,
        async || {
            let view = peer_view(&bridge, B).await;
            !view["problem"].is_null()
        },
    )
    .await;

    c.shut_down().await;
    b.apiserver.server.listen_again().await;
    let back = Instant::now();
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    // The longest backoff is 3 s; the rest allows for slow machines.
    assert!(
        back.elapsed() < Duration::from_secs(10),
        "{:?}",
        back.elapsed()
    );
    eventually("the peer is healthy", TEST_TIMEOUT, async || {
        let view = peer_view(&bridge, B).await;
        view["healthy"] == true && view["problem"].is_null()
    })
    .await;
}

#[tokio::test]
async fn when_all_peers_fail_the_response_is_a_status_with_retry_after() {
    let (cluster, [b, c], bridge) = two_peers().await;
    b.shut_down().await;
    c.shut_down().await;
    for method in ["GET", "POST"] {
        let answer = send_request(&cluster.alice(), &bridge, method, NEW_PATH, &[], "").await;
        let message = status_message(&answer, 503);
        assert!(message.starts_with(PROXY_ERROR), "{message}");
        assert!(message.contains(B) && message.contains(C), "{message}");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.header(NOT_PROCESSED), None);
    }
    // Locally served resources are not affected.
    assert_eq!(served_by(&cluster.get(&bridge, SHARED_PATH).await), OWN);
}

#[tokio::test]
async fn a_peer_that_has_withdrawn_its_address_is_still_the_last_resort() {
    let (cluster, [mut b, c], bridge) = two_peers().await;
    b.withdraw_address();
    eventually("the withdrawal is known", TEST_TIMEOUT, async || {
        peer_view(&bridge, B).await["published"] == false
    })
    .await;
    for _ in 0..ATTEMPTS {
        assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), C);
    }
    c.shut_down().await;
    assert_eq!(served_by(&cluster.post(&bridge, NEW_PATH, "{}").await), B);
}

#[tokio::test]
async fn a_write_that_a_peer_refused_unprocessed_goes_to_the_next_peer() {
    let (cluster, [b, c], bridge) = two_peers().await;
    reply_to_all(&b, || Reply::reset(Reason::REFUSED_STREAM));
    for turn in 0..ATTEMPTS {
        let answer = cluster.post(&bridge, NEW_PATH, format!("{turn}")).await;
        assert_eq!(served_by(&answer), C);
    }
    let bodies: Vec<_> = c
        .client_requests()
        .iter()
        .map(|recorded| recorded.body.clone())
        .collect();
    let expected: Vec<_> = (0..ATTEMPTS).map(|turn| turn.to_string()).collect();
    assert_eq!(bodies, expected, "each body arrives once and complete");
}

/// kube-apiserver's response while it shuts down, before it reads the request.
fn shutting_down_response() -> Reply {
    let received = r#"{"kind":"Status","status":"Failure","message":"apiserver is shutting down","reason":"ServiceUnavailable","code":503}"#;
    let reply = Reply::new(503).body(received);
    let reply = reply.header("content-type", "application/json");
    let reply = reply.header("retry-after", "1");
    reply.header("x-content-type-options", "nosniff")
}

#[tokio::test]
async fn a_write_to_a_server_that_shuts_down_goes_to_the_next_peer() {
    let (cluster, [b, c], bridge) = two_peers().await;
    reply_to_all(&b, shutting_down_response);
    for turn in 0..ATTEMPTS {
        let answer = cluster.post(&bridge, NEW_PATH, format!("{turn}")).await;
        assert_eq!(served_by(&answer), C);
    }
    let bodies: Vec<_> = c
        .client_requests()
        .iter()
        .map(|recorded| recorded.body.clone())
        .collect();
    let expected: Vec<_> = (0..ATTEMPTS).map(|turn| turn.to_string()).collect();
    assert_eq!(bodies, expected, "each body arrives once and complete");
    assert!(!b.client_requests().is_empty(), "no request was sent to it");

    // If all peers shut down, the client gets their message.
    reply_to_all(&c, shutting_down_response);
    let answer = cluster.post(&bridge, NEW_PATH, "{}").await;
    assert_eq!(status_message(&answer, 503), "apiserver is shutting down");
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_write_that_a_server_admitted_and_rejected_is_not_retried() {
    let (cluster, servers, bridge) = two_peers().await;
    for server in &servers {
        reply_to_all(server, || {
            shutting_down_response().header("x-kubernetes-pf-flowschema-uid", "a-flow")
        });
    }
    let answer = cluster.post(&bridge, NEW_PATH, "{}").await;
    assert_eq!(status_message(&answer, 503), "apiserver is shutting down");
    assert_eq!(
        servers
            .iter()
            .map(|it| it.client_requests().len())
            .sum::<usize>(),
        1
    );
}

#[tokio::test]
async fn a_peer_that_keeps_failing_gets_fewer_and_fewer_requests() {
    let (cluster, [b, _c], bridge) = two_peers().await;
    // Its discovery still succeeds.
    reply_to_all(&b, || Reply::reset(Reason::REFUSED_STREAM));
    let attempts = 64;
    for _ in 0..attempts {
        assert_eq!(served_by(&cluster.post(&bridge, NEW_PATH, "{}").await), C);
    }
    // Half of the requests without a backoff; with it, a handful however long the loop takes.
    let request_count = b.client_requests().len();
    assert!(
        request_count > 0 && request_count < attempts / 4,
        "{request_count} of {attempts}"
    );
}

#[tokio::test]
async fn a_write_whose_connection_breaks_is_not_retried() {
    let (cluster, servers, bridge) = two_peers().await;
    let never = Arc::new(Notify::new());
    for server in &servers {
        let never = never.clone();
        reply_to_all(server, move || Reply::json("{}").after(&never));
    }
    let sent = || {
        servers
            .iter()
            .map(|it| it.client_requests().len())
            .sum::<usize>()
    };
    let truncated_at = async {
        eventually("the request has been sent", TEST_TIMEOUT, async || {
            sent() == 1
        })
        .await;
        for server in &servers {
            server.shut_down().await;
        }
    };
    let (answer, ()) = tokio::join!(cluster.post(&bridge, NEW_PATH, "{}"), truncated_at);
    let message = status_message(&answer, 503);
    assert!(message.starts_with(PROXY_ERROR), "{message}");
    assert_eq!(
        answer.header("retry-after"),
        None,
        "the write may have been processed"
    );
    assert_eq!(error_count(&bridge, "cut_off").await, Some(1.0));
    assert!(
        !answer.text().contains("retryAfterSeconds"),
        "{}",
        answer.text()
    );
    assert_eq!(sent(), 1);
}

#[tokio::test]
async fn a_read_whose_connection_breaks_goes_to_the_next_peer() {
    let (cluster, servers, bridge) = two_peers().await;
    for server in &servers {
        let first = Arc::new(Notify::new());
        // The first peer that gets the request never answers.
        reply_to_all(server, move || Reply::json("{}").after(&first));
    }
    let sent = |server: &PeerServer| server.client_requests().len();
    let truncated_at = async {
        eventually("the request has been sent", TEST_TIMEOUT, async || {
            servers.iter().any(|it| sent(it) == 1)
        })
        .await;
        let [b, c] = &servers;
        let (first, second) = if sent(b) == 1 { (b, c) } else { (c, b) };
        second.apiserver.remove_hook();
        first.shut_down().await;
        second.name
    };
    let (answer, second) = tokio::join!(cluster.get(&bridge, NEW_PATH), truncated_at);
    assert_eq!(served_by(&answer), second);
}

#[tokio::test]
async fn a_503_is_retried_at_another_peer_only_if_the_request_was_not_processed() {
    let (cluster, [b, c], bridge) = two_peers().await;
    let busy = || Reply::json(r#"{"kind":"Status","code":503}"#).status(503);

    // A bridge marks the request as not processed: writes are retried too.
    reply_to_all(&b, move || busy().header(NOT_PROCESSED, "true"));
    for _ in 0..ATTEMPTS {
        let answer = cluster.post(&bridge, NEW_PATH, "{}").await;
        assert_eq!(served_by(&answer), C);
        assert_eq!(answer.header(NOT_PROCESSED), None);
    }
    assert_eq!(c.client_requests().len(), ATTEMPTS);

    // If all peers refuse: the last response, without the header used between bridges.
    reply_to_all(&c, move || busy().header(NOT_PROCESSED, "true"));
    for method in ["GET", "POST"] {
        let answer = send_request(&cluster.alice(), &bridge, method, NEW_PATH, &[], "").await;
        assert_peer_refusal(&answer);
    }

    // A server that sends no such header may have processed the request.
    for server in [&b, &c] {
        reply_to_all(server, busy);
    }
    let sent = || b.client_requests().len() + c.client_requests().len();
    let before = sent();
    assert_peer_refusal(&cluster.post(&bridge, NEW_PATH, "{}").await);
    assert_eq!(sent(), before + 1, "a write is sent once");
    assert_peer_refusal(&cluster.get(&bridge, NEW_PATH).await);
    assert_eq!(sent(), before + 3, "a read is sent to both");
}

#[track_caller]
fn assert_peer_refusal(answer: &skewbridge_testkit::Response) {
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header(NOT_PROCESSED), None);
}

#[tokio::test]
async fn only_a_bridge_can_mark_a_request_as_not_processed() {
    let cluster = ClusterFixture::new(&[]).await;
    let bridge = cluster.start().await;
    cluster.local.set_hook(|recorded| {
        let it = recorded.path() == SHARED_PATH;
        it.then(|| Reply::new(503).header(NOT_PROCESSED, "true"))
    });
    let hop = [
        ("x-kubernetes-peer-proxied", "true"),
        ("x-remote-user", "bob"),
    ];
    for (client, headers) in [(cluster.alice(), &hop[..0]), (cluster.pki.peer(), &hop[..])] {
        let answer = send_request(&client, &bridge, "POST", SHARED_PATH, headers, "{}").await;
        assert_peer_refusal(&answer);
    }
}

/// Clients of another bridge see the message too, and need to know which server it is about.
#[tokio::test]
async fn the_unreachable_server_is_named() {
    let cluster = ClusterFixture::new(&[]).await;
    let bridge = cluster.start().await;
    cluster.local.server.stop_listening().await;
    cluster.local.server.kill_connections().await;
    let hop = [
        ("x-kubernetes-peer-proxied", "true"),
        ("x-remote-user", "bob"),
    ];
    let peer = cluster.pki.peer();
    for (path, expected) in [
        (SHARED_PATH, "(apiserver-own) cannot be reached: "),
        (NEW_PATH, "(apiserver-own), which does not serve"),
    ] {
        let answer = send_request(&peer, &bridge, "GET", path, &hop, "").await;
        let message = status_message(&answer, 503);
        assert!(message.contains("the kube-apiserver "), "{message}");
        assert!(message.contains(expected), "{message}");
        assert_eq!(answer.header(NOT_PROCESSED), Some("true"));
    }
}

#[tokio::test]
async fn a_404_page_of_a_peer_is_never_forwarded_and_the_next_peer_is_tried() {
    let (cluster, [b, c], bridge) = two_peers().await;
    reply_to_all(&b, page_not_found);
    for turn in 0..ATTEMPTS {
        let answer = if turn % 2 == 0 {
            cluster.get(&bridge, NEW_PATH).await
        } else {
            cluster.post(&bridge, NEW_PATH, "{}").await
        };
        assert_eq!(served_by(&answer), C, "{turn}");
    }
    reply_to_all(&c, page_not_found);
    for method in ["GET", "POST"] {
        let answer = send_request(&cluster.alice(), &bridge, method, NEW_PATH, &[], "").await;
        let message = status_message(&answer, 503);
        assert!(message.starts_with(PROXY_ERROR), "{message}");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    assert!(error_count(&bridge, "declined").await.is_some());
    // A 404 Status for a missing object is final.
    let missing = r#"{"kind":"Status","code":404}"#;
    for server in [&b, &c] {
        reply_to_all(server, move || Reply::json(missing).status(404));
    }
    let answer = cluster.get(&bridge, NEW_PATH).await;
    assert_eq!((answer.status, answer.text().as_str()), (404, missing));
}

#[tokio::test]
async fn a_response_truncated_by_a_peer_is_visible_as_truncated() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    let (senders, mut bodies) = mpsc::unbounded_channel();
    reply_to_all(&b, move || {
        let (reply, body) = Reply::stream();
        senders.send(body).unwrap();
        reply
    });
    let uri = format!("https://k{NEW_PATH}");
    let h2 = cluster.alice().http2(bridge.address()).await.unwrap();
    let mut stream = h2
        .stream(Request::get(uri).body(()).unwrap())
        .await
        .unwrap();
    stream.finish().unwrap();
    let mut h1 = cluster.alice().http1(bridge.address()).await.unwrap();
    h1.send(format!("GET {NEW_PATH} HTTP/1.1\r\nHost: k\r\n\r\n"))
        .await
        .unwrap();
    let running = [bodies.recv().await.unwrap(), bodies.recv().await.unwrap()];
    for body in &running {
        body.send("half").await.unwrap();
    }
    assert_eq!(stream.head().await.unwrap().status, 200);
    assert_eq!(stream.chunk().await.unwrap().unwrap(), "half");
    assert_eq!(h1.read_head().await.unwrap().status, 200);
    assert_eq!(h1.read_chunk().await.unwrap().unwrap(), "half");

    b.shut_down().await;
    let truncated_at = async {
        assert!(stream.chunk().await.unwrap().is_err());
        assert!(h1.read_chunk().await.is_err());
    };
    tokio::time::timeout(TEST_TIMEOUT, truncated_at)
        .await
        .unwrap();
    assert_eq!(b.client_requests().len(), 2, "the request is not retried");
}

#[tokio::test]
async fn the_response_of_a_peer_is_forwarded_unchanged() {
    let (cluster, servers, bridge) = two_peers().await;
    let mut sent = 0;
    for code in [201, 403, 409, 429, 500, 504] {
        for server in &servers {
            reply_to_all(server, move || {
                Reply::json("{}").status(code).header("Retry-After", "7")
            });
        }
        for method in ["GET", "POST"] {
            let answer = send_request(&cluster.alice(), &bridge, method, NEW_PATH, &[], "").await;
            assert_eq!(answer.status, code);
            assert_eq!(answer.header("retry-after"), Some("7"));
            sent += 1;
        }
    }
    let arrived: usize = servers.iter().map(|it| it.client_requests().len()).sum();
    assert_eq!(arrived, sent);
}

#[tokio::test]
async fn a_peer_that_does_not_complete_the_tls_handshake_is_skipped() {
    let (cluster, [mut b, _c], bridge) = two_peers().await;
    // The kernel accepts connections, and no process answers them.
    let unresponsive = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = unresponsive.local_addr().unwrap();
    b.withdraw_address();
    let _published = cluster.publish(B, address);
    eventually("the new address is known", TEST_TIMEOUT, async || {
        peer_view(&bridge, B).await["address"] == address.to_string()
    })
    .await;
    let mut failed = false;
    for _ in 0..ATTEMPTS {
        assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), C);
        failed = error_count(&bridge, "proxy_transport").await.is_some();
        if failed {
            break;
        }
    }
    assert!(failed, "no request was sent to it");
    assert_eq!(served_by(&cluster.post(&bridge, NEW_PATH, "{}").await), C);
}

#[tokio::test]
async fn an_upgrade_goes_to_the_next_peer_if_the_first_is_dead() {
    let exec = "/apis/new.k8s.io/v1/namespaces/a/boxes/b/exec";
    let serves: &[&str] = &["new.k8s.io/v1 boxes/exec:create,get"];
    let (cluster, [b, c], bridge) =
        ClusterFixture::with_peers(&[], [(B, serves), (C, serves)]).await;
    b.shut_down().await;
    c.apiserver.set_hook(|recorded| {
        let (reply, _upgrade) = Reply::upgrade(recorded.header("upgrade")?);
        Some(reply)
    });
    for _ in 0..ATTEMPTS {
        let mut client = cluster.alice().http1(bridge.address()).await.unwrap();
        let request = format!(
            "GET {exec} HTTP/1.1\r\nHost: k\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        );
        client.send(request).await.unwrap();
        assert_eq!(client.read_head().await.unwrap().status, 101);
    }
    assert_eq!(c.client_requests().len(), ATTEMPTS);
}
