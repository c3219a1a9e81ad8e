//! Requests and responses through the forwarder.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderValue, Request, StatusCode};
use skewbridge_exec_proxy::forward::{
    BoxFuture, ConnectError, CredentialState, Dial, DialedStream, ProtocolOffer,
};
use skewbridge_exec_proxy::{Cluster, ModifyError, NeedsBody, Outgoing, RequestModifier};
use skewbridge_testkit::{
    ApiServer, Ca, Options, Reply, ReservedPort, ScriptedServer, TEST_TIMEOUT, eventually,
};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::forwarder_fixture::{ForwarderFixture, cluster};

/// Adds a header that describes the request, and headers that a modifier may not set.
struct Recorder(NeedsBody);

impl RequestModifier for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn needs_body(&self) -> NeedsBody {
        self.0
    }

    fn modify<'a>(&'a self, request: Outgoing<'a>) -> BoxFuture<'a, Result<(), ModifyError>> {
        Box::pin(async move {
            if request.url.path() == "/refused" {
                return Err(ModifyError::new("the token is empty"));
            }
            let body = request.body.map_or(0, bytes::Bytes::len);
            let seen = format!("{} {} {body}", request.method, request.url);
            let seen = HeaderValue::try_from(seen).unwrap();
            request.headers.append("x-seen", seen);
            // Both are ignored.
            let own = HeaderValue::from_static("close");
            request.headers.insert(http::header::CONNECTION, own);
            let other = HeaderValue::from_static("elsewhere");
            request.headers.insert(http::header::HOST, other);
            Ok(())
        })
    }
}

