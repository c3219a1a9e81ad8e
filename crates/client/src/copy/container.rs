//! Where the commands of a copy run, and what they say.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use super::error::Error;
use crate::streams::{ExecRequest, Executor, ExitStatus};

/// How much of what a command complains of is kept, and told.
const COMPLAINT: u64 = 8 << 10;

/// A command that is being started.
pub type Running<'a> = Pin<Box<dyn Future<Output = Result<Process, crate::Error>> + Send + 'a>>;

/// Runs commands: a container of a pod, or something that behaves like one.
pub trait Container: Send + Sync {
    /// Starts a command. Without stdin, it reads nothing.
    fn run(&self, command: Vec<String>, stdin: Stdin) -> Running<'_>;
}

/// Whether a command reads from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdin {
    /// It does.
    Piped,
    /// It reads nothing.
    Null,
}

/// A command that runs. Dropped, it is left alone.
pub struct Process {
    /// What it reads.
    pub stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// What it writes.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// What it complains of.
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    /// Ready when it has ended.
    pub ended: Pin<Box<dyn Future<Output = ExitStatus> + Send>>,
}

/// A container of a pod.
#[derive(Clone)]
pub struct Pod {
    /// By whom commands are started.
    pub executor: Arc<dyn Executor>,
    /// The namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container; none is the server's choice: the only one that there is.
    pub container: Option<String>,
}

impl Container for Pod {
    fn run(&self, command: Vec<String>, stdin: Stdin) -> Running<'_> {
        Box::pin(async move {
            let request = ExecRequest {
                namespace: self.namespace.clone(),
                pod: self.pod.clone(),
                container: self.container.clone(),
                command,
                stdin: stdin == Stdin::Piped,
                stdout: true,
                stderr: true,
                tty: false,
            };
            let mut process = self.executor.start(&request).await?;
            let stdin = process.stdin.take();
            let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
            Ok(Process {
                stdin: stdin.map(|stdin| Box::new(stdin) as _),
                stdout: stdout.map_or_else(nothing, |stdout| Box::new(stdout)),
                stderr: stderr.map_or_else(nothing, |stderr| Box::new(stderr)),
                ended: Box::pin(async move { process.wait().await }),
            })
        })
    }
}

fn nothing() -> Box<dyn AsyncRead + Send + Unpin> {
    Box::new(tokio::io::empty())
}

/// How a command ended, as a copy sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    Well,
    /// There is no such program.
    Missing,
    /// In words.
    Badly(String),
    /// Nobody knows.
    Cut(String),
}

impl Ended {
    pub(super) fn of(status: &ExitStatus, stderr: &str) -> Self {
        match status {
            ExitStatus::Success => Self::Well,
            // By a shell, or by a runtime that is one.
            ExitStatus::Code(code) if matches!(code.number(), 126 | 127) => {
                if speaks_of_absence(stderr) || stderr.trim().is_empty() {
                    Self::Missing
                } else {
                    Self::Badly(format!("ended with exit code {}", code.number()))
                }
            }
            ExitStatus::Code(code) => {
                Self::Badly(format!("ended with exit code {}", code.number()))
            }
            ExitStatus::Failed(failure) if speaks_of_absence(&failure.message) => Self::Missing,
            ExitStatus::Failed(failure) => Self::Badly(format!("failed: {}", failure.message)),
            ExitStatus::Cut(cut) => Self::Cut(cut.cause.clone()),
        }
    }
}

/// The words of Go, of container runtimes and of shells.
fn speaks_of_absence(text: &str) -> bool {
    [
        "executable file not found",
        "no such file or directory",
        "not found",
    ]
    .iter()
    .any(|words| text.to_ascii_lowercase().contains(words))
}

/// Whether a server that did not answer may do so soon.
pub(super) fn may_pass(error: &crate::Error) -> bool {
    use crate::Error::{BrokeOff, NotHttp, Proxy, Refused, TimedOut, Tls, Unreachable};
    match error {
        // Overloaded, or a load balancer whose servers restart.
        Refused { refusal, .. } => matches!(refusal.code, 429 | 502..=504),
        Unreachable { .. }
        | BrokeOff { .. }
        | TimedOut { .. }
        | Proxy { .. }
        | Tls { .. }
        | NotHttp { .. } => true,
        _ => false,
    }
}

/// What a short command said.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) ended: Ended,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
}

/// Runs a command that says little, and no more than a limit of it is heard.
pub(super) async fn ask(
    container: &dyn Container,
    command: Vec<String>,
    limit: u64,
) -> Result<Answer, Error> {
    let process = container.run(command, Stdin::Null).await?;
    let mut stdout = Vec::new();
    let reading = async {
        let mut limited = process.stdout.take(limit);
        // What was cut is known by how it ended.
        let _ = limited.read_to_end(&mut stdout).await;
        // A command that says more must not wait for us.
        let _ = tokio::io::copy(&mut limited.into_inner(), &mut tokio::io::sink()).await;
    };
    let ((), stderr, status) = tokio::join!(reading, complaint(process.stderr), process.ended);
    Ok(Answer {
        ended: Ended::of(&status, &stderr),
        stdout,
        stderr,
    })
}

/// What a command complains of: the first of it.
pub(super) async fn complaint(mut stderr: impl AsyncRead + Unpin) -> String {
    let mut kept = Vec::new();
    let _ = (&mut stderr).take(COMPLAINT).read_to_end(&mut kept).await;
    let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
    super::contained::shown_lines(&kept)
}

#[cfg(test)]
mod tests {
    use skewbridge_channels::{ExitCode, Failure};

    use super::*;

    #[test]
    fn a_missing_program_is_told_from_one_that_fails() {
        let code = |code| ExitStatus::Code(ExitCode::new(code).unwrap());
        let failed = |message: &str| {
            ExitStatus::Failed(Failure {
                code: Some(500),
                reason: "InternalError".to_owned(),
                message: message.to_owned(),
            })
        };
        let badly = |text: &str| Ended::Badly(text.to_owned());
        let rows = [
            (ExitStatus::Success, "", Ended::Well),
            (code(127), "sh: tar: not found", Ended::Missing),
            (code(126), "", Ended::Missing),
            (
                code(126),
                "sh: tar: Permission denied",
                badly("ended with exit code 126"),
            ),
            (
                code(2),
                "tar: x: not found",
                badly("ended with exit code 2"),
            ),
            (
                failed("exec: \"tar\": executable file not found in $PATH: unknown"),
                "",
                Ended::Missing,
            ),
            (failed("no space"), "", badly("failed: no space")),
        ];
        for (status, stderr, expected) in rows {
            assert_eq!(Ended::of(&status, stderr), expected, "{status:?}");
        }
    }
}
