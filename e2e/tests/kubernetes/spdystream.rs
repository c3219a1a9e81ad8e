//! `skewbridge-spdy` with moby/spdystream, the SPDY library of Kubernetes, in both roles.

use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use skewbridge_e2e::Spdystream;
use skewbridge_spdy::connection::{
    self, Driver, Handle, Incoming, Receiver, Request, Sender, Stream,
};
use skewbridge_spdy::frame::ResetStatus;
use skewbridge_spdy::{Config, Error, Headers, Role, StreamError};
use skewbridge_stream_io::{KeepaliveConfig, ObservedIo, PingPolicy, SpdyPinger};
use skewbridge_testkit::{ScratchDir, eventually};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// The amount of data for exec and cp.
const BULK_BYTES: usize = 200 << 20;

/// A pattern whose positions are distinguishable, the same as in the program.
static PATTERN: LazyLock<Bytes> = LazyLock::new(|| {
    let mut noise = 1u32;
    let next = |_| {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        noise.to_be_bytes()[0]
    };
    (0..1_000_003).map(next).collect()
});

async fn send(mut sender: Sender, bytes: usize) -> Result<Sender, StreamError> {
    let mut sent = 0;
    while sent < bytes {
        let piece = PATTERN.slice(sent % PATTERN.len()..);
        let piece = piece.slice(..piece.len().min(bytes - sent).min(32 * 1024));
        sent += piece.len();
        sender.write(piece).await?;
    }
    sender.finish()?;
    Ok(sender)
}

/// Reads to the end and returns the length. All of it has to match the pattern.
async fn receive(mut receiver: Receiver) -> Result<usize, StreamError> {
    let mut bytes = 0;
    while let Some(data) = receiver.read().await? {
        let mut piece = &data[..];
        while !piece.is_empty() {
            let expected = &PATTERN[bytes % PATTERN.len()..];
            let length = piece.len().min(expected.len());
            assert!(piece[..length] == expected[..length], "at {bytes}");
            piece = &piece[length..];
            bytes += length;
        }
    }
    Ok(bytes)
}

async fn text(receiver: &mut Receiver) -> Result<String, StreamError> {
    let mut text = Vec::new();
    while let Some(data) = with_timeout(receiver.read()).await? {
        text.extend_from_slice(&data);
    }
    Ok(String::from_utf8(text).unwrap())
}

async fn with_timeout<F: IntoFuture>(future: F) -> F::Output {
    let limit = Duration::from_mins(2);
    tokio::time::timeout(limit, future).await.unwrap()
}

/// A listening server.
struct SpdystreamServer {
    server: Spdystream,
    _directory: ScratchDir,
}

impl SpdystreamServer {
    async fn start() -> Self {
        let directory = ScratchDir::new();
        let server = Spdystream::serve(directory.path());
        let address = server.address;
        eventually("spdystream listens", READY_TIMEOUT, async || {
            TcpStream::connect(address).await.is_ok()
        })
        .await;
        Self {
            server,
            _directory: directory,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.server.address).await.unwrap()
    }
}

/// A skewbridge-spdy client with its server.
struct Client {
    handle: Handle,
    driver: JoinHandle<Result<(), Error>>,
    _server: SpdystreamServer,
}

impl Client {
    async fn start() -> Self {
        let server = SpdystreamServer::start().await;
        let socket = server.connect().await;
        let (handle, _, driver) = connection::client(socket, Config::default());
        Self {
            handle,
            driver: tokio::spawn(driver),
            _server: server,
        }
    }

    async fn open(&self, task: &str, bytes: usize) -> Stream {
        open(&self.handle, task, bytes).await
    }
}

async fn open(handle: &Handle, task: &str, bytes: usize) -> Stream {
    let headers = Headers::new().with("task", task);
    let headers = headers.with("bytes", bytes.to_string());
    let mut stream = handle.open(headers).unwrap();
    with_timeout(stream.accepted()).await.unwrap();
    stream
}

#[tokio::test]
async fn headers_are_exchanged() {
    let client = Client::start().await;
    for round in 0..50 {
        let sent = Headers::new()
            .with("task", "headers")
            .with("round", round.to_string())
            .with("many", "one")
            .with("many", "two");
        let mut stream = client.handle.open(sent.clone()).unwrap();
        let reply = with_timeout(stream.accepted()).await.unwrap();
        assert_eq!(reply.len(), sent.len());
        for (name, value) in sent.iter() {
            assert!(reply.get_all(name).any(|it| it == value), "{name}");
        }
        stream.sender.finish().unwrap();
        assert_eq!(text(&mut stream.receiver).await.unwrap(), "");
    }
}

