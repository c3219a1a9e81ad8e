//! A command that runs somewhere else.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use skewbridge_remotecommand::{ExitCode, Failure, Outcome, TerminalSize};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::task::JoinHandle;

use super::shared::{MOST_INPUT, Shared, Which};

/// A command that runs in a container. When this is dropped, the connection ends, and
/// the command with it if it reads or writes.
///
/// What it reads and writes can be taken out and go separate ways; what stays in here
/// is ended, or thrown away, by [`RemoteProcess::wait`]. Nobody reads ahead: a command
/// whose output is not read waits until it is, as with a pipe.
#[derive(Debug)]
pub struct RemoteProcess {
    /// What the command reads, if it was asked for.
    pub stdin: Option<ProcessStdin>,
    /// What it writes, if it was asked for.
    pub stdout: Option<ProcessOutput>,
    /// The same for stderr; none with a terminal.
    pub stderr: Option<ProcessOutput>,
    shared: Arc<Shared>,
    transport: Transport,
    task: JoinHandle<()>,
}

/// How the streams of a command are carried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// As was asked for.
    WebSocket,
    /// As was asked for, or because a WebSocket was refused: then with the reason.
    Spdy {
        /// Why it is not a WebSocket.
        instead: Option<String>,
    },
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitStatus {
    /// With exit code 0; or an attachment ended.
    Success,
    /// With another one.
    Code(ExitCode),
    /// The server says why there is no exit code.
    Failed(Failure),
    /// Nobody knows: the connection was lost before.
    Cut(Cut),
}

/// How far a command had come when the connection was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// In words.
    pub cause: String,
    /// How many bytes of stdin had been handed to the connection. The command may
    /// have read them, or fewer.
    pub sent: u64,
    /// How many bytes of stdin had not.
    pub unsent: u64,
    /// How many bytes the command was heard to write.
    pub received: u64,
}

/// What a command reads. Shut down or dropped, it has come to its end, after all that
/// was written.
#[derive(Debug)]
pub struct ProcessStdin {
    shared: Arc<Shared>,
}

/// What a command writes. It ends when the command has, and fails with
/// [`io::ErrorKind::UnexpectedEof`] if the connection was lost before. Dropped, it
/// throws away what still comes.
#[derive(Debug)]
pub struct ProcessOutput {
    shared: Arc<Shared>,
    which: Which,
    /// Taken, and not read.
    piece: Bytes,
}

/// Tells a command how large its terminal is.
#[derive(Debug, Clone)]
pub struct Resizer {
    shared: Arc<Shared>,
}

impl RemoteProcess {
    /// A driver moves what is in `shared` until the command has ended.
    pub(crate) fn new(
        shared: Arc<Shared>,
        channels: [bool; 3],
        transport: Transport,
        task: JoinHandle<()>,
    ) -> Self {
        let [stdin, stdout, stderr] = channels;
        let output = |which| ProcessOutput {
            shared: shared.clone(),
            which,
            piece: Bytes::new(),
        };
        Self {
            stdin: stdin.then(|| ProcessStdin {
                shared: shared.clone(),
            }),
            stdout: stdout.then(|| output(Which::Stdout)),
            stderr: stderr.then(|| output(Which::Stderr)),
            shared,
            transport,
            task,
        }
    }

    /// How the streams are carried.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    pub(crate) fn with_transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// For telling the size of the terminal, at any time and as often as it changes.
    pub fn resizer(&self) -> Resizer {
        Resizer {
            shared: self.shared.clone(),
        }
    }

    /// Waits for the command to end. What has not been taken out is ended, or thrown
    /// away; what has been is to be read by somebody, or the command may wait for that.
    ///
    /// Cancelled, it can be asked again.
    pub async fn wait(&mut self) -> ExitStatus {
        self.stdin = None;
        self.stdout = None;
        self.stderr = None;
        poll_fn(|cx| self.shared.poll_ended(cx)).await
    }
}

impl Drop for RemoteProcess {
    fn drop(&mut self) {
        self.task.abort();
        self.shared.end(ExitStatus::Cut(Cut {
            cause: "it was left".to_owned(),
            sent: 0,
            unsent: 0,
            received: 0,
        }));
    }
}

impl ProcessStdin {
    /// How many bytes are best given at once.
    pub const BEST: usize = MOST_INPUT;

    /// Writes all of these bytes; up to [`ProcessStdin::BEST`] without a copy.
    ///
    /// Cancelled, it may have written some of them.
    pub async fn give(&mut self, mut bytes: Vec<u8>) -> io::Result<()> {
        // More would be one long message, and pings would wait behind it.
        if bytes.len() > MOST_INPUT {
            return self.write_all(&bytes).await;
        }
        poll_fn(|cx| self.shared.poll_give(&mut bytes, cx)).await
    }

    /// Waits until the connection has taken what was given, so that there is room for
    /// [`ProcessStdin::BEST`] bytes, or nobody takes any more: of who reads only then what to
    /// write, no more is kept than that.
    pub async fn ready(&mut self) {
        poll_fn(|cx| self.shared.poll_input_ready(cx)).await;
    }

    /// Whether the command, or the way to it, takes no more.
    pub fn is_closed(&self) -> bool {
        self.shared.takes_no_input()
    }
}

impl AsyncWrite for ProcessStdin {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.shared.poll_input(bytes, cx)
    }

    /// Waits until all has been handed to the connection.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.poll_input_taken(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.end_input();
        self.shared.poll_input_taken(cx)
    }
}

impl Drop for ProcessStdin {
    fn drop(&mut self) {
        self.shared.end_input();
    }
}

impl ProcessOutput {
    /// The next bytes, as they came and without a copy; `None` at the end.
    ///
    /// Cancelled, it has taken nothing.
    pub async fn piece(&mut self) -> io::Result<Option<Bytes>> {
        if !self.piece.is_empty() {
            return Ok(Some(std::mem::take(&mut self.piece)));
        }
        poll_fn(|cx| self.shared.poll_output(self.which, cx)).await
    }
}

impl AsyncRead for ProcessOutput {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.piece.is_empty() {
            match ready!(this.shared.poll_output(this.which, cx))? {
                Some(piece) => this.piece = piece,
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = this.piece.len().min(buf.remaining());
        buf.put_slice(&this.piece[..length]);
        this.piece.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl Drop for ProcessOutput {
    fn drop(&mut self) {
        self.shared.drop_output(self.which);
    }
}

impl Resizer {
    /// If many are told at once, not all but always the last one reaches the command.
    pub fn resize(&self, size: TerminalSize) {
        self.shared.resize(size);
    }
}

impl ExitStatus {
    /// Whether the command ended with exit code 0.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Success)
    }

    pub(crate) fn of(outcome: Outcome, cut: impl FnOnce() -> Cut) -> Self {
        match outcome {
            Outcome::Success => Self::Success,
            Outcome::Exited(code) => Self::Code(code),
            Outcome::Failed(failure) => Self::Failed(failure),
            Outcome::Disconnected => Self::Cut(cut()),
        }
    }
}
