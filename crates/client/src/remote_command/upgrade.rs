//! Upgrades a request to a stream, over WebSocket or SPDY, and decides when to fall back.

use bytes::BytesMut;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, Method, StatusCode};
use skewbridge_websocket::{Key, ResponseError, check_response, set_request_headers};

use crate::api_server::{Endpoint, Request};
use crate::error::{Error, ErrorResponse};
use crate::transport::Stream;

/// The protocols that an SPDY client offers, and the one that the server selects.
const STREAM_PROTOCOL_HEADER: &str = "x-stream-protocol-version";

const SPDY: &str = "SPDY/3.1";

/// How much of an error response is read.
const MAX_ERROR_BODY_BYTES: usize = 64 * 1024;

/// A connection after 101.
pub(crate) struct Upgraded {
    pub(crate) io: Stream,
    /// Bytes that the server sent directly after its 101.
    pub(crate) input: BytesMut,
    /// The protocol that the server selected.
    pub(crate) protocol: Option<String>,
}

/// Requests a WebSocket with a subprotocol.
pub(crate) async fn websocket(
    endpoint: &Endpoint,
    path: &str,
    offer: &'static str,
) -> Result<Upgraded, Error> {
    let key = Key::random();
    let mut headers = HeaderMap::new();
    // Our subprotocol names are valid header values.
    let _ = set_request_headers(&key, [offer], &mut headers);
    let request = with_headers(Request::new(Method::GET, path), &headers);
    let mut connection = endpoint.connection().await?;
    let response = connection
        .send(&request.limit(MAX_ERROR_BODY_BYTES))
        .await?;
    let server = connection.server().to_owned();
    match check_response(response.status, &response.headers, &key, &[offer]) {
        Ok(Some(selected)) => {
            let (io, input) = connection.into_buffered()?;
            let protocol = Some(selected.to_owned());
            Ok(Upgraded {
                io,
                input,
                protocol,
            })
        }
        Ok(None) => Err(Error::UpgradeMismatch {
            server,
            cause: format!("named no subprotocol; {offer} was requested"),
        }),
        Err(ResponseError::Status(status)) => Err(api_error(server, status, &response.body)),
        Err(rejection) => Err(Error::UpgradeMismatch {
            server,
            cause: rejection.to_string(),
        }),
    }
}

/// Requests SPDY.
pub(crate) async fn spdy(
    endpoint: &Endpoint,
    path: &str,
    offers: impl IntoIterator<Item = &'static str>,
) -> Result<Upgraded, Error> {
    let mut request = Request::new(Method::POST, path)
        .header(CONNECTION.as_str(), "Upgrade")
        .header(UPGRADE.as_str(), SPDY)
        .limit(MAX_ERROR_BODY_BYTES);
    for offer in offers {
        request = request.header(STREAM_PROTOCOL_HEADER, offer);
    }
    let mut connection = endpoint.connection().await?;
    let response = connection.send(&request).await?;
    let server = connection.server().to_owned();
    if response.status != StatusCode::SWITCHING_PROTOCOLS {
        return Err(api_error(server, response.status, &response.body));
    }
    let upgrade = response.header(&UPGRADE).unwrap_or("nothing");
    if !upgrade.eq_ignore_ascii_case(SPDY) {
        return Err(Error::UpgradeMismatch {
            server,
            cause: format!("to {upgrade:?}; {SPDY} was requested"),
        });
    }
    let protocol = response.headers.get(STREAM_PROTOCOL_HEADER);
    let protocol = protocol
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let (io, input) = connection.into_buffered()?;
    Ok(Upgraded {
        io,
        input,
        protocol,
    })
}

/// Whether a request may be repeated that the server may have received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetrySafety {
    /// It may be repeated: connections to ports are opened later.
    Idempotent,
    /// It must not be repeated: a command would run twice.
    NotIdempotent,
}

