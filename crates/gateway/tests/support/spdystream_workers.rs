//! A node whose frames pass the workers of spdystream.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use skewbridge_remotecommand::Protocol;
use skewbridge_testkit::Connection;
use tokio::io::{AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use crate::support::pki::PkiFixture;
use crate::support::spdy_frame::{Frame, PING};
use crate::support::spdy_upstream::{
    EXEC, Node, SpdyUpstream, VERSION_WITHOUT_TRANSLATION, WebSocket, start_bridge,
};

const WORKERS: usize = 5;

/// The worker of stdin, the second stream of a client.
const STDIN_WORKER: usize = 3;

const SETTINGS: u16 = 4;

const WINDOW_UPDATE: u16 = 9;

/// Emulates the workers of spdystream between a bridge and a node.
#[derive(Clone)]
pub(crate) struct SpdystreamWorkers(pub(crate) Arc<Mutex<State>>);

pub(crate) struct State {
    /// The worker that gets the next frame without a stream.
    pub(crate) turn: usize,
    /// The pings queued to the worker of stdin while stdin is not read.
    pub(crate) held: Option<Vec<Frame>>,
    /// No ping is answered any more.
    pub(crate) unresponsive: bool,
    pub(crate) to_bridge: mpsc::UnboundedSender<Frame>,
}

impl SpdystreamWorkers {
    /// Returns the connection of the node.
    pub(crate) fn between(bridge: Connection) -> (Self, DuplexStream) {
        let (server_io, node) = tokio::io::duplex(1 << 20);
        let (to_bridge, frames) = mpsc::unbounded_channel();
        let workers = Self(Arc::new(Mutex::new(State {
            turn: 0,
            held: Some(Vec::new()),
            unresponsive: false,
            to_bridge: to_bridge.clone(),
        })));
        let (from_bridge, writer) = tokio::io::split(bridge);
        let (from_node, to_node) = tokio::io::split(server_io);
        tokio::spawn(workers.clone().relay_from_bridge(from_bridge, to_node));
        tokio::spawn(relay_from_node(from_node, to_bridge));
        tokio::spawn(relay_to_bridge(frames, writer));
        (workers, node)
    }

    pub(crate) async fn relay_from_bridge(
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

    pub(crate) fn next(&self) -> usize {
        let mut state = self.0.lock().unwrap();
        let turn = state.turn;
        state.turn = (turn + 1) % WORKERS;
        turn
    }

    pub(crate) fn ping(&self, frame: Frame) {
        let worker = self.next();
        let mut state = self.0.lock().unwrap();
        if state.unresponsive {
            return;
        }
        match &mut state.held {
            Some(held) if worker == STDIN_WORKER => held.push(frame),
            _ => drop(state.to_bridge.send(frame)),
        }
    }

    /// How many pings are queued.
    pub(crate) fn queued_pings(&self) -> usize {
        self.0.lock().unwrap().held.as_ref().map_or(0, Vec::len)
    }

    /// The process reads stdin.
    pub(crate) fn release(&self) {
        let mut state = self.0.lock().unwrap();
        for frame in state.held.take().unwrap_or_default() {
            let _ = state.to_bridge.send(frame);
        }
    }

    pub(crate) fn stop_answering(&self) {
        self.0.lock().unwrap().unresponsive = true;
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

/// A command whose node is pinged every second.
pub(crate) struct PingFixture {
    pub(crate) client: WebSocket,
    pub(crate) workers: SpdystreamWorkers,
    pub(crate) node: Node,
    /// Keeps the other parts of the fixture alive.
    pub(crate) _kept: (PkiFixture, skewbridge_gateway::Handle, SpdyUpstream),
}

impl PingFixture {
    pub(crate) async fn start() -> Self {
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
