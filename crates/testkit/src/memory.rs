//! What is in the memory of a process.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// What is read at once. Most of it has never been written to.
const CHUNK: usize = 64 << 10;

static UNTOUCHED: [u8; CHUNK] = [0; CHUNK];

/// How often these bytes, which are not zeros, are in the memory of a process, where it can
/// write to it; none if nobody lets us look.
///
/// # Panics
/// If there is nothing to look for.
pub fn occurrences(process: u32, bytes: &[u8]) -> Option<usize> {
    assert!(!bytes.is_empty());
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).ok()?;
    let memory = File::open(format!("/proc/{process}/mem")).ok()?;
    let mut found = 0;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        if !rights.starts_with("rw") {
            continue;
        }
        let (from, to) = range.split_once('-').unwrap();
        let number = |digits| u64::from_str_radix(digits, 16).unwrap();
        let (mut at, to) = (number(from), number(to));
        let (mut chunk, mut held) = (vec![0; CHUNK], Vec::new());
        while at < to {
            let much = CHUNK.min(usize::try_from(to - at).unwrap());
            let Ok(read @ 1..) = memory.read_at(&mut chunk[..much], at) else {
                break;
            };
            at += u64::try_from(read).unwrap();
            if chunk[..read] == UNTOUCHED[..read] {
                held.clear();
                continue;
            }
            held.extend_from_slice(&chunk[..read]);
            let windows = held.windows(bytes.len());
            found += windows.filter(|window| *window == bytes).count();
            // So that what lies on both sides of a border is seen, and once.
            held.drain(..held.len().saturating_sub(bytes.len() - 1));
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_found() {
        // Never as a whole in our own program.
        let words: Vec<u8> = (0..40_u8).map(|number| number ^ 0x5a).collect();
        let us = std::process::id();
        let Some(found) = occurrences(us, &words) else {
            return;
        };
        let kept = words.clone();
        assert!(found >= 1);
        drop(kept);
    }
}
