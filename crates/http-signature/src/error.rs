//! Errors of signing and of parsing signatures and keys.

use crate::structured::ParseError;

/// Why a request cannot be signed, a header cannot be parsed, or a key cannot be used. No text
/// repeats a secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key cannot be used.
    #[error("the key cannot be used: {0}")]
    Key(String),
    /// A component has no value in this request, or cannot be covered.
    #[error("the component {identifier} cannot be covered: {cause}")]
    Component {
        /// The identifier as it is serialized in `Signature-Input`.
        identifier: String,
        /// The reason.
        cause: &'static str,
    },
    /// A header is not a structured field.
    #[error("{field}: {cause}")]
    Field {
        /// The header.
        field: &'static str,
        /// The parse error.
        cause: ParseError,
    },
    /// A structured field does not have the required form.
    #[error("{field}: {cause}")]
    Form {
        /// The header.
        field: &'static str,
        /// The reason.
        cause: &'static str,
    },
    /// A name or a parameter that a structured field cannot contain.
    #[error("{0} cannot be written in a structured field")]
    NotSerializable(&'static str),
    /// The request cannot be signed as it is.
    #[error("the request cannot be signed: {0}")]
    Request(&'static str),
    /// The cryptographic library failed.
    #[error("signing failed")]
    Signing,
}
