//! How a stream that carries nothing is kept, and how it is noticed that nobody is at
//! its other end.

use std::time::Duration;

use skewbridge_wire::{Pace, Pulse};
use tokio::time::Instant;

/// How the other end of a stream is looked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    /// How long a stream may be silent before a ping. Balancers cut what is silent for
    /// a minute, some earlier.
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
    pub(crate) fn pace(self) -> Pace {
        Pace {
            interval: self.interval,
            patience: self.patience,
        }
    }

    pub(crate) fn pulse(self) -> Pulse {
        Pulse::new(Instant::now(), self.interval, self.patience)
    }
}
