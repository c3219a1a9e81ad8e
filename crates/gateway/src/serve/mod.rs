//! Talking to clients: HTTP/1.1 and HTTP/2, each in a file of its own, in
//! front of one [`Service`].

pub mod h1;
pub mod h2;
mod io;

use std::future::Future;

use http::{Request, Response, StatusCode};

pub use io::ClientIo;

use crate::body::{RequestBody, ResponseBody};
use crate::record::Record;
use crate::streams::Switched;

/// Answers requests.
pub trait Service: Clone + Send + Sync + 'static {
    /// Answers one.
    fn call(&self, request: Request<RequestBody>) -> impl Future<Output = Answer> + Send;

    /// Something came that was no request, and was answered with this.
    fn refused(&self, status: StatusCode);
}

/// What a request is answered with.
pub struct Answer {
    /// Status, headers and, unless the protocol is switched, the body.
    pub response: Response<ResponseBody>,
    /// How a connection goes on that switches protocols (101).
    pub(crate) switched: Option<Switched>,
    /// Counts and logs the request when it has ended.
    pub record: Record,
}
