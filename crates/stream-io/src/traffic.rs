//! Whether the other end of an SPDY connection still lives, where nothing says in which order
//! pings are answered. Without I/O and without a clock.
//!
//! moby/spdystream, which is every other SPDY in Kubernetes, hands what it reads to five
//! lanes (`FRAME_WORKERS`): the frames of a stream to the one of its id, pings to each in
//! turn. A lane whose stream nobody reads stands still with all that is in it, and as soon as
//! one has 50 frames, nothing is read any more, for none of the streams. Who sees all that it
//! is sent knows where each ping will stand and what is before it: silence means something
//! only in a lane that has taken everything, and no lane is to be filled by pings.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use tokio::time::Instant;

use crate::asked::Asked;
use crate::passing::Frame;

/// In so many lanes moby/spdystream handles what it reads.
const LANES: usize = 5;

/// With so many frames that are not known to be taken, a lane gets no ping behind one that
/// waits there already.
const CROWDED: u64 = 25;

/// And with so many, it gets none at all.
const PACKED: u64 = 40;

/// With so many, it may be that nothing is read: moby/spdystream has room for 50.
const FULL: u64 = 45;

/// With so many bytes that are not known to be taken, an answer may just take its time: on a
/// slow way, or because others than moby/spdystream read no more when a stream has much.
const MUCH: u64 = 64 * 1024;

/// So many pings are remembered. More than can wait in lanes that are not crowded.
const MOST: usize = 200;

/// What part of the interval passes before what was sent is asked for: a second, as a rule,
/// and where it is a lot, a tenth of that (gently, only before more is sent).
const SOON: u32 = 10;
const AT_ONCE: u32 = 100;

/// With so many frames, or bytes, that are not known to be taken it is a lot.
const A_LOT: (u64, u64) = (FULL / 3, MUCH / 3);

/// What part of it passes at the latest before that is asked for gently from who is heard all
/// the time, where its silence would not mean anything.
const LATE: u32 = 2;

/// How many intervals pass between two pings to a lane that is crowded.
const SELDOM: u32 = 30;

/// Streams that never are, one for each lane.
const NEVER: [u32; LANES] = [
    0x7fff_fff7,
    0x7fff_fff9,
    0x7fff_fffb,
    0x7fff_fffd,
    0x7fff_ffff,
];

/// How long to wait.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Before something is said on a connection that is quiet.
    pub interval: Duration,
    /// For an answer.
    pub patience: Duration,
}

/// What one end of a connection was sent, and what it is known to have taken.
#[derive(Debug)]
pub struct Traffic {
    pace: Pace,
    tact: Asked,
    heard: Instant,
    /// When it was last not listened to.
    excused: Instant,
    /// When it was last sent anything.
    said: Instant,
    asked: Instant,
    /// When a lane that is crowded last got a ping.
    pushed: Instant,
    /// Since when it could have answered, and has not.
    silent_since: Option<Instant>,
    /// Since when it was sent something for which it was not asked.
    unasked: Option<Instant>,
    lanes: [Lane; LANES],
    /// Which of them gets the next ping.
    turn: usize,
    /// All pings that were not answered, by their ids. Of two with the same id the first one
    /// counts: its answer shows less.
    waiting: BTreeMap<u32, Waiting>,
    /// How many pings of ours it was sent, and is to be sent.
    pings: u64,
    wanted: u64,
    /// It reads nothing any more, as it was asked to.
    dismissed: bool,
}

/// How much stands in a lane.
#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    sent: u64,
    /// Up to which frame it has taken all.
    taken: u64,
    /// Which frame is the last one that may wait for a reader.
    carried: u64,
    /// How many pings of ours wait in it.
    asked: u64,
    /// The bytes of all that was sent to it, and of what it has taken.
    bytes: u64,
    bytes_taken: u64,
}

impl Lane {
    fn backlog(self) -> u64 {
        self.sent - self.taken
    }

    /// Whether nothing in it can keep a ping from being answered.
    fn is_free(self) -> bool {
        self.carried <= self.taken
    }

    /// Whether a ping more takes no room that is needed, where there may be so many.
    fn has_room(self, most: u64) -> bool {
        // Much that is not known to be taken, without a ping behind it, just has to be asked for.
        self.asked == 0 || self.backlog() < most
    }

    fn unconfirmed(self) -> u64 {
        self.bytes - self.bytes_taken
    }
}

/// A ping.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    lane: usize,
    /// Which frame of that lane it is, and how many bytes are before it.
    at: u64,
    bytes: u64,
    ours: bool,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Say {
    /// Nothing.
    Nothing,
    /// [`Traffic::ROUND`] pings in a row, one to each lane: so the turns are as before for
    /// those who count them and do not see ours.
    Pings,
    /// Something that is not answered and takes no turn in the lanes, for those who stand
    /// between: the end of this stream, which never was.
    Reset(u32),
    /// It is gone.
    Dead,
}

