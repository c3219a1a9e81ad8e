//! Errors in documents, and the server that sent them.

use std::fmt;

/// One of the servers whose documents are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Server {
    /// The server whose document takes precedence.
    Local,
    /// The server with this index among the others.
    Other(usize),
}

/// Why documents could not be merged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The response is truncated or no index. Without it the documents of this server are
    /// unknown.
    #[error("the response cannot be parsed as an index of OpenAPI documents: {0}")]
    Index(#[source] serde_json::Error),
    /// A document is not valid JSON. The other documents can be merged without it.
    #[error("the OpenAPI document of {of} cannot be parsed: {source}")]
    Json {
        /// The server of the document.
        of: Server,
        /// The parse error.
        source: serde_json::Error,
    },
    /// A document is not valid protobuf. The other documents can be merged without it.
    #[error("the OpenAPI document of {of} cannot be parsed: {cause}")]
    Protobuf {
        /// The server of the document.
        of: Server,
        /// The decode error.
        cause: DecodeError,
    },
}

/// Why bytes are not a valid protobuf document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// They end inside a field, or are no field.
    #[error("malformed protobuf")]
    Malformed,
    /// A field has another type than its number requires.
    #[error("a field of an unexpected type")]
    WrongType,
    /// A name is not UTF-8.
    #[error("a name that is not UTF-8")]
    NameNotUtf8,
    /// Two entries of a map have the same name: parsers would disagree on which counts.
    #[error("a duplicate name")]
    DuplicateName,
}

impl Error {
    /// The server whose document has to be omitted.
    pub fn server(&self) -> Option<Server> {
        match self {
            Self::Index(_) => None,
            Self::Json { of, .. } | Self::Protobuf { of, .. } => Some(*of),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("the local server"),
            Self::Other(number) => write!(f, "other server {number}"),
        }
    }
}