#[tokio::test]
async fn one_ping_in_five_is_blocked_by_an_unread_stream() {
    let client = Client::start().await;
    let mut stream = client.open("ignore", 0).await;
    stream.sender.write(PATTERN.slice(..1000)).await.unwrap();
    with_timeout(stream.sender.flushed()).await;
    let mut pings = JoinSet::new();
    let mut waiting = BTreeSet::new();
    for round in 0..3 {
        for number in 5 * round..5 * (round + 1) {
            let handle = client.handle.clone();
            waiting.insert(number);
            pings.spawn(async move { handle.ping().await.map(|_| number) });
        }
        for _ in 0..4 {
            let answered = with_timeout(pings.join_next()).await.unwrap().unwrap();
            assert!(waiting.remove(&answered.unwrap()));
        }
    }
    let lanes: BTreeSet<_> = waiting.iter().map(|number| number % 5).collect();
    assert_eq!((waiting.len(), lanes.len()), (3, 1), "{waiting:?}");
}

const KEEPALIVE: KeepaliveConfig = KeepaliveConfig {
    interval: Duration::from_millis(500),
    timeout: Duration::from_secs(3),
};

/// Drives the connection until it is declared dead.
async fn drive_until_dead<T: AsyncRead + AsyncWrite + Unpin>(driver: Driver<T>, pings: SpdyPinger) {
    let mut driver = std::pin::pin!(driver);
    loop {
        pings.before_drive();
        // Data that is sent or received meanwhile postpones the next check.
        let soon = tokio::time::Instant::now() + KEEPALIVE.interval / 20;
        tokio::select! {
            ended = &mut driver => panic!("{ended:?}"),
            () = tokio::time::sleep_until(pings.next_deadline().min(soon)) => {}
        }
        if !pings.check(tokio::time::Instant::now()) {
            return;
        }
    }
}

#[tokio::test]
async fn pings_distinguish_an_unread_stream_from_a_lost_connection() {
    let (all, mut checks) = (tokio::task::LocalSet::new(), JoinSet::new());
    for policy in [PingPolicy::Always, PingPolicy::AvoidNearEof] {
        for unread in 0..=5 {
            checks.spawn_local_on(check_detection(policy, unread), &all);
        }
    }
    all.run_until(checks.join_all()).await;
}

async fn check_detection(policy: PingPolicy, unread: usize) {
    let what = format!("{policy:?}, {unread} unread");
    let listening = SpdystreamServer::start().await;
    let io = ObservedIo::new(listening.connect().await, Role::Client, KEEPALIVE, policy);
    let keepalive = io.keepalive_handle();
    let (handle, _, driver) = connection::client(io, Config::default());
    let pings = SpdyPinger::new(handle.clone(), keepalive);
    let mut watched = tokio::spawn(drive_until_dead(driver, pings));
    // A few frames in this many of its five worker queues.
    let mut streams = Vec::new();
    for index in 0..unread {
        let mut stream = open(&handle, "ignore", 0).await;
        for _ in 0..=3 * index {
            stream.sender.write("some".into()).await.unwrap();
            with_timeout(stream.sender.flushed()).await;
        }
        streams.push(stream);
    }
    // Much longer than it takes to declare a remote dead.
    let alive = tokio::time::timeout(4 * KEEPALIVE.timeout, &mut watched).await;
    assert!(alive.is_err(), "{what}: declared dead");
    // The other worker queues are still processed.
    let mut answered = 0;
    for _ in 0..5 {
        let headers = Headers::new().with("task", "echo").with("bytes", "0");
        let mut stream = handle.open(headers).unwrap();
        let answer = tokio::time::timeout(KEEPALIVE.timeout, stream.accepted()).await;
        answered += usize::from(answer.is_ok());
        streams.push(stream);
    }
    assert_eq!(answered, 5 - unread, "{what}");
    if unread == 5 {
        // The two cases are indistinguishable.
        watched.abort();
        return;
    }
    listening.server.process.signal("STOP");
    with_timeout(watched).await.unwrap();
    listening.server.process.signal("CONT");
}

