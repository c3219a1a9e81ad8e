//! Whether the other end of a stream still lives: when to ask, and what to make
//! of silence. Without I/O and without a clock.

use std::time::Duration;

use tokio::time::Instant;

/// One end of a stream, as it is heard.
///
/// Silence is only then taken for death when the other end cannot be busy with
/// what it was sent: who waits for a process to read its stdin, or for a person to
/// scroll on, may read no pings either. What it has taken is known by the pings that
/// it has answered, in order, as over a WebSocket. A little is read whether anybody takes it
/// or not.
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
    /// It was sent something since it was last asked.
    unasked: bool,
}

/// What is read though it waits for somebody: half of what a terminal's own buffer holds,
/// which is the smallest on the way.
const SLACK: u64 = 2 * 1024;

/// What the smallest piece counts: what reads ahead may have room for so many pieces, not
/// bytes.
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
    Ping(Mark),
    /// It is gone.
    Dead,
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

    fn death(&self) -> Option<Instant> {
        let since = self.silent_since()?;
        // However soon it was asked: it may stand still for a moment.
        let (interval, patience) = (self.interval, self.patience);
        Some((since + patience).max(self.heard + interval + patience))
    }

    /// A connection that carries nothing in either direction for a while is cut by
    /// what stands between: some count what comes, some what goes.
    fn due(&self) -> Instant {
        let quiet = self.heard.min(self.said) + self.interval;
        let due = quiet.max(self.asked + self.interval);
        if self.unasked && self.sent - self.taken > SLACK / 2 {
            // Before it is so much that silence would mean nothing: who types is answered all
            // the time, and would not be asked while it counts.
            return due.min(self.asked + self.interval / SOON);
        }
        due
    }

    /// What to do now.
    pub fn look(&mut self, now: Instant) -> Beat {
        if self.death().is_some_and(|death| death <= now) {
            return Beat::Dead;
        }
        if now < self.due() {
            return Beat::Rest;
        }
        self.unasked = false;
        self.asked = now;
        self.waiting.get_or_insert(now);
        Beat::Ping(Mark(self.sent))
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

    fn ping(sent: u64) -> Beat {
        Beat::Ping(Mark(sent))
    }

    #[test]
    fn who_is_silent_is_asked_and_then_dead() {
        let (mut pulse, at) = pulse();
        assert_eq!(pulse.next(), at(10));
        assert_eq!(pulse.look(at(9)), Beat::Rest);
        assert_eq!(pulse.look(at(10)), ping(0));
        assert_eq!(pulse.next(), at(15));
        assert_eq!(pulse.look(at(14)), Beat::Rest);
        assert_eq!(pulse.look(at(15)), Beat::Dead);
    }

    #[test]
    fn who_answers_lives() {
        let (mut pulse, at) = pulse();
        for turn in 1..1000 {
            let now = at(10 * turn);
            assert_eq!(pulse.look(now), ping(0));
            pulse.heard(now);
            pulse.answered(Mark(0));
        }
    }

    #[test]
    fn nobody_is_dead_who_was_not_asked() {
        // As after the machine has slept.
        let (mut pulse, at) = pulse();
        assert_eq!(pulse.look(at(3600)), ping(0));
        assert_eq!(pulse.look(at(3604)), Beat::Rest);
        assert_eq!(pulse.look(at(3605)), Beat::Dead);
    }

    #[test]
    fn who_may_be_busy_with_what_it_was_sent_is_not_dead() {
        let (mut pulse, at) = pulse();
        pulse.sent(at(1), 3000);
        assert_eq!(pulse.look(at(11)), ping(3000));
        for turn in 3..100 {
            assert_eq!(pulse.look(at(10 * turn)), ping(3000));
            assert_eq!(pulse.next(), at(10 * turn + 10));
        }
        // It was: and after what it has answered it can be dead again.
        pulse.heard(at(1000));
        pulse.answered(Mark(3000));
        assert_eq!(pulse.look(at(1010)), ping(3000));
        assert_eq!(pulse.look(at(1015)), Beat::Dead);
    }

    #[test]
    fn an_answer_says_nothing_of_what_was_sent_after_the_ping() {
        let (mut pulse, at) = pulse();
        assert_eq!(pulse.look(at(10)), ping(0));
        pulse.sent(at(11), 3000);
        pulse.heard(at(12));
        pulse.answered(Mark(0));
        assert_eq!(pulse.look(at(22)), ping(3000));
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
        assert_eq!(pulse.look(at(11)), ping(2048));
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
            if let Beat::Ping(mark) = pulse.look(now) {
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
    fn many_pieces_keep_it_busy_however_smping() {
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
    fn who_is_not_listened_to_is_not_dead() {
        let (mut pulse, at) = pulse();
        for turn in 1..10 {
            assert_eq!(pulse.look(at(10 * turn)), ping(0));
            pulse.excuse();
            assert_eq!(pulse.look(at(10 * turn + 9)), Beat::Rest);
        }
    }

    #[test]
    fn a_patient_one_asks_more_than_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pulse = Pulse::new(start, INTERVAL, Duration::from_secs(50));
        assert_eq!(pulse.look(at(10)), ping(0));
        for turn in 2..6 {
            assert_eq!(pulse.look(at(10 * turn)), ping(0));
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
        assert_eq!(pulse.look(at(10)), ping(0));
        pulse.heard(at(11));
        assert_eq!(pulse.look(at(19)), Beat::Rest);
    }
}
