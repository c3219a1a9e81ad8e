//! A server and all that a connection to it needs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::address::{Address, Scheme};
use crate::connection::{Connection, Stream};
use crate::credential::{self, Credential};
use crate::error::{Entry, Error};
use crate::kubeconfig::Target;
use crate::proxy::Proxy;
use crate::tls::{self, Trust};

/// TCP, proxy and TLS together; Go's dialer has the same patience.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);

/// Who we are in a server's log.
const USER_AGENT_VALUE: &str = concat!("skewbridge/", env!("CARGO_PKG_VERSION"));

/// A server with everything that a connection needs. Files have been read, and
/// the credential plugin has run.
#[derive(Debug, Clone)]
pub struct Endpoint {
    address: Address,
    /// None over plain HTTP.
    tls: Option<Secured>,
    proxy: Option<Way>,
    /// On every request.
    headers: HeaderMap,
    timeout: Option<Duration>,
}

#[derive(Clone)]
struct Secured {
    /// Holds our key.
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl fmt::Debug for Secured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secured").field(&self.name).finish()
    }
}

/// The way through a proxy.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    pub(crate) proxy: Proxy,
    tls: Option<Secured>,
}

impl Endpoint {
    /// Reads what the target names, and runs its credential plugin. A request
    /// that takes longer than `timeout` fails; none is for ever.
    pub async fn prepare(target: &Target, timeout: Option<Duration>) -> Result<Self, Error> {
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
        let tls = match address.scheme {
            // As kubectl: nobody shows a credential to all the world.
            Scheme::Http => None,
            Scheme::Https => {
                let credential = Credential::of(target).await?;
                headers.extend(credential.headers);
                let authority = match &cluster.certificate_authority {
                    Some(material) => Some(credential::read(material)?),
                    None => None,
                };
                let trust = match (&authority, cluster.insecure_skip_tls_verify) {
                    (Some(_), true) => {
                        return Err(wrong(
                            "specifying a root certificates file with the insecure flag is not \
                             allowed"
                                .to_owned(),
                        ));
                    }
                    (Some(pem), false) => Trust::Authorities(pem.expose()),
                    (None, true) => Trust::Anybody,
                    (None, false) => Trust::System,
                };
                let config =
                    tls::config(&trust, credential.certificate.as_ref()).map_err(|cause| {
                        if cause.starts_with("client-") {
                            Error::Invalid {
                                entry: Entry::User,
                                name: target.user_name.clone(),
                                cause,
                            }
                        } else {
                            wrong(cause)
                        }
                    })?;
                let name = cluster.tls_server_name.as_ref().unwrap_or(&address.host);
                let name = ServerName::try_from(name.clone())
                    .map_err(|_| wrong(format!("tls-server-name {name:?} is not a name")))?;
                Some(Secured { config, name })
            }
        };
        let proxy = match &cluster.proxy_url {
            Some(url) => Some(String::from_utf8_lossy(url.expose()).into_owned()),
            None => Proxy::from_environment(&address, |name| std::env::var(name).ok()),
        };
        let proxy = proxy.map(|url| Way::through(&url)).transpose();
        let proxy = proxy.map_err(|cause| wrong(format!("proxy-url: {cause}")))?;
        headers.insert(USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE));
        let host = HeaderValue::try_from(&*address.authority)
            .map_err(|_| wrong("its host cannot stand in a header".to_owned()))?;
        headers.insert(HOST, host);
        Ok(Self {
            address,
            tls,
            proxy,
            headers,
            timeout,
        })
    }

    /// `HOST:PORT`
    pub fn server(&self) -> String {
        self.address.host_and_port()
    }

    /// Opens a connection.
    pub async fn connect(&self) -> Result<Connection, Error> {
        let patience = self
            .timeout
            .map_or(CONNECT_PATIENCE, |timeout| timeout.min(CONNECT_PATIENCE));
        match tokio::time::timeout(patience, self.open()).await {
            Ok(opened) => {
                let (stream, early) = opened?;
                Ok(Connection::new(
                    stream,
                    early,
                    self.server(),
                    self.address.prefix.clone(),
                    self.headers.clone(),
                    self.timeout,
                ))
            }
            Err(_) => Err(Error::TimedOut {
                server: self.server(),
                what: "accept a connection",
                after: patience,
            }),
        }
    }

    async fn open(&self) -> Result<(Stream, BytesMut), Error> {
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
        let Some(tls) = &self.tls else {
            return Ok((stream, early));
        };
        if !early.is_empty() {
            return Err(Error::NotHttp {
                server,
                cause: "it speaks before it is asked".to_owned(),
            });
        }
        match tls.handshake(stream).await {
            Ok(stream) => Ok((stream, BytesMut::new())),
            Err(cause) => Err(Error::Tls { server, cause }),
        }
    }
}

impl Way {
    pub(crate) fn through(url: &str) -> Result<Self, String> {
        let proxy = Proxy::parse(url)?;
        let tls = match proxy.address.scheme {
            Scheme::Http => None,
            Scheme::Https => Some(Secured {
                config: tls::config(&Trust::System, None)?,
                name: ServerName::try_from(proxy.address.host.clone())
                    .map_err(|_| "its host is not a name")?,
            }),
        };
        Ok(Self { proxy, tls })
    }

    pub(crate) async fn open(&self, to: &str) -> Result<(Stream, BytesMut), String> {
        let tcp = tcp(&self.proxy.address).await;
        let tcp = tcp.map_err(|error| format!("cannot be reached: {error}"))?;
        let mut stream: Stream = match &self.tls {
            None => Box::new(tcp),
            Some(tls) => {
                let handshake = tls.handshake(Box::new(tcp)).await;
                handshake.map_err(|cause| format!("cannot be trusted: {cause}"))?
            }
        };
        let early = self.proxy.tunnel(&mut stream, to).await?;
        Ok((stream, early))
    }
}

impl Secured {
    async fn handshake(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Stream, String> {
        let connector = TlsConnector::from(self.config.clone());
        match connector.connect(self.name.clone(), stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(tls::explain(&error)),
        }
    }
}

pub(crate) async fn tcp(address: &Address) -> std::io::Result<TcpStream> {
    let tcp = TcpStream::connect((address.host.as_str(), address.port)).await?;
    // A socket that refuses the option still works.
    let _ = tcp.set_nodelay(true);
    Ok(tcp)
}
