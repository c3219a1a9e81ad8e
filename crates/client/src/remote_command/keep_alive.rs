//! Keepalive policy: pings on idle streams, and detection of a dead remote end.

use std::time::Duration;

use skewbridge_stream_io::{KeepaliveConfig, WebSocketKeepalive};
use tokio::time::Instant;

/// Stands for "never".
const DISABLED_INTERVAL: Duration = Duration::from_hours(10 * 365 * 24);

/// When a stream is pinged, and when its remote end counts as dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    /// How long a stream may be idle before a ping is sent. Load balancers close streams after
    /// a minute of silence, some earlier. Zero disables pings.
    pub interval: Duration,
    /// How long pings may stay unanswered. A remote end that may be busy with data it was sent
    /// gets more time. It is also how long a local program may block other connections to a
    /// pod.
    pub timeout: Duration,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
        }
    }
}

impl KeepAlive {
    pub(crate) fn spdy_keepalive(self) -> KeepaliveConfig {
        KeepaliveConfig {
            interval: if self.interval.is_zero() {
                DISABLED_INTERVAL
            } else {
                self.interval
            },
            timeout: self.timeout,
        }
    }

    pub(crate) fn websocket_keepalive(self) -> WebSocketKeepalive {
        let KeepaliveConfig { interval, timeout } = self.spdy_keepalive();
        WebSocketKeepalive::new(Instant::now(), interval, timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_interval_disables_pings() {
        let keep_alive = KeepAlive {
            interval: Duration::ZERO,
            ..KeepAlive::default()
        };
        assert_eq!(keep_alive.spdy_keepalive().interval, DISABLED_INTERVAL);
        assert!(
            keep_alive.websocket_keepalive().next_deadline()
                > Instant::now() + DISABLED_INTERVAL / 2
        );
        let default = KeepAlive::default();
        assert_eq!(default.spdy_keepalive().interval, default.interval);
    }
}
