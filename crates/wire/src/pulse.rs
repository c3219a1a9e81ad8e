//! Whether the other end of a stream still lives: when to ask, and what to make
//! of silence. Without I/O and without a clock.

use std::time::Duration;

use tokio::time::Instant;

/// One end of a stream, as it is heard.
///
/// Silence is only then taken for death when the other end cannot be busy with
/// what it was sent: who waits for a process to read its stdin, or for a person to
/// scroll on, may read no pings either. What it has taken is known by the pings that
/// it has answered. A little is read whether anybody takes it or not. And silence is
/// none before it was asked twice: one ping may wait behind what others do not.
#[derive(Debug)]
pub struct Pulse {
    interval: Duration,
    /// How long it may take to answer.
    patience: Duration,
    heard: Instant,
    said: Instant,
    asked: Instant,
    /// The first time that it was asked since it was heard.
    waiting: Option<Instant>,
    /// How much it was sent: bytes, where little counts as [`PIECE`].
    sent: u64,
    /// How much of that it is known to have taken.
    taken: u64,
    /// How much of it had been sent when an answer was last asked of all that takes it.
    asked_all: u64,
    /// It was sent something since then that is no ping.
    unasked: bool,
}

/// What is read though it waits for somebody: half of what a terminal's own buffer holds,
/// which is the smallest on the way.
const SLACK: u64 = 2 * 1024;

/// What the smallest piece counts: what reads ahead has room for so many pieces, not
/// bytes. moby/spdystream has for 50 frames, of which [`SLACK`] is 32.
const PIECE: u64 = 64;

/// What part of the interval passes between two pings that are asked for by what was sent: a
/// second, as a rule, in which nobody types as much as [`SLACK`] is.
const SOON: u32 = 10;

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    /// Nothing.
    Rest,
    /// Ask, and bring the mark back with the answer.
    Ping(Mark, Ask),
    /// It is gone.
    Dead,
}

/// What is asked for, where pings are not answered one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Any sign of life.
    Any,
    /// An answer of all that takes what it is sent: it was sent something since that was
    /// last asked for, if only many pings, or it has left a ping unanswered though nothing
    /// is known that keeps it from answering.
    All,
}

/// What had been sent when a ping was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(pub u64);

impl Pulse {
    /// It has just been heard.
    pub fn new(now: Instant, interval: Duration, patience: Duration) -> Self {
        Self {
            interval,
            patience,
            heard: now,
            said: now,
            asked: now,
            waiting: None,
            sent: 0,
            taken: 0,
            asked_all: 0,
            unasked: false,
        }
    }

