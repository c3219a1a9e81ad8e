//! Streams that the bridge ends: an end of the stream does not answer, or no data has passed for the
//! idle timeout.

use std::time::Duration;

use skewbridge_remotecommand::Protocol;
use skewbridge_testkit::TEST_TIMEOUT;
use skewbridge_websocket::{Control, Event};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::support::pki::PkiFixture;
use crate::support::spdy_upstream::{
    EXEC, FORWARD, SpdyUpstream, VERSION_WITHOUT_TRANSLATION, WebSocket, start_bridge,
    upgrade_request, wait_for_stream_result,
};

#[tokio::test]
async fn an_unresponsive_node_is_detected() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |config| {
        config.streams.ping_interval = Duration::from_millis(400);
    })
    .await;
    let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
    // The connection stays open and is never read.
    let _unresponsive = cluster.next_connection().await;
    let transcript = timeout(Duration::from_secs(15), client.read_to_end())
        .await
        .unwrap();
    assert!(
        transcript.error.contains("connection was lost"),
        "{transcript:?}"
    );
    assert_eq!(transcript.code, Some(1011));
}

#[tokio::test]
async fn a_client_that_answers_no_pings_is_disconnected() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |config| {
        config.streams.ping_interval = Duration::from_millis(100);
    })
    .await;
    let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
    client.answers_pings = false;
    let mut node = cluster.next_command(4).await;
    let stdin = &mut node.streams.get_mut("stdin").unwrap().receiver;
    let read = timeout(Duration::from_secs(15), stdin.read())
        .await
        .unwrap();
    assert!(read.is_err(), "{read:?}");
}

#[tokio::test]
async fn an_idle_stream_is_closed_with_the_reason() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |config| {
        config.streams.idle_timeout = Duration::from_millis(500);
        config.streams.ping_interval = Duration::from_millis(100);
    })
    .await;
    let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
    let _node = cluster.next_command(4).await;
    let transcript = timeout(Duration::from_secs(15), client.read_to_end())
        .await
        .unwrap();
    assert!(
        transcript
            .error
            .contains("--streaming-connection-idle-timeout"),
        "{transcript:?}"
    );
    assert_eq!(transcript.code, Some(1001));
    drop(client);
    wait_for_stream_result(&bridge, "exec", "idle").await;
}

#[tokio::test]
async fn pings_inside_a_port_forward_do_not_reset_its_idle_timeout() {
    const PING: &[u8] = &[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1];
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |config| {
        config.streams.idle_timeout = Duration::from_millis(500);
        config.streams.ping_interval = Duration::from_millis(100);
    })
    .await;
    let mut http = pki.client().http1(bridge.address()).await.unwrap();
    http.send(upgrade_request(FORWARD, "SPDY/3.1+portforward.k8s.io", ""))
        .await
        .unwrap();
    assert_eq!(http.read_head().await.unwrap().status, 101);
    let mut client = WebSocket::accept(http.into_connection(), Protocol::V5);
    let mut server_io = cluster.next_connection().await;
    // kubectl pings and the node answers.
    client.binary(PING).await;
    let answering = tokio::spawn(async move {
        let mut ping = [0; PING.len()];
        while server_io.read_exact(&mut ping).await.is_ok() {
            // Limits the rate of the pings; nothing is waited for.
            tokio::time::sleep(Duration::from_millis(50)).await;
            if server_io.write_all(&ping).await.is_err() || server_io.flush().await.is_err() {
                break;
            }
        }
    });
    let mut answers = 0;
    let code = timeout(TEST_TIMEOUT, async {
        loop {
            match client.event().await.unwrap() {
                Event::Chunk(piece) => {
                    answers += piece.bytes.len();
                    client.binary(PING).await;
                }
                Event::Control(Control::Close(Some(close))) => break close.code().number(),
                Event::Control(_) => {}
            }
        }
    })
    .await
    .expect("ended");
    assert_eq!(code, 1001);
    assert!(answers >= PING.len());
    drop(client);
    answering.abort();
    wait_for_stream_result(&bridge, "portforward", "idle").await;
}
