//! If upstream gives no response, the bridge answers with a `metav1.Status` that states the reason.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use skewbridge_testkit::h2frames::{self, flag, kind};
use skewbridge_testkit::{ApiServer, H1Client, Options, Reply, Response, ScriptedServer};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::sync::{Notify, mpsc};

use crate::support::pki::{self, PkiFixture};
use crate::support::scripted_upstream::{assert_json_status, client_requests, start_scripted};

const GET: &str = "GET /api HTTP/1.1\r\nHost: k\r\n\r\n";

/// A bound port without a listener.
fn closed_port() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

async fn answer(client: &mut H1Client, request: impl AsRef<[u8]>) -> Response {
    client.send(request).await.unwrap();
    client.read_response().await.unwrap()
}

#[tokio::test]
async fn an_unreachable_upstream_is_503_in_the_requested_media_type() {
    const JSON: &str = "application/json";
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    const CBOR: &str = "application/cbor";
    let rows = [
        (None, JSON),
        (Some("*/*"), JSON),
        (Some("text/html"), JSON),
        (Some("application/json"), JSON),
        (Some("application/vnd.kubernetes.protobuf"), PROTOBUF),
        (
            Some("application/vnd.kubernetes.protobuf, application/json"),
            JSON,
        ),
        (
            Some("application/vnd.kubernetes.protobuf,application/json;q=0.5"),
            JSON,
        ),
        (
            Some("application/vnd.kubernetes.protobuf,application/json;q=0"),
            PROTOBUF,
        ),
        (Some("application/cbor"), CBOR),
        (Some("application/cbor, */*;q=0.1"), JSON),
    ];
    let pki = PkiFixture::new();
    let (_taken, upstream) = closed_port();
    let bridge = pki.start_bridge(upstream);
    let mut h1 = pki.client().http1(bridge.address()).await.unwrap();
    let h2 = pki.client().http2(bridge.address()).await.unwrap();
    for (accept, expected) in rows {
        let field = accept.map_or(String::new(), |accept| format!("Accept: {accept}\r\n"));
        let over_h1 = answer(
            &mut h1,
            format!("GET /api HTTP/1.1\r\nHost: k\r\n{field}\r\n"),
        );
        let mut request = Request::get("https://k/api");
        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        let over_h2 = h2.request(request.body(()).unwrap(), "");
        for response in [over_h1.await, over_h2.await.unwrap()] {
            assert_eq!(response.status, 503, "{accept:?}");
            assert_eq!(
                response.header("content-type"),
                Some(expected),
                "{accept:?}"
            );
            assert_eq!(response.header("retry-after"), Some("1"));
            let length = response.body.len().to_string();
            assert_eq!(response.header("content-length"), Some(length.as_str()));
            let start: &[u8] = match expected {
                JSON => b"{",
                PROTOBUF => b"k8s\0",
                // RFC 8949, 3.4.6: the self-described CBOR tag.
                _ => b"\xd9\xd9\xf7",
            };
            assert!(response.body.starts_with(start), "{accept:?}");
            if expected == JSON {
                let status = assert_json_status(&response, 503);
                assert_eq!(status["reason"], "ServiceUnavailable");
                assert_eq!(status["details"]["retryAfterSeconds"], 1);
            }
        }
    }
}

#[tokio::test]
async fn an_upstream_that_returns_is_used_again() {
    let pki = PkiFixture::new();
    let options = Options::new(pki.upstream.clone());
    let upstream = ApiServer::start(options, |_| Reply::json("{}")).await;
    upstream.stop_listening().await;
    let bridge = pki.start_bridge(upstream.addr());
    let mut client = pki.client().http1(bridge.address()).await.unwrap();
    let h2 = pki.client().http2(bridge.address()).await.unwrap();
    assert_json_status(&answer(&mut client, GET).await, 503);
    assert_json_status(&h2.get("/api").await.unwrap(), 503);
    upstream.listen_again().await;
    assert_eq!(answer(&mut client, GET).await.status, 200);
    assert_eq!(h2.get("/api").await.unwrap().status, 200);
}

