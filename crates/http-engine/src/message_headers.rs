//! Headers of requests and responses that the server and the client interpret alike: `Expect` and
//! `Content-Length`.

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT};

/// Whether a client waits for `100 Continue`.
pub fn expects_continue(headers: &HeaderMap) -> bool {
    headers
        .get(EXPECT)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// The `Content-Length` of a message whose framing is validated: one numeric field.
pub fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
