//! Peers that fail, and servers that are not what they were: another peer is asked wherever
//! nothing can have been done, and nothing is done twice.

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
const FAILED: &str = "Error while proxying request to destination apiserver";

/// More than chance needs to begin with either of two peers.
const TURNS: usize = 16;

async fn two_peers() -> (ClusterFixture, [PeerServer; 2], Handle) {
    ClusterFixture::with_peers(&[], [(B, &[NEW]), (C, &[NEW])]).await
}

/// Answers requests for what only peers serve.
fn always(server: &PeerServer, reply: impl Fn() -> Reply + Send + Sync + 'static) {
    server
        .apiserver
        .hook(move |seen: &RecordedRequest| (seen.path() == NEW_PATH).then(&reply));
}

/// How often a peer has failed so with a request for what only peers serve.
async fn errors(bridge: &Handle, kind: &str) -> Option<f64> {
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
async fn a_dead_peer_is_passed_over_and_comes_back_within_seconds() {
    let (cluster, [b, c], bridge) = two_peers().await;
    b.shut_down().await;
    for turn in 0..TURNS {
        let answer = if turn % 2 == 0 {
            cluster.get(&bridge, NEW_PATH).await
        } else {
            cluster.post(&bridge, NEW_PATH, "{}").await
        };
        assert_eq!(served_by(&answer), C, "{turn}");
    }
    eventually("it is known to be away", TEST_TIMEOUT, async || {
        let view = peer_view(&bridge, B).await;
        !view["problem"].is_null()
    })
    .await;

    c.shut_down().await;
    b.apiserver.server.listen_again().await;
    let back = Instant::now();
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    // The longest wait between two looks is 3 s; the rest is for slow machines.
    assert!(
        back.elapsed() < Duration::from_secs(10),
        "{:?}",
        back.elapsed()
    );
    eventually("it is healthy", TEST_TIMEOUT, async || {
        let view = peer_view(&bridge, B).await;
        view["healthy"] == true && view["problem"].is_null()
    })
    .await;
}

#[tokio::test]
async fn when_all_peers_fail_the_answer_is_a_status_that_says_when_to_come_back() {
    let (cluster, [b, c], bridge) = two_peers().await;
    b.shut_down().await;
    c.shut_down().await;
    for method in ["GET", "POST"] {
        let answer = send_request(&cluster.alice(), &bridge, method, NEW_PATH, &[], "").await;
        let message = status_message(&answer, 503);
        assert!(message.starts_with(FAILED), "{message}");
        assert!(message.contains(B) && message.contains(C), "{message}");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.header(NOT_PROCESSED), None);
    }
    // What is served here is not touched by that.
    assert_eq!(served_by(&cluster.get(&bridge, SHARED_PATH).await), OWN);
}

#[tokio::test]
async fn a_peer_that_has_taken_its_address_back_is_still_the_last_resort() {
    let (cluster, [mut b, c], bridge) = two_peers().await;
    b.withdraw_address();
    eventually("it is known", TEST_TIMEOUT, async || {
        peer_view(&bridge, B).await["published"] == false
    })
    .await;
    for _ in 0..TURNS {
        assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), C);
    }
    c.shut_down().await;
    assert_eq!(served_by(&cluster.post(&bridge, NEW_PATH, "{}").await), B);
}

#[tokio::test]
async fn a_write_that_a_peer_refused_unseen_goes_to_the_next() {
    let (cluster, [b, c], bridge) = two_peers().await;
    always(&b, || Reply::reset(Reason::REFUSED_STREAM));
    for turn in 0..TURNS {
        let answer = cluster.post(&bridge, NEW_PATH, format!("{turn}")).await;
        assert_eq!(served_by(&answer), C);
    }
    let bodies: Vec<_> = c
        .client_requests()
        .iter()
        .map(|seen| seen.body.clone())
        .collect();
    let expected: Vec<_> = (0..TURNS).map(|turn| turn.to_string()).collect();
    assert_eq!(bodies, expected, "each once, whole");
}