#[tokio::test]
async fn streams_share_a_connection() {
    let client = Client::start().await;
    let mut echoes = JoinSet::new();
    for index in 0..40 {
        let bytes = index * 10_000;
        // Not awaited: written data is queued until there is a reply.
        let headers = Headers::new().with("task", "echo");
        let stream = client.handle.open(headers).unwrap();
        echoes.spawn(async move {
            let sending = tokio::spawn(send(stream.sender, bytes));
            assert_eq!(receive(stream.receiver).await.unwrap(), bytes);
            sending.await.unwrap().unwrap();
        });
    }
    with_timeout(echoes.join_all()).await;
    client.handle.close();
    with_timeout(client.driver).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_data_is_transferred_both_ways() {
    let client = Client::start().await;
    let start = Instant::now();
    let mut stream = client.open("receive", BULK_BYTES).await;
    stream.sender = with_timeout(send(stream.sender, BULK_BYTES)).await.unwrap();
    let answer = text(&mut stream.receiver).await.unwrap();
    assert_eq!(answer, BULK_BYTES.to_string());
    let sent = start.elapsed();

    let start = Instant::now();
    let stream = client.open("send", BULK_BYTES).await;
    assert_eq!(
        with_timeout(receive(stream.receiver)).await.unwrap(),
        BULK_BYTES
    );
    let received = start.elapsed();

    let start = Instant::now();
    let stream = client.open("both", BULK_BYTES).await;
    let sending = tokio::spawn(send(stream.sender, BULK_BYTES));
    assert_eq!(
        with_timeout(receive(stream.receiver)).await.unwrap(),
        BULK_BYTES
    );
    with_timeout(sending).await.unwrap().unwrap();
    let both = start.elapsed();
    println!(
        "{BULK_BYTES} bytes to spdystream {sent:?}, from spdystream {received:?}, both {both:?}"
    );
    with_timeout(client.handle.ping()).await.unwrap();
}

#[tokio::test]
async fn resets_and_rejections_of_spdystream_are_handled() {
    let client = Client::start().await;
    let mut stream = client.open("reset", 0).await;
    let before = with_timeout(stream.receiver.read()).await.unwrap();
    assert_eq!(before, Some("before".into()));
    let end = with_timeout(stream.receiver.read()).await;
    assert!(
        matches!(end, Err(StreamError::ResetByRemote(ResetStatus::Cancel))),
        "{end:?}"
    );
    let headers = Headers::new().with("task", "refuse");
    let mut stream = client.handle.open(headers).unwrap();
    let answer = with_timeout(stream.accepted()).await;
    assert!(matches!(answer, Err(StreamError::Refused)), "{answer:?}");
    for _ in 0..10 {
        with_timeout(client.handle.ping()).await.unwrap();
    }
}

#[tokio::test]
async fn spdystream_reads_nothing_while_one_of_its_streams_is_blocked() {
    let client = Client::start().await;
    let mut stream = client.open("ignore", 0).await;
    with_timeout(client.handle.ping()).await.unwrap();
    let filling =
        tokio::spawn(async move { while stream.sender.write(PATTERN.clone()).await.is_ok() {} });
    // Not by time: pings return until the writer is blocked.
    eventually("a ping without an answer", READY_TIMEOUT, async || {
        let ping = client.handle.ping();
        tokio::time::timeout(Duration::from_secs(1), ping)
            .await
            .is_err()
    })
    .await;
    assert!(!filling.is_finished());
    filling.abort();
}

/// Serves a stream of the client as the program does as a server. `cancelled` is how the
/// last ignored stream ended.
async fn serve_stream(handle: Handle, request: Request, cancelled: watch::Sender<String>) {
    let task = request.headers().get("task").unwrap().to_owned();
    let bytes = request.headers().get("bytes").unwrap().parse().unwrap();
    if task == "refuse" {
        return request.refuse(ResetStatus::RefusedStream);
    }
    let mut stream = request.accept(Headers::new()).unwrap();
    match &*task {
        "echo" => {
            while let Some(data) = stream.receiver.read().await.unwrap() {
                stream.sender.write(data).await.unwrap();
            }
        }
        "send" => {
            send(stream.sender, bytes).await.unwrap();
            return;
        }
        "receive" => {
            assert_eq!(receive(stream.receiver).await.unwrap(), bytes);
            stream.sender.write(bytes.to_string().into()).await.unwrap();
            stream.sender.finish().unwrap();
            return;
        }
        "both" => {
            let sending = tokio::spawn(send(stream.sender, bytes));
            assert_eq!(receive(stream.receiver).await.unwrap(), bytes);
            sending.await.unwrap().unwrap();
            return;
        }
        "reset" => {
            stream.sender.write("before".into()).await.unwrap();
            // Queued data would be discarded with the stream; it has been sent before the ping.
            handle.ping().await.unwrap();
            return stream.reset(ResetStatus::Cancel);
        }
        "ignore" => {
            let mut end = stream.receiver.read().await;
            while let Ok(Some(_)) = end {
                end = stream.receiver.read().await;
            }
            if let Err(StreamError::ResetByRemote(status)) = end {
                cancelled.send_replace(format!("{status:?}"));
            }
        }
        "cancelled" => {
            let mut reset = cancelled.subscribe();
            let answer = with_timeout(reset.wait_for(|status| !status.is_empty())).await;
            let answer = answer.unwrap().clone();
            stream.sender.write(answer.into()).await.unwrap();
        }
        other => panic!("{other}"),
    }
    let _ = stream.sender.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_spdystream_client_passes_all_its_checks() {
    let directory = ScratchDir::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = Spdystream::call(address, directory.path());
    let (socket, _) = with_timeout(listener.accept()).await.unwrap();
    let (handle, mut incoming, driver): (Handle, Incoming, Driver<_>) =
        connection::server(socket, Config::default());
    let driver = tokio::spawn(driver);
    let (cancelled, _) = watch::channel(String::new());
    let mut obliging = JoinSet::new();
    while let Some(request) = with_timeout(incoming.next()).await {
        obliging.spawn(serve_stream(handle.clone(), request, cancelled.clone()));
    }
    // The connection is closed after a reset, and no task waits for it.
    with_timeout(obliging.join_all()).await;
    drop((handle, incoming));
    with_timeout(driver).await.unwrap().unwrap();
    let status = tokio::task::spawn_blocking(move || (client.process.wait(), client))
        .await
        .unwrap();
    print!("{}", status.1.process.log());
    assert!(status.0.success());
}
