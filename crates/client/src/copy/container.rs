//! Where the commands of a copy run, and what they say.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use super::error::Error;
use crate::streams::{ExecRequest, Executor, ExitStatus};

/// How much of what a command complains of is kept, and told.
const COMPLAINT: u64 = 8 << 10;

/// In what pieces lines are read.
const LINES: usize = 16 << 10;

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
    /// The server says why it was not run to its end: that is not about the program.
    NotRun(String),
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
            ExitStatus::Failed(failure) if names_no_program(&failure.message) => Self::Missing,
            ExitStatus::Failed(failure) => Self::NotRun(failure.message.clone()),
            ExitStatus::Cut(cut) => Self::Cut(cut.cause.clone()),
        }
    }
}

/// The words of shells: which program is missing, they have said by their exit code.
fn speaks_of_absence(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["no such file or directory", "not found"]
        .iter()
        .any(|words| text.contains(words))
}

/// The words of Go and of container runtimes for a program that is not there. Pods,
/// containers and directories can be not found, too.
fn names_no_program(message: &str) -> bool {
    let text = message.to_ascii_lowercase();
    let of_a_program = ["executable file", "finding executable", "exec: \""];
    speaks_of_absence(&text)
        && !text.contains("container not found")
        && of_a_program.iter().any(|words| text.contains(words))
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

/// Runs a command that speaks in lines, and tells each. One that is longer than a limit, or
/// has no end, is not told.
pub(super) async fn each_line(
    container: &dyn Container,
    command: Vec<String>,
    longest: usize,
    mut tell: impl FnMut(&[u8]),
) -> Result<Ended, Error> {
    let mut process = container.run(command, Stdin::Null).await?;
    let reading = async {
        let mut lines = Lines::new(longest);
        let mut piece = Vec::with_capacity(LINES);
        // What was cut is known by how it ended.
        while let Ok(1..) = process.stdout.read_buf(&mut piece).await {
            lines.take(&piece, &mut tell);
            piece.clear();
        }
    };
    let ((), stderr, status) = tokio::join!(reading, complaint(process.stderr), process.ended);
    Ok(Ended::of(&status, &stderr))
}

/// Pieces to lines.
struct Lines {
    longest: usize,
    begun: Vec<u8>,
    /// It is too long.
    passed_over: bool,
}

impl Lines {
    fn new(longest: usize) -> Self {
        Self {
            longest,
            begun: Vec::new(),
            passed_over: false,
        }
    }

    fn take(&mut self, piece: &[u8], tell: &mut impl FnMut(&[u8])) {
        for part in piece.split_inclusive(|&byte| byte == b'\n') {
            let (text, ends) = match part.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (part, false),
            };
            if self.begun.len() + text.len() > self.longest {
                self.passed_over = true;
                self.begun.clear();
            }
            if !self.passed_over {
                self.begun.extend_from_slice(text);
            }
            if ends {
                if !std::mem::take(&mut self.passed_over) {
                    tell(&self.begun);
                }
                self.begun.clear();
            }
        }
    }
}

/// Carries something to its end beside a command that may end before it, or later: then
/// it is still to be waited for, or left.
pub(super) async fn beside<T, E>(
    reading: impl Future<Output = T>,
    mut ending: Pin<&mut impl Future<Output = E>>,
) -> (T, Option<E>) {
    tokio::pin!(reading);
    let mut ended = None;
    loop {
        tokio::select! {
            done = &mut reading => return (done, ended),
            end = &mut ending, if ended.is_none() => ended = Some(end),
        }
    }
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
    use skewbridge_remotecommand::{ExitCode, Failure};

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
        let not_run = |text: &str| Ended::NotRun(text.to_owned());
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
            (
                failed("exec: \"/bin/tar\": stat /bin/tar: no such file or directory: unknown"),
                "",
                Ended::Missing,
            ),
            (
                failed("executable file `tar` not found in $PATH: No such file or directory"),
                "",
                Ended::Missing,
            ),
            (failed("no space"), "", not_run("no space")),
        ];
        for (status, stderr, expected) in rows {
            assert_eq!(Ended::of(&status, stderr), expected, "{status:?}");
        }
    }
    /// Words of kubelets and container runtimes.
    #[test]
    fn other_things_that_are_not_found_are_no_missing_programs() {
        let messages = [
            "unable to upgrade connection: container not found (\"app\")",
            "container not found (\"executable file\")",
            "pod not found (\"web_default\")",
            "rpc error: code = NotFound desc = an error occurred when try to find container \
             \"4f\": not found",
            "failed to load task: no running task found: task 4f not found: not found",
            "OCI runtime exec failed: exec failed: unable to start container process: chdir to \
             cwd (\"/srv\") set in config.json failed: no such file or directory: unknown",
        ];
        for message in messages {
            let failed = ExitStatus::Failed(Failure::internal(message));
            let ended = Ended::of(&failed, "");
            assert!(matches!(ended, Ended::NotRun(_)), "{message}: {ended:?}");
        }
    }

    #[test]
    fn lines_are_told_whole_and_not_too_long_ones() {
        let text = b"one\n\nlonger than that\ntwo\nhalf";
        for size in 1..text.len() {
            let (mut lines, mut told) = (Lines::new(5), Vec::new());
            for piece in text.chunks(size) {
                lines.take(piece, &mut |line: &[u8]| told.push(line.to_vec()));
            }
            assert_eq!(told, [&b"one"[..], b"", b"two"], "{size}");
        }
    }
}
