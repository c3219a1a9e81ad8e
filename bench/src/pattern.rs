//! Bytes to send, and to compare with what has come.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;

/// What kubectl sends at once.
pub(crate) const MESSAGE: usize = 32 * 1024;

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

/// A file of so many bytes.
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
    const PIECE: u64 = 1 << 20;
    let open = |path: &Path| File::open(path).with_context(|| path.display().to_string());
    let (one, other) = (open(one)?, open(other)?);
    let (mut here, mut there) = (Vec::new(), Vec::new());
    loop {
        here.clear();
        there.clear();
        (&one).take(PIECE).read_to_end(&mut here)?;
        (&other).take(PIECE).read_to_end(&mut there)?;
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
    use crate::scratch::Scratch;

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

    #[test]
    fn files_are_compared_to_their_end() {
        let scratch = Scratch::create().unwrap();
        let [one, same, short] = ["one", "same", "short"].map(|name| scratch.path(name));
        for (path, bytes) in [(&one, 3 << 20), (&same, 3 << 20), (&short, (3 << 20) - 1)] {
            write_noise(path, bytes).unwrap();
        }
        assert!(is_same(&one, &same).unwrap());
        assert!(!is_same(&one, &short).unwrap());
        assert!(!is_same(&short, &one).unwrap());
    }
}
