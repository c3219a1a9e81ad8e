//! Unauthenticated clients that try to exhaust a bridge in front of a real kube-apiserver,
//! or to disturb other clients.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use skewbridge_e2e::{
    Bridge, ControlPlane, HttpClient, Protocol, Request, ResponseStream, ServerSpec, newest,
    versions,
};
use skewbridge_testkit::h2frames::{self, Frame, code, flag, kind, setting};
use skewbridge_testkit::{Connection, TEST_TIMEOUT, TlsClient};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const MIB: u64 = 1 << 20;

/// What the bridge may buffer for all clients.
const BUFFER_BUDGET_BYTES: u64 = 64 * MIB;
const BUDGET_FLAG: &str = "--max-buffered-bytes=64Mi";

/// Connections of the attack, and how many are opened concurrently.
const ATTACK_CONNECTIONS: usize = 1000;
const CONCURRENT_CONNECTS: usize = 50;

/// How long it may take until all of them have been answered: 16,000 requests.
const ATTACK_CONNECT_TIMEOUT: Duration = Duration::from_mins(3);

/// The further memory of a connection: TLS with its buffers, HTTP/2 with 16 streams.
/// Without a budget a connection of the attack used 5 MiB.
const MAX_BYTES_PER_CONNECTION: u64 = 192 * 1024;

/// The number of requests that measure the latency of a user, on each route.
const LATENCY_REQUESTS: usize = 100;

/// How much longer a request through the bridge may take than one that goes to kube-apiserver
/// at the same time. Without an attack it takes 1.3 to 2 times as long: the bridge of these
/// tests is built without optimisation.
const MAX_SLOWDOWN: u32 = 3;

/// What a median may be off by on a machine that runs other tests.
const MEDIAN_TOLERANCE: Duration = Duration::from_millis(5);

/// The same while the attackers connect, and while they send 4 GiB, which the bridge decrypts on
/// the threads that also serve the user.
const ATTACK_MEDIAN_TOLERANCE: Duration = Duration::from_millis(25);

/// A stream is counted once a second, and one that is chosen for eviction ends when it is
/// counted next: until then the budget can be exceeded.
const MAX_EXCESS_BYTES: u64 = BUFFER_BUDGET_BYTES / 8;

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

const POST: &str = "/api/v1/namespaces/default/configmaps";
const END_OF_REQUEST: u8 = flag::END_HEADERS | flag::END_STREAM;

/// The newest server, and a bridge with this budget.
async fn start_server_and_bridge() -> (ControlPlane, Bridge) {
    let version = newest(&versions()).to_owned();
    let plane = ControlPlane::start(&[ServerSpec::of(&version).without_bridge()]).await;
    let server = plane.servers[0].address;
    let bridge = plane.start_bridge_for(server, &[BUDGET_FLAG]).await;
    (plane, bridge)
}

/// The program exec'd in place of what was started keeps its process id.
fn resident_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.unwrap().trim_end_matches("kB").trim().parse().unwrap();
    kib * 1024
}

/// Bytes that a process has read so far, from sockets and files.
fn bytes_read(process: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.unwrap().parse().unwrap()
}

async fn open(client: &TlsClient, address: SocketAddr, settings: &[(u16, u32)]) -> Connection {
    let client = client.clone().alpn(&["h2"]);
    let mut io = client.connect(address, "localhost").await.unwrap();
    h2frames::open(&mut io, settings).await.unwrap();
    io
}

async fn send(io: &mut Connection, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
    io.write_all(bytes.as_ref()).await?;
    io.flush().await
}

