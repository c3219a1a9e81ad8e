//! A server with everything that a connection to it needs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use http::header::{AUTHORIZATION, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue};
use rustls_pki_types::ServerName;

use super::connection::{Connection, Request, Response};
use super::credential::{self, Credential};
use super::opened_stream::OpenedStream;
use crate::Secret;
use crate::error::{Entry, Error};
use crate::exec_plugin::{
    self, ConnectionCredential, Direct, FeatureGate, PLUGIN_TIMEOUT, Plugin, ProxyConnectError,
    Route,
};
use crate::kubeconfig::{PemSource, Target};
use crate::transport::{
    ALPN_HTTP1, Address, CaRoots, Certificate, Proxy, ProxyRoute, Scheme, Stream, StreamWithGuard,
    TlsTarget, connect_tcp, handshake_error, secret_header, tls_config,
};

/// For TCP, proxy and TLS together, like Go's dialer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The `User-Agent` of our requests.
const USER_AGENT_VALUE: &str = concat!("skewbridge/", env!("CARGO_PKG_VERSION"));

/// A server with everything that a connection needs: files have been read, and the credential
/// plugin has run.
#[derive(Debug, Clone)]
pub struct Endpoint {
    address: Address,
    security: Security,
    proxy: Option<ProxyRoute>,
    /// Headers of every request, without secrets.
    headers: HeaderMap,
    /// The value of `Authorization`.
    authorization: Option<Secret>,
    timeouts: Timeouts,
    /// The kubeconfig context that the endpoint was prepared from.
    target: Arc<Target>,
    /// The connection of the last request, for the next one. Clones share it.
    idle: Arc<Mutex<Option<IdleConnection>>>,
}

/// Timeouts of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For a request with its response; `None` waits forever.
    pub request: Option<Duration>,
    /// For a credential plugin, until it has printed a credential.
    pub plugin: Duration,
}

/// How the client and the server authenticate.
#[derive(Debug, Clone)]
enum Security {
    /// Plain HTTP: neither does.
    None,
    /// With a fixed TLS configuration.
    Fixed(TlsTarget),
    /// With a plugin's credential.
    Plugin(Box<PluginAuth>),
}

/// The configuration without the credential of a plugin.
#[derive(Debug, Clone)]
struct PluginAuth {
    plugin: Arc<Plugin>,
    /// For a plugin that issues only a token.
    certificate: Option<Certificate>,
    ca_roots: CaRoots,
    name: ServerName<'static>,
    cluster: String,
    user: String,
}

/// An idle connection.
struct IdleConnection {
    connection: Connection,
    since: Instant,
}

impl IdleConnection {
    fn is_reusable(&self) -> bool {
        self.since.elapsed() < MAX_IDLE_TIME && self.connection.has_valid_credential()
    }
}

impl fmt::Debug for IdleConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connection.fmt(f)
    }
}

/// How long an idle connection is kept. The server or a middlebox closes idle connections, and
/// the outcome of a request that is sent meanwhile is unknown.
const MAX_IDLE_TIME: Duration = Duration::from_secs(3);

impl Endpoint {
    /// Reads the target's files and runs its credential plugin. Requests fail after `timeout`;
    /// `None` waits forever.
    pub async fn prepare(target: &Target, timeout: Option<Duration>) -> Result<Self, Error> {
        let timeouts = Timeouts {
            request: timeout,
            ..Timeouts::default()
        };
        Self::prepare_with_timeouts(target, timeouts).await
    }

