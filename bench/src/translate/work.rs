//! What is asked of the node, and what both ends send.

use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use skewbridge_e2e::Node;

/// What kubectl sends at once.
pub(crate) const MESSAGE: usize = 32 * 1024;
/// A keystroke or an answer to it.
pub(crate) const SMALL: usize = 16;

/// Where kube-apiserver has the commands of the pod.
pub(crate) fn exec_path() -> String {
    let (namespace, pod) = (Node::NAMESPACE, Node::POD);
    format!("/api/v1/namespaces/{namespace}/pods/{pod}/exec")
}

/// A command of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Reads stdin to its end, which has to come after so many bytes.
    Sink { bytes: u64 },
    /// Writes so many bytes to stdout.
    Source { bytes: u64 },
    /// Writes what it reads, until that ends.
    Echo,
}

impl Work {
    /// As a client asks kube-apiserver for it.
    pub(crate) fn query(self) -> String {
        let (words, channels) = match self {
            Self::Sink { bytes } => (format!("command=sink&command={bytes}"), "stdin=true"),
            Self::Source { bytes } => (format!("command=source&command={bytes}"), "stdout=true"),
            Self::Echo => ("command=echo".to_owned(), "stdin=true&stdout=true"),
        };
        format!("container={}&{words}&{channels}", Node::CONTAINER)
    }

    /// From what kube-apiserver, or a bridge, has made of that.
    pub(crate) fn from_query(query: &str) -> Result<Self> {
        let mut words = query
            .split('&')
            .filter_map(|pair| pair.strip_prefix("command="));
        let name = words.next().context("no command")?;
        let mut bytes = || {
            let bytes = words.next().context("no number of bytes")?;
            bytes.parse().context("not a number of bytes")
        };
        match name {
            "sink" => Ok(Self::Sink { bytes: bytes()? }),
            "source" => Ok(Self::Source { bytes: bytes()? }),
            "echo" => Ok(Self::Echo),
            _ => anyhow::bail!("no such command"),
        }
    }
}

/// A prime, so that a lost or doubled piece of any usual size shows; and so little
/// that comparing costs next to nothing.
const PERIOD: usize = 65_537;

/// Noise, as long as it takes for a message to begin anywhere in the period.
static NOISE: LazyLock<Bytes> = LazyLock::new(|| {
    let mut state = 1_u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    let period: Vec<u8> = (0..PERIOD).map(next).collect();
    period
        .iter()
        .copied()
        .cycle()
        .take(PERIOD + MESSAGE)
        .collect()
});

/// The bytes of a stream, as they are written or compared.
#[derive(Debug, Default)]
pub(crate) struct Pattern {
    passed: u64,
}

impl Pattern {
    /// The next message of a stream of this length; `None` at its end.
    pub(crate) fn next(&mut self, bytes: u64) -> Option<Bytes> {
        let left = usize::try_from(bytes - self.passed).unwrap_or(usize::MAX);
        let length = left.min(MESSAGE);
        let message = NOISE.slice(self.at()..self.at() + length);
        self.passed += length as u64;
        (length > 0).then_some(message)
    }

    /// Compares what has come.
    pub(crate) fn check(&mut self, mut piece: &[u8]) -> Result<()> {
        while !piece.is_empty() {
            let (now, later) = piece.split_at(piece.len().min(MESSAGE));
            let expected = &NOISE[self.at()..self.at() + now.len()];
            ensure!(now == expected, "other bytes after {}", self.passed);
            self.passed += now.len() as u64;
            piece = later;
        }
        Ok(())
    }

    /// How many bytes have passed.
    pub(crate) fn passed(&self) -> u64 {
        self.passed
    }

    fn at(&self) -> usize {
        usize::try_from(self.passed % PERIOD as u64).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_understood_as_it_was_asked_for() {
        for work in [
            Work::Sink { bytes: 1 << 40 },
            Work::Source { bytes: 0 },
            Work::Echo,
        ] {
            assert_eq!(Work::from_query(&work.query()).unwrap(), work);
        }
        // As kube-apiserver asks a kubelet.
        let query = "command=sink&command=7&input=1";
        assert_eq!(Work::from_query(query).unwrap(), Work::Sink { bytes: 7 });
        for wrong in ["", "command=rm", "command=sink", "command=sink&command=x"] {
            assert!(Work::from_query(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_written_is_what_is_expected_however_it_comes() {
        let bytes = 1_000_000;
        let (mut written, mut pattern) = (Vec::new(), Pattern::default());
        while let Some(message) = pattern.next(bytes) {
            written.extend_from_slice(&message);
        }
        assert_eq!(written.len() as u64, bytes);
        for size in [1, 4096, 16_384, 100_003, written.len()] {
            let mut pattern = Pattern::default();
            for piece in written.chunks(size) {
                pattern.check(piece).unwrap();
            }
            assert_eq!(pattern.passed(), bytes);
        }
    }

    #[test]
    fn a_lost_piece_shows() {
        let mut pattern = Pattern::default();
        let first = pattern.next(u64::MAX).unwrap();
        let mut expected = Pattern::default();
        expected.check(&first[..4096]).unwrap();
        assert!(expected.check(&first[8192..]).is_err());
    }
}
