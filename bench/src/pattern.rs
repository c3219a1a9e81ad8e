//! Bytes to send, and to compare with the received ones.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;

/// The message size of kubectl.
pub(crate) const MESSAGE_BYTES: usize = 32 * 1024;

/// A prime, so that a lost or duplicated part of any usual size is detected; and so small
/// that the comparison costs almost nothing.
const PATTERN_PERIOD_BYTES: usize = 65_537;

/// Noise, long enough for a message to start anywhere in the period.
static NOISE: LazyLock<Bytes> = LazyLock::new(|| {
    let mut state = 1_u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    let period: Vec<u8> = (0..PATTERN_PERIOD_BYTES).map(next).collect();
    period
        .iter()
        .copied()
        .cycle()
        .take(PATTERN_PERIOD_BYTES + MESSAGE_BYTES)
        .collect()
});

/// The position in a stream, for writing or comparing.
#[derive(Debug, Default)]
pub(crate) struct Pattern {
    passed: u64,
}

impl Pattern {
    /// The next message of a stream of this length; `None` at its end.
    pub(crate) fn next(&mut self, bytes: u64) -> Option<Bytes> {
        let left = usize::try_from(bytes - self.passed).unwrap_or(usize::MAX);
        let length = left.min(MESSAGE_BYTES);
        let message = NOISE.slice(self.at()..self.at() + length);
        self.passed += length as u64;
        (length > 0).then_some(message)
    }

    /// Compares received bytes.
    pub(crate) fn check(&mut self, mut piece: &[u8]) -> Result<()> {
        while !piece.is_empty() {
            let (now, later) = piece.split_at(piece.len().min(MESSAGE_BYTES));
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
        usize::try_from(self.passed % PATTERN_PERIOD_BYTES as u64).unwrap_or_default()
    }
}

/// Writes a file of this many bytes.
pub(crate) fn write_noise(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut pattern = Pattern::default();
    while let Some(piece) = pattern.next(bytes) {
        file.write_all(&piece)?;
    }
    Ok(())
}

/// Whether two files have the same bytes.
pub(crate) fn is_same(one: &Path, other: &Path) -> Result<bool> {
    const BLOCK_BYTES: u64 = 1 << 20;
    let open = |path: &Path| File::open(path).with_context(|| path.display().to_string());
    let (one, other) = (open(one)?, open(other)?);
    let (mut here, mut there) = (Vec::new(), Vec::new());
    loop {
        here.clear();
        there.clear();
        (&one).take(BLOCK_BYTES).read_to_end(&mut here)?;
        (&other).take(BLOCK_BYTES).read_to_end(&mut there)?;
        if here != there {
            return Ok(false);
        }
        if here.is_empty() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch_dir::ScratchDir;

    #[test]
    fn written_bytes_match_in_any_chunks() {
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
    fn a_lost_part_is_detected() {
        let mut pattern = Pattern::default();
        let first = pattern.next(u64::MAX).unwrap();
        let mut expected = Pattern::default();
        expected.check(&first[..4096]).unwrap();
        assert!(expected.check(&first[8192..]).is_err());
    }

    #[test]
    fn files_are_compared_to_their_end() {
        let scratch = ScratchDir::create().unwrap();
        let [one, same, short] = ["one", "same", "short"].map(|name| scratch.path(name));
        for (path, bytes) in [(&one, 3 << 20), (&same, 3 << 20), (&short, (3 << 20) - 1)] {
            write_noise(path, bytes).unwrap();
        }
        assert!(is_same(&one, &same).unwrap());
        assert!(!is_same(&one, &short).unwrap());
        assert!(!is_same(&short, &one).unwrap());
    }
}
