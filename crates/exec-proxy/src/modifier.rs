//! Request modifiers: how a plugin changes requests.

use std::pin::Pin;

use bytes::Bytes;
use http::{HeaderMap, Method, Uri};

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Changes requests on their way to the cluster: signs them, adds headers.
///
/// Modifiers run in order, and each gets the changes of those before it.
pub trait RequestModifier: Send + Sync + 'static {
    /// Its name in messages, for example that of a flag.
    fn name(&self) -> &str;

    /// Whether it needs request bodies. They are then buffered and sent with `Content-Length`.
    /// A body above the forwarder's limit is rejected with a 413 Status.
    fn needs_body(&self) -> NeedsBody {
        NeedsBody::No
    }

    /// Changes one request. If it fails, the request is not sent, and the client gets a 500
    /// Status with the error, which must not contain a secret.
    fn modify<'a>(&'a self, request: Outgoing<'a>) -> BoxFuture<'a, Result<(), ModifyError>>;
}

/// Whether a modifier needs request bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeedsBody {
    /// The modifier does not need bodies: they are streamed.
    No,
    /// The modifier needs each body as a whole.
    Whole,
}

/// A request as it will be sent. It has no hop-by-hop headers (`Connection`,
/// `Transfer-Encoding`, `Upgrade`); they are removed again if a modifier adds them. It has
/// `Host`, and changes of `Host` are ignored.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// The method.
    pub method: &'a Method,
    /// `https://HOST:PORT/PATH?QUERY`, with the cluster's host.
    pub url: &'a Uri,
    /// The headers, which the modifier may change.
    pub headers: &'a mut HeaderMap,
    /// The body. It is always present, though it may be empty, for modifiers that [need
    /// it](RequestModifier::needs_body). For others it is present only if another modifier needs it
    /// or the body was complete already.
    pub body: Option<&'a Bytes>,
    /// The protocol that the client requests to switch to (`SPDY/3.1`, `websocket`).
    pub upgrade: Option<&'a str>,
}

/// Why a request cannot be sent, as a message for the user. Contains no secrets.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct ModifyError(String);

impl ModifyError {
    /// An error with this message.
    pub fn new(cause: impl Into<String>) -> Self {
        Self(cause.into())
    }
}
