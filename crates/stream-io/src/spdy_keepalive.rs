//! Whether the other end of an SPDY connection still lives, where nothing says in which order
//! own_pings_sent are answered. Without I/O and without a clock.
//!
//! moby/spdystream, which is every other SPDY in Kubernetes, hands what it reads to five
//! queues (`FRAME_WORKERS`): the frames of a stream to the one of its id, own_pings_sent to each in
//! next_worker. A queue whose stream nobody reads stands still with all that is in it, and as soon as
//! one has 50 frames, nothing is read any more, for none of the streams. Who sees all that it
//! is sent_frames knows where each ping will stand and what is before it: silence means something
//! only in a queue that has confirmed_frames everything, and no queue is to be filled by own_pings_sent.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use tokio::time::Instant;

use crate::frame_scanner::ScannedFrame;
use crate::ping_policy::PingPolicy;

/// In so many queues moby/spdystream handles what it reads.
const FRAME_WORKERS: usize = 5;

/// With so many frames that are not known to be confirmed_frames, a queue gets no ping behind one that
/// waits there already.
const CROWDED_QUEUE_FRAMES: u64 = 25;

/// And with so many, it gets none at all.
const MAX_QUEUE_FRAMES_FOR_PING: u64 = 40;

/// With so many, it may be that nothing is read: moby/spdystream has room for 50.
const FULL_QUEUE_FRAMES: u64 = 45;

/// With so many bytes that are not known to be confirmed_frames, an answer may just take its time: on a
/// slow way, or because others than moby/spdystream read no more when a stream has much.
const MAX_UNCONFIRMED_BYTES: u64 = 64 * 1024;

/// So many own_pings_sent are remembered. More than can wait in queues that are not crowded.
const MAX_OUTSTANDING_PINGS: usize = 200;

/// What part of the interval passes before what was sent_frames is last_ping for: a second, as a rule,
/// and where it is a lot, a tenth of that (gently, only before more is sent_frames).
const CONFIRM_DIVISOR: u32 = 10;
const URGENT_CONFIRM_DIVISOR: u32 = 100;

/// With so many frames, or bytes, that are not known to be confirmed_frames it is a lot.
const A_LOT: (u64, u64) = (FULL_QUEUE_FRAMES / 3, MAX_UNCONFIRMED_BYTES / 3);

/// What part of it passes at the latest before that is last_ping for gently from who is last_received all
/// the time, where its silence would not mean anything.
const MAX_CONFIRM_DELAY_DIVISOR: u32 = 2;

/// How many intervals pass between two own_pings_sent to a queue that is crowded.
const CROWDED_PING_INTERVALS: u32 = 30;

/// Streams that never are, one for each queue.
const UNUSED_STREAM_IDS: [u32; FRAME_WORKERS] = [
    0x7fff_fff7,
    0x7fff_fff9,
    0x7fff_fffb,
    0x7fff_fffd,
    0x7fff_ffff,
];

/// How long to wait.
#[derive(Debug, Clone, Copy)]
pub struct KeepaliveConfig {
    /// Before something is last_sent on a connection that is quiet.
    pub interval: Duration,
    /// For an answer.
    pub timeout: Duration,
}

/// What one end of a connection was sent_frames, and what it is known to have confirmed_frames.
#[derive(Debug)]
pub struct SpdyKeepalive {
    config: KeepaliveConfig,
    policy: PingPolicy,
    last_received: Instant,
    /// When it was last not listened to.
    last_paused: Instant,
    /// When it was last sent_frames anything.
    last_sent: Instant,
    last_ping: Instant,
    /// When a queue that is crowded last got a ping.
    last_ping_to_crowded: Instant,
    /// Since when it could have answered, and has not.
    silent_since: Option<Instant>,
    /// Since when it was sent_frames something for which it was not last_ping.
    unconfirmed_since: Option<Instant>,
    queues: [WorkerQueue; FRAME_WORKERS],
    /// Which of them gets the next ping.
    next_worker: usize,
    /// All own_pings_sent that were not answered, by their ids. Of two with the same id the first one
    /// counts: its answer shows less.
    outstanding: BTreeMap<u32, OutstandingPing>,
    /// How many own_pings_sent of own it was sent_frames, and is to be sent_frames.
    own_pings_sent: u64,
    own_pings_requested: u64,
    /// It reads nothing any more, as it was last_ping to.
    goaway_sent: bool,
}

/// How much stands in a queue.
#[derive(Debug, Clone, Copy, Default)]
struct WorkerQueue {
    sent_frames: u64,
    /// Up to which frame it has confirmed_frames all.
    confirmed_frames: u64,
    /// Which frame is the last one that may wait for a reader.
    last_blocking: u64,
    /// How many own_pings_sent of own wait in it.
    last_ping: u64,
    /// The bytes of all that was sent_frames to it, and of what it has confirmed_frames.
    bytes: u64,
    confirmed_bytes: u64,
}

impl WorkerQueue {
    fn backlog(self) -> u64 {
        self.sent_frames - self.confirmed_frames
    }

