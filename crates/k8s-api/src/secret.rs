//! Secrets: tokens, keys, passwords and documents that contain one.
//!
//! ```
//! use skewbridge_k8s_api::secret::Secret;
//!
//! let token = Secret::new("hunter2");
//! assert_eq!(format!("{token:?}"), "[redacted]");
//! assert_eq!(token.expose(), b"hunter2");
//! ```

use std::fmt;
use std::ops::Deref;

use zeroize::{Zeroize, Zeroizing};

/// A secret of bytes.
pub type Secret = Redacted<Vec<u8>>;

/// A secret of text.
pub type SecretString = Redacted<String>;

/// A value that is never shown, and zeroed when it is dropped.
///
/// The crate `secrecy` has no secrets that can be compared, which a changed credential needs.
#[derive(Clone, PartialEq, Eq)]
pub struct Redacted<T: Zeroize>(Zeroizing<T>);

impl<T: Zeroize> Redacted<T> {
    /// Wraps a value; a buffer is moved, not copied.
    pub fn new(value: impl Into<T>) -> Self {
        Self(Zeroizing::new(value.into()))
    }

    /// The value itself.
    pub fn expose(&self) -> &T::Target
    where
        T: Deref,
    {
        &self.0
    }
}

impl<T: Zeroize> fmt::Debug for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_compared_and_never_shown() {
        let (token, same) = (Secret::new("hunter2"), Secret::new(b"hunter2".to_vec()));
        assert_eq!(token, same);
        assert_ne!(token, Secret::new("other"));
        let text = SecretString::new("hunter2");
        assert_eq!(text.expose(), "hunter2");
        assert_eq!(
            format!("{:?}", Some((token, text))),
            "Some(([redacted], [redacted]))"
        );
    }
}
