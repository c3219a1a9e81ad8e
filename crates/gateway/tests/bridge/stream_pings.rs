//! Pings to a node whose library is moby/spdystream: that hands what it reads to five
//! workers, data to that of its stream, pings to each in turn. The worker of a stream
//! that nobody reads stands still, and the pings that it was given with it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use skewbridge_remotecommand::{Input, Protocol};
use skewbridge_testkit::{Connection, TEST_TIMEOUT, eventually};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf,
};
use tokio::sync::mpsc;

use crate::support::pki::PkiFixture;
use crate::support::spdy_upstream::{
    EXEC, Node, OLD, SUCCESS, SpdyUpstream, WebSocket, start_bridge,
};

const WORKERS: usize = 5;
/// Which of them has stdin, the second stream of a client.
const OF_STDIN: usize = 3;

const SETTINGS: u16 = 4;
pub(crate) const PING: u16 = 6;
const WINDOW_UPDATE: u16 = 9;

/// A frame as it came.
pub(crate) struct Frame(pub(crate) Vec<u8>);

impl Frame {
    pub(crate) async fn read(io: &mut (impl AsyncRead + Unpin)) -> Option<Self> {
        let mut frame = vec![0; 8];
        io.read_exact(&mut frame).await.ok()?;
        let length = u32::from_be_bytes([0, frame[5], frame[6], frame[7]]) as usize;
        frame.resize(8 + length, 0);
        io.read_exact(&mut frame[8..]).await.ok()?;
        Some(Self(frame))
    }

    /// `None` for data.
    pub(crate) fn control(&self) -> Option<u16> {
        let kind = u16::from_be_bytes([self.0[2], self.0[3]]);
        (self.0[0] & 0x80 != 0).then_some(kind)
    }
}

/// Stands between a bridge and a node.
#[derive(Clone)]
struct Workers(Arc<Mutex<State>>);

struct State {
    /// Whose turn it is to get what belongs to no stream.
    turn: usize,
    /// Those that wait for the reader of stdin, while there is none.
    held: Option<Vec<Frame>>,
    /// Nothing is answered any more.
    silent: bool,
    to_bridge: mpsc::UnboundedSender<Frame>,
}

impl Workers {
    /// Gives the connection of the node.
    fn before(bridge: Connection) -> (Self, DuplexStream) {
        let (there, node) = tokio::io::duplex(1 << 20);
        let (to_bridge, frames) = mpsc::unbounded_channel();
        let workers = Self(Arc::new(Mutex::new(State {
            turn: 0,
            held: Some(Vec::new()),
            silent: false,
            to_bridge: to_bridge.clone(),
        })));
        let (from_bridge, writer) = tokio::io::split(bridge);
        let (from_node, to_node) = tokio::io::split(there);
        tokio::spawn(workers.clone().hear_bridge(from_bridge, to_node));
        tokio::spawn(hear_node(from_node, to_bridge));
        tokio::spawn(tell_bridge(frames, writer));
        (workers, node)
    }

