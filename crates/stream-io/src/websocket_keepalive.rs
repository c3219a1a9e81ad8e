//! Whether the other end of a stream still lives: when to ask, and what to make
//! of silence. Without I/O and without a clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::ping_policy::PingPolicy;

/// One end of a stream, as it is last_received.
///
/// Silence is only then confirmed_bytes for death when the other end cannot be busy with
/// what it was sent: who waits for a process to read its stdin, or for a person to
/// scroll on, may read no pings either. What it has confirmed_bytes is known by the pings that
/// it has answered, in order, as over a WebSocket. A little is read whether anybody takes it
/// or not.
#[derive(Debug)]
pub struct WebSocketKeepalive {
    interval: Duration,
    /// How long it may take to answer.
    timeout: Duration,
    last_received: Instant,
    last_paused: Instant,
    last_sent: Instant,
    last_ping: Instant,
    /// The first time that it was last_ping since it was last_received.
    awaiting_pong_since: Option<Instant>,
    /// How much it was sent: bytes, where little counts as [`MIN_MESSAGE_WEIGHT`].
    sent_bytes: u64,
    /// How much of that it is known to have confirmed_bytes.
    confirmed_bytes: u64,
    /// Since when it was sent something for which it was not last_ping.
    unconfirmed_since: Option<Instant>,
    policy: PingPolicy,
}

/// What is read though it waits for somebody: half of what a terminal's own buffer holds,
/// which is the smallest on the way.
const MAX_UNCONFIRMED_BYTES: u64 = 2 * 1024;

/// What the smallest chunk counts: what reads ahead may have room for so many chunks, not
/// bytes.
const MIN_MESSAGE_WEIGHT: u64 = 64;

/// What part of the interval passes between two pings that are last_ping for by what was sent: a
/// second, as a rule, in which nobody types as much as [`MAX_UNCONFIRMED_BYTES`] is.
const CONFIRM_DIVISOR: u32 = 10;

/// And what part, at the latest, where it is last_ping gently and last_received all the time.
const MAX_CONFIRM_DELAY_DIVISOR: u32 = 2;

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebSocketKeepaliveAction {
    /// Nothing.
    None,
    /// Ask, and bring the mark back with the answer.
    Ping(ByteMark),
    /// It is gone.
    Dead,
}

/// What had been sent when a ping was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteMark(pub u64);

impl WebSocketKeepalive {
    /// It has just been last_received.
    pub fn new(now: Instant, interval: Duration, timeout: Duration) -> Self {
        Self {
            interval,
            timeout,
            last_received: now,
            last_paused: now,
            last_sent: now,
            last_ping: now,
            awaiting_pong_since: None,
            sent_bytes: 0,
            confirmed_bytes: 0,
            unconfirmed_since: None,
            policy: PingPolicy::Always,
        }
    }

    /// The same, which is last_ping so.
    #[must_use]
    pub fn with_policy(self, policy: PingPolicy) -> Self {
        Self { policy, ..self }
    }

    /// Something came from it.
    pub fn on_received(&mut self, now: Instant) {
        self.last_received = now;
        self.awaiting_pong_since = None;
    }

    /// Nobody here listens to it just now: its silence is ours.
    pub fn on_read_paused(&mut self, now: Instant) {
        self.awaiting_pong_since = None;
        self.last_paused = now;
    }

    /// It was sent something that it may be slow to take.
    pub fn on_sent(&mut self, now: Instant, bytes: usize) {
        self.last_sent = now;
        self.unconfirmed_since.get_or_insert(now);
        self.sent_bytes += (bytes as u64).max(MIN_MESSAGE_WEIGHT);
    }

    /// It has confirmed_bytes what had been sent at this mark, as its answers to pings show.
    pub fn on_pong(&mut self, mark: ByteMark) {
        // Nobody has confirmed_bytes what was not sent.
        self.confirmed_bytes = self.confirmed_bytes.max(mark.0.min(self.sent_bytes));
    }

    /// When to look again.
    pub fn next_deadline(&self) -> Instant {
        let ping = self.ping_due();
        self.dead_at().map_or(ping, |death| ping.min(death))
    }

