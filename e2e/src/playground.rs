//! Our playground, as users run it, for real kubectls.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use skewbridge_testkit::{ScratchDir, eventually};
use tokio::process::Command;

use crate::binaries;
use crate::process::Process;

/// Longer than the playground gives itself, which says then what is missing.
const GETTING_READY: Duration = Duration::from_mins(1);

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

    /// The kubeconfig with all contexts.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    /// Where files are that tests make.
    pub fn scratch(&self) -> &ScratchDir {
        &self.scratch
    }
}