impl Traffic {
    /// How many pings are sent at once.
    pub const ROUND: usize = LANES;

    /// Of a connection that begins now.
    pub fn new(pace: Pace, tact: Asked, now: Instant) -> Self {
        Self {
            pace,
            tact,
            heard: now,
            excused: now,
            said: now,
            asked: now,
            pushed: now,
            silent_since: None,
            unasked: None,
            lanes: [Lane::default(); LANES],
            turn: 0,
            waiting: BTreeMap::new(),
            pings: 0,
            wanted: 0,
            dismissed: false,
        }
    }

    /// Something came from it.
    pub fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.silent_since = None;
    }

    /// Nobody here listens to it just now: its silence is ours.
    pub fn excuse(&mut self, now: Instant) {
        self.heard(now);
        self.excused = now;
    }

    /// It was sent a frame, of so many bytes.
    pub fn sent(&mut self, now: Instant, frame: Frame, bytes: usize) {
        self.said = now;
        let bytes = bytes as u64;
        match frame {
            // Counted when it was asked for.
            Frame::OfStream(id) if NEVER.contains(&id) => {}
            Frame::OfStream(id) => {
                self.unasked.get_or_insert(now);
                let lane = &mut self.lanes[lane_of(id)];
                lane.sent += 1;
                lane.bytes += bytes;
                lane.carried = lane.sent;
            }
            Frame::Opens(id) => {
                self.unasked.get_or_insert(now);
                let lane = &mut self.lanes[lane_of(id)];
                lane.sent += 1;
                lane.bytes += bytes;
                if lane.is_free() {
                    // Whoever is asked for a stream answers at once, as to a ping.
                    self.silent_since.get_or_insert(now);
                }
            }
            Frame::Ping(id) => self.ping(id, false),
            Frame::OfConnection => {
                self.take_turn();
            }
            Frame::GoAway => self.dismissed = true,
        }
    }

    /// It was sent a ping that was asked for here.
    pub fn pinged(&mut self, now: Instant, id: u32) {
        self.said = now;
        if self.lanes[self.turn].is_free() {
            self.silent_since.get_or_insert(now);
        }
        self.pings += 1;
        self.ping(id, true);
    }

    /// Whether a ping of this id waits for its answer.
    pub fn waits_for(&self, id: u32) -> bool {
        self.waiting.contains_key(&id)
    }

    /// When to look again, if ever.
    pub fn next(&self) -> Option<Instant> {
        if self.dismissed {
            return None;
        }
        let due = self.due();
        Some(self.death().map_or(due, |death| death.min(due)))
    }

    /// A connection that carries nothing in either direction for a while is cut by what
    /// stands between: some count what comes, some what goes.
    fn due(&self) -> Instant {
        let Pace { interval, .. } = self.pace;
        match (self.tact, self.unasked) {
            (Asked::Plainly, None) => self.heard.min(self.said).max(self.asked) + interval,
            // While it is heard all the time, too: or its silence would not mean anything.
            (Asked::Plainly, Some(_)) => self.asked + interval / self.urgency(),
            // Who is heard lives, and what stands between has seen it too.
            (Asked::Gently, None) => self.heard.max(self.asked) + interval,
            (Asked::Gently, Some(since)) => {
                let quiet = self.heard.max(self.asked) + interval;
                let settled = self.said.max(self.heard) + interval / self.urgency().min(SOON);
                let late = since.max(self.excused) + interval / self.urgency().min(LATE);
                let due = quiet.min(settled);
                if self.is_blind() { due.min(late) } else { due }
            }
        }
    }

    /// When to ask before something that is sent, if anything was before.
    fn due_ahead(&self) -> Option<Instant> {
        let part = self.pace.interval / self.urgency();
        self.unasked.map(|since| since + part)
    }

    /// What part of the interval may pass before what was sent is asked for.
    fn urgency(&self) -> u32 {
        let (frames, bytes) = A_LOT;
        let is_lot =
            |it: &Lane| !it.is_free() && (it.backlog() > frames || it.unconfirmed() > bytes);
        if self.stands_still() {
            1
        } else if self.lanes.iter().any(is_lot) {
            AT_ONCE
        } else {
            SOON
        }
    }

    /// Whether pings wait in a lane: each further one takes room there.
    fn stands_still(&self) -> bool {
        self.lanes.iter().any(|lane| lane.asked > 0)
    }

    /// Whether so much is not known to be taken that silence means nothing.
    fn is_laden(&self) -> bool {
        // What is in a free lane is taken as it comes.
        let reads = |lane: &Lane| lane.is_free() || lane.backlog() < FULL;
        let unconfirmed = self.lanes.iter().map(|lane| lane.unconfirmed());
        !self.lanes.iter().all(reads) || unconfirmed.sum::<u64>() >= MUCH
    }

    /// Whether there is nobody either who would answer a ping at once.
    fn is_blind(&self) -> bool {
        self.is_laden() || !self.lanes.iter().any(|lane| lane.is_free())
    }

    /// When it is to be taken for dead, if it says nothing.
    pub fn death(&self) -> Option<Instant> {
        // Of what was asked it may have answered a part.
        let owes = self
            .lanes
            .iter()
            .any(|lane| lane.is_free() && lane.asked > 0);
        let since = self.silent_since.or(owes.then_some(self.heard))?;
        let counts = !self.is_laden() && !self.dismissed;
        // However soon it was asked: a node may stand still for a moment.
        let Pace { interval, patience } = self.pace;
        let death = (since + patience).max(self.heard + interval + patience);
        counts.then_some(death)
    }

    /// What to do, where something can be said. Of pings that are sent it is to be told
    /// ([`Traffic::pinged`]).
    pub fn look(&mut self, now: Instant) -> Say {
        if self.dismissed {
            return Say::Nothing;
        }
        if self.death().is_some_and(|death| death <= now) {
            return Say::Dead;
        }
        if now < self.due() {
            return Say::Nothing;
        }
        self.asked = now;
        self.unasked = None;
        let mut fits = self.has_room(CROWDED);
        if !fits && now >= self.pushed + SELDOM * self.pace.interval {
            self.pushed = now;
            fits = self.has_room(PACKED);
        }
        let say = if fits { self.ask() } else { self.mark_time() };
        if say != Say::Nothing {
            self.said = now;
        }
        say
    }

    /// The same right before a frame of somebody else.
    pub fn look_ahead(&mut self, now: Instant) -> Say {
        let due = self.due_ahead().filter(|_| !self.dismissed);
        if due.is_none_or(|due| now < due) || !self.has_room(CROWDED) {
            return Say::Nothing;
        }
        self.asked = now;
        self.unasked = None;
        self.ask()
    }

    fn ask(&mut self) -> Say {
        if self.wanted > self.pings {
            // The last ones wait to be sent, as all does.
            return Say::Nothing;
        }
        self.wanted += LANES as u64;
        Say::Pings
    }

    /// Whether each lane has room for a ping, where it may have so many frames.
    fn has_room(&self, most: u64) -> bool {
        self.lanes.iter().all(|lane| lane.has_room(most))
    }

    /// To a lane that is free, or else to the one with most room. If that is crowded too,
    /// nothing can be said that would not be in the way.
    fn mark_time(&mut self) -> Say {
        let free = |id: &u32| self.lanes[lane_of(*id)].is_free();
        let backlog = |id: &u32| self.lanes[lane_of(*id)].backlog();
        let id = NEVER.into_iter().find(free).or_else(|| {
            let emptiest = NEVER.into_iter().min_by_key(backlog);
            emptiest.filter(|id| backlog(id) < CROWDED)
        });
        let Some(id) = id else {
            return Say::Nothing;
        };
        let lane = &mut self.lanes[lane_of(id)];
        // One that is free takes it at once.
        lane.sent += u64::from(!lane.is_free());
        Say::Reset(id)
    }

    /// A ping came. Says whether it answers one that was asked for here; others show as well
    /// what was taken.
    pub fn is_answer(&mut self, id: u32) -> bool {
        let Some(ping) = self.waiting.remove(&id) else {
            return false;
        };
        let lane = &mut self.lanes[ping.lane];
        lane.taken = lane.taken.max(ping.at);
        lane.bytes_taken = lane.bytes_taken.max(ping.bytes);
        lane.asked -= u64::from(ping.ours);
        ping.ours
    }

    /// A frame goes to whose turn it is.
    fn take_turn(&mut self) -> (usize, u64) {
        let at = self.turn;
        self.turn = (at + 1) % LANES;
        let lane = &mut self.lanes[at];
        lane.sent += 1;
        (at, lane.sent)
    }

    fn ping(&mut self, id: u32, ours: bool) {
        let (lane, at) = self.take_turn();
        if self.waiting.len() >= MOST {
            // Those of a client that asks without end, or that are answers; of ours there
            // are fewer.
            let theirs = self.waiting.iter().find(|(_, it)| !it.ours);
            if let Some(id) = theirs.map(|(id, _)| *id) {
                self.waiting.remove(&id);
            }
        }
        if let Entry::Vacant(place) = self.waiting.entry(id) {
            self.lanes[lane].asked += u64::from(ours);
            let bytes = self.lanes[lane].bytes;
            let ping = Waiting {
                lane,
                at,
                bytes,
                ours,
            };
            place.insert(ping);
        }
    }
}

fn lane_of(stream: u32) -> usize {
    stream as usize % LANES
}

#[cfg(test)]
mod tests;
