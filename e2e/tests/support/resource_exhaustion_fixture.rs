//! Clients that use as much memory of a bridge as they can, and observers of its other users.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use skewbridge_e2e::{
    Bridge, ControlPlane, HttpClient, Protocol, Request, ServerSpec, newest, versions,
};
use skewbridge_testkit::h2frames::{self, Frame, code, flag, kind, setting};
use skewbridge_testkit::{Connection, TEST_TIMEOUT, TlsClient};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const BUDGET_FLAG: &str = "--max-buffered-bytes=64Mi";

/// Connections of the attack, and how many are opened concurrently.
pub(crate) const ATTACK_CONNECTIONS: usize = 1000;

const CONCURRENT_CONNECTS: usize = 50;

/// How long it may take until all of them have been answered: 16,000 requests.
const ATTACK_CONNECT_TIMEOUT: Duration = Duration::from_mins(3);

/// The number of requests that measure the latency of a user, on each route.
const LATENCY_REQUESTS: usize = 100;

/// The amount of data that an attacker sends on a connection, and its frame size.
const BODY_BYTES: u32 = 4 << 20;

const FRAME_BYTES: u32 = 16 * 1024;

/// Attackers that have sent nothing for this long have sent all that they may.
const SEND_IDLE_TIME: Duration = Duration::from_secs(1);

/// How long an attacker takes to connect, at least. kube-apiserver leaves requests behind its
/// GOAWAY without a response, and attackers wait for them: without this, the attack on the bridge
/// would be several times as fast as the one on kube-apiserver that it is compared with.
const MIN_CONNECT_TIME: Duration = RESPONSE_TIMEOUT;

/// How long an attacker waits for the next response, after the first.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

pub(crate) const POST: &str = "/api/v1/namespaces/default/configmaps";

const END_OF_REQUEST: u8 = flag::END_HEADERS | flag::END_STREAM;

/// The newest server, and a bridge with this budget.
pub(crate) async fn start_server_and_bridge() -> (ControlPlane, Bridge) {
    let version = newest(&versions()).to_owned();
    let plane = ControlPlane::start(&[ServerSpec::of(&version).without_bridge()]).await;
    let server = plane.servers[0].address;
    let bridge = plane.start_bridge_for(server, &[BUDGET_FLAG]).await;
    (plane, bridge)
}

/// The program exec'd in place of what was started keeps its process id.
pub(crate) fn resident_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.unwrap().trim_end_matches("kB").trim().parse().unwrap();
    kib * 1024
}

/// Bytes that a process has read so far, from sockets and files.
pub(crate) fn bytes_read(process: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.unwrap().parse().unwrap()
}

pub(crate) async fn open(
    client: &TlsClient,
    address: SocketAddr,
    settings: &[(u16, u32)],
) -> Connection {
    let client = client.clone().alpn(&["h2"]);
    let mut io = client.connect(address, "localhost").await.unwrap();
    h2frames::open(&mut io, settings).await.unwrap();
    io
}

pub(crate) async fn send(io: &mut Connection, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
    io.write_all(bytes.as_ref()).await?;
    io.flush().await
}

/// Whether the bridge sends GOAWAY after the response to this client.
pub(crate) async fn receives_goaway(client: &TlsClient, address: SocketAddr) -> bool {
    let mut io = open(client, address, &[]).await;
    let block = h2frames::request_block("GET", "localhost", "/api");
    let request = h2frames::headers(1, END_OF_REQUEST, &block);
    send(&mut io, request).await.unwrap();
    let mut answered = false;
    let reading = async {
        loop {
            let frame = h2frames::read_frame(&mut io).await.unwrap();
            match frame.header.kind {
                kind::GOAWAY => {
                    assert_eq!(frame.error_code(), Some(code::NO_ERROR));
                    return true;
                }
                kind::HEADERS => answered = true,
                // kube-apiserver sends GOAWAY beside its response, so a ping is sent after the
                // response.
                kind::DATA if frame.header.has(flag::END_STREAM) => {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    let ping = h2frames::ping(flag::NONE, *b"reached?");
                    send(&mut io, ping).await.unwrap();
                }
                kind::PING if frame.header.has(flag::ACK) => return false,
                _ => {}
            }
        }
    };
    let away = timeout(TEST_TIMEOUT, reading).await.expect("an answer");
    assert!(answered || away);
    away
}

/// With one header in HPACK's table, a request of 270 bytes expands to a megabyte.
pub(crate) struct HeaderBomb(pub(crate) u32);

impl HeaderBomb {
    pub(crate) fn request(&mut self) -> Vec<u8> {
        let mut block = h2frames::request_block("GET", "localhost", "/api");
        if self.0 == 1 {
            let mut literal = h2frames::literal("x-bomb", &"b".repeat(4000));
            // With incremental indexing (RFC 7541, 6.2.1): entry 62 from now on.
            literal[0] = 0x40;
            block.extend(literal);
        } else {
            // References to it (RFC 7541, 6.1).
            block.extend([0x80 | 0x3e; 250]);
        }
        let frame = h2frames::headers(self.0, END_OF_REQUEST, &block);
        self.0 += 2;
        frame
    }
}

