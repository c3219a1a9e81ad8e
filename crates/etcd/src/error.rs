//! What can go wrong, where, and what to do about it.

use crate::endpoint::Endpoint;
use crate::grpc::{FrameError, MAX_MESSAGE_BYTES, Oversized};
use crate::status::{Code, Status};
use crate::types::Revision;

/// Why a call or a watch failed. Of several endpoints that failed, the last
/// that was tried is named.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no connection, or it ended before the answer. Try again later.
    #[error("no connection to etcd at {endpoint}: {cause}")]
    Connection {
        /// Which one.
        endpoint: Endpoint,
        /// In words.
        cause: String,
    },
    /// etcd refused.
    #[error("etcd at {endpoint} says: {status}")]
    Status {
        /// Which one.
        endpoint: Endpoint,
        /// What it said.
        status: Status,
    },
    /// This does not speak gRPC as etcd does.
    #[error("a malformed answer from etcd at {endpoint}: {cause}")]
    Malformed {
        /// Which one.
        endpoint: Endpoint,
        /// In words.
        cause: String,
    },
    /// The history that was asked for is gone: list again.
    #[error("etcd at {endpoint} has compacted its history up to revision {revision}")]
    Compacted {
        /// Which one.
        endpoint: Endpoint,
        /// From here on there is history.
        revision: Revision,
    },
    /// etcd ended the watch: list again.
    #[error("etcd at {endpoint} ended the watch: {reason}")]
    WatchEnded {
        /// Which one.
        endpoint: Endpoint,
        /// What it said.
        reason: String,
    },
    /// The request is larger than etcd takes.
    #[error("a request of {size} bytes for etcd, more than {MAX_MESSAGE_BYTES}")]
    TooLarge {
        /// Its size.
        size: usize,
    },
}

impl Error {
    /// Whether etcd does not have the lease (any more).
    pub fn is_lease_not_found(&self) -> bool {
        matches!(self, Self::Status { status, .. } if status.is_lease_not_found())
    }
}

impl From<Oversized> for Error {
    fn from(Oversized(size): Oversized) -> Self {
        Self::TooLarge { size }
    }
}

/// A failure before it is known where.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    Connection(String),
    /// Nothing came in time, which says more than a connection that ended.
    Timeout(String),
    Status(Status),
    Malformed(String),
    Compacted(Revision),
    WatchEnded(String),
}

impl Failure {
    /// Whether another endpoint may do better.
    pub(crate) fn is_endpoint_failure(&self) -> bool {
        match self {
            Self::Connection(_) | Self::Timeout(_) => true,
            Self::Status(status) => status.code == Code::UNAVAILABLE,
            Self::Malformed(_) | Self::Compacted(_) | Self::WatchEnded(_) => false,
        }
    }

    pub(crate) fn at(self, endpoint: &Endpoint) -> Error {
        let endpoint = endpoint.clone();
        match self {
            Self::Connection(cause) | Self::Timeout(cause) => Error::Connection { endpoint, cause },
            Self::Status(status) => Error::Status { endpoint, status },
            Self::Malformed(cause) => Error::Malformed { endpoint, cause },
            Self::Compacted(revision) => Error::Compacted { endpoint, revision },
            Self::WatchEnded(reason) => Error::WatchEnded { endpoint, reason },
        }
    }
}

impl From<FrameError> for Failure {
    fn from(error: FrameError) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl From<prost::DecodeError> for Failure {
    fn from(error: prost::DecodeError) -> Self {
        Self::Malformed(error.to_string())
    }
}
