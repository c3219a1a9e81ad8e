//! Whether the other end of an SPDY connection still lives.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use skewbridge_spdy::connection::{Handle, PingError};
use tokio::time::Instant;

use crate::pulse::{Beat, Mark, Pulse};

/// So many are waited for: the other end may be slow, but not for ever.
const MOST: usize = 8;

/// Pings over SPDY.
pub struct Pings {
    handle: Handle,
    /// How the other end is heard.
    pub pulse: Pulse,
    asked: Vec<(Mark, Asked)>,
}

type Asked = Pin<Box<dyn Future<Output = Result<Duration, PingError>> + Send>>;

impl fmt::Debug for Pings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pings").field(&self.pulse).finish()
    }
}

impl Pings {
    /// Of this connection.
    pub fn new(handle: Handle, pulse: Pulse) -> Self {
        Self {
            handle,
            pulse,
            asked: Vec::new(),
        }
    }

    /// Hears an answer.
    pub fn poll(&mut self, cx: &mut Context<'_>) {
        let pulse = &mut self.pulse;
        self.asked.retain_mut(|(mark, asked)| {
            let Poll::Ready(answer) = asked.as_mut().poll(cx) else {
                return true;
            };
            // Without an answer the connection is over, and its streams tell how.
            if answer.is_ok() {
                pulse.heard(Instant::now());
                pulse.answered(*mark);
            }
            false
        });
    }

    /// Asks, when it is time; `false` if nobody is there.
    pub fn look(&mut self, now: Instant) -> bool {
        match self.pulse.look(now) {
            Beat::Rest => {}
            Beat::Dead => return false,
            Beat::Ping(mark) => {
                if self.asked.len() == MOST {
                    drop(self.asked.remove(0));
                }
                let handle = self.handle.clone();
                let asked = async move { handle.ping().await };
                self.asked.push((mark, Box::pin(asked)));
            }
        }
        true
    }
}
