//! What names a stream, and how much it matters.

use std::fmt;
use std::num::NonZeroU32;

use super::MalformedFrame;

/// The highest id that fits into 31 bits.
const MAX_ID: u32 = 0x7fff_ffff;

/// The id of a stream: 31 bits, never zero, odd where the client opened it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(NonZeroU32);

impl StreamId {
    /// An id, unless it is zero or too large.
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

    /// The next id of the same side; `None` when all are used up.
    pub fn next_of_same_side(self) -> Option<Self> {
        Self::new(self.get() + 2)
    }

    /// Whether the client is the one who opens streams with such an id.
    pub fn is_client_initiated(self) -> bool {
        self.get() % 2 == 1
    }

    /// Reads the id of a frame that has to have one; the first bit is reserved.
    pub(super) fn parse(word: u32) -> Result<Self, MalformedFrame> {
        Self::new(word & MAX_ID).ok_or(MalformedFrame("a stream with the id zero"))
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How much a stream matters: 0 most, 7 least. Kubernetes always says 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Priority(u8);

impl Priority {
    /// What matters most, and what everybody in Kubernetes sends.
    pub const HIGHEST: Self = Self(0);
    /// What matters least.
    pub const LOWEST: Self = Self(7);

    /// A priority; what is beyond the lowest is the lowest.
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
