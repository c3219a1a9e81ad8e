//! The kube-apiserver behind this bridge, and the peers: how connections to them are opened, and
//! which pool a request uses. The connections themselves are `http-engine`'s.

mod connect;
mod dial;
mod metrics;
mod pool_set;
mod presented;
mod targets;
mod transport;

pub use connect::{Role, Target, UpstreamIo};
pub(crate) use dial::authority;
pub use dial::{Dialer, Proxy};
pub use pool_set::Pools;
pub(crate) use presented::PresentedCertificates;
pub use skewbridge_http_engine::client::{
    ConnectError, ConnectionGuard, ProtocolPreference, ReplayBody, RetryClass, SendError,
};
pub(crate) use targets::replaceable_server_keepalive;
pub use targets::{PeerTarget, UpstreamTargets};
pub use transport::Transport;

use skewbridge_http_engine::client;

/// The connections of one worker to one server with one identity.
pub type Pool = client::Pool<Target>;

/// A response of upstream.
pub type UpstreamResponse = client::UpstreamResponse<UpstreamIo>;

/// A connection to upstream after 101.
pub type Upgraded = client::h1::Upgraded<UpstreamIo>;

/// The identity of a connection to upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UpstreamIdentity {
    /// With the front-proxy certificate: for identities that the bridge asserts.
    FrontProxy,
    /// Without a certificate: for bearer tokens and anonymous requests, which upstream
    /// authenticates as if they had been sent directly.
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

/// The identity of a connection to a peer, and which requests share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PeerConnectionIdentity {
    /// With the front-proxy certificate: for identities that the bridge asserts, and for all
    /// requests to another bridge, which identifies a peer by it and never uses it as the identity
    /// of a request.
    FrontProxy,
    /// Without a certificate: for tokens that a kube-apiserver verifies. If its client CA verifies
    /// the certificate, it would authenticate a request with an invalid token as the certificate.
    Token,
    /// The same for tokens that kube-apiserver has not accepted before: after 401 it ends
    /// the connection.
    UnauthenticatedToken,
}
