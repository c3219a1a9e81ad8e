//! A server and all that a connection to it needs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use http::header::{AUTHORIZATION, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue};
use rustls_pki_types::ServerName;

use crate::address::{Address, Scheme};
use crate::authorities::Authorities;
use crate::connection::{Connection, Kept, Request, Response, Stream};
use crate::credential::{self, Certificate, Credential};
use crate::error::{Entry, Error};
use crate::exec::{self, Gate, PLUGIN_PATIENCE, Plugin, Refused, Shown};
use crate::kubeconfig::Target;
use crate::opening::Opening;
use crate::proxy::Proxy;
use crate::secret::Secret;
use crate::tcp::tcp;
use crate::tls;
use crate::way::{Secured, Way};

/// TCP, proxy and TLS together; Go's dialer has the same patience.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);

/// Who we are in a server's log.
const USER_AGENT_VALUE: &str = concat!("skewbridge/", env!("CARGO_PKG_VERSION"));

/// A server with everything that a connection needs. Files have been read, and
/// the credential plugin has run.
#[derive(Debug, Clone)]
pub struct Endpoint {
    address: Address,
    security: Security,
    proxy: Option<Way>,
    /// On every request, without what is secret.
    headers: HeaderMap,
    /// What `Authorization` is on every request.
    authorization: Option<Secret>,
    limits: Limits,
    /// What it was made of.
    target: Arc<Target>,
    /// The connection of the last request, until the next one. Clones share it.
    idle: Arc<Mutex<Option<Idle>>>,
}

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// A request with its answer; none is for ever.
    pub request: Option<Duration>,
    /// A credential plugin, until it has given a credential.
    pub plugin: Duration,
}

/// How we prove who we are, and the server who it is.
#[derive(Debug, Clone)]
enum Security {
    /// Not at all: plain HTTP.
    None,
    /// Always in the same way.
    Fixed(Secured),
    /// As a plugin says.
    Plugin(Box<ByPlugin>),
}

/// What is known beside what a plugin knows.
#[derive(Debug, Clone)]
struct ByPlugin {
    plugin: Arc<Plugin>,
    /// For a plugin that gives a token alone.
    certificate: Option<Certificate>,
    authorities: Authorities,
    name: ServerName<'static>,
    cluster: String,
    user: String,
}

/// A connection that nobody uses just now.
struct Idle {
    connection: Connection,
    since: Instant,
}

impl Idle {
    fn is_fresh(&self) -> bool {
        self.since.elapsed() < IDLE && self.connection.is_good()
    }
}

impl fmt::Debug for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connection.fmt(f)
    }
}

/// How long a connection is kept: a server, or what is on the way, ends it some time,
/// and of a request that meets that nobody can say what became of it.
const IDLE: Duration = Duration::from_secs(3);

impl Endpoint {
    /// Reads what the target names, and runs its credential plugin. A request
    /// that takes longer than `timeout` fails; none is for ever.
    pub async fn prepare(target: &Target, timeout: Option<Duration>) -> Result<Self, Error> {
        let limits = Limits {
            request: timeout,
            ..Limits::default()
        };
        Self::prepare_within(target, limits).await
    }

