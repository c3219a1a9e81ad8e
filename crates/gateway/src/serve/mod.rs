//! Talking to clients: HTTP/1.1 and HTTP/2, each in a file of its own, in
//! front of one [`Service`].

pub mod h1;
pub mod h2;
mod header_counter;
mod io;

use std::future::Future;
use std::pin::Pin;

use bytes::BytesMut;
use http::{Request, Response, StatusCode};

pub use io::ClientIo;

use crate::access_log::AccessLogEntry;
use crate::body::{RequestBody, ResponseBody};
pub use crate::buffer_budget::ClientLimits;
pub use crate::metrics::headers::HeaderLimit;

/// Answers requests.
pub trait Service: Clone + Send + Sync + 'static {
    /// Answers one.
    fn call(&self, request: Request<RequestBody>) -> impl Future<Output = ClientResponse> + Send;

    /// Something came that was no request, and was answered with this.
    fn refused(&self, status: StatusCode);

    /// A request or its connection has met a limit on headers.
    fn met_header_limit(&self, _limit: HeaderLimit) {}

    /// What one client connection may take. A server of its own trusts its clients.
    fn limits(&self) -> &ClientLimits {
        ClientLimits::trusted()
    }
}

/// What a request is answered with.
pub struct ClientResponse {
    /// Status, headers and, unless the protocol is switched, the body.
    pub response: Response<ResponseBody>,
    /// Relays the connection after a switch of protocols (101).
    pub(crate) switched: Option<UpgradeHandler>,
    /// Counts and logs the request when it has ended.
    pub record: AccessLogEntry,
}

/// Relays a connection after 101, with the bytes that have been read of it already.
pub struct UpgradeHandler(Box<UpgradeFn>);

type UpgradeFn = dyn FnOnce(ClientIo, BytesMut, AccessLogEntry) -> Pin<Box<dyn Future<Output = ()> + Send>>
    + Send;

impl UpgradeHandler {
    /// By a function.
    pub fn new<F, R>(run: F) -> Self
    where
        F: FnOnce(ClientIo, BytesMut, AccessLogEntry) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        Self(Box::new(|io, input, record| {
            Box::pin(run(io, input, record))
        }))
    }

    async fn run(self, io: ClientIo, input: BytesMut, record: AccessLogEntry) {
        (self.0)(io, input, record).await;
    }
}

impl std::fmt::Debug for UpgradeHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpgradeHandler").finish_non_exhaustive()
    }
}

impl ClientResponse {
    /// An answer of a server of its own, of which nothing is counted.
    pub fn new(response: Response<ResponseBody>) -> Self {
        Self {
            response,
            switched: None,
            record: AccessLogEntry::none(),
        }
    }

    /// A 101 of a server of its own, and the handler of the connection from then on. HTTP/2 has
    /// no such answer.
    pub fn switching(head: Response<()>, handler: UpgradeHandler) -> Self {
        Self {
            response: head.map(|()| ResponseBody::empty()),
            switched: Some(handler),
            record: AccessLogEntry::none(),
        }
    }
}
