//! Which hosts a request to the loopback port may name. A page of another site that has its own name
//! resolve to this address (DNS rebinding) names that site, and gets health checks and metrics only.

use std::net::IpAddr;

use bytes::Bytes;
use http::Response;
use http::header::HOST;
use http::request::Parts;
use http::uri::Authority;
use skewbridge_k8s_api::content_negotiation::negotiate_error_format;
use skewbridge_k8s_api::status::Status;

use super::health_endpoint;
use crate::error_response;

/// The response to a request that names another host. Health checks and metrics are served at every
/// name: probers and scrapers may have one for this address.
pub(super) fn reject_other_host(head: &Parts) -> Option<Response<Bytes>> {
    let path = head.uri.path();
    let is_open = path == "/metrics" || health_endpoint(path).is_some();
    // Nothing is served without a path, where the target may be an authority that names no host.
    let is_empty = matches!(path, "" | "*" | "/");
    if is_open || is_empty || names_loopback(head) {
        return None;
    }
    let message = "this path is served at IP addresses and at localhost only; --admin-secure-address \
                   serves it at other names";
    let format = negotiate_error_format(&head.headers);
    Some(error_response::status(&Status::forbidden(message), format))
}

/// Whether a request names the port by an address or as `localhost`.
fn names_loopback(head: &Parts) -> bool {
    let header = head
        .headers
        .get(HOST)
        .map(|it| it.to_str().unwrap_or_default());
    let authority = head.uri.authority().map(Authority::as_str).or(header);
    // Without a name there is no browser.
    let Some(Ok(authority)) = authority.map(str::parse::<Authority>) else {
        return authority.is_none();
    };
    let host = authority.host();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn only_addresses_and_localhost_name_the_port() {
        for (host, expected) in [
            (None, true),
            (Some("127.0.0.1:10270"), true),
            (Some("localhost:10270"), true),
            (Some("LocalHost"), true),
            (Some("[::1]:10270"), true),
            (Some("10.0.0.1"), true),
            (Some("rebound.example.com:10270"), false),
            (Some("localhost.example.com"), false),
            (Some("127.0.0.1.example.com"), false),
            (Some(""), false),
            (Some("a b"), false),
        ] {
            let mut request = Request::get("/status");
            if let Some(host) = host {
                request = request.header(HOST, host);
            }
            let (head, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(names_loopback(&head), expected, "{host:?}");
        }
        let absolute = Request::get("http://rebound.example.com/status").header(HOST, "127.0.0.1");
        let (head, ()) = absolute.body(()).unwrap().into_parts();
        assert!(!names_loopback(&head));
    }
}