/// Why to fall back to SPDY after this WebSocket error; `None` if not.
///
/// As in client-go (`IsUpgradeFailure`, `IsHTTPSProxyError`), the client falls back after any
/// response but 101, and if an HTTPS proxy opens no tunnel, so that the server cannot have
/// received the request. After a 101 the stream has started, even if it fails later; and
/// the outcome of a request that was sent but not answered is unknown. In these cases only
/// idempotent requests are repeated, and unanswered ones only if an HTTPS proxy is in use,
/// which may have broken the connection.
pub(crate) fn fallback_reason(
    error: &Error,
    behind_https_proxy: bool,
    retry_safety: RetrySafety,
) -> Option<String> {
    match error {
        Error::Api { response, .. } => Some(response.to_string()),
        Error::Proxy { .. } if behind_https_proxy => Some(error.to_string()),
        Error::UpgradeMismatch { cause, .. } if retry_safety == RetrySafety::Idempotent => {
            Some(cause.clone())
        }
        Error::ConnectionLost { .. } | Error::NotHttp { .. }
            if behind_https_proxy && retry_safety == RetrySafety::Idempotent =>
        {
            Some(format!("{error} (behind an HTTPS proxy)"))
        }
        _ => None,
    }
}

fn api_error(server: String, status: StatusCode, body: &[u8]) -> Error {
    let response = Box::new(ErrorResponse::parse(status.as_u16(), body));
    Error::Api { server, response }
}

fn with_headers(mut request: Request, headers: &HeaderMap) -> Request {
    for (name, value) in headers {
        // Our own headers are ASCII.
        request = request.header(name.as_str(), value.to_str().unwrap_or_default());
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(code: u16, body: &str) -> Error {
        Error::Api {
            server: "k:6443".to_owned(),
            response: Box::new(ErrorResponse::parse(code, body.as_bytes())),
        }
    }

    #[test]
    fn the_fallback_is_used_only_if_no_command_can_run_twice() {
        let server = || "k:6443".to_owned();
        let cause = || "x".to_owned();
        let connection_lost = Error::ConnectionLost {
            server: server(),
            cause: cause(),
        };
        let not_http = Error::NotHttp {
            server: server(),
            cause: cause(),
        };
        let upgrade_mismatch = Error::UpgradeMismatch {
            server: server(),
            cause: cause(),
        };
        let proxy = Error::Proxy {
            proxy: "p:3128".to_owned(),
            server: server(),
            cause: cause(),
        };
        let tls = Error::Tls {
            server: server(),
            cause: cause(),
        };
        let status =
            r#"{"kind":"Status","reason":"Forbidden","message":"pods \"a\" is forbidden"}"#;
        let lost_message = "the server k:6443 ended the connection before it had answered: x (behind an \
                      HTTPS proxy)";
        let not_http_message =
            "the server k:6443 does not answer in HTTP/1.1: x (behind an HTTPS proxy)";
        let proxy_message = "the proxy p:3128 on the way to k:6443 x";
        // The error; for a command: direct, behind an HTTPS proxy; for ports: the same.
        let no = None;
        let rows = [
            (
                response(400, "upgrade please"),
                [Some("upgrade please (400)"); 4],
            ),
            (
                response(403, status),
                [Some("pods \"a\" is forbidden (Forbidden)"); 4],
            ),
            (response(502, ""), [Some("502 Bad Gateway"); 4]),
            (proxy, [no, Some(proxy_message), no, Some(proxy_message)]),
            (upgrade_mismatch, [no, no, Some("x"), Some("x")]),
            (connection_lost, [no, no, no, Some(lost_message)]),
            (not_http, [no, no, no, Some(not_http_message)]),
            (tls, [no; 4]),
            (Error::InvalidRequest(cause()), [no; 4]),
        ];
        let cases = [
            (false, RetrySafety::NotIdempotent),
            (true, RetrySafety::NotIdempotent),
            (false, RetrySafety::Idempotent),
            (true, RetrySafety::Idempotent),
        ];
        for (error, expected) in rows {
            for ((behind_https_proxy, retry_safety), expected) in cases.into_iter().zip(expected) {
                let found = fallback_reason(&error, behind_https_proxy, retry_safety);
                assert_eq!(
                    found.as_deref(),
                    expected,
                    "{error} {behind_https_proxy} {retry_safety:?}"
                );
            }
        }
    }
}
