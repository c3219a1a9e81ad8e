//! Tests in memory with a paused clock: hours of waiting take no time.

use std::time::Duration;

use bytes::Bytes;
use skewbridge_spdy::FlowControl;
use skewbridge_spdy::connection::{Incoming, Stream};
use skewbridge_spdy::frame::ResetStatus;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::*;

/// Much more than all buffers on the path hold.
const FLOOD_BYTES: usize = 4 << 20;

const HOUR: Duration = Duration::from_hours(1);

/// A pod that ignores flow-control windows, like every real one.
struct Pod {
    incoming: Incoming,
    handle: Handle,
    /// Makes the pod stop without closing the connection.
    freeze: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// The two streams of a connection, as the pod sees them.
struct Pair {
    data: Stream,
    error: Stream,
}

fn pod() -> (PortForwarder, Pod) {
    let (client_end, pod_end) = duplex(64 * 1024);
    let config = Config {
        flow_control: FlowControl::Never,
        ..Config::default()
    };
    let (handle, incoming, driver) = connection::server(pod_end, config);
    let (freeze, frozen) = oneshot::channel::<()>();
    let task = tokio::spawn(async move {
        let mut driver = pin!(driver);
        tokio::select! {
            _ = &mut driver => {}
            _ = frozen => std::future::pending().await,
        }
    });
    let server = "k:6443".to_owned();
    let keep_alive = KeepAlive::default();
    let forwarder = PortForwarder::start(client_end, server, Transport::WebSocket, keep_alive);
    let freeze = Some(freeze);
    let pod = Pod {
        incoming,
        handle,
        freeze,
        task,
    };
    (forwarder, pod)
}

impl Pod {
    async fn accept(&mut self) -> Pair {
        let mut streams = Vec::new();
        for _ in 0..2 {
            let request = self.incoming.next().await.unwrap();
            streams.push(request.accept(Headers::new()).unwrap());
        }
        let data = streams.pop().unwrap();
        let error = streams.pop().unwrap();
        Pair { data, error }
    }

