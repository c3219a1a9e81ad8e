//! Text that nobody may see.

use std::fmt;

use zeroize::Zeroizing;

/// A token, a key, or a document with one. It is shown nowhere, and overwritten when
/// it is dropped; whoever needs it has to [`expose`](Sensitive::expose) it.
#[derive(Clone, PartialEq, Eq)]
pub struct Sensitive(Zeroizing<String>);

impl Sensitive {
    /// Keeps it, without a further copy.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// Gives it away.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Sensitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}
