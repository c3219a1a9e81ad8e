//! From a request to a stream: the two ways to ask for one, and when the second is to be
//! tried.

use bytes::BytesMut;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, Method, StatusCode};
use skewbridge_websocket::{Key, Rejection, asking_headers, check_response};

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
    let _ = asking_headers(&key, [offer], &mut headers);
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
        Err(Rejection::Status(status)) => Err(refused(server, status, &response.body)),
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

/// Why SPDY is to be tried when a WebSocket has failed so; `None` if it is not.
///
/// As client-go has it (`IsUpgradeFailure`, `IsHTTPSProxyError`): every answer but a 101
/// that grants what was asked for. What is no answer says nothing of them, unless
/// there is a proxy on the way that is spoken to by TLS, which may have broken it.
pub(crate) fn instead(error: &Error, behind_https_proxy: bool) -> Option<String> {
    match error {
        Error::Refused { refusal, .. } => Some(refusal.to_string()),
        Error::Unswitched { cause, .. } => Some(cause.clone()),
        Error::BrokeOff { .. } | Error::NotHttp { .. } if behind_https_proxy => {
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
    fn the_second_way_is_tried_after_an_answer_and_after_nothing_else() {
        let server = || "k:6443".to_owned();
        let cause = || "x".to_owned();
        let broke_off = || Error::BrokeOff {
            server: server(),
            cause: cause(),
        };
        let rows = [
            (
                refusal(400, "upgrade please"),
                false,
                Some("upgrade please (400)"),
            ),
            (
                refusal(
                    403,
                    r#"{"kind":"Status","reason":"Forbidden","message":"pods \"a\" is forbidden"}"#,
                ),
                false,
                Some("pods \"a\" is forbidden (Forbidden)"),
            ),
            (refusal(502, ""), false, Some("502 Bad Gateway")),
            (
                Error::Unswitched {
                    server: server(),
                    cause: cause(),
                },
                false,
                Some("x"),
            ),
            (broke_off(), false, None),
            (
                broke_off(),
                true,
                Some(
                    "the server k:6443 ended the connection before it had answered: x (behind an HTTPS proxy)",
                ),
            ),
            (
                Error::Tls {
                    server: server(),
                    cause: cause(),
                },
                true,
                None,
            ),
            (Error::Unsendable(cause()), false, None),
        ];
        for (error, behind_https_proxy, expected) in rows {
            assert_eq!(
                instead(&error, behind_https_proxy).as_deref(),
                expected,
                "{error}"
            );
        }
    }
}
