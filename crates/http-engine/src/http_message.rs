//! Rules about HTTP messages that servers and clients share.

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT};

/// Whether a client waits for `100 Continue`.
pub fn expects_continue(headers: &HeaderMap) -> bool {
    headers
        .get(EXPECT)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// The `Content-Length` of a message whose framing has been checked: one field, and a number.
pub fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// An extension of a response: the client's connection ends after it. kube-apiserver does so
/// with callers that have no identity.
#[derive(Debug, Clone, Copy)]
pub struct CloseConnection;