/// Whether a connection is ended in good order behind the answer to this client.
async fn receives_goaway(client: &TlsClient, address: SocketAddr) -> bool {
    let mut io = open(client, address, &[]).await;
    let block = h2frames::request_block("GET", "localhost", "/api");
    let ask = h2frames::headers(1, END_OF_REQUEST, &block);
    send(&mut io, ask).await.unwrap();
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
                // kube-apiserver sends GOAWAY beside its answer: a ping behind that.
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

#[tokio::test]
async fn anonymous_connections_get_goaway_as_from_kube_apiserver() {
    let (plane, bridge) = start_server_and_bridge().await;
    let server = plane.servers[0].address;
    for client in [plane.anonymous_client(), plane.client("jane")] {
        let direct = receives_goaway(&client, server).await;
        // Once for each worker, and once more.
        for _ in 0..4 {
            let bridged = receives_goaway(&client, bridge.address).await;
            assert_eq!(bridged, direct, "{:?}", client.identity.is_some());
        }
    }
    assert!(receives_goaway(&plane.anonymous_client(), bridge.address).await);
}

/// With one header in HPACK's table, a request of 270 bytes is one of a megabyte.
struct HeaderBomb(u32);

impl HeaderBomb {
    fn request(&mut self) -> Vec<u8> {
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

#[tokio::test]
async fn header_bombs_cut_no_watch_of_another_user() {
    let (plane, bridge) = start_server_and_bridge().await;
    let watch = Request::get(&format!("{POST}?watch=1"));
    let victim = HttpClient::new(plane.client("admin"), bridge.address, Protocol::H2);
    let mut watches: Vec<ResponseStream> = Vec::new();
    for _ in 0..6 {
        watches.push(victim.stream(&watch).await.unwrap());
    }
    let server = plane.servers[0].process.as_ref().unwrap().id();
    let before = bytes_read(server);
    for client in [plane.anonymous_client(), plane.client("jane")] {
        // Attackers try more often and are disconnected. A user may do it 20 times.
        let requests = if client.identity.is_some() { 20 } else { 200 };
        let mut io = open(&client, bridge.address, &[]).await;
        let mut bomb = HeaderBomb(1);
        for _ in 0..requests {
            if send(&mut io, bomb.request()).await.is_err() {
                break;
            }
        }
        // To the end of the connection, or to the last answer.
        let mut answers = 0;
        let reading = async {
            while answers < requests
                && let Ok(frame) = h2frames::read_frame(&mut io).await
            {
                answers += usize::from(frame.header.kind == kind::HEADERS);
            }
        };
        timeout(TEST_TIMEOUT, reading).await.expect("an end");
        println!("header bombs: {answers} of {requests} answered");
        if client.identity.is_some() {
            assert_eq!(answers, requests);
        }
    }
    // A megabyte each, with long values that are joined: what Go's HTTP/2 would not take.
    let mut raw = HttpClient::new(plane.client("jane"), bridge.address, Protocol::H2);
    let mut large = Request::get("/api");
    for number in 0..500 {
        large = large.header("Cookie", &format!("c{number}={}", "v".repeat(2000)));
    }
    assert_eq!(raw.send(&large).await.unwrap().status, 431);

    let read = bytes_read(server) - before;
    println!("header bombs: kube-apiserver has read {} KiB", read >> 10);
    assert!(read < 64 * MIB, "{} MiB", read / MIB);

    // All six go on.
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"seen-by-all"}}"#;
    let create = Request::new("POST", POST).body("application/json", body);
    let mut admin = HttpClient::new(plane.client("admin"), bridge.address, Protocol::H2);
    assert_eq!(admin.send(&create).await.unwrap().status, 201);
    for watch in &mut watches {
        assert_eq!(watch.status, 200);
        let seen = async {
            let mut events = String::new();
            while !events.contains("seen-by-all") {
                let piece = watch.next().await.unwrap().expect("it was not cut");
                events.push_str(&String::from_utf8_lossy(&piece));
            }
        };
        timeout(TEST_TIMEOUT, seen).await.expect("the event");
    }
}

/// The latencies of one user on two routes, request by request in turn, so that the load of the
/// machine is the same for both.
#[derive(Default)]
struct Latencies {
    bridged: Vec<Duration>,
    direct: Vec<Duration>,
}

/// A user that sends requests through the bridge and directly to kube-apiserver.
struct Observer {
    bridged: HttpClient,
    direct: HttpClient,
}

impl Observer {
    fn new(plane: &ControlPlane, bridge: &Bridge) -> Self {
        let user = |address| HttpClient::new(plane.client("admin"), address, Protocol::H2);
        Self {
            bridged: user(bridge.address),
            direct: user(plane.servers[0].address),
        }
    }

    /// Sends one request on each route; each has to succeed.
    async fn ask(&mut self, latencies: &mut Latencies) {
        for (user, took) in [
            (&mut self.bridged, &mut latencies.bridged),
            (&mut self.direct, &mut latencies.direct),
        ] {
            let asked = Instant::now();
            let get = Request::get("/api/v1/namespaces/default");
            let answer = user.send(&get).await.unwrap();
            assert_eq!(answer.status, 200);
            took.push(asked.elapsed());
        }
    }

    async fn measure(&mut self) -> Latencies {
        let mut latencies = Latencies::default();
        for _ in 0..LATENCY_REQUESTS {
            self.ask(&mut latencies).await;
        }
        latencies
    }
}

/// Medians of both routes.
#[derive(Debug, Clone, Copy)]
struct Medians {
    bridged: Duration,
    direct: Duration,
}

impl Latencies {
    fn medians(mut self) -> Medians {
        let [bridged, direct] = [&mut self.bridged, &mut self.direct].map(|took| {
            took.sort_unstable();
            took[took.len() / 2]
        });
        Medians { bridged, direct }
    }
}

/// By how much a frame opens the window of the connection.
fn window_increment(frame: &Frame) -> u32 {
    let whole = frame.header.kind == kind::WINDOW_UPDATE && frame.header.stream == 0;
    match <[u8; 4]>::try_from(&frame.payload[..]) {
        Ok(increment) if whole => u32::from_be_bytes(increment),
        _ => 0,
    }
}

/// A connection of the attack that has been answered.
struct AttackConnection {
    io: Connection,
    /// What it may still send.
    room: u32,
}

/// Opens 16 POSTs, and receives responses without a window for them.
async fn hold_buffers(client: TlsClient, address: SocketAddr) -> Option<AttackConnection> {
    let client = client.alpn(&["h2"]);
    let mut io = client.connect(address, "localhost").await.ok()?;
    let settings = [(setting::INITIAL_WINDOW_SIZE, 0)];
    // By hand: the server's first frames open the window.
    let preface = [h2frames::PREFACE, &h2frames::settings(&settings)].concat();
    send(&mut io, preface).await.ok()?;
    send(&mut io, h2frames::settings_ack()).await.ok()?;
    let block = h2frames::request_block("POST", "localhost", POST);
    let heads: Vec<u8> = streams()
        .flat_map(|stream| h2frames::headers(stream, flag::END_HEADERS, &block))
        .collect();
    send(&mut io, heads).await.ok()?;
    let (mut room, mut answers) = (65_535, 0);
    while answers < 16 {
        // kube-apiserver does not answer all of them behind its GOAWAY.
        let patience = if answers > 0 {
            RESPONSE_TIMEOUT
        } else {
            TEST_TIMEOUT
        };
        let Ok(frame) = timeout(patience, h2frames::read_frame(&mut io)).await else {
            break;
        };
        let frame = frame.ok()?;
        room += window_increment(&frame);
        answers += usize::from(frame.header.kind == kind::HEADERS);
    }
    (answers > 0).then_some(AttackConnection { io, room })
}

fn streams() -> impl Iterator<Item = u32> + Clone {
    (0..16).map(|number| 2 * number + 1)
}

impl AttackConnection {
    /// Sends on, as much and as soon as the windows allow, up to [`BODY_BYTES`].
    async fn fill(&mut self, sent: &AtomicU64) -> Option<()> {
        for stream in streams().cycle().take((BODY_BYTES / FRAME_BYTES) as usize) {
            while self.room < FRAME_BYTES {
                self.room += window_increment(&h2frames::read_frame(&mut self.io).await.ok()?);
            }
            self.room -= FRAME_BYTES;
            let data = h2frames::data(stream, flag::NONE, &[b'x'; FRAME_BYTES as usize]);
            send(&mut self.io, data).await.ok()?;
            sent.fetch_add(FRAME_BYTES.into(), Ordering::Relaxed);
        }
        Some(())
    }
}

/// The attack, on its own thread: the user does not wait for the work of the attackers.
struct Attack {
    progress: Arc<Progress>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Progress {
    /// Connections that have been answered.
    pinned: AtomicUsize,
    /// Those that were not.
    failed: AtomicUsize,
    /// All are connected: they may send.
    sending: watch::Sender<bool>,
    /// Bytes of request bodies.
    sent: AtomicU64,
}

impl Attack {
    fn on(client: TlsClient, address: SocketAddr) -> Self {
        let progress = Arc::new(Progress::default());
        let (end, ended) = oneshot::channel();
        let shared = progress.clone();
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            runtime.block_on(async {
                let _strangers = attackers(&client, address, &shared);
                let _ = ended.await;
            });
        });
        Self {
            progress,
            end: Some(end),
            thread: Some(thread),
        }
    }

    fn pinned(&self) -> usize {
        self.progress.pinned.load(Ordering::Relaxed)
    }

    /// Whether every connection has been answered, or refused.
    fn is_connected(&self) -> bool {
        self.pinned() + self.progress.failed.load(Ordering::Relaxed) == ATTACK_CONNECTIONS
    }

    fn sent(&self) -> u64 {
        self.progress.sent.load(Ordering::Relaxed)
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pinned, sent) = (
            self.pinned(),
            self.sent() / ATTACK_CONNECTIONS as u64 / 1024,
        );
        write!(
            f,
            "{pinned} of {ATTACK_CONNECTIONS} answered, {sent} KiB sent by each"
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
            let (pinned, ()) = tokio::join!(hold_buffers(client, address), sleep(MIN_CONNECT_TIME));
            drop(turn);
            let Some(mut pinned) = pinned else {
                progress.failed.fetch_add(1, Ordering::Relaxed);
                return;
            };
            progress.pinned.fetch_add(1, Ordering::Relaxed);
            let mut sending = progress.sending.subscribe();
            if sending.wait_for(|sending| *sending).await.is_ok() {
                pinned.fill(&progress.sent).await;
            }
            std::future::pending::<()>().await;
        });
    }
    attackers
}

