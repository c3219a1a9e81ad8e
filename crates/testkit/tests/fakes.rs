//! The fake servers against the clients, over loopback.
// Tests and their helpers report errors by panicking.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use skewbridge_testkit::h2frames::{self, code, flag, kind};
use skewbridge_testkit::upstream::Body;
use skewbridge_testkit::{
    ApiServer, Ca, ClientAuth, Options, Reply, ScriptedServer, TEST_TIMEOUT, TlsClient, Validity,
    eventually, get,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};

const NAMES: &[&str] = &["localhost", "127.0.0.1"];

fn post(path: &str) -> http::Request<()> {
    let uri = format!("https://localhost{path}");
    http::Request::post(uri).body(()).unwrap()
}

#[tokio::test]
async fn http1_keeps_order_case_body_and_trailers() {
    let ca = Ca::new("cluster");
    let server = ApiServer::start(Options::new(ca.server(NAMES)), |seen| {
        Reply::new(201).body(seen.body).trailer("X-Sum", "7")
    })
    .await;
    let mut client = TlsClient::new(&ca).http1(server.addr()).await.unwrap();
    let head = "POST /a?b=1 HTTP/1.1\r\nhOST: x\r\nX-B: 1\r\nx-a: 2\r\nTransfer-Encoding: chunked";
    for _ in 0..2 {
        client
            .send(format!("{head}\r\n\r\n2\r\nhi\r\n0\r\nT: 1\r\n\r\n"))
            .await
            .unwrap();
        let answer = client.read_response().await.unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (201, "hi"));
        assert_eq!(answer.trailers, [("X-Sum".to_owned(), "7".to_owned())]);
    }
    let seen = &server.requests()[1];
    let names: Vec<_> = seen.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["hOST", "X-B", "x-a", "Transfer-Encoding"]);
    assert_eq!(seen.trailers, [("T".to_owned(), "1".to_owned())]);
    assert_eq!((seen.path(), seen.query()), ("/a", Some("b=1")));
    assert_eq!(seen.body_state, Body::Complete);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn http2_carries_large_bodies_both_ways_and_names_the_client() {
    let ca = Ca::new("root");
    let users = ca.intermediate("users");
    let options = Options::new(ca.server(NAMES)).clients(ClientAuth::Require(&ca));
    let server = ApiServer::start(options, |seen| {
        Reply::json(seen.body).trailer("grpc-status", "0")
    })
    .await;
    let alice = users.client("alice", &["dev", "ops"]);
    let client = TlsClient::new(&ca).identity(&alice);
    let client = client.http2(server.addr()).await.unwrap();
    let body = vec![b'x'; 300_000];
    let answer = client.request(post("/echo"), body.clone()).await.unwrap();
    assert_eq!(answer.body, body);
    assert_eq!(answer.trailers.len(), 1);
    let seen = server.requests().remove(0);
    let certificate = seen.client.unwrap();
    assert_eq!(certificate.common_name, "alice");
    assert_eq!(certificate.organizations, ["dev", "ops"]);
    assert_eq!(seen.authority.as_deref(), Some("localhost"));
}

#[tokio::test]
async fn certificates_outside_their_validity_are_rejected() {
    let ca = Ca::new("cluster");
    for validity in [Validity::Expired, Validity::NotYetValid] {
        let options = Options::new(ca.server_valid(NAMES, validity));
        let server = ApiServer::start(options, |_| Reply::new(200)).await;
        let client = TlsClient::new(&ca)
            .connect(server.addr(), "localhost")
            .await;
        assert!(client.is_err(), "{validity:?}");
    }
}

