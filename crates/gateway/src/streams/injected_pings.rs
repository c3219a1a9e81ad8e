//! Pings that are put between the frames of an SPDY connection that is passed on: without
//! them nobody would know that who is at its end is gone, and what stands between would cut
//! it when it is quiet.

use bytes::{Bytes, BytesMut};
use skewbridge_spdy::frame::{Ping, ResetStatus, RstStream, StreamId};
use skewbridge_stream_io::{
    KeepaliveConfig, PingPolicy, ScannedFrame, SpdyKeepalive, SpdyKeepaliveAction,
};
use tokio::time::Instant;

/// The ids of ours are the last quarter of all, where those who count up from 1 or 2 never
/// come: one every second would take them a century.
const FIRST: u32 = 0xc000_0000;

/// After so many the ids are taken from the first one on.
const IDS: u64 = 1 << 29;

/// Whose pings they pass for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PingRole {
    /// They are odd (SPDY/3.1, 2.6.5), and go to a server.
    Client,
    /// They are even.
    Server,
}

/// The pings to one end of a connection.
#[derive(Debug)]
pub(crate) struct InjectedPings {
    whose: PingRole,
    traffic: SpdyKeepalive,
    /// How many have been sent.
    count: u64,
}

impl InjectedPings {
    pub(crate) fn new(whose: PingRole, pace: KeepaliveConfig, now: Instant) -> Self {
        Self {
            whose,
            traffic: SpdyKeepalive::new(pace, PingPolicy::Always, now),
            count: 0,
        }
    }

    /// Something came from it.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.traffic.on_received(now);
    }

    /// Nobody here listens to it just now: its silence is ours.
    pub(crate) fn excuse(&mut self, now: Instant) {
        self.traffic.on_read_paused(now);
    }

    /// It was sent a frame of somebody else, of so many bytes.
    pub(crate) fn sent(&mut self, now: Instant, frame: ScannedFrame, bytes: usize) {
        self.traffic.on_sent(now, frame, bytes);
    }

    /// When it is to be taken for dead, if it says nothing.
    pub(crate) fn death(&self) -> Option<Instant> {
        self.traffic.dead_at()
    }

    /// When to look again, if ever.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.traffic.next_deadline()
    }

    /// What is to be said now, between two frames. To the dead, nothing.
    pub(crate) fn look(&mut self, now: Instant) -> Bytes {
        let mut frames = BytesMut::new();
        match self.traffic.check(now) {
            SpdyKeepaliveAction::None | SpdyKeepaliveAction::Dead => {}
            SpdyKeepaliveAction::SendPings => {
                for _ in 0..SpdyKeepalive::PINGS_PER_ROUND {
                    let id = self.id();
                    Ping { id }.encode(&mut frames);
                    self.traffic.on_ping_sent(now, id);
                }
            }
            SpdyKeepaliveAction::SendReset(id) => {
                if let Some(stream) = StreamId::new(id) {
                    let status = ResetStatus::Cancel;
                    RstStream { stream, status }.encode(&mut frames);
                }
            }
        }
        frames.freeze()
    }

    /// A ping came. Says whether it answers one of ours. The client's own that happens to have
    /// its id is answered as well: each is taken once.
    pub(crate) fn is_answer(&mut self, id: u32) -> bool {
        self.traffic.on_ping_received(id)
    }

    /// For the next one.
    fn id(&mut self) -> u32 {
        let odd = u32::from(self.whose == PingRole::Client);
        loop {
            // There are fewer than a quarter of all.
            let nth = u32::try_from(self.count % IDS).unwrap_or_default();
            self.count += 1;
            let id = FIRST + 2 * nth + odd;
            if !self.traffic.is_awaiting(id) {
                return id;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use skewbridge_stream_io::FrameScanner;

    use super::*;

    const PACE: KeepaliveConfig = KeepaliveConfig {
        interval: Duration::from_secs(10),
        timeout: Duration::from_secs(5),
    };

    fn frames(bytes: &[u8]) -> Vec<ScannedFrame> {
        let mut frames = Vec::new();
        let mut scanner = FrameScanner::default();
        scanner.scan(bytes, |frame, _| frames.push(frame));
        assert!(scanner.at_frame_boundary());
        frames
    }

    #[test]
    fn an_answer_is_taken_once_and_by_its_side() {
        for (whose, odd) in [(PingRole::Client, 1), (PingRole::Server, 0)] {
            let now = Instant::now();
            let mut pings = InjectedPings::new(whose, PACE, now);
            let id = FIRST + odd;
            assert!(!pings.is_answer(id), "nobody has asked");
            let said = pings.look(now + PACE.interval);
            let ids = (0..5).map(|nth| ScannedFrame::Ping(id + 2 * nth));
            assert_eq!(frames(&said), ids.collect::<Vec<_>>());
            assert!(!pings.is_answer(1), "the client's own");
            // Also one that has the same id by chance.
            pings.sent(now, ScannedFrame::Ping(id), 12);
            assert!(pings.is_answer(id));
            assert!(!pings.is_answer(id));
        }
    }

    #[test]
    fn ids_do_not_end_and_are_not_taken_twice() {
        for (whose, odd) in [(PingRole::Client, 1), (PingRole::Server, 0)] {
            let now = Instant::now();
            let mut pings = InjectedPings::new(whose, PACE, now);
            pings.count = IDS - 1;
            assert_eq!(pings.id(), 0xffff_fffe + odd);
            assert_eq!(pings.id(), FIRST + odd);
            pings.sent(now, ScannedFrame::Ping(FIRST + 2 + odd), 12);
            assert_eq!(pings.id(), FIRST + 4 + odd, "the client waits for one");
        }
    }

    #[test]
    fn what_stands_between_hears_something_where_no_ping_can_go() {
        let start = Instant::now();
        let mut pings = InjectedPings::new(PingRole::Client, PACE, start);
        // A stream of the first lane, which gets the first ping, is not read.
        for _ in 0..30 {
            pings.sent(start, ScannedFrame::Stream(5), 100);
        }
        let mut now = start;
        let mut said = Vec::new();
        for _ in 0..20 {
            now = now.max(pings.next().unwrap());
            said = frames(&pings.look(now));
            for frame in &said {
                if let ScannedFrame::Ping(id) = frame
                    && !((id - FIRST) / 2).is_multiple_of(5)
                {
                    assert!(pings.is_answer(*id));
                    pings.heard(now);
                }
            }
        }
        let [ScannedFrame::Stream(id)] = said[..] else {
            panic!("{said:?}");
        };
        assert!(id > 0x7fff_fff0 && id % 5 != 0, "{id:x}");
    }
}
