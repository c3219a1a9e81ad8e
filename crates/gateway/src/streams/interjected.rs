//! Pings that are put between the frames of an SPDY connection that is passed on: without
//! them nobody would know that who is at its end is gone, and what stands between would cut
//! it when it is quiet.

use std::collections::BTreeSet;

use bytes::BytesMut;
use skewbridge_spdy::frame::Ping;
use skewbridge_wire::{Beat, LANES, Lanes, Pulse};
use tokio::time::Instant;

/// The ids of ours are the last quarter of all, where those who count up from 1 or 2 never
/// come: one every second would take them a century.
const FIRST: u32 = 0xc000_0000;

/// After so many the ids are taken from the first one on.
const IDS: u64 = 1 << 29;

/// So many unanswered ones wait at most: they stand behind what nobody takes, where
/// moby/spdystream has room for 50. With them it would read nothing more, also for those
/// connections of a port-forward that are served.
const MOST: usize = 40;

/// Whose pings they pass for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum As {
    /// They are odd (SPDY/3.1, 2.6.5), and go to a server.
    Client,
    /// They are even.
    Server,
}

/// The pings to one end of a connection.
#[derive(Debug)]
pub(crate) struct Interjected {
    whose: As,
    pulse: Pulse,
    lanes: Lanes,
    /// By their numbers.
    unanswered: BTreeSet<u64>,
    /// It reads nothing any more, as it was asked to.
    dismissed: bool,
}

/// What to do now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Say {
    Nothing,
    /// These, between two frames.
    Pings(BytesMut),
    /// It is gone.
    Dead,
}

impl Interjected {
    pub(crate) fn new(whose: As, pulse: Pulse) -> Self {
        Self {
            whose,
            pulse,
            lanes: Lanes::default(),
            unanswered: BTreeSet::new(),
            dismissed: false,
        }
    }

    /// Something came from it.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.pulse.heard(now);
    }

    /// It was sent something that it may be slow to take.
    pub(crate) fn sent(&mut self, now: Instant, bytes: usize) {
        self.pulse.sent(now, bytes);
    }

    /// Nobody here listens to it just now: its silence is ours.
    pub(crate) fn excuse(&mut self) {
        self.pulse.excuse();
    }

    /// It has been sent a GOAWAY, behind which moby/spdystream reads nothing.
    pub(crate) fn dismiss(&mut self) {
        self.dismissed = true;
    }

    /// When to look again, if ever.
    pub(crate) fn next(&self) -> Option<Instant> {
        (!self.dismissed).then(|| self.pulse.next())
    }

    /// What to do, where something can be said.
    pub(crate) fn look(&mut self, now: Instant) -> Say {
        if self.dismissed {
            return Say::Nothing;
        }
        match self.pulse.look(now) {
            Beat::Rest => Say::Nothing,
            Beat::Dead => Say::Dead,
            Beat::Ping(..) if self.unanswered.len() >= MOST => {
                // What it stands behind keeps it, whatever little was sent since.
                self.pulse.excuse();
                Say::Nothing
            }
            Beat::Ping(mark, ask) => {
                let mut pings = BytesMut::new();
                for number in self.lanes.ask(mark, ask) {
                    self.unanswered.insert(number);
                    self.pulse.pinged(1, LANES as u64);
                    let id = self.id(number);
                    Ping { id }.encode(&mut pings);
                }
                Say::Pings(pings)
            }
        }
    }

    /// Whether this answers one of ours. The client's own that happens to have its id is
    /// answered as well: each is taken once.
    pub(crate) fn is_answer(&mut self, id: u32) -> bool {
        let ours = self.unanswered.iter().copied();
        let Some(number) = ours.clone().find(|number| self.id(*number) == id) else {
            return false;
        };
        self.unanswered.remove(&number);
        if let Some(taken) = self.lanes.answered(number) {
            self.pulse.answered(taken);
        }
        true
    }

    fn id(&self, number: u64) -> u32 {
        let odd = u32::from(self.whose == As::Client);
        // There are fewer than a quarter of all.
        let nth = u32::try_from(number % IDS).unwrap_or_default();
        FIRST + 2 * nth + odd
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pings(whose: As) -> (Interjected, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        let at = move |seconds| start + Duration::from_secs(seconds);
        let pulse = Pulse::new(start, Duration::from_secs(10), Duration::from_secs(5));
        (Interjected::new(whose, pulse), at)
    }

    fn ids(said: Say) -> Vec<u32> {
        let Say::Pings(bytes) = said else {
            panic!("{said:?}");
        };
        let words = bytes
            .chunks(4)
            .map(|it| u32::from_be_bytes(it.try_into().unwrap()));
        let words: Vec<u32> = words.collect();
        words
            .chunks(3)
            .map(|frame| {
                assert_eq!(frame[..2], [0x8003_0006, 4]);
                frame[2]
            })
            .collect()
    }

    #[test]
    fn the_ids_are_those_of_its_side() {
        for (whose, odd) in [(As::Client, 1), (As::Server, 0)] {
            let (mut pings, at) = pings(whose);
            assert_eq!(ids(pings.look(at(10))), [0xc000_0000 + odd]);
            assert_eq!(pings.id(IDS - 1), 0xffff_fffe + odd);
            assert_eq!(pings.id(IDS), 0xc000_0000 + odd);
        }
    }

    #[test]
    fn an_answer_is_taken_once() {
        let (mut pings, at) = pings(As::Client);
        assert!(!pings.is_answer(0xc000_0001), "nobody has asked");
        let asked = ids(pings.look(at(10)));
        assert!(!pings.is_answer(1), "the client's own");
        assert!(pings.is_answer(asked[0]));
        assert!(!pings.is_answer(asked[0]), "the client's own, by chance");
    }

    #[test]
    fn silence_is_death() {
        let (mut pings, at) = pings(As::Client);
        assert_eq!(pings.next(), Some(at(10)));
        assert_eq!(ids(pings.look(at(10))).len(), 1);
        assert_eq!(ids(pings.look(at(13))).len(), LANES);
        assert_eq!(pings.look(at(15)), Say::Dead);
    }

    #[test]
    fn who_was_told_that_all_is_over_is_not_asked() {
        let (mut pings, at) = pings(As::Client);
        pings.look(at(10));
        pings.dismiss();
        assert_eq!(pings.next(), None);
        assert_eq!(pings.look(at(1000)), Say::Nothing);
    }

    #[test]
    fn those_that_wait_behind_what_nobody_takes_do_not_fill_it() {
        let (mut pings, at) = pings(As::Client);
        pings.sent(at(1), 100);
        let mut waiting = 0;
        let mut asked = 0;
        let mut now = at(10);
        for turn in 1..1000 {
            now = now.max(pings.next().unwrap());
            match pings.look(now) {
                Say::Nothing => assert_eq!(waiting, MOST, "in turn {turn}"),
                Say::Dead => panic!("in turn {turn}: others are answered"),
                said @ Say::Pings(_) => {
                    for id in ids(said) {
                        asked += 1;
                        if asked % LANES == 0 {
                            waiting += 1;
                        } else {
                            assert!(pings.is_answer(id));
                            pings.heard(now);
                        }
                    }
                }
            }
        }
        assert_eq!(waiting, MOST);
        // When it is taken, it goes on.
        let all: Vec<u64> = pings.unanswered.iter().copied().collect();
        for number in all {
            assert!(pings.is_answer(pings.id(number)));
        }
        now = now.max(pings.next().unwrap());
        assert!(matches!(pings.look(now), Say::Pings(_)));
    }
}
