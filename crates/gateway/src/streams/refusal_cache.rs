//! A negative cache of protocols that upstream refused over WebSocket and accepted over SPDY.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use skewbridge_remotecommand::Protocol;
use tokio::time::Instant;

/// How long a refusal is cached although the version of upstream should support the protocol:
/// a feature gate may disable it, and a restart may enable it.
const REFUSAL_TTL: Duration = Duration::from_mins(10);

/// The protocol inside a WebSocket. Each is cached separately: a node that does not support an
/// unusual protocol may support others, and translating those would deny streams to callers
/// that may only `get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamProtocol {
    /// A command.
    Command(Protocol),
    /// A port-forward.
    PortForward,
}

/// Protocols of commands, and port-forward.
const PROTOCOL_COUNT: usize = Protocol::ALL.len() + 1;

impl StreamProtocol {
    fn index(self) -> usize {
        let command = match self {
            Self::Command(protocol) => Protocol::ALL.iter().position(|it| *it == protocol),
            Self::PortForward => None,
        };
        command.unwrap_or(PROTOCOL_COUNT - 1)
    }
}

/// The protocols that were refused recently.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RefusedProtocols([bool; PROTOCOL_COUNT]);

impl RefusedProtocols {
    pub(crate) fn contains(self, protocol: StreamProtocol) -> bool {
        self.0.get(protocol.index()).is_some_and(|it| *it)
    }
}

impl FromIterator<StreamProtocol> for RefusedProtocols {
    fn from_iter<I: IntoIterator<Item = StreamProtocol>>(refused: I) -> Self {
        let mut all = Self::default();
        for protocol in refused {
            if let Some(it) = all.0.get_mut(protocol.index()) {
                *it = true;
            }
        }
        all
    }
}

/// Caches refusals for a while.
#[derive(Debug)]
pub(crate) struct RefusalCache {
    since: Instant,
    /// When each protocol was last refused: seconds after `since`, plus one; zero means never.
    at: [AtomicU64; PROTOCOL_COUNT],
}

impl RefusalCache {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            since: now,
            at: Default::default(),
        }
    }

    /// Upstream refused this protocol over WebSocket and accepted it over SPDY.
    pub(crate) fn insert(&self, protocol: StreamProtocol, now: Instant) {
        let seconds = now.duration_since(self.since).as_secs() + 1;
        if let Some(at) = self.at.get(protocol.index()) {
            at.store(seconds, Ordering::Relaxed);
        }
    }

    pub(crate) fn recent(&self, now: Instant) -> RefusedProtocols {
        let passed = now.duration_since(self.since);
        RefusedProtocols(
            self.at
                .each_ref()
                .map(|at| match at.load(Ordering::Relaxed) {
                    0 => false,
                    at => passed < Duration::from_secs(at) + REFUSAL_TTL,
                }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = StreamProtocol> {
        let commands = Protocol::ALL.into_iter().map(StreamProtocol::Command);
        commands.chain([StreamProtocol::PortForward])
    }

    #[test]
    fn a_refusal_concerns_one_protocol_and_expires() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for refused in all() {
            let refusals = RefusalCache::new(start);
            assert_eq!(refusals.recent(at(5)), RefusedProtocols::default());
            refusals.insert(refused, at(5));
            for other in all() {
                let recent = refusals.recent(at(604)).contains(other);
                assert_eq!(recent, other == refused, "{refused:?} {other:?}");
            }
            assert_eq!(
                refusals.recent(at(604)),
                RefusedProtocols::from_iter([refused])
            );
            assert_eq!(refusals.recent(at(606)), RefusedProtocols::default());
        }
    }
}