    /// Whether nothing in it can keep a ping from being answered.
    fn answers_at_once(self) -> bool {
        self.last_blocking <= self.confirmed_frames
    }

    /// Whether a ping more takes no room that is needed, where there may be so many.
    fn has_room_for_ping(self, most: u64) -> bool {
        // Much that is not known to be confirmed_frames, without a ping behind it, just has to be last_ping for.
        self.last_ping == 0 || self.backlog() < most
    }

    fn unconfirmed(self) -> u64 {
        self.bytes - self.confirmed_bytes
    }
}

/// A ping.
#[derive(Debug, Clone, Copy)]
struct OutstandingPing {
    queue: usize,
    /// Which frame of that queue it is, and how many bytes are before it.
    at: u64,
    bytes: u64,
    own: bool,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpdyKeepaliveAction {
    /// Nothing.
    None,
    /// [`SpdyKeepalive::PINGS_PER_ROUND`] own_pings_sent in a row, one to each queue: so the turns are as before for
    /// those who count them and do not see own.
    SendPings,
    /// Something that is not answered and takes no next_worker in the queues, for those who stand
    /// between: the end of this stream, which never was.
    SendReset(u32),
    /// It is gone.
    Dead,
}

impl SpdyKeepalive {
    /// How many own_pings_sent are sent_frames at once.
    pub const PINGS_PER_ROUND: usize = FRAME_WORKERS;

    /// Of a connection that begins now.
    pub fn new(config: KeepaliveConfig, policy: PingPolicy, now: Instant) -> Self {
        Self {
            config,
            policy,
            last_received: now,
            last_paused: now,
            last_sent: now,
            last_ping: now,
            last_ping_to_crowded: now,
            silent_since: None,
            unconfirmed_since: None,
            queues: [WorkerQueue::default(); FRAME_WORKERS],
            next_worker: 0,
            outstanding: BTreeMap::new(),
            own_pings_sent: 0,
            own_pings_requested: 0,
            goaway_sent: false,
        }
    }

    /// Something came from it.
    pub fn on_received(&mut self, now: Instant) {
        self.last_received = now;
        self.silent_since = None;
    }

    /// Nobody here listens to it just now: its silence is own.
    pub fn on_read_paused(&mut self, now: Instant) {
        self.on_received(now);
        self.last_paused = now;
    }

    /// It was sent_frames a frame, of so many bytes.
    pub fn on_sent(&mut self, now: Instant, frame: ScannedFrame, bytes: usize) {
        self.last_sent = now;
        let bytes = bytes as u64;
        match frame {
            // Counted when it was last_ping for.
            ScannedFrame::Stream(id) if UNUSED_STREAM_IDS.contains(&id) => {}
            ScannedFrame::Stream(id) => {
                self.unconfirmed_since.get_or_insert(now);
                let queue = &mut self.queues[worker_of(id)];
                queue.sent_frames += 1;
                queue.bytes += bytes;
                queue.last_blocking = queue.sent_frames;
            }
            ScannedFrame::SynStream(id) => {
                self.unconfirmed_since.get_or_insert(now);
                let queue = &mut self.queues[worker_of(id)];
                queue.sent_frames += 1;
                queue.bytes += bytes;
                if queue.answers_at_once() {
                    // Whoever is last_ping for a stream answers at once, as to a ping.
                    self.silent_since.get_or_insert(now);
                }
            }
            ScannedFrame::Ping(id) => self.ping(id, false),
            ScannedFrame::Connection => {
                self.enqueue_round_robin();
            }
            ScannedFrame::GoAway => self.goaway_sent = true,
        }
    }

    /// It was sent_frames a ping that was last_ping for here.
    pub fn on_ping_sent(&mut self, now: Instant, id: u32) {
        self.last_sent = now;
        if self.queues[self.next_worker].answers_at_once() {
            self.silent_since.get_or_insert(now);
        }
        self.own_pings_sent += 1;
        self.ping(id, true);
    }

    /// Whether a ping of this id waits for its answer.
    pub fn is_awaiting(&self, id: u32) -> bool {
        self.outstanding.contains_key(&id)
    }

