//! The SPDY keepalive against a model of moby/spdystream.

use std::collections::VecDeque;

use super::*;

const CONFIG: KeepaliveConfig = KeepaliveConfig {
    interval: Duration::from_secs(10),
    timeout: Duration::from_secs(5),
};

const POLICIES: [PingPolicy; 2] = [PingPolicy::Always, PingPolicy::AvoidNearEof];

/// A model of moby/spdystream.
struct SpdystreamModel {
    keepalive: SpdyKeepalive,
    /// How many pings were sent.
    count: u32,
    now: Instant,
    queues: [VecDeque<ScannedFrame>; FRAME_WORKERS],
    next_worker: usize,
    /// Workers that block because the application does not read one of their streams.
    blocked_workers: [bool; FRAME_WORKERS],
    lost: bool,
    /// Its replies are not received.
    replies_lost: bool,
}

impl SpdystreamModel {
    const QUEUE_FRAMES: usize = 50;

    fn new(policy: PingPolicy) -> Self {
        let now = Instant::now();
        Self {
            keepalive: SpdyKeepalive::new(CONFIG, policy, now),
            count: 0,
            now,
            queues: Default::default(),
            next_worker: 0,
            blocked_workers: [false; FRAME_WORKERS],
            lost: false,
            replies_lost: false,
        }
    }

    fn read(&mut self, frame: ScannedFrame) {
        let worker = match frame {
            ScannedFrame::Stream(id) | ScannedFrame::SynStream(id) => worker_of(id),
            _ => {
                self.next_worker = (self.next_worker + 1) % FRAME_WORKERS;
                (self.next_worker + FRAME_WORKERS - 1) % FRAME_WORKERS
            }
        };
        self.queues[worker].push_back(frame);
        assert!(
            self.queues[worker].len() < Self::QUEUE_FRAMES,
            "the connection is not read any more"
        );
        self.run_workers();
    }

    /// Lets the workers process their queues.
    fn run_workers(&mut self) {
        for worker in 0..FRAME_WORKERS {
            while !self.lost
                && let Some(frame) = self.queues[worker].front().copied()
            {
                if self.blocked_workers[worker] && matches!(frame, ScannedFrame::Stream(_)) {
                    break;
                }
                self.queues[worker].pop_front();
                let answers = matches!(frame, ScannedFrame::Ping(_) | ScannedFrame::SynStream(_));
                if answers && !self.replies_lost {
                    self.keepalive.on_received(self.now);
                }
                if let ScannedFrame::Ping(id) = frame
                    && !self.replies_lost
                {
                    self.keepalive.on_ping_received(id);
                }
            }
        }
    }

    /// A client sends this frame.
    fn send(&mut self, frame: ScannedFrame) {
        let before_send = self.keepalive.check_before_send(self.now);
        self.apply(before_send);
        self.keepalive.on_sent(self.now, frame, 100);
        self.read(frame);
    }

    /// Lets this many seconds pass; returns whether the remote is considered alive then.
    fn wait(&mut self, seconds: u64) -> bool {
        self.wait_for(Duration::from_secs(seconds))
    }

    fn wait_for(&mut self, time: Duration) -> bool {
        let end = self.now + time;
        while let Some(next) = self.keepalive.next_deadline()
            && next <= end
        {
            self.now = self.now.max(next);
            let action = self.keepalive.check(self.now);
            if action == SpdyKeepaliveAction::Dead {
                return false;
            }
            self.apply(action);
        }
        self.now = end;
        true
    }

