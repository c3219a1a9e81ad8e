//! Keepalive of a WebSocket: when to ping, and when silence means that the other end is dead.
//! Without I/O and without a clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::ping_policy::PingPolicy;

/// The keepalive state of one WebSocket connection.
///
/// Silence means death only if the other end cannot be busy with data that it was sent: one
/// that waits for a process to read stdin, or for a terminal to scroll, may not read pings
/// either. Pongs come in the order of the messages, so each confirms all bytes before its
/// ping. A small amount is read in any case.
#[derive(Debug)]
pub struct WebSocketKeepalive {
    interval: Duration,
    /// How long a pong may take.
    timeout: Duration,
    last_received: Instant,
    last_paused: Instant,
    last_sent: Instant,
    last_ping: Instant,
    /// The first ping since bytes were last received.
    awaiting_pong_since: Option<Instant>,
    /// Bytes sent, where a short message counts as [`MIN_MESSAGE_WEIGHT`].
    sent_bytes: u64,
    /// How many of them pongs have confirmed.
    confirmed_bytes: u64,
    /// Since when there is data that no ping has followed.
    unconfirmed_since: Option<Instant>,
    policy: PingPolicy,
}

/// Unconfirmed bytes with which the other end still reads: half of a terminal's buffer, the
/// smallest on the path.
const MAX_UNCONFIRMED_BYTES: u64 = 2 * 1024;

/// The minimum weight of a message: buffers on the path may be limited by the number of messages,
/// not of bytes.
const MIN_MESSAGE_WEIGHT: u64 = 64;

/// Data is confirmed by a ping after `interval / CONFIRM_DIVISOR`: 1 s by default, in which
/// typing stays below [`MAX_UNCONFIRMED_BYTES`].
const CONFIRM_DIVISOR: u32 = 10;

/// Upper bound of that delay, as a divisor of the interval, with [`PingPolicy::AvoidNearEof`]
/// while data arrives all the time.
const MAX_CONFIRM_DELAY_DIVISOR: u32 = 2;

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebSocketKeepaliveAction {
    /// Nothing.
    None,
    /// Send a ping with this mark, which its pong returns.
    Ping(ByteMark),
    /// The other end is dead.
    Dead,
}

/// How many bytes had been sent before a ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteMark(pub u64);

impl WebSocketKeepalive {
    /// Starts as if bytes had just been received.
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

    /// Sets the ping policy.
    #[must_use]
    pub fn with_policy(self, policy: PingPolicy) -> Self {
        Self { policy, ..self }
    }

    /// Bytes were received.
    pub fn on_received(&mut self, now: Instant) {
        self.last_received = now;
        self.awaiting_pong_since = None;
    }

    /// The local side does not read now: silence does not count against the other end.
    pub fn on_read_paused(&mut self, now: Instant) {
        self.awaiting_pong_since = None;
        self.last_paused = now;
    }

    /// A message of this many bytes was sent.
    pub fn on_sent(&mut self, now: Instant, bytes: usize) {
        self.last_sent = now;
        self.unconfirmed_since.get_or_insert(now);
        self.sent_bytes += (bytes as u64).max(MIN_MESSAGE_WEIGHT);
    }

    /// A pong was received, which confirms all bytes before its ping.
    pub fn on_pong(&mut self, mark: ByteMark) {
        // Only bytes that were sent can be confirmed.
        self.confirmed_bytes = self.confirmed_bytes.max(mark.0.min(self.sent_bytes));
    }

    /// When to call [`Self::check`] again.
    pub fn next_deadline(&self) -> Instant {
        let ping = self.ping_due();
        self.dead_at().map_or(ping, |death| ping.min(death))
    }

    /// Since when a pong is possible and missing.
    fn unresponsive_since(&self) -> Option<Instant> {
        let idle = self.sent_bytes - self.confirmed_bytes <= MAX_UNCONFIRMED_BYTES;
        self.awaiting_pong_since.filter(|_| idle)
    }

    fn dead_at(&self) -> Option<Instant> {
        let since = self.unresponsive_since()?;
        // Also if the ping was sent early: the other end may stall for a moment.
        let (interval, timeout) = (self.interval, self.timeout);
        Some((since + timeout).max(self.last_received + interval + timeout))
    }