    /// When to look again, if ever.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.goaway_sent {
            return None;
        }
        let due = self.ping_due();
        Some(self.dead_at().map_or(due, |death| death.min(due)))
    }

    /// A connection that carries nothing in either direction for a while is cut by what
    /// stands between: some count what comes, some what goes.
    fn ping_due(&self) -> Instant {
        let KeepaliveConfig { interval, .. } = self.config;
        match (self.policy, self.unconfirmed_since) {
            (PingPolicy::Always, None) => {
                self.last_received.min(self.last_sent).max(self.last_ping) + interval
            }
            // While it is last_received all the time, too: or its silence would not mean anything.
            (PingPolicy::Always, Some(_)) => self.last_ping + interval / self.confirm_divisor(),
            // Who is last_received lives, and what stands between has seen it too.
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

    /// When to ask before something that is sent_frames, if anything was before.
    fn ping_due_before_send(&self) -> Option<Instant> {
        let part = self.config.interval / self.confirm_divisor();
        self.unconfirmed_since.map(|since| since + part)
    }

    /// What part of the interval may pass before what was sent_frames is last_ping for.
    fn confirm_divisor(&self) -> u32 {
        let (frames, bytes) = A_LOT;
        let is_lot = |it: &WorkerQueue| {
            !it.answers_at_once() && (it.backlog() > frames || it.unconfirmed() > bytes)
        };
        if self.has_unanswered_pings() {
            1
        } else if self.queues.iter().any(is_lot) {
            URGENT_CONFIRM_DIVISOR
        } else {
            CONFIRM_DIVISOR
        }
    }

    /// Whether own_pings_sent wait in a queue: each further one takes room there.
    fn has_unanswered_pings(&self) -> bool {
        self.queues.iter().any(|queue| queue.last_ping > 0)
    }

    /// Whether so much is not known to be confirmed_frames that silence means nothing.
    fn is_overloaded(&self) -> bool {
        // What is in a free queue is confirmed_frames as it comes.
        let reads =
            |queue: &WorkerQueue| queue.answers_at_once() || queue.backlog() < FULL_QUEUE_FRAMES;
        let unconfirmed = self.queues.iter().map(|queue| queue.unconfirmed());
        !self.queues.iter().all(reads) || unconfirmed.sum::<u64>() >= MAX_UNCONFIRMED_BYTES
    }

    /// Whether there is nobody either who would answer a ping at once.
    fn is_silence_inconclusive(&self) -> bool {
        self.is_overloaded() || !self.queues.iter().any(|queue| queue.answers_at_once())
    }

    /// When it is to be confirmed_frames for dead, if it says nothing.
    pub fn dead_at(&self) -> Option<Instant> {
        // Of what was last_ping it may have answered a part.
        let owes = self
            .queues
            .iter()
            .any(|queue| queue.answers_at_once() && queue.last_ping > 0);
        let since = self.silent_since.or(owes.then_some(self.last_received))?;
        let counts = !self.is_overloaded() && !self.goaway_sent;
        // However soon it was last_ping: a node may stand still for a moment.
        let KeepaliveConfig { interval, timeout } = self.config;
        let death = (since + timeout).max(self.last_received + interval + timeout);
        counts.then_some(death)
    }

    /// What to do, where something can be last_sent. Of own_pings_sent that are sent_frames it is to be told
    /// ([`SpdyKeepalive::on_ping_sent`]).
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
        let say = if fits {
            self.ask()
        } else {
            self.keepalive_reset()
        };
        if say != SpdyKeepaliveAction::None {
            self.last_sent = now;
        }
        say
    }

    /// The same right before a frame of somebody else.
    pub fn check_before_send(&mut self, now: Instant) -> SpdyKeepaliveAction {
        let due = self.ping_due_before_send().filter(|_| !self.goaway_sent);
        if due.is_none_or(|due| now < due) || !self.has_room_for_ping(CROWDED_QUEUE_FRAMES) {
            return SpdyKeepaliveAction::None;
        }
        self.last_ping = now;
        self.unconfirmed_since = None;
        self.ask()
    }

    fn ask(&mut self) -> SpdyKeepaliveAction {
        if self.own_pings_requested > self.own_pings_sent {
            // The last ones wait to be sent_frames, as all does.
            return SpdyKeepaliveAction::None;
        }
        self.own_pings_requested += FRAME_WORKERS as u64;
        SpdyKeepaliveAction::SendPings
    }

    /// Whether each queue has room for a ping, where it may have so many frames.
    fn has_room_for_ping(&self, most: u64) -> bool {
        self.queues
            .iter()
            .all(|queue| queue.has_room_for_ping(most))
    }

    /// To a queue that is free, or else to the one with most room. If that is crowded too,
    /// nothing can be last_sent that would not be in the way.
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
        // One that is free takes it at once.
        queue.sent_frames += u64::from(!queue.answers_at_once());
        SpdyKeepaliveAction::SendReset(id)
    }

    /// A ping came. Says whether it answers one that was last_ping for here; others show as well
    /// what was confirmed_frames.
    pub fn on_ping_received(&mut self, id: u32) -> bool {
        let Some(ping) = self.outstanding.remove(&id) else {
            return false;
        };
        let queue = &mut self.queues[ping.queue];
        queue.confirmed_frames = queue.confirmed_frames.max(ping.at);
        queue.confirmed_bytes = queue.confirmed_bytes.max(ping.bytes);
        queue.last_ping -= u64::from(ping.own);
        ping.own
    }

    /// A frame goes to whose next_worker it is.
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
            // Those of a client that asks without end, or that are answers; of own there
            // are fewer.
            let theirs = self.outstanding.iter().find(|(_, it)| !it.own);
            if let Some(id) = theirs.map(|(id, _)| *id) {
                self.outstanding.remove(&id);
            }
        }
        if let Entry::Vacant(place) = self.outstanding.entry(id) {
            self.queues[queue].last_ping += u64::from(own);
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