    /// Like [`Endpoint::prepare`], with all timeouts.
    pub async fn prepare_with_timeouts(target: &Target, timeouts: Timeouts) -> Result<Self, Error> {
        let cluster = &target.cluster;
        let invalid = |cause: String| Error::Invalid {
            entry: Entry::Cluster,
            name: target.cluster_name.clone(),
            cause,
        };
        let has_tls_settings = cluster.certificate_authority.is_some()
            || cluster.insecure_skip_tls_verify
            || target.user.client_certificate.is_some();
        let default_scheme = if has_tls_settings {
            Scheme::Https
        } else {
            Scheme::Http
        };
        if cluster.server.is_empty() {
            return Err(invalid("has no server".to_owned()));
        }
        let address = Address::parse(&cluster.server, default_scheme).map_err(invalid)?;
        let mut headers = HeaderMap::new();
        let mut authorization = None;
        let security = match address.scheme {
            // Like kubectl: no credential is sent over plain HTTP.
            Scheme::Http => Security::None,
            Scheme::Https => {
                let mut credential = Credential::load(target)?;
                headers.extend(std::mem::take(&mut credential.headers));
                authorization = credential.authorization.take();
                Security::of(target, &address, credential)?
            }
        };
        let proxy = match &cluster.proxy_url {
            Some(url) => Some(String::from_utf8_lossy(url.expose()).into_owned()),
            None => Proxy::from_environment(&address, |name| std::env::var(name).ok()),
        };
        let proxy = match proxy {
            Some(url) => {
                // The client certificate is for the cluster, and is not sent to the proxy.
                let route = ProxyRoute::via(&url, &load_ca_roots(target)?.for_proxy());
                Some(route.map_err(|cause| invalid(format!("proxy-url: {cause}")))?)
            }
            None => None,
        };
        headers.insert(USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE));
        let host = HeaderValue::try_from(&*address.authority)
            .map_err(|_| invalid("its host is not a valid header value".to_owned()))?;
        headers.insert(HOST, host);
        let endpoint = Self {
            address,
            security,
            proxy,
            headers,
            authorization,
            timeouts,
            target: Arc::new(target.clone()),
            idle: Arc::default(),
        };
        // KEP-2718, "Proxy Proposal": the plugin is executed the first time it is needed, on
        // transport set-up.
        if let Security::Plugin(auth) = &endpoint.security {
            let issued = auth.plugin.current(timeouts.plugin).await?;
            if let Route::Direct(direct) = issued.route() {
                auth.tls_target(direct)?;
            }
        }
        Ok(endpoint)
    }

    /// Prepares the endpoint again, with all files read again: after a 401, or after a long
    /// time. The plugin runs once if its credential has expired or was answered with 401, or if
    /// the cluster's CAs have changed, and not otherwise.
    pub async fn renewed(&self) -> Result<Self, Error> {
        // We hold our plugin, so the cache returns it, with its record of rejected credentials.
        Self::prepare_with_timeouts(&self.target, self.timeouts).await
    }

    /// Sends a request and reads the response. Reuses the last connection if it is not too old.
    pub async fn send(&self, request: &Request) -> Result<Response, Error> {
        let mut connection = self.connection().await?;
        let response = connection.send(request).await?;
        if connection.is_ready() {
            let since = Instant::now();
            *self.lock_idle() = Some(IdleConnection { connection, since });
        }
        Ok(response)
    }

    /// A connection that is ready for a request.
    pub(crate) async fn connection(&self) -> Result<Connection, Error> {
        let idle = self.lock_idle().take();
        match idle.filter(IdleConnection::is_reusable) {
            Some(idle) => Ok(idle.connection),
            None => self.connect().await,
        }
    }

    fn lock_idle(&self) -> MutexGuard<'_, Option<IdleConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether connections go through an HTTPS proxy.
    pub(crate) fn is_behind_https_proxy(&self) -> bool {
        self.proxy.as_ref().is_some_and(ProxyRoute::uses_tls)
    }

    /// The headers of a request, with the current content of the token file.
    fn current_headers(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
        let from_file = match self.security {
            Security::None => None,
            _ => credential::token_from_file(&self.target.user),
        };
        let stored = || (self.authorization.as_ref()).and_then(secret_header);
        if let Some(authorization) = from_file.or_else(stored) {
            headers.insert(AUTHORIZATION, authorization);
        }
        headers
    }

    /// `HOST:PORT`
    pub fn server(&self) -> String {
        self.address.host_and_port()
    }

    /// Opens a connection to the server or to the plugin's proxy. The plugin runs again if its
    /// credential has expired or was answered with 401, or if its proxy does not listen any
    /// more.
    pub async fn connect(&self) -> Result<Connection, Error> {
        let opened = self.open_with_alpn(&ALPN_HTTP1).await?;
        let mut headers = self.current_headers();
        if let Some(authorization) = opened.authorization {
            headers.insert(AUTHORIZATION, authorization);
        }
        Ok(Connection::new(
            opened.stream,
            opened.leftover,
            opened.server,
            self.address.prefix.clone(),
            headers,
            opened.credential,
            self.timeouts.request,
        ))
    }

    /// Opens a stream for a caller that speaks its own protocol, offering these ALPN protocols,
    /// and returns the selected one. It connects to the same destination as
    /// [`Endpoint::connect`].
    pub async fn open(&self, alpn: &[Vec<u8>]) -> Result<OpenedStream, Error> {
        let opened = self.open_with_alpn(alpn).await?;
        if opened.leftover.is_empty() {
            Ok(OpenedStream {
                stream: opened.stream,
                protocol: opened.alpn_protocol,
                credential: opened.credential,
            })
        } else {
            Err(Error::NotHttp {
                server: opened.server,
                cause: "the server sends data before the first request".to_owned(),
            })
        }
    }

    /// The credential headers of each request on such a stream. The plugin runs again if its
    /// credential has expired.
    pub async fn credential_headers(&self) -> Result<HeaderMap, Error> {
        let mut headers = self.current_headers();
        headers.remove(HOST);
        headers.remove(USER_AGENT);
        if let Security::Plugin(auth) = &self.security {
            let issued = auth.plugin.current(self.timeouts.plugin).await?;
            if let Some(authorization) = issued.authorization() {
                headers.insert(AUTHORIZATION, authorization);
            }
        }
        Ok(headers)
    }

    /// `HOST[:PORT]` as written in the kubeconfig.
    pub fn authority(&self) -> &str {
        &self.address.authority
    }

    /// The path prefix of every request, as written in the kubeconfig: empty, or like
    /// `/k8s/clusters/c-1`.
    pub fn path_prefix(&self) -> &str {
        &self.address.prefix
    }

    async fn open_with_alpn(&self, alpn: &[Vec<u8>]) -> Result<OpenedTransport, Error> {
        match &self.security {
            Security::None => self.open_direct(None, alpn).await,
            Security::Fixed(tls) => self.open_direct(Some(tls), alpn).await,
            Security::Plugin(auth) => self.open_with_plugin(auth, alpn).await,
        }
    }

    async fn open_with_plugin(
        &self,
        auth: &PluginAuth,
        alpn: &[Vec<u8>],
    ) -> Result<OpenedTransport, Error> {
        let plugin = &auth.plugin;
        let timeout = self.timeouts.plugin;
        let mut issued = plugin.current(timeout).await?;
        let mut is_retry = false;
        loop {
            let connector = match issued.route() {
                Route::Direct(direct) => {
                    let tls = auth.tls_target(direct)?;
                    // Counts as used even if the connection fails.
                    issued.mark_used();
                    let mut opened = self.open_direct(Some(&tls), alpn).await?;
                    opened.authorization = issued.authorization();
                    opened.credential =
                        Some(ConnectionCredential::new(issued, &self.address.prefix));
                    return Ok(opened);
                }
                Route::Proxy(connector) => connector,
            };
            issued.mark_used();
            let cause = match connector
                .open(alpn, connector.attempt_timeout(self.connect_timeout()))
                .await
            {
                Ok((stream, alpn_protocol)) => {
                    return Ok(OpenedTransport {
                        alpn_protocol,
                        server: format!("{} (through the plugin's proxy)", self.server()),
                        authorization: issued.authorization(),
                        credential: Some(ConnectionCredential::new(
                            issued.clone(),
                            &self.address.prefix,
                        )),
                        stream: Box::new(StreamWithGuard::new(stream, (plugin.clone(), issued))),
                        leftover: BytesMut::new(),
                    });
                }
                // KEP-2718, "Proxy Proposal": if no one is listening, the plugin is executed
                // again. Only once: a second proxy that does not listen is an error.
                Err(ProxyConnectError::Gone(_)) if !is_retry => {
                    is_retry = true;
                    issued = plugin.replace(&issued, timeout).await?;
                    continue;
                }
                Err(ProxyConnectError::Gone(cause) | ProxyConnectError::Unusable(cause)) => cause,
            };
            return Err(plugin.error(format!(
                "its proxy at {} {cause}{}",
                connector.url(),
                issued.stderr_suffix()
            )));
        }
    }

    fn connect_timeout(&self) -> Duration {
        let request = self.timeouts.request;
        request.map_or(CONNECT_TIMEOUT, |timeout| timeout.min(CONNECT_TIMEOUT))
    }

    async fn open_direct(
        &self,
        tls: Option<&TlsTarget>,
        alpn: &[Vec<u8>],
    ) -> Result<OpenedTransport, Error> {
        let timeout = self.connect_timeout();
        match tokio::time::timeout(timeout, self.dial(tls, alpn)).await {
            Ok(opened) => opened,
            Err(_) => Err(Error::TimedOut {
                server: self.server(),
                what: "accept a connection",
                after: timeout,
            }),
        }
    }

    async fn dial(
        &self,
        tls: Option<&TlsTarget>,
        alpn: &[Vec<u8>],
    ) -> Result<OpenedTransport, Error> {
        let server = self.server();
        let (stream, leftover): (Stream, BytesMut) = match &self.proxy {
            None => {
                let tcp = connect_tcp(&self.address).await;
                let tcp = tcp.map_err(|cause| Error::Unreachable {
                    server: server.clone(),
                    cause,
                })?;
                (Box::new(tcp), BytesMut::new())
            }
            Some(route) => route.open(&server).await.map_err(|cause| Error::Proxy {
                proxy: route.proxy.to_string(),
                server: server.clone(),
                cause,
            })?,
        };
        let (stream, alpn_protocol) = match tls {
            None => (stream, None),
            Some(_) if !leftover.is_empty() => {
                return Err(Error::NotHttp {
                    server,
                    cause: "the server sends data before the first request".to_owned(),
                });
            }
            Some(tls) => match tls.handshake(stream, alpn).await {
                Ok(handshake) => handshake,
                Err(error) => return Err(handshake_error(server, &error)),
            },
        };
        Ok(OpenedTransport {
            stream,
            leftover,
            alpn_protocol,
            server,
            authorization: None,
            credential: None,
        })
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            request: None,
            plugin: PLUGIN_TIMEOUT,
        }
    }
}

