//! Moves bytes between a session and its byte stream.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use std::{fmt, io};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::io::{poll_read_buf, poll_write_buf};

use super::shared::Shared;
use crate::error::{Closed, Error};
use crate::frame::GoAwayStatus;
use crate::session::{Layout, SendBuffer};

/// Initial size of a read: most connections carry keystrokes.
const MIN_READ_BYTES: usize = 8 * 1024;
/// Size of a read on a connection with bulk data.
const MAX_READ_BYTES: usize = 128 * 1024;

/// How often a driver reads and writes before it yields.
const MAX_ROUNDS: usize = 16;

/// How long to wait for further bytes of the remote after a write has failed.
const READ_AFTER_WRITE_FAILURE_TIMEOUT: Duration = Duration::from_secs(2);

/// Moves the bytes of a connection until it ends.
///
/// It succeeds if the remote ends the connection between two frames, or if it was closed
/// locally.
#[must_use = "the connection makes no progress unless the driver is awaited"]
pub struct Driver<T> {
    io: T,
    shared: Arc<Shared>,
    input: BytesMut,
    read_size: usize,
    output: SendBuffer,
    needs_flush: bool,
    /// Wakers to call, kept to reuse the allocation.
    wake: Vec<Waker>,
    write_failure: Option<WriteFailure>,
    linger: Duration,
    phase: Phase,
}

/// The remote accepts no more data. What it sent before is still read: it may be the result
/// that the application waits for.
struct WriteFailure {
    error: Error,
    /// The time until which further bytes have to arrive.
    deadline: Pin<Box<Sleep>>,
}

enum Phase {
    Running,
    /// The last frame is being sent; then the end of the remote is awaited.
    Closing {
        result: Result<(), Error>,
        deadline: Pin<Box<Sleep>>,
    },
    Over(Result<(), Error>),
}

/// Result of one read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Some,
    /// No progress now; the byte stream will wake the task.
    None,
    /// Reading is paused while too much waits.
    Paused,
    /// The remote has ended the connection.
    End,
}