#[tokio::test]
async fn an_upstream_that_disconnects_before_its_headers_is_502() {
    let pki = PkiFixture::new();
    for (response_bytes, reset) in [
        ("", false),
        ("", true),
        ("HTTP/1.1 200 OK\r\nContent-", false),
        ("HTTP/1.1 100 Continue\r\n\r\n", false),
    ] {
        let upstream = start_scripted(&pki, move |_, mut conn| async move {
            conn.write(response_bytes).await;
            if reset {
                conn.reset();
            }
        })
        .await;
        let bridge = pki.start_bridge(upstream.addr());
        let mut h1 = pki.client().http1(bridge.address()).await.unwrap();
        let response = answer(&mut h1, GET).await;
        assert_eq!(
            assert_json_status(&response, 502)["reason"],
            "InternalError",
            "{response_bytes:?}"
        );
        // The client's own connection is not affected.
        let post = "POST /api HTTP/1.1\r\nHost: k\r\nContent-Length: 2\r\n\r\n{}";
        assert_json_status(&answer(&mut h1, post).await, 502);
        let h2 = pki.client().http2(bridge.address()).await.unwrap();
        assert_json_status(&h2.get("/api").await.unwrap(), 502);
    }
}

#[tokio::test]
async fn a_stream_reset_by_upstream_is_502_and_a_refused_stream_is_503() {
    for (reason, code) in [
        (h2::Reason::INTERNAL_ERROR, 502),
        (h2::Reason::CANCEL, 502),
        (h2::Reason::REFUSED_STREAM, 503),
    ] {
        let pki = PkiFixture::new();
        let options = Options::new(pki.upstream.clone());
        let upstream = ApiServer::start(options, move |_| Reply::reset(reason)).await;
        let bridge = pki.start_bridge(upstream.addr());
        let h2 = pki.client().http2(bridge.address()).await.unwrap();
        assert_json_status(&h2.get("/api").await.unwrap(), code);
        let sent = if code == 503 { 2 } else { 1 };
        assert_eq!(client_requests(&upstream).len(), sent, "{reason}");
    }
}

#[tokio::test]
async fn a_malformed_http1_response_of_upstream_is_502() {
    let huge = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let rows = [
        ("a greeting", "SSH-2.0-OpenSSH_9.9\r\n\r\n".to_owned()),
        ("no status code", "HTTP/1.1 abc\r\n\r\n".to_owned()),
        (
            "an unknown HTTP version",
            "HTTP/3 200 OK\r\n\r\n".to_owned(),
        ),
        (
            "Content-Length and Transfer-Encoding",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        ),
        (
            "two Content-Length values",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_owned(),
        ),
        ("NUL", "HTTP/1.1 200 OK\r\nX: \0\r\n\r\n".to_owned()),
        ("a head that is too large", huge),
        ("HTTP/2", "\0\0\0\x04\0\0\0\0\0\r\n\r\n".to_owned()),
    ];
    let pki = PkiFixture::new();
    for (name, response_bytes) in rows {
        println!("{name}");
        let upstream = start_scripted(&pki, move |_, mut conn| {
            let response_bytes = response_bytes.clone();
            async move {
                // The bridge does not read all of it.
                let _ = conn.io.write_all(response_bytes.as_bytes()).await;
                let _ = conn.io.flush().await;
                conn.stall().await;
            }
        })
        .await;
        let bridge = pki.start_bridge(upstream.addr());
        let mut h1 = pki.client().http1(bridge.address()).await.unwrap();
        assert_json_status(&answer(&mut h1, GET).await, 502);
        let h2 = pki.client().http2(bridge.address()).await.unwrap();
        assert_json_status(&h2.get("/api").await.unwrap(), 502);
    }
}

