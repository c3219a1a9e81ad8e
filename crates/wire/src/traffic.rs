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

/// What part of the interval passes between two rounds of pings that are asked for by what
/// was sent: a second, as a rule, and where it is a lot, a tenth of that.
const SOON: u32 = 10;
const AT_ONCE: u32 = 100;

/// With so many frames, or bytes, that are not known to be taken it is a lot.
const A_LOT: (u64, u64) = (FULL / 3, MUCH / 3);

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
    heard: Instant,
    /// When it was last sent anything.
    said: Instant,
    asked: Instant,
    /// When a lane that is crowded last got a ping.
    pushed: Instant,
    /// Since when it could have answered, and has not.
    silent_since: Option<Instant>,
    /// It was sent something since it was last asked.
    unasked: bool,
    lanes: [Lane; LANES],
    /// Which of them gets the next ping.
    turn: usize,
    /// All pings that were not answered, by their ids. Of two with the same id the first one
    /// counts: its answer shows less.
    waiting: BTreeMap<u32, Waiting>,
    /// How many pings of ours it was sent.
    pings: u64,
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
    pub fn new(pace: Pace, now: Instant) -> Self {
        Self {
            pace,
            heard: now,
            said: now,
            asked: now,
            pushed: now,
            silent_since: None,
            unasked: false,
            lanes: [Lane::default(); LANES],
            turn: 0,
            waiting: BTreeMap::new(),
            pings: 0,
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
    }

    /// It was sent a frame, of so many bytes.
    pub fn sent(&mut self, now: Instant, frame: Frame, bytes: usize) {
        self.said = now;
        let bytes = bytes as u64;
        match frame {
            // Counted when it was asked for.
            Frame::OfStream(id) if NEVER.contains(&id) => {}
            Frame::OfStream(id) => {
                self.unasked = true;
                let lane = &mut self.lanes[lane_of(id)];
                lane.sent += 1;
                lane.bytes += bytes;
                lane.carried = lane.sent;
            }
            Frame::Opens(id) => {
                self.unasked = true;
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

    /// How many pings it was sent that were asked for here.
    pub fn pings(&self) -> u64 {
        self.pings
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
        if self.unasked {
            // While it is heard all the time, too: or its silence would not mean anything.
            return self.asked + interval / self.urgency();
        }
        let quiet = self.heard.min(self.said) + interval;
        quiet.max(self.asked + interval)
    }

    /// What part of the interval may pass before what was sent is asked for.
    fn urgency(&self) -> u32 {
        let (frames, bytes) = A_LOT;
        let is_lot =
            |it: &Lane| !it.is_free() && (it.backlog() > frames || it.unconfirmed() > bytes);
        if self.lanes.iter().any(|lane| lane.asked > 0) {
            // One stands still, and each ping takes room there.
            1
        } else if self.lanes.iter().any(is_lot) {
            AT_ONCE
        } else {
            SOON
        }
    }

    /// When it is to be taken for dead, if it says nothing.
    pub fn death(&self) -> Option<Instant> {
        // Of what was asked it may have answered a part.
        let owes = self
            .lanes
            .iter()
            .any(|lane| lane.is_free() && lane.asked > 0);
        let since = self.silent_since.or(owes.then_some(self.heard))?;
        // What is in a free lane is taken as it comes.
        let reads = |lane: &Lane| lane.is_free() || lane.backlog() < FULL;
        let much = self
            .lanes
            .iter()
            .map(|lane| lane.unconfirmed())
            .sum::<u64>()
            >= MUCH;
        let counts = self.lanes.iter().all(reads) && !much && !self.dismissed;
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
        self.unasked = false;
        let mut fits = self.has_room(CROWDED);
        if !fits && now >= self.pushed + SELDOM * self.pace.interval {
            self.pushed = now;
            fits = self.has_room(PACKED);
        }
        let say = if fits { Say::Pings } else { self.mark_time() };
        if say != Say::Nothing {
            self.said = now;
        }
        say
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
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const PACE: Pace = Pace {
        interval: Duration::from_secs(10),
        patience: Duration::from_secs(5),
    };

    /// moby/spdystream, as far as it matters here.
    struct Moby {
        traffic: Traffic,
        /// How many pings there were.
        count: u32,
        now: Instant,
        lanes: [VecDeque<Frame>; LANES],
        turn: usize,
        /// Those that stand still, because nobody reads one of their streams.
        unread: [bool; LANES],
        lost: bool,
        /// What it says is not heard.
        unheard: bool,
    }

    impl Moby {
        const ROOM: usize = 50;

        fn new() -> Self {
            let now = Instant::now();
            Self {
                traffic: Traffic::new(PACE, now),
                count: 0,
                now,
                lanes: Default::default(),
                turn: 0,
                unread: [false; LANES],
                lost: false,
                unheard: false,
            }
        }

        fn read(&mut self, frame: Frame) {
            let lane = match frame {
                Frame::OfStream(id) | Frame::Opens(id) => lane_of(id),
                _ => {
                    self.turn = (self.turn + 1) % LANES;
                    (self.turn + LANES - 1) % LANES
                }
            };
            self.lanes[lane].push_back(frame);
            assert!(
                self.lanes[lane].len() < Self::ROOM,
                "nothing is read any more"
            );
            self.work();
        }

        /// Lets the lanes go on.
        fn work(&mut self) {
            for lane in 0..LANES {
                while !self.lost
                    && let Some(frame) = self.lanes[lane].front().copied()
                {
                    if self.unread[lane] && matches!(frame, Frame::OfStream(_)) {
                        break;
                    }
                    self.lanes[lane].pop_front();
                    let answers = matches!(frame, Frame::Ping(_) | Frame::Opens(_));
                    if answers && !self.unheard {
                        self.traffic.heard(self.now);
                    }
                    if let Frame::Ping(id) = frame
                        && !self.unheard
                    {
                        self.traffic.is_answer(id);
                    }
                }
            }
        }

        /// A client sends this.
        fn pass(&mut self, frame: Frame) {
            self.traffic.sent(self.now, frame, 100);
            self.read(frame);
        }

        /// Lets so many seconds pass; says whether it lives then.
        fn wait(&mut self, seconds: u64) -> bool {
            self.wait_for(Duration::from_secs(seconds))
        }

        fn wait_for(&mut self, time: Duration) -> bool {
            let end = self.now + time;
            while let Some(next) = self.traffic.next()
                && next <= end
            {
                self.now = self.now.max(next);
                match self.traffic.look(self.now) {
                    Say::Nothing => {}
                    Say::Dead => return false,
                    Say::Pings => {
                        for _ in 0..LANES {
                            self.count += 1;
                            let id = 0x8000_0000 + self.count;
                            self.traffic.pinged(self.now, id);
                            self.read(Frame::Ping(id));
                        }
                    }
                    Say::Reset(id) => self.pass(Frame::OfStream(id)),
                }
            }
            self.now = end;
            true
        }

        fn waits(&self) -> usize {
            self.lanes.iter().map(VecDeque::len).sum()
        }
    }

    #[test]
    fn who_answers_lives_and_is_asked_once_in_an_interval() {
        let mut moby = Moby::new();
        assert!(moby.wait(1000));
        assert_eq!(moby.count, 500);
        moby.lost = true;
        assert!(!moby.wait(15));
    }

    #[test]
    fn a_loss_is_noticed_after_any_traffic() {
        for streams in 1..12 {
            for frames in [1, 5, 40, 1000] {
                let mut moby = Moby::new();
                for frame in 0..frames {
                    moby.pass(Frame::OfStream(2 * (frame % streams) + 1));
                }
                assert!(moby.wait(3));
                moby.lost = true;
                // What is sent until it is noticed.
                for stream in 20..40 {
                    moby.pass(Frame::Opens(2 * stream + 1));
                    moby.pass(Frame::OfStream(2 * stream + 1));
                    moby.pass(Frame::OfConnection);
                }
                assert!(!moby.wait(15), "{frames} frames of {streams} streams");
            }
        }
    }

    #[test]
    fn pings_of_the_client_change_nothing() {
        let mut moby = Moby::new();
        for id in 0..1000 {
            moby.pass(Frame::Ping(2 * id + 1));
            moby.pass(Frame::OfStream(3));
            assert!(moby.wait(3));
        }
        assert!(moby.traffic.waiting.len() < 2);
        moby.lost = true;
        assert!(!moby.wait(15));
    }

    #[test]
    fn nobody_is_dead_because_something_is_not_read() {
        for lanes in 1..=LANES {
            for queued in [1, 15, 40] {
                let mut moby = Moby::new();
                let blocked = [3, 7, 11, 15, 19].into_iter().take(lanes);
                for id in blocked {
                    moby.unread[lane_of(id)] = true;
                    for _ in 0..queued {
                        moby.pass(Frame::OfStream(id));
                    }
                }
                let other = (21..31).find(|it| !moby.unread[lane_of(*it)]);
                // Another connection goes on all the time, then nothing does.
                for _ in 0..600 {
                    if let Some(other) = other {
                        moby.pass(Frame::OfStream(other));
                    }
                    assert!(moby.wait(1), "{lanes} lanes of {queued}");
                }
                assert!(moby.wait(4 * 3600), "{lanes} lanes of {queued}");
                let waits = moby.waits();
                let quiet = moby.now - moby.traffic.said;
                // As long as a lane is known to be free; the other connection has one.
                let keeps = lanes + 1 < LANES;
                assert!(
                    !keeps || quiet <= PACE.interval,
                    "{lanes} lanes of {queued}: cut by a balancer"
                );
                // When it is read, all is as before.
                moby.unread = [false; LANES];
                moby.work();
                assert!(waits > 0 && moby.waits() == 0);
                assert!(moby.wait(60));
                moby.lost = true;
                assert!(!moby.wait(15), "{lanes} lanes of {queued}");
            }
        }
    }

    #[test]
    fn a_loss_is_noticed_though_something_is_not_read() {
        let mut moby = Moby::new();
        moby.unread[3] = true;
        for _ in 0..10 {
            moby.pass(Frame::OfStream(3));
        }
        assert!(moby.wait(300));
        moby.lost = true;
        assert!(!moby.wait(15));
    }

    #[test]
    fn a_loss_is_noticed_though_something_is_not_read_and_others_talk() {
        let mut moby = Moby::new();
        moby.unread[3] = true;
        moby.pass(Frame::OfStream(3));
        for turn in 0..600 {
            moby.pass(Frame::OfStream(1));
            moby.traffic.heard(moby.now);
            assert!(moby.wait_for(Duration::from_millis(300)), "{turn}");
        }
        moby.lost = true;
        assert!(!moby.wait(15));
    }

    #[test]
    fn a_loss_is_noticed_in_the_middle_of_a_talk() {
        for each_second in [10, 60, 200] {
            for turns in 100..150 {
                let mut moby = Moby::new();
                for _ in 0..turns {
                    moby.pass(Frame::OfStream(1));
                    moby.traffic.heard(moby.now);
                    assert!(moby.wait_for(Duration::from_secs(1) / each_second));
                }
                moby.lost = true;
                assert!(!moby.wait(15), "after {turns} of {each_second}");
            }
        }
    }

    #[test]
    fn what_is_never_asked_for_again_does_not_hide_a_loss() {
        for frame in [Frame::OfConnection, Frame::Ping(2)] {
            let mut moby = Moby::new();
            // As windows are widened, or a client's pings answered, while it is heard.
            for _ in 0..1000 {
                moby.pass(frame);
                moby.traffic.heard(moby.now);
                assert!(moby.wait(5));
            }
            moby.lost = true;
            assert!(!moby.wait(15));
        }
    }

    #[test]
    fn half_an_answer_is_none() {
        let mut moby = Moby::new();
        moby.lost = true;
        assert!(moby.wait(11));
        // Then it is lost.
        let first = *moby.traffic.waiting.keys().next().unwrap();
        moby.traffic.heard(moby.now);
        moby.traffic.is_answer(first);
        let death = moby.traffic.death();
        assert_eq!(death, Some(moby.now + PACE.interval + PACE.patience));
    }

    #[test]
    fn a_slow_way_is_no_silence() {
        let mut moby = Moby::new();
        // A ping behind a megabyte takes a while.
        moby.lost = true;
        for _ in 0..30 {
            moby.traffic.sent(moby.now, Frame::OfStream(1), 32 * 1024);
            moby.read(Frame::OfStream(1));
        }
        assert!(moby.wait(100));
        moby.lost = false;
        moby.work();
        assert!(moby.wait(30));
        moby.lost = true;
        assert!(!moby.wait(15));
    }

    #[test]
    fn who_stands_still_for_a_moment_is_not_dead_however_soon_it_was_asked() {
        let mut moby = Moby::new();
        moby.pass(Frame::Opens(1));
        moby.pass(Frame::OfStream(1));
        moby.lost = true;
        assert!(moby.wait(14));
        moby.lost = false;
        moby.work();
        assert!(moby.wait(100));
    }

    #[test]
    fn something_is_said_in_every_interval() {
        let mut moby = Moby::new();
        moby.unread[3] = true;
        moby.pass(Frame::OfStream(3));
        for second in 0..4 * 3600 {
            assert!(moby.wait(1));
            let quiet = moby.now - moby.traffic.said;
            assert!(quiet <= PACE.interval, "after {second} s");
        }
    }

    #[test]
    fn who_is_not_listened_to_is_not_dead() {
        let mut moby = Moby::new();
        moby.unheard = true;
        for _ in 0..1000 {
            assert!(moby.wait(4));
            let now = moby.now;
            moby.traffic.excuse(now);
        }
        assert!(moby.traffic.waiting.len() <= LANES * Moby::ROOM);
    }

    #[test]
    fn who_was_told_that_all_is_over_is_not_asked() {
        let mut moby = Moby::new();
        assert!(moby.wait(10));
        moby.traffic.sent(moby.now, Frame::GoAway, 16);
        assert_eq!(moby.traffic.next(), None);
        assert_eq!(moby.traffic.look(moby.now + PACE.interval), Say::Nothing);
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let now = Instant::now();
        let mut traffic = Traffic::new(PACE, now);
        for id in 0..10_000 {
            traffic.sent(now, Frame::Ping(id), 12);
        }
        assert_eq!(traffic.waiting.len(), MOST);
    }
}
