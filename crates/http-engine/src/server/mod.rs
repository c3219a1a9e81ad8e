//! Serves client connections: HTTP/1.1 ([`h1`]) and HTTP/2 ([`h2`]) in front of one
//! [`Service`].

mod client_io;
pub mod h1;
pub mod h2;
mod received_frames;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::BytesMut;
use http::{Request, Response, StatusCode};

pub use client_io::ClientIo;

use crate::body::{RequestBody, ResponseBody};
use crate::buffer_budget::ClientLimits;
use crate::header_bounds::HeaderLimit;

/// Answers requests.
pub trait Service: Clone + Send + Sync + 'static {
    /// Observes each response until it ends.
    type Record: ResponseRecord;

    /// The flag that sets [`ClientTimeouts::head`], where there is one.
    const HEAD_TIMEOUT_FLAG: Option<&'static str> = None;

    /// Answers one request.
    fn call(
        &self,
        request: Request<RequestBody>,
    ) -> impl Future<Output = ClientResponse<Self::Record>> + Send;

    /// An invalid request was answered with this status.
    fn refused(&self, _status: StatusCode) {}

    /// A request or its connection exceeded a header limit.
    fn met_header_limit(&self, _limit: HeaderLimit) {}

    /// Limits of the client connection. By default clients are trusted.
    fn limits(&self) -> &ClientLimits {
        ClientLimits::trusted()
    }
}

/// Observes a response until it ends, in whatever way; then it is dropped. An access log writes its
/// line, an in-flight guard counts down.
pub trait ResponseRecord: Send + 'static {
    /// This many bytes of the body were forwarded.
    fn add_bytes(&mut self, _bytes: usize) {}

    /// The whole response was sent.
    fn complete(&mut self) {}

    /// The client disconnected before the response.
    fn client_left(&mut self) {}
}

/// Observes nothing.
impl ResponseRecord for () {}

/// Timeouts of a client.
#[derive(Debug, Clone, Copy)]
pub struct ClientTimeouts {
    /// From the first byte of a request to the end of its head.
    pub head: Duration,
    /// Between requests.
    pub idle: Duration,
    /// Until the client reads a byte of a pending response.
    pub stall: Duration,
}

/// The response to a client.
pub struct ClientResponse<R = ()> {
    /// Status, headers and, unless the protocol is switched, the body.
    pub response: Response<ResponseBody>,
    /// Relays the connection after a switch of protocols (101).
    pub switched: Option<UpgradeHandler<R>>,
    /// Observes the response until it ends.
    pub record: R,
}

/// Handles a connection after 101, with the bytes that were read already.
pub struct UpgradeHandler<R = ()>(Box<UpgradeFn<R>>);

type UpgradeFn<R> =
    dyn FnOnce(ClientIo, BytesMut, R) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send;

impl<R> UpgradeHandler<R> {
    /// Wraps a function.
    pub fn new<F, T>(run: F) -> Self
    where
        F: FnOnce(ClientIo, BytesMut, R) -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        Self(Box::new(|io, input, record| {
            Box::pin(run(io, input, record))
        }))
    }

    async fn run(self, io: ClientIo, input: BytesMut, record: R) {
        (self.0)(io, input, record).await;
    }
}

impl<R> std::fmt::Debug for UpgradeHandler<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpgradeHandler").finish_non_exhaustive()
    }
}

impl<R> ClientResponse<R> {
    /// A response that `record` observes.
    pub fn with_record(response: Response<ResponseBody>, record: R) -> Self {
        Self {
            response,
            switched: None,
            record,
        }
    }
}

impl ClientResponse {
    /// A response without a record.
    pub fn new(response: Response<ResponseBody>) -> Self {
        Self::with_record(response, ())
    }

    /// A 101, and the handler of the connection from then on. HTTP/2 has no such response.
    pub fn switching(head: Response<()>, handler: UpgradeHandler) -> Self {
        Self {
            response: head.map(|()| ResponseBody::empty()),
            switched: Some(handler),
            record: (),
        }
    }
}
