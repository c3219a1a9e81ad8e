//! The upgrade_headers of requests and answers that change protocols on their way.

use http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use skewbridge_remotecommand::{SpdyProtocol, port_forward, spdy_protocol_from_response};
use skewbridge_websocket as websocket;

use super::translation_plan::{SPDY, STREAM_PROTOCOL};

/// Makes the request for a WebSocket one for SPDY: a POST, for which upstream asks
/// for `create`, the stricter right.
pub(crate) fn to_spdy<'a>(
    head: &mut Parts,
    protocols: impl IntoIterator<Item = &'a str>,
    token: Option<&HeaderValue>,
) {
    head.method = Method::POST;
    let headers = &mut head.headers;
    for name in [
        SEC_WEBSOCKET_EXTENSIONS,
        SEC_WEBSOCKET_KEY,
        SEC_WEBSOCKET_PROTOCOL,
        SEC_WEBSOCKET_VERSION,
        STREAM_PROTOCOL,
    ] {
        headers.remove(name);
    }
    headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
    headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    for protocol in protocols {
        // What came in a header is a header.
        if let Ok(value) = HeaderValue::from_str(protocol) {
            headers.append(STREAM_PROTOCOL, value);
        }
    }
    if let Some(token) = token
        && !headers.contains_key(AUTHORIZATION)
    {
        headers.insert(AUTHORIZATION, token.clone());
    }
}

/// Makes the request for SPDY one for a WebSocket: a GET.
pub(crate) fn to_websocket(head: &mut Parts, key: &websocket::Key, offer: &'static str) {
    head.method = Method::GET;
    head.headers.remove(STREAM_PROTOCOL);
    head.headers.remove(CONTENT_LENGTH);
    // A name of ours is a header.
    let _ = websocket::set_request_headers(key, [offer], &mut head.headers);
}

/// Upstream has switched, and to something else than it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("upstream switched to {0}, which was not asked for")]
pub(crate) struct Unasked(String);

/// What upstream has switched to, by its 101: the fourth version of the protocol,
/// as it was asked for.
pub(crate) fn switched_to_command(headers: &HeaderMap) -> Result<SpdyProtocol, Unasked> {
    let protocol = switched_to_spdy(headers)?;
    match spdy_protocol_from_response(protocol) {
        Some(SpdyProtocol::V4) => Ok(SpdyProtocol::V4),
        _ => Err(unasked(headers)),
    }
}

/// Which of the offers of a tunnel upstream has taken, by its 101.
pub(crate) fn switched_to_port_forward<'a>(
    headers: &HeaderMap,
    offers: impl IntoIterator<Item = &'a str>,
) -> Result<&'a str, Unasked> {
    let protocol = switched_to_spdy(headers)?;
    port_forward::tunnel::accepted_offer(offers, protocol).ok_or_else(|| unasked(headers))
}

fn switched_to_spdy(headers: &HeaderMap) -> Result<Option<&str>, Unasked> {
    let upgrade = headers.get(UPGRADE).map(HeaderValue::as_bytes);
    if !upgrade.is_some_and(|it| it.eq_ignore_ascii_case(SPDY.as_bytes())) {
        return Err(unasked(headers));
    }
    let protocol = headers.get(STREAM_PROTOCOL);
    protocol
        .map(|value| value.to_str().map_err(|_| unasked(headers)))
        .transpose()
}

fn unasked(headers: &HeaderMap) -> Unasked {
    let text = |name| {
        let value = headers.get(name).map(HeaderValue::as_bytes);
        String::from_utf8_lossy(value.unwrap_or(b"nothing")).into_owned()
    };
    Unasked(format!("{} ({})", text(UPGRADE), text(STREAM_PROTOCOL)))
}

/// Grants a WebSocket.
pub(crate) fn websocket_granted(
    request: &websocket::Request,
    subprotocol: Option<&str>,
) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    // What came in a header, or is a name of ours, is a header.
    let subprotocol = subprotocol.and_then(|name| HeaderValue::from_str(name).ok());
    websocket::set_response_headers(request, subprotocol, response.headers_mut());
    response
}

/// Grants SPDY.
pub(crate) fn spdy_granted(protocol: &'static str) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(
        http::header::CONNECTION,
        HeaderValue::from_static("Upgrade"),
    );
    headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
    headers.insert(STREAM_PROTOCOL, HeaderValue::from_static(protocol));
    response
}

