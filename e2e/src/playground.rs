//! Our playground, as users run it, for real kubectls.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use skewbridge_testkit::{ScratchDir, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::binaries;
use crate::process::Process;

/// Longer than the playground gives itself, which says then what is missing.
const GETTING_READY: Duration = Duration::from_mins(1);

/// Longer than a server takes that waits for all its clients before it ends.
const ORDERED: Duration = Duration::from_mins(1);

/// A running playground. It ends when it is dropped.
pub struct Playground {
    /// The playground itself.
    pub process: Process,
    directory: PathBuf,
    scratch: ScratchDir,
}

impl Playground {
    /// Starts one, and waits until it is ready.
    pub async fn start() -> Self {
        let scratch = ScratchDir::new();
        let directory = scratch.path().join("play");
        let arguments = ["playground", "--directory"].map(str::to_owned);
        let arguments = [&arguments[..], &[directory.display().to_string()]].concat();
        let program = binaries::bridge();
        let mut process =
            Process::start("playground", "play", &program, &arguments, scratch.path());
        eventually("the playground is ready", GETTING_READY, async || {
            // First whether it runs: what it says at its end is there then.
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

    /// kubectl of a version in a context, ready to be given its arguments.
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

    /// client-go by the current context, which is a bridge; ready to be given its words.
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

    /// A script of `e2e/python`, ready to be given its words.
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

    /// Tells the control what to do with a server (`1.36`): `upgrade`, `kill`.
    pub async fn order(&self, server: &str, deed: &str) {
        let said = self.process.log();
        let (_, url) = said.split_once("http://127.0.0.1:").expect("the control");
        let (port, _) = url.split_once('/').expect("a path");
        let address = format!("127.0.0.1:{port}");
        let token = std::fs::read_to_string(self.directory.join("control-token"));
        let request = format!(
            "POST /servers/{server}/{deed} HTTP/1.1\r\nhost: {address}\r\n\
             authorization: Bearer {}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            token.expect("the control's token").trim()
        );
        let exchange = async {
            let mut stream = TcpStream::connect(&address).await?;
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            std::io::Result::Ok(answer)
        };
        let answer = tokio::time::timeout(ORDERED, exchange).await;
        let answer = answer.unwrap_or_else(|_| panic!("{deed} {server} does not end"));
        let answer = answer.expect("an answer of the control");
        assert!(
            answer.starts_with("HTTP/1.1 200 "),
            "{deed} {server}: {answer}"
        );
    }

    /// The kubeconfig with all contexts.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    /// Where files are that tests make.
    pub fn scratch(&self) -> &ScratchDir {
        &self.scratch
    }
}
