//! The servers that connections are made to: upstream with each identity, and peers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use skewbridge_http_engine::client::Keepalive;
use skewbridge_peer_directory::KeyDigest;

use super::{Dialer, PeerConnectionIdentity, Role, Target, UpstreamIdentity};

/// Upstream with each identity, and how peers are reached.
#[derive(Debug)]
pub struct UpstreamTargets {
    /// Without a certificate.
    pub plain: Target,
    /// With the front-proxy certificate, where there is one.
    pub front_proxy: Option<Target>,
    /// Any peer; present if there are a front-proxy certificate and `--peer-ca-file`. A bridge
    /// trusts the hop header because of that certificate.
    pub peer: Option<PeerTarget>,
}

/// How a peer is reached, at any address.
#[derive(Debug)]
pub struct PeerTarget {
    dialer: Dialer,
    /// With the front-proxy certificate.
    tls: Arc<ClientConfig>,
    /// Without it. Has its own TLS session cache: a resumed session would present the original
    /// certificate.
    token_tls: Arc<ClientConfig>,
    keepalive: Keepalive,
}

/// Keepalive of HTTP/2 connections to peers that have requests in flight: a peer that is
/// stopped, or behind a partition, is found within 7 s. Shorter than for upstream, since
/// another peer may serve the request.
const PEER_PING_INTERVAL: Duration = Duration::from_secs(2);
const PEER_PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The server name of a peer's certificate (KEP-4020, Proxy transport between apiservers and
/// authn).
const PEER_NAME: &str = "kubernetes.default.svc";

impl PeerTarget {
    /// `tls` has the front-proxy certificate, `token_tls` has none. `ping` is the keepalive
    /// interval of connections to upstream.
    pub(crate) fn new(
        dialer: Dialer,
        tls: ClientConfig,
        token_tls: ClientConfig,
        ping: Duration,
    ) -> Self {
        Self {
            dialer,
            tls: Arc::new(tls),
            token_tls: Arc::new(token_tls),
            keepalive: Keepalive {
                ping_interval: ping.min(PEER_PING_INTERVAL),
                ping_timeout: ping.min(PEER_PING_TIMEOUT),
            },
        }
    }

    /// The peer at this address.
    pub(crate) fn at(
        &self,
        address: SocketAddr,
        pins: Vec<KeyDigest>,
        identity: PeerConnectionIdentity,
    ) -> Option<Target> {
        Some(Target {
            host: address.ip().to_string(),
            port: address.port(),
            dialer: self.dialer.clone(),
            server_name: ServerName::try_from(PEER_NAME).ok()?,
            tls: match identity {
                PeerConnectionIdentity::FrontProxy => self.tls.clone(),
                PeerConnectionIdentity::Token | PeerConnectionIdentity::UnprovenToken => {
                    self.token_tls.clone()
                }
            },
            keepalive: self.keepalive,
            pins,
            role: Role::Peer,
        })
    }
}

impl UpstreamTargets {
    /// The target of an identity.
    pub fn of(&self, identity: UpstreamIdentity) -> Option<&Target> {
        match identity {
            UpstreamIdentity::Plain => Some(&self.plain),
            UpstreamIdentity::FrontProxy => self.front_proxy.as_ref(),
        }
    }
}
