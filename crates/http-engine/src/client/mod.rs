//! Requests to one server over pooled connections.
//!
//! A request goes out in the protocol in which it came, where the server speaks both: the server
//! then sees what it would have seen without a proxy, and nothing is converted. Upgrades need
//! HTTP/1.1.

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

/// In which protocol a request should go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtocolPreference {
    /// HTTP/1.1 if the server speaks it.
    H1,
    /// HTTP/2 if the server speaks it.
    H2,
    /// HTTP/1.1 or nothing: the request wants to switch protocols.
    Upgrade,
}

/// What the server answered.
#[derive(Debug)]
pub enum UpstreamResponse<Io> {
    /// A response.
    Response(Response<ResponseBody>),
    /// 101: the connection is the client's now.
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
    /// No connection: the server has seen nothing.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// There was a connection, and the server is known not to have processed the request: a
    /// stale connection, or a refused stream.
    #[error("upstream did not take the request: {0}")]
    NotProcessed(String),
    /// The same by a GOAWAY, which has nothing to do with the request.
    #[error("upstream did not take the request: {0}")]
    GoneAway(String),
    /// The server answered that it has not processed the request, and will not.
    #[error("upstream declined the request with {}", .0.as_u16())]
    Declined(StatusCode),
    /// The server may have processed the request, and did not answer.
    #[error("upstream closed the connection before it answered: {0}")]
    CutOff(String),
    /// The response is not HTTP.
    #[error("upstream's answer is not HTTP: {0}")]
    BadAnswer(String),
    /// The client's own body failed.
    #[error("{0}")]
    Client(String),
}

impl SendError {
    /// Whether the same request may be sent again without any risk that it is processed twice.
    pub fn is_safe_to_retry(&self) -> bool {
        matches!(
            self,
            Self::Connect(_) | Self::NotProcessed(_) | Self::GoneAway(_) | Self::Declined(_)
        )
    }
}
