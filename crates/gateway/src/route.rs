//! Where a request goes. A pure function of what is known: it touches no
//! socket, so that every rule is a row in a test.

use skewbridge_api::request_info::RequestInfo;

use crate::caller::Caller;
use crate::upstream::Leg;

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// To the kube-apiserver behind this bridge.
    Local(Leg),
    /// Nowhere.
    Refuse(Refusal),
}

impl Route {
    /// As a metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local(_) => "local",
            Self::Refuse(_) => "refuse",
        }
    }
}

/// Why a request goes nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The certificate is not good and there is nothing else.
    Unauthorized,
    /// An identity would have to be asserted, and there is no front-proxy
    /// certificate to do it with.
    CannotAssert,
    /// `/readyz`, while the bridge itself is not ready.
    NotReady,
    /// The request has been here before.
    Loop,
}

/// What the bridge knows of itself.
#[derive(Debug, Clone, Copy)]
pub struct Bridge {
    /// It takes no new clients.
    pub leaving: bool,
    /// It has a front-proxy certificate.
    pub can_assert: bool,
    /// The request carries this bridge's own mark.
    pub seen_before: bool,
}

/// Where this request of this caller goes.
pub fn route(request: &RequestInfo<'_>, caller: &Caller, bridge: Bridge) -> Route {
    if bridge.seen_before {
        return Route::Refuse(Refusal::Loop);
    }
    if bridge.leaving && request.is_readyz() {
        return Route::Refuse(Refusal::NotReady);
    }
    match caller {
        Caller::Unauthorized => Route::Refuse(Refusal::Unauthorized),
        Caller::Bearer | Caller::Anonymous => Route::Local(Leg::Plain),
        Caller::Peer(_) | Caller::Certificate(_) if bridge.can_assert => {
            Route::Local(Leg::FrontProxy)
        }
        Caller::Peer(_) | Caller::Certificate(_) => Route::Refuse(Refusal::CannotAssert),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::Method;
    use skewbridge_api::identity::{IdentityHeaders, User};
    use skewbridge_api::request_info::DecodedPath;

    use super::*;
    use crate::caller::CertificateUser;

    const READY: Bridge = Bridge {
        leaving: false,
        can_assert: true,
        seen_before: false,
    };
    const LEAVING: Bridge = Bridge {
        leaving: true,
        ..READY
    };
    const MUTE: Bridge = Bridge {
        can_assert: false,
        ..READY
    };
    const LOOP: Bridge = Bridge {
        seen_before: true,
        ..READY
    };

    const PLAIN: Route = Route::Local(Leg::Plain);
    const ASSERTED: Route = Route::Local(Leg::FrontProxy);
    const UNAUTHORIZED: Route = Route::Refuse(Refusal::Unauthorized);
    const CANNOT: Route = Route::Refuse(Refusal::CannotAssert);
    const NOT_READY: Route = Route::Refuse(Refusal::NotReady);
    const LOOPED: Route = Route::Refuse(Refusal::Loop);

    fn peer() -> Caller {
        Caller::Peer(alice())
    }

    fn certificate() -> Caller {
        let user = alice();
        Caller::Certificate(Arc::new(CertificateUser {
            headers: IdentityHeaders::default().prepare(&user).unwrap(),
            with_credential: IdentityHeaders::default().prepare(&user).unwrap(),
            name: user.name,
        }))
    }

    fn alice() -> User {
        User {
            name: "alice".to_owned(),
            ..User::default()
        }
    }

    #[test]
    fn every_request_of_every_caller_has_its_way() {
        use Caller::{Anonymous, Bearer, Unauthorized};
        let (peer, certificate) = (peer(), certificate());
        let rows = [
            // Who asks decides on the leg.
            ("/api/v1/pods", &peer, READY, ASSERTED),
            ("/api/v1/pods", &certificate, READY, ASSERTED),
            ("/api/v1/pods", &Bearer, READY, PLAIN),
            ("/api/v1/pods", &Anonymous, READY, PLAIN),
            ("/api/v1/pods", &Unauthorized, READY, UNAUTHORIZED),
            ("/apis", &certificate, READY, ASSERTED),
            ("/healthz", &Anonymous, READY, PLAIN),
            ("/", &Unauthorized, READY, UNAUTHORIZED),
            // Without a front-proxy certificate nobody is made anonymous.
            ("/api/v1/pods", &peer, MUTE, CANNOT),
            ("/api/v1/pods", &certificate, MUTE, CANNOT),
            ("/readyz", &certificate, MUTE, CANNOT),
            ("/api/v1/pods", &Bearer, MUTE, PLAIN),
            ("/api/v1/pods", &Anonymous, MUTE, PLAIN),
            ("/api/v1/pods", &Unauthorized, MUTE, UNAUTHORIZED),
            // Who asks whether it is ready is told; all others are served on.
            ("/readyz", &Anonymous, READY, PLAIN),
            ("/readyz", &Anonymous, LEAVING, NOT_READY),
            ("/readyz", &certificate, LEAVING, NOT_READY),
            ("/readyz", &Unauthorized, LEAVING, NOT_READY),
            ("/readyz/", &Anonymous, LEAVING, NOT_READY),
            ("/readyz/etcd", &Bearer, LEAVING, NOT_READY),
            ("/readyzs", &Anonymous, LEAVING, PLAIN),
            ("/livez", &Anonymous, LEAVING, PLAIN),
            ("/healthz", &Anonymous, LEAVING, PLAIN),
            ("/api/v1/pods", &peer, LEAVING, ASSERTED),
            ("/api/v1/namespaces/readyz", &Bearer, LEAVING, PLAIN),
            // A loop ends, whoever runs in it.
            ("/api/v1/pods", &peer, LOOP, LOOPED),
            ("/api/v1/pods", &certificate, LOOP, LOOPED),
            ("/api/v1/pods", &Anonymous, LOOP, LOOPED),
            ("/api/v1/pods", &Unauthorized, LOOP, LOOPED),
            ("/readyz", &Anonymous, LOOP, LOOPED),
        ];
        for (path, caller, bridge, expected) in rows {
            let decoded = DecodedPath::new(path).unwrap();
            for method in [Method::GET, Method::POST, Method::DELETE] {
                let request = RequestInfo::parse(&method, &decoded, None);
                let went = route(&request, caller, bridge);
                assert_eq!(went, expected, "{method} {path} {caller:?} {bridge:?}");
            }
        }
    }

    #[test]
    fn a_route_is_one_of_few_labels() {
        assert_eq!((PLAIN.as_str(), ASSERTED.as_str()), ("local", "local"));
        assert_eq!(LOOPED.as_str(), "refuse");
    }
}
