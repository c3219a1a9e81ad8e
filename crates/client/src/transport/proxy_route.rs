//! The route to a server through a proxy, and TLS handshakes.

use std::sync::Arc;
use std::{fmt, io};

use bytes::BytesMut;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use skewbridge_stream_io::ReadAhead;

use super::address::Scheme;
use super::byte_stream::Stream;
use super::proxy::Proxy;
use super::tcp;
use super::tls::{self, ServerTrust};

/// What a TLS handshake needs.
#[derive(Clone)]
pub(crate) struct TlsTarget {
    /// Contains our client key.
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

impl fmt::Debug for TlsTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsTarget").field(&self.name).finish()
    }
}

/// The route through a proxy.
#[derive(Debug, Clone)]
pub(crate) struct ProxyRoute {
    pub(crate) proxy: Proxy,
    tls: Option<TlsTarget>,
}

impl ProxyRoute {
    /// Whether the connection to the proxy uses TLS.
    pub(crate) fn uses_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Through the proxy of this URL, whose certificate `trust` verifies.
    pub(crate) fn via(url: &str, trust: &ServerTrust<'_>) -> Result<Self, String> {
        let proxy = Proxy::parse(url)?;
        let tls = match proxy.address.scheme {
            Scheme::Http => None,
            Scheme::Https => Some(TlsTarget {
                config: tls::config(trust, None)?,
                name: ServerName::try_from(proxy.address.host.clone())
                    .map_err(|_| "its host is not a name")?,
            }),
        };
        Ok(Self { proxy, tls })
    }

    /// Opens a stream to `HOST:PORT`, and returns the bytes that followed the proxy's response.
    pub(crate) async fn open(&self, to: &str) -> Result<(Stream, BytesMut), String> {
        let tcp = tcp::connect(&self.proxy.address).await;
        let tcp = tcp.map_err(|error| format!("cannot be reached: {error}"))?;
        let mut stream: Stream = match &self.tls {
            None => Box::new(tcp),
            Some(tls) => {
                let handshake = tls.handshake(Box::new(tcp), &tls::ALPN_HTTP1).await;
                let untrusted = |error| format!("cannot be trusted: {}", tls::explain(&error));
                handshake.map_err(untrusted)?.0
            }
        };
        let leftover = self.proxy.tunnel(&mut stream, to).await?;
        Ok((stream, leftover))
    }
}

/// How much TLS buffers before it sends: a whole message of a command's input, in one system
/// call.
const MAX_UNSENT_BYTES: usize = 128 * 1024;

impl TlsTarget {
    /// TLS over a stream, offering these ALPN protocols; returns the selected one.
    pub(crate) async fn handshake(
        &self,
        stream: Stream,
        alpn: &[Vec<u8>],
    ) -> io::Result<(Stream, Option<Vec<u8>>)> {
        let connector = tls::connector(&self.config, alpn);
        match connector
            .connect(self.name.clone(), ReadAhead::new(stream))
            .await
        {
            Ok(mut stream) => {
                stream.get_mut().1.set_buffer_limit(Some(MAX_UNSENT_BYTES));
                let alpn_protocol = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
                Ok((Box::new(stream), alpn_protocol))
            }
            Err(error) => Err(error),
        }
    }
}