#[tokio::test]
async fn a_watch_streams_and_reports_cancellation_over_both_protocols() {
    let ca = Ca::new("cluster");
    let (senders, mut watches) = mpsc::unbounded_channel();
    let server = ApiServer::start(Options::new(ca.server(NAMES)), move |_| {
        let (reply, sender) = Reply::stream();
        senders.send(sender).unwrap();
        reply
    })
    .await;
    let client = TlsClient::new(&ca);

    let mut http1 = client.http1(server.addr()).await.unwrap();
    http1
        .send("GET /w HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let watch = watches.recv().await.unwrap();
    watch.send("one").await.unwrap();
    assert_eq!(http1.read_head().await.unwrap().status, 200);
    assert_eq!(http1.read_chunk().await.unwrap().unwrap(), "one");
    drop(http1);
    watch.cancelled().await;

    let http2 = client.http2(server.addr()).await.unwrap();
    let mut stream = http2.stream(post("/w")).await.unwrap();
    stream.finish().unwrap();
    let watch = watches.recv().await.unwrap();
    assert_eq!(stream.head().await.unwrap().status, 200);
    assert!(!watch.is_cancelled());
    assert_eq!(http2.open_streams(), 1);
    drop(stream);
    watch.cancelled().await;
    assert_eq!(http2.open_streams(), 0);
}

#[tokio::test]
async fn an_aborted_upload_is_recorded_as_aborted() {
    let ca = Ca::new("cluster");
    let server = ApiServer::start(Options::new(ca.server(NAMES)), |_| Reply::new(200)).await;
    let client = TlsClient::new(&ca).http2(server.addr()).await.unwrap();
    let mut stream = client.stream(post("/upload")).await.unwrap();
    stream.send("half").await.unwrap();
    server
        .wait_for(
            |seen| seen.iter().any(|seen| seen.body_len == 4),
            TEST_TIMEOUT,
        )
        .await;
    stream.reset(h2::Reason::CANCEL);
    let broken = |seen: &[skewbridge_testkit::RecordedRequest]| seen[0].body_state == Body::Aborted;
    let seen = server.wait_for(broken, TEST_TIMEOUT).await;
    assert_eq!(seen[0].body, "half");
}

#[tokio::test]
async fn goaway_waits_for_streams_and_kill_does_not() {
    let ca = Ca::new("cluster");
    let release = Arc::new(Notify::new());
    let held = Arc::clone(&release);
    let options = Options::new(ca.server(NAMES)).max_concurrent_streams(7);
    let server = ApiServer::start(options, move |_| Reply::new(200).after(&held)).await;
    let client = TlsClient::new(&ca);

    let leaving = client.http2(server.addr()).await.unwrap();
    let (answer, ()) = tokio::join!(leaving.get("/slow"), async {
        server.wait_for_requests(1).await;
        server.goaway();
        release.notify_one();
    });
    assert_eq!(answer.unwrap().status, 200);
    assert_eq!(leaving.allowed_streams(), 7);
    eventually("the connection ends", TEST_TIMEOUT, async || {
        leaving.is_closed()
    })
    .await;

    let killed = client.http2(server.addr()).await.unwrap();
    let (answer, ()) = tokio::join!(killed.get("/slow"), async {
        server.wait_for_requests(2).await;
        server.kill_connections().await;
    });
    assert!(answer.is_err());
    assert_eq!(server.live_connections(), 0);

    server.stop_listening().await;
    assert!(client.http1(server.addr()).await.is_err());
    server.listen_again().await;
    release.notify_one();
    assert_eq!(get(server.addr(), &ca, "/").await.status, 200);
}

#[tokio::test]
async fn an_upgrade_hands_the_connection_over_with_early_bytes() {
    let ca = Ca::new("cluster");
    let (upgrades, mut taken) = mpsc::unbounded_channel();
    let server = ApiServer::start(Options::new(ca.server(NAMES)), move |_| {
        let (reply, upgrade) = Reply::upgrade("SPDY/3.1");
        upgrades.send(upgrade).unwrap();
        reply
    })
    .await;
    let mut client = TlsClient::new(&ca).http1(server.addr()).await.unwrap();
    client
        .send("POST /exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nping")
        .await
        .unwrap();
    assert_eq!(client.read_response().await.unwrap().status, 101);
    let mut server_end = taken.recv().await.unwrap().connection().await;
    let mut bytes = [0; 4];
    server_end.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"ping");
    server_end.write_all(b"pong").await.unwrap();
    server_end.flush().await.unwrap();
    client
        .into_connection()
        .read_exact(&mut bytes)
        .await
        .unwrap();
    assert_eq!(&bytes, b"pong");
}

