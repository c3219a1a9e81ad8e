//! Keepalive of an SPDY connection, where pings may be answered in any order. Without I/O and
//! without a clock.
//!
//! moby/spdystream, the only other SPDY implementation in Kubernetes, hands the frames that it
//! reads to five workers (`FRAME_WORKERS`): a frame of a stream to the worker of its stream
//! id, pings to the workers round-robin. A worker whose stream is not read by the application
//! blocks with its whole queue, and once one queue has 50 frames, the connection is not read
//! any more, for any stream. A sender that observes all frames can determine in which queue
//! each ping waits and behind what. Silence is therefore conclusive only for a queue whose frames are
//! all confirmed, and pings must not fill a queue.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use tokio::time::Instant;

use crate::frame_scanner::ScannedFrame;
use crate::ping_policy::PingPolicy;

/// How many workers handle the frames that moby/spdystream reads.
const FRAME_WORKERS: usize = 5;

/// Unconfirmed frames from which a queue gets no second ping.
const CROWDED_QUEUE_FRAMES: u64 = 25;

/// Unconfirmed frames from which a queue gets no ping at all.
const MAX_QUEUE_FRAMES_FOR_PING: u64 = 40;

/// Unconfirmed frames from which the remote may not read any more: moby/spdystream queues 50.
const FULL_QUEUE_FRAMES: u64 = 45;

/// Unconfirmed bytes from which a late reply is no sign of death: the network may be slow, and
/// implementations other than moby/spdystream stop reading when one stream has too much.
const MAX_UNCONFIRMED_BYTES: u64 = 64 * 1024;

/// Bound of the remembered pings: more than fit into queues that are not crowded.
const MAX_OUTSTANDING_PINGS: usize = 200;

/// Data is confirmed by a ping after `interval / CONFIRM_DIVISOR` (1 s by default), or after
/// `interval / URGENT_CONFIRM_DIVISOR` if much is unconfirmed (with
/// [`PingPolicy::AvoidNearEof`] only before further data).
const CONFIRM_DIVISOR: u32 = 10;
const URGENT_CONFIRM_DIVISOR: u32 = 100;

/// Unconfirmed frames and bytes of one queue from which confirmation is urgent.
const URGENT_BACKLOG: (u64, u64) = (FULL_QUEUE_FRAMES / 3, MAX_UNCONFIRMED_BYTES / 3);

/// Upper bound of the confirmation delay, as a divisor of the interval, with
/// [`PingPolicy::AvoidNearEof`] while data arrives all the time and silence would be
/// inconclusive.
const MAX_CONFIRM_DELAY_DIVISOR: u32 = 2;

/// How many intervals pass between two pings to a crowded queue.
const CROWDED_PING_INTERVALS: u32 = 30;

/// Ids of streams that are never opened, one for each worker.
const UNUSED_STREAM_IDS: [u32; FRAME_WORKERS] = [
    0x7fff_fff7,
    0x7fff_fff9,
    0x7fff_fffb,
    0x7fff_fffd,
    0x7fff_ffff,
];

/// Timing of keepalive pings.
#[derive(Debug, Clone, Copy)]
pub struct KeepaliveConfig {
    /// Idle time before a ping is sent.
    pub interval: Duration,
    /// How long a reply may take.
    pub timeout: Duration,
}

/// What was sent to the other end of a connection, and what it has confirmed by replies.
#[derive(Debug)]
pub struct SpdyKeepalive {
    config: KeepaliveConfig,
    policy: PingPolicy,
    last_received: Instant,
    /// When the local side last did not read.
    last_paused: Instant,
    /// When anything was last sent.
    last_sent: Instant,
    last_ping: Instant,
    /// When a crowded queue last got a ping.
    last_ping_to_crowded: Instant,
    /// Since when a reply is possible and missing.
    unresponsive_since: Option<Instant>,
    /// Since when there is data that no ping has followed.
    unconfirmed_since: Option<Instant>,
    queues: [WorkerQueue; FRAME_WORKERS],
    /// Which worker gets the next ping.
    next_worker: usize,
    /// All unanswered pings, by id. Of two with the same id the first is kept: its reply
    /// confirms less.
    outstanding: BTreeMap<u32, OutstandingPing>,
    /// Own pings that were sent, and that were requested.
    own_pings_sent: u64,
    own_pings_requested: u64,
    /// A GOAWAY was sent: moby/spdystream reads nothing after it.
    goaway_sent: bool,
}

