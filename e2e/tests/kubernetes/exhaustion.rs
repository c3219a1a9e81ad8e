//! Unauthenticated clients that try to exhaust a bridge in front of a real kube-apiserver,
//! or to disturb other clients.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use skewbridge_e2e::{
    Bridge, ControlPlane, HttpClient, Protocol, Request, ResponseStream, ServerSpec, newest,
    versions,
};
use skewbridge_testkit::h2frames::{self, Frame, code, flag, kind, setting};
use skewbridge_testkit::{Connection, PATIENCE, TlsClient};
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;
use tokio::time::timeout;

const MIB: u64 = 1 << 20;

/// What the bridge may buffer for all clients.
const BUDGET: u64 = 64 * MIB;
const BUDGET_FLAG: &str = "--max-buffered-bytes=64Mi";

/// Connections of the attack, and how many are opened concurrently.
const ATTACK_CONNECTIONS: usize = 1000;
const CONCURRENT_CONNECTS: usize = 50;

/// The further memory of a connection: TLS with its buffers, HTTP/2 with 16 streams.
/// Without a budget a connection of the attack used 5 MiB.
const MAX_BYTES_PER_CONNECTION: u64 = 192 * 1024;

/// The number of requests that measure the latency of a user.
const LATENCY_REQUESTS: usize = 100;

/// The median latency of another user may grow by this factor, because the attackers use
/// the machine as well, or by [`SLACK`].
const MAX_SLOWDOWN: u32 = 10;
const SLACK: Duration = Duration::from_millis(200);

/// The size of an attacker's frames, and how long it waits for its window to open.
const FRAME_BYTES: u32 = 16 * 1024;
const WINDOW_TIMEOUT: Duration = Duration::from_secs(2);

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

/// The started program keeps its process ID across exec.
fn resident_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.unwrap().trim_end_matches("kB").trim().parse().unwrap();
    kib * 1024
}

/// The bytes that a process has read so far, from sockets and files.
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

/// Whether the connection is closed cleanly after the response to this client.
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
                // kube-apiserver sends GOAWAY beside its response: a ping follows it.
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
    let away = timeout(PATIENCE, reading).await.expect("an answer");
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

/// With one header in the HPACK table, a request of 270 bytes expands to a megabyte.
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
        // Until the end of the connection, or the last response.
        let mut answers = 0;
        let reading = async {
            while answers < requests
                && let Ok(frame) = h2frames::read_frame(&mut io).await
            {
                answers += usize::from(frame.header.kind == kind::HEADERS);
            }
        };
        timeout(PATIENCE, reading).await.expect("an end");
        println!("header bombs: {answers} of {requests} answered");
        if client.identity.is_some() {
            assert_eq!(answers, requests);
        }
    }
    // A megabyte each, with long values that are joined: Go's HTTP/2 would reject that.
    let mut raw = HttpClient::new(plane.client("jane"), bridge.address, Protocol::H2);
    let mut large = Request::get("/api");
    for number in 0..500 {
        large = large.header("Cookie", &format!("c{number}={}", "v".repeat(2000)));
    }
    assert_eq!(raw.send(&large).await.unwrap().status, 431);

    let read = bytes_read(server) - before;
    println!("header bombs: kube-apiserver has read {} KiB", read >> 10);
    assert!(read < 64 * MIB, "{} MiB", read / MIB);

    // All six continue.
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
        timeout(PATIENCE, seen).await.expect("the event");
    }
}

/// The median latency of a user; each request has to succeed.
async fn latency(user: &mut HttpClient) -> Duration {
    let get = Request::get("/api/v1/namespaces/default");
    let mut took = Vec::new();
    for _ in 0..LATENCY_REQUESTS {
        let asked = Instant::now();
        let answer = user.send(&get).await.unwrap();
        assert_eq!(answer.status, 200);
        took.push(asked.elapsed());
    }
    took.sort_unstable();
    took[LATENCY_REQUESTS / 2]
}

/// By how much a frame opens the window of the connection.
fn window_increment(frame: &Frame) -> u32 {
    let whole = frame.header.kind == kind::WINDOW_UPDATE && frame.header.stream == 0;
    match <[u8; 4]>::try_from(&frame.payload[..]) {
        Ok(increment) if whole => u32::from_be_bytes(increment),
        _ => 0,
    }
}

