//! `/debug/route?method=GET&path=PATH&user-agent=TEXT`: which servers a request can be sent to, in
//! which order and why. No request is sent.

use std::borrow::Cow;
use std::time::Instant;

use http::Method;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use skewbridge_k8s_api::component::GuardedComponents;
use skewbridge_k8s_api::request_info::{DecodedPath, Kind, RequestInfo};

use crate::authn::Caller;
use crate::cluster_state::Cluster;
use crate::placement_rule::Rule;
use crate::routing::{self, Candidate, HopState, Route, RouteInput};

/// The explanation of a routing decision, for a caller with a bearer token.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explanation {
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
    /// The rule that it does not satisfy.
    #[serde(skip_serializing_if = "Option::is_none")]
    unmet: Option<&'static str>,
}

impl From<Candidate> for CandidateView {
    fn from(candidate: Candidate) -> Self {
        let peer = candidate.peer.as_ref();
        Self {
            server: peer.map_or_else(|| "local".to_owned(), |it| it.identity.to_string()),
            host: peer.and_then(|it| it.host.clone()),
            version: candidate.version.map(|version| version.to_string()),
            available: candidate.available,
            unmet: candidate.unmet.map(Rule::as_str),
        }
    }
}

/// Explains the decision for the request that a query describes. Returns what is wrong with the
/// query otherwise.
pub(super) fn explain(
    query: &str,
    guarded: &GuardedComponents,
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
    let component = guarded.find(user_agent.as_deref().unwrap_or_default());
    let input = RouteInput {
        shutting_down: false,
        can_assert: true,
        hop_state: HopState::First,
        component: component.map(|it| it.version),
    };
    let route = routing::route(
        &request,
        &Caller::Bearer,
        input,
        cluster.map(|it| (it, now)),
    );
    let candidates = match cluster {
        Some(cluster) if request.kind == Kind::Resource => {
            routing::candidates(&request, input.component, cluster, now)
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
        (Route::Local(_), None) => "the bridge runs local-only".into(),
        (Route::Local(_), _) if request.kind == Kind::NonResource => {
            "paths outside of the resource API are answered locally".into()
        }
        (Route::Local(_), Some(cluster)) if cluster.is_shared(request, now) => {
            "custom resources and aggregated APIs are the same on every server".into()
        }
        (Route::Local(_), Some(cluster)) if !cluster.is_served_locally(request, now) => {
            "no server serves this; the local server answers 404".into()
        }
        (Route::Local(_), _) => "the local server satisfies every rule".into(),
        (Route::Peer(_), _) => "the local server does not serve this (rule serves)".into(),
        (Route::Placed(placed), _) => {
            let rule = placed.rule.as_str();
            match (placed.unmet, placed.peers.is_empty()) {
                (false, _) => format!("a peer satisfies the rule {rule}, the local server does not"),
                (true, true) => format!(
                    "no available server satisfies the rule {rule}; no peer is better than the local server"
                ),
                (true, false) => {
                    format!("no available server satisfies the rule {rule}; the newest one is used")
                }
            }
            .into()
        }
        (Route::Refuse(refusal), _) => format!("rejected: {refusal:?}").into(),
    }
}
