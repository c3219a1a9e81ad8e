//! Where requests go: a stream for whoever asks for one.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::HeaderMap;
use skewbridge_client::Stream;

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Opens streams to upstream: TLS to a server, TLS through a proxy, or a plugin's
/// Unix socket. Whoever implements it sets its own time limit.
///
/// A closure does for a simple case:
///
/// ```
/// use skewbridge_exec_proxy::forward::{BoxFuture, Dial, DialError, Dialled, Offer, Protocol};
///
/// struct Socket(std::path::PathBuf);
///
/// impl Dial for Socket {
///     fn dial(&self, _: Offer) -> BoxFuture<'_, Result<Dialled, DialError>> {
///         Box::pin(async {
///             let stream = tokio::net::UnixStream::connect(&self.0).await;
///             let stream = stream.map_err(|error| DialError::new(format!("no plugin: {error}")))?;
///             Ok(Dialled { stream: Box::new(stream), protocol: Protocol::Http1, standing: None })
///         })
///     }
/// }
/// ```
pub trait Dial: Send + Sync + 'static {
    /// Opens a stream on which the other end speaks one of the protocols that
    /// `offer` allows.
    fn dial(&self, offer: Offer) -> BoxFuture<'_, Result<Dialled, DialError>>;
}

/// What may be spoken on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// HTTP/2 if the other end does, else HTTP/1.1 (ALPN `h2`, `http/1.1`).
    Either,
    /// HTTP/1.1 alone: for upgrades.
    Http1,
}

impl Offer {
    /// As ALPN has it.
    pub fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            Self::Either => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Self::Http1 => vec![b"http/1.1".to_vec()],
        }
    }
}

/// What is spoken on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1
    Http1,
    /// HTTP/2
    Http2,
}

impl Protocol {
    /// What the other end has chosen by ALPN.
    pub fn from_alpn(chosen: Option<&[u8]>) -> Self {
        match chosen {
            Some(b"h2") => Self::Http2,
            _ => Self::Http1,
        }
    }
}

/// A stream to upstream.
pub struct Dialled {
    /// Its bytes.
    pub stream: Stream,
    /// What is spoken on it.
    pub protocol: Protocol,
    /// What it was opened with, where that can run out.
    pub standing: Option<Arc<dyn Standing>>,
}

/// What a connection was opened with: a certificate, say, that expires.
pub trait Standing: Send + Sync + 'static {
    /// Whether further requests may be sent on the connection. Those that are under way
    /// are left alone.
    fn is_good(&self) -> bool;

    /// Whether somebody behind upstream may answer a request to this path. A 401 is then
    /// upstream's own only if it is a `metav1.Status`.
    fn is_passed_on(&self, path: &str) -> bool {
        let _ = path;
        false
    }

    /// Upstream itself has answered 401 to a request that was sent with these headers.
    fn refused(&self, request: &HeaderMap) {
        let _ = request;
    }
}

impl fmt::Debug for Dialled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialled")
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}

/// Why there is no stream, in words that a client is told.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct DialError(String);

impl DialError {
    /// In these words.
    pub fn new(cause: impl Into<String>) -> Self {
        Self(cause.into())
    }
}