#[tokio::test]
async fn a_malformed_http2_response_of_upstream_is_502() {
    let pki = PkiFixture::new();
    let oversized = {
        let mut frames = h2frames::headers(1, flag::END_STREAM, h2frames::STATUS_200);
        let block: Vec<u8> = (0..90)
            .flat_map(|_| h2frames::literal("x-filler", &"x".repeat(16_000)))
            .collect();
        for part in block.chunks(16_000) {
            frames.extend(h2frames::continuation(1, flag::NONE, part));
        }
        frames.extend(h2frames::continuation(1, flag::END_HEADERS, &[]));
        frames
    };
    let rows = [
        ("HTTP/1.1", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        ("an invalid header block", {
            h2frames::headers(1, flag::END_HEADERS, &[0xff; 16])
        }),
        ("no status", {
            let block = h2frames::literal("x", "y");
            h2frames::headers(1, flag::END_HEADERS, &block)
        }),
        ("headers that are too large", oversized),
    ];
    for (name, response_bytes) in rows {
        println!("{name}");
        let upstream = ScriptedServer::start(&pki.upstream, None, &["h2"], move |mut conn| {
            let response_bytes = response_bytes.clone();
            async move {
                // The bridge may close the connection at any time, for example that of its probe.
                let _ = h2frames::accept(&mut conn.io, &[]).await;
                let _ = h2frames::read_until(&mut conn.io, kind::HEADERS).await;
                let _ = conn.io.write_all(&response_bytes).await;
                let _ = conn.io.flush().await;
                conn.stall().await;
            }
        })
        .await;
        let bridge = pki.start_bridge(upstream.addr());
        let h2 = pki.client().http2(bridge.address()).await.unwrap();
        assert_json_status(&h2.get("/api").await.unwrap(), 502);
    }
}

#[tokio::test]
async fn an_unresponsive_upstream_is_504_except_for_watches_logs_and_exec() {
    const LONG_RUNNING: [&str; 5] = [
        "GET /api/v1/pods?watch=1",
        "GET /api/v1/watch/pods",
        "GET /api/v1/namespaces/a/pods/b/log",
        "POST /api/v1/namespaces/a/pods/b/exec",
        "GET /api/v1/namespaces/a/pods/b/proxy/x",
    ];
    let pki = PkiFixture::new();
    let (holding, mut held) = mpsc::unbounded_channel();
    let options = Options::new(pki.upstream.clone());
    let upstream = ApiServer::start(options, move |recorded| {
        let release = Arc::new(Notify::new());
        match recorded.path() {
            "/readyz" | "/version" => return Reply::new(200),
            "/never" => {}
            _ => holding.send(release.clone()).unwrap(),
        }
        Reply::json("{}").after(&release)
    })
    .await;
    let mut config = pki.config(upstream.addr());
    config.limits.request_timeout = Duration::from_millis(60);
    config.limits.answer_grace = Duration::from_millis(40);
    let bridge = pki::start(&config);

    let mut waiting = Vec::new();
    for line in LONG_RUNNING {
        let mut client = pki.client().http1(bridge.address()).await.unwrap();
        let request = format!("{line} HTTP/1.1\r\nHost: k\r\n\r\n");
        client.send(request).await.unwrap();
        waiting.push(client);
    }
    let mut releases = Vec::new();
    for _ in LONG_RUNNING {
        releases.push(held.recv().await.unwrap());
    }
    // Sent later, and timed out before the others are answered.
    let mut h1 = pki.client().http1(bridge.address()).await.unwrap();
    let response = answer(&mut h1, "GET /never HTTP/1.1\r\nHost: k\r\n\r\n").await;
    assert_eq!(assert_json_status(&response, 504)["reason"], "Timeout");
    let h2 = pki.client().http2(bridge.address()).await.unwrap();
    assert_json_status(&h2.get("/never").await.unwrap(), 504);
    for release in releases {
        release.notify_one();
    }
    for mut client in waiting {
        assert_eq!(client.read_response().await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn malformed_paths_are_400() {
    let pki = PkiFixture::new();
    let options = Options::new(pki.upstream.clone());
    let upstream = ApiServer::start(options, |_| Reply::json("{}")).await;
    let bridge = pki.start_bridge(upstream.addr());
    for path in ["/%", "/api/%zz/pods", "/a%2", "/%c"] {
        // The message itself is well-formed, so its connection stays open.
        let mut client = pki.client().http1(bridge.address()).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: k\r\n\r\n");
        let response = answer(&mut client, request).await;
        assert_eq!(assert_json_status(&response, 400)["reason"], "BadRequest");
        assert_eq!(answer(&mut client, GET).await.status, 200);
        let h2 = pki.client().http2(bridge.address()).await.unwrap();
        assert_json_status(&h2.get(path).await.unwrap(), 400);
    }
    let passed: Vec<_> = client_requests(&upstream)
        .into_iter()
        .map(|recorded| recorded.target)
        .collect();
    assert_eq!(passed, ["/api"; 4]);
}

#[tokio::test]
async fn an_error_response_to_head_has_no_body() {
    let pki = PkiFixture::new();
    let (_taken, upstream) = closed_port();
    let bridge = pki.start_bridge(upstream);
    let mut h1 = pki.client().http1(bridge.address()).await.unwrap();
    for (path, code) in [("/%zz", 400), ("/api", 503)] {
        h1.send(format!("HEAD {path} HTTP/1.1\r\nHost: k\r\n\r\n"))
            .await
            .unwrap();
        let response = h1.read_response_to_head().await.unwrap();
        assert_eq!(response.status, code);
        assert_eq!(response.header("content-type"), Some("application/json"));
        assert_ne!(response.header("content-length"), Some("0"));
    }
    // The next response does not begin with bytes of a body.
    assert_json_status(&answer(&mut h1, GET).await, 503);

    let h2 = pki.client().http2(bridge.address()).await.unwrap();
    for (path, host, code) in [
        ("/%zz", "k", 400),
        ("/api", "k", 503),
        ("/api", "evil", 400),
    ] {
        let request = Request::head(format!("https://k{path}")).header("host", host);
        let response = h2.request(request.body(()).unwrap(), "").await.unwrap();
        assert_eq!((response.status, response.body.len()), (code, 0));
        assert_eq!(response.header("content-type"), Some("application/json"));
    }
}

/// The HTTP/2 library rejects longer targets before they reach the bridge.
#[tokio::test]
async fn over_http2_a_target_that_is_too_long_resets_only_its_stream() {
    let pki = PkiFixture::new();
    let options = Options::new(pki.upstream.clone());
    let upstream = ApiServer::start(options, |_| Reply::json("{}")).await;
    let bridge = pki.start_bridge(upstream.addr());
    let client = pki.client().alpn(&["h2"]);
    let mut io = client.connect(bridge.address(), "localhost").await.unwrap();
    h2frames::open(&mut io, &[]).await.unwrap();
    let block = h2frames::request_block("GET", "k", &format!("/{}", "x".repeat(70_000)));
    let mut pieces = block.chunks(16_000);
    let mut frames = h2frames::headers(1, flag::END_STREAM, pieces.next().unwrap());
    for piece in pieces {
        frames.extend(h2frames::continuation(1, flag::NONE, piece));
    }
    frames.extend(h2frames::continuation(1, flag::END_HEADERS, &[]));
    let complete = flag::END_HEADERS | flag::END_STREAM;
    let next = h2frames::request_block("GET", "k", "/api");
    frames.extend(h2frames::headers(3, complete, &next));
    io.write_all(&frames).await.unwrap();
    io.flush().await.unwrap();
    let reset = h2frames::read_until(&mut io, kind::RST_STREAM).await;
    assert_eq!(reset.unwrap().header.stream, 1);
    let answer = h2frames::read_until(&mut io, kind::HEADERS).await;
    assert_eq!(answer.unwrap().header.stream, 3);
}
