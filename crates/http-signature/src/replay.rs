//! What has been accepted is remembered until it would be refused anyway.

use std::collections::{BTreeMap, HashMap, HashSet};

use aws_lc_rs::digest::{Context, SHA256};

/// What a signature is remembered by: half a digest, for who finds two that are
/// alike only has one of them refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    key: [u8; 8],
    signature: [u8; 16],
}

impl Fingerprint {
    /// Of a nonce, which a key uses once.
    pub fn of_nonce(key_id: &str, nonce: &str) -> Self {
        Self::of(key_id, b"nonce", nonce)
    }

    /// Of what was signed, where there is no nonce.
    pub fn of_base(key_id: &str, base: &str) -> Self {
        Self::of(key_id, b"base", base)
    }

    fn of(key_id: &str, kind: &[u8], text: &str) -> Self {
        let digest = |parts: &[&[u8]]| {
            let mut context = Context::new(&SHA256);
            for part in parts {
                context.update(&(part.len() as u64).to_be_bytes());
                context.update(part);
            }
            context.finish()
        };
        let key = digest(&[key_id.as_bytes()]);
        let signature = digest(&[key_id.as_bytes(), kind, text.as_bytes()]);
        let mut fingerprint = Self {
            key: [0; 8],
            signature: [0; 16],
        };
        fingerprint.key.copy_from_slice(&key.as_ref()[..8]);
        fingerprint
            .signature
            .copy_from_slice(&signature.as_ref()[..16]);
        fingerprint
    }
}

/// Whether a signature is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remembered {
    /// It is, and will not be again.
    New,
    /// It has been seen.
    Seen,
    /// It may be, but there is no room to remember it: it must not be accepted.
    Full,
    /// Nobody knows: the clock has gone back to where what was alike has been
    /// forgotten already. It must not be accepted.
    Forgotten,
}

/// Signatures that have been accepted, each until it runs out.
#[derive(Debug)]
pub struct Replays {
    seen: HashSet<[u8; 16]>,
    /// By the second after which they need not be remembered.
    by_end: BTreeMap<u64, Vec<Fingerprint>>,
    /// How many are of one key: nobody may use up everybody's room.
    by_key: HashMap<[u8; 8], usize>,
    /// The last second up to which something has been forgotten. While the clock
    /// goes forward, nothing comes that ends before it.
    forgotten: u64,
    capacity: usize,
}

/// What one key may take of the room: a quarter.
const SHARES: usize = 4;

impl Replays {
    /// Remembers this many at most, of one key a quarter of them.
    pub fn new(capacity: usize) -> Self {
        Self {
            seen: HashSet::new(),
            by_end: BTreeMap::new(),
            by_key: HashMap::new(),
            forgotten: 0,
            capacity,
        }
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// Whether none is remembered.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Remembers one until a second has passed (both since 1970), if it is new.
    pub fn remember(&mut self, fingerprint: Fingerprint, until: u64, now: u64) -> Remembered {
        self.forget(now);
        if self.seen.contains(&fingerprint.signature) {
            return Remembered::Seen;
        }
        if until <= self.forgotten {
            return Remembered::Forgotten;
        }
        let of_key = self.by_key.get(&fingerprint.key).copied().unwrap_or(0);
        if self.seen.len() >= self.capacity || of_key >= self.capacity.div_ceil(SHARES) {
            return Remembered::Full;
        }
        self.seen.insert(fingerprint.signature);
        self.by_end.entry(until).or_default().push(fingerprint);
        self.by_key.insert(fingerprint.key, of_key + 1);
        Remembered::New
    }

    /// Forgets what has run out. Each is forgotten once, so that remembering pays
    /// for it.
    fn forget(&mut self, now: u64) {
        while let Some(entry) = self.by_end.first_entry() {
            if *entry.key() >= now {
                return;
            }
            self.forgotten = self.forgotten.max(*entry.key());
            for fingerprint in entry.remove() {
                self.seen.remove(&fingerprint.signature);
                if let Some(count) = self.by_key.get_mut(&fingerprint.key) {
                    *count -= 1;
                    if *count == 0 {
                        self.by_key.remove(&fingerprint.key);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nonce(key: &str, number: usize) -> Fingerprint {
        Fingerprint::of_nonce(key, &number.to_string())
    }

    #[test]
    fn what_has_been_seen_is_known_until_it_runs_out() {
        let mut replays = Replays::new(16);
        assert_eq!(replays.remember(nonce("a", 1), 20, 10), Remembered::New);
        for now in 10..=20 {
            assert_eq!(replays.remember(nonce("a", 1), 20, now), Remembered::Seen);
        }
        assert_eq!(replays.remember(nonce("a", 2), 30, 21), Remembered::New);
        assert_eq!(replays.len(), 1);
    }

    #[test]
    fn a_clock_that_goes_back_brings_nothing_back() {
        let mut replays = Replays::new(64);
        let (a, b, c) = (nonce("a", 1), nonce("a", 2), nonce("a", 3));
        assert_eq!(replays.remember(a, 100, 10), Remembered::New);
        assert_eq!(replays.remember(b, 200, 10), Remembered::New);
        // An hour ahead, for a moment.
        assert_eq!(replays.remember(c, 4_000, 3_610), Remembered::New);
        for now in [10, 99] {
            assert_eq!(replays.remember(a, 100, now), Remembered::Forgotten);
            assert_eq!(replays.remember(b, 200, now), Remembered::Forgotten);
            assert_eq!(replays.remember(c, 4_000, now), Remembered::Seen);
        }
        // What ends later than anything that was forgotten is known to be new.
        assert_eq!(replays.remember(nonce("a", 4), 201, 12), Remembered::New);
    }

    #[test]
    fn keys_kinds_and_texts_are_told_apart() {
        let all = [
            Fingerprint::of_nonce("a", "b"),
            Fingerprint::of_nonce("ab", ""),
            Fingerprint::of_nonce("b", "b"),
            Fingerprint::of_base("a", "b"),
        ];
        let mut replays = Replays::new(64);
        for fingerprint in all {
            assert_eq!(replays.remember(fingerprint, 9, 0), Remembered::New);
        }
    }

    #[test]
    fn full_is_told_and_nothing_is_forgotten_for_it() {
        let mut replays = Replays::new(8);
        for key in ["a", "b", "c", "d"] {
            for number in 0..2 {
                let of = nonce(key, number);
                assert_eq!(replays.remember(of, 50, 0), Remembered::New);
            }
            // Each has its share, and no more.
            assert_eq!(replays.remember(nonce(key, 2), 50, 0), Remembered::Full);
        }
        assert_eq!(replays.remember(nonce("e", 0), 50, 50), Remembered::Full);
        assert_eq!(replays.remember(nonce("a", 0), 50, 50), Remembered::Seen);
        assert_eq!(replays.remember(nonce("e", 0), 99, 51), Remembered::New);
        assert_eq!(replays.len(), 1);
    }

    #[test]
    fn one_key_cannot_use_up_the_room_of_others() {
        let mut replays = Replays::new(8);
        let greedy: Vec<_> = (0..8)
            .map(|number| replays.remember(nonce("greedy", number), 50, 0))
            .collect();
        assert_eq!(greedy[1], Remembered::New);
        assert_eq!(greedy[2], Remembered::Full);
        assert_eq!(replays.remember(nonce("other", 0), 50, 0), Remembered::New);
    }
}
