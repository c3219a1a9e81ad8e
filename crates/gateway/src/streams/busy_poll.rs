//! Adaptive busy-polling. Sleeping until a message arrives and being woken by it costs more
//! than relaying it. So where a command and its client answer each other at once, the
//! translator polls again for a moment before it sleeps. Like KVM's halt polling, it does so
//! only if it would have paid off the last time: typing, file copies and logs do not cause
//! busy-polling.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::Instant;

/// How long to poll for a reply: about twice the time of all wake-ups on the way to a node in
/// the same rack and back.
const POLL_DURATION: Duration = Duration::from_micros(200);

/// Longer messages are not interactive traffic: copying them costs more than a wake-up.
const MAX_INTERACTIVE_BYTES: usize = 1024;

/// The direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// Decides which of a bridge's translated commands may busy-poll: only one that is active
/// alone. With several, there is enough other work meanwhile.
#[derive(Debug)]
pub(crate) struct BusyPollArbiter {
    /// The stream that relayed a message last.
    active_stream: AtomicUsize,
    /// How many streams have been created.
    stream_count: AtomicUsize,
    /// On a single processor busy-polling would keep the other processes from answering.
    is_multiprocessor: bool,
}

impl BusyPollArbiter {
    /// For a machine with this many processors.
    pub(crate) fn new(processors: usize) -> Self {
        Self {
            active_stream: AtomicUsize::new(0),
            stream_count: AtomicUsize::new(0),
            is_multiprocessor: processors > 1,
        }
    }
}

/// Busy-polling state of a stream.
#[derive(Debug)]
pub(crate) struct BusyPoll {
    arbiter: Arc<BusyPollArbiter>,
    number: usize,
    last: Instant,
    direction: Option<Direction>,
    /// The last message was small, and soon answered one that this stream had relayed the
    /// other way.
    is_interactive: bool,
}

impl BusyPoll {
    pub(crate) fn new(arbiter: Arc<BusyPollArbiter>, now: Instant) -> Self {
        Self {
            number: arbiter.stream_count.fetch_add(1, Ordering::Relaxed) + 1,
            arbiter,
            last: now,
            direction: None,
            is_interactive: false,
        }
    }

    /// A message of this many bytes was relayed.
    pub(crate) fn on_relayed(&mut self, now: Instant, direction: Direction, bytes: usize) {
        let is_alone = self.is_active();
        if !is_alone {
            self.arbiter
                .active_stream
                .store(self.number, Ordering::Relaxed);
        }
        let is_reply = self.direction.is_some_and(|it| it != direction);
        let is_soon = now.duration_since(self.last) < POLL_DURATION;
        self.is_interactive = is_alone
            && is_reply
            && is_soon
            && bytes <= MAX_INTERACTIVE_BYTES
            && self.arbiter.is_multiprocessor;
        self.direction = Some(direction);
        self.last = now;
    }

    /// Schedules another poll of the task right after the next check of all sockets, if a reply is
    /// expected soon.
    pub(crate) fn schedule(&self, cx: &mut Context<'_>) {
        // Without busy-polling, no clock is read.
        if self.is_interactive && self.should_poll(Instant::now()) {
            // A deferred task is woken after the next check of all sockets.
            let _ = pin!(yield_now()).poll(cx);
        }
    }

    fn should_poll(&self, now: Instant) -> bool {
        self.is_interactive && now.duration_since(self.last) < POLL_DURATION && self.is_active()
    }

    fn is_active(&self) -> bool {
        self.arbiter.active_stream.load(Ordering::Relaxed) == self.number
    }
}

#[cfg(test)]
mod tests {
    use super::Direction::{Down, Up};
    use super::*;

    /// The pause before a message in microseconds, its direction, and its size in bytes.
    type Message = (u64, Direction, usize);

    /// Whether a stream busy-polls after the last message.
    const TRAFFIC: [(&str, &[Message], bool); 7] = [
        ("no message", &[], false),
        ("one message", &[(5_000, Up, 16)], false),
        (
            "an immediate reply",
            &[(5_000, Up, 16), (90, Down, 16)],
            true,
        ),
        ("typing", &[(80_000, Up, 1), (60_000, Up, 1)], false),
        (
            "a file copy",
            &[(50, Up, 16_384), (50, Down, 16_384)],
            false,
        ),
        ("a slow reply", &[(90, Up, 16), (9_000, Down, 16)], false),
        (
            "a log",
            &[(90, Up, 16), (90, Down, 99), (90, Down, 99)],
            false,
        ),
    ];

    fn after_messages(arbiter: &Arc<BusyPollArbiter>, messages: &[Message]) -> (BusyPoll, Instant) {
        let mut now = Instant::now();
        let mut busy_poll = BusyPoll::new(arbiter.clone(), now);
        for &(pause, direction, bytes) in messages {
            now += Duration::from_micros(pause);
            busy_poll.on_relayed(now, direction, bytes);
        }
        (busy_poll, now)
    }

    #[test]
    fn only_interactive_traffic_is_busy_polled() {
        for (name, messages, polls) in TRAFFIC {
            let (busy_poll, now) = after_messages(&Arc::new(BusyPollArbiter::new(2)), messages);
            assert_eq!(busy_poll.should_poll(now), polls, "{name}");
            assert!(
                !busy_poll.should_poll(now + POLL_DURATION),
                "{name}: without end"
            );
        }
    }

    #[test]
    fn no_stream_busy_polls_while_others_are_active() {
        let arbiter = Arc::new(BusyPollArbiter::new(2));
        let immediate_reply = TRAFFIC[2].1;
        let (mut first, mut now) = after_messages(&arbiter, immediate_reply);
        assert!(first.should_poll(now));
        let (second, later) = after_messages(&arbiter, immediate_reply);
        assert!(!first.should_poll(now), "another stream is active");
        assert!(second.should_poll(later));
        // With alternating streams, none busy-polls.
        now += Duration::from_micros(50);
        first.on_relayed(now, Up, 16);
        assert!(
            !first.should_poll(now) && !second.should_poll(later),
            "alternating streams"
        );
        // Until the other one sends nothing.
        now += Duration::from_micros(50);
        first.on_relayed(now, Down, 16);
        assert!(first.should_poll(now), "alone again");
    }

    #[test]
    fn there_is_no_busy_polling_on_a_single_processor() {
        let (busy_poll, now) = after_messages(&Arc::new(BusyPollArbiter::new(1)), TRAFFIC[2].1);
        assert!(!busy_poll.should_poll(now));
    }
}