/// An open transport to the cluster, ready for requests.
struct OpenedTransport {
    stream: Stream,
    leftover: BytesMut,
    /// The protocol selected by ALPN.
    alpn_protocol: Option<Vec<u8>>,
    /// The server's name, for errors.
    server: String,
    authorization: Option<HeaderValue>,
    /// The credential that a plugin issued.
    credential: Option<ConnectionCredential>,
}

impl Security {
    fn of(target: &Target, address: &Address, credential: Credential) -> Result<Self, Error> {
        let cluster = &target.cluster;
        let invalid = |cause: String| Error::Invalid {
            entry: Entry::Cluster,
            name: target.cluster_name.clone(),
            cause,
        };
        let ca_roots = load_ca_roots(target)?;
        let name = cluster.tls_server_name.as_ref().unwrap_or(&address.host);
        let name = ServerName::try_from(name.clone())
            .map_err(|_| invalid(format!("tls-server-name {name:?} is not a name")))?;
        if let Some(exec) = &credential.plugin {
            let gate = FeatureGate::from_environment(|name| std::env::var(name).ok());
            let gate = gate.map_err(|cause| Error::Invalid {
                entry: Entry::User,
                name: target.user_name.clone(),
                cause,
            })?;
            return Ok(Self::Plugin(Box::new(PluginAuth {
                plugin: exec_plugin::shared_plugin(target, exec, &ca_roots, gate),
                certificate: credential.certificate,
                ca_roots,
                name,
                cluster: target.cluster_name.clone(),
                user: target.user_name.clone(),
            })));
        }
        let config = tls_config(&ca_roots.for_cluster(), credential.certificate.as_ref())
            .map_err(|cause| tls_config_error(&target.cluster_name, &target.user_name, cause))?;
        Ok(Self::Fixed(TlsTarget { config, name }))
    }
}

