//! Commands: input, output and exit status.

use std::time::Duration;

use skewbridge_client::remote_command::{
    AttachRequest, ExecRequest, Executor, ExitStatus, KeepAlive, SpdyExecutor, TerminalSize,
    Transport, WebSocketExecutor,
};
use skewbridge_testkit::{Pods, TEST_TIMEOUT};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::{endpoint, shell};

/// More than all buffers on the path.
const PAYLOAD_BYTES: usize = 3 << 20;

/// Both transports to the same fake server.
async fn executors_of_both_protocols(pods: &Pods) -> [Box<dyn Executor>; 2] {
    let endpoint = endpoint(pods).await;
    [
        Box::new(WebSocketExecutor::new(endpoint.clone())),
        Box::new(SpdyExecutor::new(endpoint)),
    ]
}

#[tokio::test]
async fn output_and_exit_code_of_a_command_are_received() {
    let pods = Pods::start().await;
    for executor in executors_of_both_protocols(&pods).await {
        let script = "echo out; echo err >&2; exit 7";
        let mut process = executor.start(&shell(script)).await.unwrap();
        let (mut out, mut err) = (String::new(), String::new());
        let mut stdout = process.stdout.take().unwrap();
        let mut stderr = process.stderr.take().unwrap();
        stdout.read_to_string(&mut out).await.unwrap();
        stderr.read_to_string(&mut err).await.unwrap();
        assert_eq!((&*out, &*err), ("out\n", "err\n"));
        let ExitStatus::Code(code) = process.wait().await else {
            panic!("no exit code")
        };
        assert_eq!(code.number(), 7);
    }
    let target = "/api/v1/namespaces/default/pods/web/exec?command=sh&command=-c&command=\
                  echo%20out%3B%20echo%20err%20%3E%262%3B%20exit%207&stdin=true&stdout=true&stderr=true";
    let expected = [
        format!("GET {target} websocket"),
        format!("POST {target} spdy"),
    ];
    assert_eq!(pods.requests(), expected);
}

#[tokio::test]
async fn input_and_its_end_reach_the_command() {
    let pods = Pods::start().await;
    for executor in executors_of_both_protocols(&pods).await {
        let mut process = executor.start(&shell("cat")).await.unwrap();
        let sent: Vec<u8> = (0..=250u8).cycle().take(PAYLOAD_BYTES).collect();
        let mut stdin = process.stdin.take().unwrap();
        let mut stdout = process.stdout.take().unwrap();
        let mut received = Vec::new();
        let writing = async {
            stdin.write_all(&sent).await?;
            stdin.shutdown().await
        };
        let (written, read) = tokio::join!(writing, stdout.read_to_end(&mut received));
        written.unwrap();
        read.unwrap();
        assert!(received == sent);
        assert_eq!(process.wait().await, ExitStatus::Success);
    }
}

#[tokio::test]
async fn unread_output_blocks_the_command() {
    let pods = Pods::start().await;
    for executor in executors_of_both_protocols(&pods).await {
        let script = format!("head -c {} /dev/zero", 4 * PAYLOAD_BYTES);
        let mut process = executor.start(&shell(&script)).await.unwrap();
        let mut stdout = process.stdout.take().unwrap();
        // The command has begun, and cannot end.
        assert!(stdout.next_chunk().await.unwrap().is_some());
        let waiting = timeout(Duration::from_millis(200), process.wait()).await;
        assert!(waiting.is_err(), "{waiting:?}");
        let mut received = Vec::new();
        stdout.read_to_end(&mut received).await.unwrap();
        assert_eq!(process.wait().await, ExitStatus::Success);
    }
}

#[tokio::test]
async fn streams_that_are_not_taken_are_closed_or_discarded() {
    let pods = Pods::start().await;
    for executor in executors_of_both_protocols(&pods).await {
        let script = format!("cat; head -c {PAYLOAD_BYTES} /dev/zero; exit 3");
        let mut process = executor.start(&shell(&script)).await.unwrap();
        let status = timeout(TEST_TIMEOUT, process.wait()).await.unwrap();
        assert!(matches!(status, ExitStatus::Code(code) if code.number() == 3));
    }
}

