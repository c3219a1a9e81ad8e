//! Running the commands of a copy in a container.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use super::error::Error;
use crate::remote_command::{ExecRequest, Executor, ExitStatus};

/// How much of a command's stderr is kept for errors.
const MAX_STDERR_BYTES: u64 = 8 << 10;

/// How much is read at once.
const READ_CHUNK_BYTES: usize = 16 << 10;

/// The future of a command that is being started.
pub type RunFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Process, crate::error::Error>> + Send + 'a>>;

/// Runs commands: a container of a pod, or anything that behaves like one.
pub trait Container: Send + Sync {
    /// Starts a command. Without stdin, its input is empty.
    fn run(&self, command: Vec<String>, stdin: Stdin) -> RunFuture<'_>;
}

/// Whether a command has stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdin {
    /// The command has stdin.
    Piped,
    /// The input of the command is empty.
    Null,
}

/// A running command. Dropping it disconnects from the command.
pub struct Process {
    /// Its stdin.
    pub stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// Its stdout.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// Its stderr.
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    /// Resolves when it has ended.
    pub exit: Pin<Box<dyn Future<Output = ExitStatus> + Send>>,
}

/// A container of a pod.
#[derive(Clone)]
pub struct Pod {
    /// Starts the commands.
    pub executor: Arc<dyn Executor>,
    /// The namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container; without one the server uses the pod's only container.
    pub container: Option<String>,
}

impl Container for Pod {
    fn run(&self, command: Vec<String>, stdin: Stdin) -> RunFuture<'_> {
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
                stdout: stdout.map_or_else(empty_stream, |stdout| Box::new(stdout)),
                stderr: stderr.map_or_else(empty_stream, |stderr| Box::new(stderr)),
                exit: Box::pin(async move { process.wait().await }),
            })
        })
    }
}

fn empty_stream() -> Box<dyn AsyncRead + Send + Unpin> {
    Box::new(tokio::io::empty())
}

/// How a command ended, as far as a copy is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CommandEnd {
    Success,
    /// The program does not exist.
    NotFound,
    /// The program failed, as the text describes.
    Failed(String),
    /// The command was not run, for the reason that the server reports; the program did not fail.
    NotRun(String),
    /// Unknown: the connection was lost.
    Disconnected(String),
}

impl CommandEnd {
    pub(super) fn new(status: &ExitStatus, stderr: &str) -> Self {
        match status {
            ExitStatus::Success => Self::Success,
            // From a shell, or a runtime that behaves like one.
            ExitStatus::Code(code) if matches!(code.number(), 126 | 127) => {
                if mentions_not_found(stderr) || stderr.trim().is_empty() {
                    Self::NotFound
                } else {
                    Self::Failed(format!("ended with exit code {}", code.number()))
                }
            }
            ExitStatus::Code(code) => {
                Self::Failed(format!("ended with exit code {}", code.number()))
            }
            ExitStatus::Failed(failure) if is_missing_program(&failure.message) => Self::NotFound,
            ExitStatus::Failed(failure) => Self::NotRun(failure.message.clone()),
            ExitStatus::Disconnected(cut) => Self::Disconnected(cut.cause.clone()),
        }
    }
}

/// The messages of shells; their exit code already shows that the program is missing.
fn mentions_not_found(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["no such file or directory", "not found"]
        .iter()
        .any(|words| text.contains(words))
}

/// The messages of Go and of container runtimes for a missing program. Pods, containers and
/// directories can be "not found", too.
fn is_missing_program(message: &str) -> bool {
    let text = message.to_ascii_lowercase();
    let program_phrases = ["executable file", "finding executable", "exec: \""];
    mentions_not_found(&text)
        && !text.contains("container not found")
        && program_phrases.iter().any(|words| text.contains(words))
}

/// Whether an error may go away soon.
pub(super) fn is_transient(error: &crate::error::Error) -> bool {
    use crate::error::Error::{Api, ConnectionLost, NotHttp, Proxy, TimedOut, Tls, Unreachable};
    match error {
        // Overloaded, or a load balancer whose servers restart.
        Api { response, .. } => matches!(response.code, 429 | 502..=504),
        Unreachable { .. }
        | ConnectionLost { .. }
        | TimedOut { .. }
        | Proxy { .. }
        | Tls { .. }
        | NotHttp { .. } => true,
        _ => false,
    }
}

/// The output of a short command.
#[derive(Debug)]
pub(super) struct CommandOutput {
    pub(super) exit: CommandEnd,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
}

/// Runs a command and captures its stdout, up to a limit.
pub(super) async fn capture_output(
    container: &dyn Container,
    command: Vec<String>,
    limit: u64,
) -> Result<CommandOutput, Error> {
    let process = container.run(command, Stdin::Null).await?;
    let mut stdout = Vec::new();
    let reading = async {
        let mut limited = process.stdout.take(limit);
        // The exit status reports a lost connection.
        let _ = limited.read_to_end(&mut stdout).await;
        // A command that prints more must not block.
        let _ = tokio::io::copy(&mut limited.into_inner(), &mut tokio::io::sink()).await;
    };
    let ((), stderr, status) = tokio::join!(reading, read_stderr(process.stderr), process.exit);
    Ok(CommandOutput {
        exit: CommandEnd::new(&status, &stderr),
        stdout,
        stderr,
    })
}