/// A user's medians in the phases of an attack.
#[derive(Debug)]
struct PhaseMedians {
    /// While the attackers connect and receive responses.
    connecting: Medians,
    /// While they send.
    sending: Medians,
    /// While their connections are open.
    held: Medians,
}

/// Measures a user's latency during an attack.
async fn observe_attack(
    attack: &Attack,
    observer: &mut Observer,
    mut look: impl AsyncFnMut(),
) -> PhaseMedians {
    let mut connecting = Latencies::default();
    let limit = Instant::now() + ATTACK_CONNECT_TIMEOUT;
    while !attack.is_connected() {
        observer.ask(&mut connecting).await;
        look().await;
        assert!(Instant::now() < limit, "the attack does not take place");
    }
    let pinned = attack.pinned();
    assert!(
        pinned > ATTACK_CONNECTIONS / 2,
        "{pinned} attackers were answered"
    );

    attack.progress.sending.send_replace(true);
    let mut sending = Latencies::default();
    let mut progress = (Instant::now(), 0);
    while progress.0.elapsed() < SEND_IDLE_TIME {
        observer.ask(&mut sending).await;
        look().await;
        if attack.sent() > progress.1 {
            progress = (Instant::now(), attack.sent());
        }
    }
    let mut held = Latencies::default();
    for _ in 0..LATENCY_REQUESTS {
        observer.ask(&mut held).await;
    }
    look().await;
    PhaseMedians {
        connecting: connecting.medians(),
        sending: sending.medians(),
        held: held.medians(),
    }
}

