//! The servers that connections are made to: upstream with each identity, and peers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use skewbridge_http_engine::client::Keepalive;
use skewbridge_peer_directory::KeyDigest;

use super::presented::PresentedCertificates;
use super::{Dialer, PeerConnectionIdentity, Role, Target, UpstreamIdentity};
use crate::config::UpstreamServer;

/// Upstream with each identity, and how peers are reached.
#[derive(Debug)]
pub struct UpstreamTargets {
    /// Without a certificate.
    pub plain: Target,
    /// With the front-proxy certificate, where there is one.
    pub front_proxy: Option<Target>,
    /// Any peer; present if there are a front-proxy certificate and `--peer-ca-file`. A bridge
    /// accepts the hop header because of that certificate.
    pub peer: Option<PeerTarget>,
}

/// How a peer is reached, at any address.
#[derive(Debug, Clone)]
pub struct PeerTarget {
    dialer: Dialer,
    /// With the front-proxy certificate.
    tls: Arc<ClientConfig>,
    /// Without it. Has its own TLS session cache: a resumed session would present the original
    /// certificate.
    token_tls: Arc<ClientConfig>,
    keepalive: Keepalive,
    presented: PresentedCertificates,
}

/// Keepalive of HTTP/2 connections to peers and backends that have requests in flight: a server
/// that is stopped, or behind a partition, is found within 7 s. Shorter than for a sole upstream,
/// since another server may serve the request.
const REPLACEABLE_PING_INTERVAL: Duration = Duration::from_secs(2);
const REPLACEABLE_PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The server name of a peer's certificate (KEP-4020, Proxy transport between apiservers and
/// authn).
const PEER_NAME: &str = "kubernetes.default.svc";

/// Keepalive of connections to a server whose requests another server can serve. `ping` is the
/// keepalive interval of connections to a sole upstream.
pub(crate) fn replaceable_server_keepalive(ping: Duration) -> Keepalive {
    Keepalive {
        ping_interval: ping.min(REPLACEABLE_PING_INTERVAL),
        ping_timeout: ping.min(REPLACEABLE_PING_TIMEOUT),
    }
}

impl PeerTarget {
    /// `tls` has the front-proxy certificate, `token_tls` has none. `ping` is the keepalive
    /// interval of connections to upstream.
    pub(crate) fn new(
        dialer: Dialer,
        tls: ClientConfig,
        token_tls: ClientConfig,
        ping: Duration,
        presented: &PresentedCertificates,
    ) -> Self {
        Self {
            dialer,
            tls: Arc::new(tls),
            token_tls: Arc::new(token_tls),
            keepalive: replaceable_server_keepalive(ping),
            presented: presented.clone(),
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
                PeerConnectionIdentity::Token | PeerConnectionIdentity::UnauthenticatedToken => {
                    self.token_tls.clone()
                }
            },
            keepalive: self.keepalive,
            pins,
            role: Role::Peer,
            presented: self.presented.clone(),
        })
    }
}

impl UpstreamTargets {
    /// The same for another server behind the bridge.
    pub(crate) fn at(&self, server: &UpstreamServer) -> Self {
        let moved = |target: &Target| Target {
            host: server.host.clone(),
            port: server.port,
            server_name: server.server_name.clone(),
            ..target.clone()
        };
        Self {
            plain: moved(&self.plain),
            front_proxy: self.front_proxy.as_ref().map(moved),
            peer: self.peer.clone(),
        }
    }

    /// The target of an identity.
    pub fn of(&self, identity: UpstreamIdentity) -> Option<&Target> {
        match identity {
            UpstreamIdentity::Plain => Some(&self.plain),
            UpstreamIdentity::FrontProxy => self.front_proxy.as_ref(),
        }
    }
}
