//! Whether the other end of an SPDY connection still lives, by pings of its own.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use skewbridge_spdy::connection::{Handle, PingError};
use skewbridge_spdy::frame::StreamId;
use tokio::time::Instant;

use crate::tapped::Tap;
use crate::traffic::{Say, Traffic};

/// Pings over SPDY, when it is time for them by what is seen of its traffic.
pub struct Pings {
    handle: Handle,
    tap: Tap,
    /// Those that are on their way. Their answers are seen by the tap.
    asked: Vec<Asked>,
    /// How many there have been.
    count: u64,
    /// Nothing was read when this was last looked at.
    was_held: bool,
}

type Asked = Pin<Box<dyn Future<Output = Result<Duration, PingError>> + Send>>;

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
        Self {
            handle,
            tap,
            asked: Vec::new(),
            count: 0,
            was_held: false,
        }
    }

    /// To be called before the connection is driven: what is let go only now has not been
    /// read yet.
    pub fn before(&mut self) {
        self.was_held = self.handle.is_held();
    }

    /// Sends those that are to be sent.
    pub fn poll(&mut self, cx: &mut Context<'_>) {
        self.asked
            .retain_mut(|asked| asked.as_mut().poll(cx).is_pending());
    }

    /// Nothing is read just now: the silence of the other end is ours.
    pub fn excuse(&mut self) {
        self.tap.traffic().excuse(Instant::now());
    }

    /// When to look again.
    pub fn next(&self) -> Instant {
        let next = self.tap.traffic().next();
        next.unwrap_or_else(|| Instant::now() + DISMISSED)
    }

    /// Asks, when it is time; `false` if nobody is there.
    pub fn look(&mut self, now: Instant) -> bool {
        if self.was_held || self.handle.is_held() {
            self.excuse();
        }
        let say = self.tap.traffic().look(now);
        match say {
            Say::Nothing => {}
            Say::Reset(stream) => {
                if let Some(stream) = StreamId::new(stream) {
                    self.handle.mark_time(stream);
                }
            }
            // The last ones wait to be sent, as all does.
            Say::Pings if self.count > self.tap.traffic().pings() => {}
            Say::Pings => {
                self.count += Traffic::ROUND as u64;
                self.asked.extend((0..Traffic::ROUND).map(|_| {
                    let handle = self.handle.clone();
                    Box::pin(async move { handle.ping().await }) as Asked
                }));
            }
            Say::Dead => return false,
        }
        true
    }
}