/// The latencies of one user on two routes, request by request in turn, so that the load of the
/// machine is the same for both.
#[derive(Default)]
pub(crate) struct Latencies {
    pub(crate) bridged: Vec<Duration>,
    pub(crate) direct: Vec<Duration>,
}

/// A user that sends requests through the bridge and directly to kube-apiserver.
pub(crate) struct Observer {
    pub(crate) bridged: HttpClient,
    pub(crate) direct: HttpClient,
}

impl Observer {
    pub(crate) fn new(plane: &ControlPlane, bridge: &Bridge) -> Self {
        let user = |address| HttpClient::new(plane.client("admin"), address, Protocol::H2);
        Self {
            bridged: user(bridge.address),
            direct: user(plane.servers[0].address),
        }
    }

    /// Sends one request on each route; each has to succeed.
    pub(crate) async fn measure_once(&mut self, latencies: &mut Latencies) {
        for (user, latencies) in [
            (&mut self.bridged, &mut latencies.bridged),
            (&mut self.direct, &mut latencies.direct),
        ] {
            let started = Instant::now();
            let get = Request::get("/api/v1/namespaces/default");
            let answer = user.send(&get).await.unwrap();
            assert_eq!(answer.status, 200);
            latencies.push(started.elapsed());
        }
    }

    pub(crate) async fn measure(&mut self) -> Latencies {
        let mut latencies = Latencies::default();
        for _ in 0..LATENCY_REQUESTS {
            self.measure_once(&mut latencies).await;
        }
        latencies
    }
}

/// Medians of both routes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Medians {
    pub(crate) bridged: Duration,
    pub(crate) direct: Duration,
}

impl Latencies {
    pub(crate) fn medians(mut self) -> Medians {
        let [bridged, direct] = [&mut self.bridged, &mut self.direct].map(|took| {
            took.sort_unstable();
            took[took.len() / 2]
        });
        Medians { bridged, direct }
    }
}

/// The increment of the connection window in a frame.
fn window_increment(frame: &Frame) -> u32 {
    let whole = frame.header.kind == kind::WINDOW_UPDATE && frame.header.stream == 0;
    match <[u8; 4]>::try_from(&frame.payload[..]) {
        Ok(increment) if whole => u32::from_be_bytes(increment),
        _ => 0,
    }
}

/// A connection of the attack that has been answered.
pub(crate) struct AttackConnection {
    pub(crate) io: Connection,
    /// How many bytes the connection may still send.
    pub(crate) window_bytes: u32,
}

/// Opens 16 POSTs, and receives responses without a window for them.
async fn hold_buffers(client: TlsClient, address: SocketAddr) -> Option<AttackConnection> {
    let client = client.alpn(&["h2"]);
    let mut io = client.connect(address, "localhost").await.ok()?;
    let settings = [(setting::INITIAL_WINDOW_SIZE, 0)];
    // The frames are read here, because the server's first frames open the window.
    let preface = [h2frames::PREFACE, &h2frames::settings(&settings)].concat();
    send(&mut io, preface).await.ok()?;
    send(&mut io, h2frames::settings_ack()).await.ok()?;
    let block = h2frames::request_block("POST", "localhost", POST);
    let heads: Vec<u8> = streams()
        .flat_map(|stream| h2frames::headers(stream, flag::END_HEADERS, &block))
        .collect();
    send(&mut io, heads).await.ok()?;
    let (mut window_bytes, mut answers) = (65_535, 0);
    while answers < 16 {
        // kube-apiserver does not answer all of them behind its GOAWAY.
        let response_timeout = if answers > 0 {
            RESPONSE_TIMEOUT
        } else {
            TEST_TIMEOUT
        };
        let Ok(frame) = timeout(response_timeout, h2frames::read_frame(&mut io)).await else {
            break;
        };
        let frame = frame.ok()?;
        window_bytes += window_increment(&frame);
        answers += usize::from(frame.header.kind == kind::HEADERS);
    }
    (answers > 0).then_some(AttackConnection { io, window_bytes })
}

fn streams() -> impl Iterator<Item = u32> + Clone {
    (0..16).map(|number| 2 * number + 1)
}

impl AttackConnection {
    /// Sends as much and as soon as the windows allow, up to [`BODY_BYTES`].
    pub(crate) async fn fill(&mut self, sent: &AtomicU64) -> Option<()> {
        for stream in streams().cycle().take((BODY_BYTES / FRAME_BYTES) as usize) {
            while self.window_bytes < FRAME_BYTES {
                self.window_bytes +=
                    window_increment(&h2frames::read_frame(&mut self.io).await.ok()?);
            }
            self.window_bytes -= FRAME_BYTES;
            let data = h2frames::data(stream, flag::NONE, &[b'x'; FRAME_BYTES as usize]);
            send(&mut self.io, data).await.ok()?;
            sent.fetch_add(FRAME_BYTES.into(), Ordering::Relaxed);
        }
        Some(())
    }
}

