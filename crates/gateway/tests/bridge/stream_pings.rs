//! Pings to a node that uses moby/spdystream. That library distributes received frames to five
//! workers: data to the worker of its stream, pings round-robin. The worker of a stream that the
//! process does not read blocks, together with the pings queued to it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use skewbridge_remotecommand::{Input, Protocol};
use skewbridge_testkit::{Connection, TEST_TIMEOUT, eventually};
use tokio::io::{AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use crate::support::pki::PkiFixture;
use crate::support::spdy_frame::{Frame, PING};
use crate::support::spdy_upstream::{
    EXEC, Node, SUCCESS, SpdyUpstream, VERSION_WITHOUT_TRANSLATION, WebSocket, start_bridge,
};

const WORKERS: usize = 5;
/// The worker of stdin, the second stream of a client.
const STDIN_WORKER: usize = 3;

const SETTINGS: u16 = 4;
const WINDOW_UPDATE: u16 = 9;

/// Emulates the workers of spdystream between a bridge and a node.
#[derive(Clone)]
struct SpdystreamWorkers(Arc<Mutex<State>>);

struct State {
    /// The worker that gets the next frame without a stream.
    turn: usize,
    /// The pings queued to the worker of stdin while stdin is not read.
    held: Option<Vec<Frame>>,
    /// No ping is answered any more.
    silent: bool,
    to_bridge: mpsc::UnboundedSender<Frame>,
}

impl SpdystreamWorkers {
    /// Returns the connection of the node.
    fn between(bridge: Connection) -> (Self, DuplexStream) {
        let (server_io, node) = tokio::io::duplex(1 << 20);
        let (to_bridge, frames) = mpsc::unbounded_channel();
        let workers = Self(Arc::new(Mutex::new(State {
            turn: 0,
            held: Some(Vec::new()),
            silent: false,
            to_bridge: to_bridge.clone(),
        })));
        let (from_bridge, writer) = tokio::io::split(bridge);
        let (from_node, to_node) = tokio::io::split(server_io);
        tokio::spawn(workers.clone().relay_from_bridge(from_bridge, to_node));
        tokio::spawn(relay_from_node(from_node, to_bridge));
        tokio::spawn(relay_to_bridge(frames, writer));
        (workers, node)
    }

    async fn relay_from_bridge(
        self,
        mut from: ReadHalf<Connection>,
        mut to: WriteHalf<DuplexStream>,
    ) {
        while let Some(frame) = Frame::read(&mut from).await {
            match frame.control_type() {
                Some(PING) => self.ping(frame),
                // The node of this test does not use windows.
                Some(SETTINGS | WINDOW_UPDATE) => {
                    self.next();
                }
                _ => {
                    let _ = to.write_all(&frame.0).await;
                }
            }
        }
    }

    fn next(&self) -> usize {
        let mut state = self.0.lock().unwrap();
        let turn = state.turn;
        state.turn = (turn + 1) % WORKERS;
        turn
    }

    fn ping(&self, frame: Frame) {
        let worker = self.next();
        let mut state = self.0.lock().unwrap();
        if state.silent {
            return;
        }
        match &mut state.held {
            Some(held) if worker == STDIN_WORKER => held.push(frame),
            _ => drop(state.to_bridge.send(frame)),
        }
    }

    /// How many pings are queued.
    fn queued_pings(&self) -> usize {
        self.0.lock().unwrap().held.as_ref().map_or(0, Vec::len)
    }

    /// The process reads stdin.
    fn release(&self) {
        let mut state = self.0.lock().unwrap();
        for frame in state.held.take().unwrap_or_default() {
            let _ = state.to_bridge.send(frame);
        }
    }

    fn stop_answering(&self) {
        self.0.lock().unwrap().silent = true;
    }
}

async fn relay_from_node(mut from: ReadHalf<DuplexStream>, to: mpsc::UnboundedSender<Frame>) {
    while let Some(frame) = Frame::read(&mut from).await {
        if !matches!(frame.control_type(), Some(SETTINGS | WINDOW_UPDATE)) {
            let _ = to.send(frame);
        }
    }
}

async fn relay_to_bridge(
    mut frames: mpsc::UnboundedReceiver<Frame>,
    mut writer: WriteHalf<Connection>,
) {
    while let Some(Frame(bytes)) = frames.recv().await {
        if writer
            .write_all(&bytes)
            .await
            .and(writer.flush().await)
            .is_err()
        {
            return;
        }
    }
}

/// Bytes sent to a command that does not read them: above and below what a node has to buffer.
const UNREAD_BYTES: [usize; 2] = [200 * 1024, 100];

#[tokio::test]
async fn a_ping_queued_behind_unread_stdin_does_not_end_the_stream() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
    let bridge = start_bridge(&pki, &cluster, |config| {
        config.streams.ping_interval = Duration::from_secs(1);
    })
    .await;
    for size in UNREAD_BYTES {
        let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
        let (workers, io) = SpdystreamWorkers::between(cluster.next_connection().await);
        let mut node = Node::accept(io, 4).await;
        client.write(Input::Stdin, &vec![7; size]).await.unwrap();
        let transcript = tokio::spawn(async move { client.read_to_end().await });
        eventually("pings are queued", TEST_TIMEOUT, async || {
            assert!(!transcript.is_finished(), "{size}: cut off");
            workers.queued_pings() >= 3
        })
        .await;
        workers.release();
        let mut read = 0;
        while read < size {
            read += node.read("stdin").await.unwrap().len();
        }
        node.end(SUCCESS).await;
        let transcript = transcript.await.unwrap();
        assert!(transcript.looks_successful(), "{size}: {transcript:?}");
    }
}

