//! Searches the memory of a process.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// The number of bytes read at once. Most pages have never been written.
const CHUNK_BYTES: usize = 64 << 10;

static ZEROS: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];

/// How often these bytes, which must not be zeros, occur in the writable memory of a
/// process; `None` if that memory cannot be read.
///
/// # Panics
/// If `bytes` is empty.
pub fn count_in_memory(process: u32, bytes: &[u8]) -> Option<usize> {
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
        let (mut chunk, mut window) = (vec![0; CHUNK_BYTES], Vec::new());
        while at < to {
            let length = CHUNK_BYTES.min(usize::try_from(to - at).unwrap());
            let Ok(read @ 1..) = memory.read_at(&mut chunk[..length], at) else {
                break;
            };
            at += u64::try_from(read).unwrap();
            if chunk[..read] == ZEROS[..read] {
                window.clear();
                continue;
            }
            window.extend_from_slice(&chunk[..read]);
            let windows = window.windows(bytes.len());
            found += windows.filter(|window| *window == bytes).count();
            // Matches across a chunk boundary are found, and counted once.
            window.drain(..window.len().saturating_sub(bytes.len() - 1));
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_memory_are_found() {
        // The program's own image does not contain these bytes.
        let words: Vec<u8> = (0..40_u8).map(|number| number ^ 0x5a).collect();
        let us = std::process::id();
        let Some(found) = count_in_memory(us, &words) else {
            return;
        };
        let kept = words.clone();
        assert!(found >= 1);
        drop(kept);
    }
}
