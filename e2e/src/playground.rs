//! Our playground, as users run it, for real kubectls.

use std::path::PathBuf;
use std::process::Stdio;

use skewbridge_testkit::{PATIENCE, ScratchDir, eventually};
use tokio::process::Command;

use crate::binaries;
use crate::process::Process;

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
        let process = Process::start("playground", "play", &program, &arguments, scratch.path());
        eventually("the playground is ready", PATIENCE, async || {
            process.log().contains("Ctrl-C ends it.")
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
            .arg(format!(
                "--kubeconfig={}",
                self.directory.join("kubeconfig").display()
            ))
            .arg(format!("--context={context}"))
            .env("HOME", self.scratch.path())
            .current_dir(self.scratch.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Where files are that tests make.
    pub fn scratch(&self) -> &ScratchDir {
        &self.scratch
    }
}
