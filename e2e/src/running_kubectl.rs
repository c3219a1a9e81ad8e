//! A kubectl that stays until it is told to go.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// For a line that comes at once on an idle machine.
const BOUND: Duration = Duration::from_secs(30);

/// A running command, and what it prints.
#[derive(Debug)]
pub struct RunningKubectl {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl RunningKubectl {
    /// Starts it with its output in our hands.
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

    /// The next line it prints.
    pub async fn line(&mut self) -> String {
        let line = tokio::time::timeout(BOUND, self.lines.next_line()).await;
        line.expect("a line in time")
            .expect("a readable line")
            .expect("kubectl goes on")
    }

    /// Ends it; it must have nothing more to say.
    pub async fn end(mut self) {
        self.child.kill().await.expect("it can be killed");
        let rest = tokio::time::timeout(BOUND, self.lines.next_line()).await;
        let rest = rest.expect("the end of the output");
        assert_eq!(rest.expect("a readable line"), None);
    }
}
