//! How connections to the server are opened.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::HeaderMap;
use http::request::Parts;
use skewbridge_client::Stream;
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_http_engine::client::{ConnectError, Connected, ConnectionCredential, Connector};
pub use skewbridge_http_engine::client::{
    ConnectError as DialError, Protocol, ProtocolOffer as Offer,
};

use super::unauthorized_body::inspect_unauthorized;

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Opens streams to the server: TLS to it, TLS through a proxy, or a plugin's Unix socket. The
/// implementation sets its own time limit.
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
    /// Opens a stream on which the server speaks one of the offered protocols.
    fn dial(&self, offer: Offer) -> BoxFuture<'_, Result<Dialled, DialError>>;
}

/// A stream to the server.
pub struct Dialled {
    /// Its bytes.
    pub stream: Stream,
    /// What is spoken on it.
    pub protocol: Protocol,
    /// The credential it was opened with, where that can become invalid.
    pub standing: Option<Arc<dyn Standing>>,
}

/// The credential that a connection was opened with: a certificate that expires, say.
pub trait Standing: Send + Sync + 'static {
    /// Whether further requests may be sent on the connection. Requests in flight are not
    /// touched.
    fn is_good(&self) -> bool;

    /// Whether a workload behind the server may answer a request to this path. A 401 is then
    /// the server's own only if it is a `metav1.Status`.
    fn is_passed_on(&self, path: &str) -> bool {
        let _ = path;
        false
    }

    /// The server itself has answered 401 to a request that was sent with these headers.
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

/// A [`Dial`] as the connection pool uses it.
pub(super) struct DialConnector(pub(super) Box<dyn Dial>);

impl fmt::Debug for DialConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DialConnector").finish_non_exhaustive()
    }
}

impl Connector for DialConnector {
    type Io = Stream;

    async fn connect(&self, offer: Offer) -> Result<Connected<Stream>, ConnectError> {
        let dialled = self.0.dial(offer).await?;
        let credential = dialled.standing.map(|standing| {
            let credential: Arc<dyn ConnectionCredential> = Arc::new(Credential(standing));
            credential
        });
        Ok(Connected {
            io: dialled.stream,
            protocol: dialled.protocol,
            credential,
        })
    }
}

/// A [`Standing`] as the connection pool uses it.
struct Credential(Arc<dyn Standing>);

impl ConnectionCredential for Credential {
    fn is_valid(&self) -> bool {
        self.0.is_good()
    }

    fn unauthorized(self: Arc<Self>, request: &Parts, body: ResponseBody) -> ResponseBody {
        if self.0.is_passed_on(request.uri.path()) {
            return inspect_unauthorized(body, self.0.clone(), request.headers.clone());
        }
        self.0.refused(&request.headers);
        body
    }
}
