//! The buffers between a command's driver and its readers and writers: one per direction, under
//! one lock that is never held for longer than a copy.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use skewbridge_remotecommand::TerminalSize;

use super::exit_status::{Disconnected, ExitStatus};

/// How much of stdin is buffered for the driver, and the largest WebSocket message: whole pages
/// that, in TLS records, fit into two packets of 64 KiB for the kernel (GSO). More would need
/// an extra packet.
pub(super) const MAX_STDIN_BYTES: usize = 120 * 1024;

/// How many bytes are copied to the end of a non-empty buffer; copying more would take longer
/// than sending them separately.
const MAX_APPENDED_BYTES: usize = 4 * 1024;

/// How much of an output is buffered for its reader.
const MAX_OUTPUT_BYTES: usize = 64 * 1024;

/// In how many chunks: a command that writes byte by byte must not fill the memory of the client
/// with per-chunk overhead.
const MAX_OUTPUT_CHUNKS: usize = 256;

/// How many terminal sizes are queued; further ones replace the last.
const MAX_PENDING_RESIZES: usize = 4;

/// An output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

/// The state shared by the driver and the streams.
#[derive(Debug)]
pub(crate) struct StreamBuffers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    driver: Option<Waker>,
    stdin: StdinBuffer,
    outputs: [OutputBuffer; 2],
    resizes: VecDeque<TerminalSize>,
    ended: Option<ExitStatus>,
    waiter: Option<Waker>,
}

#[derive(Debug, Default)]
struct StdinBuffer {
    buffer: Vec<u8>,
    /// End-of-file was sent, or is to be sent.
    ended: bool,
    /// No more input is accepted.
    closed: bool,
    writer: Option<Waker>,
    /// The connection has not accepted all that the driver took.
    write_pending: bool,
    sent: u64,
}

#[derive(Debug, Default)]
struct OutputBuffer {
    chunks: VecDeque<Bytes>,
    bytes: usize,
    /// The reader was dropped.
    dropped: bool,
    reader: Option<Waker>,
    received: u64,
}

/// What the driver has to send.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StdinEvent {
    /// These bytes of stdin.
    Data(Vec<u8>),
    /// The end of stdin, once.
    End,
}

impl StreamBuffers {
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No update is left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // For readers and writers.

    pub(crate) fn poll_write_stdin(
        &self,
        bytes: &[u8],
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut state = self.lock();
        if state.is_stdin_closed() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = MAX_STDIN_BYTES.saturating_sub(state.stdin.buffer.len());
        if room == 0 {
            register_waker(&mut state.stdin.writer, cx);
            return Poll::Pending;
        }
        let length = room.min(bytes.len());
        state.stdin.buffer.extend_from_slice(&bytes[..length]);
        wake(state.driver.take());
        Poll::Ready(Ok(length))
    }

    /// Moves these bytes into the buffer as soon as there is room: a few are appended, many
    /// wait until the buffer is empty.
    pub(crate) fn poll_write_owned(
        &self,
        bytes: &mut Vec<u8>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        if state.is_stdin_closed() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let buffered = &mut state.stdin.buffer;
        if buffered.is_empty() {
            *buffered = std::mem::take(bytes);
        } else if bytes.len() <= MAX_APPENDED_BYTES
            && buffered.len() + bytes.len() <= MAX_STDIN_BYTES
        {
            buffered.append(bytes);
        } else {
            register_waker(&mut state.stdin.writer, cx);
            return Poll::Pending;
        }
        wake(state.driver.take());
        Poll::Ready(Ok(()))
    }

    /// Ready when all written bytes have left, or no more are accepted.
    pub(crate) fn poll_stdin_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        let is_empty = state.stdin.buffer.is_empty() && !state.stdin.write_pending;
        if is_empty || state.is_stdin_closed() {
            return Poll::Ready(());
        }
        register_waker(&mut state.stdin.writer, cx);
        Poll::Pending
    }

    /// Ready when the driver has taken all input.
    pub(crate) fn poll_stdin_flushed(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        if state.stdin.buffer.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if state.is_stdin_closed() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        register_waker(&mut state.stdin.writer, cx);
        Poll::Pending
    }

    pub(crate) fn end_stdin(&self) {
        let mut state = self.lock();
        if !state.stdin.ended {
            state.stdin.ended = true;
            wake(state.driver.take());
        }
    }

    pub(crate) fn is_stdin_closed(&self) -> bool {
        self.lock().is_stdin_closed()
    }

    pub(crate) fn poll_output(
        &self,
        stream: OutputStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Bytes>>> {
        let mut state = self.lock();
        let output = &mut state.outputs[stream as usize];
        let was_full = output.is_full();
        if let Some(chunk) = output.chunks.pop_front() {
            output.bytes -= chunk.len();
            if was_full && !output.is_full() {
                wake(state.driver.take());
            }
            return Poll::Ready(Ok(Some(chunk)));
        }
        match &state.ended {
            Some(ExitStatus::Disconnected(disconnected)) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the connection was lost: {}", disconnected.cause),
            ))),
            Some(_) => Poll::Ready(Ok(None)),
            None => {
                register_waker(&mut state.outputs[stream as usize].reader, cx);
                Poll::Pending
            }
        }
    }

    pub(crate) fn drop_output(&self, stream: OutputStream) {
        let mut state = self.lock();
        let output = &mut state.outputs[stream as usize];
        output.dropped = true;
        output.chunks = VecDeque::new();
        output.bytes = 0;
        wake(state.driver.take());
    }

    pub(crate) fn resize(&self, size: TerminalSize) {
        let mut state = self.lock();
        if state.resizes.len() == MAX_PENDING_RESIZES {
            state.resizes.pop_back();
        }
        state.resizes.push_back(size);
        wake(state.driver.take());
    }

    pub(crate) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<ExitStatus> {
        let mut state = self.lock();
        if let Some(ended) = &state.ended {
            return Poll::Ready(ended.clone());
        }
        register_waker(&mut state.waiter, cx);
        Poll::Pending
    }
}

