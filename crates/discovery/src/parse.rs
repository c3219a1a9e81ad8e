//! Reading JSON as kube-apiserver's Go would, and saying why it was not possible.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// Longest kind or version that an error repeats: real ones are shorter, and an
/// error must not carry a whole answer into a log.
const MAX_NAME_CHARS: usize = 80;

/// Why an answer is not the discovery that was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// Cut short or garbled: worth another try.
    #[error("the answer cannot be read as {expected}: {source}")]
    Malformed {
        /// The kind that was asked for.
        expected: &'static str,
        /// Where reading ended.
        source: serde_json::Error,
    },
    /// An object of another kind: a server that does not know this form of
    /// discovery, or a Status that refuses it.
    #[error("expected {expected}, found {found}")]
    WrongKind {
        /// The kind that was asked for.
        expected: &'static str,
        /// The kind that came, with its version.
        found: String,
    },
    /// A list of resources for a path that no list of groups names.
    #[error("no group version is at {path}")]
    UnknownPath {
        /// The path it was said to come from.
        path: String,
    },
}

/// What every object says of itself.
#[derive(Deserialize)]
pub(crate) struct TypeMeta {
    #[serde(default, deserialize_with = "null_as_default")]
    kind: String,
    #[serde(rename = "apiVersion", default, deserialize_with = "null_as_default")]
    pub(crate) api_version: String,
}

impl TypeMeta {
    /// Reads it, if the object is of that kind.
    pub(crate) fn expect(bytes: &[u8], expected: &'static str) -> Result<Self, ParseError> {
        let meta: Self = read(bytes, expected)?;
        if meta.kind == expected {
            Ok(meta)
        } else {
            Err(meta.unexpected(expected))
        }
    }

    /// The error of an object that is something else.
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

/// Reads an object whose kind is known.
pub(crate) fn read<T: DeserializeOwned>(
    bytes: &[u8],
    expected: &'static str,
) -> Result<T, ParseError> {
    serde_json::from_slice(bytes).map_err(|source| ParseError::Malformed { expected, source })
}

/// Go leaves a field at its zero value when it finds `null`.
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
