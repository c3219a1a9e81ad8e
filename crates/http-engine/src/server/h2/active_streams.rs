//! The streams of a connection: how many there are, and what concerns the connection as a whole.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::time::Instant;

use crate::buffer_budget::ClientLimits;

/// Streams that a client reset before the response, per connection: a slow rapid reset attack. The
/// connection is closed at this number, if they are the majority.
const MAX_EARLY_RESETS: usize = 500;

/// Counts the streams of a connection, and records since when there are none.
#[derive(Debug, Clone)]
pub(super) struct StreamCounter(pub(super) Arc<ActiveStreams>);

#[derive(Debug)]
pub(super) struct ActiveStreams {
    count: AtomicUsize,
    opened: AtomicUsize,
    reset_early: AtomicUsize,
    idle_since: Mutex<Instant>,
    /// A stream has found that the client has authenticated.
    authenticated: AtomicBool,
    /// The connection closes after the responses in flight.
    closing: AtomicBool,
    /// Wakes the connection's own task.
    pub(super) changed: ConnectionWaker,
}

/// Wakes the task of the connection. The task polls it for each frame and is notified twice per
/// connection, so it registers once, and an unset flag costs one load.
#[derive(Debug, Default)]
pub(super) struct ConnectionWaker {
    is_set: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl ConnectionWaker {
    fn notify(&self) {
        self.is_set.store(true, Ordering::Release);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = &*task {
            task.wake_by_ref();
        }
    }

    /// `registered` is the task that was registered last.
    pub(super) fn poll(&self, registered: &mut Option<Waker>, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker();
        if !registered.as_ref().is_some_and(|it| it.will_wake(waker)) {
            let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
            *registered = Some(waker.clone());
            task.clone_from(registered);
        }
        if self.is_set.load(Ordering::Relaxed) && self.is_set.swap(false, Ordering::Acquire) {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Default for StreamCounter {
    fn default() -> Self {
        Self(Arc::new(ActiveStreams {
            count: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
            reset_early: AtomicUsize::new(0),
            idle_since: Mutex::new(Instant::now()),
            authenticated: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            changed: ConnectionWaker::default(),
        }))
    }
}

impl StreamCounter {
    pub(super) fn begin(&self) -> ActiveStream {
        self.0.count.fetch_add(1, Ordering::Relaxed);
        self.0.opened.fetch_add(1, Ordering::Relaxed);
        ActiveStream(self.clone())
    }

    pub(super) fn is_reset_flood(&self) -> bool {
        let early = self.0.reset_early.load(Ordering::Relaxed);
        early >= MAX_EARLY_RESETS && early > self.0.opened.load(Ordering::Relaxed) / 2
    }

    pub(super) fn is_closing(&self) -> bool {
        self.0.closing.load(Ordering::Relaxed)
    }

    pub(super) fn idle_since(&self) -> Option<Instant> {
        (self.0.count.load(Ordering::Relaxed) == 0).then(|| {
            *self
                .0
                .idle_since
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        })
    }
}

#[derive(Debug)]
pub(super) struct ActiveStream(StreamCounter);

impl ActiveStream {
    /// The connection's task widens the window once the client has authenticated.
    pub(super) fn note_authentication(&self, limits: &ClientLimits) {
        let streams = &self.0.0;
        if limits.is_authenticated()
            && !streams.authenticated.load(Ordering::Relaxed)
            && !streams.authenticated.swap(true, Ordering::Relaxed)
        {
            streams.changed.notify();
        }
    }

    pub(super) fn close_connection(&self) {
        self.0.0.closing.store(true, Ordering::Relaxed);
        self.0.0.changed.notify();
    }

    pub(super) fn reset_early(&self) {
        self.0.0.reset_early.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for ActiveStream {
    fn drop(&mut self) {
        let streams = &self.0.0;
        if streams.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            *streams
                .idle_since
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
    }
}