    /// As [`Endpoint::prepare`], with all limits.
    pub async fn prepare_within(target: &Target, limits: Limits) -> Result<Self, Error> {
        let cluster = &target.cluster;
        let wrong = |cause: String| Error::Invalid {
            entry: Entry::Cluster,
            name: target.cluster_name.clone(),
            cause,
        };
        let is_secured = cluster.certificate_authority.is_some()
            || cluster.insecure_skip_tls_verify
            || target.user.client_certificate.is_some();
        let otherwise = if is_secured {
            Scheme::Https
        } else {
            Scheme::Http
        };
        if cluster.server.is_empty() {
            return Err(wrong("has no server".to_owned()));
        }
        let address = Address::parse(&cluster.server, otherwise).map_err(wrong)?;
        let mut headers = HeaderMap::new();
        let mut authorization = None;
        let security = match address.scheme {
            // As kubectl: nobody shows a credential to all the world.
            Scheme::Http => Security::None,
            Scheme::Https => {
                let mut credential = Credential::of(target)?;
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
                // Our own certificate is for the cluster, and is not shown.
                let way = Way::through(&url, &authorities_of(target)?.for_proxy());
                Some(way.map_err(|cause| wrong(format!("proxy-url: {cause}")))?)
            }
            None => None,
        };
        headers.insert(USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE));
        let host = HeaderValue::try_from(&*address.authority)
            .map_err(|_| wrong("its host cannot stand in a header".to_owned()))?;
        headers.insert(HOST, host);
        let endpoint = Self {
            address,
            security,
            proxy,
            headers,
            authorization,
            limits,
            target: Arc::new(target.clone()),
            idle: Arc::default(),
        };
        // KEP-2718, "Proxy Proposal": executed the first time it is needed, on
        // transport set-up.
        if let Security::Plugin(by) = &endpoint.security {
            let issued = by.plugin.current(limits.plugin).await?;
            if let exec::Way::Straight(straight) = issued.way() {
                by.secured(straight)?;
            }
        }
        Ok(endpoint)
    }

    /// The same with everything read again: for a server that has answered 401, or
    /// after a long time. Its plugin is run once if what it gave has expired or was
    /// answered with 401, or if the cluster has other CAs by now, and not otherwise.
    pub async fn renewed(&self) -> Result<Self, Error> {
        // Our own plugin is found again, for we hold it, and knows what was refused.
        Self::prepare_within(&self.target, self.limits).await
    }

    /// Sends a request, on the connection of the last one if that is fresh, and reads
    /// its answer.
    pub async fn send(&self, request: &Request) -> Result<Response, Error> {
        let mut connection = self.connection().await?;
        let response = connection.send(request).await?;
        if connection.is_ready() {
            let since = Instant::now();
            *self.lock_idle() = Some(Idle { connection, since });
        }
        Ok(response)
    }

    /// A connection that can take a request.
    pub(crate) async fn connection(&self) -> Result<Connection, Error> {
        let idle = self.lock_idle().take();
        match idle.filter(Idle::is_fresh) {
            Some(idle) => Ok(idle.connection),
            None => self.connect().await,
        }
    }

    fn lock_idle(&self) -> MutexGuard<'_, Option<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a proxy on the way that is spoken to by TLS.
    pub(crate) fn is_behind_https_proxy(&self) -> bool {
        self.proxy.as_ref().is_some_and(Way::is_secured)
    }

    /// The headers of a request, with the token as it is in its file now.
    fn headers_now(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
        let fresh = match self.security {
            Security::None => None,
            _ => credential::token_from_file(&self.target.user),
        };
        let kept = || (self.authorization.as_ref()).and_then(credential::secret_header);
        if let Some(authorization) = fresh.or_else(kept) {
            headers.insert(AUTHORIZATION, authorization);
        }
        headers
    }

    /// `HOST:PORT`
    pub fn server(&self) -> String {
        self.address.host_and_port()
    }

    /// Opens a connection: to the server, or to the proxy of the credential plugin.
    /// The plugin is run again if what it gave has expired or was answered with 401, or
    /// if nobody listens where it said.
    pub async fn connect(&self) -> Result<Connection, Error> {
        let opened = self.open_speaking(&tls::HTTP1).await?;
        let mut headers = self.headers_now();
        if let Some(authorization) = opened.authorization {
            headers.insert(AUTHORIZATION, authorization);
        }
        Ok(Connection::new(
            opened.stream,
            opened.early,
            opened.server,
            self.address.prefix.clone(),
            headers,
            opened.shown,
            self.limits.request,
        ))
    }

    /// Opens a stream for whoever speaks on it themselves, in one of these protocols
    /// of ALPN, and says which the other end has chosen. It leads where
    /// [`Endpoint::connect`] does.
    pub async fn open(&self, alpn: &[Vec<u8>]) -> Result<Opening, Error> {
        let opened = self.open_speaking(alpn).await?;
        if opened.early.is_empty() {
            Ok(Opening {
                stream: opened.stream,
                protocol: opened.chosen,
                shown: opened.shown,
            })
        } else {
            Err(Error::NotHttp {
                server: opened.server,
                cause: "it speaks before it is asked".to_owned(),
            })
        }
    }

    /// What goes along with each request on such a stream and says who sends it. The
    /// plugin is run again if what it gave has expired.
    pub async fn credential_headers(&self) -> Result<HeaderMap, Error> {
        let mut headers = self.headers_now();
        headers.remove(HOST);
        headers.remove(USER_AGENT);
        if let Security::Plugin(by) = &self.security {
            let issued = by.plugin.current(self.limits.plugin).await?;
            if let Some(authorization) = issued.authorization() {
                headers.insert(AUTHORIZATION, authorization);
            }
        }
        Ok(headers)
    }

    /// `HOST[:PORT]` as the kubeconfig has it.
    pub fn authority(&self) -> &str {
        &self.address.authority
    }

    /// What stands before every path, as the kubeconfig has it: empty, or
    /// `/k8s/clusters/c-1`.
    pub fn path_prefix(&self) -> &str {
        &self.address.prefix
    }

    async fn open_speaking(&self, alpn: &[Vec<u8>]) -> Result<Opened, Error> {
        match &self.security {
            Security::None => self.open_straight(None, alpn).await,
            Security::Fixed(tls) => self.open_straight(Some(tls), alpn).await,
            Security::Plugin(by) => self.open_by(by, alpn).await,
        }
    }

    async fn open_by(&self, by: &ByPlugin, alpn: &[Vec<u8>]) -> Result<Opened, Error> {
        let plugin = &by.plugin;
        let patience = self.limits.plugin;
        let mut issued = plugin.current(patience).await?;
        let mut is_second = false;
        loop {
            let wire = match issued.way() {
                exec::Way::Straight(straight) => {
                    let tls = by.secured(straight)?;
                    // Whatever comes of it: once is once.
                    issued.used();
                    let mut opened = self.open_straight(Some(&tls), alpn).await?;
                    opened.authorization = issued.authorization();
                    opened.shown = Some(Shown::new(issued, &self.address.prefix));
                    return Ok(opened);
                }
                exec::Way::Proxy(wire) => wire,
            };
            issued.used();
            let cause = match wire
                .open(alpn, wire.patience(self.connect_patience()))
                .await
            {
                Ok((stream, chosen)) => {
                    return Ok(Opened {
                        chosen,
                        server: format!("{} (through the plugin's proxy)", self.server()),
                        authorization: issued.authorization(),
                        shown: Some(Shown::new(issued.clone(), &self.address.prefix)),
                        stream: Box::new(Kept::new(stream, (plugin.clone(), issued))),
                        early: BytesMut::new(),
                    });
                }
                // KEP-2718, "Proxy Proposal": if no one is listening, the plugin is
                // executed again. Once: what it gives then is not there either.
                Err(Refused::Gone(_)) if !is_second => {
                    is_second = true;
                    issued = plugin.instead_of(&issued, patience).await?;
                    continue;
                }
                Err(Refused::Gone(cause) | Refused::Unusable(cause)) => cause,
            };
            return Err(plugin.error(format!(
                "its proxy at {} {cause}{}",
                wire.url(),
                issued.said()
            )));
        }
    }

    fn connect_patience(&self) -> Duration {
        let request = self.limits.request;
        request.map_or(CONNECT_PATIENCE, |limit| limit.min(CONNECT_PATIENCE))
    }

    async fn open_straight(
        &self,
        tls: Option<&Secured>,
        alpn: &[Vec<u8>],
    ) -> Result<Opened, Error> {
        let patience = self.connect_patience();
        match tokio::time::timeout(patience, self.dial(tls, alpn)).await {
            Ok(opened) => opened,
            Err(_) => Err(Error::TimedOut {
                server: self.server(),
                what: "accept a connection",
                after: patience,
            }),
        }
    }

    async fn dial(&self, tls: Option<&Secured>, alpn: &[Vec<u8>]) -> Result<Opened, Error> {
        let server = self.server();
        let (stream, early): (Stream, BytesMut) = match &self.proxy {
            None => {
                let tcp = tcp(&self.address).await;
                let tcp = tcp.map_err(|cause| Error::Unreachable {
                    server: server.clone(),
                    cause,
                })?;
                (Box::new(tcp), BytesMut::new())
            }
            Some(way) => way.open(&server).await.map_err(|cause| Error::Proxy {
                proxy: way.proxy.to_string(),
                server: server.clone(),
                cause,
            })?,
        };
        let (stream, chosen) = match tls {
            None => (stream, None),
            Some(_) if !early.is_empty() => {
                return Err(Error::NotHttp {
                    server,
                    cause: "it speaks before it is asked".to_owned(),
                });
            }
            Some(tls) => match tls.handshake(stream, alpn).await {
                Ok(shaken) => shaken,
                Err(cause) => return Err(Error::Tls { server, cause }),
            },
        };
        Ok(Opened {
            stream,
            early,
            chosen,
            server,
            authorization: None,
            shown: None,
        })
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request: None,
            plugin: PLUGIN_PATIENCE,
        }
    }
}