/// Whether this answer to a request for a WebSocket may come from somebody who
/// does not know what was asked for: nodes refuse a protocol that they do not speak
/// with 403 and no more. kube-apiserver itself refuses by a Status.
pub(crate) fn is_refusal(status: StatusCode, headers: &HeaderMap) -> bool {
    let is_status = |value: &HeaderValue| {
        let value = value.as_bytes();
        value.starts_with(b"application/json")
            || value.starts_with(b"application/vnd.kubernetes.protobuf")
            || value.starts_with(b"application/cbor")
            || value.starts_with(b"application/yaml")
    };
    matches!(
        status,
        StatusCode::BAD_REQUEST
            | StatusCode::FORBIDDEN
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::UPGRADE_REQUIRED
            | StatusCode::NOT_IMPLEMENTED
    ) && !headers.get(CONTENT_TYPE).is_some_and(is_status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_request_for_a_websocket_becomes_one_for_spdy() {
        let (mut head, ()) = http::Request::get("/api/v1/namespaces/n/pods/p/exec?command=ls")
            .header("upgrade", "websocket")
            .header("sec-websocket-key", "k")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-protocol", "v5.channel.k8s.io")
            .header("sec-websocket-extensions", "permessage-deflate")
            .header("x-stream-protocol-version", "forged")
            .header("impersonate-user", "kept")
            .body(())
            .unwrap()
            .into_parts();
        let token = HeaderValue::from_static("Bearer t");
        to_spdy(&mut head, ["v4.channel.k8s.io"], Some(&token));
        assert_eq!(head.method, Method::POST);
        let mut left: Vec<_> = head
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "authorization: Bearer t",
                "content-length: 0",
                "impersonate-user: kept",
                "upgrade: SPDY/3.1",
                "x-stream-protocol-version: v4.channel.k8s.io",
            ]
        );
        // What is said in the usual place counts.
        let other = HeaderValue::from_static("Bearer other");
        to_spdy(&mut head, [], Some(&other));
        assert_eq!(head.headers[AUTHORIZATION], "Bearer t");
    }

    #[test]
    fn upstream_switches_to_what_it_was_asked_for_or_the_stream_is_not_begun() {
        let (spdy, v4) = (("upgrade", "SPDY/3.1"), "v4.channel.k8s.io");
        let rows: &[(&[(&str, &str)], bool)] = &[
            (&[spdy, ("x-stream-protocol-version", v4)], true),
            (
                &[("upgrade", "spdy/3.1"), ("x-stream-protocol-version", v4)],
                true,
            ),
            (&[spdy], false),
            (
                &[spdy, ("x-stream-protocol-version", "v3.channel.k8s.io")],
                false,
            ),
            (
                &[spdy, ("x-stream-protocol-version", "v9.channel.k8s.io")],
                false,
            ),
            (
                &[("upgrade", "websocket"), ("x-stream-protocol-version", v4)],
                false,
            ),
            (&[("x-stream-protocol-version", v4)], false),
        ];
        for (fields, good) in rows {
            let fields: Vec<_> = fields.to_vec();
            let mut map = HeaderMap::new();
            for (name, value) in &fields {
                let name: http::HeaderName = name.parse().unwrap();
                map.append(name, value.parse().unwrap());
            }
            assert_eq!(switched_to_command(&map).is_ok(), *good, "{fields:?}");
        }
        let offers = ["SPDY/3.1+portforward.k8s.io"];
        let good = headers(&[spdy, ("x-stream-protocol-version", "portforward.k8s.io")]);
        assert_eq!(switched_to_port_forward(&good, offers), Ok(offers[0]));
        assert!(switched_to_port_forward(&headers(&[spdy]), offers).is_err());
    }

    #[test]
    fn only_a_refusal_without_a_status_leaves_doubt() {
        let json = headers(&[("content-type", "application/json")]);
        let text = headers(&[("content-type", "text/plain; charset=utf-8")]);
        let none = HeaderMap::new();
        for headers in [&text, &none] {
            for code in [400, 403, 405, 426, 501] {
                let status = StatusCode::from_u16(code).unwrap();
                assert!(is_refusal(status, headers), "{code}");
                assert!(!is_refusal(status, &json), "{code}");
            }
            for code in [200, 302, 401, 404, 429, 500, 502, 503] {
                let status = StatusCode::from_u16(code).unwrap();
                assert!(!is_refusal(status, headers), "{code}");
            }
        }
    }
}
