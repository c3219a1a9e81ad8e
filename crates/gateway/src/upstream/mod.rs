//! The kube-apiserver behind this bridge, and the peers: connections to them,
//! and requests over those.
//!
//! A request goes up in the protocol in which it came, where upstream speaks
//! both: what upstream sees is then what it would have seen without a bridge,
//! and nothing is converted. Upgrades need HTTP/1.1.

mod connect;
mod dial;
pub mod h1;
pub mod h2;
mod pool;
mod pool_set;
mod replay;
mod targets;
mod transport;

pub use connect::{ConnectError, Role, Target, UpstreamIo};
pub(crate) use dial::authority;
pub use dial::{Dialer, Proxy};
pub use pool::Pool;
pub(crate) use pool::Slot;
pub use pool_set::Pools;
pub use replay::{Replay, RetryClass};
pub use targets::{PeerTarget, UpstreamTargets};
pub use transport::Wire;

use http::{Response, StatusCode};

use crate::body::ResponseBody;

/// Which identity a connection to upstream stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UpstreamIdentity {
    /// Presents the front-proxy certificate: for identities that we assert.
    FrontProxy,
    /// Presents none: for bearer tokens and the anonymous, who are judged
    /// exactly as if they had come straight.
    Plain,
}

impl UpstreamIdentity {
    /// As a metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FrontProxy => "front-proxy",
            Self::Plain => "anonymous-or-token",
        }
    }
}

/// Which identity a connection to a peer stands for, and which requests share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PeerConnectionIdentity {
    /// Presents the front-proxy certificate: for identities that we assert, and for all
    /// requests to a bridge, which recognises a peer by it and never takes it for the
    /// identity of a request.
    FrontProxy,
    /// Presents none: for tokens that a kube-apiserver verifies. It would take a request
    /// whose token it refuses for a request of the certificate, where its client CA
    /// verifies that.
    Token,
    /// The same for tokens that kube-apiserver has not accepted before: after 401 it ends
    /// the connection.
    UnprovenToken,
}

/// In which protocol a request should go up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtocolPreference {
    /// HTTP/1.1 if upstream speaks it.
    H1,
    /// HTTP/2 if upstream speaks it.
    H2,
    /// HTTP/1.1 or nothing: the request wants to switch protocols.
    Upgrade,
}

/// What upstream answered.
#[derive(Debug)]
pub enum UpstreamResponse {
    /// A response.
    Response(Response<ResponseBody>),
    /// 101: the connection is the client's now.
    Upgraded(Response<()>, h1::Upgraded),
}

impl UpstreamResponse {
    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Response(response) => response.status(),
            Self::Upgraded(response, _) => response.status(),
        }
    }
}

/// Why there is no reply, and whether upstream can have acted on the request.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection: upstream has seen nothing.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A connection was there, and upstream is known not to have acted: a
    /// stale connection, or a refused stream.
    #[error("upstream did not take the request: {0}")]
    NotProcessed(String),
    /// The same by a GOAWAY, which has nothing to do with the request.
    #[error("upstream did not take the request: {0}")]
    GoneAway(String),
    /// Upstream answered that it has not acted, and does not mean to.
    #[error("upstream declined the request with {}", .0.as_u16())]
    Declined(StatusCode),
    /// Upstream may have acted, and did not say.
    #[error("upstream closed the connection before it answered: {0}")]
    CutOff(String),
    /// Upstream answered what is not HTTP.
    #[error("upstream's answer is not HTTP: {0}")]
    BadAnswer(String),
    /// The client's own body failed.
    #[error("{0}")]
    Client(String),
}

impl SendError {
    /// Whether the same request may be sent again without any risk of it being
    /// acted on twice.
    pub fn is_safe_to_repeat(&self) -> bool {
        matches!(
            self,
            Self::Connect(_) | Self::NotProcessed(_) | Self::GoneAway(_) | Self::Declined(_)
        )
    }
}
