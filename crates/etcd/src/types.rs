//! What etcd holds, in the words of its users.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::messages;

/// A moment of etcd's history: it grows with each change of any key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(i64);

impl Revision {
    /// The revision of this number.
    pub fn new(number: i64) -> Self {
        Self(number)
    }

    /// The number.
    pub fn get(self) -> i64 {
        self.0
    }

    /// The one after it, where a watch that follows a listing begins.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A lease: keys that are put with it go when it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(i64);

impl LeaseId {
    /// The lease of this number.
    pub fn new(number: i64) -> Self {
        Self(number)
    }

    /// The number.
    pub fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for LeaseId {
    /// As etcdctl writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A lease that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Its name.
    pub id: LeaseId,
    /// How long it lives unless it is kept alive; it can be longer than what
    /// was asked for.
    pub ttl: Duration,
}

/// A key with its value.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The whole key.
    pub key: Bytes,
    /// The value. Not part of the `Debug` form, for it may be anybody's.
    pub value: Bytes,
    /// When it was last changed.
    pub mod_revision: Revision,
    /// The lease with which it goes, if any.
    pub lease: Option<LeaseId>,
}

impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValue")
            .field("key", &self.key)
            .field("value", &format_args!("{} bytes", self.value.len()))
            .field("mod_revision", &self.mod_revision)
            .field("lease", &self.lease)
            .finish()
    }
}

impl From<messages::KeyValue> for KeyValue {
    fn from(kv: messages::KeyValue) -> Self {
        Self {
            key: kv.key,
            value: kv.value,
            mod_revision: Revision(kv.mod_revision),
            lease: (kv.lease != 0).then_some(LeaseId(kv.lease)),
        }
    }
}

/// The keys below a prefix, at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// In the order of the keys.
    pub kvs: Vec<KeyValue>,
    /// When they were so.
    pub revision: Revision,
}

/// A change that a watch has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A key was made or changed.
    Put(KeyValue),
    /// A key was deleted, or its lease ended.
    Delete {
        /// The whole key.
        key: Bytes,
        /// When.
        mod_revision: Revision,
    },
}

/// The keys that begin with a prefix, as etcd wants to be told: from the first,
/// up to and without the second.
pub(crate) fn prefix_range(prefix: &[u8]) -> (Bytes, Bytes) {
    /// To etcd, the end of all keys; as a beginning, the first key there can be.
    const BOUNDARY: &[u8] = &[0];
    let begin = match prefix {
        [] => Bytes::from_static(BOUNDARY),
        prefix => Bytes::copy_from_slice(prefix),
    };
    let end = match prefix.iter().rposition(|&byte| byte != 0xff) {
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            end.into()
        }
        None => Bytes::from_static(BOUNDARY),
    };
    (begin, end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_prefix_ends_before_its_neighbour() {
        let range = |prefix: &[u8]| {
            let (begin, end) = prefix_range(prefix);
            (begin.to_vec(), end.to_vec())
        };
        assert_eq!(range(b"/a/"), (b"/a/".to_vec(), b"/a0".to_vec()));
        assert_eq!(range(b"a\xff"), (b"a\xff".to_vec(), b"b".to_vec()));
        assert_eq!(range(b"\xff\xff"), (b"\xff\xff".to_vec(), vec![0]));
        assert_eq!(range(b""), (vec![0], vec![0]));
    }

    #[test]
    fn debug_shows_no_value() {
        let kv = KeyValue {
            key: "k".into(),
            value: "secret".into(),
            mod_revision: Revision::new(7),
            lease: None,
        };
        assert!(!format!("{kv:?}").contains("secret"));
    }

    proptest! {
        #[test]
        fn a_key_is_in_the_range_exactly_if_it_has_the_prefix(
            prefix in prop::collection::vec(prop_oneof![0..4_u8, 252..=255_u8], 1..4),
            key in prop::collection::vec(prop_oneof![0..4_u8, 252..=255_u8], 1..6),
        ) {
            let (begin, end) = prefix_range(&prefix);
            let below_end = end[..] == [0] || key[..] < end[..];
            prop_assert_eq!(key[..] >= begin[..] && below_end, key.starts_with(&prefix));
        }
    }
}
