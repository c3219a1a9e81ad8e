//! What a plugin does to each request.

use bytes::Bytes;
use http::{HeaderMap, Method, Uri};

use crate::forward::BoxFuture;

/// Changes requests on their way to the cluster: signs them, adds headers.
///
/// Modifiers have their turn one after the other, and each sees what those before
/// it have done.
pub trait RequestModifier: Send + Sync + 'static {
    /// What it is called in messages: the name of a flag, say.
    fn name(&self) -> &str;

    /// Whether it has to see bodies. They are then held in memory and sent with
    /// their length, and what is longer than the forwarder's limit is refused with
    /// a 413 Status.
    fn needs_body(&self) -> NeedsBody {
        NeedsBody::No
    }

    /// Changes one request. An error is told to the client as a 500 Status, and
    /// the request goes nowhere; it must not hold a secret.
    fn modify<'a>(&'a self, request: Outgoing<'a>) -> BoxFuture<'a, Result<(), ModifyError>>;
}

/// Whether a modifier has to see bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeedsBody {
    /// They pass by as they come.
    No,
    /// All of each.
    Whole,
}

/// A request as it will be sent. Headers that concern the connection
/// (`Connection`, `Transfer-Encoding`, `Upgrade`) are not among them, and are
/// removed again if a modifier adds them; `Host` is there and stays as it is.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// The method.
    pub method: &'a Method,
    /// `https://HOST:PORT/PATH?QUERY`, with the cluster's host.
    pub url: &'a Uri,
    /// The headers, to be changed.
    pub headers: &'a mut HeaderMap,
    /// The body: always there (perhaps empty) for who
    /// [needs it](RequestModifier::needs_body), and for others by chance.
    pub body: Option<&'a Bytes>,
    /// The protocol that the client wants to switch to (`SPDY/3.1`, `websocket`).
    pub upgrade: Option<&'a str>,
}

/// Why a request cannot be sent, in words for the user. Without secrets.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct ModifyError(String);

impl ModifyError {
    /// In these words.
    pub fn new(cause: impl Into<String>) -> Self {
        Self(cause.into())
    }
}
