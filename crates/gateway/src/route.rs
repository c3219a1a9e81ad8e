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
    /// It takes new clients.
    pub ready: bool,
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
    if !bridge.ready && is_readyz(request) {
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

fn is_readyz(request: &RequestInfo<'_>) -> bool {
    let path = request.path;
    path == "/readyz" || path.starts_with("/readyz/")
}
