//! Whether the other end of an SPDY connection still lives.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use skewbridge_spdy::connection::{Handle, PingError};
use tokio::time::Instant;

use super::pulse::{Beat, Mark, Pulse};

/// Pings over SPDY, of which the last one is waited for.
pub(crate) struct Pings {
    handle: Handle,
    pub(crate) pulse: Pulse,
    asked: Option<(Mark, Asked)>,
}

type Asked = Pin<Box<dyn Future<Output = Result<Duration, PingError>> + Send>>;

impl fmt::Debug for Pings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pings").field(&self.pulse).finish()
    }
}

impl Pings {
    /// Of this connection.
    pub(crate) fn new(handle: Handle, pulse: Pulse) -> Self {
        Self {
            handle,
            pulse,
            asked: None,
        }
    }

    /// Hears an answer.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) {
        if let Some((mark, asked)) = &mut self.asked
            && let Poll::Ready(answer) = asked.as_mut().poll(cx)
        {
            // Without an answer the connection is over, and its streams tell how.
            if answer.is_ok() {
                self.pulse.heard(Instant::now());
                self.pulse.answered(*mark);
            }
            self.asked = None;
        }
    }

    /// Asks, when it is time; `false` if nobody is there.
    pub(crate) fn look(&mut self, now: Instant) -> bool {
        match self.pulse.look(now) {
            Beat::Rest => {}
            Beat::Dead => return false,
            Beat::Ping(mark) => {
                // One that has not been answered yet will not be the last that is.
                let handle = self.handle.clone();
                let asked = async move { handle.ping().await };
                self.asked = Some((mark, Box::pin(asked)));
            }
        }
        true
    }
}