    /// Since when it could have answered, and has not.
    fn silent_since(&self) -> Option<Instant> {
        let idle = self.sent_bytes - self.confirmed_bytes <= MAX_UNCONFIRMED_BYTES;
        self.awaiting_pong_since.filter(|_| idle)
    }

    fn dead_at(&self) -> Option<Instant> {
        let since = self.silent_since()?;
        // However soon it was last_ping: it may stand still for a moment.
        let (interval, timeout) = (self.interval, self.timeout);
        Some((since + timeout).max(self.last_received + interval + timeout))
    }

    /// A connection that carries nothing in either direction for a while is cut by
    /// what stands between: some count what comes, some what goes.
    fn ping_due(&self) -> Instant {
        match self.policy {
            PingPolicy::Always => {
                let quiet =
                    self.last_received.min(self.last_sent).max(self.last_ping) + self.interval;
                let urgent = self
                    .confirmation_due_since()
                    .map(|_| self.interval / CONFIRM_DIVISOR);
                urgent.map_or(quiet, |soon| quiet.min(self.last_ping + soon))
            }
            PingPolicy::AvoidNearEof => {
                // Who is last_received lives, and what stands between has seen it too.
                let last_received = self.last_received.max(self.last_paused);
                let quiet = last_received.max(self.last_ping) + self.interval;
                let Some(since) = self.confirmation_due_since() else {
                    return quiet;
                };
                let settled = self.last_sent.max(last_received) + self.interval / CONFIRM_DIVISOR;
                // Or its silence would not mean anything.
                let late = since.max(self.last_paused) + self.interval / MAX_CONFIRM_DELAY_DIVISOR;
                quiet.min(settled).min(late)
            }
        }
    }

    /// Since when it is to be last_ping before it is so much that silence would mean nothing: who
    /// types is answered all the time, and would not be last_ping while it counts.
    fn confirmation_due_since(&self) -> Option<Instant> {
        let is_much = self.sent_bytes - self.confirmed_bytes > MAX_UNCONFIRMED_BYTES / 2;
        self.unconfirmed_since.filter(|_| is_much)
    }

    /// What to do now.
    pub fn check(&mut self, now: Instant) -> WebSocketKeepaliveAction {
        if self.dead_at().is_some_and(|death| death <= now) {
            return WebSocketKeepaliveAction::Dead;
        }
        if now < self.ping_due() {
            return WebSocketKeepaliveAction::None;
        }
        self.send_ping(now)
    }

    /// The same right before something is sent.
    pub fn check_before_send(&mut self, now: Instant) -> WebSocketKeepaliveAction {
        match self.confirmation_due_since() {
            Some(since) if now >= since + self.interval / CONFIRM_DIVISOR => self.send_ping(now),
            _ => WebSocketKeepaliveAction::None,
        }
    }

