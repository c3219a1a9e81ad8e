//! Counts a request in the ledger, by its head and its response.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use skewbridge_k8s_api::forwarding_headers::has_passed_bridge;
use skewbridge_k8s_api::request_info::{Kind, RequestInfo};
use skewbridge_k8s_api::secret::SecretString;
use skewbridge_released_apis::ApiName;

use super::apis::Reason;
use super::caller_identity::{CallerIdentity, CallerUser};
use super::deprecation;
use super::ledger::Ledger;
use super::table::WatchedCall;
use crate::access_log::sanitized;
use crate::authn::{Caller, bearer_token};

const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");

/// The name that kube-apiserver gives to callers without credentials.
const ANONYMOUS_USER: &str = "system:anonymous";

/// The user agent of all anonymous callers together: they choose it freely, and would fill the ledger.
const ANY_USER_AGENT: &str = "(any)";

/// The parts of a request that are needed after its head has been sent.
pub(crate) struct Observation {
    /// The Authorization header of a caller with a token.
    authorization: Option<HeaderValue>,
    impersonated_user: Option<HeaderValue>,
}

impl Observation {
    /// `None` for a request that is not counted here: another bridge has counted it, or no server
    /// accepts its credentials. A kube-apiserver that forwards a request to a peer has not counted it.
    pub(crate) fn of(caller: &Caller, from_front_proxy: bool, headers: &HeaderMap) -> Option<Self> {
        let is_counted = from_front_proxy && has_passed_bridge(headers);
        if is_counted || matches!(caller, Caller::Unauthorized) {
            return None;
        }
        let is_bearer = matches!(caller, Caller::Bearer);
        let authorization = headers.get(AUTHORIZATION).filter(|_| is_bearer);
        Some(Self {
            authorization: authorization.cloned(),
            impersonated_user: headers.get(IMPERSONATE_USER).cloned(),
        })
    }

    /// Counts the request if its API is watched or deprecated. The response is that of a server.
    pub(crate) fn record<B>(
        self,
        ledger: &Ledger,
        info: &RequestInfo<'_>,
        caller: &Caller,
        user_agent: Option<&HeaderValue>,
        response: &Response<B>,
    ) {
        if response.status() == StatusCode::UNAUTHORIZED {
            return;
        }
        if let Some(call) = watched_call(ledger, info, response.headers()) {
            ledger.record(self.identity(caller, user_agent, response.status()), call);
        }
    }

    fn identity(
        self,
        caller: &Caller,
        user_agent: Option<&HeaderValue>,
        status: StatusCode,
    ) -> CallerIdentity {
        let (user, agent) = match caller {
            Caller::Bearer => {
                let token = self.authorization.as_ref().and_then(bearer_token);
                let token = token.map(|it| CallerUser::Token(SecretString::new(it)));
                (token.unwrap_or(CallerUser::Unknown), None)
            }
            Caller::Anonymous | Caller::Unauthorized => (
                CallerUser::Named(ANONYMOUS_USER.to_owned()),
                Some(ANY_USER_AGENT.to_owned()),
            ),
            Caller::Asserted(_) | Caller::Certificate(_) | Caller::Signed(_) => {
                (CallerUser::Named(sanitized(caller.name())), None)
            }
        };
        let impersonated_user = self.impersonated_user.as_ref();
        let impersonated_user = impersonated_user.filter(|_| proves_impersonation(status));
        CallerIdentity {
            user,
            impersonated_user: impersonated_user.map(text),
            user_agent: agent.unwrap_or_else(|| user_agent.map(text).unwrap_or_default()),
        }
    }
}

/// Whether a response shows that the caller may impersonate the user of its request.
/// kube-apiserver answers 403 if not, and a request may fail before that is decided.
fn proves_impersonation(status: StatusCode) -> bool {
    let is_denied = [StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    !is_denied && !status.is_server_error()
}

fn text(value: &HeaderValue) -> String {
    sanitized(&String::from_utf8_lossy(value.as_bytes()))
}

/// The call, if its API is watched or its response reports that it is deprecated.
fn watched_call(
    ledger: &Ledger,
    info: &RequestInfo<'_>,
    headers: &HeaderMap,
) -> Option<WatchedCall> {
    if info.kind != Kind::Resource {
        return None;
    }
    let watched = ledger.watched_apis();
    let removed = watched.find(info.group, info.version, info.resource);
    let deprecation = deprecation::find(headers, info.group, info.version);
    let (reason, unavailable_in) = match (removed, &deprecation) {
        (Some(reason), _) => (reason, watched.releases.target),
        (None, Some(deprecation)) => (Reason::Deprecated, deprecation.unavailable_in),
        (None, None) => return None,
    };
    Some(WatchedCall {
        api: ApiName {
            group: sanitized(info.group),
            version: sanitized(info.version),
            resource: sanitized(info.resource),
        },
        verb: info.verb.as_str(),
        reason,
        unavailable_in,
        replacement: deprecation.and_then(|it| Some(sanitized(&it.replacement?))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impersonation_is_proven_by_what_kube_apiserver_does_after_it() {
        for (status, expected) in [
            (101, true),
            (200, true),
            (201, true),
            (404, true),
            (409, true),
            (403, false),
            (429, false),
            (500, false),
            (503, false),
            (504, false),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(proves_impersonation(status), expected, "{status}");
        }
    }
}
