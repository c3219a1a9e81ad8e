//! Connections to the cluster: through the configured proxy, with the client's key in the TLS
//! handshake.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::uri::Authority;
use rustls::client::ResolvesClientCert;
use rustls_pki_types::ServerName;
use skewbridge_client::Stream;
use skewbridge_client::transport::{CaRoots, Dialer};
use skewbridge_k8s_api::exec_credential;
use skewbridge_k8s_api::secret::SecretString;
use skewbridge_stream_io::ReadAhead;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use crate::Error;
use crate::client_key::{ClientKey, ClientKeyResolver, HandshakeKey, Versions};
use crate::forward::{
    BoxFuture, ConnectError, CredentialState, Dial, DialedStream, Protocol, ProtocolOffer,
    connect_error,
};

/// For TCP, proxy and TLS together, like Go's dialer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// For a TLS handshake with a [`ClientKey`]: the user may have to touch the token.
const KEY_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(90);

/// Opens connections to a cluster, with the user's client certificate.
#[derive(Debug)]
pub struct Cluster {
    dialer: Dialer,
    authority: Authority,
    name: ServerName<'static>,
    key: Option<Arc<dyn ClientKey>>,
}

impl Cluster {
    /// The cluster of a plugin's input. With a `key`, its certificate is sent in the handshake.
    /// Connections go through the cluster's `proxy-url`, or else through the proxy that
    /// `HTTPS_PROXY` and `NO_PROXY` select.
    pub fn new(
        cluster: &exec_credential::Cluster,
        key: Option<Arc<dyn ClientKey>>,
    ) -> Result<Self, Error> {
        let invalid = Error::Cluster;
        let proxy = cluster.proxy_url.as_ref().map(SecretString::expose);
        let ca_roots = Some(&*cluster.certificate_authority_data).filter(|it| !it.is_empty());
        let ca_roots = CaRoots::from_kubeconfig(ca_roots, cluster.insecure_skip_tls_verify);
        let dialer = Dialer::new(&cluster.server, proxy, ca_roots.map_err(invalid)?);
        let dialer = dialer.map_err(invalid)?;
        let authority = Authority::try_from(dialer.authority())
            .map_err(|_| Error::Cluster("its server has no host".to_owned()))?;
        let name = dialer
            .server_name(cluster.tls_server_name.as_deref())
            .map_err(invalid)?;
        let cluster = Self {
            dialer,
            authority,
            name,
            key,
        };
        // Errors of the CAs are reported now, and not on the first request.
        let tls = cluster.dialer.tls_config(rustls::DEFAULT_VERSIONS, None);
        tls.map_err(invalid)?;
        Ok(cluster)
    }

    /// `HOST[:PORT]`, as in requests.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    async fn connect(&self, offer: ProtocolOffer) -> Result<DialedStream, ConnectError> {
        let failed = |cause: &dyn std::fmt::Display| ConnectError::new(cause.to_string());
        let stream = timeout(CONNECT_TIMEOUT, self.dialer.dial()).await;
        let stream = stream
            .map_err(|_| self.timed_out(CONNECT_TIMEOUT))?
            .map_err(|error| failed(&error))?;
        // A new one for each handshake, because it records the handshake's error.
        let key = self.key.clone().map(HandshakeKey::new);
        let limit = if key.is_none() {
            CONNECT_TIMEOUT
        } else {
            KEY_HANDSHAKE_TIMEOUT
        };
        let deadline = Instant::now() + limit;
        let (versions, resolver) = match &key {
            None => (rustls::DEFAULT_VERSIONS, None),
            Some(key) => {
                let versions = timeout_at(deadline, supported_versions(key.clone())).await;
                let versions = versions.map_err(|_| self.timed_out(limit))?;
                let resolver: Arc<dyn ResolvesClientCert> =
                    Arc::new(ClientKeyResolver(key.clone()));
                (versions, Some(resolver))
            }
        };
        let config = self.dialer.tls_config(versions, resolver);
        let mut config = config.map_err(|cause| failed(&cause))?;
        config.alpn_protocols = offer.alpn();
        let connector = TlsConnector::from(Arc::new(config));
        let stream = ReadAhead::new(stream);
        let handshake = if key.is_none() {
            let handshake = connector.connect(self.name.clone(), stream);
            timeout_at(deadline, handshake).await
        } else {
            let handshake =
                handshake_on_blocking_thread(connector, self.name.clone(), stream, deadline);
            timeout_at(deadline, handshake).await
        };
        // The error of a missing key is more useful than the server's error about a client
        // without a certificate.
        if let Some(error) = key.as_ref().and_then(|key| key.failure()) {
            return Err(failed(&error));
        }
        let tls = handshake
            .map_err(|_| self.timed_out(limit))?
            .map_err(|error| connect_error(&self.dialer.handshake_error(&error)))?;
        let protocol = Protocol::from_alpn(tls.get_ref().1.alpn_protocol());
        let expires = key.and_then(|key| key.expires());
        Ok(DialedStream {
            stream: Box::new(tls),
            protocol,
            credential: expires.map(|expires| Arc::new(CertificateExpiry(expires)) as _),
        })
    }

    fn timed_out(&self, limit: Duration) -> ConnectError {
        ConnectError::new(format!(
            "the server {} did not accept a connection within {} s; is it reachable from here?",
            self.dialer.server(),
            limit.as_secs()
        ))
    }
}

/// The TLS versions that a key supports, requested on a thread that may block.
async fn supported_versions(key: Arc<HandshakeKey>) -> Versions {
    let versions = tokio::task::spawn_blocking(move || key.versions()).await;
    versions.unwrap_or(rustls::DEFAULT_VERSIONS)
}

/// A handshake on a thread that may block, because hardware keys are slow.
async fn handshake_on_blocking_thread(
    connector: TlsConnector,
    name: ServerName<'static>,
    stream: ReadAhead<Stream>,
    deadline: Instant,
) -> std::io::Result<tokio_rustls::client::TlsStream<ReadAhead<Stream>>> {
    let runtime = tokio::runtime::Handle::current();
    let handshake = tokio::task::spawn_blocking(move || {
        let handshake = timeout_at(deadline, connector.connect(name, stream));
        runtime
            .block_on(handshake)
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
    });
    handshake.await.unwrap_or_else(|error| Err(error.into()))
}

/// The expiry of the certificate that a connection was opened with. kube-apiserver checks it on
/// each request, and the key may have a new certificate already.
struct CertificateExpiry(SystemTime);

impl CredentialState for CertificateExpiry {
    fn is_valid(&self) -> bool {
        SystemTime::now() < self.0
    }
}

impl Dial for Cluster {
    fn dial(&self, offer: ProtocolOffer) -> BoxFuture<'_, Result<DialedStream, ConnectError>> {
        Box::pin(self.connect(offer))
    }
}