async fn server(ca: &Ca, alpn: &[&'static str]) -> ApiServer {
    let options = Options::new(ca.server(&["localhost", "127.0.0.1"])).alpn(alpn);
    ApiServer::start(options, |seen| {
        let reply =
            Reply::json(format!("{} {}", seen.method, seen.body_len)).header("audit-id", "1");
        if seen.version == http::Version::HTTP_2 {
            return reply;
        }
        reply.header("connection", "x-hop").header("x-hop", "1")
    })
    .await
}

/// More than the sum of all flow-control windows.
const BODY_BYTES: usize = 3 * 1024 * 1024;

const H2_AND_H1: [&str; 2] = ["h2", "http/1.1"];
const H1: [&str; 1] = ["http/1.1"];

#[tokio::test]
async fn requests_are_forwarded_between_all_protocol_combinations() {
    let ca = Ca::new("cluster");
    for alpn in [&H2_AND_H1[..], &H1[..]] {
        let server = server(&ca, alpn).await;
        let fixture = ForwarderFixture::start(server.addr(), &ca, Vec::new()).await;
        let mut h1 = fixture.h1().await;
        for _ in 0..2 {
            let text = "POST /api?x=1 HTTP/1.1\r\nHost: elsewhere\r\nConnection: x-mine\r\n\
                        x-mine: 1\r\nContent-Length: 5\r\n\r\nhello";
            h1.send(text).await.unwrap();
            let response = h1.read_response().await.unwrap();
            assert_eq!((response.status, &*response.text()), (200, "POST 5"));
            assert_eq!(response.header("audit-id"), Some("1"));
            assert_eq!(response.header("x-hop"), None);
        }
        let h2 = fixture.h2().await;
        assert_eq!(h2.get("/version").await.unwrap().text(), "GET 0");
        let seen = server.requests();
        assert_eq!(seen.len(), 3);
        assert_eq!(seen[0].target, "/api?x=1");
        let host = server.addr().to_string();
        for seen in &seen {
            let host_header = seen.authority.as_deref().or(seen.header("host"));
            assert_eq!(host_header, Some(&*host));
            assert_eq!(seen.header("x-mine"), None);
        }
        assert_eq!(server.connections(), 1, "connections are reused");
    }
}

#[tokio::test]
async fn a_client_without_a_certificate_of_this_process_is_rejected() {
    let ca = Ca::new("cluster");
    let server = server(&ca, &H2_AND_H1).await;
    let fixture = ForwarderFixture::start(server.addr(), &ca, Vec::new()).await;
    if let Ok(mut client) = fixture.untrusted_client().http1(fixture.addr).await {
        // With TLS 1.3 the client detects the rejection only now.
        let _ = client.send("GET / HTTP/1.1\r\nHost: k\r\n\r\n").await;
        assert!(client.read_response().await.is_err());
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_modifier_gets_the_request_and_changes_its_headers() {
    let ca = Ca::new("cluster");
    let server = server(&ca, &H2_AND_H1).await;
    let host = server.addr();
    let modifiers: Vec<Box<dyn RequestModifier>> = vec![
        Box::new(Recorder(NeedsBody::Whole)),
        Box::new(Recorder(NeedsBody::No)),
    ];
    let fixture = ForwarderFixture::start(host, &ca, modifiers).await;
    let mut h1 = fixture.h1().await;
    h1.send(
        "PUT /a?b=c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    )
    .await
    .unwrap();
    assert_eq!(h1.read_response().await.unwrap().text(), "PUT 3");
    let seen = &server.requests()[0];
    let expected = format!("PUT https://{host}/a?b=c 3");
    assert_eq!(seen.all("x-seen"), [&expected, &expected]);
    assert_eq!(seen.header("content-length"), Some("3"));
    assert_eq!(seen.authority.as_deref(), Some(&*host.to_string()));
    assert_eq!(seen.header("connection"), None);
}

#[tokio::test]
async fn a_request_that_a_modifier_rejects_is_not_sent() {
    let ca = Ca::new("cluster");
    let server = server(&ca, &H2_AND_H1).await;
    let modifiers: Vec<Box<dyn RequestModifier>> = vec![Box::new(Recorder(NeedsBody::Whole))];
    let fixture = ForwarderFixture::start(server.addr(), &ca, modifiers).await;
    let h2 = fixture.h2().await;
    let refused = h2.get("/refused").await.unwrap();
    assert_eq!(refused.status, 500);
    assert!(
        refused.text().contains("recorder: the token is empty"),
        "{}",
        refused.text()
    );
    let mut h1 = fixture.h1().await;
    h1.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100001\r\n\r\n")
        .await
        .unwrap();
    let refused = h1.read_response().await.unwrap();
    assert_eq!(refused.status, 413);
    assert!(
        refused.text().contains("longer than 100000 bytes"),
        "{}",
        refused.text()
    );
    assert_eq!(refused.header("connection"), Some("close"));
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn buffered_bodies_share_a_budget_and_further_requests_wait() {
    let ca = Ca::new("cluster");
    let server = server(&ca, &H2_AND_H1).await;
    let modifiers: Vec<Box<dyn RequestModifier>> = vec![Box::new(Recorder(NeedsBody::Whole))];
    let fixture = ForwarderFixture::start(server.addr(), &ca, modifiers).await;
    let head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n";
    let (first, rest) = (vec![b'x'; 60_000], vec![b'x'; 40_000]);
    let in_flight = async |count| {
        eventually("requests in flight", TEST_TIMEOUT, async || {
            fixture.forwarder.activity().count() == count
        })
        .await;
    };
    let mut slow = fixture.h1().await;
    slow.send(head).await.unwrap();
    slow.send(first.clone()).await.unwrap();
    in_flight(1).await;
    // A small body still fits.
    let mut small = fixture.h1().await;
    small
        .send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        .await
        .unwrap();
    assert_eq!(small.read_response().await.unwrap().text(), "POST 2");
    in_flight(1).await;
    let mut waiting = fixture.h1().await;
    let body = [&*first, &*rest].concat();
    let waiting = tokio::spawn(async move {
        waiting.send(head).await.unwrap();
        waiting.send(body).await.unwrap();
        waiting.read_response().await.unwrap().text()
    });
    in_flight(2).await;
    assert_eq!(server.requests().len(), 1);
    slow.send(rest).await.unwrap();
    let response = timeout(TEST_TIMEOUT, slow.read_response()).await;
    assert_eq!(response.unwrap().unwrap().text(), "POST 100000");
    let response = timeout(TEST_TIMEOUT, waiting).await;
    assert_eq!(response.unwrap().unwrap(), "POST 100000");
}

#[tokio::test]
async fn a_slow_short_body_is_forwarded_before_it_is_complete() {
    let ca = Ca::new("cluster");
    let leaf = ca.server(&["localhost", "127.0.0.1"]);
    let started = Arc::new(Notify::new());
    let notify = started.clone();
    let server = ScriptedServer::start(&leaf, None, &["http/1.1"], move |mut conn| {
        let notify = notify.clone();
        async move {
            conn.read_head().await;
            assert_eq!(conn.read(5).await, b"hello");
            notify.notify_one();
            assert_eq!(conn.read(6).await, b" world");
            conn.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .await;
        }
    })
    .await;
    let fixture = ForwarderFixture::start(server.addr(), &ca, Vec::new()).await;
    let mut h1 = fixture.h1().await;
    h1.send("POST / HTTP/1.1\r\nHost: k\r\nContent-Length: 11\r\n\r\nhello")
        .await
        .unwrap();
    timeout(TEST_TIMEOUT, started.notified()).await.unwrap();
    h1.send(" world").await.unwrap();
    let response = timeout(TEST_TIMEOUT, h1.read_response()).await;
    assert_eq!(response.unwrap().unwrap().text(), "ok");
}

/// A certificate whose expiry the test sets.
#[derive(Default)]
struct ExpiringCredential {
    expired: std::sync::atomic::AtomicBool,
    refused: std::sync::atomic::AtomicUsize,
}

impl CredentialState for ExpiringCredential {
    fn is_valid(&self) -> bool {
        !self.expired.load(Ordering::Relaxed)
    }

    fn reaches_workload(&self, path: &str) -> bool {
        path.starts_with("/workload/")
    }

    fn mark_unauthorized(&self, request: &http::HeaderMap) {
        assert!(request.contains_key("host"));
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// kube-apiserver's response to an invalid credential.
const UNAUTHORIZED: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#;

/// Opens connections with a credential that expires.
struct ExpiringDial {
    cluster: Cluster,
    credential: Arc<Mutex<Arc<ExpiringCredential>>>,
}

impl Dial for ExpiringDial {
    fn dial(&self, offer: ProtocolOffer) -> BoxFuture<'_, Result<DialedStream, ConnectError>> {
        Box::pin(async move {
            let mut dialed = self.cluster.dial(offer).await?;
            let credential = Arc::new(ExpiringCredential::default());
            *self.credential.lock().unwrap() = credential.clone();
            dialed.credential = Some(credential);
            Ok(dialed)
        })
    }
}

#[tokio::test]
async fn a_connection_with_an_expired_certificate_is_not_reused() {
    let ca = Ca::new("cluster");
    for alpn in [&H2_AND_H1[..], &H1[..]] {
        let options = Options::new(ca.server(&["localhost", "127.0.0.1"])).alpn(alpn);
        let server = ApiServer::start(options, |seen| match seen.path() {
            "/refused" => Reply::new(401),
            "/workload/login" => Reply::new(401).body("log in first"),
            "/workload/server" => Reply::new(401).body(UNAUTHORIZED),
            "/workload/long" => Reply::new(401).body(vec![b' '; 100_000]),
            _ => Reply::json("{}"),
        })
        .await;
        let credential = Arc::new(Mutex::new(Arc::new(ExpiringCredential::default())));
        let dial = ExpiringDial {
            cluster: Cluster::new(&cluster(server.addr(), &ca), None).unwrap(),
            credential: credential.clone(),
        };
        let fixture =
            ForwarderFixture::with_dial(dial, server.addr().to_string().parse().unwrap()).await;
        let h2 = fixture.h2().await;
        let current = || credential.lock().unwrap().clone();
        for _ in 0..2 {
            assert_eq!(h2.get("/").await.unwrap().status, 200);
        }
        assert_eq!(server.connections(), 1);
        for (path, refused) in [
            ("/", 0),
            ("/workload/login", 0),
            ("/workload/long", 0),
            ("/workload/server", 1),
            ("/refused", 2),
        ] {
            let status = h2.get(path).await.unwrap().status;
            assert_eq!(status, if path == "/" { 200 } else { 401 });
            let reported = current().refused.load(Ordering::Relaxed);
            assert_eq!(reported, refused, "{path}");
        }
        current().expired.store(true, Ordering::Relaxed);
        assert_eq!(h2.get("/").await.unwrap().status, 200);
        assert_eq!(server.connections(), 2, "{alpn:?}");
    }
}

#[tokio::test]
async fn watch_events_are_forwarded_at_once_and_the_watch_ends_with_its_client() {
    let ca = Ca::new("cluster");
    let (reply, watch) = Reply::stream();
    let reply = std::sync::Mutex::new(Some(reply));
    let options = Options::new(ca.server(&["localhost", "127.0.0.1"])).alpn(&H2_AND_H1);
    let server = ApiServer::start(options, move |_| {
        reply
            .lock()
            .unwrap()
            .take()
            .unwrap_or_else(|| Reply::new(200))
    })
    .await;
    let fixture = ForwarderFixture::start(server.addr(), &ca, Vec::new()).await;
    let h2 = fixture.h2().await;
    let request = Request::get("https://localhost/api/v1/pods?watch=1")
        .body(())
        .unwrap();
    let mut stream = h2.stream(request).await.unwrap();
    stream.finish().unwrap();
    let mut status = None;
    for event in ["{\"type\":\"ADDED\"}\n", "{\"type\":\"DELETED\"}\n"] {
        watch.send(event).await.unwrap();
        if status.is_none() {
            status = Some(stream.head().await.unwrap().status);
        }
        let piece = timeout(TEST_TIMEOUT, stream.chunk())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(piece, event);
        assert_eq!(fixture.forwarder.activity().count(), 1);
    }
    stream.reset(h2::Reason::CANCEL);
    timeout(TEST_TIMEOUT, watch.cancelled()).await.unwrap();
    eventually("no request in flight", TEST_TIMEOUT, async || {
        fixture.forwarder.activity().count() == 0
    })
    .await;
}

#[tokio::test]
async fn large_bodies_are_streamed_in_both_directions() {
    let ca = Ca::new("cluster");
    for alpn in [&H2_AND_H1[..], &H1[..]] {
        let options = Options::new(ca.server(&["localhost", "127.0.0.1"])).alpn(alpn);
        let server = ApiServer::start(options, |seen| {
            Reply::new(200).body(vec![b'x'; usize::try_from(seen.body_len).unwrap()])
        })
        .await;
        let fixture = ForwarderFixture::start(server.addr(), &ca, Vec::new()).await;
        let h2 = fixture.h2().await;
        let request = Request::post("https://localhost/api").body(()).unwrap();
        let mut stream = h2.stream(request).await.unwrap();
        for _ in 0..3 {
            stream.send(vec![b'y'; BODY_BYTES / 3]).await.unwrap();
        }
        stream.finish().unwrap();
        assert_eq!(stream.head().await.unwrap().status, StatusCode::OK);
        let mut length = 0;
        while let Some(piece) = timeout(TEST_TIMEOUT, stream.chunk()).await.unwrap() {
            length += piece.unwrap().len();
        }
        assert_eq!(length, BODY_BYTES);
    }
}

#[tokio::test]
async fn a_truncated_response_is_truncated_for_the_client() {
    let ca = Ca::new("cluster");
    let leaf = ca.server(&["localhost", "127.0.0.1"]);
    let truncate = Arc::new(Notify::new());
    let notify = truncate.clone();
    let server = ScriptedServer::start(&leaf, None, &["http/1.1"], move |mut conn| {
        let notify = notify.clone();
        async move {
            conn.read_head().await;
            let start = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
            conn.write(start).await;
            notify.notified().await;
            conn.truncate().await;
        }
    })
    .await;
    let fixture = ForwarderFixture::start(server.addr(), &ca, Vec::new()).await;
    let mut h1 = fixture.h1().await;
    h1.send("GET / HTTP/1.1\r\nHost: k\r\n\r\n").await.unwrap();
    assert_eq!(h1.read_head().await.unwrap().status, 200);
    assert_eq!(h1.read_chunk().await.unwrap().unwrap(), "hello");
    truncate.notify_one();
    assert!(h1.read_chunk().await.is_err());
    let h2 = fixture.h2().await;
    let request = Request::get("https://localhost/").body(()).unwrap();
    let mut stream = h2.stream(request).await.unwrap();
    stream.finish().unwrap();
    stream.head().await.unwrap();
    let piece = timeout(TEST_TIMEOUT, stream.chunk()).await.unwrap();
    assert_eq!(piece.unwrap().unwrap(), "hello");
    truncate.notify_one();
    let end = timeout(TEST_TIMEOUT, stream.chunk()).await.unwrap();
    let reason = end.unwrap().unwrap_err().reason();
    assert_eq!(reason, Some(h2::Reason::INTERNAL_ERROR));
}

#[tokio::test]
async fn writes_are_never_retried_and_reads_are_retried_where_it_is_safe() {
    let ca = Ca::new("cluster");
    let leaf = ca.server(&["localhost", "127.0.0.1"]);
    // Answers one request, and closes the connection on the second.
    let server = ScriptedServer::start(&leaf, None, &["http/1.1"], |mut conn| async move {
        conn.read_head().await;
        conn.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await;
        conn.read_head().await;
        conn.truncate().await;
    })
    .await;
    let fixture = ForwarderFixture::start(server.addr(), &ca, Vec::new()).await;
    let mut h1 = fixture.h1().await;
    let rows = [
        ("GET", 200, 1),
        ("GET", 200, 2),
        ("POST", 502, 2),
        ("POST", 200, 3),
        ("DELETE", 502, 3),
    ];
    for (method, status, connections) in rows {
        let request = format!("{method} /a HTTP/1.1\r\nHost: k\r\nContent-Length: 0\r\n\r\n");
        h1.send(request).await.unwrap();
        let response = timeout(TEST_TIMEOUT, h1.read_response())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            (response.status, server.connections()),
            (status, connections),
            "{method}"
        );
    }
}

#[tokio::test]
async fn connection_errors_name_the_server() {
    let ca = Ca::new("cluster");
    let unresponsive = ReservedPort::new();
    let addr = unresponsive.addr();
    let fixture = ForwarderFixture::start(addr, &ca, Vec::new()).await;
    let response = fixture.h2().await.get("/").await.unwrap();
    assert_eq!(response.status, 503);
    assert!(
        response.text().contains(&addr.to_string()),
        "{}",
        response.text()
    );
    let other = Ca::new("another");
    let server = server(&other, &H2_AND_H1).await;
    let fixture = ForwarderFixture::start(server.addr(), &ca, Vec::new()).await;
    let response = fixture.h2().await.get("/").await.unwrap();
    assert!(
        response.text().contains("signed by unknown authority"),
        "{}",
        response.text()
    );
}

#[tokio::test]
async fn ambiguous_requests_are_rejected() {
    let ca = Ca::new("cluster");
    let server = server(&ca, &H2_AND_H1).await;
    let fixture = ForwarderFixture::start(server.addr(), &ca, Vec::new()).await;
    for text in [
        "POST / HTTP/1.1\r\nHost: k\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: k\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: k\r\nHost: l\r\n\r\n",
        "GET / HTTP/1.1\nHost: k\n\n",
        "CONNECT k:443 HTTP/1.1\r\nHost: k:443\r\n\r\n",
    ] {
        let mut h1 = fixture.h1().await;
        h1.send(text).await.unwrap();
        let response = timeout(Duration::from_secs(30), h1.read_response()).await;
        let response = response.unwrap().unwrap();
        assert!(
            matches!(response.status, 400 | 405),
            "{text:?}: {}",
            response.status
        );
        assert_eq!(response.header("connection"), Some("close"));
    }
    assert!(server.requests().is_empty());
}