/// Opens 16 POSTs, receives responses without a window for them, and keeps sending.
async fn hold_buffers(client: TlsClient, address: SocketAddr) -> Option<Connection> {
    let client = client.alpn(&["h2"]);
    let mut io = client.connect(address, "localhost").await.ok()?;
    let settings = [(setting::INITIAL_WINDOW_SIZE, 0)];
    // By hand: the server's first frames open the window.
    let preface = [h2frames::PREFACE, &h2frames::settings(&settings)].concat();
    send(&mut io, preface).await.ok()?;
    send(&mut io, h2frames::settings_ack()).await.ok()?;
    let block = h2frames::request_block("POST", "localhost", POST);
    let streams = (0..16).map(|number| 2 * number + 1);
    let heads: Vec<u8> = streams
        .clone()
        .flat_map(|stream| h2frames::headers(stream, flag::END_HEADERS, &block))
        .collect();
    send(&mut io, heads).await.ok()?;
    let (mut room, mut answers) = (65_535, 0);
    while answers < 16 {
        let frame = h2frames::read_frame(&mut io).await.ok()?;
        room += window_increment(&frame);
        answers += usize::from(frame.header.kind == kind::HEADERS);
    }
    // As much as the windows allow, as soon as they allow it.
    for stream in streams.clone().chain(streams) {
        while room < FRAME_BYTES {
            let frame = timeout(WINDOW_TIMEOUT, h2frames::read_frame(&mut io)).await;
            let Ok(frame) = frame else {
                return Some(io);
            };
            room += window_increment(&frame.ok()?);
        }
        room -= FRAME_BYTES;
        let data = h2frames::data(stream, flag::NONE, &[b'x'; FRAME_BYTES as usize]);
        send(&mut io, data).await.ok()?;
    }
    Some(io)
}

#[tokio::test]
async fn a_thousand_unauthenticated_connections_stay_within_the_budget_and_harm_no_user() {
    let (plane, bridge) = start_server_and_bridge().await;
    let process = bridge.process.id();
    let mut user = HttpClient::new(plane.client("admin"), bridge.address, Protocol::H2);
    latency(&mut user).await;
    let (usual, resident_before) = (latency(&mut user).await, resident_bytes(process));
    let (anonymous, address) = (plane.anonymous_client(), bridge.address);
    let mut attack = tokio::spawn(async move {
        let (mut opening, mut held, mut begun) = (JoinSet::new(), Vec::new(), 0);
        while held.len() + opening.len() < ATTACK_CONNECTIONS || !opening.is_empty() {
            while begun < ATTACK_CONNECTIONS && opening.len() < CONCURRENT_CONNECTS {
                opening.spawn(hold_buffers(anonymous.clone(), address));
                begun += 1;
            }
            if let Some(Ok(io)) = opening.join_next().await {
                held.push(io);
            }
        }
        held
    });
    let (mut slowest, mut most, mut most_counted) = (Duration::ZERO, 0, 0);
    let held = loop {
        slowest = slowest.max(latency(&mut user).await);
        most = most.max(resident_bytes(process));
        let counted = plane.metrics(bridge.admin).await;
        most_counted = most_counted.max(counted.sum("skewbridge_buffered_bytes", &[]));
        if attack.is_finished() {
            break (&mut attack).await.unwrap();
        }
    };
    let stayed = held.iter().flatten().count();
    let grown = most.saturating_sub(resident_before);
    println!(
        "{ATTACK_CONNECTIONS} connections, {stayed} of them open to the end: memory {} MiB and {} MiB more, \
         {} KiB of it counted; a user's median latency {usual:?}, at most {slowest:?} meanwhile",
        resident_before / MIB,
        grown / MIB,
        most_counted / 1024
    );
    assert!(
        stayed > ATTACK_CONNECTIONS / 2,
        "the attack did not take place"
    );
    assert!(most_counted <= BUDGET, "{} MiB", most_counted / MIB);
    let allowed = BUDGET + MAX_BYTES_PER_CONNECTION * ATTACK_CONNECTIONS as u64;
    assert!(grown <= allowed, "{} of {} MiB", grown / MIB, allowed / MIB);
    assert!(
        slowest <= (usual * MAX_SLOWDOWN).max(usual + SLACK),
        "{usual:?} became {slowest:?}"
    );
}
