//! What is between a command's driver and those who read and write: a buffer for each
//! direction, under one lock that is never held for longer than a copy.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use skewbridge_remotecommand::TerminalSize;

use super::process::{Cut, ExitStatus};

/// How much of stdin waits for the driver, and is one message of a WebSocket: whole pages
/// that, in TLS records, still are two packets of 64 KiB to the kernel (GSO). What is over
/// would be a packet of its own.
pub(super) const MOST_INPUT: usize = 120 * 1024;

/// So many bytes are copied behind those that wait; more would take longer than to
/// send them by themselves.
const FEW: usize = 4 * 1024;

/// How much of an output waits for its reader.
const MOST_OUTPUT: usize = 64 * 1024;

/// In how many pieces: a command that writes byte by byte must not fill our memory
/// with what surrounds each.
const MOST_PIECES: usize = 256;

/// How many sizes of the terminal wait to be told; of more, the last one counts.
const MOST_SIZES: usize = 4;

/// Which output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Stdout,
    Stderr,
}

/// Between the driver and the rest.
#[derive(Debug)]
pub(crate) struct Shared(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    driver: Option<Waker>,
    input: Input,
    outputs: [Output; 2],
    sizes: VecDeque<TerminalSize>,
    ended: Option<ExitStatus>,
    waits: Option<Waker>,
}

#[derive(Debug, Default)]
struct Input {
    buffer: Vec<u8>,
    /// Nothing follows.
    ended: bool,
    /// Nobody takes any.
    refused: bool,
    writer: Option<Waker>,
    /// The connection has not taken all that the driver has.
    leaving: bool,
    sent: u64,
}

#[derive(Debug, Default)]
struct Output {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    /// Nobody reads it.
    dropped: bool,
    reader: Option<Waker>,
    received: u64,
}

/// What the driver is to write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// These bytes of stdin.
    Data(Vec<u8>),
    /// The end of stdin, once.
    End,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here is half done when something panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Those who read and write.

    pub(crate) fn poll_input(&self, bytes: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut state = self.lock();
        if state.takes_no_input() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = MOST_INPUT.saturating_sub(state.input.buffer.len());
        if room == 0 {
            wait(&mut state.input.writer, cx);
            return Poll::Pending;
        }
        let length = room.min(bytes.len());
        state.input.buffer.extend_from_slice(&bytes[..length]);
        wake(state.driver.take());
        Poll::Ready(Ok(length))
    }

    /// Takes these bytes from where they are, as soon as there is room for them: for a
    /// few there often is, for many when nothing else waits.
    pub(crate) fn poll_give(
        &self,
        bytes: &mut Vec<u8>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        if state.takes_no_input() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let waiting = &mut state.input.buffer;
        if waiting.is_empty() {
            *waiting = std::mem::take(bytes);
        } else if bytes.len() <= FEW && waiting.len() + bytes.len() <= MOST_INPUT {
            waiting.append(bytes);
        } else {
            wait(&mut state.input.writer, cx);
            return Poll::Pending;
        }
        wake(state.driver.take());
        Poll::Ready(Ok(()))
    }

    /// Whether what was given before is gone, or nobody takes any more.
    pub(crate) fn poll_input_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        let gone = state.input.buffer.is_empty() && !state.input.leaving;
        if gone || state.takes_no_input() {
            return Poll::Ready(());
        }
        wait(&mut state.input.writer, cx);
        Poll::Pending
    }

    /// Whether the driver has taken all input.
    pub(crate) fn poll_input_taken(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        if state.input.buffer.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if state.takes_no_input() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        wait(&mut state.input.writer, cx);
        Poll::Pending
    }

    pub(crate) fn end_input(&self) {
        let mut state = self.lock();
        if !state.input.ended {
            state.input.ended = true;
            wake(state.driver.take());
        }
    }

    pub(crate) fn takes_no_input(&self) -> bool {
        self.lock().takes_no_input()
    }

    pub(crate) fn poll_output(
        &self,
        which: Which,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Bytes>>> {
        let mut state = self.lock();
        let output = &mut state.outputs[which as usize];
        let was_full = output.is_full();
        if let Some(piece) = output.pieces.pop_front() {
            output.bytes -= piece.len();
            if was_full && !output.is_full() {
                wake(state.driver.take());
            }
            return Poll::Ready(Ok(Some(piece)));
        }
        match &state.ended {
            Some(ExitStatus::Cut(cut)) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the stream was cut off: {}", cut.cause),
            ))),
            Some(_) => Poll::Ready(Ok(None)),
            None => {
                wait(&mut state.outputs[which as usize].reader, cx);
                Poll::Pending
            }
        }
    }

    pub(crate) fn drop_output(&self, which: Which) {
        let mut state = self.lock();
        let output = &mut state.outputs[which as usize];
        output.dropped = true;
        output.pieces = VecDeque::new();
        output.bytes = 0;
        wake(state.driver.take());
    }

    pub(crate) fn resize(&self, size: TerminalSize) {
        let mut state = self.lock();
        if state.sizes.len() == MOST_SIZES {
            state.sizes.pop_back();
        }
        state.sizes.push_back(size);
        wake(state.driver.take());
    }

    pub(crate) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<ExitStatus> {
        let mut state = self.lock();
        if let Some(ended) = &state.ended {
            return Poll::Ready(ended.clone());
        }
        wait(&mut state.waits, cx);
        Poll::Pending
    }
}

