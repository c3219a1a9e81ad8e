//! Opens connections to the server.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use skewbridge_client::Stream;
use skewbridge_http_engine::body::ResponseBody;
pub use skewbridge_http_engine::client::{ConnectError, Protocol, ProtocolOffer};
use skewbridge_http_engine::client::{Connected, ConnectionCredential, Connector};

use super::credential_state::CredentialState;
use super::unauthorized_body::inspect_unauthorized;
use crate::modifier::BoxFuture;

/// Opens streams to the server: TLS to it, TLS through a proxy, or a plugin's Unix socket. The
/// implementation sets its own time limit.
///
/// ```
/// use skewbridge_exec_proxy::forward::{BoxFuture, Dial, ConnectError, DialedStream, ProtocolOffer, Protocol};
///
/// struct Socket(std::path::PathBuf);
///
/// impl Dial for Socket {
///     fn dial(&self, _: ProtocolOffer) -> BoxFuture<'_, Result<DialedStream, ConnectError>> {
///         Box::pin(async {
///             let stream = tokio::net::UnixStream::connect(&self.0).await;
///             let stream = stream.map_err(|error| ConnectError::new(format!("no proxy: {error}")))?;
///             Ok(DialedStream { stream: Box::new(stream), protocol: Protocol::Http1, credential: None })
///         })
///     }
/// }
/// ```
pub trait Dial: Send + Sync + 'static {
    /// Opens a stream on which the server speaks one of the offered protocols.
    fn dial(&self, offer: ProtocolOffer) -> BoxFuture<'_, Result<DialedStream, ConnectError>>;
}

/// A stream to the server.
pub struct DialedStream {
    /// The byte stream.
    pub stream: Stream,
    /// The negotiated protocol.
    pub protocol: Protocol,
    /// The credential it was opened with, where that can become invalid.
    pub credential: Option<Arc<dyn CredentialState>>,
}

impl fmt::Debug for DialedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DialedStream")
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}

/// An error of the client as that of a [`Dial`].
pub fn connect_error(error: &skewbridge_client::Error) -> ConnectError {
    let connect_error = ConnectError::new(error.to_string());
    match error {
        skewbridge_client::Error::NoCommonProtocol { .. } => connect_error.no_common_protocol(),
        _ => connect_error,
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

    async fn connect(&self, offer: ProtocolOffer) -> Result<Connected<Stream>, ConnectError> {
        let dialed = self.0.dial(offer).await?;
        let credential = dialed.credential.map(|state| {
            let credential: Arc<dyn ConnectionCredential> = Arc::new(Credential(state));
            credential
        });
        Ok(Connected {
            io: dialed.stream,
            protocol: dialed.protocol,
            credential,
        })
    }
}

/// A [`CredentialState`] as the connection pool uses it.
struct Credential(Arc<dyn CredentialState>);

impl ConnectionCredential for Credential {
    fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    fn unauthorized(self: Arc<Self>, request: &Parts, body: ResponseBody) -> ResponseBody {
        if self.0.reaches_workload(request.uri.path()) {
            return inspect_unauthorized(body, self.0.clone(), request.headers.clone());
        }
        self.0.mark_unauthorized(&request.headers);
        body
    }
}
