//! Opens connections to upstream and to peers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::{CertificateError, ClientConfig};
use rustls_pki_types::ServerName;
use skewbridge_http_engine::client::{
    ConnectError, Connected, Connector, Keepalive, Protocol, ProtocolOffer,
};
use skewbridge_peer_directory::KeyDigest;
use skewbridge_stream_io::ReadAhead;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::dial::{Dialer, authority};
use super::presented::PresentedCertificates;
use super::transport::Transport;
use crate::tls::serving_key::is_pinned;

/// A byte stream to upstream.
pub type UpstreamIo = Box<TlsStream<ReadAhead<Transport>>>;

/// The address of a server and the TLS trust for it. Replaced as a whole when its files change.
#[derive(Debug, Clone)]
pub struct Target {
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Direct, or through a proxy.
    pub dialer: Dialer,
    /// The server name that its certificate must match.
    pub server_name: ServerName<'static>,
    /// Roots and, for the asserted identity, the front-proxy certificate. Without ALPN, which
    /// depends on the request.
    pub tls: Arc<ClientConfig>,
    /// Keepalive of HTTP/2 connections that have requests in flight.
    pub keepalive: Keepalive,
    /// Pinned key digests; empty allows any key with a trusted certificate.
    pub pins: Vec<KeyDigest>,
    /// Upstream or a peer.
    pub role: Role,
    /// Where the certificates of servers are remembered.
    pub(crate) presented: PresentedCertificates,
}

/// Whether the server at the other end is upstream or a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The kube-apiserver behind this bridge.
    Upstream,
    /// One of several kube-apiservers behind this bridge.
    Backend,
    /// Another server of the cluster, or its bridge.
    Peer,
}

impl Role {
    /// Timeout of TCP, TLS and a proxy together. Upstream and peers are in the local network and
    /// respond within milliseconds or not at all; for a backend or a peer another one may be tried.
    fn connect_timeout(self) -> Duration {
        match self {
            Self::Upstream => Duration::from_secs(10),
            Self::Backend | Self::Peer => Duration::from_secs(3),
        }
    }

    fn unknown_issuer(self) -> &'static str {
        match self {
            Self::Upstream | Self::Backend => " (it is not signed by --upstream-ca-file)",
            Self::Peer => " (it is not signed by --peer-ca-file)",
        }
    }

    fn wrong_name(self) -> &'static str {
        match self {
            Self::Upstream | Self::Backend => {
                " (set --upstream-server-name to the name in the certificate)"
            }
            Self::Peer => " (a peer's certificate must be valid for kubernetes.default.svc)",
        }
    }
}

impl Connector for Target {
    type Io = UpstreamIo;

    async fn connect(&self, offer: ProtocolOffer) -> Result<Connected<UpstreamIo>, ConnectError> {
        self.open(offer).await
    }

    fn error(&self, cause: &dyn std::fmt::Display) -> ConnectError {
        self.failed(cause)
    }

    fn keepalive(&self) -> Keepalive {
        self.keepalive
    }
}

impl Target {
    fn failed(&self, cause: impl std::fmt::Display) -> ConnectError {
        let address = authority(&self.host, self.port);
        ConnectError::new(format!("cannot connect to {address}: {cause}"))
    }

    async fn open(&self, offer: ProtocolOffer) -> Result<Connected<UpstreamIo>, ConnectError> {
        let limit = self.role.connect_timeout();
        let (deadline, seconds) = (Instant::now() + limit, limit.as_secs());
        let dialled = timeout_at(deadline, self.dialer.dial(&self.host, self.port)).await;
        let dialled = dialled
            .unwrap_or_else(|_| Err(self.dialer.timed_out(&self.host, self.port, seconds)))
            .map_err(|error| self.failed(error))?;
        match timeout_at(deadline, self.handshake(dialled, offer)).await {
            Ok(connected) => connected,
            Err(_) => Err(self.failed(format_args!("no response within {seconds} s"))),
        }
    }

    async fn handshake(
        &self,
        transport: ReadAhead<Transport>,
        offer: ProtocolOffer,
    ) -> Result<Connected<UpstreamIo>, ConnectError> {
        let mut tls = ClientConfig::clone(&self.tls);
        tls.alpn_protocols = offer.alpn();
        let io = TlsConnector::from(Arc::new(tls))
            .connect(self.server_name.clone(), transport)
            .await
            .map_err(|error| self.handshake_failed(&error))?;
        let presented = io.get_ref().1.peer_certificates();
        if !is_pinned(&self.pins, presented.and_then(<[_]>::first)) {
            return Err(self.failed(
                "TLS: its key is not the one that its bridge has published in the registry",
            ));
        }
        if let Some(certificate) = presented.and_then(<[_]>::first) {
            let server = authority(&self.host, self.port);
            self.presented.note(server, certificate);
        }
        Ok(Connected {
            protocol: Protocol::from_alpn(io.get_ref().1.alpn_protocol()),
            io: Box::new(io),
            credential: None,
        })
    }

    fn handshake_failed(&self, error: &io::Error) -> ConnectError {
        let alert = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let remedy = match alert {
            Some(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            )) => self.role.unknown_issuer(),
            Some(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => self.role.wrong_name(),
            _ => "",
        };
        let mut failed = self.failed(format_args!("TLS: {error}{remedy}"));
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
