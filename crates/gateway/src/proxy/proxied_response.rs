//! The response to a request, from the local server, a peer or the bridge.

use http::Response;
use skewbridge_http_engine::body::ResponseBody;

use crate::streams::UpgradedStream;

/// A response and, after a 101, its stream. The handler makes a `ClientResponse` of it, which owns
/// the access record; the record is borrowed until the response is known.
pub(crate) struct ProxiedResponse {
    /// Without a body if `upgrade` is set.
    pub(crate) response: Response<ResponseBody>,
    /// Relays the client connection after a 101.
    pub(crate) upgrade: Option<UpgradedStream>,
}

impl ProxiedResponse {
    /// A response without a stream.
    pub(crate) fn new(response: Response<ResponseBody>) -> Self {
        Self {
            response,
            upgrade: None,
        }
    }

    /// A 101 and its stream.
    pub(crate) fn switching(head: Response<()>, stream: UpgradedStream) -> Self {
        Self {
            response: head.map(|()| ResponseBody::empty()),
            upgrade: Some(stream),
        }
    }
}
