//! What upstream has refused by WebSocket, and understood in translation.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use skewbridge_remotecommand::Protocol;
use tokio::time::Instant;

/// How long it is remembered that upstream refused what its version should know: it
/// may have been told to by a gate, and be told otherwise by a restart.
const REMEMBERED: Duration = Duration::from_mins(10);

/// What a WebSocket carries. Each has a memory of its own: a node that does not know an
/// odd protocol says nothing of others, and to translate them would take streams from
/// those who may only `get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamProtocol {
    /// A command.
    Command(Protocol),
    /// A port-forward.
    PortForward,
}

/// Protocols of commands, and port-forward.
const KINDS: usize = Protocol::ALL.len() + 1;

impl StreamProtocol {
    fn slot(self) -> usize {
        let command = match self {
            Self::Command(protocol) => Protocol::ALL.iter().position(|it| *it == protocol),
            Self::PortForward => None,
        };
        command.unwrap_or(KINDS - 1)
    }
}

/// What has lately been refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RefusedProtocols([bool; KINDS]);

impl RefusedProtocols {
    pub(crate) fn contains(self, spoken: StreamProtocol) -> bool {
        self.0.get(spoken.slot()).is_some_and(|it| *it)
    }
}

impl FromIterator<StreamProtocol> for RefusedProtocols {
    fn from_iter<I: IntoIterator<Item = StreamProtocol>>(refused: I) -> Self {
        let mut all = Self::default();
        for spoken in refused {
            if let Some(it) = all.0.get_mut(spoken.slot()) {
                *it = true;
            }
        }
        all
    }
}

/// Remembers it for a while.
#[derive(Debug)]
pub(crate) struct RefusalCache {
    since: Instant,
    /// When each was last refused: in seconds after `since`, and one; zero is never.
    at: [AtomicU64; KINDS],
}

impl RefusalCache {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            since: now,
            at: Default::default(),
        }
    }

    /// It was refused, and understood in translation.
    pub(crate) fn remember(&self, spoken: StreamProtocol, now: Instant) {
        let seconds = now.duration_since(self.since).as_secs() + 1;
        if let Some(at) = self.at.get(spoken.slot()) {
            at.store(seconds, Ordering::Relaxed);
        }
    }

    pub(crate) fn lately(&self, now: Instant) -> RefusedProtocols {
        let passed = now.duration_since(self.since);
        RefusedProtocols(
            self.at
                .each_ref()
                .map(|at| match at.load(Ordering::Relaxed) {
                    0 => false,
                    at => passed < Duration::from_secs(at) + REMEMBERED,
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
    fn a_refusal_says_nothing_of_other_protocols_and_is_forgotten() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for refused in all() {
            let refusals = RefusalCache::new(start);
            assert_eq!(refusals.lately(at(5)), RefusedProtocols::default());
            refusals.remember(refused, at(5));
            for other in all() {
                let lately = refusals.lately(at(604)).contains(other);
                assert_eq!(lately, other == refused, "{refused:?} {other:?}");
            }
            assert_eq!(
                refusals.lately(at(604)),
                RefusedProtocols::from_iter([refused])
            );
            assert_eq!(refusals.lately(at(606)), RefusedProtocols::default());
        }
    }
}