/// Runs a command and calls `on_line` for each line of its stdout. Lines that are too long or
/// unterminated are skipped.
pub(super) async fn for_each_line(
    container: &dyn Container,
    command: Vec<String>,
    max_line_bytes: usize,
    mut on_line: impl FnMut(&[u8]),
) -> Result<CommandEnd, Error> {
    let mut process = container.run(command, Stdin::Null).await?;
    let reading = async {
        let mut splitter = LineSplitter::new(max_line_bytes);
        let mut chunk = Vec::with_capacity(READ_CHUNK_BYTES);
        // The exit status reports a lost connection.
        while let Ok(1..) = process.stdout.read_buf(&mut chunk).await {
            splitter.push(&chunk, &mut on_line);
            chunk.clear();
        }
    };
    let ((), stderr, status) = tokio::join!(reading, read_stderr(process.stderr), process.exit);
    Ok(CommandEnd::new(&status, &stderr))
}

/// Splits chunks into lines.
struct LineSplitter {
    max_line_bytes: usize,
    partial_line: Vec<u8>,
    /// The current line is too long.
    is_skipping: bool,
}

impl LineSplitter {
    fn new(max_line_bytes: usize) -> Self {
        Self {
            max_line_bytes,
            partial_line: Vec::new(),
            is_skipping: false,
        }
    }

    fn push(&mut self, chunk: &[u8], on_line: &mut impl FnMut(&[u8])) {
        for part in chunk.split_inclusive(|&byte| byte == b'\n') {
            let (text, is_complete) = match part.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (part, false),
            };
            if self.partial_line.len() + text.len() > self.max_line_bytes {
                self.is_skipping = true;
                self.partial_line.clear();
            }
            if !self.is_skipping {
                self.partial_line.extend_from_slice(text);
            }
            if is_complete {
                if !std::mem::take(&mut self.is_skipping) {
                    on_line(&self.partial_line);
                }
                self.partial_line.clear();
            }
        }
    }
}

/// Runs a future to its end while a command is running. If the command ends after the future, the
/// caller waits for the command or drops it.
pub(super) async fn run_alongside<T, E>(
    reading: impl Future<Output = T>,
    mut ending: Pin<&mut impl Future<Output = E>>,
) -> (T, Option<E>) {
    tokio::pin!(reading);
    let mut exit = None;
    loop {
        tokio::select! {
            done = &mut reading => return (done, exit),
            end = &mut ending, if exit.is_none() => exit = Some(end),
        }
    }
}

/// The beginning of a command's stderr.
pub(super) async fn read_stderr(mut stderr: impl AsyncRead + Unpin) -> String {
    let mut kept = Vec::new();
    let _ = (&mut stderr)
        .take(MAX_STDERR_BYTES)
        .read_to_end(&mut kept)
        .await;
    let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
    super::path_containment::printable_lines(&kept)
}

#[cfg(test)]
mod tests {
    use skewbridge_remotecommand::{ExitCode, Failure};

    use super::*;

    #[test]
    fn a_missing_program_is_distinguished_from_a_failing_one() {
        let code = |code| ExitStatus::Code(ExitCode::new(code).unwrap());
        let server_error = |message: &str| {
            ExitStatus::Failed(Failure {
                code: Some(500),
                reason: "InternalError".to_owned(),
                message: message.to_owned(),
            })
        };
        let failed = |text: &str| CommandEnd::Failed(text.to_owned());
        let not_run = |text: &str| CommandEnd::NotRun(text.to_owned());
        let rows = [
            (ExitStatus::Success, "", CommandEnd::Success),
            (code(127), "sh: tar: not found", CommandEnd::NotFound),
            (code(126), "", CommandEnd::NotFound),
            (
                code(126),
                "sh: tar: Permission denied",
                failed("ended with exit code 126"),
            ),
            (
                code(2),
                "tar: x: not found",
                failed("ended with exit code 2"),
            ),
            (
                server_error("exec: \"tar\": executable file not found in $PATH: unknown"),
                "",
                CommandEnd::NotFound,
            ),
            (
                server_error(
                    "exec: \"/bin/tar\": stat /bin/tar: no such file or directory: unknown",
                ),
                "",
                CommandEnd::NotFound,
            ),
            (
                server_error("executable file `tar` not found in $PATH: No such file or directory"),
                "",
                CommandEnd::NotFound,
            ),
            (server_error("no space"), "", not_run("no space")),
        ];
        for (status, stderr, expected) in rows {
            assert_eq!(CommandEnd::new(&status, stderr), expected, "{status:?}");
        }
    }
    /// Messages of kubelets and container runtimes.
    #[test]
    fn other_missing_objects_are_not_missing_programs() {
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
            let exit = CommandEnd::new(&failed, "");
            assert!(matches!(exit, CommandEnd::NotRun(_)), "{message}: {exit:?}");
        }
    }

    #[test]
    fn complete_lines_are_returned_and_long_ones_skipped() {
        let text = b"one\n\nlonger than that\ntwo\nhalf";
        for size in 1..text.len() {
            let (mut splitter, mut lines) = (LineSplitter::new(5), Vec::new());
            for chunk in text.chunks(size) {
                splitter.push(chunk, &mut |line: &[u8]| lines.push(line.to_vec()));
            }
            assert_eq!(lines, [&b"one"[..], b"", b"two"], "{size}");
        }
    }
}
