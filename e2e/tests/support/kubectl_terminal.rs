//! A terminal around a real kubectl.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use skewbridge_testkit::eventually;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// For an operation that takes a second or two on an idle machine.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// A program in a terminal, run by `script` of util-linux.
pub(crate) struct Terminal {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Terminal {
    pub(crate) fn start(inner: &Command) -> Self {
        let inner = inner.as_std();
        let words = std::iter::once(inner.get_program()).chain(inner.get_args());
        let quoted =
            words.map(|word| format!("'{}'", word.to_str().unwrap().replace('\'', r"'\''")));
        let line = format!("exec {}", quoted.collect::<Vec<_>>().join(" "));
        let variables = inner.get_envs();
        let variables = variables.filter_map(|(name, value)| Some((name, value?)));
        let mut child = Command::new("script")
            .args([
                "--quiet",
                "--flush",
                "--return",
                "--command",
                &line,
                "/dev/null",
            ])
            .envs(variables)
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            stdin,
            lines,
        }
    }

    /// Changes the size of the terminal, which the kernel signals to kubectl.
    pub(crate) async fn resize(&self, rows: u16, columns: u16) {
        let script = self.child.id().unwrap();
        let mut device = None;
        eventually("a program in the terminal", COMMAND_TIMEOUT, async || {
            let children = fs::read_to_string(format!("/proc/{script}/task/{script}/children"));
            let Some(child) = children
                .ok()
                .and_then(|it| Some(it.split_whitespace().next()?.to_owned()))
            else {
                return false;
            };
            let link = fs::read_link(format!("/proc/{child}/fd/0")).ok();
            device = link.filter(|it| it.starts_with("/dev/pts"));
            device.is_some()
        })
        .await;
        let (rows, columns) = (rows.to_string(), columns.to_string());
        let status = Command::new("stty")
            .arg("-F")
            .arg(device.unwrap())
            .args(["rows", &rows, "cols", &columns])
            .status();
        assert!(status.await.unwrap().success());
    }

    pub(crate) async fn types(&mut self, text: &str) {
        self.stdin.write_all(text.as_bytes()).await.unwrap();
        self.stdin.flush().await.unwrap();
    }

    pub(crate) async fn line_with(&mut self, text: &str) -> String {
        let lines = self.lines_until(text).await;
        lines.last().cloned().expect("a line")
    }

    /// The line with this text, after those before it.
    pub(crate) async fn lines_until(&mut self, text: &str) -> Vec<String> {
        let reading = async {
            let mut lines: Vec<String> = Vec::new();
            while !lines.last().is_some_and(|line| line.contains(text)) {
                let line = self.lines.next_line().await.unwrap();
                lines.push(line.expect("the terminal has a further line"));
            }
            lines
        };
        timeout(COMMAND_TIMEOUT, reading)
            .await
            .expect("a line in time")
    }

    /// The remaining output, and the exit code.
    pub(crate) async fn rest(mut self) -> (Vec<String>, Option<i32>) {
        let reading = async {
            let mut lines = Vec::new();
            while let Some(line) = self.lines.next_line().await.unwrap() {
                lines.push(line);
            }
            lines
        };
        let lines = timeout(COMMAND_TIMEOUT, reading)
            .await
            .expect("an end in time");
        (lines, self.end().await)
    }

    pub(crate) async fn end(mut self) -> Option<i32> {
        let status = timeout(COMMAND_TIMEOUT, self.child.wait()).await;
        status.expect("an end in time").unwrap().code()
    }
}
