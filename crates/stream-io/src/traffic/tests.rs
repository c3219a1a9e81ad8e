//! Traffic to a model of moby/spdystream.

use std::collections::VecDeque;

use super::*;

const PACE: Pace = Pace {
    interval: Duration::from_secs(10),
    patience: Duration::from_secs(5),
};

const WAYS: [Asked; 2] = [Asked::Plainly, Asked::Gently];

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

    fn new(tact: Asked) -> Self {
        let now = Instant::now();
        Self {
            traffic: Traffic::new(PACE, tact, now),
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
        let ahead = self.traffic.look_ahead(self.now);
        self.say(ahead);
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
            let say = self.traffic.look(self.now);
            if say == Say::Dead {
                return false;
            }
            self.say(say);
        }
        self.now = end;
        true
    }

    fn say(&mut self, say: Say) {
        match say {
            Say::Nothing | Say::Dead => {}
            Say::Pings => {
                for _ in 0..LANES {
                    self.count += 1;
                    let id = 0x8000_0000 + self.count;
                    self.traffic.pinged(self.now, id);
                    self.read(Frame::Ping(id));
                }
            }
            Say::Reset(id) => {
                let frame = Frame::OfStream(id);
                self.traffic.sent(self.now, frame, 16);
                self.read(frame);
            }
        }
    }

    fn waits(&self) -> usize {
        self.lanes.iter().map(VecDeque::len).sum()
    }
}

#[test]
fn who_answers_lives_and_is_asked_once_in_an_interval() {
    for tact in WAYS {
        let mut moby = Moby::new(tact);
        assert!(moby.wait(1000));
        assert_eq!(moby.count, 500);
        moby.lost = true;
        assert!(!moby.wait(15));
    }
}

