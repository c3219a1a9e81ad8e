//! `/debug/route?method=GET&path=PATH&user-agent=TEXT`: which servers a request can be sent to, in
//! which order and why. No request is sent.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::time::Instant;

use http::Method;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use skewbridge_k8s_api::request_info::{DecodedPath, Kind, RequestInfo};

use crate::admission_guard::AdmissionGuard;
use crate::authn::Caller;
use crate::cluster_state::Cluster;
use crate::config::Guards;
use crate::health::BackendHealth;
use crate::placement_rule::Rule;
use crate::routing::{self, Candidate, HopState, PlacementInput, Refusal, Route, RouteInput};

/// The decision from the view of one of several backends, which is the local server then.
#[derive(Debug, Serialize)]
struct BackendExplanation {
    upstream: String,
    /// The identity by which the other explanations name this backend.
    identity: String,
    #[serde(flatten)]
    explanation: Explanation,
}

#[derive(Debug, Serialize)]
struct BackendExplanations {
    backends: Vec<BackendExplanation>,
}

/// The explanation of a routing decision, for a caller with a bearer token.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    subresource: String,
    /// The component that the rule `version` applies to.
    #[serde(skip_serializing_if = "Option::is_none")]
    component: Option<String>,
    /// `local`, `peer` or `rejected`, as in the metrics.
    route: &'static str,
    reason: String,
    /// The kinds of admission policies that the request can match and that not all servers enforce.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    policies: Vec<String>,
    /// The best server first.
    candidates: Vec<CandidateView>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CandidateView {
    /// The server identity; `local` for the local server.
    server: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// Whether it is expected to answer.
    available: bool,
    /// Requests in flight that the bridge has sent to this peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<NonZeroUsize>,
    /// The rules that it does not satisfy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unmet: Vec<&'static str>,
}

impl From<Candidate> for CandidateView {
    fn from(candidate: Candidate) -> Self {
        let peer = candidate.peer.as_ref();
        Self {
            server: peer.map_or_else(|| "local".to_owned(), |it| it.identity.to_string()),
            host: peer.and_then(|it| it.host.clone()),
            version: candidate.version.map(|version| version.to_string()),
            available: candidate.available,
            in_flight: NonZeroUsize::new(candidate.in_flight),
            unmet: candidate.unmet.iter().map(Rule::as_str).collect(),
        }
    }
}

/// Explains the decision for the request that a query describes, from the view of each backend. Returns
/// what is wrong with the query otherwise.
pub(super) fn json(
    query: &str,
    guards: &Guards,
    backends: &[BackendHealth],
    is_balanced: bool,
    now: Instant,
) -> Result<String, String> {
    let explain = |backend: &BackendHealth| {
        let cluster_handle = backend.cluster_handle.as_ref().ok();
        let cluster = cluster_handle.map(|it| it.cluster.load_full());
        explain(query, guards, cluster.as_deref(), now)
    };
    let text = match backends {
        [sole] if !is_balanced => serde_json::to_string(&explain(sole)?),
        many => {
            let all = many.iter().map(|backend| {
                Ok(BackendExplanation {
                    upstream: backend.name.clone(),
                    identity: backend.check_name.clone(),
                    explanation: explain(backend)?,
                })
            });
            let backends = all.collect::<Result<_, String>>()?;
            serde_json::to_string(&BackendExplanations { backends })
        }
    };
    Ok(text.unwrap_or_default())
}