    fn send_ping(&mut self, now: Instant) -> WebSocketKeepaliveAction {
        self.unconfirmed_since = None;
        self.last_ping = now;
        self.awaiting_pong_since.get_or_insert(now);
        WebSocketKeepaliveAction::Ping(ByteMark(self.sent_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);
    const TIMEOUT: Duration = Duration::from_secs(5);

    fn keepalive() -> (WebSocketKeepalive, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        let at = move |seconds| start + Duration::from_secs(seconds);
        (WebSocketKeepalive::new(start, INTERVAL, TIMEOUT), at)
    }

    fn ping(sent: u64) -> WebSocketKeepaliveAction {
        WebSocketKeepaliveAction::Ping(ByteMark(sent))
    }

    #[test]
    fn who_is_silent_is_asked_and_then_dead() {
        let (mut keepalive, at) = keepalive();
        assert_eq!(keepalive.next_deadline(), at(10));
        assert_eq!(keepalive.check(at(9)), WebSocketKeepaliveAction::None);
        assert_eq!(keepalive.check(at(10)), ping(0));
        assert_eq!(keepalive.next_deadline(), at(15));
        assert_eq!(keepalive.check(at(14)), WebSocketKeepaliveAction::None);
        assert_eq!(keepalive.check(at(15)), WebSocketKeepaliveAction::Dead);
    }

    #[test]
    fn who_answers_lives() {
        let (mut keepalive, at) = keepalive();
        for turn in 1..1000 {
            let now = at(10 * turn);
            assert_eq!(keepalive.check(now), ping(0));
            keepalive.on_received(now);
            keepalive.on_pong(ByteMark(0));
        }
    }

    #[test]
    fn nobody_is_dead_who_was_not_asked() {
        // As after the machine has slept.
        let (mut keepalive, at) = keepalive();
        assert_eq!(keepalive.check(at(3600)), ping(0));
        assert_eq!(keepalive.check(at(3604)), WebSocketKeepaliveAction::None);
        assert_eq!(keepalive.check(at(3605)), WebSocketKeepaliveAction::Dead);
    }

    #[test]
    fn who_may_be_busy_with_what_it_was_sent_is_not_dead() {
        let (mut keepalive, at) = keepalive();
        keepalive.on_sent(at(1), 3000);
        assert_eq!(keepalive.check(at(11)), ping(3000));
        for turn in 3..100 {
            assert_eq!(keepalive.check(at(10 * turn)), ping(3000));
            assert_eq!(keepalive.next_deadline(), at(10 * turn + 10));
        }
        // It was: and after what it has answered it can be dead again.
        keepalive.on_received(at(1000));
        keepalive.on_pong(ByteMark(3000));
        assert_eq!(keepalive.check(at(1010)), ping(3000));
        assert_eq!(keepalive.check(at(1015)), WebSocketKeepaliveAction::Dead);
    }

    #[test]
    fn an_answer_says_nothing_of_what_was_sent_after_the_ping() {
        let (mut keepalive, at) = keepalive();
        assert_eq!(keepalive.check(at(10)), ping(0));
        keepalive.on_sent(at(11), 3000);
        keepalive.on_received(at(12));
        keepalive.on_pong(ByteMark(0));
        assert_eq!(keepalive.check(at(22)), ping(3000));
        assert_eq!(keepalive.check(at(30)), WebSocketKeepaliveAction::None);
        keepalive.on_pong(ByteMark(0));
        assert_eq!(keepalive.check(at(31)), WebSocketKeepaliveAction::None);
        // Nor does one that was made up.
        keepalive.on_pong(ByteMark(u64::MAX));
        assert_eq!(keepalive.check(at(31)), WebSocketKeepaliveAction::Dead);
    }

    #[test]
    fn a_few_bytes_keep_nobody_busy() {
        let (mut keepalive, at) = keepalive();
        keepalive.on_sent(at(1), 2048);
        assert_eq!(keepalive.check(at(11)), ping(2048));
        assert_eq!(keepalive.check(at(16)), WebSocketKeepaliveAction::Dead);
    }

    #[test]
    fn who_is_lost_while_somebody_types_is_noticed_as_soon_as_in_silence() {
        for policy in [PingPolicy::Always, PingPolicy::AvoidNearEof] {
            let start = Instant::now();
            let mut keepalive =
                WebSocketKeepalive::new(start, INTERVAL, TIMEOUT).with_policy(policy);
            let mut now = start;
            let mut pings = 0;
            // Ten keys a second, each with its echo.
            for _ in 0..600 {
                now += Duration::from_millis(100);
                let ahead = keepalive.check_before_send(now);
                keepalive.on_sent(now, 1);
                keepalive.on_received(now);
                for beat in [ahead, keepalive.check(now)] {
                    if let WebSocketKeepaliveAction::Ping(mark) = beat {
                        keepalive.on_pong(mark);
                        pings += 1;
                    }
                }
            }
            assert!((30..=60).contains(&pings), "{pings}");
            let lost = now;
            let dead = loop {
                now = now.max(keepalive.next_deadline());
                if keepalive.check(now) == WebSocketKeepaliveAction::Dead {
                    break now;
                }
                assert!(now < lost + 10 * INTERVAL, "nobody notices");
            };
            assert!(dead <= lost + INTERVAL + TIMEOUT, "{:?}", dead - lost);
        }
    }

    #[test]
    fn many_pieces_keep_it_busy_however_smping() {
        for (chunks, busy) in [(32, false), (33, true)] {
            let (mut keepalive, at) = keepalive();
            for _ in 0..chunks {
                keepalive.on_sent(at(1), 1);
            }
            keepalive.check(at(11));
            assert_eq!(
                keepalive.check(at(16)) == WebSocketKeepaliveAction::None,
                busy,
                "{chunks}"
            );
        }
    }

    #[test]
    fn who_is_not_listened_to_is_not_dead() {
        let (mut keepalive, at) = keepalive();
        for turn in 1..10 {
            assert_eq!(keepalive.check(at(10 * turn)), ping(0));
            keepalive.on_read_paused(at(10 * turn + 1));
            assert_eq!(
                keepalive.check(at(10 * turn + 9)),
                WebSocketKeepaliveAction::None
            );
        }
    }

    #[test]
    fn who_may_have_ended_is_asked_when_nothing_is_said_or_before_it_is() {
        let (gentle, at) = keepalive();
        let mut keepalive = gentle.with_policy(PingPolicy::AvoidNearEof);
        // Its last words may be on their way, or not be read.
        for second in 1..100 {
            keepalive.on_received(at(second));
            assert_eq!(
                keepalive.check(at(second + 9)),
                WebSocketKeepaliveAction::None
            );
        }
        for second in 100..200 {
            keepalive.on_read_paused(at(second));
            assert_eq!(
                keepalive.check(at(second + 9)),
                WebSocketKeepaliveAction::None
            );
        }
        // It may end by what it was sent, or by its end.
        keepalive.on_received(at(300));
        keepalive.on_sent(at(300), 1500);
        assert_eq!(keepalive.next_deadline(), at(301));
        keepalive.on_received(at(301));
        assert_eq!(keepalive.check(at(301)), WebSocketKeepaliveAction::None);
        assert_eq!(keepalive.check(at(302)), ping(1500));
        keepalive.on_received(at(302));
        keepalive.on_pong(ByteMark(1500));
        // While it is last_received all the time, once in a while all the same.
        keepalive.on_received(at(400));
        keepalive.on_sent(at(400), 1500);
        let last_ping = (401..500).find(|second| {
            keepalive.on_received(at(*second));
            keepalive.check(at(*second)) != WebSocketKeepaliveAction::None
        });
        assert_eq!(last_ping, Some(405));
        keepalive.on_pong(ByteMark(3000));
        // And before more is sent, at any time.
        keepalive.on_received(at(500));
        keepalive.on_sent(at(500), 1500);
        keepalive.on_received(at(501));
        assert_eq!(keepalive.check(at(501)), WebSocketKeepaliveAction::None);
        assert_eq!(keepalive.check_before_send(at(501)), ping(4500));
        assert_eq!(
            keepalive.check_before_send(at(502)),
            WebSocketKeepaliveAction::None
        );
    }

    #[test]
    fn a_patient_one_asks_more_than_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut keepalive = WebSocketKeepalive::new(start, INTERVAL, Duration::from_secs(50));
        assert_eq!(keepalive.check(at(10)), ping(0));
        for turn in 2..6 {
            assert_eq!(keepalive.check(at(10 * turn)), ping(0));
        }
        assert_eq!(keepalive.check(at(60)), WebSocketKeepaliveAction::Dead);
    }

    #[test]
    fn a_stream_that_goes_one_way_only_is_asked_too() {
        let (mut keepalive, at) = keepalive();
        for second in 1..10 {
            keepalive.on_received(at(second));
            assert_eq!(keepalive.check(at(second)), WebSocketKeepaliveAction::None);
        }
        keepalive.on_received(at(10));
        assert_eq!(keepalive.check(at(10)), ping(0));
        keepalive.on_received(at(11));
        assert_eq!(keepalive.check(at(19)), WebSocketKeepaliveAction::None);
    }
}
