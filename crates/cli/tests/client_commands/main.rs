//! The client commands, run as users run them: against a fake cluster with pods, with pipes and
//! with a terminal.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test ends where it cannot go on

mod completion;
mod cp;
mod exec;
mod generated;
mod pod_selection;
mod port_forward;
mod terminal;

use std::process::Stdio;

use skewbridge_testkit::{Pods, ScratchDir, TEST_TIMEOUT};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

/// The output of a command.
#[derive(Debug)]
struct CommandOutput {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// A fake cluster with a pod, and a kubeconfig for it.
struct Cluster {
    pods: Pods,
    dir: ScratchDir,
}

impl Cluster {
    async fn start() -> Self {
        let pods = Pods::start().await;
        let dir = ScratchDir::new();
        dir.write("config", pods.kubeconfig());
        pods.pod("default", "web", &["app"]);
        Self { pods, dir }
    }

    /// The program, with the kubeconfig of this cluster.
    fn command(&self, words: &[&str]) -> Command {
        self.command_with("--default-signal=HUP,INT,QUIT,TERM", words)
    }

    /// The same, with signals as `env` sets them: dispositions are inherited, and the test
    /// runner may ignore some.
    fn command_with(&self, signals: &str, words: &[&str]) -> Command {
        let mut command = Command::new("env");
        command
            .args([signals, env!("CARGO_BIN_EXE_skewbridge")])
            .args(words)
            .env_clear()
            .env("KUBECONFIG", self.dir.path().join("config"))
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, words: &[&str]) -> CommandOutput {
        self.run_with(words, b"").await
    }

    async fn run_with(&self, words: &[&str], input: &[u8]) -> CommandOutput {
        let mut child = self
            .command(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writing = async move {
            let _ = stdin.write_all(input).await;
        };
        let both = async { tokio::join!(writing, child.wait_with_output()).1 };
        let output = timeout(TEST_TIMEOUT, both).await.unwrap().unwrap();
        CommandOutput {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}
