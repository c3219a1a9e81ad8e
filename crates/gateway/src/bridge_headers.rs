//! Response headers between bridges, and how to recognize a request that a kube-apiserver has not
//! processed.

use std::collections::BTreeSet;

use http::header::{RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use skewbridge_peer_directory::Identity;

/// Sent by a bridge in a response to another bridge: the request has not been processed, so it can
/// be retried at another server, also if it is a write.
const NOT_PROCESSED: HeaderName = HeaderName::from_static("x-skewbridge-not-processed");

/// Sent by a bridge in responses to other bridges: this bridge authenticates a request by its token
/// alone, also if the connection presents a client certificate. The value is the identity of its
/// server; bridges of earlier releases send `true`.
const BY_BRIDGE: HeaderName = HeaderName::from_static("x-skewbridge-answered");

/// Sent by a bridge in its response to the poll of another bridge: the identities of the servers that
/// it reaches, for the status page.
const REACHES: HeaderName = HeaderName::from_static("x-skewbridge-reaches");

/// The servers that fit in that header. A cluster has three to seven.
const MAX_REACHED: usize = 32;

/// The header that API Priority and Fairness sets on responses to admitted requests.
const PRIORITY_AND_FAIRNESS: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");

/// Marks a response: the request has not been processed.
pub(crate) fn mark_not_processed(headers: &mut HeaderMap) {
    headers.insert(NOT_PROCESSED, HeaderValue::from_static("true"));
}

/// Whether the server has certainly not processed a request: it is marked, or a kube-apiserver, which is
/// shutting down, has rejected it before it processed it.
pub(crate) fn is_not_processed(status: StatusCode, headers: &HeaderMap) -> bool {
    is_marked_not_processed(status, headers) || is_shutting_down(status, headers)
}

/// Whether a response has the mark of a bridge that has not processed the request. Only bridges remove
/// this mark from the responses of workloads and other servers.
pub(crate) fn is_marked_not_processed(status: StatusCode, headers: &HeaderMap) -> bool {
    status == StatusCode::SERVICE_UNAVAILABLE && headers.contains_key(NOT_PROCESSED)
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

/// The value of that header in earlier releases.
const WITHOUT_IDENTITY: &str = "true";

/// Marks a response as one of the bridge of this server.
pub(crate) fn mark_by_bridge(headers: &mut HeaderMap, server: Option<&Identity>) {
    let identity = server.and_then(|it| HeaderValue::from_str(it.as_str()).ok());
    let value = identity.unwrap_or(HeaderValue::from_static(WITHOUT_IDENTITY));
    headers.insert(BY_BRIDGE, value);
}

/// The identity of the server whose bridge has sent the response, if the bridge has named it.
pub(crate) fn bridge_of(headers: &HeaderMap) -> Option<Identity> {
    let value = headers.get(BY_BRIDGE)?.to_str().ok()?;
    let identity = Identity::named(value).ok()?;
    (value != WITHOUT_IDENTITY).then_some(identity)
}

/// Whether the response came through a bridge, and not directly from a kube-apiserver.
pub(crate) fn is_by_bridge(headers: &HeaderMap) -> bool {
    headers.contains_key(BY_BRIDGE)
}

/// Names the servers that this bridge reaches in a response to another bridge.
pub(crate) fn mark_reached<'a>(
    headers: &mut HeaderMap,
    reached: impl Iterator<Item = &'a Identity>,
) {
    let names: Vec<_> = reached.take(MAX_REACHED).map(Identity::as_str).collect();
    if let Ok(value) = HeaderValue::try_from(names.join(",")) {
        headers.insert(REACHES, value);
    }
}

/// The servers that the bridge of a peer reaches, if it has named them.
pub(crate) fn reached_by_bridge(headers: &HeaderMap) -> Option<BTreeSet<Identity>> {
    let value = headers.get(REACHES)?.to_str().ok()?;
    let names = value.split(',').take(MAX_REACHED);
    Some(names.filter_map(|it| Identity::named(it).ok()).collect())
}

/// Removes the headers that bridges only use among themselves.
pub(crate) fn remove_between_bridges(headers: &mut HeaderMap) {
    headers.remove(NOT_PROCESSED);
    headers.remove(BY_BRIDGE);
    headers.remove(REACHES);
}