#[tokio::test]
async fn a_scripted_server_resets_tcp_and_refuses_streams() {
    let ca = Ca::new("cluster");
    let tls = ca.server(NAMES);
    let server = ScriptedServer::start(&tls, None, &["h2", "http/1.1"], |mut conn| async move {
        if conn.alpn.as_deref() == Some("http/1.1") {
            conn.read_head().await;
            conn.reset();
            return;
        }
        conn.accept_h2(&[]).await;
        let stream = conn.read_frame(kind::HEADERS).await.header.stream;
        conn.write(h2frames::rst_stream(stream, code::REFUSED_STREAM))
            .await;
        let stream = conn.read_frame(kind::HEADERS).await.header.stream;
        let answer = [
            h2frames::headers(stream, flag::END_HEADERS, h2frames::STATUS_200),
            h2frames::data(stream, flag::END_STREAM, b"ok"),
            h2frames::goaway(stream, code::NO_ERROR),
        ];
        conn.write(answer.concat()).await;
        conn.read_to_end().await;
    })
    .await;
    let client = TlsClient::new(&ca);

    let mut http1 = client.http1(server.addr()).await.unwrap();
    http1.send("GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let error = http1.read_head().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);

    let http2 = client.http2(server.addr()).await.unwrap();
    let refused = http2.get("/").await.unwrap_err();
    assert_eq!(refused.reason(), Some(h2::Reason::REFUSED_STREAM));
    assert_eq!(http2.get("/").await.unwrap().text(), "ok");
    server.wait_for_connections(2).await;
}

#[tokio::test]
async fn the_api_server_responds_to_a_request_of_raw_frames() {
    let ca = Ca::new("cluster");
    let server = ApiServer::start(Options::new(ca.server(NAMES)), |_| Reply::json("{}")).await;
    let client = TlsClient::new(&ca).alpn(&["h2"]);
    let mut io = client.connect(server.addr(), "localhost").await.unwrap();
    h2frames::open(&mut io, &[]).await.unwrap();
    let block = h2frames::request_block("GET", "localhost", "/api");
    let (first, rest) = block.split_at(10);
    let request = [
        h2frames::headers(1, flag::END_STREAM, first),
        h2frames::continuation(1, flag::END_HEADERS, rest),
    ];
    io.write_all(&request.concat()).await.unwrap();
    io.flush().await.unwrap();
    let data = h2frames::read_until(&mut io, kind::DATA).await.unwrap();
    assert_eq!(data.payload, b"{}");
    assert_eq!(server.requests()[0].target, "/api");
}

#[tokio::test]
#[should_panic(expected = "a script of a fake server panicked")]
async fn a_script_that_panics_fails_the_test() {
    let ca = Ca::new("cluster");
    let tls = ca.server(NAMES);
    let server = ScriptedServer::start(&tls, None, &[], |_| async { panic!("as scripted") }).await;
    let client = TlsClient::new(&ca);
    let mut client = client.http1(server.addr()).await.unwrap();
    client.read_head().await.unwrap_err();
}

#[tokio::test]
async fn a_response_at_the_head_does_not_wait_for_the_body() {
    let ca = Ca::new("cluster");
    let options = Options::new(ca.server(NAMES)).respond_at_head();
    let server = ApiServer::start(options, |_| Reply::json("{}")).await;
    let client = TlsClient::new(&ca).http2(server.addr()).await.unwrap();
    let mut stream = client.stream(post("/early")).await.unwrap();
    assert_eq!(stream.head().await.unwrap().status, 200);
    assert_eq!(server.requests()[0].body_state, Body::Receiving);
    stream.send("late").await.unwrap();
    stream.finish().unwrap();
    let complete =
        |seen: &[skewbridge_testkit::RecordedRequest]| seen[0].body_state == Body::Complete;
    assert_eq!(
        server.wait_for(complete, TEST_TIMEOUT).await[0].body,
        "late"
    );
}

#[tokio::test]
async fn a_dropped_sender_aborts_the_response_over_both_protocols() {
    let ca = Ca::new("cluster");
    let server = ApiServer::start(Options::new(ca.server(NAMES)), |_| Reply::stream().0).await;
    let client = TlsClient::new(&ca);
    let mut http1 = client.http1(server.addr()).await.unwrap();
    http1.send("GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(http1.read_response().await.is_err());
    let http2 = client.http2(server.addr()).await.unwrap();
    let error = http2.get("/").await.unwrap_err();
    assert_eq!(error.reason(), Some(h2::Reason::INTERNAL_ERROR));
}

#[tokio::test]
async fn goaway_closes_idle_http1_connections() {
    let ca = Ca::new("cluster");
    let server = ApiServer::start(Options::new(ca.server(NAMES)), |_| Reply::new(204)).await;
    let mut client = TlsClient::new(&ca).http1(server.addr()).await.unwrap();
    client.send("GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert_eq!(client.read_response().await.unwrap().status, 204);
    server.goaway();
    client.read_close().await.unwrap();
    server.wait_until_idle().await;
}