/// The queue of one worker.
#[derive(Debug, Clone, Copy, Default)]
struct WorkerQueue {
    sent_frames: u64,
    /// All frames up to this one are confirmed.
    confirmed_frames: u64,
    /// The last frame that may block until the application reads.
    last_blocking: u64,
    /// Own pings that wait in the queue.
    own_pings: u64,
    /// The bytes of all frames that were sent to the queue, and of the confirmed ones.
    bytes: u64,
    confirmed_bytes: u64,
}

impl WorkerQueue {
    fn backlog(self) -> u64 {
        self.sent_frames - self.confirmed_frames
    }

    /// Whether nothing in the queue can delay the reply to a ping.
    fn answers_at_once(self) -> bool {
        self.last_blocking <= self.confirmed_frames
    }

    /// Whether one more ping fits, given this limit of unconfirmed frames.
    fn has_room_for_ping(self, limit: u64) -> bool {
        // A long backlog without a ping behind it only needs a ping to be confirmed.
        self.own_pings == 0 || self.backlog() < limit
    }

    fn unconfirmed(self) -> u64 {
        self.bytes - self.confirmed_bytes
    }
}

/// An unanswered ping.
#[derive(Debug, Clone, Copy)]
struct OutstandingPing {
    queue: usize,
    /// The position of the ping in its queue, in frames and in bytes.
    at: u64,
    bytes: u64,
    own: bool,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpdyKeepaliveAction {
    /// Nothing.
    None,
    /// [`SpdyKeepalive::PINGS_PER_ROUND`] pings in a row, one to each worker: a client that
    /// counts the round-robin without seeing these pings then still counts right.
    SendPings,
    /// A frame that is not answered and takes no round-robin turn, to keep middleboxes from
    /// closing the connection: the reset of this stream, which was never opened.
    SendReset(u32),
    /// The other end is dead.
    Dead,
}

impl SpdyKeepalive {
    /// How many pings are sent at once.
    pub const PINGS_PER_ROUND: usize = FRAME_WORKERS;

    /// For a connection that starts now.
    pub fn new(config: KeepaliveConfig, policy: PingPolicy, now: Instant) -> Self {
        Self {
            config,
            policy,
            last_received: now,
            last_paused: now,
            last_sent: now,
            last_ping: now,
            last_ping_to_crowded: now,
            unresponsive_since: None,
            unconfirmed_since: None,
            queues: [WorkerQueue::default(); FRAME_WORKERS],
            next_worker: 0,
            outstanding: BTreeMap::new(),
            own_pings_sent: 0,
            own_pings_requested: 0,
            goaway_sent: false,
        }
    }

    /// Bytes were received.
    pub fn on_received(&mut self, now: Instant) {
        self.last_received = now;
        self.unresponsive_since = None;
    }

    /// The local side does not read now: silence does not count against the other end.
    pub fn on_read_paused(&mut self, now: Instant) {
        self.on_received(now);
        self.last_paused = now;
    }

    /// A frame of this many bytes was sent.
    pub fn on_sent(&mut self, now: Instant, frame: ScannedFrame, bytes: usize) {
        self.last_sent = now;
        let bytes = bytes as u64;
        match frame {
            // Counted when it was requested.
            ScannedFrame::Stream(id) if UNUSED_STREAM_IDS.contains(&id) => {}
            ScannedFrame::Stream(id) => {
                self.unconfirmed_since.get_or_insert(now);
                let queue = &mut self.queues[worker_of(id)];
                queue.sent_frames += 1;
                queue.bytes += bytes;
                queue.last_blocking = queue.sent_frames;
            }
            ScannedFrame::SynStream(id) => {
                // With AvoidNearEof the SYN_REPLY is confirmation enough: a command without
                // input gets no ping in a pause of its output that is shorter than the
                // interval. A slow path may still carry the end of the output then.
                if self.policy == PingPolicy::Always {
                    self.unconfirmed_since.get_or_insert(now);
                }
                let queue = &mut self.queues[worker_of(id)];
                queue.sent_frames += 1;
                queue.bytes += bytes;
                if queue.answers_at_once() {
                    // A SYN_STREAM is answered at once, like a ping.
                    self.unresponsive_since.get_or_insert(now);
                }
            }
            ScannedFrame::Ping(id) => self.ping(id, false),
            ScannedFrame::Connection => {
                self.enqueue_round_robin();
            }
            ScannedFrame::GoAway => self.goaway_sent = true,
        }
    }

    /// A ping that this keepalive requested was sent.
    pub fn on_ping_sent(&mut self, now: Instant, id: u32) {
        self.last_sent = now;
        if self.queues[self.next_worker].answers_at_once() {
            self.unresponsive_since.get_or_insert(now);
        }
        self.own_pings_sent += 1;
        self.ping(id, true);
    }

