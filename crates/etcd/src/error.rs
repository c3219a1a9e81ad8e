//! Errors, with their endpoint and what to do about them.

use crate::endpoint::Endpoint;
use crate::grpc::{FrameError, MAX_MESSAGE_BYTES, Oversized};
use crate::status::{Code, Status};
use crate::types::Revision;

/// Why a call or a watch failed. If several endpoints failed, the last one is named.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection failed, or ended before the response. Retry later.
    #[error("no connection to etcd at {endpoint}: {cause}")]
    Connection {
        /// The endpoint.
        endpoint: Endpoint,
        /// The cause.
        cause: String,
    },
    /// etcd answered with an error.
    #[error("etcd at {endpoint} answered: {status}")]
    Status {
        /// The endpoint.
        endpoint: Endpoint,
        /// The gRPC status.
        status: Status,
    },
    /// The server does not implement gRPC like etcd.
    #[error("a malformed response from etcd at {endpoint}: {cause}")]
    Malformed {
        /// The endpoint.
        endpoint: Endpoint,
        /// The cause.
        cause: String,
    },
    /// The requested history was compacted: list again.
    #[error("etcd at {endpoint} has compacted its history up to revision {revision}")]
    Compacted {
        /// The endpoint.
        endpoint: Endpoint,
        /// The first revision that is available.
        revision: Revision,
    },
    /// etcd ended the watch: list again.
    #[error("etcd at {endpoint} ended the watch: {reason}")]
    WatchEnded {
        /// The endpoint.
        endpoint: Endpoint,
        /// The reason that etcd gave.
        reason: String,
    },
    /// The request is larger than etcd accepts.
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

/// A failure without its endpoint.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    Connection(String),
    /// A timeout, which counts against the endpoint at once, unlike a connection that ended.
    Timeout(String),
    Status(Status),
    Malformed(String),
    Compacted(Revision),
    WatchEnded(String),
}

impl Failure {
    /// Whether another endpoint may succeed.
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
