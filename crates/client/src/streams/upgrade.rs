//! From a request to a stream: the two ways to ask for one, and when the second is to be
//! tried.

use bytes::BytesMut;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, Method, StatusCode};
use skewbridge_websocket::{Key, Rejection, asking_headers, check_response};

use crate::connection::{Request, Stream};
use crate::endpoint::Endpoint;
use crate::error::{Error, ErrorResponse};

/// The protocols that a client of SPDY offers, and the one that a server takes.
const STREAM_PROTOCOL_HEADER: &str = "x-stream-protocol-version";

const SPDY: &str = "SPDY/3.1";

/// The longest answer that is read of a refusal.
const MAX_ERROR_BODY_BYTES: usize = 64 * 1024;

/// A connection after 101.
pub(crate) struct Upgraded {
    pub(crate) io: Stream,
    /// What the server sent right behind its 101.
    pub(crate) input: BytesMut,
    /// What the server has agreed to.
    pub(crate) protocol: Option<String>,
}

/// Asks for a WebSocket in which a subprotocol is spoken.
pub(crate) async fn websocket(
    endpoint: &Endpoint,
    path: &str,
    offer: &'static str,
) -> Result<Upgraded, Error> {
    let key = Key::random();
    let mut headers = HeaderMap::new();
    // A name of ours is a header.
    let _ = asking_headers(&key, [offer], &mut headers);
    let request = with_headers(Request::new(Method::GET, path), &headers);
    let mut connection = endpoint.connection().await?;
    let response = connection
        .send(&request.limit(MAX_ERROR_BODY_BYTES))
        .await?;
    let server = connection.server().to_owned();
    match check_response(response.status, &response.headers, &key, &[offer]) {
        Ok(Some(selected)) => {
            let (io, input) = connection.into_buffered();
            let protocol = Some(selected.to_owned());
            Ok(Upgraded {
                io,
                input,
                protocol,
            })
        }
        Ok(None) => Err(Error::UpgradeMismatch {
            server,
            cause: format!("named no subprotocol; {offer} was asked for"),
        }),
        Err(Rejection::Status(status)) => Err(api_error(server, status, &response.body)),
        Err(rejection) => Err(Error::UpgradeMismatch {
            server,
            cause: rejection.to_string(),
        }),
    }
}

/// Asks for SPDY.
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
            cause: format!("to {upgrade:?}; {SPDY} was asked for"),
        });
    }
    let protocol = response.headers.get(STREAM_PROTOCOL_HEADER);
    let protocol = protocol
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let (io, input) = connection.into_buffered();
    Ok(Upgraded {
        io,
        input,
        protocol,
    })
}

/// What comes of asking a server again that may have heard it the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetrySafety {
    /// Nothing: ports are connected to later.
    Idempotent,
    /// A command would run twice.
    NotIdempotent,
}

/// Why SPDY is to be tried when a WebSocket has failed so; `None` if it is not.
///
/// As client-go has it (`IsUpgradeFailure`, `IsHTTPSProxyError`): after an answer that
/// is no 101, and where an HTTPS proxy lets nobody through, so that nothing can have
/// been heard of the request. A 101 begins a stream, whatever else is wrong with it; and
/// what becomes of a request that has been sent and is not answered nobody knows. Then
/// only what is harmless is asked for again, and only if there is an HTTPS proxy on the
/// way, which may be what broke it.
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
        // They are ours, and ASCII.
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
    fn the_second_way_is_tried_only_if_nothing_can_run_twice() {
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
        // The error; of a command: straight, behind an HTTPS proxy; of ports: the same.
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
