//! Which answers to pings show what has been taken, where they are not given in the
//! order in which they were asked for. Without I/O and without a clock.

use std::collections::VecDeque;
use std::ops::Range;

use crate::pulse::{Ask, Mark};

/// In so many lanes moby/spdystream, which is every other SPDY in Kubernetes, handles
/// what it reads (`FRAME_WORKERS`): data in that of its stream, pings in each in turn.
/// Within one all goes in order, and one whose stream nobody reads stands still, with
/// the pings in it, while the others go on.
pub(crate) const LANES: usize = 5;

/// So many pings are remembered, fewer than a connection waits for. One in five of those
/// stands in a lane that stands still, which has room for 50.
const MOST: usize = 60;

/// The pings that have been sent over a connection whose other end may have [`LANES`].
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    asked: VecDeque<Asked>,
    /// The number of the next one.
    next: u64,
}

#[derive(Debug)]
struct Asked {
    mark: Mark,
    answered: bool,
}

impl Lanes {
    /// Asks; gives the numbers of the pings to be sent, in a row.
    ///
    /// Each ping in a lane that stands still takes room there, and when that is full
    /// nothing at all is read: so one is enough where any sign of life is.
    pub(crate) fn ask(&mut self, mark: Mark, ask: Ask) -> Range<u64> {
        let count = match ask {
            Ask::Any => 1,
            Ask::All => LANES,
        };
        for _ in 0..count {
            if self.asked.len() == MOST {
                self.asked.pop_front();
            }
            let answered = false;
            self.asked.push_back(Asked { mark, answered });
        }
        let first = self.next;
        self.next += count as u64;
        first..self.next
    }

    /// How many there have been.
    pub(crate) fn count(&self) -> u64 {
        self.next
    }

    /// The number of the oldest one that is still of interest.
    pub(crate) fn oldest(&self) -> u64 {
        self.next - self.asked.len() as u64
    }

    /// One has been answered. Gives what is known to be taken now: what had been sent
    /// before as many in a row as there are lanes, all of which are answered.
    pub(crate) fn answered(&mut self, number: u64) -> Option<Mark> {
        let at = usize::try_from(number.checked_sub(self.oldest())?).ok()?;
        self.asked.get_mut(at)?.answered = true;
        let mut taken = None;
        while self.asked.len() >= LANES && self.asked.iter().take(LANES).all(|it| it.answered) {
            taken = self.asked.pop_front().map(|first| first.mark);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lanes: &mut Lanes, sent: u64) -> Vec<u64> {
        lanes.ask(Mark(sent), Ask::All).collect()
    }

    fn any(lanes: &mut Lanes, sent: u64) -> Vec<u64> {
        lanes.ask(Mark(sent), Ask::Any).collect()
    }

    /// Answers them all; gives what is taken then.
    fn answer(lanes: &mut Lanes, numbers: impl IntoIterator<Item = u64>) -> Option<Mark> {
        let answers = numbers.into_iter();
        answers.fold(None, |taken, number| lanes.answered(number).or(taken))
    }

    #[test]
    fn what_was_sent_is_taken_when_every_lane_has_answered() {
        let mut lanes = Lanes::default();
        assert_eq!(all(&mut lanes, 100), [0, 1, 2, 3, 4]);
        assert_eq!(answer(&mut lanes, [4, 0, 1, 3]), None, "one stands still");
        assert_eq!(answer(&mut lanes, [2]), Some(Mark(100)));
    }

    #[test]
    fn one_ping_at_a_time_learns_it_too() {
        let mut lanes = Lanes::default();
        let first = all(&mut lanes, 100);
        answer(&mut lanes, first.into_iter().filter(|number| *number != 2));
        // The third lane goes on, but what was sent meanwhile stands there again.
        assert_eq!(all(&mut lanes, 200), [5, 6, 7, 8, 9]);
        assert_eq!(answer(&mut lanes, [5, 6, 8, 9]), None);
        assert_eq!(answer(&mut lanes, [2]), Some(Mark(100)));
        for number in 10..12 {
            assert_eq!(any(&mut lanes, 200), [number]);
            assert_eq!(answer(&mut lanes, [number]), None);
        }
        assert_eq!(answer(&mut lanes, [7]), Some(Mark(200)));
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut lanes = Lanes::default();
        for turn in 0..1000 {
            let numbers = any(&mut lanes, turn / 3);
            // Of a lane that never goes on.
            answer(&mut lanes, numbers.into_iter().filter(|it| it % 5 != 2));
            assert!(lanes.asked.len() <= MOST);
        }
        assert_eq!(lanes.answered(2), None, "too long ago");
        assert_eq!(lanes.answered(u64::MAX), None, "never asked");
        let all = lanes.oldest()..lanes.next;
        assert_eq!(answer(&mut lanes, all), Some(Mark(331)));
    }
}
