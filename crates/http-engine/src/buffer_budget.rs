//! Memory that a server buffers for its clients: a budget for the process and one per connection, and
//! the choice of stalled streams that are reset when a budget is exceeded.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Buffer limit of an unauthenticated connection. Its flow-control window is 64 KiB; the rest is for
/// request bodies that are kept for a retry.
const UNAUTHENTICATED_CONNECTION_BYTES: usize = 512 * 1024;

/// Buffer limit of an authenticated connection. It exceeds the sum of its flow-control windows (4 MiB of
/// request bodies, 100 responses of 128 KiB with 64 KiB of output and one frame each) and of 256 KiB per
/// retry.
const AUTHENTICATED_CONNECTION_BYTES: usize = 64 * 1024 * 1024;

/// How often the bytes of a stalled stream are counted.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// An unauthenticated client must read or send this much to count as making progress: single bytes would
/// otherwise occupy the buffers indefinitely.
const UNAUTHENTICATED_PROGRESS_BYTES: u64 = 4 * 1024;

/// A stalled stream of an authenticated client is reset only after this time, and only
/// when no stream of an unauthenticated client is left to reset. Pauses of a client
/// (garbage collection, a suspended terminal) are shorter or last until a person returns.
const AUTHENTICATED_EVICTION_AGE: Duration = Duration::from_secs(30);

/// Interval between eviction runs: each run visits all stalled streams.
const EVICTION_INTERVAL: Duration = Duration::from_millis(100);

/// Why a stream was reset, or its connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// The client neither read nor sent data for too long.
    TimedOut,
    /// The buffers exceed the budget of the process or of the connection.
    OverBudget,
}

/// Metrics of the buffered bytes and the evictions of a budget.
pub trait BufferMetrics: std::fmt::Debug + Send + Sync {
    /// The number of buffered bytes of the process changed by this much.
    fn buffered_bytes_changed(&self, by: i64);

    /// A stream was reset.
    fn evicted(&self, eviction: Eviction);
}

/// Whether the client of a connection has proved an identity.
pub trait ClientAuthentication: std::fmt::Debug + Send + Sync {
    /// Never changes back to false.
    fn is_authenticated(&self) -> bool;
}

/// The budget of the process, shared by all workers.
#[derive(Debug)]
pub struct BufferBudget {
    limit: usize,
    unauthenticated_stall_timeout: Duration,
    buffered_bytes: AtomicUsize,
    stalled: Mutex<StalledStreams>,
    metrics: Option<Box<dyn BufferMetrics>>,
}

impl BufferBudget {
    /// A process may hold `max_bytes` for its clients. `unauthenticated_stall_timeout` is how
    /// long a client that has not authenticated may make no progress.
    pub fn new(
        max_bytes: usize,
        unauthenticated_stall_timeout: Duration,
        metrics: Option<Box<dyn BufferMetrics>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            limit: max_bytes,
            unauthenticated_stall_timeout,
            buffered_bytes: AtomicUsize::new(0),
            stalled: Mutex::default(),
            metrics,
        })
    }

    fn buffered_bytes(&self) -> usize {
        self.buffered_bytes.load(Ordering::Relaxed)
    }

    fn change(&self, from: usize, to: usize) {
        if to >= from {
            self.buffered_bytes.fetch_add(to - from, Ordering::Relaxed);
        } else {
            self.buffered_bytes.fetch_sub(from - to, Ordering::Relaxed);
        }
        if let Some(metrics) = &self.metrics {
            let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
            metrics.buffered_bytes_changed(signed(to) - signed(from));
        }
    }

    fn lock(&self) -> MutexGuard<'_, StalledStreams> {
        self.stalled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The limits of one client connection.
#[derive(Debug, Clone)]
pub struct ClientLimits(Option<Arc<ConnectionBudget>>);

#[derive(Debug)]
struct ConnectionBudget {
    client: Arc<dyn ClientAuthentication>,
    budget: Arc<BufferBudget>,
    buffered_bytes: AtomicUsize,
}

