//! SpdyKeepalive to a model of moby/spdystream.

use std::collections::VecDeque;

use super::*;

const CONFIG: KeepaliveConfig = KeepaliveConfig {
    interval: Duration::from_secs(10),
    timeout: Duration::from_secs(5),
};

const POLICIES: [PingPolicy; 2] = [PingPolicy::Always, PingPolicy::AvoidNearEof];

/// moby/spdystream, as far as it matters here.
struct Moby {
    keepalive: SpdyKeepalive,
    /// How many pings there were.
    count: u32,
    now: Instant,
    lanes: [VecDeque<ScannedFrame>; FRAME_WORKERS],
    turn: usize,
    /// Those that stand still, because nobody reads one of their streams.
    unread: [bool; FRAME_WORKERS],
    lost: bool,
    /// What it says is not heard.
    unheard: bool,
}

impl Moby {
    const ROOM: usize = 50;

    fn new(policy: PingPolicy) -> Self {
        let now = Instant::now();
        Self {
            keepalive: SpdyKeepalive::new(CONFIG, policy, now),
            count: 0,
            now,
            lanes: Default::default(),
            turn: 0,
            unread: [false; FRAME_WORKERS],
            lost: false,
            unheard: false,
        }
    }

    fn read(&mut self, frame: ScannedFrame) {
        let lane = match frame {
            ScannedFrame::Stream(id) | ScannedFrame::SynStream(id) => worker_of(id),
            _ => {
                self.turn = (self.turn + 1) % FRAME_WORKERS;
                (self.turn + FRAME_WORKERS - 1) % FRAME_WORKERS
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
        for lane in 0..FRAME_WORKERS {
            while !self.lost
                && let Some(frame) = self.lanes[lane].front().copied()
            {
                if self.unread[lane] && matches!(frame, ScannedFrame::Stream(_)) {
                    break;
                }
                self.lanes[lane].pop_front();
                let answers = matches!(frame, ScannedFrame::Ping(_) | ScannedFrame::SynStream(_));
                if answers && !self.unheard {
                    self.keepalive.on_received(self.now);
                }
                if let ScannedFrame::Ping(id) = frame
                    && !self.unheard
                {
                    self.keepalive.on_ping_received(id);
                }
            }
        }
    }

    /// A client sends this.
    fn pass(&mut self, frame: ScannedFrame) {
        let ahead = self.keepalive.check_before_send(self.now);
        self.say(ahead);
        self.keepalive.on_sent(self.now, frame, 100);
        self.read(frame);
    }

    /// Lets so many seconds pass; says whether it lives then.
    fn wait(&mut self, seconds: u64) -> bool {
        self.wait_for(Duration::from_secs(seconds))
    }

    fn wait_for(&mut self, time: Duration) -> bool {
        let end = self.now + time;
        while let Some(next) = self.keepalive.next_deadline()
            && next <= end
        {
            self.now = self.now.max(next);
            let say = self.keepalive.check(self.now);
            if say == SpdyKeepaliveAction::Dead {
                return false;
            }
            self.say(say);
        }
        self.now = end;
        true
    }

    fn say(&mut self, say: SpdyKeepaliveAction) {
        match say {
            SpdyKeepaliveAction::None | SpdyKeepaliveAction::Dead => {}
            SpdyKeepaliveAction::SendPings => {
                for _ in 0..FRAME_WORKERS {
                    self.count += 1;
                    let id = 0x8000_0000 + self.count;
                    self.keepalive.on_ping_sent(self.now, id);
                    self.read(ScannedFrame::Ping(id));
                }
            }
            SpdyKeepaliveAction::SendReset(id) => {
                let frame = ScannedFrame::Stream(id);
                self.keepalive.on_sent(self.now, frame, 16);
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
    for policy in POLICIES {
        let mut moby = Moby::new(policy);
        assert!(moby.wait(1000));
        assert_eq!(moby.count, 500);
        moby.lost = true;
        assert!(!moby.wait(15));
    }
}

#[test]
fn a_loss_is_noticed_after_any_traffic() {
    for policy in POLICIES {
        for streams in 1..12 {
            for frames in [1, 5, 40, 1000] {
                let mut moby = Moby::new(policy);
                for frame in 0..frames {
                    moby.pass(ScannedFrame::Stream(2 * (frame % streams) + 1));
                }
                assert!(moby.wait(3));
                moby.lost = true;
                // What is sent until it is noticed.
                for stream in 20..40 {
                    moby.pass(ScannedFrame::SynStream(2 * stream + 1));
                    moby.pass(ScannedFrame::Stream(2 * stream + 1));
                    moby.pass(ScannedFrame::Connection);
                }
                assert!(!moby.wait(15), "{frames} frames of {streams} streams");
            }
        }
    }
}

#[test]
fn pings_of_the_client_change_nothing() {
    for policy in POLICIES {
        let mut moby = Moby::new(policy);
        for id in 0..1000 {
            moby.pass(ScannedFrame::Ping(2 * id + 1));
            moby.pass(ScannedFrame::Stream(3));
            assert!(moby.wait(3));
        }
        assert!(moby.keepalive.outstanding.len() < 2);
        moby.lost = true;
        assert!(!moby.wait(15));
    }
}

#[test]
fn nobody_is_dead_because_something_is_not_read() {
    for policy in POLICIES {
        for lanes in 1..=FRAME_WORKERS {
            for queued in [1, 15, 40] {
                let mut moby = Moby::new(policy);
                let blocked = [3, 7, 11, 15, 19].into_iter().take(lanes);
                for id in blocked {
                    moby.unread[worker_of(id)] = true;
                    for _ in 0..queued {
                        moby.pass(ScannedFrame::Stream(id));
                    }
                }
                let other = (21..31).find(|it| !moby.unread[worker_of(*it)]);
                // Another connection goes on all the time, then nothing does.
                for _ in 0..600 {
                    if let Some(other) = other {
                        moby.pass(ScannedFrame::Stream(other));
                    }
                    assert!(moby.wait(1), "{lanes} lanes of {queued}");
                }
                assert!(moby.wait(4 * 3600), "{lanes} lanes of {queued}");
                let waits = moby.waits();
                let quiet = moby.now - moby.keepalive.last_sent;
                // As long as a lane is known to be free; the other connection has one.
                let keeps = lanes + 1 < FRAME_WORKERS;
                assert!(
                    !keeps || quiet <= CONFIG.interval,
                    "{lanes} lanes of {queued}: cut by a balancer"
                );
                // When it is read, all is as before.
                moby.unread = [false; FRAME_WORKERS];
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
    for policy in POLICIES {
        let mut moby = Moby::new(policy);
        moby.unread[3] = true;
        for _ in 0..10 {
            moby.pass(ScannedFrame::Stream(3));
        }
        assert!(moby.wait(300));
        moby.lost = true;
        assert!(!moby.wait(15));
    }
}

#[test]
fn a_loss_is_noticed_though_something_is_not_read_and_others_talk() {
    for policy in POLICIES {
        let mut moby = Moby::new(policy);
        moby.unread[3] = true;
        moby.pass(ScannedFrame::Stream(3));
        for turn in 0..600 {
            moby.pass(ScannedFrame::Stream(1));
            moby.keepalive.on_received(moby.now);
            assert!(moby.wait_for(Duration::from_millis(300)), "{turn}");
        }
        moby.lost = true;
        assert!(!moby.wait(15));
    }
}

#[test]
fn a_loss_is_noticed_in_the_middle_of_a_talk() {
    for policy in POLICIES {
        for each_second in [10, 60, 200] {
            for turns in 100..150 {
                let mut moby = Moby::new(policy);
                for _ in 0..turns {
                    moby.pass(ScannedFrame::Stream(1));
                    moby.keepalive.on_received(moby.now);
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
    let soon = CONFIG.interval / CONFIRM_DIVISOR;
    // Quiet before; then something is sent that may end it all.
    for pause in [0, 1, 9, 10, 11, 3600] {
        let mut moby = Moby::new(PingPolicy::AvoidNearEof);
        assert!(moby.wait(pause));
        let count = moby.count;
        moby.pass(ScannedFrame::Stream(1));
        assert_eq!(moby.keepalive.next_deadline(), Some(moby.now + soon));
        // And is answered.
        assert!(moby.wait_for(soon / 2));
        moby.keepalive.on_received(moby.now);
        assert!(moby.wait_for(soon * 3 / 4));
        assert_eq!(moby.count, count, "after {pause} s");
        assert!(moby.wait_for(soon));
        assert_eq!(moby.count, count + 5, "after {pause} s");
    }
    // An output that goes on, after the streams were opened.
    let mut moby = Moby::new(PingPolicy::AvoidNearEof);
    for id in [1, 3, 5] {
        moby.pass(ScannedFrame::SynStream(id));
    }
    goes_on(&mut moby, 100_000);
    assert_eq!(moby.count, 0);
    // What is heard may be the last words, and what is not read yet, too.
    let words: [fn(&mut SpdyKeepalive, Instant); 2] =
        [SpdyKeepalive::on_received, SpdyKeepalive::on_read_paused];
    for hear in words {
        let mut moby = Moby::new(PingPolicy::AvoidNearEof);
        moby.pass(ScannedFrame::Stream(1));
        assert!(moby.wait(11));
        let count = moby.count;
        for _ in 0..1000 {
            hear(&mut moby.keepalive, moby.now);
            assert!(moby.wait(9));
        }
        assert_eq!(moby.count, count);
    }
}

#[test]
fn pings_go_before_what_is_sent() {
    let mut moby = Moby::new(PingPolicy::AvoidNearEof);
    for _ in 0..1000 {
        moby.pass(ScannedFrame::Stream(1));
        moby.keepalive.on_received(moby.now);
        assert!(moby.wait_for(CONFIG.interval / CONFIRM_DIVISOR / 2));
        // The last one is never asked for in between.
        assert!(!moby.keepalive.queues[worker_of(1)].answers_at_once());
    }
    assert!(moby.count >= 5 * 300, "{}", moby.count);
}

#[test]
fn what_is_never_asked_for_again_does_not_hide_a_loss() {
    for policy in POLICIES {
        for frame in [ScannedFrame::Connection, ScannedFrame::Ping(2)] {
            let mut moby = Moby::new(policy);
            // As windows are widened, or a client's pings answered, while it is heard.
            for _ in 0..1000 {
                moby.pass(frame);
                moby.keepalive.on_received(moby.now);
                assert!(moby.wait(5));
            }
            moby.lost = true;
            assert!(!moby.wait(15));
        }
    }
}

#[test]
fn half_an_answer_is_none() {
    for policy in POLICIES {
        let mut moby = Moby::new(policy);
        moby.lost = true;
        assert!(moby.wait(11));
        // Then it is lost.
        let first = *moby.keepalive.outstanding.keys().next().unwrap();
        moby.keepalive.on_received(moby.now);
        moby.keepalive.on_ping_received(first);
        let death = moby.keepalive.dead_at();
        assert_eq!(death, Some(moby.now + CONFIG.interval + CONFIG.timeout));
    }
}

#[test]
fn a_slow_way_is_no_silence() {
    for policy in POLICIES {
        let mut moby = Moby::new(policy);
        // A ping behind a megabyte takes a while.
        moby.lost = true;
        for _ in 0..30 {
            moby.keepalive
                .on_sent(moby.now, ScannedFrame::Stream(1), 32 * 1024);
            moby.read(ScannedFrame::Stream(1));
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
    for policy in POLICIES {
        let mut moby = Moby::new(policy);
        moby.pass(ScannedFrame::SynStream(1));
        moby.pass(ScannedFrame::Stream(1));
        moby.lost = true;
        assert!(moby.wait(14));
        moby.lost = false;
        moby.work();
        assert!(moby.wait(100));
    }
}

#[test]
fn something_is_said_in_every_interval() {
    for policy in POLICIES {
        let mut moby = Moby::new(policy);
        moby.unread[3] = true;
        moby.pass(ScannedFrame::Stream(3));
        for second in 0..4 * 3600 {
            assert!(moby.wait(1));
            let quiet = moby.now - moby.keepalive.last_sent;
            assert!(quiet <= CONFIG.interval, "after {second} s");
        }
    }
}

#[test]
fn who_is_not_listened_to_is_not_dead() {
    for policy in POLICIES {
        let mut moby = Moby::new(policy);
        moby.unheard = true;
        for _ in 0..1000 {
            assert!(moby.wait(4));
            let now = moby.now;
            moby.keepalive.on_read_paused(now);
        }
        assert!(moby.keepalive.outstanding.len() <= FRAME_WORKERS * Moby::ROOM);
    }
}

#[test]
fn who_was_told_that_all_is_over_is_not_asked() {
    for policy in POLICIES {
        let mut moby = Moby::new(policy);
        assert!(moby.wait(10));
        moby.keepalive.on_sent(moby.now, ScannedFrame::GoAway, 16);
        assert_eq!(moby.keepalive.next_deadline(), None);
        assert_eq!(
            moby.keepalive.check(moby.now + CONFIG.interval),
            SpdyKeepaliveAction::None
        );
    }
}

#[test]
fn what_is_remembered_has_a_bound() {
    let now = Instant::now();
    let mut keepalive = SpdyKeepalive::new(CONFIG, PingPolicy::Always, now);
    for id in 0..10_000 {
        keepalive.on_sent(now, ScannedFrame::Ping(id), 12);
    }
    assert_eq!(keepalive.outstanding.len(), MAX_OUTSTANDING_PINGS);
}

/// Something is heard twice in a second, for so long.
fn goes_on(moby: &mut Moby, mut millis: u64) {
    while millis > 0 {
        let some = millis.min(500);
        moby.keepalive.on_received(moby.now);
        assert!(moby.wait_for(Duration::from_millis(some)));
        millis -= some;
    }
}

#[test]
fn a_loss_is_noticed_some_time_after_a_burst_though_much_is_heard() {
    for (policy, blind) in [(PingPolicy::Always, 1000), (PingPolicy::AvoidNearEof, 5000)] {
        for after in (blind + 100..15_000).step_by(500) {
            let mut moby = Moby::new(policy);
            goes_on(&mut moby, 3000);
            for _ in 0..8 {
                moby.keepalive
                    .on_sent(moby.now, ScannedFrame::Stream(1), 16 * 1024);
                moby.read(ScannedFrame::Stream(1));
            }
            goes_on(&mut moby, after);
            moby.lost = true;
            assert!(!moby.wait(15), "{policy:?}: lost {after} ms after it");
        }
    }
}

#[test]
fn a_loss_is_noticed_after_all_lanes_were_written_to() {
    for (policy, blind) in [(PingPolicy::Always, 1000), (PingPolicy::AvoidNearEof, 5000)] {
        for after in (blind + 100..15_000).step_by(500) {
            let mut moby = Moby::new(policy);
            // As for a page with what belongs to it.
            for pair in 0..6 {
                for id in [4 * pair + 1, 4 * pair + 3] {
                    moby.pass(ScannedFrame::SynStream(id));
                    moby.pass(ScannedFrame::Stream(id));
                }
            }
            goes_on(&mut moby, after);
            moby.lost = true;
            assert!(!moby.wait(15), "{policy:?}: lost {after} ms after it");
        }
    }
}

#[test]
fn who_types_while_output_waits_is_asked_before_it_is_too_much() {
    let mut moby = Moby::new(PingPolicy::AvoidNearEof);
    for _ in 0..60 {
        moby.keepalive.on_read_paused(moby.now);
        moby.pass(ScannedFrame::Stream(1));
        for _ in 0..4 {
            moby.keepalive.on_read_paused(moby.now);
            assert!(moby.wait_for(Duration::from_millis(250)));
        }
    }
    moby.lost = true;
    assert!(!moby.wait(15));
}

#[test]
fn who_ends_nothing_is_told_something_in_each_interval() {
    let heard: [fn(&mut SpdyKeepalive, Instant); 2] =
        [SpdyKeepalive::on_received, SpdyKeepalive::on_read_paused];
    for hear in heard {
        let mut moby = Moby::new(PingPolicy::Always);
        for second in 0..600 {
            hear(&mut moby.keepalive, moby.now);
            assert!(moby.wait(1));
            let quiet = moby.now - moby.keepalive.last_sent;
            assert!(quiet <= CONFIG.interval, "after {second} s");
        }
    }
}

#[test]
fn a_loss_is_noticed_as_soon_while_somebody_types() {
    for (policy, is_unread) in POLICIES
        .into_iter()
        .flat_map(|it| [(it, false), (it, true)])
    {
        for before in [1, 5, 9] {
            let mut moby = Moby::new(policy);
            if is_unread {
                moby.unread[3] = true;
                moby.pass(ScannedFrame::Stream(3));
            }
            assert!(moby.wait(51));
            let heard = moby.keepalive.last_received;
            moby.lost = true;
            // A key shortly before it is to be asked, and then from time to time.
            let next = moby.keepalive.next_deadline().unwrap() - moby.now;
            assert!(moby.wait_for(next.saturating_sub(Duration::from_millis(100 * before))));
            let mut keys = 0;
            while moby.wait_for(Duration::from_millis(100)) {
                keys += 1;
                if keys % 99 == 1 {
                    moby.pass(ScannedFrame::Stream(3));
                }
                assert!(keys < 1000, "never");
            }
            let silence = moby.now - heard;
            let bound = CONFIG.interval + CONFIG.timeout;
            assert!(silence <= bound, "{policy:?} {is_unread}: {silence:?}");
        }
    }
}