    async fn hear_bridge(self, mut from: ReadHalf<Connection>, mut to: WriteHalf<DuplexStream>) {
        while let Some(frame) = Frame::read(&mut from).await {
            match frame.control() {
                Some(PING) => self.ping(frame),
                // No windows here.
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
            Some(held) if worker == OF_STDIN => held.push(frame),
            _ => drop(state.to_bridge.send(frame)),
        }
    }

    /// How many pings wait.
    fn held(&self) -> usize {
        self.0.lock().unwrap().held.as_ref().map_or(0, Vec::len)
    }

    /// Somebody reads stdin.
    fn go_on(&self) {
        let mut state = self.0.lock().unwrap();
        for frame in state.held.take().unwrap_or_default() {
            let _ = state.to_bridge.send(frame);
        }
    }

    fn fall_silent(&self) {
        self.0.lock().unwrap().silent = true;
    }
}

async fn hear_node(mut from: ReadHalf<DuplexStream>, to: mpsc::UnboundedSender<Frame>) {
    while let Some(frame) = Frame::read(&mut from).await {
        if !matches!(frame.control(), Some(SETTINGS | WINDOW_UPDATE)) {
            let _ = to.send(frame);
        }
    }
}

async fn tell_bridge(
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

/// What a command is sent that does not read it, and which it must get: more than
/// nobody has to take, and less.
const UNREAD: [usize; 2] = [200 * 1024, 100];

#[tokio::test]
async fn a_ping_behind_what_nobody_reads_does_not_end_a_stream() {
    let pki = PkiFixture::new();
    let mut cluster = SpdyUpstream::with_version(&pki, OLD).await;
    let bridge = start_bridge(&pki, &cluster, |config| {
        config.streams.ping_interval = Duration::from_secs(1);
    })
    .await;
    for size in UNREAD {
        let mut client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
        let (workers, io) = Workers::before(cluster.connection().await);
        let mut node = Node::over(io, 4).await;
        client.write(Input::Stdin, &vec![7; size]).await.unwrap();
        let story = tokio::spawn(async move { client.all().await });
        eventually("pings wait", TEST_TIMEOUT, async || {
            assert!(!story.is_finished(), "{size}: cut off");
            workers.held() >= 3
        })
        .await;
        workers.go_on();
        let mut read = 0;
        while read < size {
            read += node.read("stdin").await.unwrap().len();
        }
        node.end(SUCCESS).await;
        let story = story.await.unwrap();
        assert!(story.looks_successful(), "{size}: {story:?}");
    }
}

/// A command whose node is pinged every second.
struct Pinged {
    client: WebSocket,
    workers: Workers,
    node: Node,
    /// What the others need.
    _kept: (PkiFixture, skewbridge_gateway::Handle, SpdyUpstream),
}

impl Pinged {
    async fn start() -> Self {
        let pki = PkiFixture::new();
        let mut cluster = SpdyUpstream::with_version(&pki, OLD).await;
        let bridge = start_bridge(&pki, &cluster, |config| {
            config.streams.ping_interval = Duration::from_secs(1);
        })
        .await;
        let client = WebSocket::open(&pki.client(), bridge.address(), EXEC, Protocol::V5).await;
        let (workers, io) = Workers::before(cluster.connection().await);
        let node = Node::over(io, 4).await;
        Self {
            client,
            workers,
            node,
            _kept: (pki, bridge, cluster),
        }
    }
}

#[tokio::test]
async fn a_node_that_has_taken_all_and_falls_silent_is_noticed() {
    let Pinged {
        mut client,
        workers,
        mut node,
        _kept,
    } = Pinged::start().await;
    let size = UNREAD[0];
    client.write(Input::Stdin, &vec![7; size]).await.unwrap();
    let story = tokio::spawn(async move { client.all().await });
    // Whoever has been asked twice has been asked everywhere once.
    eventually("pings wait", TEST_TIMEOUT, async || workers.held() >= 2).await;
    let mut read = 0;
    while read < size {
        read += node.read("stdin").await.unwrap().len();
    }
    // The answers to these show that all before them was taken.
    workers.go_on();
    workers.fall_silent();
    let story = tokio::time::timeout(TEST_TIMEOUT, story)
        .await
        .unwrap()
        .unwrap();
    assert!(story.error.contains("connection was lost"), "{story:?}");
    assert_eq!(story.code, Some(1011));
}

#[tokio::test]
async fn a_node_that_is_lost_while_somebody_types_is_noticed() {
    /// More than anybody types, and fewer in a tenth of the interval than count as much.
    const BETWEEN_KEYS: Duration = Duration::from_millis(10);
    let Pinged {
        mut client,
        workers,
        mut node,
        _kept,
    } = Pinged::start().await;
    workers.go_on();
    for _ in 0..150 {
        client.write(Input::Stdin, b"x").await.unwrap();
        node.read("stdin").await.unwrap();
        node.write("stdout", "x").await;
        tokio::time::sleep(BETWEEN_KEYS).await;
    }
    workers.fall_silent();
    let story = tokio::time::timeout(TEST_TIMEOUT, client.all()).await;
    let story = story.expect("nobody notices");
    assert!(story.error.contains("connection was lost"), "{story:?}");
    assert_eq!(story.code, Some(1011));
}