/// The driver's side.
impl Shared {
    /// To be woken when there is something to do.
    pub(crate) fn drives(&self, cx: &mut Context<'_>) {
        wait(&mut self.lock().driver, cx);
    }

    /// The next input, or its end.
    pub(crate) fn take_input(&self) -> Option<Next> {
        let mut state = self.lock();
        let input = &mut state.input;
        if !input.buffer.is_empty() {
            input.sent += input.buffer.len() as u64;
            wake(input.writer.take());
            return Some(Next::Data(std::mem::take(&mut input.buffer)));
        }
        (input.ended && !std::mem::replace(&mut input.refused, true)).then_some(Next::End)
    }

    /// Whether the connection has yet to take what the driver has.
    pub(crate) fn input_leaves(&self, leaving: bool) {
        let mut state = self.lock();
        state.input.leaving = leaving;
        if !leaving {
            wake(state.input.writer.take());
        }
    }

    /// Nobody takes input any more.
    pub(crate) fn refuse_input(&self) {
        let mut state = self.lock();
        state.input.refused = true;
        wake(state.input.writer.take());
    }

    /// The next size to be told.
    pub(crate) fn take_size(&self) -> Option<TerminalSize> {
        self.lock().sizes.pop_front()
    }

    /// Whether an output has room; who has none is woken when it has.
    pub(crate) fn has_room(&self, which: Which) -> bool {
        !self.lock().outputs[which as usize].is_full()
    }

    /// What the command has written.
    pub(crate) fn give(&self, which: Which, piece: Bytes) {
        let mut state = self.lock();
        let output = &mut state.outputs[which as usize];
        output.received += piece.len() as u64;
        if output.dropped || piece.is_empty() {
            return;
        }
        output.bytes += piece.len();
        output.pieces.push_back(piece);
        wake(output.reader.take());
    }

    /// How far it has come.
    pub(crate) fn cut(&self, cause: impl Into<String>) -> Cut {
        let state = self.lock();
        Cut {
            cause: cause.into(),
            sent: state.input.sent,
            unsent: state.input.buffer.len() as u64,
            received: state.outputs.iter().map(|output| output.received).sum(),
        }
    }

    /// It is over: the first one to say so is right.
    pub(crate) fn end(&self, status: ExitStatus) {
        let mut state = self.lock();
        state.ended.get_or_insert(status);
        let State {
            input,
            outputs,
            waits,
            ..
        } = &mut *state;
        let [stdout, stderr] = outputs;
        for waker in [
            &mut input.writer,
            &mut stdout.reader,
            &mut stderr.reader,
            waits,
        ] {
            wake(waker.take());
        }
    }
}

impl State {
    fn takes_no_input(&self) -> bool {
        self.input.refused || self.ended.is_some()
    }
}

impl Output {
    fn is_full(&self) -> bool {
        !self.dropped && (self.bytes >= MOST_OUTPUT || self.pieces.len() >= MOST_PIECES)
    }
}

fn wait(slot: &mut Option<Waker>, cx: &mut Context<'_>) {
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

    fn give(shared: &Shared, mut bytes: Vec<u8>) -> Poll<io::Result<()>> {
        let given = shared.poll_give(&mut bytes, &mut Context::from_waker(Waker::noop()));
        assert_eq!(given.is_pending(), !bytes.is_empty(), "taken or kept");
        given
    }

    fn taken(shared: &Shared) -> Vec<u8> {
        match shared.take_input() {
            Some(Next::Data(data)) => data,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_given_is_not_copied_and_waits_for_room() {
        let shared = Shared::new();
        let many = vec![1; MOST_INPUT];
        let place = many.as_ptr();
        assert!(give(&shared, many).is_ready());
        assert!(give(&shared, vec![2; FEW]).is_pending(), "no room");
        let many = taken(&shared);
        assert_eq!(many.as_ptr(), place, "copied");

        assert!(give(&shared, vec![1]).is_ready());
        assert!(give(&shared, vec![2; FEW]).is_ready(), "few");
        assert!(give(&shared, vec![3; FEW + 1]).is_pending(), "many");
        assert_eq!(taken(&shared).len(), 1 + FEW);
        assert_eq!(shared.take_input(), None);
        assert_eq!(shared.cut("").sent, (MOST_INPUT + 1 + FEW) as u64);

        shared.refuse_input();
        let mut bytes = vec![1];
        let refused = shared.poll_give(&mut bytes, &mut Context::from_waker(Waker::noop()));
        assert!(matches!(refused, Poll::Ready(Err(_))), "{refused:?}");
    }
}