/// The decision from the view of one local server.
fn explain(
    query: &str,
    guards: &Guards,
    cluster: Option<&Cluster>,
    now: Instant,
) -> Result<Explanation, String> {
    let (mut method, mut target, mut user_agent) = (Method::GET, None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(value).decode_utf8_lossy();
        match name {
            "method" => {
                let parsed = Method::from_bytes(value.to_ascii_uppercase().as_bytes());
                method = parsed.map_err(|_| format!("{value:?} is not a method"))?;
            }
            "path" => target = Some(value),
            "user-agent" => user_agent = Some(value),
            _ => {
                return Err(format!(
                    "unknown parameter {name:?}: use method, path and user-agent"
                ));
            }
        }
    }
    let target = target.filter(|target| target.starts_with('/'));
    let target = target.ok_or("the parameter path is required, for example path=/api/v1/nodes")?;
    let (path, request_query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (&*target, None),
    };
    let decoded = DecodedPath::new(path).map_err(|error| error.to_string())?;
    let request = RequestInfo::parse(&method, &decoded, request_query);
    let component = guards
        .components
        .find(user_agent.as_deref().unwrap_or_default());
    let input = RouteInput {
        shutting_down: false,
        can_assert: true,
        hop_state: HopState::First,
        placement: PlacementInput {
            component: component.map(|it| it.version),
            fields: guards.fields,
            admission: guards.admission,
        },
    };
    let route = routing::route(
        &request,
        &Caller::Bearer,
        input,
        cluster.map(|it| (it, now)),
    );
    let candidates = match cluster {
        Some(cluster) if request.kind == Kind::Resource => {
            routing::candidates(&request, input.placement, cluster, now)
        }
        _ => Vec::new(),
    };
    Ok(Explanation {
        verb: request.verb.as_str(),
        group: request.group.to_owned(),
        version: request.version.to_owned(),
        resource: request.resource.to_owned(),
        subresource: request.subresource.to_owned(),
        component: component.map(|it| format!("{} {}", it.name, it.version)),
        route: route.as_str(),
        reason: reason(&request, &route, cluster, now).into_owned(),
        policies: match cluster {
            Some(cluster) if guards.admission == AdmissionGuard::On => {
                let kinds = cluster.policies.matching(&request);
                kinds.map(ToString::to_string).collect()
            }
            _ => Vec::new(),
        },
        candidates: candidates.into_iter().map(CandidateView::from).collect(),
    })
}

fn reason(
    request: &RequestInfo<'_>,
    route: &Route,
    cluster: Option<&Cluster>,
    now: Instant,
) -> Cow<'static, str> {
    match (route, cluster) {
        (Route::Local { .. }, None) => "the bridge runs local-only".into(),
        (Route::Local { .. }, _) if request.kind == Kind::NonResource => {
            "paths outside of the resource API are answered locally".into()
        }
        (Route::Local { .. }, Some(cluster)) if !cluster.is_served_locally(request, now) => {
            "no server serves this; the local server answers 404".into()
        }
        (Route::Local { unmet, .. }, Some(cluster)) => match unmet.is_empty() {
            true if cluster.is_shared(request, now) => {
                "custom resources and aggregated APIs are the same on every server".into()
            }
            true => "the local server satisfies every rule".into(),
            false => format!(
                "no available server satisfies {unmet}; no peer is better than the local server"
            )
            .into(),
        },
        (Route::Peers(peers), _) => {
            let (rule, unmet) = (peers.rule.as_str(), peers.unmet);
            match (peers.rule, unmet.is_empty()) {
                (Rule::Available, true) => {
                    "the local server is not available, a peer is (rule available)".into()
                }
                (Rule::Serves, true) => "the local server does not serve this (rule serves)".into(),
                (_, true) => {
                    format!("a peer satisfies the rule {rule}, the local server does not").into()
                }
                (_, false) => format!(
                    "the local server does not satisfy the rule {rule}; no available server satisfies {unmet}, the newest one that satisfies most is used"
                )
                .into(),
            }
        }
        (Route::Refuse(refusal), _) => format!("rejected: {}", refusal_reason(refusal)).into(),
    }
}

/// Why a request is rejected.
fn refusal_reason(refusal: &Refusal) -> Cow<'static, str> {
    match refusal {
        Refusal::Unauthorized => "the client certificate is not valid".into(),
        Refusal::CannotAssert => "--proxy-client-cert-file is not set".into(),
        Refusal::NotReady => "the bridge is shutting down".into(),
        Refusal::Loop => "the request has passed this bridge before".into(),
        Refusal::TooEarly(missing) => {
            format!("the bridge has not read {} yet", missing.as_str()).into()
        }
        Refusal::NotServed => "the local server does not serve this any more".into(),
        Refusal::PeerUnknown(identity) => {
            format!("{identity} runs, and its APIs are not known yet").into()
        }
        Refusal::PeerUnread(identity) => format!(
            "{identity} runs and has not answered yet, and the write may need its fields or admission policies"
        )
        .into(),
        Refusal::NotEnforced(kinds) => {
            format!("no available server enforces the policies that may match this: {kinds}").into()
        }
    }
}
