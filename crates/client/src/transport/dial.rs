//! Dials a server for callers with their own TLS key and their own protocol.

use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::{ClientConfig, SupportedProtocolVersion};
use rustls_pki_types::ServerName;

use super::address::{Address, Scheme};
use super::byte_stream::Stream;
use super::ca_roots::CaRoots;
use super::proxy::Proxy;
use super::proxy_route::ProxyRoute;
use super::tcp;
use super::tls;
use crate::error::Error;

/// A server that is reached by HTTPS, directly or through a proxy.
///
/// ```
/// use skewbridge_client::transport::{CaRoots, Dialer};
///
/// let dialer = Dialer::new("https://k.example:6443", None, CaRoots::SkipVerification).unwrap();
/// assert_eq!(dialer.authority(), "k.example:6443");
/// ```
#[derive(Debug, Clone)]
pub struct Dialer {
    address: Address,
    proxy: Option<ProxyRoute>,
    ca_roots: CaRoots,
}

impl Dialer {
    /// A dialer for the server URL, through the proxy URL or the proxy that `HTTPS_PROXY` and
    /// `NO_PROXY` select. `ca_roots` verifies both; the system's CAs are trusted for the proxy
    /// as well. Errors do not repeat a password.
    pub fn new(server: &str, proxy_url: Option<&str>, ca_roots: CaRoots) -> Result<Self, String> {
        let address = Address::parse(server, Scheme::Https)?;
        if address.scheme != Scheme::Https {
            return Err(format!(
                "server {server:?} is not https; credentials are sent only over TLS"
            ));
        }
        let proxy = match proxy_url {
            Some(url) => Some(url.to_owned()),
            None => Proxy::from_environment(&address, |name| std::env::var(name).ok()),
        };
        let proxy = proxy
            .map(|url| ProxyRoute::via(&url, &ca_roots.for_proxy()))
            .transpose();
        let proxy = proxy.map_err(|cause| format!("proxy-url: {cause}"))?;
        Ok(Self {
            address,
            proxy,
            ca_roots,
        })
    }

    /// `HOST[:PORT]` as written in the URL.
    pub fn authority(&self) -> &str {
        &self.address.authority
    }

    /// The host, without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        &self.address.host
    }

    /// `HOST:PORT`
    pub fn server(&self) -> String {
        self.address.host_and_port()
    }

    /// Opens a byte stream on which the server expects TLS. The caller sets a timeout.
    pub async fn dial(&self) -> Result<Stream, Error> {
        let server = self.server();
        let Some(route) = &self.proxy else {
            return match tcp::connect(&self.address).await {
                Ok(tcp) => Ok(Box::new(tcp)),
                Err(cause) => Err(Error::Unreachable { server, cause }),
            };
        };
        let opened = route.open(&server).await.map_err(|cause| Error::Proxy {
            proxy: route.proxy.to_string(),
            server: server.clone(),
            cause,
        });
        match opened? {
            (stream, leftover) if leftover.is_empty() => Ok(stream),
            _ => Err(Error::NotHttp {
                server,
                cause: "the server sends data before the first request".to_owned(),
            }),
        }
    }

    /// A TLS configuration for these versions, without ALPN. `certificate` selects the client
    /// certificate.
    pub fn tls_config(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        certificate: Option<Arc<dyn ResolvesClientCert>>,
    ) -> Result<ClientConfig, String> {
        let builder = tls::builder(&self.ca_roots.for_cluster(), versions)?;
        Ok(match certificate {
            Some(resolver) => builder.with_client_cert_resolver(resolver),
            None => builder.with_no_client_auth(),
        })
    }

    /// The name that the server's certificate must match: `name`, or the URL's host.
    pub fn server_name(&self, name: Option<&str>) -> Result<ServerName<'static>, String> {
        let name = name.unwrap_or(&self.address.host);
        ServerName::try_from(name.to_owned())
            .map_err(|_| format!("tls-server-name {name:?} is not a name"))
    }

    /// Describes a failed handshake in Go's words.
    pub fn handshake_error(&self, error: &std::io::Error) -> Error {
        tls::handshake_error(self.server(), error)
    }
}
