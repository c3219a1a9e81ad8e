//! A `metav1.Status` as a response, in a media type that the caller can read, and how much of it
//! a client may see. `proxy::error` chooses the Status of a failed request.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use skewbridge_h1::HeadError;
use skewbridge_k8s_api::content_negotiation::{Format, content_type};
use skewbridge_k8s_api::status::Status;

use crate::authn::Caller;
use crate::client_connection::ClientConnection;

/// The user of a request without credentials.
const ANONYMOUS: &str = "system:anonymous";

/// Upstream is usually available again within seconds: kube-apiserver restarts, or a connection was
/// lost.
const RETRY_AFTER_SECONDS: u32 = 1;

/// How much an error response shows about the servers behind the bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Names, addresses and causes.
    Full,
    /// None of them: the client has not proven an identity.
    Withheld,
}

impl Detail {
    /// The detail for this caller. A bearer token counts if kube-apiserver has accepted one on this
    /// connection. Over a peer hop the connection is that of the peer, so it does not show whether
    /// the token is valid.
    pub(crate) fn of(
        caller: &Caller,
        connection: &ClientConnection,
        from_front_proxy: bool,
    ) -> Self {
        let proven = match caller {
            Caller::Peer(user) => user.name != ANONYMOUS,
            Caller::Certificate(_) | Caller::Signed(_) => true,
            Caller::Bearer => !from_front_proxy && connection.is_authenticated(),
            Caller::Anonymous | Caller::Unauthorized => false,
        };
        if proven { Self::Full } else { Self::Withheld }
    }

    /// The Status as this client may read it.
    pub(crate) fn of_status(self, status: &Status) -> Cow<'_, Status> {
        let message = match (self, status.code) {
            (Self::Withheld, 502) => "the kube-apiserver that serves this did not answer",
            (Self::Withheld, 503) if status.retry_after_seconds.is_none() => {
                "the kube-apiserver that serves this is not available; the request may have been \
                 processed"
            }
            (Self::Withheld, 503) => "the kube-apiserver that serves this is not available",
            // Errors of the request and of the configuration contain no names.
            _ => return Cow::Borrowed(status),
        };
        Cow::Owned(Status {
            message: message.to_owned(),
            details: None,
            ..status.clone()
        })
    }
}

/// A Status as a response.
pub(crate) fn status(status: &Status, format: Format) -> Response<Bytes> {
    let body = status.encode(format);
    let mut response = Response::new(Bytes::new());
    *response.status_mut() =
        StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type(format));
    headers.insert(CONTENT_LENGTH, body.len().into());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(DATE, crate::date::now());
    if let Some(seconds) = status.retry_after_seconds {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    *response.body_mut() = body;
    response
}

/// The response to an invalid HTTP/1.1 request. There are no headers for content negotiation.
pub(crate) fn bad_head(error: HeadError) -> Response<Bytes> {
    let message = error.to_string();
    let status = match error {
        HeadError::Malformed(_) => Status::bad_request(message),
        HeadError::TargetTooLong => Status::uri_too_long(message),
        HeadError::TooLarge => Status::header_fields_too_large(message),
    };
    self::status(&status, Format::Json)
}

/// A request head took too long to arrive.
pub(crate) fn slow_head() -> Response<Bytes> {
    let message = "the request's headers did not arrive in time (--read-header-timeout)";
    self::status(&Status::client_timeout(message), Format::Json)
}

/// A request body took too long to arrive.
pub(crate) fn slow_body(format: Format) -> Response<Bytes> {
    let message = "the request's body did not arrive in time";
    self::status(&Status::client_timeout(message), format)
}

/// 503 with `Retry-After`: the request has not been processed and can be retried.
pub(crate) fn later(message: impl Into<String>) -> Status {
    Status::service_unavailable(message, RETRY_AFTER_SECONDS)
}

#[cfg(test)]
mod tests {
    use skewbridge_k8s_api::identity::User;

    use super::*;

    #[test]
    fn only_authenticated_callers_get_names_and_addresses() {
        let user = |name: &str| {
            Caller::Peer(User {
                name: name.to_owned(),
                ..User::default()
            })
        };
        let stranger = ClientConnection::new(([192, 0, 2, 1], 40_000).into());
        let proven = ClientConnection::new(([192, 0, 2, 1], 40_000).into());
        proven.note_answer(
            Some(crate::client_connection::TokenPlace::Header),
            StatusCode::OK,
        );
        let rows = [
            (user("alice"), &stranger, true, Detail::Full),
            (user("system:anonymous"), &proven, true, Detail::Withheld),
            (Caller::Bearer, &stranger, false, Detail::Withheld),
            (Caller::Bearer, &proven, false, Detail::Full),
            (Caller::Bearer, &proven, true, Detail::Withheld),
            (Caller::Anonymous, &proven, false, Detail::Withheld),
            (Caller::Unauthorized, &proven, false, Detail::Withheld),
        ];
        for (caller, connection, from_front_proxy, expected) in rows {
            let detail = Detail::of(&caller, connection, from_front_proxy);
            assert_eq!(detail, expected, "{caller:?} {from_front_proxy}");
        }
    }

    #[test]
    fn withheld_details_keep_code_reason_and_retry_after() {
        const SECRET: &str = "cannot connect to 10.0.0.7:6443 of apiserver-b";
        for status in [
            later(SECRET),
            Status::unavailable(SECRET),
            Status::bad_gateway(SECRET),
        ] {
            assert_eq!(Detail::Full.of_status(&status).message, SECRET);
            let shown = Detail::Withheld.of_status(&status);
            assert!(!shown.message.contains("10.0.0.7"), "{shown:?}");
            assert!(!shown.message.contains("apiserver-b"), "{shown:?}");
            assert_eq!(
                (shown.code, shown.reason, shown.retry_after_seconds),
                (status.code, status.reason, status.retry_after_seconds)
            );
        }
        let bad_request = Status::bad_request("a body that is too long");
        assert_eq!(*Detail::Withheld.of_status(&bad_request), bad_request);
    }
}
