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

/// So many rounds are waited for: each says more than those before.
const MOST_ROUNDS: usize = 3;

/// So many of the last single pings are waited for. With the rounds, that is fewer than a
/// connection bears.
const MOST_SINGLE: u64 = 40;

/// The pings that have been sent over a connection whose other end may have [`LANES`].
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    /// Those that went to all of them.
    rounds: VecDeque<Round>,
    /// The number of the next one.
    next: u64,
}

/// As many pings in a row as there are lanes: whoever else sends what goes to each in
/// turn, these have gone to all of them.
#[derive(Debug)]
struct Round {
    first: u64,
    mark: Mark,
    answered: [bool; LANES],
}

impl Round {
    fn has(&self, number: u64) -> bool {
        (self.first..self.first + LANES as u64).contains(&number)
    }
}

impl Lanes {
    /// Asks; gives the numbers of the pings to be sent, in a row.
    ///
    /// Each ping in a lane that stands still takes room there, and when that is full
    /// nothing at all is read: so one is enough where any sign of life is.
    pub(crate) fn ask(&mut self, mark: Mark, ask: Ask) -> Range<u64> {
        let first = self.next;
        match ask {
            Ask::Any => self.next += 1,
            Ask::All => {
                self.next += LANES as u64;
                let answered = [false; LANES];
                self.rounds.push_back(Round {
                    first,
                    mark,
                    answered,
                });
            }
        }
        if self.rounds.len() > MOST_ROUNDS {
            self.rounds.pop_front();
        }
        first..self.next
    }

    /// Whether an answer to this one is still of interest.
    pub(crate) fn waits_for(&self, number: u64) -> bool {
        number + MOST_SINGLE >= self.next || self.rounds.iter().any(|it| it.has(number))
    }

    /// One has been answered. Gives what is known to be taken now: what had been sent
    /// before a round to all lanes in which it was the last.
    pub(crate) fn answered(&mut self, number: u64) -> Option<Mark> {
        let at = self.rounds.iter().position(|it| it.has(number))?;
        let round = self.rounds.get_mut(at)?;
        let lane = usize::try_from(number - round.first).ok()?;
        *round.answered.get_mut(lane)? = true;
        if round.answered.contains(&false) {
            return None;
        }
        let taken = round.mark;
        // Those before say less.
        self.rounds.drain(..=at);
        Some(taken)
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
    fn a_later_round_says_more() {
        let mut lanes = Lanes::default();
        answer(&mut lanes, [0, 1, 3, 4]);
        all(&mut lanes, 100);
        // The third lane goes on, but what was sent meanwhile stands there again.
        assert_eq!(all(&mut lanes, 200), [5, 6, 7, 8, 9]);
        assert_eq!(answer(&mut lanes, [0, 1, 3, 4, 5, 6, 8, 9]), None);
        assert_eq!(answer(&mut lanes, [2]), Some(Mark(100)));
        assert_eq!(answer(&mut lanes, [7]), Some(Mark(200)));
        // And one that is answered before an earlier one makes that needless.
        all(&mut lanes, 300);
        all(&mut lanes, 400);
        assert_eq!(answer(&mut lanes, 15..20), Some(Mark(400)));
        assert_eq!(answer(&mut lanes, 10..15), None);
    }

    #[test]
    fn pings_one_by_one_show_nothing_of_it() {
        // Others may send pings between them: then they all go to the same lane.
        let mut lanes = Lanes::default();
        for number in 0..10 {
            assert_eq!(any(&mut lanes, 100), [number]);
            assert_eq!(answer(&mut lanes, [number]), None);
        }
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut lanes = Lanes::default();
        for turn in 0..1000 {
            let numbers = all(&mut lanes, turn);
            // Of a lane that never goes on.
            answer(&mut lanes, numbers.into_iter().filter(|it| it % 5 != 2));
            assert!(lanes.rounds.len() <= MOST_ROUNDS);
            assert!((0..lanes.next).filter(|it| lanes.waits_for(*it)).count() <= 55);
        }
        assert_eq!(lanes.answered(2), None, "too long ago");
        assert_eq!(lanes.answered(u64::MAX), None, "never asked");
        let last = lanes.next - 3;
        assert_eq!(answer(&mut lanes, [last]), Some(Mark(999)));
        assert!(lanes.rounds.is_empty());
    }

    #[test]
    fn a_round_is_not_forgotten_for_single_ones() {
        let mut lanes = Lanes::default();
        all(&mut lanes, 100);
        for _ in 0..1000 {
            any(&mut lanes, 200);
        }
        assert!(lanes.waits_for(0) && !lanes.waits_for(5));
        assert_eq!(answer(&mut lanes, 0..5), Some(Mark(100)));
        assert!(!lanes.waits_for(0));
    }
}
