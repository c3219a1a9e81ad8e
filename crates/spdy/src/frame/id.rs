//! Stream ids and priorities.

use std::fmt;
use std::num::NonZeroU32;

use super::MalformedFrame;

/// The highest id that fits into 31 bits.
const MAX_ID: u32 = 0x7fff_ffff;

/// The id of a stream: 31 bits, never zero, odd if the client opened it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(NonZeroU32);

impl StreamId {
    /// `None` if the id is zero or too large.
    pub const fn new(id: u32) -> Option<Self> {
        match NonZeroU32::new(id) {
            Some(id) if id.get() <= MAX_ID => Some(Self(id)),
            _ => None,
        }
    }

    /// The id as a number.
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// The next id of the same side; `None` when all are used.
    pub fn next_of_same_side(self) -> Option<Self> {
        Self::new(self.get() + 2)
    }

    /// Whether the client opens streams with such an id.
    pub fn is_client_initiated(self) -> bool {
        self.get() % 2 == 1
    }

    /// Parses a required id; the first bit is reserved.
    pub(super) fn parse(word: u32) -> Result<Self, MalformedFrame> {
        Self::new(word & MAX_ID).ok_or(MalformedFrame("a stream with the id zero"))
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The priority of a stream: 0 is the highest, 7 the lowest. Kubernetes always sends 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Priority(u8);

impl Priority {
    /// The highest priority, which Kubernetes always sends.
    pub const HIGHEST: Self = Self(0);
    /// The lowest priority.
    pub const LOWEST: Self = Self(7);

    /// A priority; values beyond the lowest are the lowest.
    pub const fn new(priority: u8) -> Self {
        if priority > 7 {
            Self::LOWEST
        } else {
            Self(priority)
        }
    }

    /// 0 to 7.
    pub const fn get(self) -> u8 {
        self.0
    }
}
