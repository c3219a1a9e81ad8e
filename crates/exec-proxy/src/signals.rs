//! Signals, except those that the parent process has set to be ignored, as `nohup` does.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that this process ignores. Listening to one of them would end that, for this
/// process and for its children.
#[derive(Debug, Clone, Copy)]
pub struct IgnoredSignals {
    /// The lowest bit is signal 1.
    mask: u64,
}

impl IgnoredSignals {
    /// The ignored signals of this process, from `/proc/self/status`; none if it cannot be read.
    pub fn current() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self::parse(&status)
    }

    fn parse(status: &str) -> Self {
        let mut lines = status.lines();
        let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        Self {
            mask: mask.unwrap_or_default(),
        }
    }

    /// The same set without this signal, which can then be listened to although it is ignored.
    #[must_use]
    pub fn without(self, kind: SignalKind) -> Self {
        let bit = u32::try_from(kind.as_raw_value() - 1).ok();
        let bit = bit.and_then(|bit| 1_u64.checked_shl(bit));
        Self {
            mask: self.mask & !bit.unwrap_or_default(),
        }
    }

    /// Whether this signal is ignored.
    pub fn contains(self, kind: SignalKind) -> bool {
        let bit = u32::try_from(kind.as_raw_value() - 1).ok();
        bit.and_then(|bit| self.mask.checked_shr(bit))
            .is_some_and(|mask| mask & 1 == 1)
    }

    /// Listens to a signal, unless it is ignored.
    pub fn listen(self, kind: SignalKind) -> std::io::Result<SignalStream> {
        if self.contains(kind) {
            return Ok(SignalStream(None));
        }
        signal(kind).map(|stream| SignalStream(Some(stream)))
    }
}

/// The arrivals of a signal. An ignored signal never arrives.
#[derive(Debug)]
pub struct SignalStream(Option<Signal>);

impl SignalStream {
    /// Waits for the next arrival.
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
    fn ignored_signals_are_parsed_from_proc_status() {
        let of = |mask: &str| {
            let status = format!("Name:\tx\nSigBlk:\tffffffffffffffff\nSigIgn:\t{mask}\n");
            let ignored = IgnoredSignals::parse(&status);
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
        let ignored = IgnoredSignals::parse("SigIgn:\t0000000000000007\n");
        let ignored = ignored.without(SignalKind::interrupt());
        assert!(!ignored.contains(SignalKind::interrupt()));
        assert!(ignored.contains(SignalKind::hangup()) && ignored.contains(SignalKind::quit()));
    }
}
