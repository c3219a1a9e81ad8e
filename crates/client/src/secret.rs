//! What nobody may see.

use std::fmt;

use zeroize::Zeroizing;

/// A token, a password or a private key. It is shown nowhere, and overwritten when it
/// is dropped: whoever needs it has to [`expose`](Secret::expose) it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Keeps it; a buffer is taken over, not copied.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(bytes.into()))
    }

    /// Gives it away.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Gives away what was text when it was read.
    pub(crate) fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}
