//! The opening handshake (RFC 6455, 4), as functions over headers.

use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use crate::key::Key;

/// The only version.
const VERSION: &str = "13";

/// A valid WebSocket request. [`subprotocols`] returns the subprotocols that it offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The key that the response has to answer.
    pub key: Key,
}

/// Why a WebSocket request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It requests another upgrade, or none.
    #[error("not a WebSocket request")]
    NotWebSocket,
    /// RFC 6455, 4.1: only GET.
    #[error("a WebSocket request must use GET")]
    Method,
    /// RFC 6455, 4.2.2 and 4.4: the response names the supported version.
    #[error("only WebSocket version 13 is supported")]
    Version,
    /// RFC 6455, 4.2.1.
    #[error("Sec-WebSocket-Key must be exactly one key of 16 bytes in base64")]
    Key,
}

impl RequestError {
    /// The status of the response. As kube-apiserver and gorilla do, 400 also for a wrong
    /// version, where RFC 6455, 4.2.2 has 426. The response also has `Sec-WebSocket-Version:
    /// 13`.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

/// Why a response does not open a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// It has another status, and is plain HTTP.
    #[error("answered with {0} instead of an upgrade")]
    Status(StatusCode),
    /// RFC 6455, 4.1: `Upgrade: websocket` and `Connection: Upgrade`.
    #[error("upgraded to another protocol")]
    NotWebSocket,
    /// The response belongs to another request, or the server does not implement WebSocket.
    #[error("Sec-WebSocket-Accept does not match the key")]
    Accept,
    /// No extension was offered.
    #[error("an extension that was not offered")]
    Extension,
    /// A subprotocol that was not offered, or more than one.
    #[error("a subprotocol that was not offered")]
    Subprotocol,
}

/// Whether headers request or accept an upgrade to WebSocket.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    tokens(headers, &UPGRADE).any(|token| token.eq_ignore_ascii_case("websocket"))
        && tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"))
}

/// The subprotocols of a request in the order of preference: any number of headers forms one
/// list (RFC 6455, 11.3.4).
///
/// A bearer token may be among them (`base64url.bearer.authorization.k8s.io.`): unknown
/// subprotocols must not be logged.
pub fn subprotocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    tokens(headers, &SEC_WEBSOCKET_PROTOCOL)
}

/// Parses a WebSocket request.
pub fn parse_upgrade_request(
    method: &Method,
    headers: &HeaderMap,
) -> Result<Request, RequestError> {
    if !is_upgrade(headers) {
        return Err(RequestError::NotWebSocket);
    }
    if method != Method::GET {
        return Err(RequestError::Method);
    }
    if only_value(headers, &SEC_WEBSOCKET_VERSION).is_none_or(|version| version != VERSION) {
        return Err(RequestError::Version);
    }
    let key = only_value(headers, &SEC_WEBSOCKET_KEY).and_then(Key::parse);
    Ok(Request {
        key: key.ok_or(RequestError::Key)?,
    })
}

/// Sets the headers of a WebSocket request, replacing those of another upgrade. Without offers
/// there is no subprotocol header.
pub fn set_request_headers<'a>(
    key: &Key,
    offers: impl IntoIterator<Item = &'a str>,
    headers: &mut HeaderMap,
) -> Result<(), http::header::InvalidHeaderValue> {
    let offers: Vec<_> = offers.into_iter().collect();
    let offers = HeaderValue::from_str(&offers.join(", "))?;
    upgrade(headers);
    headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static(VERSION));
    headers.insert(SEC_WEBSOCKET_KEY, key.value().clone());
    headers.remove(SEC_WEBSOCKET_EXTENSIONS);
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if !offers.is_empty() {
        // In one header: Kubernetes reads only the first.
        headers.insert(SEC_WEBSOCKET_PROTOCOL, offers);
    }
    Ok(())
}

/// Sets the headers of the 101 that accepts a request.
pub fn set_response_headers(
    request: &Request,
    subprotocol: Option<HeaderValue>,
    headers: &mut HeaderMap,
) {
    upgrade(headers);
    headers.insert(SEC_WEBSOCKET_ACCEPT, request.key.accept());
    if let Some(subprotocol) = subprotocol {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, subprotocol);
    }
}

/// Checks the response to a WebSocket request, and returns the accepted offer.
pub fn check_response<'a>(
    status: StatusCode,
    headers: &HeaderMap,
    key: &Key,
    offers: &[&'a str],
) -> Result<Option<&'a str>, ResponseError> {
    if status != StatusCode::SWITCHING_PROTOCOLS {
        return Err(ResponseError::Status(status));
    }
    if !is_upgrade(headers) {
        return Err(ResponseError::NotWebSocket);
    }
    if only_value(headers, &SEC_WEBSOCKET_ACCEPT) != Some(&key.accept()) {
        return Err(ResponseError::Accept);
    }
    if tokens(headers, &SEC_WEBSOCKET_EXTENSIONS).next().is_some() {
        return Err(ResponseError::Extension);
    }
    // Kubernetes writes an empty value if it accepts none.
    let mut accepted = tokens(headers, &SEC_WEBSOCKET_PROTOCOL);
    match (accepted.next(), accepted.next()) {
        (None, _) => Ok(None),
        (Some(accepted), None) => {
            let offer = offers.iter().find(|offer| **offer == accepted);
            offer.copied().map(Some).ok_or(ResponseError::Subprotocol)
        }
        (Some(_), Some(_)) => Err(ResponseError::Subprotocol),
    }
}

