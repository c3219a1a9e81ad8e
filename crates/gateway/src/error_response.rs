//! How much of a `metav1.Status` a client may see. `proxy::error` chooses the Status of a failed
//! request.

use std::borrow::Cow;

use skewbridge_k8s_api::status::Status;

use crate::authn::Caller;
use crate::client_connection::ClientConnection;

pub(crate) use skewbridge_http_engine::error_response::status;

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
            Caller::Asserted(user) => user.name != ANONYMOUS,
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

/// The request was not processed and can be retried soon.
pub(crate) fn retry_later(message: impl Into<String>) -> Status {
    Status::service_unavailable(message, RETRY_AFTER_SECONDS)
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use skewbridge_k8s_api::identity::User;

    use super::*;

    #[test]
    fn only_authenticated_callers_get_names_and_addresses() {
        let user = |name: &str| {
            Caller::Asserted(User {
                name: name.to_owned(),
                ..User::default()
            })
        };
        let unauthenticated = ClientConnection::new(([192, 0, 2, 1], 40_000).into());
        let proven = ClientConnection::new(([192, 0, 2, 1], 40_000).into());
        proven.note_answer(
            Some(crate::client_connection::TokenLocation::Header),
            StatusCode::OK,
        );
        let rows = [
            (user("alice"), &unauthenticated, true, Detail::Full),
            (user("system:anonymous"), &proven, true, Detail::Withheld),
            (Caller::Bearer, &unauthenticated, false, Detail::Withheld),
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
            retry_later(SECRET),
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