/// Which end closed a connection that has not failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CloseInitiator {
    Remote,
    Local,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Driver<T> {
    pub(super) fn new(io: T, shared: Arc<Shared>, linger: Duration) -> Self {
        let layout = if io.is_write_vectored() {
            Layout::Vectored
        } else {
            Layout::Flat
        };
        Self {
            io,
            shared,
            input: BytesMut::new(),
            read_size: MIN_READ_BYTES,
            output: SendBuffer::new(layout),
            needs_flush: false,
            wake: Vec::new(),
            write_failure: None,
            linger,
            phase: Phase::Running,
        }
    }

    fn poll_running(&mut self, context: &mut Context<'_>) -> Poll<Result<CloseInitiator, Error>> {
        for _ in 0..MAX_ROUNDS {
            let written = self.write(context);
            let read = self.read(context)?;
            if read == Progress::End {
                return Poll::Ready(Ok(CloseInitiator::Remote));
            }
            if written == Progress::Some || read == Progress::Some {
                continue;
            }
            if read == Progress::None
                && let Some(write_failure) = &mut self.write_failure
                && write_failure.deadline.as_mut().poll(context).is_ready()
            {
                return Poll::Ready(Err(write_failure.error.clone()));
            }
            let mut state = self.shared.lock();
            if read == Progress::Paused && state.session.wants_input() {
                continue;
            }
            if !self.output.has_remaining() {
                if state.session.has_output() {
                    continue;
                }
                if state.session.can_close() {
                    return Poll::Ready(Ok(CloseInitiator::Local));
                }
            }
            state.register_driver(context);
            return Poll::Pending;
        }
        // Yields to other tasks.
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes frames from the session and writes them.
    fn write(&mut self, context: &mut Context<'_>) -> Progress {
        if !self.output.has_remaining() {
            let mut state = self.shared.lock();
            state.transmit(&mut self.output, &mut self.wake);
            drop(state);
            self.wake.drain(..).for_each(Waker::wake);
        }
        if self.write_failure.is_some() {
            self.output.advance(self.output.remaining());
            return Progress::None;
        }
        match self.write_output(context) {
            Ok(progress) => progress,
            Err(error) => {
                self.write_failure = Some(WriteFailure {
                    error: error.into(),
                    deadline: Box::pin(sleep(READ_AFTER_WRITE_FAILURE_TIMEOUT)),
                });
                Progress::Some
            }
        }
    }

    fn write_output(&mut self, context: &mut Context<'_>) -> io::Result<Progress> {
        let mut progress = Progress::None;
        while self.output.has_remaining() {
            match poll_write_buf(Pin::new(&mut self.io), context, &mut self.output)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(_) => {
                    self.needs_flush = true;
                    progress = Progress::Some;
                }
                Poll::Pending => return Ok(progress),
            }
        }
        if self.needs_flush && Pin::new(&mut self.io).poll_flush(context)?.is_ready() {
            self.needs_flush = false;
        }
        Ok(progress)
    }

    /// Reads once, and passes the bytes to the session.
    fn read(&mut self, context: &mut Context<'_>) -> Result<Progress, Error> {
        if !self.shared.lock().session.wants_input() {
            return Ok(Progress::Paused);
        }
        let spare = self.input.capacity() - self.input.len();
        if spare < self.read_size / 4 {
            self.input.reserve(self.read_size);
        }
        let spare = self.input.capacity() - self.input.len();
        let Poll::Ready(count) = poll_read_buf(Pin::new(&mut self.io), context, &mut self.input)?
        else {
            return Ok(Progress::None);
        };
        if count == 0 {
            return Ok(Progress::End);
        }
        if count == spare {
            self.read_size = (self.read_size * 2).min(MAX_READ_BYTES);
        }
        if let Some(write_failure) = &mut self.write_failure {
            write_failure
                .deadline
                .as_mut()
                .reset(Instant::now() + READ_AFTER_WRITE_FAILURE_TIMEOUT);
        }
        let mut state = self.shared.lock();
        let result = state.receive(&mut self.input, &mut self.wake);
        drop(state);
        self.wake.drain(..).for_each(Waker::wake);
        result.map(|()| Progress::Some)
    }

    /// Ends the connection for its streams. Returns what is left to do.
    fn end(&mut self, ending: Result<CloseInitiator, Error>) -> Phase {
        let ending = match ending {
            Ok(CloseInitiator::Remote) => {
                let ended = self.shared.lock().session.end_of_input(&self.input);
                ended.map(|()| CloseInitiator::Remote)
            }
            other => other,
        };
        let why = match &ending {
            Ok(CloseInitiator::Remote) => Closed::Remote,
            Ok(CloseInitiator::Local) => Closed::Local,
            Err(error) => Closed::Failed(error.clone()),
        };
        let last = match &ending {
            Ok(CloseInitiator::Remote) | Err(Error::Io(_) | Error::UnexpectedEof) => None,
            Ok(CloseInitiator::Local) => Some(GoAwayStatus::Ok),
            Err(_) => Some(GoAwayStatus::ProtocolError),
        };
        self.close(why, last);
        let result = ending.map(drop);
        if last.is_none() {
            return Phase::Over(result);
        }
        Phase::Closing {
            result,
            deadline: Box::pin(sleep(self.linger)),
        }
    }

    /// Writes the last frame, then waits for the end of the remote.
    fn poll_closing(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.output.has_remaining() {
            ready!(poll_write_buf(
                Pin::new(&mut self.io),
                context,
                &mut self.output
            ))?;
        }
        ready!(Pin::new(&mut self.io).poll_shutdown(context))?;
        loop {
            self.input.clear();
            self.input.reserve(MIN_READ_BYTES);
            let read = poll_read_buf(Pin::new(&mut self.io), context, &mut self.input);
            if ready!(read)? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Future for Driver<T> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            match &mut this.phase {
                Phase::Running => {
                    let ending = ready!(this.poll_running(context));
                    this.phase = this.end(ending);
                }
                Phase::Closing { result, deadline } => {
                    let is_late = deadline.as_mut().poll(context).is_ready();
                    let result = result.clone();
                    // Errors are ignored: the last frame was sent, or cannot be sent.
                    if !is_late {
                        let _ = ready!(this.poll_closing(context));
                    }
                    this.phase = Phase::Over(result);
                }
                Phase::Over(result) => return Poll::Ready(result.clone()),
            }
        }
    }
}

impl<T> Driver<T> {
    /// Wakes all waiters, and sends a `GOAWAY` if `last` is given.
    fn close(&mut self, why: Closed, last: Option<GoAwayStatus>) {
        let mut state = self.shared.lock();
        state.close(why, &mut self.wake);
        if let Some(status) = last {
            state.session.go_away(status);
            state.transmit(&mut self.output, &mut self.wake);
        }
        drop(state);
        self.wake.drain(..).for_each(Waker::wake);
    }
}

impl<T> Drop for Driver<T> {
    fn drop(&mut self) {
        self.close(Closed::Local, None);
    }
}

impl<T> fmt::Debug for Driver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}