/// The attack, on its own thread: the user does not wait for the work of the attackers.
pub(crate) struct Attack {
    pub(crate) progress: Arc<Progress>,
    pub(crate) end: Option<oneshot::Sender<()>>,
    pub(crate) thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
pub(crate) struct Progress {
    /// Connections that have been answered.
    pub(crate) answered: AtomicUsize,
    /// Connections that have not been answered.
    pub(crate) failed: AtomicUsize,
    /// Set when all attackers are connected, and may send.
    pub(crate) sending: watch::Sender<bool>,
    /// Bytes of request bodies.
    pub(crate) sent: AtomicU64,
}

impl Attack {
    pub(crate) fn start(client: TlsClient, address: SocketAddr) -> Self {
        let progress = Arc::new(Progress::default());
        let (end, ended) = oneshot::channel();
        let shared = progress.clone();
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            runtime.block_on(async {
                let _attackers = attackers(&client, address, &shared);
                let _ = ended.await;
            });
        });
        Self {
            progress,
            end: Some(end),
            thread: Some(thread),
        }
    }

    pub(crate) fn answered(&self) -> usize {
        self.progress.answered.load(Ordering::Relaxed)
    }

    /// Whether every connection has been answered, or refused.
    pub(crate) fn is_connected(&self) -> bool {
        self.answered() + self.progress.failed.load(Ordering::Relaxed) == ATTACK_CONNECTIONS
    }

    pub(crate) fn sent(&self) -> u64 {
        self.progress.sent.load(Ordering::Relaxed)
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (answered, sent) = (
            self.answered(),
            self.sent() / ATTACK_CONNECTIONS as u64 / 1024,
        );
        write!(
            f,
            "{answered} of {ATTACK_CONNECTIONS} answered, {sent} KiB sent by each"
        )
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// All attackers; their connections close when this is dropped.
fn attackers(client: &TlsClient, address: SocketAddr, progress: &Arc<Progress>) -> JoinSet<()> {
    let mut attackers = JoinSet::new();
    let turns = Arc::new(Semaphore::new(CONCURRENT_CONNECTS));
    for _ in 0..ATTACK_CONNECTIONS {
        let (client, progress, turns) = (client.clone(), progress.clone(), turns.clone());
        attackers.spawn(async move {
            let turn = turns.acquire_owned().await;
            let (connection, ()) =
                tokio::join!(hold_buffers(client, address), sleep(MIN_CONNECT_TIME));
            drop(turn);
            let Some(mut connection) = connection else {
                progress.failed.fetch_add(1, Ordering::Relaxed);
                return;
            };
            progress.answered.fetch_add(1, Ordering::Relaxed);
            let mut sending = progress.sending.subscribe();
            if sending.wait_for(|sending| *sending).await.is_ok() {
                connection.fill(&progress.sent).await;
            }
            std::future::pending::<()>().await;
        });
    }
    attackers
}

/// A user's medians in the phases of an attack.
#[derive(Debug)]
pub(crate) struct PhaseMedians {
    /// While the attackers connect and receive responses.
    pub(crate) connecting: Medians,
    /// While they send.
    pub(crate) sending: Medians,
    /// While their connections are open.
    pub(crate) held: Medians,
}

/// Measures a user's latency during an attack.
pub(crate) async fn observe_attack(
    attack: &Attack,
    observer: &mut Observer,
    mut look: impl AsyncFnMut(),
) -> PhaseMedians {
    let mut connecting = Latencies::default();
    let limit = Instant::now() + ATTACK_CONNECT_TIMEOUT;
    while !attack.is_connected() {
        observer.measure_once(&mut connecting).await;
        look().await;
        assert!(Instant::now() < limit, "the attackers cannot connect");
    }
    let answered = attack.answered();
    assert!(
        answered > ATTACK_CONNECTIONS / 2,
        "{answered} attackers were answered"
    );

    attack.progress.sending.send_replace(true);
    let mut sending = Latencies::default();
    let mut progress = (Instant::now(), 0);
    while progress.0.elapsed() < SEND_IDLE_TIME {
        observer.measure_once(&mut sending).await;
        look().await;
        if attack.sent() > progress.1 {
            progress = (Instant::now(), attack.sent());
        }
    }
    let mut held = Latencies::default();
    for _ in 0..LATENCY_REQUESTS {
        observer.measure_once(&mut held).await;
    }
    look().await;
    PhaseMedians {
        connecting: connecting.medians(),
        sending: sending.medians(),
        held: held.medians(),
    }
}
