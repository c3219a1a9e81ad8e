//! Redacted and zeroized text.

use std::fmt;

use zeroize::Zeroizing;

/// A token, a key, or a document that contains one. `Debug` redacts it, and it is zeroized
/// on drop. [`expose`](Sensitive::expose) returns the text.
#[derive(Clone, PartialEq, Eq)]
pub struct Sensitive(Zeroizing<String>);

impl Sensitive {
    /// Wraps a text without a further copy.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// Returns the secret text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Sensitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}
