//! In memory, and with a clock that passes when nothing else happens: hours are no matter.

use std::time::Duration;

use bytes::Bytes;
use skewbridge_spdy::FlowControl;
use skewbridge_spdy::connection::{Incoming, Stream};
use skewbridge_spdy::frame::ResetStatus;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::*;

/// Much more than all that waits on the way.
const MUCH: usize = 4 << 20;

const HOUR: Duration = Duration::from_hours(1);

/// A pod that heeds no windows, like every real one.
struct Pod {
    incoming: Incoming,
    handle: Handle,
    /// Sent, it does nothing more, and stays.
    freeze: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// One connection, as the pod sees it.
struct Pair {
    data: Stream,
    error: Stream,
}

fn pod() -> (PortForwarder, Pod) {
    let (here, there) = duplex(64 * 1024);
    let config = Config {
        flow_control: FlowControl::Never,
        ..Config::default()
    };
    let (handle, incoming, driver) = connection::server(there, config);
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
    let forwarder = PortForwarder::over(here, server, Transport::WebSocket, keep_alive);
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

/// A connection that is carried; its local end, with little room, and how it ends.
async fn carried(
    forwarder: &PortForwarder,
    pod: &mut Pod,
) -> (DuplexStream, Pair, JoinHandle<std::io::Result<()>>) {
    let stream = forwarder.open(Port::new(80).unwrap()).unwrap();
    let (local, inner) = duplex(1024);
    let carrying = tokio::spawn(stream.carry(inner));
    (local, pod.accept().await, carrying)
}

/// Sends much, and ends.
fn flood(mut pair: Pair) -> JoinHandle<()> {
    tokio::spawn(async move {
        let piece = Bytes::from(vec![7; 64 * 1024]);
        for _ in 0..MUCH / piece.len() {
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
    let (mut local, pair, carrying) = carried(&forwarder, &mut pod).await;
    let flooding = flood(pair);
    sleep(HOUR).await;
    assert!(!forwarder.is_closed());
    assert!(forwarder.handle.is_read_paused(), "nothing kept it waiting");
    let mut came = Vec::new();
    local.read_to_end(&mut came).await.unwrap();
    assert_eq!(came.len(), MUCH);
    drop(local);
    carrying.await.unwrap().unwrap();
    flooding.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_keeps_others_waiting_is_given_up_and_they_go_on() {
    let (forwarder, mut pod) = pod();
    let (_local, pair, stalled) = carried(&forwarder, &mut pod).await;
    let flooding = flood(pair);
    let (mut local, mut pair, carrying) = carried(&forwarder, &mut pod).await;
    local.write_all(b"?").await.unwrap();
    assert_eq!(pair.data.receiver.read().await.unwrap().unwrap(), "?");
    pair.data.sender.write(Bytes::from("!")).await.unwrap();
    let answer = timeout(HOUR, local.read_u8()).await;
    assert_eq!(answer.expect("an answer").unwrap(), b'!');
    let error = stalled.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
    assert!(!forwarder.is_closed());
    assert!(!carrying.is_finished());
    flooding.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_answer_is_noticed() {
    let (forwarder, mut pod) = pod();
    let (_local, _pair, carrying) = carried(&forwarder, &mut pod).await;
    sleep(HOUR).await;
    assert!(!forwarder.is_closed(), "an idle one is kept");
    pod.freeze();
    let cause = timeout(HOUR, forwarder.closed()).await.expect("an end");
    assert_eq!(cause, "the other side does not answer any more");
    assert!(carrying.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_busy_with_what_it_was_sent_is_waited_for() {
    let (forwarder, mut pod) = pod();
    let (mut local, _pair, _carrying) = carried(&forwarder, &mut pod).await;
    // The answer to the stream has come: from here on data are sent.
    local.write_all(b"?").await.unwrap();
    let seen = pod.handle.ping().await;
    seen.unwrap();
    pod.freeze();
    tokio::spawn(async move {
        let _ = local.write_all(&vec![7; MUCH]).await;
        std::future::pending::<()>().await;
    });
    sleep(HOUR).await;
    assert!(!forwarder.is_closed());
}

#[tokio::test(start_paused = true)]
async fn the_end_of_one_direction_is_none_of_the_other() {
    let (forwarder, mut pod) = pod();
    // The pod ends first.
    let (mut local, mut pair, carrying) = carried(&forwarder, &mut pod).await;
    pair.data.sender.write(Bytes::from("bye")).await.unwrap();
    pair.data.sender.finish().unwrap();
    let mut came = Vec::new();
    local.read_to_end(&mut came).await.unwrap();
    assert_eq!(came, b"bye");
    sleep(HOUR).await;
    let sent = vec![7; MUCH];
    let sending = tokio::spawn(async move {
        local.write_all(&sent).await.unwrap();
        local.shutdown().await.unwrap();
        local
    });
    let mut length = 0;
    while let Some(piece) = pair.data.receiver.read().await.unwrap() {
        length += piece.len();
    }
    assert_eq!(length, MUCH);
    carrying.await.unwrap().unwrap();
    drop(sending.await.unwrap());
    // The local side ends first.
    let (mut local, mut pair, carrying) = carried(&forwarder, &mut pod).await;
    local.shutdown().await.unwrap();
    assert_eq!(pair.data.receiver.read().await.unwrap(), None);
    sleep(HOUR).await;
    let flooding = flood(pair);
    let mut came = Vec::new();
    local.read_to_end(&mut came).await.unwrap();
    assert_eq!(came.len(), MUCH);
    carrying.await.unwrap().unwrap();
    flooding.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_done_takes_no_more() {
    let (forwarder, mut pod) = pod();
    let (mut local, mut pair, carrying) = carried(&forwarder, &mut pod).await;
    // As a kubelet does when the program in the pod has closed its connection.
    pair.data.sender.write(Bytes::from("bye")).await.unwrap();
    pair.error.sender.finish().unwrap();
    pair.data.sender.finish().unwrap();
    let mut came = Vec::new();
    local.read_to_end(&mut came).await.unwrap();
    assert_eq!(came, b"bye");
    carrying.await.unwrap().unwrap();
}

/// What the pod says of a connection that it resets.
enum Words {
    None,
    AllIsWell,
    Error,
}

#[tokio::test(start_paused = true)]
async fn what_came_before_a_reset_is_delivered() {
    let (forwarder, mut pod) = pod();
    let rows = [
        (ResetStatus::Cancel, Words::AllIsWell, None),
        (ResetStatus::Cancel, Words::Error, Some("no such port")),
        (ResetStatus::Cancel, Words::None, Some("reset the stream")),
        (
            ResetStatus::InternalError,
            Words::AllIsWell,
            Some("reset the stream"),
        ),
        (
            ResetStatus::InternalError,
            Words::Error,
            Some("no such port"),
        ),
    ];
    for (status, words, expected) in rows {
        let (mut local, mut pair, carrying) = carried(&forwarder, &mut pod).await;
        let last = Bytes::from(vec![7; 100_000]);
        pair.data.sender.write(last.clone()).await.unwrap();
        pair.data.sender.flushed().await;
        if matches!(words, Words::Error) {
            let told = Bytes::from("no such port\n");
            pair.error.sender.write(told).await.unwrap();
        }
        if !matches!(words, Words::None) {
            pair.error.sender.finish().unwrap();
        }
        pair.error.sender.flushed().await;
        pair.data.sender.reset(status);
        // It is known here that the pod takes no more before all has been read.
        pod.handle.ping().await.unwrap();
        let _ = local.write_all(b"too late").await;
        let mut came = Vec::new();
        local.read_to_end(&mut came).await.unwrap();
        assert!(came == last, "{} bytes, {expected:?}", came.len());
        drop(local);
        let ended = carrying.await.unwrap();
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
