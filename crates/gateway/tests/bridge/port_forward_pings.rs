//! Port-forwards are SPDY end to end and are relayed by the bridge. The bridge injects its own
//! pings between the frames on the side without WebSocket; neither end receives the pings of the other
//! side.

use std::time::Duration;

use bytes::BytesMut;
use skewbridge_remotecommand::Protocol;
use skewbridge_testkit::{Connection, TEST_TIMEOUT, eventually};
use skewbridge_websocket::{Control, Encoder, Event, Role};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::support::pki::PkiFixture;
use crate::support::spdy_frame::{Frame, PING};
use crate::support::spdy_upstream::{
    FORWARD, SpdyUpstream, VERSION_WITHOUT_TRANSLATION, WebSocket, has_metric, start_bridge,
    upgrade_request,
};
use crate::support::websocket_upstream::{
    self, WebSocketServer, WebSocketUpstream, start_bridge_with,
};

const PING_INTERVAL: Duration = Duration::from_millis(200);

/// A DATA frame of this many bytes.
fn data(length: u8) -> Vec<u8> {
    let mut frame = vec![0, 0, 0, 1, 0, 0, 0, length];
    frame.extend((0..length).map(|it| it ^ 0x80));
    frame
}

const GO_AWAY: &[u8] = &[0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0];
/// A `SYN_STREAM`; its header block is never decoded here.
const SYN_STREAM: &[u8] = &[0x80, 3, 0, 1, 0, 0, 0, 11, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 9];
/// The first ping of kubectl.
const CLIENT_PING: &[u8] = &[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1];

async fn start_bridge_with_pings(
    pki: &PkiFixture,
    cluster: &SpdyUpstream,
) -> skewbridge_gateway::Handle {
    start_bridge(pki, cluster, |config| {
        config.streams.ping_interval = PING_INTERVAL;
    })
    .await
}

/// A port-forward over WebSocket, and its end at the node.
async fn forward(
    pki: &PkiFixture,
    cluster: &mut SpdyUpstream,
    bridge: &skewbridge_gateway::Handle,
) -> (WebSocket, Connection) {
    let mut http = pki.client().http1(bridge.address()).await.unwrap();
    http.send(upgrade_request(FORWARD, "SPDY/3.1+portforward.k8s.io", ""))
        .await
        .unwrap();
    assert_eq!(http.read_head().await.unwrap().status, 101);
    let client = WebSocket::accept(http.into_connection(), Protocol::V5);
    (client, cluster.next_connection().await)
}

/// Answers pings like moby/spdystream until `pings` have arrived; returns all other frames.
async fn answer_pings(io: &mut Connection, mut pings: usize) -> Vec<Vec<u8>> {
    let mut others = Vec::new();
    while pings > 0 {
        let frame = Frame::read(io).await.expect("a whole frame");
        if frame.control_type() != Some(PING) {
            others.push(frame.0);
            continue;
        }
        // Byte by byte: the frame's owner is known only at its last byte.
        for byte in &frame.0 {
            io.write_all(&[*byte]).await.unwrap();
            io.flush().await.unwrap();
            tokio::task::yield_now().await;
        }
        if frame.0 != CLIENT_PING {
            pings -= 1;
        }
    }
    others
}

#[tokio::test]
async fn an_idle_port_forward_is_pinged_on_both_sides() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge_with_pings(&pki, &cluster).await;
    let (mut client, mut server_io) = forward(&pki, &mut cluster, &bridge).await;
    client.binary(&data(3)).await;
    client.binary(CLIENT_PING).await;
    let node = tokio::spawn(async move {
        let others = answer_pings(&mut server_io, 20).await;
        assert_eq!(others, [data(3)]);
        server_io.write_all(&data(5)).await.unwrap();
        server_io.shutdown().await.unwrap();
    });
    let mut arrived = Vec::new();
    let code = timeout(TEST_TIMEOUT, async {
        loop {
            match client.event().await.unwrap() {
                Event::Chunk(piece) => arrived.extend_from_slice(&piece.bytes),
                Event::Control(Control::Close(Some(close))) => break close.code().number(),
                Event::Control(_) => {}
            }
        }
    })
    .await
    .unwrap();
    assert_eq!(code, 1000);
    assert_eq!(
        arrived,
        [CLIENT_PING, &data(5)].concat(),
        "frames other than the bridge's pings"
    );
    assert!(client.pings >= 2, "{}", client.pings);
    node.await.unwrap();
}

#[tokio::test]
async fn a_slowly_sent_frame_is_not_interrupted_by_a_ping() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge_with_pings(&pki, &cluster).await;
    let (mut client, mut server_io) = forward(&pki, &mut cluster, &bridge).await;
    let node = tokio::spawn(async move { answer_pings(&mut server_io, 25).await });
    let mut sent = Vec::new();
    timeout(TEST_TIMEOUT, async {
        while !node.is_finished() {
            // No frame ends where a WebSocket message ends.
            let frame = data(40);
            let (first, second) = frame.split_at(13);
            if sent.is_empty() {
                client.binary(first).await;
            }
            tokio::time::sleep(PING_INTERVAL / 10).await;
            client.binary(&[second, first].concat()).await;
            sent.push(frame.clone());
        }
    })
    .await
    .expect("pings between frames");
    let arrived = node.await.unwrap();
    // Five at once, because the bridge does not know which have been processed.
    assert!(
        (4..=sent.len()).contains(&arrived.len()),
        "{}",
        arrived.len()
    );
    assert!(arrived.iter().all(|frame| *frame == data(40)));
}