#[test]
fn a_loss_is_noticed_after_any_traffic() {
    for tact in WAYS {
        for streams in 1..12 {
            for frames in [1, 5, 40, 1000] {
                let mut moby = Moby::new(tact);
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
}

#[test]
fn pings_of_the_client_change_nothing() {
    for tact in WAYS {
        let mut moby = Moby::new(tact);
        for id in 0..1000 {
            moby.pass(Frame::Ping(2 * id + 1));
            moby.pass(Frame::OfStream(3));
            assert!(moby.wait(3));
        }
        assert!(moby.traffic.waiting.len() < 2);
        moby.lost = true;
        assert!(!moby.wait(15));
    }
}

#[test]
fn nobody_is_dead_because_something_is_not_read() {
    for tact in WAYS {
        for lanes in 1..=LANES {
            for queued in [1, 15, 40] {
                let mut moby = Moby::new(tact);
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
}

#[test]
fn a_loss_is_noticed_though_something_is_not_read() {
    for tact in WAYS {
        let mut moby = Moby::new(tact);
        moby.unread[3] = true;
        for _ in 0..10 {
            moby.pass(Frame::OfStream(3));
        }
        assert!(moby.wait(300));
        moby.lost = true;
        assert!(!moby.wait(15));
    }
}

#[test]
fn a_loss_is_noticed_though_something_is_not_read_and_others_talk() {
    for tact in WAYS {
        let mut moby = Moby::new(tact);
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
}

#[test]
fn a_loss_is_noticed_in_the_middle_of_a_talk() {
    for tact in WAYS {
        for each_second in [10, 60, 200] {
            for turns in 100..150 {
                let mut moby = Moby::new(tact);
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
}

#[test]
fn no_ping_meets_an_end() {
    let soon = PACE.interval / SOON;
    // Quiet before; then something is sent that may end it all.
    for pause in [0, 1, 9, 10, 11, 3600] {
        let mut moby = Moby::new(Asked::Gently);
        assert!(moby.wait(pause));
        let count = moby.count;
        moby.pass(Frame::OfStream(1));
        assert_eq!(moby.traffic.next(), Some(moby.now + soon));
        // And is answered.
        assert!(moby.wait_for(soon / 2));
        moby.traffic.heard(moby.now);
        assert!(moby.wait_for(soon * 3 / 4));
        assert_eq!(moby.count, count, "after {pause} s");
        assert!(moby.wait_for(soon));
        assert_eq!(moby.count, count + 5, "after {pause} s");
    }
    // An output that goes on, after the streams were opened.
    let mut moby = Moby::new(Asked::Gently);
    for id in [1, 3, 5] {
        moby.pass(Frame::Opens(id));
    }
    goes_on(&mut moby, 100_000);
    assert_eq!(moby.count, 0);
    // What is heard may be the last words, and what is not read yet, too.
    let words: [fn(&mut Traffic, Instant); 2] = [Traffic::heard, Traffic::excuse];
    for hear in words {
        let mut moby = Moby::new(Asked::Gently);
        moby.pass(Frame::OfStream(1));
        assert!(moby.wait(11));
        let count = moby.count;
        for _ in 0..1000 {
            hear(&mut moby.traffic, moby.now);
            assert!(moby.wait(9));
        }
        assert_eq!(moby.count, count);
    }
}

#[test]
fn pings_go_before_what_is_sent() {
    let mut moby = Moby::new(Asked::Gently);
    for _ in 0..1000 {
        moby.pass(Frame::OfStream(1));
        moby.traffic.heard(moby.now);
        assert!(moby.wait_for(PACE.interval / SOON / 2));
        // The last one is never asked for in between.
        assert!(!moby.traffic.lanes[lane_of(1)].is_free());
    }
    assert!(moby.count >= 5 * 300, "{}", moby.count);
}

#[test]
fn what_is_never_asked_for_again_does_not_hide_a_loss() {
    for tact in WAYS {
        for frame in [Frame::OfConnection, Frame::Ping(2)] {
            let mut moby = Moby::new(tact);
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
}

#[test]
fn half_an_answer_is_none() {
    for tact in WAYS {
        let mut moby = Moby::new(tact);
        moby.lost = true;
        assert!(moby.wait(11));
        // Then it is lost.
        let first = *moby.traffic.waiting.keys().next().unwrap();
        moby.traffic.heard(moby.now);
        moby.traffic.is_answer(first);
        let death = moby.traffic.death();
        assert_eq!(death, Some(moby.now + PACE.interval + PACE.patience));
    }
}

#[test]
fn a_slow_way_is_no_silence() {
    for tact in WAYS {
        let mut moby = Moby::new(tact);
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
}

#[test]
fn who_stands_still_for_a_moment_is_not_dead_however_soon_it_was_asked() {
    for tact in WAYS {
        let mut moby = Moby::new(tact);
        moby.pass(Frame::Opens(1));
        moby.pass(Frame::OfStream(1));
        moby.lost = true;
        assert!(moby.wait(14));
        moby.lost = false;
        moby.work();
        assert!(moby.wait(100));
    }
}

#[test]
fn something_is_said_in_every_interval() {
    for tact in WAYS {
        let mut moby = Moby::new(tact);
        moby.unread[3] = true;
        moby.pass(Frame::OfStream(3));
        for second in 0..4 * 3600 {
            assert!(moby.wait(1));
            let quiet = moby.now - moby.traffic.said;
            assert!(quiet <= PACE.interval, "after {second} s");
        }
    }
}

#[test]
fn who_is_not_listened_to_is_not_dead() {
    for tact in WAYS {
        let mut moby = Moby::new(tact);
        moby.unheard = true;
        for _ in 0..1000 {
            assert!(moby.wait(4));
            let now = moby.now;
            moby.traffic.excuse(now);
        }
        assert!(moby.traffic.waiting.len() <= LANES * Moby::ROOM);
    }
}

#[test]
fn who_was_told_that_all_is_over_is_not_asked() {
    for tact in WAYS {
        let mut moby = Moby::new(tact);
        assert!(moby.wait(10));
        moby.traffic.sent(moby.now, Frame::GoAway, 16);
        assert_eq!(moby.traffic.next(), None);
        assert_eq!(moby.traffic.look(moby.now + PACE.interval), Say::Nothing);
    }
}

#[test]
fn what_is_remembered_has_a_bound() {
    let now = Instant::now();
    let mut traffic = Traffic::new(PACE, Asked::Plainly, now);
    for id in 0..10_000 {
        traffic.sent(now, Frame::Ping(id), 12);
    }
    assert_eq!(traffic.waiting.len(), MOST);
}

/// Something is heard twice in a second, for so long.
fn goes_on(moby: &mut Moby, mut millis: u64) {
    while millis > 0 {
        let some = millis.min(500);
        moby.traffic.heard(moby.now);
        assert!(moby.wait_for(Duration::from_millis(some)));
        millis -= some;
    }
}

#[test]
fn a_loss_is_noticed_some_time_after_a_burst_though_much_is_heard() {
    for (tact, blind) in [(Asked::Plainly, 1000), (Asked::Gently, 5000)] {
        for after in (blind + 100..15_000).step_by(500) {
            let mut moby = Moby::new(tact);
            goes_on(&mut moby, 3000);
            for _ in 0..8 {
                moby.traffic.sent(moby.now, Frame::OfStream(1), 16 * 1024);
                moby.read(Frame::OfStream(1));
            }
            goes_on(&mut moby, after);
            moby.lost = true;
            assert!(!moby.wait(15), "{tact:?}: lost {after} ms after it");
        }
    }
}

#[test]
fn a_loss_is_noticed_after_all_lanes_were_written_to() {
    for (tact, blind) in [(Asked::Plainly, 1000), (Asked::Gently, 5000)] {
        for after in (blind + 100..15_000).step_by(500) {
            let mut moby = Moby::new(tact);
            // As for a page with what belongs to it.
            for pair in 0..6 {
                for id in [4 * pair + 1, 4 * pair + 3] {
                    moby.pass(Frame::Opens(id));
                    moby.pass(Frame::OfStream(id));
                }
            }
            goes_on(&mut moby, after);
            moby.lost = true;
            assert!(!moby.wait(15), "{tact:?}: lost {after} ms after it");
        }
    }
}

#[test]
fn who_types_while_output_waits_is_asked_before_it_is_too_much() {
    let mut moby = Moby::new(Asked::Gently);
    for _ in 0..60 {
        moby.traffic.excuse(moby.now);
        moby.pass(Frame::OfStream(1));
        for _ in 0..4 {
            moby.traffic.excuse(moby.now);
            assert!(moby.wait_for(Duration::from_millis(250)));
        }
    }
    moby.lost = true;
    assert!(!moby.wait(15));
}

#[test]
fn who_ends_nothing_is_told_something_in_each_interval() {
    let heard: [fn(&mut Traffic, Instant); 2] = [Traffic::heard, Traffic::excuse];
    for hear in heard {
        let mut moby = Moby::new(Asked::Plainly);
        for second in 0..600 {
            hear(&mut moby.traffic, moby.now);
            assert!(moby.wait(1));
            let quiet = moby.now - moby.traffic.said;
            assert!(quiet <= PACE.interval, "after {second} s");
        }
    }
}

#[test]
fn a_loss_is_noticed_as_soon_while_somebody_types() {
    for (tact, is_unread) in WAYS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        for before in [1, 5, 9] {
            let mut moby = Moby::new(tact);
            if is_unread {
                moby.unread[3] = true;
                moby.pass(Frame::OfStream(3));
            }
            assert!(moby.wait(51));
            let heard = moby.traffic.heard;
            moby.lost = true;
            // A key shortly before it is to be asked, and then from time to time.
            let next = moby.traffic.next().unwrap() - moby.now;
            assert!(moby.wait_for(next.saturating_sub(Duration::from_millis(100 * before))));
            let mut keys = 0;
            while moby.wait_for(Duration::from_millis(100)) {
                keys += 1;
                if keys % 99 == 1 {
                    moby.pass(Frame::OfStream(3));
                }
                assert!(keys < 1000, "never");
            }
            let silence = moby.now - heard;
            let bound = PACE.interval + PACE.patience;
            assert!(silence <= bound, "{tact:?} {is_unread}: {silence:?}");
        }
    }
}
