//! Signals that whoever started us wants to be ignored, as `nohup` does.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that were ignored when this was made. To listen to one would end that,
/// for us and for what we start.
#[derive(Debug, Clone, Copy)]
pub struct IgnoredSignals {
    /// The lowest bit is signal 1.
    mask: u64,
}

impl IgnoredSignals {
    /// Those of this process, as far as the system tells.
    pub fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self::of(&status)
    }

    fn of(status: &str) -> Self {
        let mut lines = status.lines();
        let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        Self {
            mask: mask.unwrap_or_default(),
        }
    }

    /// The same, but for this one, which is listened to although it is ignored.
    #[must_use]
    pub fn without(self, kind: SignalKind) -> Self {
        let bit = u32::try_from(kind.as_raw_value() - 1).ok();
        let bit = bit.and_then(|bit| 1_u64.checked_shl(bit));
        Self {
            mask: self.mask & !bit.unwrap_or_default(),
        }
    }

    /// Whether this one is.
    pub fn contains(self, kind: SignalKind) -> bool {
        let bit = u32::try_from(kind.as_raw_value() - 1).ok();
        bit.and_then(|bit| self.mask.checked_shr(bit))
            .is_some_and(|mask| mask & 1 == 1)
    }

    /// Listens to one, unless it is ignored.
    pub fn listen(self, kind: SignalKind) -> std::io::Result<Heard> {
        if self.contains(kind) {
            return Ok(Heard(None));
        }
        signal(kind).map(|listening| Heard(Some(listening)))
    }
}

/// A signal that is listened to; one that is ignored never comes.
#[derive(Debug)]
pub struct Heard(Option<Signal>);

impl Heard {
    /// Until it comes.
    pub async fn recv(&mut self) {
        match &mut self.0 {
            Some(signal) => {
                signal.recv().await;
            }
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        let of = |mask: &str| {
            let status = format!("Name:\tx\nSigBlk:\tffffffffffffffff\nSigIgn:\t{mask}\n");
            let ignored = IgnoredSignals::of(&status);
            let kinds = [
                SignalKind::hangup(),
                SignalKind::interrupt(),
                SignalKind::terminate(),
            ];
            kinds.map(|kind| ignored.contains(kind))
        };
        assert_eq!(of("0000000000001000"), [false, false, false]);
        assert_eq!(of("0000000000001001"), [true, false, false]);
        assert_eq!(of("0000000000005002"), [false, true, true]);
        assert_eq!(of("no number"), [false, false, false]);
        let ignored = IgnoredSignals::of("SigIgn:\t0000000000000007\n");
        let ignored = ignored.without(SignalKind::interrupt());
        assert!(!ignored.contains(SignalKind::interrupt()));
        assert!(ignored.contains(SignalKind::hangup()) && ignored.contains(SignalKind::quit()));
    }
}
