//! Opening connections to upstream.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::{CertificateError, ClientConfig};
use rustls_pki_types::ServerName;
use skewbridge_peer_directory::KeyDigest;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::dial::{Dialer, authority};
use super::transport::Wire;
use crate::tls::serving_key::is_pinned;
use skewbridge_stream_io::ReadAhead;

/// A byte stream to upstream.
pub type UpstreamIo = Box<TlsStream<ReadAhead<Wire>>>;

/// Where upstream is and how to know it. Replaced as a whole when its files
/// change.
#[derive(Debug, Clone)]
pub struct Target {
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// By which way it is reached.
    pub dialer: Dialer,
    /// What its certificate must be for.
    pub server_name: ServerName<'static>,
    /// Roots and, on one leg, the front-proxy certificate. Without ALPN: that
    /// depends on the request.
    pub tls: Arc<ClientConfig>,
    /// How often a connection in use is asked whether it lives.
    pub ping: Duration,
    /// How long it may take to say so.
    pub ping_timeout: Duration,
    /// Digests of the keys that it may present; empty allows any that is signed.
    pub pins: Vec<KeyDigest>,
    /// What it is to us.
    pub role: Role,
}

/// What the server at the other end is to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The kube-apiserver behind this bridge.
    Upstream,
    /// Another server of the cluster, or its bridge.
    Peer,
}

impl Role {
    /// TCP and TLS together, and a proxy on the way. Both kinds are near and answer within milliseconds
    /// or not at all; beside a peer there may be another to try.
    fn connect_timeout(self) -> Duration {
        match self {
            Self::Upstream => Duration::from_secs(10),
            Self::Peer => Duration::from_secs(3),
        }
    }

    fn unknown_issuer(self) -> &'static str {
        match self {
            Self::Upstream => " (it is not signed by --upstream-ca-file)",
            Self::Peer => " (it is not signed by --peer-ca-file)",
        }
    }

    fn wrong_name(self) -> &'static str {
        match self {
            Self::Upstream => " (--upstream-server-name says which name to expect)",
            Self::Peer => " (a peer's certificate has to be for kubernetes.default.svc)",
        }
    }
}

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot connect to {address}: {cause}")]
pub struct ConnectError {
    address: String,
    cause: String,
    /// Upstream has no protocol in common with what was offered.
    pub(crate) no_common_protocol: bool,
}

/// What upstream chose to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoken {
    H1,
    H2,
}

impl Target {
    pub(crate) fn failed(&self, cause: impl std::fmt::Display) -> ConnectError {
        ConnectError {
            address: authority(&self.host, self.port),
            cause: cause.to_string(),
            no_common_protocol: false,
        }
    }

    /// Opens a connection that offers these protocols.
    pub(crate) async fn connect(
        &self,
        offer: &[&str],
    ) -> Result<(UpstreamIo, Spoken), ConnectError> {
        let limit = self.role.connect_timeout();
        let (deadline, seconds) = (Instant::now() + limit, limit.as_secs());
        let dialled = timeout_at(deadline, self.dialer.dial(&self.host, self.port)).await;
        let dialled = dialled
            .unwrap_or_else(|_| Err(self.dialer.timed_out(&self.host, self.port, seconds)))
            .map_err(|error| self.failed(error))?;
        match timeout_at(deadline, self.greet(dialled, offer)).await {
            Ok(connected) => connected,
            Err(_) => Err(self.failed(format_args!("no answer within {seconds} s"))),
        }
    }

    async fn greet(
        &self,
        wire: ReadAhead<Wire>,
        offer: &[&str],
    ) -> Result<(UpstreamIo, Spoken), ConnectError> {
        let mut tls = ClientConfig::clone(&self.tls);
        tls.alpn_protocols = offer.iter().map(|name| name.as_bytes().to_vec()).collect();
        let io = TlsConnector::from(Arc::new(tls))
            .connect(self.server_name.clone(), wire)
            .await
            .map_err(|error| self.handshake_failed(&error))?;
        let shown = io.get_ref().1.peer_certificates();
        if !is_pinned(&self.pins, shown.and_then(<[_]>::first)) {
            return Err(self.failed(
                "TLS: it presents another key than its bridge has published in the registry",
            ));
        }
        let spoken = match io.get_ref().1.alpn_protocol() {
            Some(b"h2") => Spoken::H2,
            _ => Spoken::H1,
        };
        Ok((Box::new(io), spoken))
    }

    fn handshake_failed(&self, error: &io::Error) -> ConnectError {
        let alert = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let what_to_do = match alert {
            Some(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            )) => self.role.unknown_issuer(),
            Some(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => self.role.wrong_name(),
            _ => "",
        };
        let mut failed = self.failed(format_args!("TLS: {error}{what_to_do}"));
        failed.no_common_protocol = matches!(
            alert,
            Some(
                rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol)
                    | rustls::Error::NoApplicationProtocol
            )
        );
        failed
    }
}
