//! The types of etcd's data model.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::messages;

/// A revision of etcd's history: it grows with each change of any key.
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

    /// The next revision, where a watch after a listing starts.
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

/// A lease: keys that are put with it are deleted when it ends.
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
    /// In etcdctl's format.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A granted lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Its id.
    pub id: LeaseId,
    /// How long it lasts unless it is kept alive; may be longer than requested.
    pub ttl: Duration,
}

/// A key with its value.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The full key.
    pub key: Bytes,
    /// The value. Not part of the `Debug` output, since it may be confidential.
    pub value: Bytes,
    /// When it was last changed.
    pub mod_revision: Revision,
    /// The lease that the key belongs to, if any.
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

/// The keys with a prefix, at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Sorted by key.
    pub kvs: Vec<KeyValue>,
    /// The revision of the listing.
    pub revision: Revision,
}

/// A change that a watch reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A key was created or changed.
    Put(KeyValue),
    /// A key was deleted, or its lease ended.
    Delete {
        /// The full key.
        key: Bytes,
        /// The revision of the deletion.
        mod_revision: Revision,
    },
}

/// The keys with a prefix, as etcd's half-open range.
pub(crate) fn prefix_range(prefix: &[u8]) -> (Bytes, Bytes) {
    /// In etcd, the end of all keys; as a start, the first possible key.
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
    fn a_prefix_range_ends_before_the_next_prefix() {
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
