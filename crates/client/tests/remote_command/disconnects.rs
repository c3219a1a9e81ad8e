//! Lost connections are never reported as success.

use std::time::Duration;

use skewbridge_client::remote_command::{
    Executor, ExitStatus, KeepAlive, SpdyExecutor, WebSocketExecutor,
};
use skewbridge_testkit::{Pods, TEST_TIMEOUT};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::{endpoint, endpoint_at, shell};

/// At most what the fake server writes after 101 for this command.
const MAX_RESPONSE_BYTES: usize = 400;

async fn run(executor: &dyn Executor) -> (Vec<u8>, bool, ExitStatus) {
    let mut process = executor.start(&shell("echo hello; exit 0")).await.unwrap();
    let mut out = Vec::new();
    let mut stdout = process.stdout.take().unwrap();
    let clean = stdout.read_to_end(&mut out).await.is_ok();
    let status = timeout(TEST_TIMEOUT, process.wait()).await.unwrap();
    (out, clean, status)
}

/// Cuts the connection after each number of bytes.
async fn assert_never_success(pods: &Pods, executor: &dyn Executor) {
    let mut successes = Vec::new();
    for cut in 0..MAX_RESPONSE_BYTES {
        pods.cut_after(Some(cut));
        let (out, clean, status) = run(executor).await;
        match status {
            ExitStatus::Success => {
                assert_eq!(out, b"hello\n", "cut after {cut}");
                assert!(clean, "cut after {cut}");
                successes.push(cut);
            }
            ExitStatus::Disconnected(disconnected) => {
                assert!(!clean, "cut after {cut}");
                assert_eq!(disconnected.received, out.len() as u64, "cut after {cut}");
                assert!(b"hello\n".starts_with(&out), "cut after {cut}");
            }
            other => panic!("cut after {cut}: {other:?}"),
        }
    }
    // Only after the Status a lost connection is harmless.
    assert!(
        successes.first().is_some_and(|first| *first > 40),
        "{successes:?}"
    );
}

#[tokio::test]
async fn a_websocket_cut_anywhere_before_its_status_is_not_a_success() {
    let pods = Pods::start().await;
    let executor = WebSocketExecutor::new(endpoint(&pods).await);
    assert_never_success(&pods, &executor).await;
}

#[tokio::test]
async fn spdy_cut_anywhere_before_its_status_is_not_a_success() {
    let pods = Pods::start().await;
    let executor = SpdyExecutor::new(endpoint(&pods).await);
    assert_never_success(&pods, &executor).await;
}

#[tokio::test]
async fn a_crashed_server_is_reported_with_the_delivered_bytes() {
    let pods = Pods::start().await;
    let endpoint = endpoint(&pods).await;
    let executors: [Box<dyn Executor>; 2] = [
        Box::new(WebSocketExecutor::new(endpoint.clone())),
        Box::new(SpdyExecutor::new(endpoint)),
    ];
    for executor in executors {
        let mut process = executor.start(&shell("cat")).await.unwrap();
        let mut stdin = process.stdin.take().unwrap();
        stdin.write_all(b"hello").await.unwrap();
        let mut received = [0; 5];
        let mut stdout = process.stdout.take().unwrap();
        stdout.read_exact(&mut received).await.unwrap();
        pods.cut_all();
        let status = timeout(TEST_TIMEOUT, process.wait()).await.unwrap();
        let ExitStatus::Disconnected(cut) = status else {
            panic!("{status:?}")
        };
        assert_eq!((cut.sent, cut.unsent, cut.received), (5, 0, 5), "{cut:?}");
        assert!(!cut.cause.is_empty());
        let error = stdout.read_exact(&mut received).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
        let error = stdin.write_all(b"more").await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    }
}

/// Accepts every upgrade, and sends nothing more.
async fn unresponsive_server(
    grant: fn(&str) -> String,
) -> (std::net::SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut kept = Vec::new();
        loop {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(tcp.read_u8().await.unwrap());
            }
            let answer = grant(&String::from_utf8(head).unwrap());
            tcp.write_all(answer.as_bytes()).await.unwrap();
            kept.push(tcp);
        }
    });
    (addr, task)
}

fn granted(head: &str) -> String {
    let key = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("sec-websocket-key")
            .then_some(value)
    });
    match key {
        Some(key) => {
            let key = skewbridge_websocket::Key::parse(&key.parse().unwrap()).unwrap();
            format!(
                "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {}\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n",
                key.accept().to_str().unwrap()
            )
        }
        None => "HTTP/1.1 101 X\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n\
                 X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
            .to_owned(),
    }
}

#[tokio::test]
async fn an_unresponsive_server_is_detected() {
    let (addr, task) = unresponsive_server(granted).await;
    let endpoint = endpoint_at(addr).await;
    let keep_alive = KeepAlive {
        interval: Duration::from_millis(50),
        timeout: Duration::from_millis(100),
    };
    let executors: [Box<dyn Executor>; 2] = [
        Box::new(WebSocketExecutor::new(endpoint.clone()).keep_alive(keep_alive)),
        Box::new(SpdyExecutor::new(endpoint).keep_alive(keep_alive)),
    ];
    for executor in executors {
        let mut process = executor.start(&shell("cat")).await.unwrap();
        let _stdin = process.stdin.take();
        let status = timeout(TEST_TIMEOUT, process.wait()).await.unwrap();
        let ExitStatus::Disconnected(cut) = status else {
            panic!("{status:?}")
        };
        assert_eq!(cut.cause, "the server does not answer any more");
    }
    task.abort();
}

#[tokio::test]
async fn a_protocol_violation_ends_the_connection() {
    let (addr, task) = unresponsive_server(|head| {
        granted(head) + "\u{80}nonsense and more of it, as long as a frame"
    })
    .await;
    let endpoint = endpoint_at(addr).await;
    let executors: [Box<dyn Executor>; 2] = [
        Box::new(WebSocketExecutor::new(endpoint.clone())),
        Box::new(SpdyExecutor::new(endpoint)),
    ];
    for executor in executors {
        let mut process = executor.start(&shell("cat")).await.unwrap();
        let _stdin = process.stdin.take();
        let status = timeout(TEST_TIMEOUT, process.wait()).await.unwrap();
        assert!(matches!(status, ExitStatus::Disconnected(_)), "{status:?}");
    }
    task.abort();
}
