//! Whether the other end of an SPDY connection still lives, by pings of its own.

use std::fmt;
use std::time::Duration;

use skewbridge_spdy::connection::Handle;
use skewbridge_spdy::frame::StreamId;
use tokio::time::Instant;

use crate::tapped::Tap;
use crate::traffic::{Say, Traffic};

/// Pings over SPDY, when it is time for them by what is seen of its traffic.
pub struct Pings {
    handle: Handle,
    /// Sees them, and their answers.
    tap: Tap,
}

/// How long who was sent a GOAWAY is left alone. All that follows is the end.
const DISMISSED: Duration = Duration::from_hours(1);

impl fmt::Debug for Pings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pings").field(&self.tap).finish()
    }
}

impl Pings {
    /// Of this connection, which is tapped by that.
    pub fn new(handle: Handle, tap: Tap) -> Self {
        let seen = tap.clone();
        handle.ping_before_data(move || match seen.traffic().look_ahead(Instant::now()) {
            Say::Pings => Traffic::ROUND,
            _ => 0,
        });
        Self { handle, tap }
    }

    /// To be called before the connection is driven: what is let go only now has not been
    /// read yet.
    pub fn before(&self) {
        if self.handle.is_held() {
            self.excuse();
        }
    }

    /// Nothing is read just now: the silence of the other end is ours.
    pub fn excuse(&self) {
        self.tap.traffic().excuse(Instant::now());
    }

    /// When to look again.
    pub fn next(&self) -> Instant {
        let next = self.tap.traffic().next();
        next.unwrap_or_else(|| Instant::now() + DISMISSED)
    }

    /// Asks, when it is time; `false` if nobody is there.
    pub fn look(&self, now: Instant) -> bool {
        self.before();
        let say = self.tap.traffic().look(now);
        match say {
            Say::Nothing => {}
            Say::Reset(stream) => {
                if let Some(stream) = StreamId::new(stream) {
                    self.handle.mark_time(stream);
                }
            }
            Say::Pings => self.handle.send_pings(Traffic::ROUND),
            Say::Dead => return false,
        }
        true
    }
}