impl ClientLimits {
    /// A listener whose clients are trusted: nothing is counted.
    pub fn trusted() -> &'static Self {
        static TRUSTED: ClientLimits = ClientLimits(None);
        &TRUSTED
    }

    /// A connection whose bytes count against `budget`.
    pub fn new(client: Arc<dyn ClientAuthentication>, budget: Arc<BufferBudget>) -> Self {
        Self(Some(Arc::new(ConnectionBudget {
            client,
            budget,
            buffered_bytes: AtomicUsize::new(0),
        })))
    }

    /// Whether the client has proved an identity.
    pub fn is_authenticated(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|limited| limited.client.is_authenticated())
    }

    /// How long the client may leave a pending response unread.
    pub fn stall_timeout(&self, authenticated: Duration) -> Duration {
        match &self.0 {
            Some(limited) if !limited.client.is_authenticated() => {
                limited.budget.unauthenticated_stall_timeout
            }
            _ => authenticated,
        }
    }

    /// How long the client may pause while upstream waits for the request body.
    pub fn request_body_timeout(&self) -> Option<Duration> {
        let limited = self.0.as_ref()?;
        let unauthenticated = !limited.client.is_authenticated();
        unauthenticated.then_some(limited.budget.unauthenticated_stall_timeout)
    }

    /// An empty reservation.
    pub fn reservation(&self) -> Reservation {
        Reservation {
            limits: self.clone(),
            bytes: 0,
        }
    }

    fn evicted(&self, eviction: Eviction) {
        let budget = self.0.as_ref().map(|limited| &limited.budget);
        if let Some(metrics) = budget.and_then(|budget| budget.metrics.as_ref()) {
            metrics.evicted(eviction);
        }
    }
}

impl ConnectionBudget {
    fn change(&self, from: usize, to: usize) {
        if to >= from {
            self.buffered_bytes.fetch_add(to - from, Ordering::Relaxed);
        } else {
            self.buffered_bytes.fetch_sub(from - to, Ordering::Relaxed);
        }
        self.budget.change(from, to);
    }

    fn connection_limit(&self) -> usize {
        if self.client.is_authenticated() {
            AUTHENTICATED_CONNECTION_BYTES
        } else {
            UNAUTHENTICATED_CONNECTION_BYTES
        }
    }
}

/// Bytes that count against the budgets until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    limits: ClientLimits,
    bytes: usize,
}

impl Reservation {
    /// Counts more bytes, unless a budget would be exceeded.
    pub fn try_add(&mut self, bytes: usize) -> bool {
        let Some(limited) = &self.limits.0 else {
            return true;
        };
        let budget = &limited.budget;
        if budget.buffered_bytes() + bytes > budget.limit
            || limited.buffered_bytes.load(Ordering::Relaxed) + bytes > limited.connection_limit()
        {
            return false;
        }
        limited.change(0, bytes);
        self.bytes += bytes;
        true
    }

    /// Releases all bytes.
    pub fn clear(&mut self) {
        self.set(0);
    }

    fn set(&mut self, bytes: usize) {
        if let Some(limited) = &self.limits.0 {
            limited.change(self.bytes, bytes);
        }
        self.bytes = bytes;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Buffered bytes of a stalled stream, and the cause of the stall.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Bytes in its buffers.
    pub bytes: usize,
    /// Whether the stream waits for the client.
    pub waits_for_client: bool,
}

/// Detects a stalled stream. It has no cost until the stream waits, and a stream that waits for less than
/// a second is not counted.
#[derive(Debug)]
pub struct StallGuard<'a> {
    limits: &'a ClientLimits,
    timeout: Option<Duration>,
    waiting: Option<StallTimer>,
}

#[derive(Debug)]
struct StallTimer {
    timer: Pin<Box<Sleep>>,
    since: Instant,
    progress: u64,
    entry: Option<Entry>,
}

impl<'a> StallGuard<'a> {
    /// The client may make no progress for this long.
    pub fn new(limits: &'a ClientLimits, timeout: Option<Duration>) -> Self {
        Self {
            limits,
            timeout,
            waiting: None,
        }
    }

