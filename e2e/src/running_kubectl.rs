//! A kubectl that runs until it is stopped.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// For a line that takes no time on an idle machine.
const LINE_TIMEOUT: Duration = Duration::from_secs(30);

/// A running command with its output.
#[derive(Debug)]
pub struct RunningKubectl {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl RunningKubectl {
    /// Starts a command with its output piped.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let stdout = child.stdout.take().expect("a piped output");
        Self {
            child,
            lines: BufReader::new(stdout).lines(),
        }
    }

    /// The next line of its output.
    pub async fn line(&mut self) -> String {
        let line = tokio::time::timeout(LINE_TIMEOUT, self.lines.next_line()).await;
        line.expect("a line in time")
            .expect("a readable line")
            .expect("kubectl prints a further line")
    }

    /// Kills kubectl, and asserts that it has printed no further line.
    pub async fn end(mut self) {
        self.child.kill().await.expect("it can be killed");
        let rest = tokio::time::timeout(LINE_TIMEOUT, self.lines.next_line()).await;
        let rest = rest.expect("the end of the output");
        assert_eq!(rest.expect("a readable line"), None);
    }
}
