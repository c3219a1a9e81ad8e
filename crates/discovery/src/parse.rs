//! Parses JSON like kube-apiserver's Go code.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// The longest kind or version that an error quotes: real ones are shorter, and an error must
/// not copy a whole response into a log.
const MAX_NAME_CHARS: usize = 80;

/// Why a response is not the requested discovery object.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// Truncated or malformed: a retry may succeed.
    #[error("the response cannot be parsed as {expected}: {source}")]
    Malformed {
        /// The requested kind.
        expected: &'static str,
        /// The parse error.
        source: serde_json::Error,
    },
    /// An object of another kind: the server does not support this form of discovery, or
    /// refuses it with a Status.
    #[error("expected {expected}, found {found}")]
    WrongKind {
        /// The requested kind.
        expected: &'static str,
        /// The received kind, with its version.
        found: String,
    },
    /// A list of resources for a path that no list of groups names.
    #[error("{path} is not the path of a known group version")]
    UnknownPath {
        /// The path.
        path: String,
    },
}

/// The type metadata of an object.
#[derive(Deserialize)]
pub(crate) struct TypeMeta {
    #[serde(default, deserialize_with = "null_as_default")]
    kind: String,
    #[serde(rename = "apiVersion", default, deserialize_with = "null_as_default")]
    pub(crate) api_version: String,
}

impl TypeMeta {
    /// Parses it, if the object has this kind.
    pub(crate) fn expect(bytes: &[u8], expected: &'static str) -> Result<Self, ParseError> {
        let meta: Self = read(bytes, expected)?;
        if meta.kind == expected {
            Ok(meta)
        } else {
            Err(meta.unexpected(expected))
        }
    }

    /// The error for an object of another kind.
    pub(crate) fn unexpected(&self, expected: &'static str) -> ParseError {
        let mut found = match self.kind.as_str() {
            "" => "an object without a kind".to_owned(),
            kind => shorten(kind),
        };
        if !self.api_version.is_empty() {
            found.push_str(" of ");
            found.push_str(&shorten(&self.api_version));
        }
        ParseError::WrongKind { expected, found }
    }
}

/// Parses an object whose kind is known.
pub(crate) fn read<T: DeserializeOwned>(
    bytes: &[u8],
    expected: &'static str,
) -> Result<T, ParseError> {
    serde_json::from_slice(bytes).map_err(|source| ParseError::Malformed { expected, source })
}

/// Like Go, `null` leaves a field at its zero value.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn shorten(name: &str) -> String {
    name.chars().take(MAX_NAME_CHARS).collect()
}
