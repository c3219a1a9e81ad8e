//! Stores accepted signatures until they would be refused because they have expired.

use std::collections::{BTreeMap, HashMap, HashSet};

use aws_lc_rs::digest::{Context, SHA256};

/// Identifies a signature in the cache: half a digest. A collision only causes the second
/// signature to be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    key: [u8; 8],
    signature: [u8; 16],
}

impl Fingerprint {
    /// The fingerprint of a nonce, which a key uses once.
    pub fn of_nonce(key_id: &str, nonce: &str) -> Self {
        Self::of(key_id, b"nonce", nonce)
    }

    /// The fingerprint of a signature base, for signatures without a nonce.
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

/// The result of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayCheck {
    /// The signature is new, and remembered from now on.
    New,
    /// The signature has been used before.
    Replayed,
    /// The cache is full. The signature may be new, but must not be accepted.
    Full,
    /// The clock was set back to a time whose signatures have been evicted already, so that it is
    /// unknown whether the signature is new. It must not be accepted.
    Evicted,
}

/// Accepted signatures, each until it expires.
#[derive(Debug)]
pub struct ReplayCache {
    seen: HashSet<[u8; 16]>,
    /// By the second in which they expire.
    by_expiry: BTreeMap<u64, Vec<Fingerprint>>,
    /// The number of signatures per key: one key must not use up the capacity of others.
    count_by_key: HashMap<[u8; 8], usize>,
    /// The latest expiry of an evicted signature. Only a signature that expires later is known to
    /// be new.
    evicted_until: u64,
    capacity: usize,
}

/// One key may use a quarter of the capacity.
const MAX_KEY_SHARE_DIVISOR: usize = 4;

impl ReplayCache {
    /// A cache for this number of signatures, and a quarter of them per key.
    pub fn new(capacity: usize) -> Self {
        Self {
            seen: HashSet::new(),
            by_expiry: BTreeMap::new(),
            count_by_key: HashMap::new(),
            evicted_until: 0,
            capacity,
        }
    }

    /// The number of remembered signatures.
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// Whether no signature is remembered.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Stores a signature until this second, if it is new. Times are in seconds since 1970.
    pub fn insert(&mut self, fingerprint: Fingerprint, until: u64, now: u64) -> ReplayCheck {
        self.evict_expired(now);
        if self.seen.contains(&fingerprint.signature) {
            return ReplayCheck::Replayed;
        }
        if until <= self.evicted_until {
            return ReplayCheck::Evicted;
        }
        let of_key = self
            .count_by_key
            .get(&fingerprint.key)
            .copied()
            .unwrap_or(0);
        if self.seen.len() >= self.capacity
            || of_key >= self.capacity.div_ceil(MAX_KEY_SHARE_DIVISOR)
        {
            return ReplayCheck::Full;
        }
        self.seen.insert(fingerprint.signature);
        self.by_expiry.entry(until).or_default().push(fingerprint);
        self.count_by_key.insert(fingerprint.key, of_key + 1);
        ReplayCheck::New
    }

    /// Removes expired signatures. Each is removed once, so that the cost is amortized over
    /// insertions.
    fn evict_expired(&mut self, now: u64) {
        while let Some(entry) = self.by_expiry.first_entry() {
            if *entry.key() >= now {
                return;
            }
            self.evicted_until = self.evicted_until.max(*entry.key());
            for fingerprint in entry.remove() {
                self.seen.remove(&fingerprint.signature);
                if let Some(count) = self.count_by_key.get_mut(&fingerprint.key) {
                    *count -= 1;
                    if *count == 0 {
                        self.count_by_key.remove(&fingerprint.key);
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
    fn a_signature_is_remembered_until_it_expires() {
        let mut cache = ReplayCache::new(16);
        assert_eq!(cache.insert(nonce("a", 1), 20, 10), ReplayCheck::New);
        for now in 10..=20 {
            assert_eq!(cache.insert(nonce("a", 1), 20, now), ReplayCheck::Replayed);
        }
        assert_eq!(cache.insert(nonce("a", 2), 30, 21), ReplayCheck::New);
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn setting_the_clock_back_permits_no_replay() {
        let mut cache = ReplayCache::new(64);
        let (a, b, c) = (nonce("a", 1), nonce("a", 2), nonce("a", 3));
        assert_eq!(cache.insert(a, 100, 10), ReplayCheck::New);
        assert_eq!(cache.insert(b, 200, 10), ReplayCheck::New);
        // The clock is an hour ahead for a moment.
        assert_eq!(cache.insert(c, 4_000, 3_610), ReplayCheck::New);
        for now in [10, 99] {
            assert_eq!(cache.insert(a, 100, now), ReplayCheck::Evicted);
            assert_eq!(cache.insert(b, 200, now), ReplayCheck::Evicted);
            assert_eq!(cache.insert(c, 4_000, now), ReplayCheck::Replayed);
        }
        // A signature that expires after all evicted ones is known to be new.
        assert_eq!(cache.insert(nonce("a", 4), 201, 12), ReplayCheck::New);
    }

    #[test]
    fn fingerprints_differ_by_key_kind_and_text() {
        let all = [
            Fingerprint::of_nonce("a", "b"),
            Fingerprint::of_nonce("ab", ""),
            Fingerprint::of_nonce("b", "b"),
            Fingerprint::of_base("a", "b"),
        ];
        let mut cache = ReplayCache::new(64);
        for fingerprint in all {
            assert_eq!(cache.insert(fingerprint, 9, 0), ReplayCheck::New);
        }
    }

    #[test]
    fn a_full_cache_refuses_and_evicts_nothing() {
        let mut cache = ReplayCache::new(8);
        for key in ["a", "b", "c", "d"] {
            for number in 0..2 {
                let of = nonce(key, number);
                assert_eq!(cache.insert(of, 50, 0), ReplayCheck::New);
            }
            // The share of this key is used up.
            assert_eq!(cache.insert(nonce(key, 2), 50, 0), ReplayCheck::Full);
        }
        assert_eq!(cache.insert(nonce("e", 0), 50, 50), ReplayCheck::Full);
        assert_eq!(cache.insert(nonce("a", 0), 50, 50), ReplayCheck::Replayed);
        assert_eq!(cache.insert(nonce("e", 0), 99, 51), ReplayCheck::New);
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn one_key_cannot_use_up_the_capacity_of_others() {
        let mut cache = ReplayCache::new(8);
        let greedy: Vec<_> = (0..8)
            .map(|number| cache.insert(nonce("greedy", number), 50, 0))
            .collect();
        assert_eq!(greedy[1], ReplayCheck::New);
        assert_eq!(greedy[2], ReplayCheck::Full);
        assert_eq!(cache.insert(nonce("other", 0), 50, 0), ReplayCheck::New);
    }
}
