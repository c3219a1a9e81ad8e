//! What the h2 crate accepts and an HTTP/1.1 server would not, or would interpret differently.

use http::HeaderValue;
use http::header::{CONTENT_LENGTH, COOKIE, HOST};
use skewbridge_k8s_api::status::Status;

use crate::header_bounds::{HeaderLimit, MAX_HEADER_LIST_BYTES, MAX_JOINED_COOKIE_BYTES};
use crate::http1::MAX_FIELDS;
use crate::server::Service;

/// Rejects a header list that exceeds the limits.
pub(super) fn check_header_size(fields: usize, size: usize) -> Result<(), Status> {
    if fields > MAX_FIELDS || size > MAX_HEADER_LIST_BYTES {
        return Err(Status::header_fields_too_large(format!(
            "the request's headers are larger than {MAX_HEADER_LIST_BYTES} bytes or more than {MAX_FIELDS}"
        )));
    }
    Ok(())
}

/// RFC 9113, 8.3.1: `:authority` replaces Host; if both are present and differ, the request is
/// rejected.
pub(super) fn check_authority(head: &mut http::request::Parts) -> Result<(), &'static str> {
    let mut hosts = head.headers.get_all(HOST).iter();
    match (head.uri.authority(), hosts.next(), hosts.next()) {
        (_, _, Some(_)) => return Err("more than one Host"),
        (Some(authority), Some(host), None) if authority.as_str().as_bytes() != host.as_bytes() => {
            return Err("Host differs from :authority");
        }
        (Some(authority), _, None) => {
            let host =
                HeaderValue::from_str(authority.as_str()).map_err(|_| "invalid :authority")?;
            head.headers.insert(HOST, host);
        }
        (None, None, None) => return Err("missing :authority"),
        (None, Some(_), None) => {}
    }
    Ok(())
}

/// RFC 9113, 8.2.3: joins the fields of `Cookie`, as HTTP/1.1 requires.
pub(super) fn join_cookies<S: Service>(
    head: &mut http::request::Parts,
    service: &S,
) -> Result<(), Status> {
    let crumbs: Vec<_> = head.headers.get_all(COOKIE).iter().collect();
    if crumbs.len() > 1 {
        let joined = crumbs
            .iter()
            .map(|crumb| crumb.as_bytes())
            .collect::<Vec<_>>()
            .join(&b"; "[..]);
        if joined.len() > MAX_JOINED_COOKIE_BYTES {
            service.met_header_limit(HeaderLimit::CookieTooLarge);
            return Err(Status::header_fields_too_large(format!(
                "the request's Cookie is larger than {MAX_JOINED_COOKIE_BYTES} bytes"
            )));
        }
        let mut joined =
            HeaderValue::from_bytes(&joined).map_err(|_| Status::bad_request("invalid Cookie"))?;
        joined.set_sensitive(true);
        head.headers.insert(COOKIE, joined);
    }
    Ok(())
}

/// Rejects values that the h2 crate accepts and an HTTP/1.1 server may interpret differently: a
/// repeated Content-Length, and an empty one.
pub(super) fn check_length(head: &http::request::Parts) -> Result<(), &'static str> {
    let mut lengths = head.headers.get_all(CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (_, Some(_)) => Err("more than one Content-Length"),
        (Some(length), None) if length.is_empty() => Err("invalid Content-Length"),
        _ => Ok(()),
    }
}
