//! `skewbridge-spdy` with moby/spdystream, the SPDY of all of Kubernetes, in both
//! roles.

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

/// What exec and cp are tried with.
const BULK: usize = 200 << 20;

/// Bytes whose places can be told from each other, as the program has them.
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

/// Reads to the end; gives how much came. All of it has to be the pattern.
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
    while let Some(data) = within(receiver.read()).await? {
        text.extend_from_slice(&data);
    }
    Ok(String::from_utf8(text).unwrap())
}

async fn within<F: IntoFuture>(future: F) -> F::Output {
    let limit = Duration::from_mins(2);
    tokio::time::timeout(limit, future).await.unwrap()
}

/// A server that listens.
struct Listening {
    server: Spdystream,
    _directory: ScratchDir,
}

impl Listening {
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

/// Our client, and its server.
struct Client {
    handle: Handle,
    driver: JoinHandle<Result<(), Error>>,
    _server: Listening,
}

impl Client {
    async fn start() -> Self {
        let server = Listening::start().await;
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
    within(stream.accepted()).await.unwrap();
    stream
}

#[tokio::test]
async fn headers_go_there_and_back() {
    let client = Client::start().await;
    for round in 0..50 {
        let sent = Headers::new()
            .with("task", "headers")
            .with("round", round.to_string())
            .with("many", "one")
            .with("many", "two");
        let mut stream = client.handle.open(sent.clone()).unwrap();
        let reply = within(stream.accepted()).await.unwrap();
        assert_eq!(reply.len(), sent.len());
        for (name, value) in sent.iter() {
            assert!(reply.get_all(name).any(|it| it == value), "{name}");
        }
        stream.sender.finish().unwrap();
        assert_eq!(text(&mut stream.receiver).await.unwrap(), "");
    }
}

#[tokio::test]
async fn one_ping_in_five_waits_behind_a_stream_that_it_does_not_read() {
    let client = Client::start().await;
    let mut stream = client.open("ignore", 0).await;
    stream.sender.write(PATTERN.slice(..1000)).await.unwrap();
    within(stream.sender.flushed()).await;
    let mut pings = JoinSet::new();
    let mut waiting = BTreeSet::new();
    for round in 0..3 {
        for number in 5 * round..5 * (round + 1) {
            let handle = client.handle.clone();
            waiting.insert(number);
            pings.spawn(async move { handle.ping().await.map(|_| number) });
        }
        for _ in 0..4 {
            let answered = within(pings.join_next()).await.unwrap().unwrap();
            assert!(waiting.remove(&answered.unwrap()));
        }
    }
    let lanes: BTreeSet<_> = waiting.iter().map(|number| number % 5).collect();
    assert_eq!((waiting.len(), lanes.len()), (3, 1), "{waiting:?}");
}

const PACE: KeepaliveConfig = KeepaliveConfig {
    interval: Duration::from_millis(500),
    timeout: Duration::from_secs(3),
};

/// Moves bytes until it is known to be gone.
async fn until_dead<T: AsyncRead + AsyncWrite + Unpin>(driver: Driver<T>, pings: SpdyPinger) {
    let mut driver = std::pin::pin!(driver);
    loop {
        pings.before_drive();
        // What is sent or heard meanwhile moves the next look.
        let soon = tokio::time::Instant::now() + PACE.interval / 20;
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
async fn pings_tell_what_it_does_not_read_from_its_loss() {
    let (all, mut told) = (tokio::task::LocalSet::new(), JoinSet::new());
    for asked in [PingPolicy::Always, PingPolicy::AvoidNearEof] {
        for unread in 0..=5 {
            told.spawn_local_on(tell(asked, unread), &all);
        }
    }
    all.run_until(told.join_all()).await;
}

async fn tell(asked: PingPolicy, unread: usize) {
    let what = format!("{asked:?}, {unread} unread");
    let listening = Listening::start().await;
    let io = ObservedIo::new(listening.connect().await, Role::Client, PACE, asked);
    let keepalive = io.keepalive_handle();
    let (handle, _, driver) = connection::client(io, Config::default());
    let pings = SpdyPinger::new(handle.clone(), keepalive);
    let mut watched = tokio::spawn(until_dead(driver, pings));
    // A few frames in so many of its five lanes.
    let mut streams = Vec::new();
    for index in 0..unread {
        let mut stream = open(&handle, "ignore", 0).await;
        for _ in 0..=3 * index {
            stream.sender.write("some".into()).await.unwrap();
            within(stream.sender.flushed()).await;
        }
        streams.push(stream);
    }
    // Much longer than it takes to take somebody for dead.
    let alive = tokio::time::timeout(4 * PACE.timeout, &mut watched).await;
    assert!(alive.is_err(), "{what}: taken for dead");
    // The other lanes still go on.
    let mut answered = 0;
    for _ in 0..5 {
        let headers = Headers::new().with("task", "echo").with("bytes", "0");
        let mut stream = handle.open(headers).unwrap();
        let answer = tokio::time::timeout(PACE.timeout, stream.accepted()).await;
        answered += usize::from(answer.is_ok());
        streams.push(stream);
    }
    assert_eq!(answered, 5 - unread, "{what}");
    if unread == 5 {
        // Nobody could tell.
        watched.abort();
        return;
    }
    listening.server.process.signal("STOP");
    within(watched).await.unwrap();
    listening.server.process.signal("CONT");
}

#[tokio::test]
async fn streams_share_a_connection_to_it() {
    let client = Client::start().await;
    let mut echoes = JoinSet::new();
    for index in 0..40 {
        let bytes = index * 10_000;
        // Not waited for: what is written is kept until it is answered.
        let headers = Headers::new().with("task", "echo");
        let stream = client.handle.open(headers).unwrap();
        echoes.spawn(async move {
            let sending = tokio::spawn(send(stream.sender, bytes));
            assert_eq!(receive(stream.receiver).await.unwrap(), bytes);
            sending.await.unwrap().unwrap();
        });
    }
    within(echoes.join_all()).await;
    client.handle.close();
    within(client.driver).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn much_goes_to_it_and_comes_from_it() {
    let client = Client::start().await;
    let start = Instant::now();
    let mut stream = client.open("receive", BULK).await;
    stream.sender = within(send(stream.sender, BULK)).await.unwrap();
    let answer = text(&mut stream.receiver).await.unwrap();
    assert_eq!(answer, BULK.to_string());
    let sent = start.elapsed();

    let start = Instant::now();
    let stream = client.open("send", BULK).await;
    assert_eq!(within(receive(stream.receiver)).await.unwrap(), BULK);
    let received = start.elapsed();

    let start = Instant::now();
    let stream = client.open("both", BULK).await;
    let sending = tokio::spawn(send(stream.sender, BULK));
    assert_eq!(within(receive(stream.receiver)).await.unwrap(), BULK);
    within(sending).await.unwrap().unwrap();
    let both = start.elapsed();
    println!("{BULK} bytes to it {sent:?}, from it {received:?}, both {both:?}");
    within(client.handle.ping()).await.unwrap();
}

#[tokio::test]
async fn its_resets_and_refusals_are_understood() {
    let client = Client::start().await;
    let mut stream = client.open("reset", 0).await;
    let before = within(stream.receiver.read()).await.unwrap();
    assert_eq!(before, Some("before".into()));
    let end = within(stream.receiver.read()).await;
    assert!(
        matches!(end, Err(StreamError::ResetByRemote(ResetStatus::Cancel))),
        "{end:?}"
    );
    let headers = Headers::new().with("task", "refuse");
    let mut stream = client.handle.open(headers).unwrap();
    let answer = within(stream.accepted()).await;
    assert!(matches!(answer, Err(StreamError::Refused)), "{answer:?}");
    for _ in 0..10 {
        within(client.handle.ping()).await.unwrap();
    }
}

#[tokio::test]
async fn it_hears_nothing_more_while_one_of_its_streams_is_not_read() {
    let client = Client::start().await;
    let mut stream = client.open("ignore", 0).await;
    within(client.handle.ping()).await.unwrap();
    let filling =
        tokio::spawn(async move { while stream.sender.write(PATTERN.clone()).await.is_ok() {} });
    // Not by time: until the writer stands still, pings come back.
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

/// Does for a stream of its client what the program does as a server. `cancelled`
/// is how the last ignored stream ended.
async fn oblige(handle: Handle, request: Request, cancelled: watch::Sender<String>) {
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
            // What waits would be thrown away with the stream; it has left with the ping.
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
            let answer = within(reset.wait_for(|status| !status.is_empty())).await;
            let answer = answer.unwrap().clone();
            stream.sender.write(answer.into()).await.unwrap();
        }
        other => panic!("{other}"),
    }
    let _ = stream.sender.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_client_finds_all_it_asks_for() {
    let directory = ScratchDir::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = Spdystream::call(address, directory.path());
    let (socket, _) = within(listener.accept()).await.unwrap();
    let (handle, mut incoming, driver): (Handle, Incoming, Driver<_>) =
        connection::server(socket, Config::default());
    let driver = tokio::spawn(driver);
    let (cancelled, _) = watch::channel(String::new());
    let mut obliging = JoinSet::new();
    while let Some(request) = within(incoming.next()).await {
        obliging.spawn(oblige(handle.clone(), request, cancelled.clone()));
    }
    // It has gone away, after a reset, and is waited for by nobody.
    within(obliging.join_all()).await;
    drop((handle, incoming));
    within(driver).await.unwrap().unwrap();
    let status = tokio::task::spawn_blocking(move || (client.process.wait(), client))
        .await
        .unwrap();
    print!("{}", status.1.process.log());
    assert!(status.0.success());
}
