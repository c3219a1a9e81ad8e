//! Limits per client, and that other clients are not affected when one exceeds them.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use skewbridge_testkit::h2frames::{self, code, flag, kind, setting};
use skewbridge_testkit::{ApiServer, H2Client, Options, Reply, TEST_TIMEOUT, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::support::admin_client;
use crate::support::limited_clients::{
    GET, fixture, frames_to_end, get_block, goaways, write_flushed,
};
use crate::support::pki::PkiFixture;
use crate::support::scripted_upstream::{assert_json_status, client_requests};

const WATCH: &str = "/api/v1/pods?watch=1";
/// Long enough for a loaded machine to send a request within it.
const SHORT_TIMEOUT: Duration = Duration::from_millis(500);
const COMPLETE_REQUEST: u8 = flag::END_HEADERS | flag::END_STREAM;

#[tokio::test]
async fn a_slow_tls_handshake_is_aborted_and_counted() {
    let fixture = fixture(|limits| limits.handshake_timeout = SHORT_TIMEOUT).await;
    for sent in [&b""[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let mut tcp = TcpStream::connect(fixture.bridge.address()).await.unwrap();
        tcp.write_all(sent).await.unwrap();
        let ended = timeout(TEST_TIMEOUT, tcp.read(&mut [0])).await.unwrap();
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    }
    let counted = async || {
        let admin = TcpStream::connect(fixture.bridge.admin_address()).await;
        let mut admin = admin.unwrap();
        admin
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut metrics = String::new();
        admin.read_to_string(&mut metrics).await.unwrap();
        metrics.contains(r#"skewbridge_tls_handshake_failures_total{reason="timeout"} 2"#)
    };
    eventually("both handshakes are counted", TEST_TIMEOUT, counted).await;
    fixture.assert_serves_others().await;
}

#[tokio::test]
async fn a_slow_request_head_is_408() {
    let fixture = fixture(|limits| limits.read_header_timeout = SHORT_TIMEOUT).await;
    let mut stuck = fixture.h1().await;
    stuck.send("GET /api HTTP/1.1\r\nHo").await.unwrap();
    let response = stuck.read_response().await.unwrap();
    assert_json_status(&response, 408);
    assert_eq!(response.header("connection"), Some("close"));
    stuck.read_close().await.unwrap();

    // Sending byte by byte does not extend the deadline.
    let trickling = fixture.h1().await.into_connection();
    let (mut reader, mut writer) = tokio::io::split(trickling);
    let trickle = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(SHORT_TIMEOUT / 10);
        let endless = std::iter::repeat_n(b'x', 1 << 20);
        for byte in b"GET /api HTTP/1.1\r\nX: ".iter().copied().chain(endless) {
            ticks.tick().await;
            if writer.write_all(&[byte]).await.is_err() || writer.flush().await.is_err() {
                return;
            }
        }
    });
    let mut answer = String::new();
    let read = timeout(TEST_TIMEOUT, reader.read_to_string(&mut answer)).await;
    read.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    trickle.abort();

    // Over HTTP/2 the deadline applies to the preface.
    let client = fixture.pki.client().alpn(&["h2"]);
    let address = fixture.bridge.address();
    let mut idle = client.connect(address, "localhost").await.unwrap();
    frames_to_end(&mut idle).await;
}

#[tokio::test]
async fn idle_connections_are_closed_except_those_with_a_watch() {
    let mut fixture = fixture(|limits| limits.idle_timeout = SHORT_TIMEOUT).await;
    let mut h1_watch = fixture.h1().await;
    h1_watch
        .send(format!("GET {WATCH} HTTP/1.1\r\nHost: k\r\n\r\n"))
        .await
        .unwrap();
    let h1_events = fixture.watches.recv().await.unwrap();
    let h2 = fixture.h2().await;
    let request = Request::get(format!("https://k{WATCH}")).body(()).unwrap();
    let mut h2_watch = h2.stream(request).await.unwrap();
    h2_watch.finish().unwrap();
    let h2_events = fixture.watches.recv().await.unwrap();

    let mut fresh = fixture.h1().await;
    fresh.read_close().await.unwrap();
    let mut used = fixture.h1().await;
    used.send(GET).await.unwrap();
    assert_eq!(used.read_response().await.unwrap().status, 200);
    used.read_close().await.unwrap();

    let fresh = fixture.h2().await;
    let closed = async || fresh.is_closed();
    eventually("a fresh HTTP/2 connection is closed", TEST_TIMEOUT, closed).await;
    let used = fixture.h2().await;
    assert_eq!(used.get("/api").await.unwrap().status, 200);
    let closed = async || used.is_closed();
    eventually("a used HTTP/2 connection is closed", TEST_TIMEOUT, closed).await;

    for event in ["{\"a\":1}\n", "{\"a\":2}\n"] {
        h1_events.send(event).await.unwrap();
        h2_events.send(event).await.unwrap();
    }
    h1_watch.read_head().await.unwrap();
    assert_eq!(h1_watch.read_chunk().await.unwrap().unwrap(), "{\"a\":1}\n");
    h2_watch.head().await.unwrap();
    assert_eq!(h2_watch.chunk().await.unwrap().unwrap(), "{\"a\":1}\n");
}

#[tokio::test]
async fn an_idle_http2_client_gets_goaway_and_is_disconnected_if_it_does_not_answer() {
    let fixture = fixture(|limits| limits.idle_timeout = SHORT_TIMEOUT).await;
    let mut answers_pings = fixture.raw_h2_connection().await;
    let goaway = h2frames::read_until(&mut answers_pings, kind::GOAWAY).await;
    assert_eq!(goaway.unwrap().error_code(), Some(code::NO_ERROR));

    // These clients never acknowledge the PING that accompanies GOAWAY.
    let unfinished = h2frames::headers(1, flag::END_STREAM, &get_block("/api"));
    for sent in [Vec::new(), unfinished] {
        let mut idle = fixture.raw_h2_connection().await;
        write_flushed(&mut idle, sent).await;
        let frames = frames_to_end(&mut idle).await;
        assert_eq!(goaways(&frames), [code::NO_ERROR]);
    }
    assert_eq!(client_requests(&fixture.upstream).len(), 0);
}

#[tokio::test]
async fn a_connection_above_the_limit_waits_until_another_closes() {
    let fixture = fixture(|limits| limits.max_connections = 2).await;
    // Unauthenticated connections would be evicted instead.
    let (client, address) = (fixture.pki.user("alice", &[]), fixture.bridge.address());
    let mut first = client.http1(address).await.unwrap();
    let second = client.http2(address).await.unwrap();
    first.send(GET).await.unwrap();
    assert_eq!(first.read_response().await.unwrap().status, 200);
    assert_eq!(second.get("/api").await.unwrap().status, 200);
    let mut third = tokio::spawn(async move {
        let mut third = client.http1(address).await.unwrap();
        third.send(GET).await.unwrap();
        third.read_response().await.unwrap().status
    });
    for _ in 0..20 {
        first.send(GET).await.unwrap();
        assert_eq!(first.read_response().await.unwrap().status, 200);
        assert_eq!(second.get("/api").await.unwrap().status, 200);
    }
    assert!(!third.is_finished());
    drop(first);
    let served = timeout(TEST_TIMEOUT, &mut third).await;
    assert_eq!(served.unwrap().unwrap(), 200);
    assert_eq!(second.get("/api").await.unwrap().status, 200);
}

#[tokio::test]
async fn concurrent_streams_are_limited_and_the_limit_is_announced() {
    let fixture = fixture(|limits| limits.max_streams_per_connection = 3).await;
    let client = fixture.pki.client().alpn(&["h2"]);
    let address = fixture.bridge.address();
    let mut io = client.connect(address, "localhost").await.unwrap();
    write_flushed(
        &mut io,
        [h2frames::PREFACE, &h2frames::settings(&[])].concat(),
    )
    .await;
    let settings = h2frames::read_until(&mut io, kind::SETTINGS).await.unwrap();
    let announced = settings
        .payload
        .chunks(6)
        .find(|pair| pair[..2] == setting::MAX_CONCURRENT_STREAMS.to_be_bytes())
        .expect("SETTINGS_MAX_CONCURRENT_STREAMS is announced");
    assert_eq!(announced[2..], 3u32.to_be_bytes());
    write_flushed(&mut io, h2frames::settings_ack()).await;

    for stream in [1, 3, 5, 7] {
        write_flushed(
            &mut io,
            h2frames::headers(stream, COMPLETE_REQUEST, &get_block("/held")),
        )
        .await;
    }
    let refused = h2frames::read_until(&mut io, kind::RST_STREAM)
        .await
        .unwrap();
    assert_eq!(
        (refused.header.stream, refused.error_code()),
        (7, Some(code::REFUSED_STREAM))
    );
    let three = async || client_requests(&fixture.upstream).len() == 3;
    eventually("three requests upstream", TEST_TIMEOUT, three).await;
    // A released stream slot can be used again.
    write_flushed(&mut io, h2frames::rst_stream(1, code::CANCEL)).await;
    write_flushed(
        &mut io,
        h2frames::headers(9, COMPLETE_REQUEST, &get_block("/api")),
    )
    .await;
    let answer = h2frames::read_until(&mut io, kind::DATA).await.unwrap();
    assert_eq!((answer.header.stream, &answer.payload[..]), (9, &b"{}"[..]));
}

#[tokio::test]
async fn malformed_requests_are_counted() {
    let fixture = fixture(|_| {}).await;
    let mut h1 = fixture.h1().await;
    h1.send("GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let response = h1.read_response().await.unwrap();
    assert_eq!(response.status, 400);
    assert!(response.header("date").is_some());
    let scrape = admin_client::scrape(fixture.bridge.admin_address()).await;
    let labels = [
        ("route", "refuse"),
        ("destination", "rejected"),
        ("verb", "unknown"),
        ("code", "400"),
    ];
    let refused = scrape.value("skewbridge_requests_total", &labels);
    assert_eq!(refused, Some(1.0));
}

/// The client reads nothing, so its response stalls.
#[tokio::test]
async fn a_response_that_the_client_does_not_read_is_aborted() {
    let fixture = fixture(|limits| limits.unauthenticated_stall_timeout = SHORT_TIMEOUT).await;
    let mut h1 = fixture.h1().await;
    h1.send("GET /huge HTTP/1.1\r\nHost: k\r\n\r\n")
        .await
        .unwrap();
    // With a zero window not even the first byte can be sent.
    let client = fixture.pki.client().alpn(&["h2"]);
    let mut io = client
        .connect(fixture.bridge.address(), "localhost")
        .await
        .unwrap();
    h2frames::open(&mut io, &[(setting::INITIAL_WINDOW_SIZE, 0)])
        .await
        .unwrap();
    write_flushed(
        &mut io,
        h2frames::headers(1, COMPLETE_REQUEST, &get_block("/big")),
    )
    .await;
    let reset = h2frames::read_until(&mut io, kind::RST_STREAM)
        .await
        .unwrap();
    assert_eq!(reset.header.stream, 1);
    eventually("the connection is closed", TEST_TIMEOUT, async || {
        let scrape = admin_client::scrape(fixture.bridge.admin_address()).await;
        scrape.value("skewbridge_client_connections", &[]) == Some(1.0)
    })
    .await;
    assert!(
        h1.read_response().await.is_err(),
        "the response was not sent completely"
    );
    fixture.assert_serves_others().await;
}

#[tokio::test]
async fn a_body_of_one_byte_frames_uses_little_memory() {
    let pki = PkiFixture::new();
    let options = Options::new(pki.upstream.clone()).respond_at_head();
    let never = Arc::new(Notify::new());
    let upstream = ApiServer::start(options, move |recorded| match recorded.path() {
        "/upload" => Reply::new(200).after(&never),
        _ => Reply::json("{}"),
    })
    .await;
    let bridge = pki.start_bridge(upstream.addr());
    let mut h1 = pki.client().http1(bridge.address()).await.unwrap();
    let before = resident();
    h1.send("POST /upload HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await
        .unwrap();
    for _ in 0..250 {
        h1.send("1\r\nx\r\n".repeat(1024)).await.unwrap();
    }
    // 250 KiB in chunks of one byte, each with its own bookkeeping, would take more than 25 MiB.
    let grown = resident().saturating_sub(before);
    assert!(grown < 16 << 20, "{} MiB", grown >> 20);
}

#[tokio::test]
async fn floods_of_small_frames_do_not_exhaust_memory() {
    let fixture = fixture(|_| {}).await;
    let rows = [
        h2frames::ping(flag::NONE, *b"whatever"),
        h2frames::settings(&[(setting::INITIAL_WINDOW_SIZE, 65_535)]),
        h2frames::settings(&[]),
    ];
    let before = resident();
    let mut floods = Vec::new();
    for frame in rows {
        let mut io = fixture.raw_h2_connection().await;
        floods.push(tokio::spawn(async move {
            let many = frame.repeat(1000);
            // The responses are never read.
            while io.write_all(&many).await.is_ok() {}
        }));
    }
    for _ in 0..10 {
        fixture.assert_serves_others().await;
    }
    // Other tests run in this process as well and use memory.
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "grown by {grown} bytes");
    for flood in floods {
        flood.abort();
    }
}

/// Resident memory of this process in bytes, including the bridge.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[tokio::test]
async fn a_client_that_does_not_read_does_not_block_others() {
    let fixture = fixture(|_| {}).await;
    let mut slow_h1 = Vec::new();
    for _ in 0..5 {
        let mut client = fixture.h1().await;
        client
            .send("GET /big HTTP/1.1\r\nHost: k\r\n\r\n")
            .await
            .unwrap();
        slow_h1.push(client);
    }
    // An unread stream does not block the other streams of its connection either.
    let mut builder = h2::client::Builder::new();
    builder.initial_connection_window_size(16 << 20);
    let client = fixture.pki.client().alpn(&["h2"]);
    let io = client.connect(fixture.bridge.address(), "localhost").await;
    let h2 = H2Client::with(&builder, io.unwrap()).await.unwrap();
    let mut slow_h2 = Vec::new();
    for _ in 0..50 {
        let request = Request::get("https://k/big").body(()).unwrap();
        let mut stream = h2.stream(request).await.unwrap();
        stream.finish().unwrap();
        assert_eq!(stream.head().await.unwrap().status, 200);
        slow_h2.push(stream);
    }
    fixture.assert_serves_others().await;
    let complete = h2.get("/big").await.unwrap();
    assert_eq!((complete.status, complete.body.len()), (200, 8 << 20));
    // The stalled response is still complete.
    let response = slow_h1.pop().unwrap().read_response().await.unwrap();
    assert_eq!(response.body.len(), 8 << 20);
}