/// As kube-apiserver refuses before it has looked, when it is about to end.
fn shutting_down() -> Reply {
    let told = r#"{"kind":"Status","status":"Failure","message":"apiserver is shutting down","reason":"ServiceUnavailable","code":503}"#;
    let reply = Reply::new(503).body(told);
    let reply = reply.header("content-type", "application/json");
    let reply = reply.header("retry-after", "1");
    reply.header("x-content-type-options", "nosniff")
}

#[tokio::test]
async fn a_write_to_a_server_that_is_about_to_end_goes_to_the_next() {
    let (cluster, [b, c], bridge) = two_peers().await;
    always(&b, shutting_down);
    for turn in 0..TURNS {
        let answer = cluster.post(&bridge, NEW_PATH, format!("{turn}")).await;
        assert_eq!(served_by(&answer), C);
    }
    let bodies: Vec<_> = c
        .client_requests()
        .iter()
        .map(|seen| seen.body.clone())
        .collect();
    let expected: Vec<_> = (0..TURNS).map(|turn| turn.to_string()).collect();
    assert_eq!(bodies, expected, "each once, whole");
    assert!(!b.client_requests().is_empty(), "it was never asked");

    // If all of them are, the client is told in their words.
    always(&c, shutting_down);
    let answer = cluster.post(&bridge, NEW_PATH, "{}").await;
    assert_eq!(status_message(&answer, 503), "apiserver is shutting down");
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_write_that_a_server_let_in_and_refused_is_not_sent_again() {
    let (cluster, servers, bridge) = two_peers().await;
    for server in &servers {
        always(server, || {
            shutting_down().header("x-kubernetes-pf-flowschema-uid", "a-flow")
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
async fn a_peer_that_keeps_failing_is_asked_less_and_less() {
    let (cluster, [b, _c], bridge) = two_peers().await;
    // Whoever asks it what it serves is answered.
    always(&b, || Reply::reset(Reason::REFUSED_STREAM));
    let turns = 64;
    for _ in 0..turns {
        assert_eq!(served_by(&cluster.post(&bridge, NEW_PATH, "{}").await), C);
    }
    // Half of them without a backoff; with it, a handful in any time that this may take.
    let asked = b.client_requests().len();
    assert!(asked > 0 && asked < turns / 4, "{asked} of {turns}");
}

#[tokio::test]
async fn a_write_whose_connection_is_cut_is_not_sent_again() {
    let (cluster, servers, bridge) = two_peers().await;
    let never = Arc::new(Notify::new());
    for server in &servers {
        let never = never.clone();
        always(server, move || Reply::json("{}").after(&never));
    }
    let sent = || {
        servers
            .iter()
            .map(|it| it.client_requests().len())
            .sum::<usize>()
    };
    let cut = async {
        eventually("it has been sent", TEST_TIMEOUT, async || sent() == 1).await;
        for server in &servers {
            server.shut_down().await;
        }
    };
    let (answer, ()) = tokio::join!(cluster.post(&bridge, NEW_PATH, "{}"), cut);
    let message = status_message(&answer, 503);
    assert!(message.starts_with(FAILED), "{message}");
    assert_eq!(answer.header("retry-after"), None, "it may have been done");
    assert_eq!(errors(&bridge, "cut_off").await, Some(1.0));
    assert!(
        !answer.text().contains("retryAfterSeconds"),
        "{}",
        answer.text()
    );
    assert_eq!(sent(), 1);
}

#[tokio::test]
async fn a_read_whose_connection_is_cut_goes_to_the_next_peer() {
    let (cluster, servers, bridge) = two_peers().await;
    for server in &servers {
        let first = Arc::new(Notify::new());
        // Whoever is asked first never answers.
        always(server, move || Reply::json("{}").after(&first));
    }
    let sent = |server: &PeerServer| server.client_requests().len();
    let cut = async {
        eventually("it has been sent", TEST_TIMEOUT, async || {
            servers.iter().any(|it| sent(it) == 1)
        })
        .await;
        let [b, c] = &servers;
        let (first, second) = if sent(b) == 1 { (b, c) } else { (c, b) };
        second.apiserver.remove_hook();
        first.shut_down().await;
        second.name
    };
    let (answer, second) = tokio::join!(cluster.get(&bridge, NEW_PATH), cut);
    assert_eq!(served_by(&answer), second);
}

#[tokio::test]
async fn a_503_is_repeated_elsewhere_only_where_nothing_can_have_been_done() {
    let (cluster, [b, c], bridge) = two_peers().await;
    let busy = || Reply::json(r#"{"kind":"Status","code":503}"#).status(503);

    // A bridge that says so: writes too.
    always(&b, move || busy().header(NOT_PROCESSED, "true"));
    for _ in 0..TURNS {
        let answer = cluster.post(&bridge, NEW_PATH, "{}").await;
        assert_eq!(served_by(&answer), C);
        assert_eq!(answer.header(NOT_PROCESSED), None);
    }
    assert_eq!(c.client_requests().len(), TURNS);

    // All of them: the last one's answer, without what is between bridges.
    always(&c, move || busy().header(NOT_PROCESSED, "true"));
    for method in ["GET", "POST"] {
        let answer = send_request(&cluster.alice(), &bridge, method, NEW_PATH, &[], "").await;
        refusal_of_a_peer(&answer);
    }

    // A server that does not say so may have done it.
    for server in [&b, &c] {
        always(server, busy);
    }
    let sent = || b.client_requests().len() + c.client_requests().len();
    let before = sent();
    refusal_of_a_peer(&cluster.post(&bridge, NEW_PATH, "{}").await);
    assert_eq!(sent(), before + 1, "a write once");
    refusal_of_a_peer(&cluster.get(&bridge, NEW_PATH).await);
    assert_eq!(sent(), before + 3, "a read at both");
}

#[track_caller]
fn refusal_of_a_peer(answer: &skewbridge_testkit::Response) {
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header(NOT_PROCESSED), None);
}

#[tokio::test]
async fn nobody_but_a_bridge_says_that_nothing_was_done() {
    let cluster = ClusterFixture::new(&[]).await;
    let bridge = cluster.start().await;
    cluster.local.hook(|seen| {
        let it = seen.path() == SHARED_PATH;
        it.then(|| Reply::new(503).header(NOT_PROCESSED, "true"))
    });
    let hop = [
        ("x-kubernetes-peer-proxied", "true"),
        ("x-remote-user", "bob"),
    ];
    for (client, headers) in [(cluster.alice(), &hop[..0]), (cluster.pki.peer(), &hop[..])] {
        let answer = send_request(&client, &bridge, "POST", SHARED_PATH, headers, "{}").await;
        refusal_of_a_peer(&answer);
    }
}

/// Clients of another bridge see it too, and would not know whom it is about.
#[tokio::test]
async fn who_cannot_be_reached_is_named() {
    let cluster = ClusterFixture::new(&[]).await;
    let bridge = cluster.start().await;
    cluster.local.server.stop_listening().await;
    cluster.local.server.kill_connections().await;
    let hop = [
        ("x-kubernetes-peer-proxied", "true"),
        ("x-remote-user", "bob"),
    ];
    let peer = cluster.pki.peer();
    for (path, said) in [
        (SHARED_PATH, "(apiserver-own) cannot be reached: "),
        (NEW_PATH, "(apiserver-own), which does not serve"),
    ] {
        let answer = send_request(&peer, &bridge, "GET", path, &hop, "").await;
        let message = status_message(&answer, 503);
        assert!(message.contains("the kube-apiserver "), "{message}");
        assert!(message.contains(said), "{message}");
        assert_eq!(answer.header(NOT_PROCESSED), Some("true"));
    }
}

#[tokio::test]
async fn a_peer_that_knows_no_such_path_is_passed_over_and_never_believed() {
    let (cluster, [b, c], bridge) = two_peers().await;
    always(&b, page_not_found);
    for turn in 0..TURNS {
        let answer = if turn % 2 == 0 {
            cluster.get(&bridge, NEW_PATH).await
        } else {
            cluster.post(&bridge, NEW_PATH, "{}").await
        };
        assert_eq!(served_by(&answer), C, "{turn}");
    }
    always(&c, page_not_found);
    for method in ["GET", "POST"] {
        let answer = send_request(&cluster.alice(), &bridge, method, NEW_PATH, &[], "").await;
        let message = status_message(&answer, 503);
        assert!(message.starts_with(FAILED), "{message}");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    assert!(errors(&bridge, "declined").await.is_some());
    // An object that is not there is not there.
    let missing = r#"{"kind":"Status","code":404}"#;
    for server in [&b, &c] {
        always(server, move || Reply::json(missing).status(404));
    }
    let answer = cluster.get(&bridge, NEW_PATH).await;
    assert_eq!((answer.status, answer.text().as_str()), (404, missing));
}

#[tokio::test]
async fn an_answer_that_a_peer_breaks_off_is_seen_to_be_broken_off() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    let (senders, mut bodies) = mpsc::unbounded_channel();
    always(&b, move || {
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
    let cut = async {
        assert!(stream.chunk().await.unwrap().is_err());
        assert!(h1.read_chunk().await.is_err());
    };
    tokio::time::timeout(TEST_TIMEOUT, cut).await.unwrap();
    assert_eq!(b.client_requests().len(), 2, "nothing is begun anew");
}

#[tokio::test]
async fn what_a_peer_answers_is_the_answer() {
    let (cluster, servers, bridge) = two_peers().await;
    let mut sent = 0;
    for code in [201, 403, 409, 429, 500, 504] {
        for server in &servers {
            always(server, move || {
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
    let came: usize = servers.iter().map(|it| it.client_requests().len()).sum();
    assert_eq!(came, sent);
}

#[tokio::test]
async fn a_peer_that_does_not_shake_hands_is_passed_over() {
    let (cluster, [mut b, _c], bridge) = two_peers().await;
    // The kernel takes connections, and nobody answers them.
    let deaf = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = deaf.local_addr().unwrap();
    b.withdraw_address();
    let _published = cluster.publish(B, address);
    eventually("the other address is known", TEST_TIMEOUT, async || {
        peer_view(&bridge, B).await["address"] == address.to_string()
    })
    .await;
    let mut failed = false;
    for _ in 0..TURNS {
        assert_eq!(served_by(&cluster.post(&bridge, NEW_PATH, "{}").await), C);
        failed = errors(&bridge, "proxy_transport").await.is_some();
        if failed {
            break;
        }
    }
    assert!(failed, "it was never asked");
}

#[tokio::test]
async fn an_upgrade_goes_to_the_next_peer_where_the_first_is_dead() {
    let exec = "/apis/new.k8s.io/v1/namespaces/a/boxes/b/exec";
    let serves: &[&str] = &["new.k8s.io/v1 boxes/exec:create,get"];
    let (cluster, [b, c], bridge) =
        ClusterFixture::with_peers(&[], [(B, serves), (C, serves)]).await;
    b.shut_down().await;
    c.apiserver.hook(|seen| {
        let (reply, _upgrade) = Reply::upgrade(seen.header("upgrade")?);
        Some(reply)
    });
    for _ in 0..TURNS {
        let mut client = cluster.alice().http1(bridge.address()).await.unwrap();
        let request = format!(
            "GET {exec} HTTP/1.1\r\nHost: k\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        );
        client.send(request).await.unwrap();
        assert_eq!(client.read_head().await.unwrap().status, 101);
    }
    assert_eq!(c.client_requests().len(), TURNS);
}