    fn apply(&mut self, action: SpdyKeepaliveAction) {
        match action {
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

    fn queued_frames(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }
}

#[test]
fn a_remote_that_answers_is_pinged_once_per_interval() {
    for policy in POLICIES {
        let mut model = SpdystreamModel::new(policy);
        assert!(model.wait(1000));
        assert_eq!(model.count, 500);
        model.lost = true;
        assert!(!model.wait(15));
    }
}

#[test]
fn a_loss_is_detected_after_any_traffic() {
    for policy in POLICIES {
        for streams in 1..12 {
            for frames in [1, 5, 40, 1000] {
                let mut model = SpdystreamModel::new(policy);
                for frame in 0..frames {
                    model.send(ScannedFrame::Stream(2 * (frame % streams) + 1));
                }
                assert!(model.wait(3));
                model.lost = true;
                // Frames that are sent until the loss is detected.
                for stream in 20..40 {
                    model.send(ScannedFrame::SynStream(2 * stream + 1));
                    model.send(ScannedFrame::Stream(2 * stream + 1));
                    model.send(ScannedFrame::Connection);
                }
                assert!(!model.wait(15), "{frames} frames of {streams} streams");
            }
        }
    }
}

#[test]
fn pings_of_the_client_change_nothing() {
    for policy in POLICIES {
        let mut model = SpdystreamModel::new(policy);
        for id in 0..1000 {
            model.send(ScannedFrame::Ping(2 * id + 1));
            model.send(ScannedFrame::Stream(3));
            assert!(model.wait(3));
        }
        assert!(model.keepalive.outstanding.len() < 2);
        model.lost = true;
        assert!(!model.wait(15));
    }
}

#[test]
fn blocked_workers_do_not_make_the_remote_dead() {
    for policy in POLICIES {
        for workers in 1..=FRAME_WORKERS {
            for queued in [1, 15, 40] {
                let mut model = SpdystreamModel::new(policy);
                let blocked_ids = [3, 7, 11, 15, 19].into_iter().take(workers);
                for id in blocked_ids {
                    model.blocked_workers[worker_of(id)] = true;
                    for _ in 0..queued {
                        model.send(ScannedFrame::Stream(id));
                    }
                }
                let other = (21..31).find(|it| !model.blocked_workers[worker_of(*it)]);
                // First another connection carries traffic all the time, then none does.
                for _ in 0..600 {
                    if let Some(other) = other {
                        model.send(ScannedFrame::Stream(other));
                    }
                    assert!(model.wait(1), "{workers} workers with {queued} frames");
                }
                assert!(
                    model.wait(4 * 3600),
                    "{workers} workers with {queued} frames"
                );
                let queued_frames = model.queued_frames();
                let quiet = model.now - model.keepalive.last_sent;
                // While one worker is known to answer immediately; on the other connection
                // there is one.
                let keeps = workers + 1 < FRAME_WORKERS;
                assert!(
                    !keeps || quiet <= CONFIG.interval,
                    "{workers} workers with {queued} frames: closed by a load balancer"
                );
                // Once the streams are read, everything is as before.
                model.blocked_workers = [false; FRAME_WORKERS];
                model.run_workers();
                assert!(queued_frames > 0 && model.queued_frames() == 0);
                assert!(model.wait(60));
                model.lost = true;
                assert!(!model.wait(15), "{workers} workers with {queued} frames");
            }
        }
    }
}

#[test]
fn a_loss_is_detected_while_a_worker_is_blocked() {
    for policy in POLICIES {
        let mut model = SpdystreamModel::new(policy);
        model.blocked_workers[3] = true;
        for _ in 0..10 {
            model.send(ScannedFrame::Stream(3));
        }
        assert!(model.wait(300));
        model.lost = true;
        assert!(!model.wait(15));
    }
}

#[test]
fn a_loss_is_detected_while_a_worker_is_blocked_and_others_carry_traffic() {
    for policy in POLICIES {
        let mut model = SpdystreamModel::new(policy);
        model.blocked_workers[3] = true;
        model.send(ScannedFrame::Stream(3));
        for turn in 0..600 {
            model.send(ScannedFrame::Stream(1));
            model.keepalive.on_received(model.now);
            assert!(model.wait_for(Duration::from_millis(300)), "{turn}");
        }
        model.lost = true;
        assert!(!model.wait(15));
    }
}

#[test]
fn a_loss_is_detected_during_interactive_traffic() {
    for policy in POLICIES {
        for each_second in [10, 60, 200] {
            for turns in 100..150 {
                let mut model = SpdystreamModel::new(policy);
                for _ in 0..turns {
                    model.send(ScannedFrame::Stream(1));
                    model.keepalive.on_received(model.now);
                    assert!(model.wait_for(Duration::from_secs(1) / each_second));
                }
                model.lost = true;
                assert!(!model.wait(15), "after {turns} of {each_second}");
            }
        }
    }
}

#[test]
fn with_avoid_near_eof_no_ping_is_sent_near_the_end_of_a_command() {
    let soon = CONFIG.interval / CONFIRM_DIVISOR;
    // Idle at first; then data is sent that may end the command.
    for pause in [0, 1, 9, 10, 11, 3600] {
        let mut model = SpdystreamModel::new(PingPolicy::AvoidNearEof);
        assert!(model.wait(pause));
        let count = model.count;
        model.send(ScannedFrame::Stream(1));
        assert_eq!(model.keepalive.next_deadline(), Some(model.now + soon));
        // The data is answered.
        assert!(model.wait_for(soon / 2));
        model.keepalive.on_received(model.now);
        assert!(model.wait_for(soon * 3 / 4));
        assert_eq!(model.count, count, "after {pause} s");
        assert!(model.wait_for(soon));
        assert_eq!(model.count, count + 5, "after {pause} s");
    }
    // Continuous output after the streams were opened.
    let mut model = SpdystreamModel::new(PingPolicy::AvoidNearEof);
    for id in [1, 3, 5] {
        model.send(ScannedFrame::SynStream(id));
    }
    receive_for(&mut model, 100_000);
    assert_eq!(model.count, 0);
    // The end of the output may arrive after a pause, on a slow path.
    for _ in 0..1000 {
        model.keepalive.on_received(model.now);
        assert!(model.wait(9));
        assert_eq!(model.count, 0);
    }
    assert!(model.wait(1));
    assert_eq!(model.count, 5);
    // Received data, and data that is not read yet, may be the last output.
    let events: [fn(&mut SpdyKeepalive, Instant); 2] =
        [SpdyKeepalive::on_received, SpdyKeepalive::on_read_paused];
    for on_event in events {
        let mut model = SpdystreamModel::new(PingPolicy::AvoidNearEof);
        model.send(ScannedFrame::Stream(1));
        assert!(model.wait(11));
        let count = model.count;
        for _ in 0..1000 {
            on_event(&mut model.keepalive, model.now);
            assert!(model.wait(9));
        }
        assert_eq!(model.count, count);
    }
}

#[test]
fn pings_precede_data() {
    let mut model = SpdystreamModel::new(PingPolicy::AvoidNearEof);
    for _ in 0..1000 {
        model.send(ScannedFrame::Stream(1));
        model.keepalive.on_received(model.now);
        assert!(model.wait_for(CONFIG.interval / CONFIRM_DIVISOR / 2));
        // The last frame is never followed by a ping.
        assert!(!model.keepalive.queues[worker_of(1)].answers_at_once());
    }
    assert!(model.count >= 5 * 300, "{}", model.count);
}

#[test]
fn connection_frames_and_replies_do_not_hide_a_loss() {
    for policy in POLICIES {
        for frame in [ScannedFrame::Connection, ScannedFrame::Ping(2)] {
            let mut model = SpdystreamModel::new(policy);
            // As window updates, or replies to a client's pings, while data is received.
            for _ in 0..1000 {
                model.send(frame);
                model.keepalive.on_received(model.now);
                assert!(model.wait(5));
            }
            model.lost = true;
            assert!(!model.wait(15));
        }
    }
}

#[test]
fn a_partly_answered_round_does_not_prevent_death() {
    for policy in POLICIES {
        let mut model = SpdystreamModel::new(policy);
        model.lost = true;
        assert!(model.wait(11));
        // Then it is lost.
        let first = *model.keepalive.outstanding.keys().next().unwrap();
        model.keepalive.on_received(model.now);
        model.keepalive.on_ping_received(first);
        let death = model.keepalive.dead_at();
        assert_eq!(death, Some(model.now + CONFIG.interval + CONFIG.timeout));
    }
}

#[test]
fn a_slow_network_is_not_declared_dead() {
    for policy in POLICIES {
        let mut model = SpdystreamModel::new(policy);
        // A ping behind a megabyte takes a while.
        model.lost = true;
        for _ in 0..30 {
            model
                .keepalive
                .on_sent(model.now, ScannedFrame::Stream(1), 32 * 1024);
            model.read(ScannedFrame::Stream(1));
        }
        assert!(model.wait(100));
        model.lost = false;
        model.run_workers();
        assert!(model.wait(30));
        model.lost = true;
        assert!(!model.wait(15));
    }
}

#[test]
fn a_short_stall_after_an_early_ping_is_not_death() {
    for policy in POLICIES {
        let mut model = SpdystreamModel::new(policy);
        model.send(ScannedFrame::SynStream(1));
        model.send(ScannedFrame::Stream(1));
        model.lost = true;
        assert!(model.wait(14));
        model.lost = false;
        model.run_workers();
        assert!(model.wait(100));
    }
}

#[test]
fn a_frame_is_sent_in_every_interval() {
    for policy in POLICIES {
        let mut model = SpdystreamModel::new(policy);
        model.blocked_workers[3] = true;
        model.send(ScannedFrame::Stream(3));
        for second in 0..4 * 3600 {
            assert!(model.wait(1));
            let quiet = model.now - model.keepalive.last_sent;
            assert!(quiet <= CONFIG.interval, "after {second} s");
        }
    }
}

#[test]
fn a_remote_is_not_declared_dead_while_reading_is_paused() {
    for policy in POLICIES {
        let mut model = SpdystreamModel::new(policy);
        model.replies_lost = true;
        for _ in 0..1000 {
            assert!(model.wait(4));
            let now = model.now;
            model.keepalive.on_read_paused(now);
        }
        assert!(model.keepalive.outstanding.len() <= FRAME_WORKERS * SpdystreamModel::QUEUE_FRAMES);
    }
}

#[test]
fn no_ping_follows_a_goaway() {
    for policy in POLICIES {
        let mut model = SpdystreamModel::new(policy);
        assert!(model.wait(10));
        model.keepalive.on_sent(model.now, ScannedFrame::GoAway, 16);
        assert_eq!(model.keepalive.next_deadline(), None);
        assert_eq!(
            model.keepalive.check(model.now + CONFIG.interval),
            SpdyKeepaliveAction::None
        );
    }
}

#[test]
fn remembered_pings_are_bounded() {
    let now = Instant::now();
    let mut keepalive = SpdyKeepalive::new(CONFIG, PingPolicy::Always, now);
    for id in 0..10_000 {
        keepalive.on_sent(now, ScannedFrame::Ping(id), 12);
    }
    assert_eq!(keepalive.outstanding.len(), MAX_OUTSTANDING_PINGS);
}

/// Data is received twice a second for this time.
fn receive_for(model: &mut SpdystreamModel, mut millis: u64) {
    while millis > 0 {
        let some = millis.min(500);
        model.keepalive.on_received(model.now);
        assert!(model.wait_for(Duration::from_millis(some)));
        millis -= some;
    }
}

#[test]
fn a_loss_is_detected_after_a_burst_while_data_is_received() {
    for (policy, inconclusive_ms) in [(PingPolicy::Always, 1000), (PingPolicy::AvoidNearEof, 5000)]
    {
        for after in (inconclusive_ms + 100..15_000).step_by(500) {
            let mut model = SpdystreamModel::new(policy);
            receive_for(&mut model, 3000);
            for _ in 0..8 {
                model
                    .keepalive
                    .on_sent(model.now, ScannedFrame::Stream(1), 16 * 1024);
                model.read(ScannedFrame::Stream(1));
            }
            receive_for(&mut model, after);
            model.lost = true;
            assert!(!model.wait(15), "{policy:?}: lost {after} ms later");
        }
    }
}

#[test]
fn a_loss_is_detected_after_all_workers_got_frames() {
    for (policy, inconclusive_ms) in [(PingPolicy::Always, 1000), (PingPolicy::AvoidNearEof, 5000)]
    {
        for after in (inconclusive_ms + 100..15_000).step_by(500) {
            let mut model = SpdystreamModel::new(policy);
            // As for a web page with its resources.
            for pair in 0..6 {
                for id in [4 * pair + 1, 4 * pair + 3] {
                    model.send(ScannedFrame::SynStream(id));
                    model.send(ScannedFrame::Stream(id));
                }
            }
            receive_for(&mut model, after);
            model.lost = true;
            assert!(!model.wait(15), "{policy:?}: lost {after} ms later");
        }
    }
}

#[test]
fn typing_while_output_is_not_read_is_confirmed_in_time() {
    let mut model = SpdystreamModel::new(PingPolicy::AvoidNearEof);
    for _ in 0..60 {
        model.keepalive.on_read_paused(model.now);
        model.send(ScannedFrame::Stream(1));
        for _ in 0..4 {
            model.keepalive.on_read_paused(model.now);
            assert!(model.wait_for(Duration::from_millis(250)));
        }
    }
    model.lost = true;
    assert!(!model.wait(15));
}

#[test]
fn with_always_a_frame_is_sent_in_each_interval() {
    let events: [fn(&mut SpdyKeepalive, Instant); 2] =
        [SpdyKeepalive::on_received, SpdyKeepalive::on_read_paused];
    for on_event in events {
        let mut model = SpdystreamModel::new(PingPolicy::Always);
        for second in 0..600 {
            on_event(&mut model.keepalive, model.now);
            assert!(model.wait(1));
            let quiet = model.now - model.keepalive.last_sent;
            assert!(quiet <= CONFIG.interval, "after {second} s");
        }
    }
}

#[test]
fn a_loss_during_typing_is_detected_as_fast_as_in_silence() {
    for (policy, is_blocked) in POLICIES
        .into_iter()
        .flat_map(|it| [(it, false), (it, true)])
    {
        for before in [1, 5, 9] {
            let mut model = SpdystreamModel::new(policy);
            if is_blocked {
                model.blocked_workers[3] = true;
                model.send(ScannedFrame::Stream(3));
            }
            assert!(model.wait(51));
            let last_received = model.keepalive.last_received;
            model.lost = true;
            // A keystroke shortly before a ping is due, and occasional ones after it.
            let next = model.keepalive.next_deadline().unwrap() - model.now;
            assert!(model.wait_for(next.saturating_sub(Duration::from_millis(100 * before))));
            let mut keys = 0;
            while model.wait_for(Duration::from_millis(100)) {
                keys += 1;
                if keys % 99 == 1 {
                    model.send(ScannedFrame::Stream(3));
                }
                assert!(keys < 1000, "the loss is never detected");
            }
            let silence = model.now - last_received;
            let bound = CONFIG.interval + CONFIG.timeout;
            assert!(silence <= bound, "{policy:?} {is_blocked}: {silence:?}");
        }
    }
}
