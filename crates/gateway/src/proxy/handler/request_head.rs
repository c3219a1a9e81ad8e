//! The head of a request: what is rejected, what is removed, and what the bridge adds before it
//! forwards the request.

use http::header::{CONNECTION, HOST};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Method, Request, Uri, Version};
use skewbridge_http_engine::header_bounds::HeaderLimit;
use skewbridge_http_engine::server::Service;
use skewbridge_k8s_api::forwarding_headers::{self, ForwardedFor};
use skewbridge_k8s_api::request_info::DecodedPath;
use skewbridge_k8s_api::status::Status;

use super::ConnectionHandler;

impl ConnectionHandler {
    /// The rejection of a request whose `Connection` header lists a protected header: without that header
    /// the request would have another meaning.
    pub(super) fn reject_protected_connection_header(&self, head: &Parts) -> Option<Status> {
        if !head.headers.contains_key(CONNECTION) {
            return None;
        }
        let trust = self.0.bridge.live.trust.load();
        let name =
            forwarding_headers::protected_header_in_connection(&head.headers, trust.headers())?;
        let message = format!("the Connection header must not list {name}");
        Some(Status::bad_request(message))
    }

    /// Sets `Host`, adds `X-Forwarded-*` headers and the `Via` token of this bridge.
    pub(super) fn add_forwarding_headers(&self, head: &mut Parts) {
        if let Some(authority) = head.uri.authority() {
            // Absolute-form: the target's authority counts (RFC 9112, 3.2.2).
            if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
                head.headers.insert(HOST, host);
            }
        } else if !head.headers.contains_key(HOST) {
            let host = self.0.bridge.default_host.clone();
            head.headers.insert(HOST, host);
        }
        let source = self.0.client.source().ip().to_canonical();
        if forwarding_headers::set_forwarded_headers(&mut head.headers, source)
            == ForwardedFor::Shortened
        {
            self.met_header_limit(HeaderLimit::ForwardedForShortened);
        }
        self.0.bridge.via.add(&mut head.headers, head.version);
    }
}

/// Removes hop-by-hop headers, and returns the protocol of the requested upgrade if it can be
/// forwarded.
pub(super) fn strip_hop_by_hop(head: &mut Parts) -> Option<HeaderValue> {
    let upgrade = (head.version == Version::HTTP_11)
        .then(|| forwarding_headers::requested_upgrade(&head.headers))
        .flatten()
        // Requests inside an HTTP/2 tunnel would bypass all checks.
        .filter(|protocol| {
            !protocol
                .as_bytes()
                .to_ascii_lowercase()
                .windows(3)
                .any(|it| it == b"h2c")
        });
    forwarding_headers::remove_hop_by_hop(&mut head.headers);
    head.headers.remove(CONNECTION);
    upgrade
}

/// The path of a request. The target must be a path, optionally with an authority (RFC 9112, 3.2;
/// RFC 9113, 8.3.1), which every server interprets in the same way.
pub(super) fn decoded_path<'a>(method: &Method, uri: &'a Uri) -> Result<DecodedPath<'a>, Status> {
    if method == Method::CONNECT {
        return Err(Status::method_not_allowed("CONNECT is not served here"));
    }
    let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
    let is_path = path.starts_with('/') || (path == "*" && method == Method::OPTIONS);
    if !is_path {
        return Err(Status::bad_request("the request target is not a path"));
    }
    let names_user = |authority: &Authority| authority.as_str().contains('@');
    if uri.authority().is_some_and(names_user) {
        return Err(Status::bad_request("the request target names a user"));
    }
    DecodedPath::new(uri.path()).map_err(|error| Status::bad_request(error.to_string()))
}

pub(super) fn take_head(head: &mut Parts) -> Parts {
    std::mem::replace(head, Request::new(()).into_parts().0)
}
