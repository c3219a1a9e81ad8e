//! Whether the other end of a stream still lives: when to ask, and what to make
//! of silence. Without I/O and without a clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::asked::Asked;

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
    excused: Instant,
    said: Instant,
    asked: Instant,
    /// The first time that it was asked since it was heard.
    waiting: Option<Instant>,
    /// How much it was sent: bytes, where little counts as [`PIECE`].
    sent: u64,
    /// How much of that it is known to have taken.
    taken: u64,
    /// Since when it was sent something for which it was not asked.
    unasked: Option<Instant>,
    tact: Asked,
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

/// And what part, at the latest, where it is asked gently and heard all the time.
const LATE: u32 = 2;

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
            excused: now,
            said: now,
            asked: now,
            waiting: None,
            sent: 0,
            taken: 0,
            unasked: None,
            tact: Asked::Plainly,
        }
    }

    /// The same, which is asked so.
    #[must_use]
    pub fn asked(self, tact: Asked) -> Self {
        Self { tact, ..self }
    }

    /// Something came from it.
    pub fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.waiting = None;
    }

    /// Nobody here listens to it just now: its silence is ours.
    pub fn excuse(&mut self, now: Instant) {
        self.waiting = None;
        self.excused = now;
    }

    /// It was sent something that it may be slow to take.
    pub fn sent(&mut self, now: Instant, bytes: usize) {
        self.said = now;
        self.unasked.get_or_insert(now);
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
        match self.tact {
            Asked::Plainly => {
                let quiet = self.heard.min(self.said).max(self.asked) + self.interval;
                let urgent = self.urgent_since().map(|_| self.interval / SOON);
                urgent.map_or(quiet, |soon| quiet.min(self.asked + soon))
            }
            Asked::Gently => {
                // Who is heard lives, and what stands between has seen it too.
                let heard = self.heard.max(self.excused);
                let quiet = heard.max(self.asked) + self.interval;
                let Some(since) = self.urgent_since() else {
                    return quiet;
                };
                let settled = self.said.max(heard) + self.interval / SOON;
                // Or its silence would not mean anything.
                let late = since.max(self.excused) + self.interval / LATE;
                quiet.min(settled).min(late)
            }
        }
    }

    /// Since when it is to be asked before it is so much that silence would mean nothing: who
    /// types is answered all the time, and would not be asked while it counts.
    fn urgent_since(&self) -> Option<Instant> {
        let is_much = self.sent - self.taken > SLACK / 2;
        self.unasked.filter(|_| is_much)
    }

    /// What to do now.
    pub fn look(&mut self, now: Instant) -> Beat {
        if self.death().is_some_and(|death| death <= now) {
            return Beat::Dead;
        }
        if now < self.due() {
            return Beat::Rest;
        }
        self.ask(now)
    }

    /// The same right before something is sent.
    pub fn look_ahead(&mut self, now: Instant) -> Beat {
        match self.urgent_since() {
            Some(since) if now >= since + self.interval / SOON => self.ask(now),
            _ => Beat::Rest,
        }
    }

    fn ask(&mut self, now: Instant) -> Beat {
        self.unasked = None;
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
        for tact in [Asked::Plainly, Asked::Gently] {
            let start = Instant::now();
            let mut pulse = Pulse::new(start, INTERVAL, PATIENCE).asked(tact);
            let mut now = start;
            let mut pings = 0;
            // Ten keys a second, each with its echo.
            for _ in 0..600 {
                now += Duration::from_millis(100);
                let ahead = pulse.look_ahead(now);
                pulse.sent(now, 1);
                pulse.heard(now);
                for beat in [ahead, pulse.look(now)] {
                    if let Beat::Ping(mark) = beat {
                        pulse.answered(mark);
                        pings += 1;
                    }
                }
            }
            assert!((30..=60).contains(&pings), "{pings}");
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
            pulse.excuse(at(10 * turn + 1));
            assert_eq!(pulse.look(at(10 * turn + 9)), Beat::Rest);
        }
    }

    #[test]
    fn who_may_have_ended_is_asked_when_nothing_is_said_or_before_it_is() {
        let (gentle, at) = pulse();
        let mut pulse = gentle.asked(Asked::Gently);
        // Its last words may be on their way, or not be read.
        for second in 1..100 {
            pulse.heard(at(second));
            assert_eq!(pulse.look(at(second + 9)), Beat::Rest);
        }
        for second in 100..200 {
            pulse.excuse(at(second));
            assert_eq!(pulse.look(at(second + 9)), Beat::Rest);
        }
        // It may end by what it was sent, or by its end.
        pulse.heard(at(300));
        pulse.sent(at(300), 1500);
        assert_eq!(pulse.next(), at(301));
        pulse.heard(at(301));
        assert_eq!(pulse.look(at(301)), Beat::Rest);
        assert_eq!(pulse.look(at(302)), ping(1500));
        pulse.heard(at(302));
        pulse.answered(Mark(1500));
        // While it is heard all the time, once in a while all the same.
        pulse.heard(at(400));
        pulse.sent(at(400), 1500);
        let asked = (401..500).find(|second| {
            pulse.heard(at(*second));
            pulse.look(at(*second)) != Beat::Rest
        });
        assert_eq!(asked, Some(405));
        pulse.answered(Mark(3000));
        // And before more is sent, at any time.
        pulse.heard(at(500));
        pulse.sent(at(500), 1500);
        pulse.heard(at(501));
        assert_eq!(pulse.look(at(501)), Beat::Rest);
        assert_eq!(pulse.look_ahead(at(501)), ping(4500));
        assert_eq!(pulse.look_ahead(at(502)), Beat::Rest);
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
