//! Why there is no signature.

use crate::structured::ParseError;

/// Why a request cannot be signed, or a key or credential not be used. Never
/// repeats a secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Key material is not what it should be.
    #[error("the key cannot be used: {0}")]
    Key(String),
    /// A component has no value in this request, or may not be covered.
    #[error("the component {identifier} cannot be covered: {cause}")]
    Component {
        /// As it is written in `Signature-Input`.
        identifier: String,
        /// Why.
        cause: &'static str,
    },
    /// A structured field has no reading.
    #[error("{field}: {cause}")]
    Field {
        /// The header.
        field: &'static str,
        /// What is wrong with it.
        cause: ParseError,
    },
    /// A structured field has a reading, but not the form that is needed.
    #[error("{field}: {cause}")]
    Form {
        /// The header.
        field: &'static str,
        /// What is wrong with it.
        cause: &'static str,
    },
    /// A name or a parameter that a header cannot carry.
    #[error("{0} cannot be written in a structured field")]
    Unwritable(&'static str),
    /// The request cannot be signed as it is.
    #[error("the request cannot be signed: {0}")]
    Request(&'static str),
    /// The cryptographic library gave up.
    #[error("signing failed")]
    Signing,
}
