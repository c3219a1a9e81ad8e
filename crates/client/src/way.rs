//! The way to a server: through a proxy, and TLS on it.

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use skewbridge_stream_io::ReadAhead;

use crate::address::Scheme;
use crate::connection::Stream;
use crate::proxy::Proxy;
use crate::tcp::tcp;
use crate::tls::{self, Trust};

/// What a handshake needs.
#[derive(Clone)]
pub(crate) struct Secured {
    /// Holds our key.
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
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

impl Way {
    /// Whether the proxy is spoken to by TLS.
    pub(crate) fn is_secured(&self) -> bool {
        self.tls.is_some()
    }

    /// Through the proxy of this URL, whose certificate has to be of those in `trust`.
    pub(crate) fn through(url: &str, trust: &Trust<'_>) -> Result<Self, String> {
        let proxy = Proxy::parse(url)?;
        let tls = match proxy.address.scheme {
            Scheme::Http => None,
            Scheme::Https => Some(Secured {
                config: tls::config(trust, None)?,
                name: ServerName::try_from(proxy.address.host.clone())
                    .map_err(|_| "its host is not a name")?,
            }),
        };
        Ok(Self { proxy, tls })
    }

    /// Opens a stream to `HOST:PORT`, and gives what came behind the proxy's answer.
    pub(crate) async fn open(&self, to: &str) -> Result<(Stream, BytesMut), String> {
        let tcp = tcp(&self.proxy.address).await;
        let tcp = tcp.map_err(|error| format!("cannot be reached: {error}"))?;
        let mut stream: Stream = match &self.tls {
            None => Box::new(tcp),
            Some(tls) => {
                let handshake = tls.handshake(Box::new(tcp), &tls::HTTP1).await;
                let shaken = handshake.map_err(|cause| format!("cannot be trusted: {cause}"))?;
                shaken.0
            }
        };
        let early = self.proxy.tunnel(&mut stream, to).await?;
        Ok((stream, early))
    }
}

/// How much TLS takes before it sends: a whole message of a command's input, in one system
/// call.
const MOST_UNSENT: usize = 128 * 1024;

impl Secured {
    /// TLS on a stream, for these protocols of ALPN; gives the one that was chosen.
    pub(crate) async fn handshake(
        &self,
        stream: Stream,
        alpn: &[Vec<u8>],
    ) -> Result<(Stream, Option<Vec<u8>>), String> {
        let connector = tls::connector(&self.config, alpn);
        match connector
            .connect(self.name.clone(), ReadAhead::new(stream))
            .await
        {
            Ok(mut stream) => {
                stream.get_mut().1.set_buffer_limit(Some(MOST_UNSENT));
                let chosen = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
                Ok((Box::new(stream), chosen))
            }
            Err(error) => Err(tls::explain(&error)),
        }
    }
}
