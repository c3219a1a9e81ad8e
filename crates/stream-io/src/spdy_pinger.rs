//! Whether the other end of an SPDY connection still lives, by pings of its own.

use std::fmt;
use std::time::Duration;

use skewbridge_spdy::connection::Handle;
use skewbridge_spdy::frame::StreamId;
use tokio::time::Instant;

use crate::observed_io::KeepaliveHandle;
use crate::spdy_keepalive::{SpdyKeepalive, SpdyKeepaliveAction};

/// SpdyPinger over SPDY, when it is time for them by what is seen of its keepalive.
pub struct SpdyPinger {
    handle: Handle,
    /// Sees them, and their answers.
    keepalive: KeepaliveHandle,
}

/// How long who was sent a GOAWAY is left alone. All that follows is the end.
const AFTER_GOAWAY_INTERVAL: Duration = Duration::from_hours(1);

impl fmt::Debug for SpdyPinger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SpdyPinger").field(&self.keepalive).finish()
    }
}

impl SpdyPinger {
    /// Of this connection, which is tapped by that.
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

    /// To be called before the connection is driven: what is let go only now has not been
    /// read yet.
    pub fn before_drive(&self) {
        if self.handle.is_read_paused() {
            self.on_read_paused();
        }
    }

    /// Nothing is read just now: the silence of the other end is ours.
    pub fn on_read_paused(&self) {
        self.keepalive.lock().on_read_paused(Instant::now());
    }

    /// When to look again.
    pub fn next_deadline(&self) -> Instant {
        let next = self.keepalive.lock().next_deadline();
        next.unwrap_or_else(|| Instant::now() + AFTER_GOAWAY_INTERVAL)
    }

    /// Asks, when it is time; `false` if nobody is there.
    pub fn check(&self, now: Instant) -> bool {
        self.before_drive();
        let say = self.keepalive.lock().check(now);
        match say {
            SpdyKeepaliveAction::None => {}
            SpdyKeepaliveAction::SendReset(stream) => {
                if let Some(stream) = StreamId::new(stream) {
                    self.handle.send_noop_reset(stream);
                }
            }
            SpdyKeepaliveAction::SendPings => {
                self.handle.send_pings(SpdyKeepalive::PINGS_PER_ROUND)
            }
            SpdyKeepaliveAction::Dead => return false,
        }
        true
    }
}
