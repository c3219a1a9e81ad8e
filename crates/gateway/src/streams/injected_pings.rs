//! Pings that are injected between the frames of a relayed SPDY connection: without them a
//! dead end would not be detected, and middleboxes would close the connection when it is idle.

use bytes::{Bytes, BytesMut};
use skewbridge_spdy::frame::{Ping, ResetStatus, RstStream, StreamId};
use skewbridge_stream_io::{
    KeepaliveConfig, PingPolicy, ScannedFrame, SpdyKeepalive, SpdyKeepaliveAction,
};
use tokio::time::Instant;

/// Ids of injected pings are the last quarter of all ids, which an end that counts up from 1
/// or 2 never reaches: at one per second it would take a century.
const FIRST_ID: u32 = 0xc000_0000;

/// The number of ids; then they start over.
const ID_COUNT: u64 = 1 << 29;

/// The role whose ping ids the injected pings use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PingRole {
    /// Odd ids (SPDY/3.1, 2.6.5), for pings to a server.
    Client,
    /// Even ids.
    Server,
}

/// The injected pings to one end of a connection.
#[derive(Debug)]
pub(crate) struct InjectedPings {
    role: PingRole,
    keepalive: SpdyKeepalive,
    /// How many pings were sent.
    count: u64,
}

impl InjectedPings {
    pub(crate) fn new(role: PingRole, config: KeepaliveConfig, now: Instant) -> Self {
        Self {
            role,
            keepalive: SpdyKeepalive::new(config, PingPolicy::Always, now),
            count: 0,
        }
    }

    /// Bytes were received.
    pub(crate) fn on_received(&mut self, now: Instant) {
        self.keepalive.on_received(now);
    }

    /// The connection is not read now: silence does not count against the other end.
    pub(crate) fn on_read_paused(&mut self, now: Instant) {
        self.keepalive.on_read_paused(now);
    }

    /// A relayed frame of this many bytes was sent.
    pub(crate) fn on_sent(&mut self, now: Instant, frame: ScannedFrame, bytes: usize) {
        self.keepalive.on_sent(now, frame, bytes);
    }

    /// When the end is considered dead if it sends nothing.
    pub(crate) fn dead_at(&self) -> Option<Instant> {
        self.keepalive.dead_at()
    }

    /// When to call [`Self::check`] again, if ever.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.keepalive.next_deadline()
    }

    /// The frames to inject now, at a frame boundary; none if the end is dead.
    pub(crate) fn check(&mut self, now: Instant) -> Bytes {
        let mut frames = BytesMut::new();
        match self.keepalive.check(now) {
            SpdyKeepaliveAction::None | SpdyKeepaliveAction::Dead => {}
            SpdyKeepaliveAction::SendPings => {
                for _ in 0..SpdyKeepalive::PINGS_PER_ROUND {
                    let id = self.next_id();
                    Ping { id }.encode(&mut frames);
                    self.keepalive.on_ping_sent(now, id);
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

    /// A ping was received. Returns whether it answers an injected one. A client's own ping
    /// that has the same id by chance gets its reply as well: each reply is consumed once.
    pub(crate) fn on_ping_received(&mut self, id: u32) -> bool {
        self.keepalive.on_ping_received(id)
    }

    /// The id of the next ping.
    fn next_id(&mut self) -> u32 {
        let odd = u32::from(self.role == PingRole::Client);
        loop {
            // Fewer than a quarter of all ids.
            let nth = u32::try_from(self.count % ID_COUNT).unwrap_or_default();
            self.count += 1;
            let id = FIRST_ID + 2 * nth + odd;
            if !self.keepalive.is_awaiting(id) {
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

    const CONFIG: KeepaliveConfig = KeepaliveConfig {
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
    fn a_reply_is_consumed_once_by_its_role() {
        for (role, odd) in [(PingRole::Client, 1), (PingRole::Server, 0)] {
            let now = Instant::now();
            let mut pings = InjectedPings::new(role, CONFIG, now);
            let id = FIRST_ID + odd;
            assert!(!pings.on_ping_received(id), "no ping was sent");
            let injected = pings.check(now + CONFIG.interval);
            let ids = (0..5).map(|nth| ScannedFrame::Ping(id + 2 * nth));
            assert_eq!(frames(&injected), ids.collect::<Vec<_>>());
            assert!(!pings.on_ping_received(1), "the client's own");
            // Also one that has the same id by chance.
            pings.on_sent(now, ScannedFrame::Ping(id), 12);
            assert!(pings.on_ping_received(id));
            assert!(!pings.on_ping_received(id));
        }
    }

    #[test]
    fn ids_start_over_and_skip_outstanding_ones() {
        for (role, odd) in [(PingRole::Client, 1), (PingRole::Server, 0)] {
            let now = Instant::now();
            let mut pings = InjectedPings::new(role, CONFIG, now);
            pings.count = ID_COUNT - 1;
            assert_eq!(pings.next_id(), 0xffff_fffe + odd);
            assert_eq!(pings.next_id(), FIRST_ID + odd);
            pings.on_sent(now, ScannedFrame::Ping(FIRST_ID + 2 + odd), 12);
            assert_eq!(
                pings.next_id(),
                FIRST_ID + 4 + odd,
                "the client awaits this id"
            );
        }
    }

    #[test]
    fn resets_keep_middleboxes_from_closing_where_no_ping_fits() {
        let start = Instant::now();
        let mut pings = InjectedPings::new(PingRole::Client, CONFIG, start);
        // A stream of the first worker, which gets the first ping, is not read.
        for _ in 0..30 {
            pings.on_sent(start, ScannedFrame::Stream(5), 100);
        }
        let mut now = start;
        let mut injected = Vec::new();
        for _ in 0..20 {
            now = now.max(pings.next_deadline().unwrap());
            injected = frames(&pings.check(now));
            for frame in &injected {
                if let ScannedFrame::Ping(id) = frame
                    && !((id - FIRST_ID) / 2).is_multiple_of(5)
                {
                    assert!(pings.on_ping_received(*id));
                    pings.on_received(now);
                }
            }
        }
        let [ScannedFrame::Stream(id)] = injected[..] else {
            panic!("{injected:?}");
        };
        assert!(id > 0x7fff_fff0 && id % 5 != 0, "{id:x}");
    }
}