/// For the driver.
impl StreamBuffers {
    /// Registers the driver's waker.
    pub(crate) fn register_driver(&self, cx: &mut Context<'_>) {
        register_waker(&mut self.lock().driver, cx);
    }

    /// The next input, or its end.
    pub(crate) fn take_stdin(&self) -> Option<StdinEvent> {
        let mut state = self.lock();
        let stdin = &mut state.stdin;
        if !stdin.buffer.is_empty() {
            stdin.sent += stdin.buffer.len() as u64;
            wake(stdin.writer.take());
            return Some(StdinEvent::Data(std::mem::take(&mut stdin.buffer)));
        }
        (stdin.ended && !std::mem::replace(&mut stdin.closed, true)).then_some(StdinEvent::End)
    }

    /// Sets whether the connection has yet to accept what the driver took.
    pub(crate) fn set_write_pending(&self, write_pending: bool) {
        let mut state = self.lock();
        state.stdin.write_pending = write_pending;
        if !write_pending {
            wake(state.stdin.writer.take());
        }
    }

    /// Accepts no more input.
    pub(crate) fn close_stdin(&self) {
        let mut state = self.lock();
        state.stdin.closed = true;
        wake(state.stdin.writer.take());
    }

    /// The next terminal size to send.
    pub(crate) fn take_resize(&self) -> Option<TerminalSize> {
        self.lock().resizes.pop_front()
    }

    /// Whether an output has room. If not, the driver is woken when it has.
    pub(crate) fn has_room(&self, stream: OutputStream) -> bool {
        !self.lock().outputs[stream as usize].is_full()
    }

    /// Adds output of the command.
    pub(crate) fn push_output(&self, stream: OutputStream, chunk: Bytes) {
        let mut state = self.lock();
        let output = &mut state.outputs[stream as usize];
        output.received += chunk.len() as u64;
        if output.dropped || chunk.is_empty() {
            return;
        }
        output.bytes += chunk.len();
        output.chunks.push_back(chunk);
        wake(output.reader.take());
    }

    /// The state of the command at a lost connection.
    pub(crate) fn disconnected(&self, cause: impl Into<String>) -> Disconnected {
        let state = self.lock();
        Disconnected {
            cause: cause.into(),
            sent: state.stdin.sent,
            unsent: state.stdin.buffer.len() as u64,
            received: state.outputs.iter().map(|output| output.received).sum(),
        }
    }

    /// Ends the command; only the first call counts.
    pub(crate) fn end(&self, status: ExitStatus) {
        let mut state = self.lock();
        state.ended.get_or_insert(status);
        let State {
            stdin,
            outputs,
            waiter,
            ..
        } = &mut *state;
        let [stdout, stderr] = outputs;
        for waker in [
            &mut stdin.writer,
            &mut stdout.reader,
            &mut stderr.reader,
            waiter,
        ] {
            wake(waker.take());
        }
    }
}

impl State {
    fn is_stdin_closed(&self) -> bool {
        self.stdin.closed || self.ended.is_some()
    }
}

impl OutputBuffer {
    fn is_full(&self) -> bool {
        !self.dropped && (self.bytes >= MAX_OUTPUT_BYTES || self.chunks.len() >= MAX_OUTPUT_CHUNKS)
    }
}

fn register_waker(slot: &mut Option<Waker>, cx: &mut Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push_output(buffers: &StreamBuffers, mut bytes: Vec<u8>) -> Poll<io::Result<()>> {
        let result = buffers.poll_write_owned(&mut bytes, &mut Context::from_waker(Waker::noop()));
        assert_eq!(result.is_pending(), !bytes.is_empty(), "taken or kept");
        result
    }

    fn take_data(buffers: &StreamBuffers) -> Vec<u8> {
        match buffers.take_stdin() {
            Some(StdinEvent::Data(data)) => data,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn owned_writes_are_moved_and_wait_for_room() {
        let buffers = StreamBuffers::new();
        let data = vec![1; MAX_STDIN_BYTES];
        let address = data.as_ptr();
        assert!(push_output(&buffers, data).is_ready());
        assert!(
            push_output(&buffers, vec![2; MAX_APPENDED_BYTES]).is_pending(),
            "no room"
        );
        let data = take_data(&buffers);
        assert_eq!(data.as_ptr(), address, "copied");

        assert!(push_output(&buffers, vec![1]).is_ready());
        assert!(
            push_output(&buffers, vec![2; MAX_APPENDED_BYTES]).is_ready(),
            "few"
        );
        assert!(
            push_output(&buffers, vec![3; MAX_APPENDED_BYTES + 1]).is_pending(),
            "many"
        );
        assert_eq!(take_data(&buffers).len(), 1 + MAX_APPENDED_BYTES);
        assert_eq!(buffers.take_stdin(), None);
        assert_eq!(
            buffers.disconnected("").sent,
            (MAX_STDIN_BYTES + 1 + MAX_APPENDED_BYTES) as u64
        );

        buffers.close_stdin();
        let mut bytes = vec![1];
        let closed = buffers.poll_write_owned(&mut bytes, &mut Context::from_waker(Waker::noop()));
        assert!(matches!(closed, Poll::Ready(Err(_))), "{closed:?}");
    }
}