#[tokio::test]
async fn a_thousand_unauthenticated_connections_stay_within_the_budget_and_harm_no_user() {
    let (plane, bridge) = start_server_and_bridge().await;
    let mut observer = Observer::new(&plane, &bridge);
    observer.measure().await;
    let quiet = observer.measure().await.medians();
    println!("without an attack: {quiet:?}");

    // The alternative: the same attack, without a bridge.
    let attack = Attack::on(plane.anonymous_client(), plane.servers[0].address);
    let direct_attack = observe_attack(&attack, &mut observer, async || ()).await;
    println!("attack on kube-apiserver: {attack}; {direct_attack:?}");
    drop(attack);

    let (process, admin) = (bridge.process.id(), bridge.admin);
    let before = resident_bytes(process);
    let (mut most, mut most_counted) = (0, 0);
    let attack = Attack::on(plane.anonymous_client(), bridge.address);
    let bridged_attack = observe_attack(&attack, &mut observer, async || {
        most = most.max(resident_bytes(process));
        let counted = plane.metrics(admin).await;
        most_counted = most_counted.max(counted.sum("skewbridge_buffered_bytes", &[]));
    });
    let bridged_attack = bridged_attack.await;
    println!("attack on the bridge: {attack}; {bridged_attack:?}");
    let grown = most.saturating_sub(before);
    println!(
        "memory {} MiB and {} MiB more, {} KiB of it counted",
        before / MIB,
        grown / MIB,
        most_counted / 1024
    );
    let allowed = BUFFER_BUDGET_BYTES + MAX_EXCESS_BYTES;
    assert!(most_counted <= allowed, "{} MiB", most_counted / MIB);
    let allowed = BUFFER_BUDGET_BYTES + MAX_BYTES_PER_CONNECTION * ATTACK_CONNECTIONS as u64;
    assert!(grown <= allowed, "{} of {} MiB", grown / MIB, allowed / MIB);
    let PhaseMedians {
        connecting,
        sending,
        held,
    } = bridged_attack;
    for (phase, seen, slack) in [
        ("connecting", connecting, ATTACK_MEDIAN_TOLERANCE),
        ("sending", sending, ATTACK_MEDIAN_TOLERANCE),
        ("held", held, MEDIAN_TOLERANCE),
    ] {
        let Medians { bridged, direct } = seen;
        assert!(
            bridged <= direct * MAX_SLOWDOWN + slack,
            "{phase}: {bridged:?} through the bridge, {direct:?} beside it"
        );
    }
}
