//! How a stream that carries nothing is kept, and how it is noticed that nobody is at
//! its other end.

use std::time::Duration;

use skewbridge_stream_io::{KeepaliveConfig, WebSocketKeepalive};
use tokio::time::Instant;

/// As long as anybody waits for.
const NEVER: Duration = Duration::from_hours(10 * 365 * 24);

/// How the other end of a stream is looked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    /// How long a stream may be silent before a ping. Balancers cut what is silent for
    /// a minute, some earlier. Zero is for ever.
    pub interval: Duration,
    /// How long the other end may leave pings unanswered. One that may be busy with what
    /// it was sent is given all the time that it needs. A local program may keep other
    /// connections to a pod waiting for as long.
    pub patience: Duration,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(10),
            patience: Duration::from_secs(30),
        }
    }
}

impl KeepAlive {
    pub(crate) fn pace(self) -> KeepaliveConfig {
        KeepaliveConfig {
            interval: if self.interval.is_zero() {
                NEVER
            } else {
                self.interval
            },
            timeout: self.patience,
        }
    }

    pub(crate) fn pulse(self) -> WebSocketKeepalive {
        let KeepaliveConfig { interval, timeout } = self.pace();
        WebSocketKeepalive::new(Instant::now(), interval, timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_no_interval() {
        let keep_alive = KeepAlive {
            interval: Duration::ZERO,
            ..KeepAlive::default()
        };
        assert_eq!(keep_alive.pace().interval, NEVER);
        assert!(keep_alive.pulse().next_deadline() > Instant::now() + NEVER / 2);
        let default = KeepAlive::default();
        assert_eq!(default.pace().interval, default.interval);
    }
}