#[tokio::test]
async fn a_port_forward_detects_an_unresponsive_node() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge_with_pings(&pki, &cluster).await;
    let (mut client, mut server_io) = forward(&pki, &mut cluster, &bridge).await;
    client.binary(&data(3)).await;
    assert_eq!(answer_pings(&mut server_io, 7).await, [data(3)]);
    // Also in the middle of a frame, if a ping was sent before it.
    client.binary(SYN_STREAM).await;
    client.binary(&data(9)[..10]).await;
    let close = timeout(TEST_TIMEOUT, async {
        loop {
            if let Event::Control(Control::Close(Some(close))) = client.event().await.unwrap() {
                break close;
            }
        }
    })
    .await
    .expect("the unresponsive node is detected");
    assert_eq!(close.code().number(), 1011);
    assert!(close.reason().contains("ping"), "{}", close.reason());
    drop((client, server_io));
    let line = r#"skewbridge_streams_total{kind="portforward",client="websocket",upstream="spdy",outcome="cut_off",result="disconnected"} 1"#;
    eventually(line, TEST_TIMEOUT, async || has_metric(&bridge, line).await).await;
}

#[tokio::test]
async fn an_end_that_has_stopped_reading_is_not_pinged() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge_with_pings(&pki, &cluster).await;
    let (mut client, mut server_io) = forward(&pki, &mut cluster, &bridge).await;
    client.binary(GO_AWAY).await;
    let mut bytes = vec![0; GO_AWAY.len()];
    server_io.read_exact(&mut bytes).await.unwrap();
    // Longer than the ping timeout.
    let more = timeout(PING_INTERVAL * 10, async {
        tokio::select! {
            read = server_io.read_u8() => format!("{read:?}"),
            received = client.event() => format!("{received:?}"),
        }
    });
    assert_eq!(more.await.ok(), None);
    server_io.write_all(&data(5)).await.unwrap();
    server_io.flush().await.unwrap();
    assert_eq!(client.next_chunk().await.bytes, data(5));
}

/// A SPDY client over an upstream that carries only WebSocket.
async fn forward_over_websocket(
    pki: &PkiFixture,
    upstream: &mut WebSocketUpstream,
    bridge: &skewbridge_gateway::Handle,
) -> (Connection, WebSocketServer) {
    let mut http = pki.client().http1(bridge.address()).await.unwrap();
    http.send(websocket_upstream::upgrade_request(
        FORWARD,
        "portforward.k8s.io",
    ))
    .await
    .unwrap();
    assert_eq!(http.read_head().await.unwrap().status, 101);
    let client_io = http.into_connection();
    (
        client_io,
        WebSocketServer::accept(upstream.next_connection().await),
    )
}

#[tokio::test]
async fn a_spdy_client_is_pinged_too() {
    let pki = PkiFixture::new();
    let mut upstream = WebSocketUpstream::start(&pki).await;
    let bridge = start_bridge_with(&pki, &upstream, |config| {
        config.streams.ping_interval = PING_INTERVAL;
    })
    .await;
    let (mut client_io, mut server_io) = forward_over_websocket(&pki, &mut upstream, &bridge).await;
    let server = tokio::spawn(async move {
        let mut arrived = Vec::new();
        let code = loop {
            match server_io.decoder.decode(&mut server_io.input).unwrap() {
                Some(Event::Chunk(piece)) => arrived.extend_from_slice(&piece.bytes),
                Some(Event::Control(Control::Ping(payload))) => {
                    let mut pong = BytesMut::new();
                    Encoder::new(Role::Server).control(&Control::Pong(payload), &mut pong);
                    server_io.io.write_all(&pong).await.unwrap();
                    server_io.io.flush().await.unwrap();
                }
                Some(Event::Control(Control::Close(Some(close)))) => break close.code(),
                Some(Event::Control(_)) => {}
                None => assert!(server_io.io.read_buf(&mut server_io.input).await.unwrap() > 0),
            }
        };
        (arrived, code.number())
    });
    let mut ids = Vec::new();
    for _ in 0..4 {
        let frame = Frame::read(&mut client_io).await.unwrap();
        assert_eq!(frame.control_type(), Some(PING));
        ids.push(frame.0[11]);
        client_io
            .write_all(&[&frame.0[..], &data(2)].concat())
            .await
            .unwrap();
        client_io.flush().await.unwrap();
    }
    assert!(
        ids.iter().all(|id| id % 2 == 0),
        "ping ids of a server are even: {ids:?}"
    );
    // Then the client stops answering.
    let (arrived, code) = timeout(TEST_TIMEOUT, server).await.unwrap().unwrap();
    assert_eq!(arrived, data(2).repeat(4));
    assert_eq!(code, 1011);
    let line = r#"skewbridge_streams_total{kind="portforward",client="spdy",upstream="websocket",outcome="client_left",result="client_left"} 1"#;
    eventually(line, TEST_TIMEOUT, async || has_metric(&bridge, line).await).await;
}
