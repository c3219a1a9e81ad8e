//! Rewrites the headers of upgrade requests and responses that change protocols.

use http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use skewbridge_remotecommand::{SpdyProtocol, port_forward, spdy_protocol_from_response};
use skewbridge_websocket as websocket;

use super::translation_plan::{SPDY_UPGRADE, STREAM_PROTOCOL_HEADER};

/// Turns a WebSocket request into an SPDY request: a POST, for which upstream checks `create`,
/// the stricter verb.
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
        STREAM_PROTOCOL_HEADER,
    ] {
        headers.remove(name);
    }
    headers.insert(UPGRADE, HeaderValue::from_static(SPDY_UPGRADE));
    headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    for protocol in protocols {
        // The value comes from a header, so it is valid in one.
        if let Ok(value) = HeaderValue::from_str(protocol) {
            headers.append(STREAM_PROTOCOL_HEADER, value);
        }
    }
    if let Some(token) = token
        && !headers.contains_key(AUTHORIZATION)
    {
        headers.insert(AUTHORIZATION, token.clone());
    }
}

/// Turns an SPDY request into a WebSocket request: a GET.
pub(crate) fn to_websocket(head: &mut Parts, key: &websocket::Key, offer: &'static str) {
    head.method = Method::GET;
    head.headers.remove(STREAM_PROTOCOL_HEADER);
    head.headers.remove(CONTENT_LENGTH);
    // A constant name is valid in a header.
    let _ = websocket::set_request_headers(key, [offer], &mut head.headers);
}

/// Upstream upgraded to a protocol that was not requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("upstream upgraded to {0}, which was not requested")]
pub(crate) struct UnexpectedUpgrade(String);

/// The protocol of a command that upstream upgraded to in its 101: version 4, as requested.
pub(crate) fn command_protocol(headers: &HeaderMap) -> Result<SpdyProtocol, UnexpectedUpgrade> {
    let protocol = spdy_protocol(headers)?;
    match spdy_protocol_from_response(protocol) {
        Some(SpdyProtocol::V4) => Ok(SpdyProtocol::V4),
        _ => Err(unexpected(headers)),
    }
}

/// The tunnel offer that upstream accepted in its 101.
pub(crate) fn port_forward_offer<'a>(
    headers: &HeaderMap,
    offers: impl IntoIterator<Item = &'a str>,
) -> Result<&'a str, UnexpectedUpgrade> {
    let protocol = spdy_protocol(headers)?;
    port_forward::tunnel::accepted_offer(offers, protocol).ok_or_else(|| unexpected(headers))
}

fn spdy_protocol(headers: &HeaderMap) -> Result<Option<&str>, UnexpectedUpgrade> {
    let upgrade = headers.get(UPGRADE).map(HeaderValue::as_bytes);
    if !upgrade.is_some_and(|it| it.eq_ignore_ascii_case(SPDY_UPGRADE.as_bytes())) {
        return Err(unexpected(headers));
    }
    let protocol = headers.get(STREAM_PROTOCOL_HEADER);
    protocol
        .map(|value| value.to_str().map_err(|_| unexpected(headers)))
        .transpose()
}

fn unexpected(headers: &HeaderMap) -> UnexpectedUpgrade {
    let text = |name| {
        let value = headers.get(name).map(HeaderValue::as_bytes);
        String::from_utf8_lossy(value.unwrap_or(b"nothing")).into_owned()
    };
    UnexpectedUpgrade(format!(
        "{} ({})",
        text(UPGRADE),
        text(STREAM_PROTOCOL_HEADER)
    ))
}

/// The 101 that accepts a WebSocket.
pub(crate) fn websocket_response(
    request: &websocket::Request,
    subprotocol: Option<&str>,
) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    // The value comes from a header or is a constant, so it is valid in one.
    let subprotocol = subprotocol.and_then(|name| HeaderValue::from_str(name).ok());
    websocket::set_response_headers(request, subprotocol, response.headers_mut());
    response
}

/// The 101 that accepts SPDY.
pub(crate) fn spdy_response(protocol: &'static str) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(
        http::header::CONNECTION,
        HeaderValue::from_static("Upgrade"),
    );
    headers.insert(UPGRADE, HeaderValue::from_static(SPDY_UPGRADE));
    headers.insert(STREAM_PROTOCOL_HEADER, HeaderValue::from_static(protocol));
    response
}

/// Whether this response to a WebSocket request may come from a server that does not support
/// the protocol: nodes refuse such a protocol with a bare 403. kube-apiserver itself refuses
/// with a Status.
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
        // An `Authorization` header takes precedence.
        let other = HeaderValue::from_static("Bearer other");
        to_spdy(&mut head, [], Some(&other));
        assert_eq!(head.headers[AUTHORIZATION], "Bearer t");
    }

    #[test]
    fn an_unexpected_upgrade_is_an_error() {
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
            assert_eq!(command_protocol(&map).is_ok(), *good, "{fields:?}");
        }
        let offers = ["SPDY/3.1+portforward.k8s.io"];
        let good = headers(&[spdy, ("x-stream-protocol-version", "portforward.k8s.io")]);
        assert_eq!(port_forward_offer(&good, offers), Ok(offers[0]));
        assert!(port_forward_offer(&headers(&[spdy]), offers).is_err());
    }

    #[test]
    fn only_a_refusal_without_a_status_is_ambiguous() {
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
