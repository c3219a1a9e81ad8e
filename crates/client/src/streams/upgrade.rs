//! From a request to a stream: the two ways to ask for one, and when the second is to be
//! tried.

use bytes::BytesMut;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, Method, StatusCode};
use skewbridge_websocket::{Key, ResponseError, check_response, set_request_headers};

use crate::connection::{Request, Stream};
use crate::endpoint::Endpoint;
use crate::error::{Error, Refusal};

/// The protocols that a client of SPDY offers, and the one that a server takes.
const STREAM_PROTOCOL: &str = "x-stream-protocol-version";

const SPDY: &str = "SPDY/3.1";

/// The longest answer that is read of a refusal.
const LONGEST_REFUSAL: usize = 64 * 1024;

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
    let _ = set_request_headers(&key, [offer], &mut headers);
    let request = with_headers(Request::new(Method::GET, path), &headers);
    let mut connection = endpoint.connection().await?;
    let response = connection.send(&request.limit(LONGEST_REFUSAL)).await?;
    let server = connection.server().to_owned();
    match check_response(response.status, &response.headers, &key, &[offer]) {
        Ok(Some(taken)) => {
            let (io, input) = connection.into_buffered();
            let protocol = Some(taken.to_owned());
            Ok(Upgraded {
                io,
                input,
                protocol,
            })
        }
        Ok(None) => Err(Error::Unswitched {
            server,
            cause: format!("named no subprotocol; {offer} was asked for"),
        }),
        Err(ResponseError::Status(status)) => Err(refused(server, status, &response.body)),
        Err(rejection) => Err(Error::Unswitched {
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
        .limit(LONGEST_REFUSAL);
    for offer in offers {
        request = request.header(STREAM_PROTOCOL, offer);
    }
    let mut connection = endpoint.connection().await?;
    let response = connection.send(&request).await?;
    let server = connection.server().to_owned();
    if response.status != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refused(server, response.status, &response.body));
    }
    let upgrade = response.header(&UPGRADE).unwrap_or("nothing");
    if !upgrade.eq_ignore_ascii_case(SPDY) {
        return Err(Error::Unswitched {
            server,
            cause: format!("to {upgrade:?}; {SPDY} was asked for"),
        });
    }
    let protocol = response.headers.get(STREAM_PROTOCOL);
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
pub(crate) enum Repeat {
    /// Nothing: ports are connected to later.
    Harmless,
    /// A command would run twice.
    Harmful,
}

/// Why SPDY is to be tried when a WebSocket has failed so; `None` if it is not.
///
/// As client-go has it (`IsUpgradeFailure`, `IsHTTPSProxyError`): after an answer that
/// is no 101, and where an HTTPS proxy lets nobody through, so that nothing can have
/// been heard of the request. A 101 begins a stream, whatever else is wrong with it; and
/// what becomes of a request that has been sent and is not answered nobody knows. Then
/// only what is harmless is asked for again, and only if there is an HTTPS proxy on the
/// way, which may be what broke it.
pub(crate) fn instead(error: &Error, behind_https_proxy: bool, repeat: Repeat) -> Option<String> {
    match error {
        Error::Refused { refusal, .. } => Some(refusal.to_string()),
        Error::Proxy { .. } if behind_https_proxy => Some(error.to_string()),
        Error::Unswitched { cause, .. } if repeat == Repeat::Harmless => Some(cause.clone()),
        Error::BrokeOff { .. } | Error::NotHttp { .. }
            if behind_https_proxy && repeat == Repeat::Harmless =>
        {
            Some(format!("{error} (behind an HTTPS proxy)"))
        }
        _ => None,
    }
}

fn refused(server: String, status: StatusCode, body: &[u8]) -> Error {
    let refusal = Box::new(Refusal::read(status.as_u16(), body));
    Error::Refused { server, refusal }
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

    fn refusal(code: u16, body: &str) -> Error {
        Error::Refused {
            server: "k:6443".to_owned(),
            refusal: Box::new(Refusal::read(code, body.as_bytes())),
        }
    }

    #[test]
    fn the_second_way_is_tried_only_if_nothing_can_run_twice() {
        let server = || "k:6443".to_owned();
        let cause = || "x".to_owned();
        let broke_off = Error::BrokeOff {
            server: server(),
            cause: cause(),
        };
        let not_http = Error::NotHttp {
            server: server(),
            cause: cause(),
        };
        let unswitched = Error::Unswitched {
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
        let broken = "the server k:6443 ended the connection before it had answered: x (behind an \
                      HTTPS proxy)";
        let other = "the server k:6443 does not answer in HTTP/1.1: x (behind an HTTPS proxy)";
        let barred = "the proxy p:3128 on the way to k:6443 x";
        // The error; of a command: straight, behind an HTTPS proxy; of ports: the same.
        let no = None;
        let rows = [
            (
                refusal(400, "upgrade please"),
                [Some("upgrade please (400)"); 4],
            ),
            (
                refusal(403, status),
                [Some("pods \"a\" is forbidden (Forbidden)"); 4],
            ),
            (refusal(502, ""), [Some("502 Bad Gateway"); 4]),
            (proxy, [no, Some(barred), no, Some(barred)]),
            (unswitched, [no, no, Some("x"), Some("x")]),
            (broke_off, [no, no, no, Some(broken)]),
            (not_http, [no, no, no, Some(other)]),
            (tls, [no; 4]),
            (Error::Unsendable(cause()), [no; 4]),
        ];
        let cases = [
            (false, Repeat::Harmful),
            (true, Repeat::Harmful),
            (false, Repeat::Harmless),
            (true, Repeat::Harmless),
        ];
        for (error, expected) in rows {
            for ((behind_https_proxy, repeat), expected) in cases.into_iter().zip(expected) {
                let found = instead(&error, behind_https_proxy, repeat);
                assert_eq!(
                    found.as_deref(),
                    expected,
                    "{error} {behind_https_proxy} {repeat:?}"
                );
            }
        }
    }
}