    /// Whether a ping with this id is unanswered.
    pub fn is_awaiting(&self, id: u32) -> bool {
        self.outstanding.contains_key(&id)
    }

    /// When to call [`Self::check`] again, if ever.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.goaway_sent {
            return None;
        }
        let due = self.ping_due();
        Some(self.dead_at().map_or(due, |death| death.min(due)))
    }

    /// Middleboxes close a connection that carries nothing in one direction for a while: some
    /// count received, some sent bytes.
    fn ping_due(&self) -> Instant {
        let KeepaliveConfig { interval, .. } = self.config;
        match (self.policy, self.unconfirmed_since) {
            (PingPolicy::Always, None) => {
                self.last_received.min(self.last_sent).max(self.last_ping) + interval
            }
            // Also while data arrives all the time: otherwise later silence would be
            // inconclusive.
            (PingPolicy::Always, Some(_)) => self.last_ping + interval / self.confirm_divisor(),
            // Received data proves that the other end is alive, and middleboxes have seen it
            // too.
            (PingPolicy::AvoidNearEof, None) => self.last_received.max(self.last_ping) + interval,
            (PingPolicy::AvoidNearEof, Some(since)) => {
                let quiet = self.last_received.max(self.last_ping) + interval;
                let settled = self.last_sent.max(self.last_received)
                    + interval / self.confirm_divisor().min(CONFIRM_DIVISOR);
                let late = since.max(self.last_paused)
                    + interval / self.confirm_divisor().min(MAX_CONFIRM_DELAY_DIVISOR);
                let due = quiet.min(settled);
                if self.is_silence_inconclusive() {
                    due.min(late)
                } else {
                    due
                }
            }
        }
    }

    /// When to ping ahead of further data, if earlier data is unconfirmed.
    fn ping_due_before_send(&self) -> Option<Instant> {
        let part = self.config.interval / self.confirm_divisor();
        self.unconfirmed_since.map(|since| since + part)
    }

    /// The part of the interval after which data that was sent is confirmed by a ping.
    fn confirm_divisor(&self) -> u32 {
        let (frames, bytes) = URGENT_BACKLOG;
        let is_urgent = |it: &WorkerQueue| {
            !it.answers_at_once() && (it.backlog() > frames || it.unconfirmed() > bytes)
        };
        if self.has_unanswered_pings() {
            1
        } else if self.queues.iter().any(is_urgent) {
            URGENT_CONFIRM_DIVISOR
        } else {
            CONFIRM_DIVISOR
        }
    }

    /// Whether pings wait in a queue: each further one uses capacity there.
    fn has_unanswered_pings(&self) -> bool {
        self.queues.iter().any(|queue| queue.own_pings > 0)
    }

    /// Whether so much is unconfirmed that silence is inconclusive.
    fn is_overloaded(&self) -> bool {
        // A queue that answers at once handles its frames as they arrive.
        let reads =
            |queue: &WorkerQueue| queue.answers_at_once() || queue.backlog() < FULL_QUEUE_FRAMES;
        let unconfirmed = self.queues.iter().map(|queue| queue.unconfirmed());
        !self.queues.iter().all(reads) || unconfirmed.sum::<u64>() >= MAX_UNCONFIRMED_BYTES
    }

    /// Whether in addition no worker would answer a ping at once.
    fn is_silence_inconclusive(&self) -> bool {
        self.is_overloaded() || !self.queues.iter().any(|queue| queue.answers_at_once())
    }

    /// When the other end is considered dead if it sends nothing.
    pub fn dead_at(&self) -> Option<Instant> {
        // The last round may be answered in part.
        let owes = self
            .queues
            .iter()
            .any(|queue| queue.answers_at_once() && queue.own_pings > 0);
        let since = self
            .unresponsive_since
            .or(owes.then_some(self.last_received))?;
        let counts = !self.is_overloaded() && !self.goaway_sent;
        // Also if the ping was sent early: a node may stall for a moment.
        let KeepaliveConfig { interval, timeout } = self.config;
        let death = (since + timeout).max(self.last_received + interval + timeout);
        counts.then_some(death)
    }

    /// What to do where a frame may be sent. [`SpdyKeepalive::on_ping_sent`] is to be called
    /// for each ping.
    pub fn check(&mut self, now: Instant) -> SpdyKeepaliveAction {
        if self.goaway_sent {
            return SpdyKeepaliveAction::None;
        }
        if self.dead_at().is_some_and(|death| death <= now) {
            return SpdyKeepaliveAction::Dead;
        }
        if now < self.ping_due() {
            return SpdyKeepaliveAction::None;
        }
        self.last_ping = now;
        self.unconfirmed_since = None;
        let mut fits = self.has_room_for_ping(CROWDED_QUEUE_FRAMES);
        if !fits && now >= self.last_ping_to_crowded + CROWDED_PING_INTERVALS * self.config.interval
        {
            self.last_ping_to_crowded = now;
            fits = self.has_room_for_ping(MAX_QUEUE_FRAMES_FOR_PING);
        }
        let action = if fits {
            self.request_pings()
        } else {
            self.keepalive_reset()
        };
        if action != SpdyKeepaliveAction::None {
            self.last_sent = now;
        }
        action
    }

    /// Like [`Self::check`], right before a frame that does not come from this keepalive.
    pub fn check_before_send(&mut self, now: Instant) -> SpdyKeepaliveAction {
        let due = self.ping_due_before_send().filter(|_| !self.goaway_sent);
        if due.is_none_or(|due| now < due) || !self.has_room_for_ping(CROWDED_QUEUE_FRAMES) {
            return SpdyKeepaliveAction::None;
        }
        self.last_ping = now;
        self.unconfirmed_since = None;
        self.request_pings()
    }

    fn request_pings(&mut self) -> SpdyKeepaliveAction {
        if self.own_pings_requested > self.own_pings_sent {
            // The pings of the last request wait to be sent, like everything else.
            return SpdyKeepaliveAction::None;
        }
        self.own_pings_requested += FRAME_WORKERS as u64;
        SpdyKeepaliveAction::SendPings
    }

    /// Whether each queue has capacity for one more ping, given this limit of unconfirmed frames.
    fn has_room_for_ping(&self, limit: u64) -> bool {
        self.queues
            .iter()
            .all(|queue| queue.has_room_for_ping(limit))
    }

    /// Goes to a queue that answers at once, or else to the shortest one. If that is crowded
    /// too, any frame would do harm.
    fn keepalive_reset(&mut self) -> SpdyKeepaliveAction {
        let free = |id: &u32| self.queues[worker_of(*id)].answers_at_once();
        let backlog = |id: &u32| self.queues[worker_of(*id)].backlog();
        let id = UNUSED_STREAM_IDS.into_iter().find(free).or_else(|| {
            let emptiest = UNUSED_STREAM_IDS.into_iter().min_by_key(backlog);
            emptiest.filter(|id| backlog(id) < CROWDED_QUEUE_FRAMES)
        });
        let Some(id) = id else {
            return SpdyKeepaliveAction::None;
        };
        let queue = &mut self.queues[worker_of(id)];
        // A queue that answers at once handles it at once.
        queue.sent_frames += u64::from(!queue.answers_at_once());
        SpdyKeepaliveAction::SendReset(id)
    }

    /// A ping was received. Returns whether it answers an own ping; others confirm frames as
    /// well.
    pub fn on_ping_received(&mut self, id: u32) -> bool {
        let Some(ping) = self.outstanding.remove(&id) else {
            return false;
        };
        let queue = &mut self.queues[ping.queue];
        queue.confirmed_frames = queue.confirmed_frames.max(ping.at);
        queue.confirmed_bytes = queue.confirmed_bytes.max(ping.bytes);
        queue.own_pings -= u64::from(ping.own);
        ping.own
    }

    /// Assigns a frame to the next worker, round-robin.
    fn enqueue_round_robin(&mut self) -> (usize, u64) {
        let at = self.next_worker;
        self.next_worker = (at + 1) % FRAME_WORKERS;
        let queue = &mut self.queues[at];
        queue.sent_frames += 1;
        (at, queue.sent_frames)
    }

    fn ping(&mut self, id: u32, own: bool) {
        let (queue, at) = self.enqueue_round_robin();
        if self.outstanding.len() >= MAX_OUTSTANDING_PINGS {
            // These are pings of a client that sends them without end, or replies; own pings
            // are fewer.
            let foreign_ping = self.outstanding.iter().find(|(_, it)| !it.own);
            if let Some(id) = foreign_ping.map(|(id, _)| *id) {
                self.outstanding.remove(&id);
            }
        }
        if let Entry::Vacant(place) = self.outstanding.entry(id) {
            self.queues[queue].own_pings += u64::from(own);
            let bytes = self.queues[queue].bytes;
            let ping = OutstandingPing {
                queue,
                at,
                bytes,
                own,
            };
            place.insert(ping);
        }
    }
}

fn worker_of(stream: u32) -> usize {
    stream as usize % FRAME_WORKERS
}

#[cfg(test)]
mod tests;
