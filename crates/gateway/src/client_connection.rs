//! One client connection as the limits see it: its source, its slot, and whether its
//! client has authenticated.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{Method, StatusCode};
use skewbridge_http_engine::buffer_budget::ClientAuthentication;

use crate::authn::Caller;
use crate::connection_slots::{Class, Promotion};

/// Shared by the listener, which decides which connections keep their slots, and the tasks that
/// serve the connection.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    source: SocketAddr,
    authenticated: AtomicBool,
    requested: AtomicBool,
    failed: AtomicBool,
    promotion: Option<Promotion>,
}

impl ClientAuthentication for ClientConnection {
    fn is_authenticated(&self) -> bool {
        self.is_authenticated()
    }
}

impl ClientConnection {
    /// A connection that was just accepted.
    pub(crate) fn new(source: SocketAddr) -> Self {
        Self {
            source,
            authenticated: AtomicBool::new(false),
            requested: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            promotion: None,
        }
    }

    /// The same, with a slot of `--max-connections`.
    pub(crate) fn with_slot(mut self, promotion: Promotion) -> Self {
        self.promotion = Some(promotion);
        self
    }

    /// The remote end of the TCP connection.
    pub(crate) fn source(&self) -> SocketAddr {
        self.source
    }

    /// Whether one of its requests proved an identity. This never goes back: a later anonymous
    /// request on the connection does not make its client unauthenticated.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.authenticated.load(Ordering::Relaxed)
    }

    /// Whether a request has arrived on the connection.
    pub(crate) fn has_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// Records that a request has arrived on the connection.
    pub(crate) fn note_request(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }

    /// Whether an authentication on the connection has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Records that an authentication on the connection has failed.
    pub(crate) fn note_failure(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// The bridge has verified the certificate of the TLS handshake, or has found none
    /// that it accepts.
    pub(crate) fn note_certificate(&self, class: Class) {
        if class != Class::Unauthenticated {
            self.authenticate(class);
        }
    }

    /// The bridge has verified the caller's certificate or signature.
    pub(crate) fn note_caller(&self, caller: &Caller) {
        match caller {
            Caller::Asserted(_) => self.authenticate(Class::Reserved),
            Caller::Certificate(user) => self.authenticate(user.class),
            Caller::Signed(_) => self.authenticate(Class::Authenticated),
            Caller::Bearer | Caller::Anonymous | Caller::Unauthorized => {}
        }
    }

    /// kube-apiserver has answered a request of this caller. Only kube-apiserver can verify a
    /// bearer token, and it does so before it authorizes. Returns whether the answer proves the
    /// token.
    pub(crate) fn note_answer(&self, token: Option<TokenLocation>, status: StatusCode) -> bool {
        let proves = token.is_some_and(|token| proves_token(token, status));
        if proves {
            self.authenticate(Class::Authenticated);
        }
        proves
    }

    /// The slot changes once: the first identity that a connection proves decides its class.
    fn authenticate(&self, class: Class) {
        if !self.is_authenticated()
            && !self.authenticated.swap(true, Ordering::Relaxed)
            && let Some(promotion) = &self.promotion
        {
            promotion.to(class);
        }
    }
}

/// The location of the token in a request that kube-apiserver authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenLocation {
    /// In `Authorization`, where kube-apiserver always verifies it.
    Header,
    /// In `Sec-WebSocket-Protocol`, where kube-apiserver reads it only if the request is a
    /// WebSocket upgrade.
    Subprotocol,
}

impl TokenLocation {
    /// `None` where no answer proves a token. A CORS preflight is answered before
    /// authentication.
    pub(crate) fn of(caller: &Caller, head: &Parts) -> Option<Self> {
        match caller {
            Caller::Bearer if head.method == Method::OPTIONS => None,
            Caller::Bearer if head.headers.contains_key(AUTHORIZATION) => Some(Self::Header),
            Caller::Bearer => Some(Self::Subprotocol),
            _ => None,
        }
    }
}

/// Whether kube-apiserver gives this status only to a request whose token it has verified. 401 is a
/// refusal; 400, 408, 413, 429, 431 and 5xx may be written before authentication. Only 101 shows
/// that kube-apiserver has read a subprotocol.
fn proves_token(token: TokenLocation, status: StatusCode) -> bool {
    if token == TokenLocation::Subprotocol {
        return status == StatusCode::SWITCHING_PROTOCOLS;
    }
    status.is_informational()
        || status.is_success()
        || status.is_redirection()
        || matches!(
            status,
            StatusCode::FORBIDDEN
                | StatusCode::NOT_FOUND
                | StatusCode::CONFLICT
                | StatusCode::GONE
                | StatusCode::UNPROCESSABLE_ENTITY
        )
}

#[cfg(test)]
mod tests {
    use skewbridge_k8s_api::identity::User;

    use super::*;

    fn connection() -> ClientConnection {
        ClientConnection::new(([192, 0, 2, 1], 40_000).into())
    }

    #[test]
    fn the_status_of_kube_apiserver_decides_whether_a_token_is_proven() {
        for (status, proves) in [(101, true), (200, false), (403, false), (404, false)] {
            let connection = connection();
            let status = StatusCode::from_u16(status).unwrap();
            connection.note_answer(Some(TokenLocation::Subprotocol), status);
            assert_eq!(connection.is_authenticated(), proves, "{status}");
        }
        for (status, proves) in [
            (101, true),
            (200, true),
            (304, true),
            (400, false),
            (401, false),
            (403, true),
            (404, true),
            (409, true),
            (422, true),
            (429, false),
            (500, false),
            (503, false),
        ] {
            let connection = connection();
            let status = StatusCode::from_u16(status).unwrap();
            connection.note_answer(Some(TokenLocation::Header), status);
            assert_eq!(connection.is_authenticated(), proves, "{status}");
        }
    }

    #[test]
    fn an_anonymous_caller_never_authenticates() {
        let connection = connection();
        for caller in [Caller::Anonymous, Caller::Unauthorized] {
            connection.note_caller(&caller);
            let (head, ()) = http::Request::get("/api").body(()).unwrap().into_parts();
            connection.note_answer(TokenLocation::of(&caller, &head), StatusCode::OK);
        }
        connection.note_caller(&Caller::Bearer);
        assert!(!connection.is_authenticated());
    }

    #[test]
    fn a_preflight_proves_no_token() {
        let request = http::Request::builder()
            .uri("/api")
            .header("authorization", "Bearer t");
        for (method, place) in [
            (Method::OPTIONS, None),
            (Method::GET, Some(TokenLocation::Header)),
        ] {
            let (mut head, ()) = http::Request::new(()).into_parts();
            head.headers = request.headers_ref().unwrap().clone();
            head.method = method;
            assert_eq!(TokenLocation::of(&Caller::Bearer, &head), place);
        }
    }

    #[test]
    fn a_connection_stays_authenticated() {
        let connection = connection();
        connection.note_caller(&Caller::Asserted(User::default()));
        connection.note_answer(Some(TokenLocation::Header), StatusCode::UNAUTHORIZED);
        assert!(connection.is_authenticated());
    }
}