/// A way to the cluster, ready for requests.
struct Opened {
    stream: Stream,
    early: BytesMut,
    /// By ALPN.
    chosen: Option<Vec<u8>>,
    /// For errors.
    server: String,
    authorization: Option<HeaderValue>,
    /// By a plugin.
    shown: Option<Shown>,
}

impl Security {
    fn of(target: &Target, address: &Address, credential: Credential) -> Result<Self, Error> {
        let cluster = &target.cluster;
        let wrong = |cause: String| Error::Invalid {
            entry: Entry::Cluster,
            name: target.cluster_name.clone(),
            cause,
        };
        let authorities = authorities_of(target)?;
        let name = cluster.tls_server_name.as_ref().unwrap_or(&address.host);
        let name = ServerName::try_from(name.clone())
            .map_err(|_| wrong(format!("tls-server-name {name:?} is not a name")))?;
        if let Some(exec) = &credential.plugin {
            let gate = Gate::from_environment(|name| std::env::var(name).ok());
            let gate = gate.map_err(|cause| Error::Invalid {
                entry: Entry::User,
                name: target.user_name.clone(),
                cause,
            })?;
            return Ok(Self::Plugin(Box::new(ByPlugin {
                plugin: exec::plugin_of(target, exec, &authorities, gate),
                certificate: credential.certificate,
                authorities,
                name,
                cluster: target.cluster_name.clone(),
                user: target.user_name.clone(),
            })));
        }
        let config = tls::config(&authorities.for_cluster(), credential.certificate.as_ref())
            .map_err(|cause| misconfigured(&target.cluster_name, &target.user_name, cause))?;
        Ok(Self::Fixed(Secured { config, name }))
    }
}

impl ByPlugin {
    fn secured(&self, straight: &exec::Straight) -> Result<Secured, Error> {
        let config = straight.config(&self.authorities, self.certificate.as_ref());
        let config = config.map_err(|cause| misconfigured(&self.cluster, &self.user, cause))?;
        Ok(Secured {
            config,
            name: self.name.clone(),
        })
    }
}

/// Whom to believe on the way to a cluster, as its files say now.
fn authorities_of(target: &Target) -> Result<Authorities, Error> {
    let cluster = &target.cluster;
    let authority = cluster.certificate_authority.as_ref();
    let authority = authority.map(credential::read).transpose()?;
    let pem = authority.as_ref().map(Secret::expose);
    Authorities::of(pem, cluster.insecure_skip_tls_verify).map_err(|cause| Error::Invalid {
        entry: Entry::Cluster,
        name: target.cluster_name.clone(),
        cause,
    })
}

/// What is wrong with a client's certificate is the user's, the rest the cluster's.
fn misconfigured(cluster: &str, user: &str, cause: String) -> Error {
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
