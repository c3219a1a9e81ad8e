//! Rules about HTTP messages that servers and clients share.

use http::HeaderMap;
use http::header::EXPECT;

/// Whether a client waits for `100 Continue`.
pub(crate) fn expects_continue(headers: &HeaderMap) -> bool {
    headers
        .get(EXPECT)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// An extension of a response: the client's connection ends after it. kube-apiserver does so
/// with callers that have no identity.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CloseConnection;
