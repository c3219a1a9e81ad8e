//! The kube-apiserver behind this bridge, and the peers: how connections to them are opened, and
//! which pool a request uses. The connections themselves are `http-engine`'s.

mod connect;
mod dial;
mod metrics;
mod pool_set;
mod targets;
mod transport;

pub use connect::{Role, Target, UpstreamIo};
pub(crate) use dial::authority;
pub use dial::{Dialer, Proxy};
pub use pool_set::Pools;
pub use skewbridge_http_engine::client::{
    ConnectError, ConnectionGuard, ProtocolPreference, ReplayBody, RetryClass, SendError,
};
pub use targets::{PeerTarget, UpstreamTargets};
pub use transport::Transport;

use skewbridge_http_engine::client;

/// The connections of one worker to one server with one identity.
pub type Pool = client::Pool<Target>;

/// What upstream answered.
pub type UpstreamResponse = client::UpstreamResponse<UpstreamIo>;

/// A connection to upstream after 101.
pub type Upgraded = client::h1::Upgraded<UpstreamIo>;

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
