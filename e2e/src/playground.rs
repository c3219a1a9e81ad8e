//! A playground, as users run it, for real kubectls.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use skewbridge_testkit::{ScratchDir, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::binaries;
use crate::process::Process;

/// Longer than the playground's own startup timeout, which reports what is missing.
const READY_TIMEOUT: Duration = Duration::from_mins(1);

/// Longer than a server takes to stop that waits for all its clients.
const ACTION_TIMEOUT: Duration = Duration::from_mins(1);

/// A running playground. It stops when it is dropped.
pub struct Playground {
    /// The process.
    pub process: Process,
    directory: PathBuf,
    scratch: ScratchDir,
}

impl Playground {
    /// Starts a playground, and waits until it is ready.
    pub async fn start() -> Self {
        let scratch = ScratchDir::new();
        let directory = scratch.path().join("play");
        let arguments = ["playground", "--directory"].map(str::to_owned);
        let arguments = [&arguments[..], &[directory.display().to_string()]].concat();
        let program = binaries::bridge();
        let mut process =
            Process::start("playground", "play", &program, &arguments, scratch.path());
        eventually("the playground is ready", READY_TIMEOUT, async || {
            // The process is checked first, so that the log is complete if it has exited.
            let is_running = process.is_running();
            let is_ready = process.log().contains("Ctrl-C ends it.");
            assert!(is_running || is_ready, "the playground has ended");
            is_ready
        })
        .await;
        Self {
            process,
            directory,
            scratch,
        }
    }

    /// kubectl of a version in a context, without its arguments.
    pub fn kubectl(&self, version: &str, context: &str) -> Command {
        let mut command = Command::new(binaries::kubectl(version));
        command
            .arg(format!("--kubeconfig={}", self.kubeconfig().display()))
            .arg(format!("--context={context}"))
            .env("HOME", self.scratch.path())
            .current_dir(self.scratch.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// client-go with the current context, which is a bridge; without its arguments.
    pub fn client_go(&self, namespace: &str) -> Command {
        let mut command = Command::new(binaries::client_go());
        command
            .arg(format!(
                "--kubeconfig={}",
                self.directory.join("kubeconfig").display()
            ))
            .arg(format!("--namespace={namespace}"))
            .env("HOME", self.scratch.path())
            .kill_on_drop(true);
        command
    }

    /// A script of `e2e/python`, without its arguments.
    pub fn python(&self, script: &str) -> Command {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
        let mut command = Command::new(binaries::python());
        command
            .arg(scripts.join(script))
            .env("HOME", self.scratch.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Sends an action (`upgrade`, `kill`) for a server (`1.36`) to the control port.
    pub async fn control(&self, server: &str, action: &str) {
        let log = self.process.log();
        let (_, url) = log
            .split_once("http://127.0.0.1:")
            .expect("the control port");
        let (port, _) = url.split_once('/').expect("a path");
        let address = format!("127.0.0.1:{port}");
        let token = std::fs::read_to_string(self.directory.join("control-token"));
        let request = format!(
            "POST /servers/{server}/{action} HTTP/1.1\r\nhost: {address}\r\n\
             authorization: Bearer {}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            token.expect("the control token").trim()
        );
        let exchange = async {
            let mut stream = TcpStream::connect(&address).await?;
            stream.write_all(request.as_bytes()).await?;
            let mut response = String::new();
            stream.read_to_string(&mut response).await?;
            std::io::Result::Ok(response)
        };
        let response = tokio::time::timeout(ACTION_TIMEOUT, exchange).await;
        let response = response.unwrap_or_else(|_| panic!("{action} {server} does not end"));
        let response = response.expect("a response of the control port");
        assert!(
            response.starts_with("HTTP/1.1 200 "),
            "{action} {server}: {response}"
        );
    }

    /// The kubeconfig with all contexts.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    /// The directory for files of tests.
    pub fn scratch(&self) -> &ScratchDir {
        &self.scratch
    }
}
