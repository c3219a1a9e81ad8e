//! The library's examples, run as programs.

use std::path::PathBuf;
use std::process::Stdio;

use skewbridge_testkit::{Pods, ScratchDir, TEST_TIMEOUT};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::time::timeout;

/// Cargo builds examples beside the tests, but gives no variable with their path.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().unwrap().parent().unwrap();
    let example = target.join("examples").join(name);
    let hint = "`cargo test -p skewbridge-client` without --test builds the examples";
    assert!(example.exists(), "{}: {hint}", example.display());
    example
}

fn command(name: &str, pods: &Pods, dir: &ScratchDir) -> Command {
    let config = dir.write("config", pods.kubeconfig());
    let mut command = Command::new(example(name));
    command.env("KUBECONFIG", config).kill_on_drop(true);
    command
}

#[tokio::test]
async fn running_a_command() {
    let (pods, dir) = (Pods::start().await, ScratchDir::new());
    let words = ["web", "sh", "-c", "echo out; echo err >&2; exit 7"];
    let output = command("run_a_command", &pods, &dir).args(words).output();
    let output = timeout(TEST_TIMEOUT, output).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        (&*output.stdout, &*output.stderr),
        (&b"out\n"[..], &b"err\n"[..])
    );
}

#[tokio::test]
async fn copying_a_file() {
    let (pods, dir) = (Pods::start().await, ScratchDir::new());
    let from = dir
        .write("from", "the copied content")
        .display()
        .to_string();
    let to = dir.path().join("to");
    let copying = command("copy_a_file", &pods, &dir)
        .args(["web", &from])
        .arg(&to)
        .output();
    let output = timeout(TEST_TIMEOUT, copying).await.unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"18 bytes\n");
    assert_eq!(std::fs::read(to).unwrap(), b"the copied content");
}

#[tokio::test]
async fn forwarding_a_port() {
    let (pods, dir) = (Pods::start().await, ScratchDir::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut child = command("forward_a_port", &pods, &dir)
        .args(["web", &port.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = timeout(TEST_TIMEOUT, lines.next_line())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let mut local = TcpStream::connect(&address).await.unwrap();
    local.write_all(b"hello").await.unwrap();
    let (mut remote, _) = timeout(TEST_TIMEOUT, listener.accept())
        .await
        .unwrap()
        .unwrap();
    let mut received = [0; 5];
    remote.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"hello");
}
