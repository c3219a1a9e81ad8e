//! Keepalive pings on an SPDY connection of this crate's SPDY implementation.

use std::fmt;
use std::time::Duration;

use skewbridge_spdy::connection::Handle;
use skewbridge_spdy::frame::StreamId;
use tokio::time::Instant;

use crate::observed_io::KeepaliveHandle;
use crate::spdy_keepalive::{SpdyKeepalive, SpdyKeepaliveAction};

/// Sends the pings and resets that an [`SpdyKeepalive`] requests.
pub struct SpdyPinger {
    handle: Handle,
    /// Observes the pings and their replies.
    keepalive: KeepaliveHandle,
}

/// Interval between checks after a GOAWAY was sent: only the end of the connection follows.
const AFTER_GOAWAY_INTERVAL: Duration = Duration::from_hours(1);

impl fmt::Debug for SpdyPinger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SpdyPinger").field(&self.keepalive).finish()
    }
}

impl SpdyPinger {
    /// For a connection that this keepalive observes.
    pub fn new(handle: Handle, keepalive: KeepaliveHandle) -> Self {
        let seen = keepalive.clone();
        handle.set_pings_before_data(
            move || match seen.lock().check_before_send(Instant::now()) {
                SpdyKeepaliveAction::SendPings => SpdyKeepalive::PINGS_PER_ROUND,
                _ => 0,
            },
        );
        Self { handle, keepalive }
    }

    /// To be called before each poll of the driver: bytes that arrived while reading was
    /// paused have not been read yet.
    pub fn before_drive(&self) {
        if self.handle.is_read_paused() {
            self.on_read_paused();
        }
    }

    /// The connection is not read now: silence does not count against the other end.
    pub fn on_read_paused(&self) {
        self.keepalive.lock().on_read_paused(Instant::now());
    }

    /// When to call [`Self::check`] again.
    pub fn next_deadline(&self) -> Instant {
        let next = self.keepalive.lock().next_deadline();
        next.unwrap_or_else(|| Instant::now() + AFTER_GOAWAY_INTERVAL)
    }

    /// Sends what is due; returns `false` if the other end is dead.
    pub fn check(&self, now: Instant) -> bool {
        self.before_drive();
        let action = self.keepalive.lock().check(now);
        match action {
            SpdyKeepaliveAction::None => {}
            SpdyKeepaliveAction::SendReset(stream) => {
                if let Some(stream) = StreamId::new(stream) {
                    self.handle.send_noop_reset(stream);
                }
            }
            SpdyKeepaliveAction::SendPings => {
                self.handle.send_pings(SpdyKeepalive::PINGS_PER_ROUND);
            }
            SpdyKeepaliveAction::Dead => return false,
        }
        true
    }
}
