//! Response headers between bridges, and how to recognize a request that a kube-apiserver has not
//! processed.

use http::header::{RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// Sent by a bridge in a response to another bridge: the request has not been processed, so it can
/// be retried at another server, also if it is a write.
const NOT_PROCESSED: HeaderName = HeaderName::from_static("x-skewbridge-not-processed");

/// Sent by a bridge in responses to other bridges: this bridge authenticates a request by its token
/// alone, also if the connection presents a client certificate.
const BY_BRIDGE: HeaderName = HeaderName::from_static("x-skewbridge-answered");

/// The header that API Priority and Fairness sets on responses to admitted requests.
const PRIORITY_AND_FAIRNESS: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");

/// Marks a response: the request has not been processed.
pub(crate) fn mark_not_processed(headers: &mut HeaderMap) {
    headers.insert(NOT_PROCESSED, HeaderValue::from_static("true"));
}

/// Whether a peer has certainly not processed a request: its bridge marks the response, or its
/// kube-apiserver, which is shutting down, rejects requests before it processes them.
pub(crate) fn is_not_processed(status: StatusCode, headers: &HeaderMap) -> bool {
    (status == StatusCode::SERVICE_UNAVAILABLE && headers.contains_key(NOT_PROCESSED))
        || is_shutting_down(status, headers)
}

/// Whether a kube-apiserver that shuts down has rejected a request: 503 with "apiserver is
/// shutting down", or 429 with `--shutdown-send-retry-after`. Both are written before API
/// Priority and Fairness, which sets a header on every response to an admitted request, also
/// if the request was rejected later or by a server behind this one.
fn is_shutting_down(status: StatusCode, headers: &HeaderMap) -> bool {
    let after = match status {
        StatusCode::SERVICE_UNAVAILABLE => "1",
        StatusCode::TOO_MANY_REQUESTS => "5",
        _ => return false,
    };
    let is = |name: HeaderName, value: &str| headers.get(name).is_some_and(|it| it == value);
    is(RETRY_AFTER, after)
        && is(X_CONTENT_TYPE_OPTIONS, "nosniff")
        && !headers.contains_key(PRIORITY_AND_FAIRNESS)
}

/// Marks a response as one of a bridge.
pub(crate) fn mark_by_bridge(headers: &mut HeaderMap) {
    headers.insert(BY_BRIDGE, HeaderValue::from_static("true"));
}

/// Whether the response came through a bridge, and not directly from a kube-apiserver.
pub(crate) fn is_by_bridge(headers: &HeaderMap) -> bool {
    headers.contains_key(BY_BRIDGE)
}

/// Removes the headers that bridges only use among themselves.
pub(crate) fn remove_between_bridges(headers: &mut HeaderMap) {
    headers.remove(NOT_PROCESSED);
    headers.remove(BY_BRIDGE);
}
