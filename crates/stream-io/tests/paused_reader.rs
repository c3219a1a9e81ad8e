//! A client whose reader pauses, with a server that waits for it or has ended.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use skewbridge_stream_io::{PingPolicy, WebSocketConn, WebSocketKeepalive};
use skewbridge_websocket::Role;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::{Instant, sleep_until, timeout};

const HOUR: Duration = Duration::from_hours(1);

fn keepalive() -> WebSocketKeepalive {
    let (interval, timeout) = (Duration::from_secs(10), Duration::from_secs(50));
    WebSocketKeepalive::new(Instant::now(), interval, timeout)
}

fn client(io: DuplexStream) -> WebSocketConn<DuplexStream> {
    let keepalive = keepalive().with_policy(PingPolicy::AvoidNearEof);
    WebSocketConn::new(io, BytesMut::new(), Role::Client, keepalive)
}

/// The client has no capacity for more.
async fn check_while_not_reading(client: &mut WebSocketConn<DuplexStream>) {
    assert!(
        client.check_keepalive(Instant::now(), false),
        "the client considers the server dead"
    );
    let flushed = poll_fn(|cx| client.poll_flush(cx)).await;
    assert!(flushed.is_ok(), "{flushed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_pings_gets_pongs_while_the_reader_pauses() {
    let (local, remote) = tokio::io::duplex(1 << 16);
    let mut client = client(remote);
    let mut server = WebSocketConn::new(local, BytesMut::new(), Role::Server, keepalive());
    // The ping is received before the client pauses.
    sleep_until(server.next_deadline()).await;
    assert!(server.check_keepalive(Instant::now(), true));
    server.write_binary(Bytes::from_static(b"a line"));
    poll_fn(|cx| server.poll_flush(cx)).await.unwrap();
    let chunk = poll_fn(|cx| client.poll_chunk(cx)).await;
    assert_eq!(chunk.ok().unwrap().bytes, "a line");
    let start = Instant::now();
    while start.elapsed() < HOUR {
        sleep_until(server.next_deadline().min(client.next_deadline())).await;
        check_while_not_reading(&mut client).await;
        // Pongs are not message chunks.
        poll_fn(|cx| {
            assert!(server.poll_chunk(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        assert!(
            server.check_keepalive(Instant::now(), true),
            "the server considers the client dead"
        );
        poll_fn(|cx| server.poll_flush(cx)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_pinged_gets_nothing() {
    let (mut server, remote) = tokio::io::duplex(1 << 16);
    let mut client = client(remote);
    server.write_all(b"\x82\x01x").await.unwrap();
    let chunk = poll_fn(|cx| client.poll_chunk(cx)).await;
    assert_eq!(chunk.ok().unwrap().bytes, "x");
    let start = Instant::now();
    while start.elapsed() < HOUR {
        sleep_until(client.next_deadline()).await;
        check_while_not_reading(&mut client).await;
    }
    let read = timeout(Duration::from_secs(1), server.read_u8()).await;
    assert!(read.is_err(), "{read:?}");
}