    /// Middleboxes close a connection that carries nothing in one direction for a while: some
    /// count received, some sent bytes.
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
                // Received data proves that the other end is alive, and middleboxes have seen
                // it too.
                let last_received = self.last_received.max(self.last_paused);
                let quiet = last_received.max(self.last_ping) + self.interval;
                let Some(since) = self.confirmation_due_since() else {
                    return quiet;
                };
                let settled = self.last_sent.max(last_received) + self.interval / CONFIRM_DIVISOR;
                // Otherwise silence would be inconclusive.
                let late = since.max(self.last_paused) + self.interval / MAX_CONFIRM_DELAY_DIVISOR;
                quiet.min(settled).min(late)
            }
        }
    }

    /// Since when data needs to be confirmed, before so much is unconfirmed that silence would
    /// be inconclusive: typing is echoed all the time, so no idle ping would go out.
    fn confirmation_due_since(&self) -> Option<Instant> {
        let is_large = self.sent_bytes - self.confirmed_bytes > MAX_UNCONFIRMED_BYTES / 2;
        self.unconfirmed_since.filter(|_| is_large)
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

    /// Like [`Self::check`], right before a message is sent.
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
    fn an_unresponsive_remote_is_pinged_and_then_declared_dead() {
        let (mut keepalive, at) = keepalive();
        assert_eq!(keepalive.next_deadline(), at(10));
        assert_eq!(keepalive.check(at(9)), WebSocketKeepaliveAction::None);
        assert_eq!(keepalive.check(at(10)), ping(0));
        assert_eq!(keepalive.next_deadline(), at(15));
        assert_eq!(keepalive.check(at(14)), WebSocketKeepaliveAction::None);
        assert_eq!(keepalive.check(at(15)), WebSocketKeepaliveAction::Dead);
    }

    #[test]
    fn a_remote_that_answers_pings_is_alive() {
        let (mut keepalive, at) = keepalive();
        for turn in 1..1000 {
            let now = at(10 * turn);
            assert_eq!(keepalive.check(now), ping(0));
            keepalive.on_received(now);
            keepalive.on_pong(ByteMark(0));
        }
    }

    #[test]
    fn a_remote_that_was_not_pinged_is_not_declared_dead() {
        // As after the machine was suspended.
        let (mut keepalive, at) = keepalive();
        assert_eq!(keepalive.check(at(3600)), ping(0));
        assert_eq!(keepalive.check(at(3604)), WebSocketKeepaliveAction::None);
        assert_eq!(keepalive.check(at(3605)), WebSocketKeepaliveAction::Dead);
    }

    #[test]
    fn a_remote_that_may_be_busy_with_data_is_not_declared_dead() {
        let (mut keepalive, at) = keepalive();
        keepalive.on_sent(at(1), 3000);
        assert_eq!(keepalive.check(at(11)), ping(3000));
        for turn in 3..100 {
            assert_eq!(keepalive.check(at(10 * turn)), ping(3000));
            assert_eq!(keepalive.next_deadline(), at(10 * turn + 10));
        }
        // After the pong, silence is conclusive again.
        keepalive.on_received(at(1000));
        keepalive.on_pong(ByteMark(3000));
        assert_eq!(keepalive.check(at(1010)), ping(3000));
        assert_eq!(keepalive.check(at(1015)), WebSocketKeepaliveAction::Dead);
    }

    #[test]
    fn a_pong_does_not_confirm_data_sent_after_its_ping() {
        let (mut keepalive, at) = keepalive();
        assert_eq!(keepalive.check(at(10)), ping(0));
        keepalive.on_sent(at(11), 3000);
        keepalive.on_received(at(12));
        keepalive.on_pong(ByteMark(0));
        assert_eq!(keepalive.check(at(22)), ping(3000));
        assert_eq!(keepalive.check(at(30)), WebSocketKeepaliveAction::None);
        keepalive.on_pong(ByteMark(0));
        assert_eq!(keepalive.check(at(31)), WebSocketKeepaliveAction::None);
        // A forged mark confirms no more than what was sent.
        keepalive.on_pong(ByteMark(u64::MAX));
        assert_eq!(keepalive.check(at(31)), WebSocketKeepaliveAction::Dead);
    }

    #[test]
    fn a_few_unconfirmed_bytes_do_not_delay_death() {
        let (mut keepalive, at) = keepalive();
        keepalive.on_sent(at(1), 2048);
        assert_eq!(keepalive.check(at(11)), ping(2048));
        assert_eq!(keepalive.check(at(16)), WebSocketKeepaliveAction::Dead);
    }

    #[test]
    fn a_remote_lost_during_typing_is_detected_as_fast_as_an_idle_one() {
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
                for action in [ahead, keepalive.check(now)] {
                    if let WebSocketKeepaliveAction::Ping(mark) = action {
                        keepalive.on_pong(mark);
                        pings += 1;
                    }
                }
            }
            assert!((30..=60).contains(&pings), "{pings}");
            let lost_at = now;
            let dead = loop {
                now = now.max(keepalive.next_deadline());
                if keepalive.check(now) == WebSocketKeepaliveAction::Dead {
                    break now;
                }
                assert!(now < lost_at + 10 * INTERVAL, "the loss is never detected");
            };
            assert!(dead <= lost_at + INTERVAL + TIMEOUT, "{:?}", dead - lost_at);
        }
    }

    #[test]
    fn many_short_messages_make_silence_inconclusive() {
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
    fn a_remote_is_not_declared_dead_while_reading_is_paused() {
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
    fn with_avoid_near_eof_pings_wait_for_idleness_or_precede_data() {
        let (gentle, at) = keepalive();
        let mut keepalive = gentle.with_policy(PingPolicy::AvoidNearEof);
        // The last output may be in flight, or not be read yet.
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
        // Data or its end may end the command.
        keepalive.on_received(at(300));
        keepalive.on_sent(at(300), 1500);
        assert_eq!(keepalive.next_deadline(), at(301));
        keepalive.on_received(at(301));
        assert_eq!(keepalive.check(at(301)), WebSocketKeepaliveAction::None);
        assert_eq!(keepalive.check(at(302)), ping(1500));
        keepalive.on_received(at(302));
        keepalive.on_pong(ByteMark(1500));
        // While data arrives all the time, a ping goes out at the upper bound.
        keepalive.on_received(at(400));
        keepalive.on_sent(at(400), 1500);
        let last_ping = (401..500).find(|second| {
            keepalive.on_received(at(*second));
            keepalive.check(at(*second)) != WebSocketKeepaliveAction::None
        });
        assert_eq!(last_ping, Some(405));
        keepalive.on_pong(ByteMark(3000));
        // Ahead of further data, a ping may go out at any time.
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
    fn a_long_timeout_allows_several_pings() {
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
    fn a_one_way_stream_is_pinged_too() {
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