#[tokio::test]
async fn the_server_reports_why_a_command_cannot_run() {
    let pods = Pods::start().await;
    for executor in executors_of_both_protocols(&pods).await {
        let request = ExecRequest {
            command: ["@fail", "no such file"].map(str::to_owned).to_vec(),
            ..shell("")
        };
        let mut process = executor.start(&request).await.unwrap();
        let ExitStatus::Failed(failure) = process.wait().await else {
            panic!("it did not fail")
        };
        assert_eq!(failure.message, "Internal error occurred: no such file");
        assert_eq!(failure.code, Some(500));
    }
}

#[tokio::test]
async fn the_terminal_size_reaches_the_command() {
    let pods = Pods::start().await;
    for executor in executors_of_both_protocols(&pods).await {
        let request = ExecRequest {
            command: vec!["@sizes".to_owned()],
            tty: true,
            ..shell("")
        };
        let mut process = executor.start(&request).await.unwrap();
        assert!(process.stderr.is_none(), "a terminal has one output");
        let mut stdout = process.stdout.take().unwrap();
        let resizer = process.resizer();
        for (width, height, expected) in [(80, 24, "80x24\n"), (132, 50, "132x50\n")] {
            resizer.resize(TerminalSize { width, height });
            let mut line = vec![0; expected.len()];
            stdout.read_exact(&mut line).await.unwrap();
            assert_eq!(line, expected.as_bytes());
        }
        drop(process.stdin.take());
        assert_eq!(process.wait().await, ExitStatus::Success);
    }
}

#[tokio::test]
async fn attaching_to_a_running_process() {
    let pods = Pods::start().await;
    for executor in executors_of_both_protocols(&pods).await {
        let request = AttachRequest {
            namespace: "default".to_owned(),
            pod: "web".to_owned(),
            container: Some("app".to_owned()),
            stdin: true,
            stdout: true,
            ..AttachRequest::default()
        };
        let mut process = executor.attach(&request).await.unwrap();
        let mut stdin = process.stdin.take().unwrap();
        stdin.write_all(b"hello\n").await.unwrap();
        let mut line = [0; 6];
        let mut stdout = process.stdout.take().unwrap();
        stdout.read_exact(&mut line).await.unwrap();
        assert_eq!(&line, b"hello\n");
        stdin.shutdown().await.unwrap();
        assert_eq!(process.wait().await, ExitStatus::Success);
        let carried = process.transport().clone();
        assert!(matches!(
            carried,
            Transport::WebSocket
                | Transport::Spdy {
                    fallback_reason: None
                }
        ));
    }
}

#[tokio::test]
async fn writing_to_a_command_that_closed_its_input_fails() {
    let pods = Pods::start().await;
    for executor in executors_of_both_protocols(&pods).await {
        let mut process = executor.start(&shell("exec <&-; echo done")).await.unwrap();
        let mut stdin = process.stdin.take().unwrap();
        let status = process.wait().await;
        assert_eq!(status, ExitStatus::Success);
        let error = stdin.write_all(b"x").await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    }
}

#[tokio::test]
async fn an_idle_stream_is_kept_alive_by_pings() {
    let pods = Pods::start().await;
    let endpoint = endpoint(&pods).await;
    let keep_alive = KeepAlive {
        interval: Duration::from_millis(20),
        timeout: TEST_TIMEOUT,
    };
    let executors: [Box<dyn Executor>; 2] = [
        Box::new(WebSocketExecutor::new(endpoint.clone()).keep_alive(keep_alive)),
        Box::new(SpdyExecutor::new(endpoint).keep_alive(keep_alive)),
    ];
    for executor in executors {
        let mut process = executor
            .start(&shell("sleep 0.3; echo late"))
            .await
            .unwrap();
        let mut out = String::new();
        let mut stdout = process.stdout.take().unwrap();
        stdout.read_to_string(&mut out).await.unwrap();
        assert_eq!(out, "late\n");
        assert_eq!(process.wait().await, ExitStatus::Success);
    }
}
