//! The way to the cluster: through the proxies that are configured, with the
//! client's key in the handshake.

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
use crate::forward::{BoxFuture, Dial, DialError, Dialled, Offer, Protocol, Standing};
use crate::key::{Bridge, ClientKey, Resolver, Versions};

/// TCP, proxy and TLS together: Go's dialer has the same patience.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);

/// The same, where a key is elsewhere: it may want to be touched by its user.
const KEY_PATIENCE: Duration = Duration::from_secs(90);

/// Opens connections to a cluster, as its user.
#[derive(Debug)]
pub struct Cluster {
    dialer: Dialer,
    authority: Authority,
    name: ServerName<'static>,
    key: Option<Arc<dyn ClientKey>>,
}

impl Cluster {
    /// The cluster that a client has told of, for the owner of `key` if there is
    /// one. The way to it is its `proxy-url`, or else what `HTTPS_PROXY` and
    /// `NO_PROXY` say.
    pub fn new(
        cluster: &exec_credential::Cluster,
        key: Option<Arc<dyn ClientKey>>,
    ) -> Result<Self, Error> {
        let wrong = Error::Cluster;
        let proxy = cluster.proxy_url.as_ref().map(SecretString::expose);
        let authorities = Some(&*cluster.certificate_authority_data).filter(|it| !it.is_empty());
        let authorities = CaRoots::from_kubeconfig(authorities, cluster.insecure_skip_tls_verify);
        let dialer = Dialer::new(&cluster.server, proxy, authorities.map_err(wrong)?);
        let dialer = dialer.map_err(wrong)?;
        let authority = Authority::try_from(dialer.authority())
            .map_err(|_| Error::Cluster("its server has no host".to_owned()))?;
        let name = dialer
            .server_name(cluster.tls_server_name.as_deref())
            .map_err(wrong)?;
        let cluster = Self {
            dialer,
            authority,
            name,
            key,
        };
        // What is wrong with the CAs is said at once and not on the first request.
        let tls = cluster.dialer.tls_config(rustls::DEFAULT_VERSIONS, None);
        tls.map_err(wrong)?;
        Ok(cluster)
    }

    /// `HOST[:PORT]`, as requests name it.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    async fn connect(&self, offer: Offer) -> Result<Dialled, DialError> {
        let failed = |cause: &dyn std::fmt::Display| DialError::new(cause.to_string());
        let stream = timeout(CONNECT_PATIENCE, self.dialer.dial()).await;
        let stream = stream
            .map_err(|_| self.too_slow(CONNECT_PATIENCE))?
            .map_err(|error| failed(&error))?;
        // A bridge for each handshake: its failure is nobody else's.
        let bridge = self.key.clone().map(Bridge::new);
        let limit = if bridge.is_none() {
            CONNECT_PATIENCE
        } else {
            KEY_PATIENCE
        };
        let deadline = Instant::now() + limit;
        let (versions, resolver) = match &bridge {
            None => (rustls::DEFAULT_VERSIONS, None),
            Some(bridge) => {
                let versions = timeout_at(deadline, versions_of(bridge.clone())).await;
                let versions = versions.map_err(|_| self.too_slow(limit))?;
                let resolver: Arc<dyn ResolvesClientCert> = Arc::new(Resolver(bridge.clone()));
                (versions, Some(resolver))
            }
        };
        let config = self.dialer.tls_config(versions, resolver);
        let mut config = config.map_err(|cause| failed(&cause))?;
        config.alpn_protocols = offer.alpn();
        let connector = TlsConnector::from(Arc::new(config));
        let stream = ReadAhead::new(stream);
        let shaken = if bridge.is_none() {
            let handshake = connector.connect(self.name.clone(), stream);
            timeout_at(deadline, handshake).await
        } else {
            let handshake = elsewhere(connector, self.name.clone(), stream, deadline);
            timeout_at(deadline, handshake).await
        };
        // A key that is not there is more to the point than what the server says
        // to a client without a certificate.
        if let Some(error) = bridge.as_ref().and_then(|bridge| bridge.failure()) {
            return Err(failed(&error));
        }
        let tls = shaken
            .map_err(|_| self.too_slow(limit))?
            .map_err(|error| failed(&self.dialer.handshake_error(&error)))?;
        let protocol = Protocol::from_alpn(tls.get_ref().1.alpn_protocol());
        let expires = bridge.and_then(|bridge| bridge.expires());
        Ok(Dialled {
            stream: Box::new(tls),
            protocol,
            standing: expires.map(|expires| Arc::new(Until(expires)) as _),
        })
    }

    fn too_slow(&self, limit: Duration) -> DialError {
        DialError::new(format!(
            "the server {} did not accept a connection within {} s; is it reachable from here?",
            self.dialer.server(),
            limit.as_secs()
        ))
    }
}

/// What a key can do, asked on a thread where it may block.
async fn versions_of(bridge: Arc<Bridge>) -> Versions {
    let asked = tokio::task::spawn_blocking(move || bridge.versions()).await;
    asked.unwrap_or(rustls::DEFAULT_VERSIONS)
}

/// A handshake on a thread where it may block: keys in hardware take their time.
async fn elsewhere(
    connector: TlsConnector,
    name: ServerName<'static>,
    stream: ReadAhead<Stream>,
    deadline: Instant,
) -> std::io::Result<tokio_rustls::client::TlsStream<ReadAhead<Stream>>> {
    let runtime = tokio::runtime::Handle::current();
    let shaken = tokio::task::spawn_blocking(move || {
        let handshake = timeout_at(deadline, connector.connect(name, stream));
        runtime
            .block_on(handshake)
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
    });
    shaken.await.unwrap_or_else(|error| Err(error.into()))
}

/// A certificate that expires. kube-apiserver looks at it on each request, and a new one
/// may be there already.
struct Until(SystemTime);

impl Standing for Until {
    fn is_good(&self) -> bool {
        SystemTime::now() < self.0
    }
}

impl Dial for Cluster {
    fn dial(&self, offer: Offer) -> BoxFuture<'_, Result<Dialled, DialError>> {
        Box::pin(self.connect(offer))
    }
}
