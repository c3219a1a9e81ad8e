//! The interface by which a pool opens connections and reports metrics.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::body::ResponseBody;
use crate::header_bounds::HeaderLimit;

/// Opens connections to one server.
pub trait Connector: fmt::Debug + Send + Sync + 'static {
    /// The byte stream, usually TLS. A failed write has sent nothing, or at most a part of one TLS
    /// record, unless the written bytes were more than one record.
    type Io: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Opens a connection on which the server speaks one of the offered protocols. The
    /// implementation sets the time limit.
    fn connect(
        &self,
        offer: ProtocolOffer,
    ) -> impl Future<Output = Result<Connected<Self::Io>, ConnectError>> + Send;

    /// A failure of a connection that was opened.
    fn error(&self, cause: &dyn fmt::Display) -> ConnectError {
        ConnectError::new(cause.to_string())
    }

    /// Pings of HTTP/2 connections that have requests in flight.
    fn keepalive(&self) -> Keepalive {
        Keepalive::default()
    }
}

/// The protocols that are offered by ALPN (RFC 7301).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtocolOffer {
    /// HTTP/2, and HTTP/1.1 where the server does not speak it.
    Either,
    /// HTTP/1.1 alone.
    Http1,
    /// HTTP/2 alone.
    Http2,
}

impl ProtocolOffer {
    /// The protocol names, in the form that rustls expects.
    pub fn alpn(self) -> Vec<Vec<u8>> {
        let names: &[&[u8]] = match self {
            Self::Either => &[b"h2", b"http/1.1"],
            Self::Http1 => &[b"http/1.1"],
            Self::Http2 => &[b"h2"],
        };
        names.iter().map(|name| name.to_vec()).collect()
    }
}

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1
    Http1,
    /// HTTP/2
    Http2,
}

impl Protocol {
    /// What the server has chosen by ALPN.
    pub fn from_alpn(chosen: Option<&[u8]>) -> Self {
        match chosen {
            Some(b"h2") => Self::Http2,
            _ => Self::Http1,
        }
    }
}

/// An open connection.
pub struct Connected<Io> {
    /// The byte stream.
    pub io: Io,
    /// The negotiated protocol.
    pub protocol: Protocol,
    /// The credential it was opened with, where that can become invalid.
    pub credential: Option<Arc<dyn ConnectionCredential>>,
}

impl<Io> fmt::Debug for Connected<Io> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connected")
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}

/// The credential that a connection was opened with: for example a client certificate that expires.
pub trait ConnectionCredential: Send + Sync + 'static {
    /// Whether further requests may be sent on the connection. Requests in flight are not
    /// touched.
    fn is_valid(&self) -> bool;

    /// The server has answered 401 to `request`, with this body.
    fn unauthorized(self: Arc<Self>, request: &Parts, body: ResponseBody) -> ResponseBody;
}

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ConnectError {
    message: String,
    /// The server speaks none of the offered protocols.
    pub no_common_protocol: bool,
}

impl ConnectError {
    /// An error with this text, which clients see.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            no_common_protocol: false,
        }
    }

    /// The server speaks none of the offered protocols.
    #[must_use]
    pub fn no_common_protocol(mut self) -> Self {
        self.no_common_protocol = true;
        self
    }
}

/// Keepalive of HTTP/2 connections that have requests in flight.
#[derive(Debug, Clone, Copy)]
pub struct Keepalive {
    /// Ping interval.
    pub ping_interval: Duration,
    /// Timeout of a ping. The connection is closed then.
    pub ping_timeout: Duration,
}

impl Default for Keepalive {
    /// Half of client-go's own 30 s.
    fn default() -> Self {
        let ping_interval = Duration::from_secs(15);
        Self {
            ping_interval,
            ping_timeout: ping_interval,
        }
    }
}

/// Counts the connections of a pool.
pub trait PoolMetrics: fmt::Debug + Send + Sync {
    /// A connection was opened.
    fn connection_opened(&self, _protocol: Protocol) {}

    /// A connection was closed.
    fn connection_closed(&self, _protocol: Protocol) {}

    /// A request has begun on an HTTP/2 connection.
    fn stream_opened(&self) {}

    /// A request on an HTTP/2 connection has ended.
    fn stream_closed(&self) {}

    /// A request met a limit on headers.
    fn met_header_limit(&self, _limit: HeaderLimit) {}
}

/// Counts nothing.
impl PoolMetrics for () {}

/// Counts a connection while it is open.
#[derive(Debug)]
pub struct ConnectionGuard {
    metrics: Arc<dyn PoolMetrics>,
    protocol: Protocol,
}

impl ConnectionGuard {
    pub(super) fn new(metrics: &Arc<dyn PoolMetrics>, protocol: Protocol) -> Self {
        metrics.connection_opened(protocol);
        Self {
            metrics: metrics.clone(),
            protocol,
        }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.metrics.connection_closed(self.protocol);
    }
}
