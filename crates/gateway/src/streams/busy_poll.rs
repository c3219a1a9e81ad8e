//! Staying awake for an answer. To sleep until a message comes and to be woken by it
//! costs more than to carry it, so where a command and its client answer each other at
//! once, the translator looks again for a moment before it sleeps. PingRole KVM polls before
//! it halts a processor, it does so only after it would have been worth it the last
//! time: whoever types, copies a file or writes a log is slept for as ever.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::Instant;

/// How long an answer is stayed awake for: about twice of what it takes to wake
/// everybody on the way to a node of the same rack and back.
const AWAKE: Duration = Duration::from_micros(200);

/// What is longer is no talk: copying it costs more than any waking.
const LITTLE: usize = 1024;

/// Which way something is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// Who of a bridge's translated commands has the word. Only one that talks alone is
/// stayed awake for: where others do as well, there is enough to do meanwhile.
#[derive(Debug)]
pub(crate) struct BusyPollArbiter {
    /// Whoever was carried last.
    speaker: AtomicUsize,
    /// How many there have been.
    numbered: AtomicUsize,
    /// Of a single processor everybody else would be kept from answering.
    is_wide: bool,
}

impl BusyPollArbiter {
    /// On a machine of so many processors.
    pub(crate) fn new(processors: usize) -> Self {
        Self {
            speaker: AtomicUsize::new(0),
            numbered: AtomicUsize::new(0),
            is_wide: processors > 1,
        }
    }
}

/// Whether a stream stays awake.
#[derive(Debug)]
pub(crate) struct BusyPoll {
    arbiter: Arc<BusyPollArbiter>,
    number: usize,
    last: Instant,
    heading: Option<Direction>,
    /// What was carried last was little, and soon answered what this stream had carried
    /// the other way.
    brisk: bool,
}

impl BusyPoll {
    pub(crate) fn new(arbiter: Arc<BusyPollArbiter>, now: Instant) -> Self {
        Self {
            number: arbiter.numbered.fetch_add(1, Ordering::Relaxed) + 1,
            arbiter,
            last: now,
            heading: None,
            brisk: false,
        }
    }

    /// So many bytes have been carried.
    pub(crate) fn carried(&mut self, now: Instant, heading: Direction, bytes: usize) {
        let alone = self.has_floor();
        if !alone {
            self.arbiter.speaker.store(self.number, Ordering::Relaxed);
        }
        let answers = self.heading.is_some_and(|it| it != heading);
        let soon = now.duration_since(self.last) < AWAKE;
        self.brisk = alone && answers && soon && bytes <= LITTLE && self.arbiter.is_wide;
        self.heading = Some(heading);
        self.last = now;
    }

    /// Lets the task be polled again as soon as it has been looked what has come, if
    /// that is worth it.
    pub(crate) fn keep(&self, cx: &mut Context<'_>) {
        // Whoever sleeps anyway does not look at the clock before.
        if self.brisk && self.is_kept(Instant::now()) {
            // What is deferred is woken after the next look at all sockets.
            let _ = pin!(yield_now()).poll(cx);
        }
    }

    fn is_kept(&self, now: Instant) -> bool {
        self.brisk && now.duration_since(self.last) < AWAKE && self.has_floor()
    }

    fn has_floor(&self) -> bool {
        self.arbiter.speaker.load(Ordering::Relaxed) == self.number
    }
}

#[cfg(test)]
mod tests {
    use super::Direction::{Down, Up};
    use super::*;

    /// The pause before a message in microseconds, where it goes, and of how many bytes.
    type Message = (u64, Direction, usize);

    /// Whether one stays awake after the last message.
    const TALKS: [(&str, &[Message], bool); 7] = [
        ("nothing yet", &[], false),
        ("one message", &[(5_000, Up, 16)], false),
        (
            "an answer at once",
            &[(5_000, Up, 16), (90, Down, 16)],
            true,
        ),
        ("typing", &[(80_000, Up, 1), (60_000, Up, 1)], false),
        ("a file", &[(50, Up, 16_384), (50, Down, 16_384)], false),
        (
            "a command that thinks",
            &[(90, Up, 16), (9_000, Down, 16)],
            false,
        ),
        (
            "a log",
            &[(90, Up, 16), (90, Down, 99), (90, Down, 99)],
            false,
        ),
    ];

    fn talk(arbiter: &Arc<BusyPollArbiter>, said: &[Message]) -> (BusyPoll, Instant) {
        let mut now = Instant::now();
        let mut busy_poll = BusyPoll::new(arbiter.clone(), now);
        for &(pause, heading, bytes) in said {
            now += Duration::from_micros(pause);
            busy_poll.carried(now, heading, bytes);
        }
        (busy_poll, now)
    }

    #[test]
    fn who_answers_at_once_is_stayed_awake_for() {
        for (name, said, kept) in TALKS {
            let (busy_poll, now) = talk(&Arc::new(BusyPollArbiter::new(2)), said);
            assert_eq!(busy_poll.is_kept(now), kept, "{name}");
            assert!(!busy_poll.is_kept(now + AWAKE), "{name}: for ever");
        }
    }

    #[test]
    fn nobody_stays_awake_where_others_talk() {
        let arbiter = Arc::new(BusyPollArbiter::new(2));
        let at_once = TALKS[2].1;
        let (mut first, mut now) = talk(&arbiter, at_once);
        assert!(first.is_kept(now));
        let (second, later) = talk(&arbiter, at_once);
        assert!(!first.is_kept(now), "another one talks");
        assert!(second.is_kept(later));
        // In turns, nobody does.
        now += Duration::from_micros(50);
        first.carried(now, Up, 16);
        assert!(!first.is_kept(now) && !second.is_kept(later), "in turns");
        // Until the other one is silent.
        now += Duration::from_micros(50);
        first.carried(now, Down, 16);
        assert!(first.is_kept(now), "alone again");
    }

    #[test]
    fn a_single_processor_is_left_to_those_who_answer() {
        let (busy_poll, now) = talk(&Arc::new(BusyPollArbiter::new(1)), TALKS[2].1);
        assert!(!busy_poll.is_kept(now));
    }
}
