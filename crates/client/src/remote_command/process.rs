//! A command that runs in a container.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use skewbridge_remotecommand::TerminalSize;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::task::JoinHandle;

use super::exit_status::{Disconnected, ExitStatus};
use super::stream_buffers::{MAX_STDIN_BYTES, OutputStream, StreamBuffers};

/// A command that runs in a container. Dropping this closes the connection, which ends the
/// command if it reads or writes.
///
/// Its streams can be taken out and moved elsewhere; [`RemoteProcess::wait`] closes or discards
/// those that remain. Nothing reads ahead: a command whose output is not read blocks, as with a
/// pipe.
#[derive(Debug)]
pub struct RemoteProcess {
    /// The command's stdin, if requested.
    pub stdin: Option<ProcessStdin>,
    /// The command's stdout, if requested.
    pub stdout: Option<ProcessOutput>,
    /// The command's stderr, if requested; `None` with a terminal.
    pub stderr: Option<ProcessOutput>,
    buffers: Arc<StreamBuffers>,
    transport: Transport,
    task: JoinHandle<()>,
}

/// The transport of a command's streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// WebSocket, as requested.
    WebSocket,
    /// SPDY, as requested, or because a WebSocket was refused.
    Spdy {
        /// Why it is not a WebSocket.
        fallback_reason: Option<String>,
    },
}

/// The stdin of a command. Shutting it down or dropping it sends end-of-file after all written
/// bytes.
#[derive(Debug)]
pub struct ProcessStdin {
    buffers: Arc<StreamBuffers>,
}

/// An output of a command. It ends when the command has ended, and fails with
/// [`io::ErrorKind::UnexpectedEof`] if the connection was lost before. Dropping it discards
/// further output.
#[derive(Debug)]
pub struct ProcessOutput {
    buffers: Arc<StreamBuffers>,
    stream: OutputStream,
    /// Received but not read.
    chunk: Bytes,
}

/// Sets the terminal size of a command.
#[derive(Debug, Clone)]
pub struct Resizer {
    buffers: Arc<StreamBuffers>,
}

impl RemoteProcess {
    /// A driver moves the bytes in `buffers` until the command has ended.
    pub(crate) fn new(
        buffers: Arc<StreamBuffers>,
        channels: [bool; 3],
        transport: Transport,
        task: JoinHandle<()>,
    ) -> Self {
        let [stdin, stdout, stderr] = channels;
        let output = |stream| ProcessOutput {
            buffers: buffers.clone(),
            stream,
            chunk: Bytes::new(),
        };
        Self {
            stdin: stdin.then(|| ProcessStdin {
                buffers: buffers.clone(),
            }),
            stdout: stdout.then(|| output(OutputStream::Stdout)),
            stderr: stderr.then(|| output(OutputStream::Stderr)),
            buffers,
            transport,
            task,
        }
    }

    /// The transport of the streams.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    pub(crate) fn with_transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// A handle that sets the terminal size, at any time and as often as it changes.
    pub fn resizer(&self) -> Resizer {
        Resizer {
            buffers: self.buffers.clone(),
        }
    }

    /// Waits for the command to end. Streams that have not been taken out are closed or
    /// discarded; those that have been must be read, or the command may block.
    ///
    /// Cancel-safe: it can be called again.
    pub async fn wait(&mut self) -> ExitStatus {
        self.stdin = None;
        self.stdout = None;
        self.stderr = None;
        poll_fn(|cx| self.buffers.poll_ended(cx)).await
    }
}

impl Drop for RemoteProcess {
    fn drop(&mut self) {
        self.task.abort();
        self.buffers.end(ExitStatus::Disconnected(Disconnected {
            cause: "the command was dropped".to_owned(),
            sent: 0,
            unsent: 0,
            received: 0,
        }));
    }
}

impl ProcessStdin {
    /// The best size of a write.
    pub const PREFERRED_WRITE_BYTES: usize = MAX_STDIN_BYTES;

    /// Writes all of these bytes; up to [`ProcessStdin::PREFERRED_WRITE_BYTES`] without a copy.
    ///
    /// If cancelled, some of the bytes may have been written.
    pub async fn write_owned(&mut self, mut bytes: Vec<u8>) -> io::Result<()> {
        // A longer message would delay pings.
        if bytes.len() > MAX_STDIN_BYTES {
            return self.write_all(&bytes).await;
        }
        poll_fn(|cx| self.buffers.poll_write_owned(&mut bytes, cx)).await
    }

    /// Waits until the connection has taken all written bytes, so that
    /// [`ProcessStdin::PREFERRED_WRITE_BYTES`] fit, or until the stream is closed. A caller
    /// that reads its input only after this buffers no more than that.
    pub async fn ready(&mut self) {
        poll_fn(|cx| self.buffers.poll_stdin_ready(cx)).await;
    }

    /// Whether the command or the connection accepts no more input.
    pub fn is_closed(&self) -> bool {
        self.buffers.is_stdin_closed()
    }
}

impl AsyncWrite for ProcessStdin {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.buffers.poll_write_stdin(bytes, cx)
    }

    /// Waits until all bytes have been handed to the connection.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.buffers.poll_stdin_flushed(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.buffers.end_stdin();
        self.buffers.poll_stdin_flushed(cx)
    }
}

impl Drop for ProcessStdin {
    fn drop(&mut self) {
        self.buffers.end_stdin();
    }
}

impl ProcessOutput {
    /// The next bytes, without a copy; `None` at the end.
    ///
    /// Cancel-safe: no bytes are lost.
    pub async fn next_chunk(&mut self) -> io::Result<Option<Bytes>> {
        if !self.chunk.is_empty() {
            return Ok(Some(std::mem::take(&mut self.chunk)));
        }
        poll_fn(|cx| self.buffers.poll_output(self.stream, cx)).await
    }
}

impl AsyncRead for ProcessOutput {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.chunk.is_empty() {
            match ready!(this.buffers.poll_output(this.stream, cx))? {
                Some(chunk) => this.chunk = chunk,
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = this.chunk.len().min(buf.remaining());
        buf.put_slice(&this.chunk[..length]);
        this.chunk.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl Drop for ProcessOutput {
    fn drop(&mut self) {
        self.buffers.drop_output(self.stream);
    }
}

impl Resizer {
    /// Of several sizes set in quick succession, only the last one is sure to reach the
    /// command.
    pub fn resize(&self, size: TerminalSize) {
        self.buffers.resize(size);
    }
}
