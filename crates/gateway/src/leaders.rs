//! The versions of components that hold the Lease of a leader election: of the user agents that
//! renew it.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use http::{HeaderValue, StatusCode};
use skewbridge_discovery::servers::Leader;
use skewbridge_k8s_api::component::Component;
use skewbridge_k8s_api::request_info::{Kind, RequestInfo, Verb};
use skewbridge_k8s_api::version::Version;

const NAMESPACE: &str = "kube-system";
const GROUP: &str = "coordination.k8s.io";

/// The components that elect a leader, and the names of their Leases.
const LEADER_ELECTION_LEASES: [&str; 3] = [
    "kube-controller-manager",
    "kube-scheduler",
    "cloud-controller-manager",
];

/// The last renewal of each Lease through this bridge. Only renewals take the lock.
#[derive(Debug, Default)]
pub(crate) struct Leaders {
    renewals: Mutex<[Option<Renewal>; LEADER_ELECTION_LEASES.len()]>,
}

#[derive(Debug, Clone, Copy)]
struct Renewal {
    version: Version,
    at: Instant,
}

impl Leaders {
    /// Records a request that has renewed a Lease. kube-apiserver has authorized it.
    pub(crate) fn record(
        &self,
        info: &RequestInfo<'_>,
        user_agent: Option<&HeaderValue>,
        status: StatusCode,
        now: impl FnOnce() -> Instant,
    ) {
        let Some(lease) = renewed_lease(info).filter(|_| status == StatusCode::OK) else {
            return;
        };
        let component = user_agent.and_then(|it| Component::from_user_agent(it.to_str().ok()?));
        // Edits of an administrator do not count.
        let component = component.filter(|it| it.name == LEADER_ELECTION_LEASES[lease]);
        // Without a component, a program of unknown version holds the Lease now.
        let renewal = component.map(|it| Renewal {
            version: it.version,
            at: now(),
        });
        self.renewals.lock().unwrap_or_else(PoisonError::into_inner)[lease] = renewal;
    }

    /// The leaders of which a renewal was seen.
    pub(crate) fn list(&self, now: Instant) -> Vec<Leader> {
        let renewals = *self.renewals.lock().unwrap_or_else(PoisonError::into_inner);
        let leaders = LEADER_ELECTION_LEASES.into_iter().zip(renewals);
        let leaders = leaders.filter_map(|(component, renewal)| {
            let renewal = renewal?;
            Some(Leader {
                component: component.to_owned(),
                version: format!("v{}", renewal.version),
                renewed_seconds_ago: now.saturating_duration_since(renewal.at).as_secs(),
            })
        });
        leaders.collect()
    }
}

/// The index of the leader-election Lease that a request writes.
fn renewed_lease(info: &RequestInfo<'_>) -> Option<usize> {
    let is_write = matches!(info.verb, Verb::Update | Verb::Patch);
    let is_lease = info.kind == Kind::Resource
        && is_write
        && info.resource == "leases"
        && info.group == GROUP
        && info.namespace == NAMESPACE
        && info.subresource.is_empty();
    let mut leases = LEADER_ELECTION_LEASES.iter();
    leases.position(|name| is_lease && info.name == *name)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{Method, Uri};
    use skewbridge_k8s_api::request_info::DecodedPath;

    use super::*;

    const SCHEDULER: &str =
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler";
    const AGENT: &str = "kube-scheduler/v1.36.4 (linux/amd64) kubernetes/0e0e0e0/leader-election";

    fn record(
        leaders: &Leaders,
        method: &Method,
        path: &str,
        agent: &str,
        status: u16,
        at: Instant,
    ) {
        let uri: Uri = path.parse().unwrap();
        let path = DecodedPath::new(uri.path()).unwrap();
        let info = RequestInfo::parse(method, &path, uri.query());
        let agent = HeaderValue::from_str(agent).unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        leaders.record(&info, Some(&agent), status, || at);
    }

    #[test]
    fn the_component_that_renews_the_lease_is_the_leader() {
        let now = Instant::now();
        let other_namespace = SCHEDULER.replace("kube-system", "default");
        let other_lease = SCHEDULER.replace("kube-scheduler", "other");
        let collection = SCHEDULER.replace("/kube-scheduler", "");
        let rows = [
            (Method::PUT, SCHEDULER, AGENT, 200, true),
            (Method::PATCH, SCHEDULER, AGENT, 200, true),
            (Method::GET, SCHEDULER, AGENT, 200, false),
            // Forbidden, and a conflict with another renewal.
            (Method::PUT, SCHEDULER, AGENT, 403, false),
            (Method::PUT, SCHEDULER, AGENT, 409, false),
            (Method::PUT, &other_namespace, AGENT, 200, false),
            (Method::PUT, &other_lease, AGENT, 200, false),
            (Method::DELETE, &collection, AGENT, 200, false),
            (
                Method::PUT,
                SCHEDULER,
                "kubectl/v1.36.4 (linux/amd64)",
                200,
                false,
            ),
            (Method::PUT, SCHEDULER, "kube-scheduler/v0.0.0", 200, false),
        ];
        for (method, path, agent, status, expected) in rows {
            let leaders = Leaders::default();
            record(&leaders, &method, path, agent, status, now);
            let found = leaders.list(now + Duration::from_secs(7));
            let leader = Leader {
                component: "kube-scheduler".to_owned(),
                version: "v1.36.4".to_owned(),
                renewed_seconds_ago: 7,
            };
            let expected = if expected { vec![leader] } else { Vec::new() };
            assert_eq!(found, expected, "{method} {path} {agent} {status}");
        }
    }

    #[test]
    fn the_component_of_the_last_renewal_is_listed() {
        let now = Instant::now();
        let leaders = Leaders::default();
        let put = |agent: &str| record(&leaders, &Method::PUT, SCHEDULER, agent, 200, now);
        put(AGENT);
        put("kube-scheduler/v1.35.8 (linux/amd64)");
        let versions = |leaders: &Leaders| {
            let found = leaders.list(now).into_iter();
            found.map(|it| it.version).collect::<Vec<_>>()
        };
        assert_eq!(versions(&leaders), ["v1.35.8"]);
        put("hyperkube");
        assert_eq!(versions(&leaders), Vec::<String>::new());
    }
}
