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
    /// Follows each response to its end.
    type Record: ResponseRecord;

    /// The flag that sets [`ClientTimeouts::head`], where there is one.
    const HEAD_TIMEOUT_FLAG: Option<&'static str> = None;

    /// Answers one request.
    fn call(
        &self,
        request: Request<RequestBody>,
    ) -> impl Future<Output = ClientResponse<Self::Record>> + Send;

    /// The client sent something that is not a request, and was answered with this status.
    fn refused(&self, _status: StatusCode) {}

    /// A request or its connection has met a limit on headers.
    fn met_header_limit(&self, _limit: HeaderLimit) {}

    /// What one client connection may take. By default its clients are trusted.
    fn limits(&self) -> &ClientLimits {
        ClientLimits::trusted()
    }
}

/// Follows a response until it has ended, however it ends. It is dropped then: an access log
/// writes its line, an in-flight guard counts down.
pub trait ResponseRecord: Send + 'static {
    /// These many bytes of the body were passed on.
    fn add_bytes(&mut self, _bytes: usize) {}

    /// The response has reached the client whole.
    fn complete(&mut self) {}

    /// The client left before there was a response.
    fn client_left(&mut self) {}
}

/// Follows nothing.
impl ResponseRecord for () {}

/// Times allowed to a client.
#[derive(Debug, Clone, Copy)]
pub struct ClientTimeouts {
    /// From a request's first byte to the end of its head.
    pub head: Duration,
    /// Between requests.
    pub idle: Duration,
    /// To take a byte of a response that waits.
    pub stall: Duration,
}

/// What a request is answered with.
pub struct ClientResponse<R = ()> {
    /// Status, headers and, unless the protocol is switched, the body.
    pub response: Response<ResponseBody>,
    /// Relays the connection after a switch of protocols (101).
    pub switched: Option<UpgradeHandler<R>>,
    /// Follows the response to its end.
    pub record: R,
}

/// Relays a connection after 101, with the bytes that have been read of it already.
pub struct UpgradeHandler<R = ()>(Box<UpgradeFn<R>>);

type UpgradeFn<R> =
    dyn FnOnce(ClientIo, BytesMut, R) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send;

impl<R> UpgradeHandler<R> {
    /// By a function.
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
    /// A response that `record` follows.
    pub fn with_record(response: Response<ResponseBody>, record: R) -> Self {
        Self {
            response,
            switched: None,
            record,
        }
    }
}

impl ClientResponse {
    /// A response that nothing follows.
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