    /// Something came from it.
    pub fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.waiting = None;
    }

    /// Nobody here listens to it just now: its silence is ours.
    pub fn excuse(&mut self) {
        self.waiting = None;
    }

    /// It was sent something that it may be slow to take.
    pub fn sent(&mut self, now: Instant, bytes: usize) {
        self.said = now;
        self.unasked = true;
        self.sent += (bytes as u64).max(PIECE);
    }

    /// It was sent pings, of which one in so many waits behind what it has not taken.
    pub fn pinged(&mut self, pings: u64, one_in: u64) {
        self.sent += pings * PIECE / one_in.max(1);
    }

    /// The answers to what it was just asked will show nothing of what was sent: the pings
    /// overtake some of it.
    pub fn overtaken(&mut self) {
        self.unasked = true;
        self.asked_all = self.taken;
    }

    /// It has taken what had been sent at this mark, as its answers to pings show.
    pub fn answered(&mut self, mark: Mark) {
        // Nobody has taken what was not sent.
        self.taken = self.taken.max(mark.0.min(self.sent));
    }

    /// When to look again.
    pub fn next(&self) -> Instant {
        let ping = self.due();
        self.death().map_or(ping, |death| ping.min(death))
    }

    /// Since when it could have answered, and has not.
    fn silent_since(&self) -> Option<Instant> {
        let idle = self.sent - self.taken <= SLACK;
        self.waiting.filter(|_| idle)
    }

    /// Whether an answer has come of all of whom one was last asked. Before that, more
    /// pings would show nothing, and only wait behind what is not taken.
    fn is_settled(&self) -> bool {
        self.taken >= self.asked_all
    }

    fn death(&self) -> Option<Instant> {
        self.silent_since().map(|at| at + self.patience)
    }

    /// A connection that carries nothing in either direction for a while is cut by
    /// what stands between: some count what comes, some what goes.
    fn due(&self) -> Instant {
        let quiet = self.heard.min(self.said) + self.interval;
        let mut due = quiet.max(self.asked + self.interval);
        if self.unasked && self.is_settled() && self.sent - self.taken > SLACK / 2 {
            // Before it is so much that silence would mean nothing: who types is answered all
            // the time, and would not be asked while it counts.
            due = due.min(self.asked + self.interval / SOON);
        }
        match self.silent_since() {
            Some(at) if at == self.asked => due.min(at + self.patience / 2),
            _ => due,
        }
    }

    /// What to do now.
    pub fn look(&mut self, now: Instant) -> Beat {
        if self.death().is_some_and(|death| death <= now) {
            return Beat::Dead;
        }
        if now < self.due() {
            return Beat::Rest;
        }
        let much = self.sent - self.asked_all > SLACK / 2;
        let unknown = self.is_settled() && (self.unasked || much);
        let ask = if unknown || self.silent_since().is_some() {
            self.asked_all = self.sent;
            self.unasked = false;
            Ask::All
        } else {
            Ask::Any
        };
        self.asked = now;
        self.waiting.get_or_insert(now);
        Beat::Ping(Mark(self.sent), ask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);
    const PATIENCE: Duration = Duration::from_secs(5);

    fn pulse() -> (Pulse, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        let at = move |seconds| start + Duration::from_secs(seconds);
        (Pulse::new(start, INTERVAL, PATIENCE), at)
    }

    fn any(sent: u64) -> Beat {
        Beat::Ping(Mark(sent), Ask::Any)
    }

    fn all(sent: u64) -> Beat {
        Beat::Ping(Mark(sent), Ask::All)
    }

    #[test]
    fn who_is_silent_is_asked_twice_and_then_dead() {
        let (mut pulse, at) = pulse();
        assert_eq!(pulse.next(), at(10));
        assert_eq!(pulse.look(at(9)), Beat::Rest);
        assert_eq!(pulse.look(at(10)), any(0));
        assert_eq!(pulse.next(), at(10) + PATIENCE / 2);
        assert_eq!(pulse.look(at(12)), Beat::Rest);
        assert_eq!(pulse.look(at(13)), all(0));
        assert_eq!(pulse.next(), at(15));
        assert_eq!(pulse.look(at(14)), Beat::Rest);
        assert_eq!(pulse.look(at(15)), Beat::Dead);
    }

    #[test]
    fn who_answers_the_second_time_lives() {
        let (mut pulse, at) = pulse();
        for turn in (10..10_000).step_by(13) {
            assert_eq!(pulse.look(at(turn)), any(0));
            assert_eq!(pulse.look(at(turn + 3)), all(0));
            pulse.heard(at(turn + 3));
            assert_eq!(pulse.look(at(turn + 12)), Beat::Rest);
        }
    }

    #[test]
    fn who_answers_lives() {
        let (mut pulse, at) = pulse();
        for turn in 1..1000 {
            let now = at(10 * turn);
            assert_eq!(pulse.look(now), any(0));
            pulse.heard(now);
            pulse.answered(Mark(0));
        }
    }

    #[test]
    fn nobody_is_dead_who_was_not_asked() {
        // As after the machine has slept.
        let (mut pulse, at) = pulse();
        assert_eq!(pulse.look(at(3600)), any(0));
        assert_eq!(pulse.look(at(3602)), Beat::Rest);
        assert_eq!(pulse.look(at(3604)), all(0));
        assert_eq!(pulse.look(at(3605)), Beat::Dead);
    }

    #[test]
    fn who_may_be_busy_with_what_it_was_sent_is_not_dead() {
        let (mut pulse, at) = pulse();
        pulse.sent(at(1), 3000);
        assert_eq!(pulse.look(at(11)), all(3000));
        for turn in 3..100 {
            assert_eq!(pulse.look(at(10 * turn)), any(3000));
            assert_eq!(pulse.next(), at(10 * turn + 10));
        }
        // It was: and after what it has answered it can be dead again.
        pulse.heard(at(1000));
        pulse.answered(Mark(3000));
        assert_eq!(pulse.look(at(1010)), any(3000));
        assert_eq!(pulse.look(at(1015)), Beat::Dead);
    }

    #[test]
    fn an_answer_says_nothing_of_what_was_sent_after_the_ping() {
        let (mut pulse, at) = pulse();
        assert_eq!(pulse.look(at(10)), any(0));
        pulse.sent(at(11), 3000);
        pulse.heard(at(12));
        pulse.answered(Mark(0));
        assert_eq!(pulse.look(at(22)), all(3000));
        assert_eq!(pulse.look(at(30)), Beat::Rest);
        pulse.answered(Mark(0));
        assert_eq!(pulse.look(at(31)), Beat::Rest);
        // Nor does one that was made up.
        pulse.answered(Mark(u64::MAX));
        assert_eq!(pulse.look(at(31)), Beat::Dead);
    }

    #[test]
    fn a_few_bytes_keep_nobody_busy() {
        let (mut pulse, at) = pulse();
        pulse.sent(at(1), 2048);
        assert_eq!(pulse.look(at(11)), all(2048));
        assert_eq!(pulse.look(at(16)), Beat::Dead);
    }

    #[test]
    fn who_is_lost_while_somebody_types_is_noticed_as_soon_as_in_silence() {
        let start = Instant::now();
        let mut pulse = Pulse::new(start, INTERVAL, PATIENCE);
        let mut now = start;
        let mut pings = 0;
        // Ten keys a second, each with its echo.
        for _ in 0..600 {
            now += Duration::from_millis(100);
            pulse.sent(now, 1);
            pulse.heard(now);
            if let Beat::Ping(mark, _) = pulse.look(now) {
                pulse.answered(mark);
                pings += 1;
            }
        }
        assert!(pings <= 60, "{pings}");
        let lost = now;
        let dead = loop {
            now = now.max(pulse.next());
            if pulse.look(now) == Beat::Dead {
                break now;
            }
            assert!(now < lost + 10 * INTERVAL, "nobody notices");
        };
        assert!(dead <= lost + INTERVAL + PATIENCE, "{:?}", dead - lost);
    }

    #[test]
    fn many_pieces_keep_it_busy_however_small() {
        for (pieces, busy) in [(32, false), (33, true)] {
            let (mut pulse, at) = pulse();
            for _ in 0..pieces {
                pulse.sent(at(1), 1);
            }
            pulse.look(at(11));
            assert_eq!(pulse.look(at(16)) == Beat::Rest, busy, "{pieces}");
        }
    }

    #[test]
    fn pings_that_nobody_takes_keep_it_busy_in_the_end() {
        let (mut pulse, at) = pulse();
        let mut now = 10;
        let mut pings = 0;
        while let Beat::Ping(..) = pulse.look(at(now)) {
            pulse.pinged(1, 5);
            // Others of them are answered.
            pulse.heard(at(now));
            pings += 1;
            assert!(pings < 1000);
            if pulse.sent > SLACK {
                break;
            }
            now += 10;
        }
        assert_eq!(pings, 171);
        pulse.look(at(now + 10));
        assert_eq!(pulse.look(at(now + 19)), Beat::Rest, "as after much data");
    }

    #[test]
    fn who_is_not_listened_to_is_not_dead() {
        let (mut pulse, at) = pulse();
        for turn in 1..10 {
            assert_eq!(pulse.look(at(10 * turn)), any(0));
            pulse.excuse();
            assert_eq!(pulse.look(at(10 * turn + 9)), Beat::Rest);
        }
    }

    #[test]
    fn a_patient_one_asks_more_than_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pulse = Pulse::new(start, INTERVAL, Duration::from_secs(50));
        assert_eq!(pulse.look(at(10)), any(0));
        for turn in 2..6 {
            assert_eq!(pulse.look(at(10 * turn)), all(0));
        }
        assert_eq!(pulse.look(at(60)), Beat::Dead);
    }

    #[test]
    fn a_stream_that_goes_one_way_only_is_asked_too() {
        let (mut pulse, at) = pulse();
        for second in 1..10 {
            pulse.heard(at(second));
            assert_eq!(pulse.look(at(second)), Beat::Rest);
        }
        pulse.heard(at(10));
        assert_eq!(pulse.look(at(10)), any(0));
        pulse.heard(at(11));
        assert_eq!(pulse.look(at(19)), Beat::Rest);
    }
}
