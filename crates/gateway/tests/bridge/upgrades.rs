//! A connection that switches protocols becomes a tunnel, after upstream's 101 and not before.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Version};
use skewbridge_gateway::config::TranslateStreams;
use skewbridge_testkit::h2frames::{self, code, flag, kind};
use skewbridge_testkit::upstream::Upgrade;
use skewbridge_testkit::{ApiServer, ClientAuth, Connection, H1Client, Options, Reply};
use tokio::io::{AsyncBufRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::support::pki::{self, PkiFixture, start};
use crate::support::scripted_upstream::{
    assert_json_status, client_requests, next_request, start_scripted,
};

const EXEC: &str = "/api/v1/namespaces/a/pods/b/exec";

fn spdy(path: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: k\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: v5.channel.k8s.io\r\nContent-Length: 0\r\n\r\n"
    )
}

/// An upstream that accepts every upgrade.
async fn start_upgrading_upstream(pki: &PkiFixture, alpn: &[&'static str]) -> (ApiServer, Tunnels) {
    let (sender, tunnels) = mpsc::unbounded_channel();
    let options = Options::new(pki.upstream.clone())
        .clients(ClientAuth::Accept(&pki.front_proxy_ca))
        .alpn(alpn);
    let upstream = ApiServer::start(options, move |recorded| {
        let Some(protocol) = recorded.header("upgrade") else {
            return Reply::json("{}");
        };
        let (reply, upgrade) = Reply::upgrade(protocol);
        sender.send(upgrade).unwrap();
        reply
            .header("X-Stream-Protocol-Version", "v5.channel.k8s.io")
            .header("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
            .header("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
    })
    .await;
    (upstream, Tunnels(tunnels))
}

struct Tunnels(mpsc::UnboundedReceiver<Upgrade>);

impl Tunnels {
    async fn next(&mut self) -> Connection {
        self.0.recv().await.unwrap().connection().await
    }
}

/// Both ends of a tunnel.
async fn tunnel(client: H1Client, tunnels: &mut Tunnels) -> (Connection, Connection) {
    let mut client = client;
    client.send(spdy(EXEC)).await.unwrap();
    assert_eq!(client.read_head().await.unwrap().status, 101);
    (client.into_connection(), tunnels.next().await)
}

async fn write_flushed(io: &mut Connection, bytes: &[u8]) {
    io.write_all(bytes).await.unwrap();
    io.flush().await.unwrap();
}

async fn expect_bytes(io: &mut Connection, expected: &[u8]) {
    let mut received_bytes = vec![0; expected.len()];
    io.read_exact(&mut received_bytes).await.unwrap();
    assert_eq!(received_bytes, expected);
}

async fn expect_end(io: &mut Connection) {
    assert_eq!(io.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn protocols_that_are_not_translated_become_bidirectional_tunnels() {
    let pki = PkiFixture::new();
    let (upstream, mut tunnels) = start_upgrading_upstream(&pki, &["http/1.1"]).await;
    let mut config = pki.config(upstream.addr());
    config.streams.translate = TranslateStreams::Never;
    let bridge = start(&config);
    let websocket = format!(
        "GET {EXEC}?command=sh HTTP/1.1\r\nHost: k\r\nconnection: keep-alive, upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n"
    );
    let rows = [("SPDY/3.1", spdy(EXEC)), ("websocket", websocket)];
    for (protocol, request) in rows {
        let mut client = pki.client().http1(bridge.address()).await.unwrap();
        client.send(request).await.unwrap();
        let head = client.read_head().await.unwrap();
        assert_eq!(head.status, 101);
        for (name, value) in [
            ("Connection", "Upgrade"),
            ("Upgrade", protocol),
            ("X-Stream-Protocol-Version", "v5.channel.k8s.io"),
            ("Sec-Websocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
            ("Sec-Websocket-Protocol", "v5.channel.k8s.io"),
        ] {
            assert_eq!(head.header(name), Some(value), "{name}");
        }
        let (mut client, mut server) = (client.into_connection(), tunnels.next().await);
        for turn in ["one", "two", "three"] {
            write_flushed(&mut client, turn.as_bytes()).await;
            expect_bytes(&mut server, turn.as_bytes()).await;
            write_flushed(&mut server, turn.as_bytes()).await;
            expect_bytes(&mut client, turn.as_bytes()).await;
        }
    }
    let recorded = client_requests(&upstream);
    assert_eq!(recorded[0].header("upgrade"), Some("SPDY/3.1"));
    assert_eq!(recorded[0].header("connection"), Some("Upgrade"));
    assert_eq!(
        recorded[0].header("x-stream-protocol-version"),
        Some("v5.channel.k8s.io")
    );
    assert_eq!(recorded[1].target, format!("{EXEC}?command=sh"));
    assert_eq!(
        recorded[1].header("sec-websocket-key"),
        Some("dGhlIHNhbXBsZSBub25jZQ==")
    );
}

#[tokio::test]
async fn bytes_immediately_after_the_101_reach_the_client() {
    let pki = PkiFixture::new();
    let upstream = start_scripted(&pki, async |_, mut conn| {
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                      Upgrade: SPDY/3.1\r\n\r\nfirst, ";
        conn.write(answer).await;
        conn.write("second").await;
        conn.stall().await;
    })
    .await;
    let bridge = pki.start_bridge(upstream.addr());
    let mut client = pki.client().http1(bridge.address()).await.unwrap();
    client.send(spdy(EXEC)).await.unwrap();
    assert_eq!(client.read_head().await.unwrap().status, 101);
    expect_bytes(&mut client.into_connection(), b"first, second").await;
}

#[tokio::test]
async fn client_bytes_before_the_101_are_delayed_until_it() {
    let pki = PkiFixture::new();
    let (recorded_requests, mut is_requested) = mpsc::unbounded_channel();
    let go = Arc::new(Notify::new());
    let (go_on, done) = (go.clone(), Arc::new(Notify::new()));
    let finished = done.clone();
    let upstream = start_scripted(&pki, move |head, mut conn| {
        let (recorded_requests, go, done) = (recorded_requests.clone(), go.clone(), done.clone());
        async move {
            if !head.contains("Upgrade") {
                conn.write("HTTP/1.1 204 No Content\r\n\r\n").await;
                return;
            }
            recorded_requests.send(()).unwrap();
            go.notified().await;
            let readable = poll_fn(|cx| {
                std::task::Poll::Ready(Pin::new(&mut conn.io).poll_fill_buf(cx).is_ready())
            });
            assert!(!readable.await, "bytes arrived before the 101");
            conn.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\n\r\n")
                .await;
            assert_eq!(conn.read(11).await, b"early, late");
            done.notify_one();
        }
    })
    .await;
    let bridge = pki.start_bridge(upstream.addr());
    let mut client = pki.client().http1(bridge.address()).await.unwrap();
    client.send(spdy(EXEC) + "early").await.unwrap();
    is_requested.recv().await.unwrap();
    // The only worker has answered this request, so it has already processed the bytes above.
    let mut other = pki.client().http1(bridge.address()).await.unwrap();
    other
        .send("GET /api HTTP/1.1\r\nHost: k\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(other.read_response().await.unwrap().status, 204);
    go_on.notify_one();
    assert_eq!(client.read_head().await.unwrap().status, 101);
    client.send(", late").await.unwrap();
    finished.notified().await;
}

#[tokio::test]
async fn each_direction_closes_independently() {
    let pki = PkiFixture::new();
    let (upstream, mut tunnels) = start_upgrading_upstream(&pki, &["http/1.1"]).await;
    let bridge = pki.start_bridge(upstream.addr());
    for client_first in [true, false] {
        let client = pki.client().http1(bridge.address()).await.unwrap();
        let (client, server) = tunnel(client, &mut tunnels).await;
        let (mut first, mut second) = if client_first {
            (client, server)
        } else {
            (server, client)
        };
        write_flushed(&mut first, b"my last").await;
        first.shutdown().await.unwrap();
        expect_bytes(&mut second, b"my last").await;
        expect_end(&mut second).await;
        for _ in 0..3 {
            write_flushed(&mut second, b"still here").await;
            expect_bytes(&mut first, b"still here").await;
        }
        second.shutdown().await.unwrap();
        expect_end(&mut first).await;
    }
}

#[tokio::test]
async fn ten_mebibytes_each_way_arrive_unchanged() {
    let pki = PkiFixture::new();
    let (upstream, mut tunnels) = start_upgrading_upstream(&pki, &["http/1.1"]).await;
    let bridge = pki.start_bridge(upstream.addr());
    let client = pki.client().http1(bridge.address()).await.unwrap();
    let (client, server) = tunnel(client, &mut tunnels).await;
    let pattern = |seed: u32| -> Vec<u8> {
        (0..10u32 << 20)
            .map(|at| at.wrapping_mul(seed).to_be_bytes()[1])
            .collect()
    };
    let (up, down) = (pattern(2_654_435_761), pattern(40_503));
    let side = async |io: Connection, sends: &[u8], expects: &[u8]| {
        let (mut reader, mut writer) = tokio::io::split(io);
        let write = async {
            writer.write_all(sends).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        let mut received_bytes = Vec::new();
        let ((), read) = tokio::join!(write, reader.read_to_end(&mut received_bytes));
        read.unwrap();
        assert!(
            received_bytes == expects,
            "{} of {}",
            received_bytes.len(),
            expects.len()
        );
    };
    tokio::join!(side(client, &up, &down), side(server, &down, &up));
}

#[tokio::test]
async fn a_rejected_upgrade_is_forwarded_completely_and_bytes_after_it_are_not_a_request() {
    const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: k\r\n\r\n";
    let forbidden = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","code":403}"#;
    let rows = [
        (403, "application/json", forbidden),
        (400, "text/plain", "unable to upgrade"),
        (200, "text/plain", "not today"),
    ];
    let pki = PkiFixture::new();
    for (code, media, body) in rows {
        for chunked in [false, true] {
            let options = Options::new(pki.upstream.clone());
            let upstream = ApiServer::start(options, move |_| {
                let reply = Reply::new(code)
                    .header("Content-Type", media)
                    .header("Audit-Id", "7")
                    .body(body);
                if chunked {
                    reply.trailer("X-Sum", "1")
                } else {
                    reply
                }
            })
            .await;
            let bridge = pki.start_bridge(upstream.addr());
            let mut client = pki.client().http1(bridge.address()).await.unwrap();
            client.send(spdy(EXEC) + SMUGGLED).await.unwrap();
            let response = client.read_response().await.unwrap();
            assert_eq!((response.status, response.text()), (code, body.to_owned()));
            assert_eq!(response.header("content-type"), Some(media));
            assert_eq!(response.header("audit-id"), Some("7"));
            assert_eq!(response.header("connection"), Some("close"));
            // The connection may be closed by now, which is fine as well.
            let _ = client.send(SMUGGLED).await;
            client.read_close().await.unwrap();
            let targets: Vec<_> = client_requests(&upstream)
                .into_iter()
                .map(|recorded| recorded.target)
                .collect();
            assert_eq!(targets, [EXEC], "{code} chunked: {chunked}");
        }
    }
}

#[tokio::test]
async fn requests_that_are_not_upgrades_are_forwarded_as_plain_requests() {
    let rows = [
        (
            "h2c",
            "1.1",
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        ),
        (
            "h2c in a list",
            "1.1",
            "Connection: Upgrade\r\nUpgrade: websocket, H2C\r\n",
        ),
        ("no Connection", "1.1", "Upgrade: SPDY/3.1\r\n"),
        (
            "Connection lists something else",
            "1.1",
            "Connection: keep-alive\r\nUpgrade: websocket\r\n",
        ),
        ("no Upgrade", "1.1", "Connection: Upgrade\r\n"),
        (
            "HTTP/1.0",
            "1.0",
            "Connection: Upgrade\r\nUpgrade: websocket\r\n",
        ),
    ];
    let pki = PkiFixture::new();
    let (upstream, _tunnels) = start_upgrading_upstream(&pki, &["http/1.1"]).await;
    let bridge = pki.start_bridge(upstream.addr());
    let client = pki.client();
    for (name, version, fields) in rows {
        let mut connection = client.connect(bridge.address(), "localhost").await.unwrap();
        let request =
            format!("GET {EXEC} HTTP/{version}\r\nHost: k\r\nX-Row: {name}\r\n{fields}\r\n");
        write_flushed(&mut connection, request.as_bytes()).await;
        let expected = format!("HTTP/{version} 200 OK\r\n");
        expect_bytes(&mut connection, expected.as_bytes()).await;
        let recorded = client_requests(&upstream).pop().unwrap();
        assert_eq!(recorded.header("x-row"), Some(name));
        for header in ["upgrade", "http2-settings", "connection"] {
            assert_eq!(recorded.header(header), None, "{name}: {header}");
        }
    }
}

#[tokio::test]
async fn http2_clients_cannot_upgrade() {
    let pki = PkiFixture::new();
    let (upstream, _tunnels) = start_upgrading_upstream(&pki, &["h2", "http/1.1"]).await;
    let bridge = pki.start_bridge(upstream.addr());
    let h2 = pki.client().http2(bridge.address()).await.unwrap();
    let request = Request::get(format!("https://k{EXEC}"))
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header("sec-websocket-version", "13")
        .body(());
    let response = h2.request(request.unwrap(), "").await.unwrap();
    assert_eq!(response.status, 200);
    let recorded = client_requests(&upstream);
    assert_eq!(
        (recorded[0].version, recorded[0].header("upgrade")),
        (Version::HTTP_2, None)
    );

    // RFC 9113, 8.2.2; RFC 8441 is not announced.
    let client = pki.client().alpn(&["h2"]);
    for (method, field, value) in [
        ("GET", "upgrade", "websocket"),
        ("CONNECT", ":protocol", "websocket"),
    ] {
        let mut io = client.connect(bridge.address(), "localhost").await.unwrap();
        h2frames::open(&mut io, &[]).await.unwrap();
        let block = [
            h2frames::request_block(method, "k", EXEC),
            h2frames::literal(field, value),
        ];
        let request = h2frames::headers(1, flag::END_HEADERS, &block.concat());
        write_flushed(&mut io, &request).await;
        let reset = h2frames::read_until(&mut io, kind::RST_STREAM).await;
        assert_eq!(reset.unwrap().error_code(), Some(code::PROTOCOL_ERROR));
    }
    assert_eq!(client_requests(&upstream).len(), 1);
}

#[tokio::test]
async fn a_user_is_asserted_over_the_front_proxy_connection() {
    let pki = PkiFixture::new();
    let (upstream, mut tunnels) = start_upgrading_upstream(&pki, &["h2", "http/1.1"]).await;
    let bridge = pki.start_bridge(upstream.addr());
    let alice = pki.user("alice", &["dev", "ops"]);
    let client = alice.http1(bridge.address()).await.unwrap();
    let (mut client, mut server) = tunnel(client, &mut tunnels).await;
    write_flushed(&mut client, b"hello").await;
    expect_bytes(&mut server, b"hello").await;
    let recorded = client_requests(&upstream).pop().unwrap();
    assert_eq!(recorded.version, Version::HTTP_11, "upgrades need HTTP/1.1");
    assert_eq!(
        recorded.client.clone().unwrap().common_name,
        "front-proxy-client"
    );
    assert_eq!(recorded.header("x-remote-user"), Some("alice"));
    assert_eq!(recorded.all("x-remote-group"), ["dev", "ops"]);
}

#[tokio::test]
async fn an_upgrade_to_an_http2_only_upstream_is_an_error() {
    let pki = PkiFixture::new();
    let (upstream, _tunnels) = start_upgrading_upstream(&pki, &["h2"]).await;
    let bridge = pki.start_bridge(upstream.addr());
    let mut client = pki.client().http1(bridge.address()).await.unwrap();
    client.send(spdy(EXEC)).await.unwrap();
    assert_json_status(&client.read_response().await.unwrap(), 503);
    client.read_close().await.unwrap();
    assert!(client_requests(&upstream).is_empty());
}

#[tokio::test]
async fn an_unrequested_101_is_a_bad_gateway() {
    let pki = PkiFixture::new();
    let upstream = start_scripted(&pki, async |_, mut conn| {
        conn.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
            .await;
        conn.read_to_end().await;
    })
    .await;
    let bridge = pki.start_bridge(upstream.addr());
    let mut h1 = pki.client().http1(bridge.address()).await.unwrap();
    h1.send("GET /api HTTP/1.1\r\nHost: k\r\n\r\n")
        .await
        .unwrap();
    assert_json_status(&h1.read_response().await.unwrap(), 502);
    let h2 = pki.client().http2(bridge.address()).await.unwrap();
    assert_json_status(&h2.get("/api").await.unwrap(), 502);
}

#[tokio::test]
async fn a_request_must_be_complete_before_its_101() {
    let pki = PkiFixture::new();
    let upstream = start_scripted(&pki, async |head, mut conn| {
        if head.starts_with("POST /patient") {
            assert_eq!(conn.read(5).await, b"hello");
        }
        conn.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n")
            .await;
        if head.starts_with("POST /patient") {
            assert_eq!(conn.read(4).await, b"more");
            conn.write("tunnel").await;
        }
        conn.read_to_end().await;
    })
    .await;
    let bridge = pki.start_bridge(upstream.addr());
    let head = |path: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: k\r\nConnection: Upgrade\r\nUpgrade: x\r\n\
             Content-Length: 5\r\n\r\n"
        )
    };
    let mut client = pki.client().http1(bridge.address()).await.unwrap();
    client
        .send(head("/patient") + "hello" + "more")
        .await
        .unwrap();
    assert_eq!(client.read_head().await.unwrap().status, 101);
    expect_bytes(&mut client.into_connection(), b"tunnel").await;

    let mut client = pki.client().http1(bridge.address()).await.unwrap();
    client.send(head("/hasty") + "he").await.unwrap();
    assert_json_status(&client.read_response().await.unwrap(), 502);
    client.read_close().await.unwrap();
}

#[tokio::test]
async fn a_reset_of_one_side_closes_the_other() {
    let pki = PkiFixture::new();
    let (upstream, mut tunnels) = start_upgrading_upstream(&pki, &["http/1.1"]).await;
    let bridge = pki.start_bridge(upstream.addr());
    for client_resets in [true, false] {
        let client = pki.client().http1(bridge.address()).await.unwrap();
        let (client, server) = tunnel(client, &mut tunnels).await;
        let (resets, mut other) = if client_resets {
            (client, server)
        } else {
            (server, client)
        };
        resets.get_ref().get_ref().0.set_zero_linger().unwrap();
        drop(resets);
        // Closed without close_notify, so that the data is not taken for complete.
        assert!(other.read(&mut [0]).await.is_err());
    }
}

/// A command that ends before its stdin does: kube-apiserver closes the connection with unread
/// input, while its last output is still in flight.
#[tokio::test]
async fn the_last_output_of_an_upstream_that_has_stopped_reading_arrives() {
    let pki = PkiFixture::new();
    let (upstream, mut tunnels) = start_upgrading_upstream(&pki, &["http/1.1"]).await;
    let bridge = pki.start_bridge(upstream.addr());
    for _ in 0..10 {
        let client = pki.client().http1(bridge.address()).await.unwrap();
        let (client, mut server) = tunnel(client, &mut tunnels).await;
        let (mut output, mut input) = tokio::io::split(client);
        let (began, is_sending) = oneshot::channel();
        let sending = tokio::spawn(async move {
            let piece = vec![b'i'; 64 * 1024];
            input.write_all(&piece).await.unwrap();
            began.send(()).unwrap();
            while input.write_all(&piece).await.is_ok() {}
        });
        is_sending.await.unwrap();
        let last_output = vec![b'o'; 48 * 1024];
        server.write_all(&last_output).await.unwrap();
        server.flush().await.unwrap();
        drop(server);
        let mut received = Vec::new();
        // Finally closed without close_notify, so that it is not taken for complete.
        assert!(output.read_to_end(&mut received).await.is_err());
        assert_eq!(received.len(), last_output.len());
        sending.abort();
    }
}

#[tokio::test]
async fn a_client_that_disconnects_before_the_101_ends_the_upgrade() {
    let pki = PkiFixture::new();
    let (recorded_requests, mut is_requested) = mpsc::unbounded_channel();
    let (closed, mut is_closed) = mpsc::unbounded_channel();
    let upstream = start_scripted(&pki, move |_, mut conn| {
        let (recorded_requests, closed) = (recorded_requests.clone(), closed.clone());
        async move {
            recorded_requests.send(()).unwrap();
            assert_eq!(next_request(&mut conn).await, None);
            closed.send(()).unwrap();
        }
    })
    .await;
    let bridge = pki.start_bridge(upstream.addr());
    let mut client = pki.client().http1(bridge.address()).await.unwrap();
    client.send(spdy(EXEC)).await.unwrap();
    is_requested.recv().await.unwrap();
    drop(client);
    is_closed.recv().await.unwrap();
}

#[tokio::test]
async fn an_idle_tunnel_stays_open() {
    let pki = PkiFixture::new();
    let (upstream, mut tunnels) = start_upgrading_upstream(&pki, &["http/1.1"]).await;
    let mut config = pki.config(upstream.addr());
    config.limits.idle_timeout = Duration::from_millis(500);
    config.limits.read_header_timeout = Duration::from_millis(500);
    let bridge = pki::start(&config);
    let client = pki.client().http1(bridge.address()).await.unwrap();
    let (mut client, mut server) = tunnel(client, &mut tunnels).await;
    for _ in 0..2 {
        // Opened after the tunnel became idle, and closed because it is idle.
        let mut idle = pki.client().http1(bridge.address()).await.unwrap();
        idle.read_close().await.unwrap();
    }
    write_flushed(&mut client, b"up").await;
    expect_bytes(&mut server, b"up").await;
    write_flushed(&mut server, b"down").await;
    expect_bytes(&mut client, b"down").await;
}
