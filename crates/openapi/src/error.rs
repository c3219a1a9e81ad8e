//! What can be wrong with what servers say, and which of them said it.

use std::fmt;

/// One of the servers whose documents are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Server {
    /// The one whose word counts where several say something.
    Local,
    /// The one at this place among the others.
    Other(usize),
}

/// Why nothing could be merged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No index came: cut short, or not what was asked for. Without it nothing
    /// is known of the documents of this server.
    #[error("the answer cannot be read as an index of OpenAPI documents: {0}")]
    Index(#[source] serde_json::Error),
    /// A document is no OpenAPI in JSON. The other documents can be merged
    /// without it.
    #[error("the OpenAPI document of {of} cannot be read: {source}")]
    Json {
        /// Whose it is.
        of: Server,
        /// Where reading ended.
        source: serde_json::Error,
    },
    /// A document is no OpenAPI in protobuf. The other documents can be merged
    /// without it.
    #[error("the OpenAPI document of {of} cannot be read: {cause}")]
    Protobuf {
        /// Whose it is.
        of: Server,
        /// What is wrong with it.
        cause: DecodeError,
    },
}

/// What is wrong with bytes that should be a document in protobuf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// They end in the middle of a field, or are no field.
    #[error("malformed protobuf")]
    Malformed,
    /// A field is of another type than its number says.
    #[error("a field of an unexpected type")]
    WrongType,
    /// A name is not UTF-8.
    #[error("a name that is not text")]
    NameNotUtf8,
    /// Two entries of a map have the same name: readers would disagree on which
    /// of them counts.
    #[error("a name that comes twice")]
    DuplicateName,
}

impl Error {
    /// Whose document it is that has to be left out.
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