    /// Polled while the stream waits; ready when the stream must be reset. `progress` is the number of bytes
    /// that the client has sent or read so far.
    pub fn poll_evicted(
        &mut self,
        progress: u64,
        mut sample: impl FnMut() -> Sample,
        cx: &mut Context<'_>,
    ) -> Poll<Eviction> {
        let progress = if self.limits.is_authenticated() {
            progress
        } else {
            progress / UNAUTHENTICATED_PROGRESS_BYTES
        };
        let first = SAMPLE_INTERVAL.min(self.timeout.unwrap_or(SAMPLE_INTERVAL));
        let waiting = self.waiting.get_or_insert_with(|| {
            let since = Instant::now();
            StallTimer {
                timer: Box::pin(sleep_until(since + first)),
                since,
                progress,
                entry: None,
            }
        });
        if waiting.progress != progress {
            waiting.progress = progress;
            waiting.since = Instant::now();
            waiting.entry = None;
            waiting.timer.as_mut().reset(waiting.since + first);
        }
        loop {
            ready!(waiting.timer.as_mut().poll(cx));
            let now = Instant::now();
            let sample = sample();
            if !sample.waits_for_client {
                waiting.since = now;
            }
            if self
                .timeout
                .is_some_and(|timeout| now >= waiting.since + timeout)
            {
                self.limits.evicted(Eviction::TimedOut);
                return Poll::Ready(Eviction::TimedOut);
            }
            let entry = waiting
                .entry
                .get_or_insert_with(|| Entry::new(self.limits, now));
            if entry.update(sample.bytes, now) {
                self.limits.evicted(Eviction::OverBudget);
                return Poll::Ready(Eviction::OverBudget);
            }
            let next = now + SAMPLE_INTERVAL;
            let next = match self.timeout {
                Some(timeout) => next.min(waiting.since + timeout),
                None => next,
            };
            waiting.timer.as_mut().reset(next);
        }
    }

    /// The stream no longer waits.
    pub fn end_wait(&mut self) {
        self.waiting = None;
    }
}

/// The registration of a stalled stream as a candidate for eviction.
#[derive(Debug)]
struct Entry {
    reservation: Reservation,
    id: u64,
}

impl Entry {
    fn new(limits: &ClientLimits, now: Instant) -> Self {
        let id = limits.0.as_ref().map_or(0, |limited| {
            let authenticated = limited.client.is_authenticated();
            limited.budget.lock().add(authenticated, now)
        });
        Self {
            reservation: limits.reservation(),
            id,
        }
    }

    /// Counts what the stream holds now; true if it is to be reset.
    fn update(&mut self, bytes: usize, now: Instant) -> bool {
        self.reservation.set(bytes);
        let Some(limited) = &self.reservation.limits.0 else {
            return false;
        };
        if limited.buffered_bytes.load(Ordering::Relaxed) > limited.connection_limit() {
            return true;
        }
        let budget = &limited.budget;
        let excess = budget.buffered_bytes().saturating_sub(budget.limit);
        budget.lock().update(self.id, bytes, excess, now)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(limited) = &self.reservation.limits.0 {
            limited.budget.lock().streams.remove(&self.id);
        }
    }
}

/// The stalled streams of the process, oldest first.
#[derive(Debug, Default)]
struct StalledStreams {
    streams: BTreeMap<u64, StalledStream>,
    next: u64,
    chosen: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct StalledStream {
    bytes: usize,
    authenticated: bool,
    since: Instant,
    evicted: bool,
}

impl StalledStreams {
    fn add(&mut self, authenticated: bool, since: Instant) -> u64 {
        self.next += 1;
        let stalled = StalledStream {
            bytes: 0,
            authenticated,
            since,
            evicted: false,
        };
        self.streams.insert(self.next, stalled);
        self.next
    }

    /// Whether this stream must be reset while the process exceeds its budget by `excess` bytes.
    fn update(&mut self, id: u64, bytes: usize, excess: usize, now: Instant) -> bool {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.bytes = bytes;
        }
        let lately = self
            .chosen
            .is_some_and(|at| now < at + EVICTION_INTERVAL && now >= at);
        if excess > 0 && !lately {
            self.chosen = Some(now);
            self.evict(excess, now);
        }
        self.streams.get(&id).is_some_and(|stream| stream.evicted)
    }

    /// Marks streams for eviction until their bytes cover the excess: unauthenticated ones first, then the
    /// longest stalled.
    fn evict(&mut self, excess: usize, now: Instant) {
        let going = self.streams.values().filter(|stream| stream.evicted);
        let mut freed: usize = going.map(|stream| stream.bytes).sum();
        for authenticated in [false, true] {
            for stream in self.streams.values_mut() {
                if freed >= excess {
                    return;
                }
                let may_go = stream.authenticated == authenticated
                    && !stream.evicted
                    && stream.bytes > 0
                    && (!authenticated || now >= stream.since + AUTHENTICATED_EVICTION_AGE);
                if may_go {
                    stream.evicted = true;
                    freed += stream.bytes;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
