//! Shutdown of the bridge: not ready, then serving for the delay, then draining.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Request;
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::{Config, Shutdown};
use skewbridge_testkit::h2frames::{self, code, flag, kind};
use skewbridge_testkit::{
    ApiServer, BodySender, H1Client, H2Client, H2Stream, Options, Reply, Response, TEST_TIMEOUT,
    eventually,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use crate::support::admin_client::{get, scrape};
use crate::support::pki::{PkiFixture, start};

/// Longer than any test takes.
const LONG_DRAIN: Duration = Duration::from_mins(10);

/// An upstream with a slow response and endless streams.
struct Upstream {
    server: ApiServer,
    /// Releases one response to `/slow`.
    release: Arc<Notify>,
    /// The bodies of watches and logs.
    streams: mpsc::UnboundedReceiver<BodySender>,
}

impl Upstream {
    async fn start(pki: &PkiFixture, protocols: &[&'static str]) -> Self {
        let release = Arc::new(Notify::new());
        let (senders, streams) = mpsc::unbounded_channel();
        let options = Options::new(pki.upstream.clone()).alpn(protocols);
        let slow = release.clone();
        let server = ApiServer::start(options, move |recorded| match recorded.path() {
            "/slow" => Reply::json("\"slow response\"").after(&slow),
            "/api/v1/pods" | "/api/v1/namespaces/a/pods/b/log" => {
                let (reply, sender) = Reply::stream();
                senders.send(sender).unwrap();
                reply
            }
            path => Reply::json(format!("\"{path}\"")),
        })
        .await;
        Self {
            server,
            release,
            streams,
        }
    }

    async fn wait_for_requests(&self, path: &str, count: usize) {
        let recorded_requests = |recorded: &[skewbridge_testkit::RecordedRequest]| {
            recorded
                .iter()
                .filter(|recorded| recorded.path() == path)
                .count()
                >= count
        };
        self.server.wait_for(recorded_requests, TEST_TIMEOUT).await;
    }

    /// Sends an event on the next opened stream.
    async fn send_event(&mut self) -> BodySender {
        let sender = self.streams.recv().await.unwrap();
        sender.send("{}\n").await.unwrap();
        sender
    }
}

const BOTH_PROTOCOLS: &[&str] = &["h2", "http/1.1"];

fn config(pki: &PkiFixture, upstream: &Upstream, delay: Duration, drain: Duration) -> Config {
    Config {
        shutdown: Shutdown { delay, drain },
        ..pki.config(upstream.server.addr())
    }
}

/// Shuts the bridge down in the background; returns its handle when it has drained.
fn shut_down(mut bridge: Handle) -> JoinHandle<Handle> {
    tokio::spawn(async move {
        bridge.finish().await;
        bridge
    })
}

/// Waits until the drain has begun.
async fn wait_until_connections_are_refused(address: SocketAddr) {
    eventually(
        "new connections are refused",
        TEST_TIMEOUT,
        async || match TcpStream::connect(address).await {
            Ok(_) => false,
            // It was in the accept backlog when the port was closed.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
                true
            }
        },
    )
    .await;
}

/// Waits for the end of the drain, long before its deadline.
async fn assert_drained(leaving: JoinHandle<Handle>) {
    let bridge = tokio::time::timeout(TEST_TIMEOUT, leaving).await;
    bridge.expect("the drain ends before its deadline").unwrap();
}

async fn send_request(client: &mut H1Client, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: k\r\n\r\n");
    client.send(request).await.unwrap();
}

async fn get_over_h1(client: &mut H1Client, path: &str) -> Response {
    send_request(client, path).await;
    client.read_response().await.unwrap()
}

async fn open(client: &H2Client, path: &str) -> H2Stream {
    let request = Request::get(format!("https://k{path}")).body(()).unwrap();
    let mut stream = client.stream(request).await.unwrap();
    stream.finish().unwrap();
    stream
}

/// Reads an HTTP/2 stream to its `END_STREAM`; a reset is an error.
async fn read_to_end(stream: &mut H2Stream) -> Result<String, h2::Error> {
    let mut text = Vec::new();
    while let Some(piece) = stream.chunk().await {
        text.extend_from_slice(&piece?);
    }
    Ok(String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn during_the_delay_only_readyz_fails() {
    let pki = PkiFixture::new();
    let upstream = Upstream::start(&pki, BOTH_PROTOCOLS).await;
    let bridge = start(&config(&pki, &upstream, LONG_DRAIN, LONG_DRAIN));
    let (address, admin) = (bridge.address(), bridge.admin_address());
    let mut h1 = pki.client().http1(address).await.unwrap();
    let h2 = pki.client().http2(address).await.unwrap();
    // The bridge is ready once its probe of upstream has succeeded.
    eventually("ready", TEST_TIMEOUT, async || {
        get_over_h1(&mut h1, "/readyz").await.status == 200
            && get(admin, "/readyz").await.status == 200
    })
    .await;
    assert_eq!(h2.get("/readyz").await.unwrap().status, 200);

    let leaving = shut_down(bridge);
    eventually("not ready", TEST_TIMEOUT, async || {
        get_over_h1(&mut h1, "/readyz").await.status == 500
    })
    .await;
    let not_ready = get_over_h1(&mut h1, "/readyz/ping?verbose").await;
    assert_eq!(
        (not_ready.status, &*not_ready.text()),
        (
            500,
            "[-]skewbridge failed: the bridge is shutting down\nreadyz check failed\n"
        )
    );
    assert_eq!(h2.get("/readyz").await.unwrap().status, 500);
    let received = get(admin, "/readyz").await;
    assert_eq!(received.status, 500);
    assert!(
        received.body.contains("[-]shutdown failed"),
        "{}",
        received.body
    );
    assert_eq!(get(admin, "/livez").await.status, 200);
    assert_eq!(
        scrape(admin).await.value("skewbridge_ready", &[]),
        Some(0.0)
    );

    let mut new_h1 = pki.client().http1(address).await.unwrap();
    let new_h2 = pki.client().http2(address).await.unwrap();
    for path in ["/version", "/livez", "/healthz"] {
        for client in [&mut h1, &mut new_h1] {
            let answer = get_over_h1(client, path).await;
            assert_eq!((answer.status, answer.text()), (200, format!("\"{path}\"")));
            assert_eq!(
                answer.header("connection"),
                None,
                "connections stay open during the delay"
            );
        }
        for client in [&h2, &new_h2] {
            assert_eq!(client.get(path).await.unwrap().status, 200);
        }
    }
    assert!(!leaving.is_finished());
    leaving.abort();
}

#[tokio::test]
async fn the_drain_begins_after_the_delay() {
    let pki = PkiFixture::new();
    let upstream = Upstream::start(&pki, BOTH_PROTOCOLS).await;
    let delay = Duration::from_millis(300);
    let bridge = start(&config(&pki, &upstream, delay, LONG_DRAIN));
    let mut idle = pki.client().http1(bridge.address()).await.unwrap();
    assert_eq!(get_over_h1(&mut idle, "/version").await.status, 200);

    let began = Instant::now();
    let leaving = shut_down(bridge);
    idle.read_close().await.unwrap();
    assert!(began.elapsed() >= delay, "{:?}", began.elapsed());
    assert_drained(leaving).await;
}

#[tokio::test]
async fn draining_closes_idle_connections_and_lets_requests_finish() {
    let pki = PkiFixture::new();
    let upstream = Upstream::start(&pki, BOTH_PROTOCOLS).await;
    let bridge = start(&config(&pki, &upstream, Duration::ZERO, LONG_DRAIN));
    let address = bridge.address();
    let mut idle_h1 = pki.client().http1(address).await.unwrap();
    assert_eq!(get_over_h1(&mut idle_h1, "/version").await.status, 200);
    let idle_h2 = pki.client().http2(address).await.unwrap();
    assert_eq!(idle_h2.get("/version").await.unwrap().status, 200);
    let mut h1 = pki.client().http1(address).await.unwrap();
    send_request(&mut h1, "/slow").await;
    let h2 = pki.client().http2(address).await.unwrap();
    let mut stream = open(&h2, "/slow").await;
    upstream.wait_for_requests("/slow", 2).await;

    let leaving = shut_down(bridge);
    idle_h1.read_close().await.unwrap();
    let closed = async || idle_h2.is_closed();
    eventually("the idle HTTP/2 connection ends", TEST_TIMEOUT, closed).await;
    wait_until_connections_are_refused(address).await;
    assert!(!leaving.is_finished());
    assert!(!h2.is_closed());

    upstream.release.notify_one();
    upstream.release.notify_one();
    let slow = h1.read_response().await.unwrap();
    assert_eq!((slow.status, &*slow.text()), (200, "\"slow response\""));
    assert_eq!(slow.header("connection"), Some("close"));
    h1.read_close().await.unwrap();
    assert_eq!(stream.head().await.unwrap().status, 200);
    assert_eq!(read_to_end(&mut stream).await.unwrap(), "\"slow response\"");
    eventually(
        "the busy HTTP/2 connection ends",
        TEST_TIMEOUT,
        async || h2.is_closed(),
    )
    .await;
    drop(h1);
    assert_drained(leaving).await;
}

#[tokio::test]
async fn http2_connections_get_goaway_and_their_streams_complete() {
    let pki = PkiFixture::new();
    let upstream = Upstream::start(&pki, BOTH_PROTOCOLS).await;
    let bridge = start(&config(&pki, &upstream, Duration::ZERO, LONG_DRAIN));
    let client = pki.client().alpn(&["h2"]);
    let mut wire = client.connect(bridge.address(), "localhost").await.unwrap();
    h2frames::open(&mut wire, &[]).await.unwrap();
    let block = h2frames::request_block("GET", "k", "/slow");
    let ends = flag::END_HEADERS | flag::END_STREAM;
    let request = h2frames::headers(1, ends, &block);
    wire.write_all(&request).await.unwrap();
    upstream.wait_for_requests("/slow", 1).await;

    let leaving = shut_down(bridge);
    let goaway = h2frames::read_until(&mut wire, kind::GOAWAY).await.unwrap();
    assert_eq!(goaway.error_code(), Some(code::NO_ERROR));
    let ping = h2frames::read_until(&mut wire, kind::PING).await.unwrap();
    let acknowledgement = h2frames::frame(kind::PING, flag::ACK, 0, &ping.payload);
    wire.write_all(&acknowledgement).await.unwrap();
    let last = h2frames::read_until(&mut wire, kind::GOAWAY).await.unwrap();
    assert_eq!(last.error_code(), Some(code::NO_ERROR));
    assert_eq!(last.payload[..4], [0, 0, 0, 1], "stream 1 is served");

    upstream.release.notify_one();
    let mut ended = false;
    while !ended {
        let frame = h2frames::read_frame(&mut wire).await.unwrap();
        assert_ne!(frame.header.kind, kind::RST_STREAM);
        ended = frame.header.stream == 1 && frame.header.has(flag::END_STREAM);
    }
    let mut after = Vec::new();
    wire.read_to_end(&mut after).await.unwrap();
    drop(wire);
    assert_drained(leaving).await;
}

#[tokio::test]
async fn watches_end_cleanly_within_the_drain() {
    let pki = PkiFixture::new();
    for protocols in [BOTH_PROTOCOLS, &["http/1.1"]] {
        let mut upstream = Upstream::start(&pki, protocols).await;
        let drain = Duration::from_secs(6);
        let bridge = start(&config(&pki, &upstream, Duration::ZERO, drain));
        let address = bridge.address();
        let mut h1 = pki.client().http1(address).await.unwrap();
        send_request(&mut h1, "/api/v1/pods?watch=true").await;
        let first = upstream.send_event().await;
        assert_eq!(h1.read_head().await.unwrap().status, 200);
        assert_eq!(h1.read_chunk().await.unwrap().unwrap(), "{}\n");
        let h2 = pki.client().http2(address).await.unwrap();
        let mut stream = open(&h2, "/api/v1/pods?watch=1").await;
        let second = upstream.send_event().await;
        assert_eq!(stream.head().await.unwrap().status, 200);
        assert_eq!(stream.chunk().await.unwrap().unwrap(), "{}\n");

        let began = Instant::now();
        let leaving = shut_down(bridge);
        assert_eq!(h1.read_chunk().await.unwrap(), None, "the last chunk");
        h1.read_close().await.unwrap();
        assert_eq!(read_to_end(&mut stream).await.unwrap(), "", "END_STREAM");
        first.cancelled().await;
        second.cancelled().await;
        assert_drained(leaving).await;
        assert!(began.elapsed() < drain, "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_followed_log_continues_while_draining() {
    let pki = PkiFixture::new();
    let mut upstream = Upstream::start(&pki, BOTH_PROTOCOLS).await;
    let bridge = start(&config(&pki, &upstream, Duration::ZERO, LONG_DRAIN));
    let address = bridge.address();
    let h2 = pki.client().http2(address).await.unwrap();
    let mut stream = open(&h2, "/api/v1/namespaces/a/pods/b/log?follow=true").await;
    let log = upstream.send_event().await;
    assert_eq!(stream.head().await.unwrap().status, 200);

    let leaving = shut_down(bridge);
    wait_until_connections_are_refused(address).await;
    log.send("more\n").await.unwrap();
    log.finish().await.unwrap();
    assert_eq!(read_to_end(&mut stream).await.unwrap(), "{}\nmore\n");
    assert_drained(leaving).await;
}

#[tokio::test]
async fn streams_that_do_not_end_are_closed_at_the_deadline() {
    let pki = PkiFixture::new();
    let upstream = Upstream::start(&pki, BOTH_PROTOCOLS).await;
    let drain = Duration::from_millis(300);
    let bridge = start(&config(&pki, &upstream, Duration::ZERO, drain));
    let mut h1 = pki.client().http1(bridge.address()).await.unwrap();
    send_request(&mut h1, "/slow").await;
    upstream.wait_for_requests("/slow", 1).await;

    let began = Instant::now();
    let bridge = shut_down(bridge).await.unwrap();
    assert!(began.elapsed() >= drain, "{:?}", began.elapsed());
    drop(bridge);
    assert!(h1.read_response().await.is_err());
}

#[tokio::test]
async fn a_tunnel_stays_open_until_the_deadline() {
    let pki = PkiFixture::new();
    let (senders, mut upgrades) = mpsc::unbounded_channel();
    let options = Options::new(pki.upstream.clone()).alpn(&["http/1.1"]);
    let server = ApiServer::start(options, move |recorded| {
        if recorded.header("upgrade").is_none() {
            return Reply::new(200);
        }
        let (reply, upgrade) = Reply::upgrade("SPDY/3.1");
        senders.send(upgrade).unwrap();
        reply
    })
    .await;
    let mut config = pki.config(server.addr());
    config.shutdown.drain = Duration::from_secs(1);
    let bridge = start(&config);
    let address = bridge.address();
    let mut client = pki.client().http1(address).await.unwrap();
    let exec = "POST /api/v1/namespaces/a/pods/b/exec HTTP/1.1\r\nHost: k\r\n\
                Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n";
    client.send(exec).await.unwrap();
    assert_eq!(client.read_head().await.unwrap().status, 101);
    let mut local_io = client.into_connection();
    let mut remote_io = upgrades.recv().await.unwrap().connection().await;

    let began = Instant::now();
    let leaving = shut_down(bridge);
    wait_until_connections_are_refused(address).await;
    local_io.write_all(b"ls").await.unwrap();
    local_io.flush().await.unwrap();
    let mut typed = [0; 2];
    remote_io.read_exact(&mut typed).await.unwrap();
    remote_io.write_all(b"bin").await.unwrap();
    remote_io.flush().await.unwrap();
    let mut shown = [0; 3];
    local_io.read_exact(&mut shown).await.unwrap();
    assert_eq!((&typed, &shown), (b"ls", b"bin"));

    let bridge = leaving.await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1));
    drop(bridge);
    let mut nothing = Vec::new();
    let _ = local_io.read_to_end(&mut nothing).await;
    let _ = remote_io.read_to_end(&mut nothing).await;
    assert_eq!(nothing, b"", "both ends are closed");
}

#[tokio::test]
async fn an_unused_bridge_shuts_down_at_once() {
    let pki = PkiFixture::new();
    let upstream = Upstream::start(&pki, BOTH_PROTOCOLS).await;
    let bridge = start(&config(&pki, &upstream, Duration::ZERO, LONG_DRAIN));
    assert_drained(shut_down(bridge)).await;
}

#[tokio::test]
async fn the_admin_listener_answers_while_draining() {
    let pki = PkiFixture::new();
    let upstream = Upstream::start(&pki, BOTH_PROTOCOLS).await;
    let bridge = start(&config(&pki, &upstream, Duration::ZERO, LONG_DRAIN));
    let (address, admin) = (bridge.address(), bridge.admin_address());
    let mut h1 = pki.client().http1(address).await.unwrap();
    send_request(&mut h1, "/slow").await;
    upstream.wait_for_requests("/slow", 1).await;

    let leaving = shut_down(bridge);
    wait_until_connections_are_refused(address).await;
    assert_eq!(get(admin, "/livez").await.status, 200);
    assert_eq!(get(admin, "/readyz").await.status, 500);
    eventually("the metrics show the drain", TEST_TIMEOUT, async || {
        let scrape = scrape(admin).await;
        scrape.value("skewbridge_client_connections", &[]) == Some(1.0)
    })
    .await;

    upstream.release.notify_one();
    assert_eq!(h1.read_response().await.unwrap().status, 200);
    drop(h1);
    assert_drained(leaving).await;
}

/// Go's HTTP client does not retry a request that failed on a new connection.
#[tokio::test]
async fn a_client_that_has_just_connected_gets_its_first_response() {
    let pki = PkiFixture::new();
    let upstream = Upstream::start(&pki, BOTH_PROTOCOLS).await;
    let bridge = start(&config(&pki, &upstream, Duration::ZERO, LONG_DRAIN));
    let (address, admin) = (bridge.address(), bridge.admin_address());
    let mut h1 = pki.client().http1(address).await.unwrap();
    eventually(
        "the bridge has accepted the connection",
        TEST_TIMEOUT,
        async || {
            let open = scrape(admin)
                .await
                .value("skewbridge_client_connections", &[]);
            open == Some(1.0)
        },
    )
    .await;

    let leaving = shut_down(bridge);
    wait_until_connections_are_refused(address).await;
    let answer = get_over_h1(&mut h1, "/version").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("connection"), Some("close"));
    drop(h1);
    assert_drained(leaving).await;
}

#[tokio::test]
async fn an_unused_connection_does_not_delay_the_shutdown() {
    let pki = PkiFixture::new();
    let upstream = Upstream::start(&pki, BOTH_PROTOCOLS).await;
    let bridge = start(&config(&pki, &upstream, Duration::ZERO, LONG_DRAIN));
    let mut spare = pki.client().http1(bridge.address()).await.unwrap();
    let leaving = shut_down(bridge);
    spare.read_close().await.unwrap();
    assert_drained(leaving).await;
}
