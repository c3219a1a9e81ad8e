//! Requests to one server over pooled connections.
//!
//! A request is sent in the HTTP version in which it was received, if the server supports it: the server
//! gets the same as without a proxy, and nothing is converted. Upgrades need HTTP/1.1.

mod connector;
pub mod h1;
mod h2;
mod pool;
mod replay;

pub use connector::{
    ConnectError, Connected, ConnectionCredential, ConnectionGuard, Connector, Keepalive,
    PoolMetrics, Protocol, ProtocolOffer,
};
pub use pool::{Pool, PoolConfig};
pub use replay::{ReplayBody, RetryClass, TrailerFilter};

use http::{Response, StatusCode};

use crate::body::ResponseBody;

/// The preferred HTTP version of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtocolPreference {
    /// HTTP/1.1 if the server speaks it.
    H1,
    /// HTTP/2 if the server speaks it.
    H2,
    /// HTTP/1.1 only: the request is an upgrade.
    Upgrade,
}

/// The response of the server.
#[derive(Debug)]
pub enum UpstreamResponse<Io> {
    /// A response.
    Response(Response<ResponseBody>),
    /// 101: the connection now belongs to the client.
    Upgraded(Response<()>, h1::Upgraded<Io>),
}

impl<Io> UpstreamResponse<Io> {
    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Response(response) => response.status(),
            Self::Upgraded(response, _) => response.status(),
        }
    }
}

/// Why there is no response, and whether the server can have processed the request.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Not connected: the server has received nothing.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Connected, but the server has not processed the request: a stale connection, or a refused stream.
    #[error("upstream did not process the request: {0}")]
    NotProcessed(String),
    /// The same, because of a GOAWAY that is unrelated to the request.
    #[error("upstream did not process the request: {0}")]
    GoAway(String),
    /// The server responded that it has not processed the request.
    #[error("upstream declined the request with {}", .0.as_u16())]
    Declined(StatusCode),
    /// The server may have processed the request, and did not answer.
    #[error("upstream closed the connection before it answered: {0}")]
    ConnectionLost(String),
    /// The response is not HTTP.
    #[error("upstream's answer is not HTTP: {0}")]
    InvalidResponse(String),
    /// The client's own body failed.
    #[error("{0}")]
    Client(String),
}

impl SendError {
    /// Whether the request can be retried without the risk of being processed twice.
    pub fn is_safe_to_retry(&self) -> bool {
        matches!(
            self,
            Self::Connect(_) | Self::NotProcessed(_) | Self::GoAway(_) | Self::Declined(_)
        )
    }
}