    fn freeze(&mut self) {
        let _ = self.freeze.take().unwrap().send(());
    }
}

/// A forwarded connection: its local end with a small buffer, the pod's streams, and the
/// result.
async fn open_forwarded(
    forwarder: &PortForwarder,
    pod: &mut Pod,
) -> (DuplexStream, Pair, JoinHandle<std::io::Result<()>>) {
    let stream = forwarder.open(Port::new(80).unwrap()).unwrap();
    let (local, inner) = duplex(1024);
    let forwarding = tokio::spawn(stream.forward(inner));
    (local, pod.accept().await, forwarding)
}

/// Sends many bytes, then ends.
fn flood(mut pair: Pair) -> JoinHandle<()> {
    tokio::spawn(async move {
        let piece = Bytes::from(vec![7; 64 * 1024]);
        for _ in 0..FLOOD_BYTES / piece.len() {
            if pair.data.sender.write(piece.clone()).await.is_err() {
                return;
            }
        }
        pair.error.sender.finish().unwrap();
        pair.data.sender.finish().unwrap();
        pair.data.sender.flushed().await;
    })
}

#[tokio::test(start_paused = true)]
async fn a_local_program_that_does_not_read_is_waited_for() {
    let (forwarder, mut pod) = pod();
    let (mut local, pair, forwarding) = open_forwarded(&forwarder, &mut pod).await;
    let flooding = flood(pair);
    sleep(HOUR).await;
    assert!(!forwarder.is_closed());
    assert!(
        forwarder.handle.is_read_paused(),
        "the forwarding ended although the local program does not read"
    );
    let mut received = Vec::new();
    local.read_to_end(&mut received).await.unwrap();
    assert_eq!(received.len(), FLOOD_BYTES);
    drop(local);
    forwarding.await.unwrap().unwrap();
    flooding.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_local_program_that_blocks_others_is_disconnected_and_the_others_continue() {
    let (forwarder, mut pod) = pod();
    let (_local, pair, stalled) = open_forwarded(&forwarder, &mut pod).await;
    let flooding = flood(pair);
    let (mut local, mut pair, forwarding) = open_forwarded(&forwarder, &mut pod).await;
    local.write_all(b"?").await.unwrap();
    assert_eq!(pair.data.receiver.read().await.unwrap().unwrap(), "?");
    pair.data.sender.write(Bytes::from("!")).await.unwrap();
    let answer = timeout(HOUR, local.read_u8()).await;
    assert_eq!(answer.expect("an answer").unwrap(), b'!');
    let error = stalled.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
    assert!(!forwarder.is_closed());
    assert!(!forwarding.is_finished());
    flooding.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_unresponsive_pod_is_detected() {
    let (forwarder, mut pod) = pod();
    let (_local, _pair, forwarding) = open_forwarded(&forwarder, &mut pod).await;
    sleep(HOUR).await;
    assert!(!forwarder.is_closed(), "an idle one is kept");
    pod.freeze();
    let cause = timeout(HOUR, forwarder.closed()).await.expect("an end");
    assert_eq!(cause, "the other side does not answer any more");
    assert!(forwarding.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_busy_with_sent_data_is_waited_for() {
    let (forwarder, mut pod) = pod();
    let (mut local, _pair, _carrying) = open_forwarded(&forwarder, &mut pod).await;
    // The pod has accepted the stream: from here on data is sent.
    local.write_all(b"?").await.unwrap();
    let seen = pod.handle.ping().await;
    seen.unwrap();
    pod.freeze();
    tokio::spawn(async move {
        let _ = local.write_all(&vec![7; FLOOD_BYTES]).await;
        std::future::pending::<()>().await;
    });
    sleep(HOUR).await;
    assert!(!forwarder.is_closed());
}

#[tokio::test(start_paused = true)]
async fn one_direction_can_end_before_the_other() {
    let (forwarder, mut pod) = pod();
    // The pod ends first.
    let (mut local, mut pair, forwarding) = open_forwarded(&forwarder, &mut pod).await;
    pair.data.sender.write(Bytes::from("bye")).await.unwrap();
    pair.data.sender.finish().unwrap();
    let mut received = Vec::new();
    local.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"bye");
    sleep(HOUR).await;
    let sent = vec![7; FLOOD_BYTES];
    let sending = tokio::spawn(async move {
        local.write_all(&sent).await.unwrap();
        local.shutdown().await.unwrap();
        local
    });
    let mut length = 0;
    while let Some(piece) = pair.data.receiver.read().await.unwrap() {
        length += piece.len();
    }
    assert_eq!(length, FLOOD_BYTES);
    forwarding.await.unwrap().unwrap();
    drop(sending.await.unwrap());
    // The local side ends first.
    let (mut local, mut pair, forwarding) = open_forwarded(&forwarder, &mut pod).await;
    local.shutdown().await.unwrap();
    assert_eq!(pair.data.receiver.read().await.unwrap(), None);
    sleep(HOUR).await;
    let flooding = flood(pair);
    let mut received = Vec::new();
    local.read_to_end(&mut received).await.unwrap();
    assert_eq!(received.len(), FLOOD_BYTES);
    forwarding.await.unwrap().unwrap();
    flooding.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_connection_closes_when_the_pod_is_done() {
    let (forwarder, mut pod) = pod();
    let (mut local, mut pair, forwarding) = open_forwarded(&forwarder, &mut pod).await;
    // As a kubelet does when the program in the pod has closed its connection.
    pair.data.sender.write(Bytes::from("bye")).await.unwrap();
    pair.error.sender.finish().unwrap();
    pair.data.sender.finish().unwrap();
    let mut received = Vec::new();
    local.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"bye");
    forwarding.await.unwrap().unwrap();
}

/// What the error stream of a reset connection contains.
enum ErrorStreamContent {
    Open,
    CleanEnd,
    Error,
}

#[tokio::test(start_paused = true)]
async fn data_received_before_a_reset_is_delivered() {
    let (forwarder, mut pod) = pod();
    let rows = [
        (ResetStatus::Cancel, ErrorStreamContent::CleanEnd, None),
        (
            ResetStatus::Cancel,
            ErrorStreamContent::Error,
            Some("no such port"),
        ),
        (
            ResetStatus::Cancel,
            ErrorStreamContent::Open,
            Some("reset the stream"),
        ),
        (
            ResetStatus::InternalError,
            ErrorStreamContent::CleanEnd,
            Some("reset the stream"),
        ),
        (
            ResetStatus::InternalError,
            ErrorStreamContent::Error,
            Some("no such port"),
        ),
    ];
    for (status, error_stream, expected) in rows {
        let (mut local, mut pair, forwarding) = open_forwarded(&forwarder, &mut pod).await;
        let last = Bytes::from(vec![7; 100_000]);
        pair.data.sender.write(last.clone()).await.unwrap();
        pair.data.sender.flushed().await;
        if matches!(error_stream, ErrorStreamContent::Error) {
            let message = Bytes::from("no such port\n");
            pair.error.sender.write(message).await.unwrap();
        }
        if !matches!(error_stream, ErrorStreamContent::Open) {
            pair.error.sender.finish().unwrap();
        }
        pair.error.sender.flushed().await;
        pair.data.sender.reset(status);
        // The client learns that the pod accepts no more before all data has been read.
        pod.handle.ping().await.unwrap();
        let _ = local.write_all(b"too late").await;
        let mut received = Vec::new();
        local.read_to_end(&mut received).await.unwrap();
        assert!(received == last, "{} bytes, {expected:?}", received.len());
        drop(local);
        let ended = forwarding.await.unwrap();
        match expected {
            None => ended.unwrap(),
            Some(expected) => {
                let error = ended.unwrap_err().to_string();
                assert!(error.contains(expected), "{error}");
            }
        }
    }
    assert!(!forwarder.is_closed());
    pod.task.abort();
}