fn upgrade(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// The members of a list that may be spread over several headers, without empty ones (RFC
/// 9110, 5.6.1). A header that is not ASCII has none.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|token| token.trim_matches([' ', '\t']))
        .filter(|token| !token.is_empty())
}

/// The value of a header that may occur only once.
fn only_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    values.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(text: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in text.lines() {
            let (name, value) = line.trim().split_once(':').unwrap();
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, value.trim().parse().unwrap());
        }
        headers
    }

    const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";

    #[test]
    fn requests_are_parsed_according_to_rfc_6455() {
        let good = "Connection: keep-alive, upgrade\nUpgrade: WebSocket\nSec-WebSocket-Version: 13";
        let rows = [
            (format!("{good}\n{KEY}"), None),
            (good.to_owned(), Some(RequestError::Key)),
            (format!("{good}\n{KEY}\n{KEY}"), Some(RequestError::Key)),
            (
                format!("{good}\nSec-WebSocket-Key: abc"),
                Some(RequestError::Key),
            ),
            (
                format!("{good}\n{KEY}").replace("13", "8"),
                Some(RequestError::Version),
            ),
            (
                format!("{good}\n{KEY}").replace("13", "13, 8"),
                Some(RequestError::Version),
            ),
            (
                format!("{good}\n{KEY}").replace("WebSocket\n", "SPDY/3.1\n"),
                Some(RequestError::NotWebSocket),
            ),
            (
                format!("{good}\n{KEY}").replace("upgrade", "close"),
                Some(RequestError::NotWebSocket),
            ),
            (KEY.to_owned(), Some(RequestError::NotWebSocket)),
        ];
        for (text, refusal) in rows {
            let got = parse_upgrade_request(&Method::GET, &headers(&text));
            assert_eq!(got.err(), refusal, "{text}");
        }
        let post = parse_upgrade_request(&Method::POST, &headers(&format!("{good}\n{KEY}")));
        assert_eq!(post, Err(RequestError::Method));
        assert_eq!(RequestError::Method.status(), 405);
        assert_eq!(RequestError::Version.status(), 400);
    }

    #[test]
    fn subprotocols_of_several_headers_are_one_list() {
        let headers = headers(
            "Sec-WebSocket-Protocol: v5.channel.k8s.io,v4.channel.k8s.io
             X: y
             Sec-WebSocket-Protocol: , channel.k8s.io\t,",
        );
        let offers: Vec<_> = subprotocols(&headers).collect();
        let expected = ["v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io"];
        assert_eq!(offers, expected);
    }

    #[test]
    fn generated_requests_and_responses_are_accepted() {
        let key = Key::random();
        let offers = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
        let mut request_headers = headers("Upgrade: SPDY/3.1\nSec-WebSocket-Extensions: x");
        set_request_headers(&key, offers, &mut request_headers).unwrap();
        assert_eq!(request_headers.get(SEC_WEBSOCKET_EXTENSIONS), None);
        let request = parse_upgrade_request(&Method::GET, &request_headers).unwrap();
        assert_eq!(subprotocols(&request_headers).collect::<Vec<_>>(), offers);

        for accepted in [Some("v4.channel.k8s.io"), None] {
            let mut accepting = HeaderMap::new();
            set_response_headers(
                &request,
                accepted.map(HeaderValue::from_static),
                &mut accepting,
            );
            let status = StatusCode::SWITCHING_PROTOCOLS;
            assert_eq!(
                check_response(status, &accepting, &key, &offers),
                Ok(accepted)
            );
        }
    }

    #[test]
    fn invalid_responses_are_rejected() {
        let key = Key::parse(&HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==")).unwrap();
        let good = "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
        let offers = ["a", "b"];
        let check = |text: &str| {
            check_response(
                StatusCode::SWITCHING_PROTOCOLS,
                &headers(text),
                &key,
                &offers,
            )
        };
        let with = |more: &str| format!("{good}\n{more}");
        assert_eq!(check(good), Ok(None));
        assert_eq!(check(&with("Sec-WebSocket-Protocol: b")), Ok(Some("b")));
        // As kubelets answer a request without offers.
        assert_eq!(check(&with("Sec-WebSocket-Protocol: ")), Ok(None));
        let rows = [
            (good.replace("s3p", "S3P"), ResponseError::Accept),
            (
                good.replace("websocket", "h2c"),
                ResponseError::NotWebSocket,
            ),
            (
                good.replace("Connection: Upgrade", "A: b"),
                ResponseError::NotWebSocket,
            ),
            (
                with("Sec-WebSocket-Protocol: c"),
                ResponseError::Subprotocol,
            ),
            (
                with("Sec-WebSocket-Protocol: a, b"),
                ResponseError::Subprotocol,
            ),
            (
                with("Sec-WebSocket-Extensions: permessage-deflate"),
                ResponseError::Extension,
            ),
        ];
        for (text, rejection) in rows {
            assert_eq!(check(&text), Err(rejection), "{text}");
        }
        let forbidden = check_response(StatusCode::FORBIDDEN, &headers(good), &key, &offers);
        assert_eq!(forbidden, Err(ResponseError::Status(StatusCode::FORBIDDEN)));
    }
}