/// A command whose node is pinged every second.
struct PingFixture {
    client: WebSocket,
    workers: SpdystreamWorkers,
    node: Node,
    /// Keeps the other parts of the fixture alive.
    _kept: (PkiFixture, skewbridge_gateway::Handle, SpdyUpstream),
}

impl PingFixture {
    async fn start() -> Self {
        let pki = PkiFixture::new();
        let mut cluster = SpdyUpstream::with_version(&pki, VERSION_WITHOUT_TRANSLATION).await;
        let bridge = start_bridge(&pki, &cluster, |config| {
            config.streams.ping_interval = Duration::from_secs(1);
        })
        .await;
        let client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
        let (workers, io) = SpdystreamWorkers::between(cluster.next_connection().await);
        let node = Node::accept(io, 4).await;
        Self {
            client,
            workers,
            node,
            _kept: (pki, bridge, cluster),
        }
    }
}

#[tokio::test]
async fn a_node_that_has_read_everything_and_becomes_silent_is_detected() {
    let PingFixture {
        mut client,
        workers,
        mut node,
        _kept,
    } = PingFixture::start().await;
    let size = UNREAD_BYTES[0];
    client.write(Input::Stdin, &vec![7; size]).await.unwrap();
    let transcript = tokio::spawn(async move { client.read_to_end().await });
    // After two queued pings, every worker has got at least one.
    eventually("pings are queued", TEST_TIMEOUT, async || {
        workers.queued_pings() >= 2
    })
    .await;
    let mut read = 0;
    while read < size {
        read += node.read("stdin").await.unwrap().len();
    }
    // The answers to these pings prove that everything before them was read.
    workers.release();
    workers.stop_answering();
    let transcript = tokio::time::timeout(TEST_TIMEOUT, transcript)
        .await
        .unwrap()
        .unwrap();
    assert!(
        transcript.error.contains("connection was lost"),
        "{transcript:?}"
    );
    assert_eq!(transcript.code, Some(1011));
}

#[tokio::test]
async fn a_node_that_is_lost_during_interactive_input_is_detected() {
    /// Faster than typing, and fewer keys in a tenth of the ping interval than count as bulk data.
    const KEY_INTERVAL: Duration = Duration::from_millis(10);
    let PingFixture {
        mut client,
        workers,
        mut node,
        _kept,
    } = PingFixture::start().await;
    workers.release();
    for _ in 0..150 {
        client.write(Input::Stdin, b"x").await.unwrap();
        node.read("stdin").await.unwrap();
        node.write("stdout", "x").await;
        tokio::time::sleep(KEY_INTERVAL).await;
    }
    workers.stop_answering();
    let transcript = tokio::time::timeout(TEST_TIMEOUT, client.read_to_end()).await;
    let transcript = transcript.expect("the lost node is detected");
    assert!(
        transcript.error.contains("connection was lost"),
        "{transcript:?}"
    );
    assert_eq!(transcript.code, Some(1011));
}
