//! Headers by which a bridge tells a peer what became of a request, and the marks of a
//! kube-apiserver that has not processed one.

use http::header::{RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// Said by a bridge to a peer that passed a request on: nothing has been done
/// with it, so it may be given to another server, writes included.
const NOT_PROCESSED: HeaderName = HeaderName::from_static("x-skewbridge-not-processed");

/// Said by a bridge in its answers to peers: the token of a request is verified alone here,
/// whatever certificate the peer presents beside it.
const BY_BRIDGE: HeaderName = HeaderName::from_static("x-skewbridge-answered");

/// The header that API Priority and Fairness sets on responses to admitted requests.
const PRIORITY_AND_FAIRNESS: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");

/// Tells a peer that nothing has been done.
pub(crate) fn not_processed(headers: &mut HeaderMap) {
    headers.insert(NOT_PROCESSED, HeaderValue::from_static("true"));
}

/// Whether it is certain that a peer has done nothing with a request: a bridge says so,
/// and a kube-apiserver that is about to end refuses before it has looked.
pub(crate) fn is_not_processed(status: StatusCode, headers: &HeaderMap) -> bool {
    (status == StatusCode::SERVICE_UNAVAILABLE && headers.contains_key(NOT_PROCESSED))
        || is_shutting_down(status, headers)
}

/// Whether a kube-apiserver that shuts down has refused a request: 503 with "apiserver is
/// shutting down", or 429 with `--shutdown-send-retry-after`. Both are written before API
/// Priority and Fairness, which sets a header on every response to an admitted request, also
/// where the request was refused later or by a server behind this one.
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

/// Tells a peer that a bridge has answered.
pub(crate) fn by_bridge(headers: &mut HeaderMap) {
    headers.insert(BY_BRIDGE, HeaderValue::from_static("true"));
}

/// Whether a bridge has answered, and not a kube-apiserver.
pub(crate) fn is_by_bridge(headers: &HeaderMap) -> bool {
    headers.contains_key(BY_BRIDGE)
}

/// Removes what bridges tell each other beside an answer.
pub(crate) fn remove_between_bridges(headers: &mut HeaderMap) {
    headers.remove(NOT_PROCESSED);
    headers.remove(BY_BRIDGE);
}