impl PluginAuth {
    fn tls_target(&self, direct: &Direct) -> Result<TlsTarget, Error> {
        let config = direct.config(&self.ca_roots, self.certificate.as_ref());
        let config = config.map_err(|cause| tls_config_error(&self.cluster, &self.user, cause))?;
        Ok(TlsTarget {
            config,
            name: self.name.clone(),
        })
    }
}

/// The CA roots of a target's cluster, from its files as they are now.
fn load_ca_roots(target: &Target) -> Result<CaRoots, Error> {
    let cluster = &target.cluster;
    let ca = cluster.certificate_authority.as_ref();
    let ca = ca.map(PemSource::read).transpose()?;
    let pem = ca.as_ref().map(Secret::expose);
    CaRoots::from_kubeconfig(pem, cluster.insecure_skip_tls_verify).map_err(|cause| {
        Error::Invalid {
            entry: Entry::Cluster,
            name: target.cluster_name.clone(),
            cause,
        }
    })
}

/// Errors of the client certificate concern the user entry, all others the cluster entry.
fn tls_config_error(cluster: &str, user: &str, cause: String) -> Error {
    let (entry, name) = if cause.starts_with("client-") {
        (Entry::User, user)
    } else {
        (Entry::Cluster, cluster)
    };
    Error::Invalid {
        entry,
        name: name.to_owned(),
        cause,
    }
}
