//! Secrets that are never shown.

use std::fmt;

use zeroize::Zeroizing;

/// A token, a password or a private key. It is never shown, and zeroed on drop.
/// [`expose`](Secret::expose) returns its bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Wraps the bytes; a buffer is moved, not copied.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(bytes.into()))
    }

    /// The secret's bytes.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The secret as text, if it was text when it was read.
    pub(crate) fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}
