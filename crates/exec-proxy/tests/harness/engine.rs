//! Requests and answers on their way through.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderValue, Request, StatusCode};
use skewbridge_exec_proxy::forward::{BoxFuture, Dial, DialError, Dialled, Offer, Standing};
use skewbridge_exec_proxy::{Cluster, ModifyError, NeedsBody, Outgoing, RequestModifier};
use skewbridge_testkit::{
    ApiServer, Ca, Options, Reply, ReservedPort, ScriptedServer, TEST_TIMEOUT, eventually,
};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::rig::{Rig, cluster};

/// Says what it sees.
struct Witness(NeedsBody);

impl RequestModifier for Witness {
    fn name(&self) -> &'static str {
        "witness"
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
            // None of a modifier's business.
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

/// More than all windows on the way.
const LENGTH: usize = 3 * 1024 * 1024;

const BOTH: [&str; 2] = ["h2", "http/1.1"];
const H1: [&str; 1] = ["http/1.1"];

#[tokio::test]
async fn a_request_passes_in_every_pair_of_protocols() {
    let ca = Ca::new("cluster");
    for alpn in [&BOTH[..], &H1[..]] {
        let server = server(&ca, alpn).await;
        let rig = Rig::start(server.addr(), &ca, Vec::new()).await;
        let mut h1 = rig.h1().await;
        for _ in 0..2 {
            let text = "POST /api?x=1 HTTP/1.1\r\nHost: elsewhere\r\nConnection: x-mine\r\n\
                        x-mine: 1\r\nContent-Length: 5\r\n\r\nhello";
            h1.send(text).await.unwrap();
            let answer = h1.read_response().await.unwrap();
            assert_eq!((answer.status, &*answer.text()), (200, "POST 5"));
            assert_eq!(answer.header("audit-id"), Some("1"));
            assert_eq!(answer.header("x-hop"), None);
        }
        let h2 = rig.h2().await;
        assert_eq!(h2.get("/version").await.unwrap().text(), "GET 0");
        let seen = server.requests();
        assert_eq!(seen.len(), 3);
        assert_eq!(seen[0].target, "/api?x=1");
        let host = server.addr().to_string();
        for seen in &seen {
            let told = seen.authority.as_deref().or(seen.header("host"));
            assert_eq!(told, Some(&*host), "the cluster's host is named");
            assert_eq!(seen.header("x-mine"), None);
        }
        assert_eq!(server.connections(), 1, "connections are used again");
    }
}

#[tokio::test]
async fn who_has_no_certificate_of_this_process_gets_nowhere() {
    let ca = Ca::new("cluster");
    let server = server(&ca, &BOTH).await;
    let rig = Rig::start(server.addr(), &ca, Vec::new()).await;
    if let Ok(mut client) = rig.stranger().http1(rig.addr).await {
        // With TLS 1.3 the refusal is only seen now.
        let _ = client.send("GET / HTTP/1.1\r\nHost: k\r\n\r\n").await;
        assert!(client.read_response().await.is_err());
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_modifier_sees_the_request_and_changes_its_headers() {
    let ca = Ca::new("cluster");
    let server = server(&ca, &BOTH).await;
    let host = server.addr();
    let modifiers: Vec<Box<dyn RequestModifier>> = vec![
        Box::new(Witness(NeedsBody::Whole)),
        Box::new(Witness(NeedsBody::No)),
    ];
    let rig = Rig::start(host, &ca, modifiers).await;
    let mut h1 = rig.h1().await;
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
async fn what_a_modifier_cannot_do_is_told_and_goes_nowhere() {
    let ca = Ca::new("cluster");
    let server = server(&ca, &BOTH).await;
    let modifiers: Vec<Box<dyn RequestModifier>> = vec![Box::new(Witness(NeedsBody::Whole))];
    let rig = Rig::start(server.addr(), &ca, modifiers).await;
    let h2 = rig.h2().await;
    let refused = h2.get("/refused").await.unwrap();
    assert_eq!(refused.status, 500);
    assert!(
        refused.text().contains("witness: the token is empty"),
        "{}",
        refused.text()
    );
    let mut h1 = rig.h1().await;
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
async fn bodies_that_a_modifier_sees_have_so_much_room_and_the_next_waits() {
    let ca = Ca::new("cluster");
    let server = server(&ca, &BOTH).await;
    let modifiers: Vec<Box<dyn RequestModifier>> = vec![Box::new(Witness(NeedsBody::Whole))];
    let rig = Rig::start(server.addr(), &ca, modifiers).await;
    let head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n";
    let (first, rest) = (vec![b'x'; 60_000], vec![b'x'; 40_000]);
    let under_way = async |many| {
        eventually("requests under way", TEST_TIMEOUT, async || {
            rig.forwarder.activity().count() == many
        })
        .await;
    };
    let mut slow = rig.h1().await;
    slow.send(head).await.unwrap();
    slow.send(first.clone()).await.unwrap();
    under_way(1).await;
    // What is small has room.
    let mut small = rig.h1().await;
    small
        .send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        .await
        .unwrap();
    assert_eq!(small.read_response().await.unwrap().text(), "POST 2");
    under_way(1).await;
    let mut waiting = rig.h1().await;
    let body = [&*first, &*rest].concat();
    let waiting = tokio::spawn(async move {
        waiting.send(head).await.unwrap();
        waiting.send(body).await.unwrap();
        waiting.read_response().await.unwrap().text()
    });
    under_way(2).await;
    assert_eq!(server.requests().len(), 1);
    slow.send(rest).await.unwrap();
    let answer = timeout(TEST_TIMEOUT, slow.read_response()).await;
    assert_eq!(answer.unwrap().unwrap().text(), "POST 100000");
    let answer = timeout(TEST_TIMEOUT, waiting).await;
    assert_eq!(answer.unwrap().unwrap(), "POST 100000");
}

#[tokio::test]
async fn a_short_body_that_comes_slowly_is_not_waited_for() {
    let ca = Ca::new("cluster");
    let leaf = ca.server(&["localhost", "127.0.0.1"]);
    let begun = Arc::new(Notify::new());
    let told = begun.clone();
    let server = ScriptedServer::start(&leaf, None, &["http/1.1"], move |mut conn| {
        let told = told.clone();
        async move {
            conn.read_head().await;
            assert_eq!(conn.read(5).await, b"hello");
            told.notify_one();
            assert_eq!(conn.read(6).await, b" world");
            conn.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .await;
        }
    })
    .await;
    let rig = Rig::start(server.addr(), &ca, Vec::new()).await;
    let mut h1 = rig.h1().await;
    h1.send("POST / HTTP/1.1\r\nHost: k\r\nContent-Length: 11\r\n\r\nhello")
        .await
        .unwrap();
    timeout(TEST_TIMEOUT, begun.notified()).await.unwrap();
    h1.send(" world").await.unwrap();
    let answer = timeout(TEST_TIMEOUT, h1.read_response()).await;
    assert_eq!(answer.unwrap().unwrap().text(), "ok");
}

/// A certificate that can be called expired.
#[derive(Default)]
struct Expiring {
    over: std::sync::atomic::AtomicBool,
    refused: std::sync::atomic::AtomicUsize,
}

impl Standing for Expiring {
    fn is_good(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    fn is_passed_on(&self, path: &str) -> bool {
        path.starts_with("/passed-on/")
    }

    fn refused(&self, request: &http::HeaderMap) {
        assert!(request.contains_key("host"));
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// What kube-apiserver says to whom it does not know.
const UNAUTHORIZED: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#;

/// Another way to the same cluster, with what expires.
struct WithExpiring {
    cluster: Cluster,
    shown: Arc<Mutex<Arc<Expiring>>>,
}

impl Dial for WithExpiring {
    fn dial(&self, offer: Offer) -> BoxFuture<'_, Result<Dialled, DialError>> {
        Box::pin(async move {
            let mut dialled = self.cluster.dial(offer).await?;
            let shown = Arc::new(Expiring::default());
            *self.shown.lock().unwrap() = shown.clone();
            dialled.standing = Some(shown);
            Ok(dialled)
        })
    }
}

#[tokio::test]
async fn a_connection_whose_certificate_has_expired_takes_no_request() {
    let ca = Ca::new("cluster");
    for alpn in [&BOTH[..], &H1[..]] {
        let options = Options::new(ca.server(&["localhost", "127.0.0.1"])).alpn(alpn);
        let server = ApiServer::start(options, |seen| match seen.path() {
            "/refused" => Reply::new(401),
            "/passed-on/workload" => Reply::new(401).body("who are you?"),
            "/passed-on/server" => Reply::new(401).body(UNAUTHORIZED),
            "/passed-on/long" => Reply::new(401).body(vec![b' '; 100_000]),
            _ => Reply::json("{}"),
        })
        .await;
        let shown = Arc::new(Mutex::new(Arc::new(Expiring::default())));
        let dial = WithExpiring {
            cluster: Cluster::new(&cluster(server.addr(), &ca), None).unwrap(),
            shown: shown.clone(),
        };
        let rig = Rig::dialling(dial, server.addr().to_string().parse().unwrap()).await;
        let h2 = rig.h2().await;
        let now = || shown.lock().unwrap().clone();
        for _ in 0..2 {
            assert_eq!(h2.get("/").await.unwrap().status, 200);
        }
        assert_eq!(server.connections(), 1);
        for (path, refused) in [
            ("/", 0),
            ("/passed-on/workload", 0),
            ("/passed-on/long", 0),
            ("/passed-on/server", 1),
            ("/refused", 2),
        ] {
            let status = h2.get(path).await.unwrap().status;
            assert_eq!(status, if path == "/" { 200 } else { 401 });
            let told = now().refused.load(Ordering::Relaxed);
            assert_eq!(told, refused, "{path}");
        }
        now().over.store(true, Ordering::Relaxed);
        assert_eq!(h2.get("/").await.unwrap().status, 200);
        assert_eq!(server.connections(), 2, "{alpn:?}");
    }
}

#[tokio::test]
async fn a_watch_comes_as_it_is_sent_and_ends_with_its_client() {
    let ca = Ca::new("cluster");
    let (reply, watch) = Reply::stream();
    let reply = std::sync::Mutex::new(Some(reply));
    let options = Options::new(ca.server(&["localhost", "127.0.0.1"])).alpn(&BOTH);
    let server = ApiServer::start(options, move |_| {
        reply
            .lock()
            .unwrap()
            .take()
            .unwrap_or_else(|| Reply::new(200))
    })
    .await;
    let rig = Rig::start(server.addr(), &ca, Vec::new()).await;
    let h2 = rig.h2().await;
    let request = Request::get("https://localhost/api/v1/pods?watch=1")
        .body(())
        .unwrap();
    let mut stream = h2.stream(request).await.unwrap();
    stream.finish().unwrap();
    let mut begun = None;
    for event in ["{\"type\":\"ADDED\"}\n", "{\"type\":\"DELETED\"}\n"] {
        watch.send(event).await.unwrap();
        if begun.is_none() {
            begun = Some(stream.head().await.unwrap().status);
        }
        let piece = timeout(TEST_TIMEOUT, stream.chunk())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(piece, event);
        assert_eq!(rig.forwarder.activity().count(), 1);
    }
    stream.reset(h2::Reason::CANCEL);
    timeout(TEST_TIMEOUT, watch.cancelled()).await.unwrap();
    eventually("nothing under way", TEST_TIMEOUT, async || {
        rig.forwarder.activity().count() == 0
    })
    .await;
}

#[tokio::test]
async fn large_bodies_stream_both_ways() {
    let ca = Ca::new("cluster");
    for alpn in [&BOTH[..], &H1[..]] {
        let options = Options::new(ca.server(&["localhost", "127.0.0.1"])).alpn(alpn);
        let server = ApiServer::start(options, |seen| {
            Reply::new(200).body(vec![b'x'; usize::try_from(seen.body_len).unwrap()])
        })
        .await;
        let rig = Rig::start(server.addr(), &ca, Vec::new()).await;
        let h2 = rig.h2().await;
        let request = Request::post("https://localhost/api").body(()).unwrap();
        let mut stream = h2.stream(request).await.unwrap();
        for _ in 0..3 {
            stream.send(vec![b'y'; LENGTH / 3]).await.unwrap();
        }
        stream.finish().unwrap();
        assert_eq!(stream.head().await.unwrap().status, StatusCode::OK);
        let mut length = 0;
        while let Some(piece) = timeout(TEST_TIMEOUT, stream.chunk()).await.unwrap() {
            length += piece.unwrap().len();
        }
        assert_eq!(length, LENGTH);
    }
}

#[tokio::test]
async fn a_cut_answer_is_cut_for_the_client() {
    let ca = Ca::new("cluster");
    let leaf = ca.server(&["localhost", "127.0.0.1"]);
    let cut = Arc::new(Notify::new());
    let told = cut.clone();
    let server = ScriptedServer::start(&leaf, None, &["http/1.1"], move |mut conn| {
        let told = told.clone();
        async move {
            conn.read_head().await;
            let begun = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
            conn.write(begun).await;
            told.notified().await;
            conn.truncate().await;
        }
    })
    .await;
    let rig = Rig::start(server.addr(), &ca, Vec::new()).await;
    let mut h1 = rig.h1().await;
    h1.send("GET / HTTP/1.1\r\nHost: k\r\n\r\n").await.unwrap();
    assert_eq!(h1.read_head().await.unwrap().status, 200);
    assert_eq!(h1.read_chunk().await.unwrap().unwrap(), "hello");
    cut.notify_one();
    assert!(h1.read_chunk().await.is_err());
    let h2 = rig.h2().await;
    let request = Request::get("https://localhost/").body(()).unwrap();
    let mut stream = h2.stream(request).await.unwrap();
    stream.finish().unwrap();
    stream.head().await.unwrap();
    let piece = timeout(TEST_TIMEOUT, stream.chunk()).await.unwrap();
    assert_eq!(piece.unwrap().unwrap(), "hello");
    cut.notify_one();
    let end = timeout(TEST_TIMEOUT, stream.chunk()).await.unwrap();
    let reason = end.unwrap().unwrap_err().reason();
    assert_eq!(reason, Some(h2::Reason::INTERNAL_ERROR));
}

#[tokio::test]
async fn a_write_is_never_sent_twice_and_a_read_is_where_it_is_safe() {
    let ca = Ca::new("cluster");
    let leaf = ca.server(&["localhost", "127.0.0.1"]);
    // Answers once, and ends on the second request without a word.
    let server = ScriptedServer::start(&leaf, None, &["http/1.1"], |mut conn| async move {
        conn.read_head().await;
        conn.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await;
        conn.read_head().await;
        conn.truncate().await;
    })
    .await;
    let rig = Rig::start(server.addr(), &ca, Vec::new()).await;
    let mut h1 = rig.h1().await;
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
        let answer = timeout(TEST_TIMEOUT, h1.read_response())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            (answer.status, server.connections()),
            (status, connections),
            "{method}"
        );
    }
}

#[tokio::test]
async fn nobody_there_is_said_with_the_servers_name() {
    let ca = Ca::new("cluster");
    let silent = ReservedPort::new();
    let addr = silent.addr();
    let rig = Rig::start(addr, &ca, Vec::new()).await;
    let answer = rig.h2().await.get("/").await.unwrap();
    assert_eq!(answer.status, 503);
    assert!(
        answer.text().contains(&addr.to_string()),
        "{}",
        answer.text()
    );
    let other = Ca::new("another");
    let server = server(&other, &BOTH).await;
    let rig = Rig::start(server.addr(), &ca, Vec::new()).await;
    let answer = rig.h2().await.get("/").await.unwrap();
    assert!(
        answer.text().contains("signed by unknown authority"),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn what_two_readers_could_understand_differently_is_refused() {
    let ca = Ca::new("cluster");
    let server = server(&ca, &BOTH).await;
    let rig = Rig::start(server.addr(), &ca, Vec::new()).await;
    for text in [
        "POST / HTTP/1.1\r\nHost: k\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: k\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: k\r\nHost: l\r\n\r\n",
        "GET / HTTP/1.1\nHost: k\n\n",
        "CONNECT k:443 HTTP/1.1\r\nHost: k:443\r\n\r\n",
    ] {
        let mut h1 = rig.h1().await;
        h1.send(text).await.unwrap();
        let answer = timeout(Duration::from_secs(30), h1.read_response()).await;
        let answer = answer.unwrap().unwrap();
        assert!(
            matches!(answer.status, 400 | 405),
            "{text:?}: {}",
            answer.status
        );
        assert_eq!(answer.header("connection"), Some("close"));
    }
    assert!(server.requests().is_empty());
}
