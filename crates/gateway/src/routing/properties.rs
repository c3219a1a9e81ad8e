//! Properties of the routing decision over any cluster.

use std::time::Duration;

use http::Method;
use proptest::prelude::*;
use skewbridge_k8s_api::request_info::DecodedPath;
use skewbridge_peer_directory::SharedGroupVersionTracker;

use super::placement::tests::{
    cluster, peer, served, version, with_fields, with_policies, with_policy_kind,
};
use super::*;
use crate::admission_guard::AdmissionGuard;
use crate::field_guard::FieldGuard;

/// A peer of any cluster.
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
#[derive(Debug, Clone)]
struct AnyPeer {
    minor: u16,
    serves: bool,
    enforces: bool,
    is_complete: bool,
    is_available: bool,
    /// Its APIs are known.
    is_polled: bool,
}

/// Facts about a cluster and a request.
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
#[derive(Debug, Clone)]
struct Facts {
    peers: Vec<AnyPeer>,
    local_serves: bool,
    local_is_complete: bool,
    local_is_available: bool,
    has_policies: bool,
    component: Option<u16>,
    fields: FieldGuard,
    admission: AdmissionGuard,
    method: &'static str,
}

fn any_peer() -> impl Strategy<Value = AnyPeer> {
    (30_u16..40, any::<[bool; 5]>()).prop_map(
        |(minor, [serves, enforces, is_complete, is_available, is_polled])| AnyPeer {
            minor,
            serves,
            enforces,
            is_complete,
            is_available,
            is_polled,
        },
    )
}

fn any_facts() -> impl Strategy<Value = Facts> {
    (
        prop::collection::vec(any_peer(), 0..6),
        any::<[bool; 4]>(),
        prop::option::of(30_u16..40),
        prop::sample::select(vec![FieldGuard::Off, FieldGuard::Writes, FieldGuard::All]),
        prop::sample::select(vec![AdmissionGuard::Off, AdmissionGuard::On]),
        prop::sample::select(vec!["GET", "POST", "PUT", "PATCH", "DELETE"]),
    )
        .prop_map(
            |(
                peers,
                [
                    local_serves,
                    local_is_complete,
                    local_is_available,
                    has_policies,
                ],
                component,
                fields,
                admission,
                method,
            )| Facts {
                peers,
                local_serves,
                local_is_complete,
                local_is_available,
                has_policies,
                component,
                fields,
                admission,
                method,
            },
        )
}

impl Facts {
    fn cluster(&self, now: Instant) -> Cluster {
        let names: Vec<_> = (0..self.peers.len())
            .map(|it| format!("peer-{it}"))
            .collect();
        let build = |(name, facts): (&String, &AnyPeer)| {
            let mut built = if facts.enforces {
                with_policy_kind(name, now)
            } else {
                peer(name, "pods", Some(version(facts.minor)), now)
            };
            if !facts.serves {
                built.served = Some(served("nodes", Some(version(facts.minor))));
            }
            if !facts.is_polled {
                built.served = None;
                built.awaited_until = now + Duration::from_secs(10);
            }
            built.published = facts.is_available;
            built
        };
        let peers = names.iter().zip(&self.peers).map(build).collect();
        let mut complete: Vec<_> = (names.iter().zip(&self.peers))
            .filter(|(_, facts)| facts.is_complete)
            .map(|(name, _)| Some(name.as_str()))
            .collect();
        complete.extend(self.local_is_complete.then_some(None));
        let mut cluster = with_fields(cluster(Some(version(34)), peers), &complete);
        if self.has_policies {
            cluster = with_policies(cluster, "*");
        }
        if !self.local_serves {
            cluster.local = Some(served("nodes", Some(version(34))));
        }
        cluster.local_health.probed(self.local_is_available, 0);
        cluster.shared = Some(SharedGroupVersionTracker::new().snapshot());
        cluster
    }

    fn route(&self, hop_state: HopState, cluster: &Cluster, now: Instant) -> Route {
        let input = RouteInput {
            shutting_down: false,
            can_assert: true,
            hop_state,
            placement: PlacementInput {
                component: self.component.map(version),
                fields: self.fields,
                admission: self.admission,
            },
        };
        let path = DecodedPath::new("/api/v1/namespaces/n/pods/p").unwrap();
        let method = Method::from_bytes(self.method.as_bytes()).unwrap();
        let request = RequestInfo::parse(&method, &path, None);
        route(&request, &Caller::Bearer, input, Some((cluster, now)))
    }
}

proptest! {
    /// The local server only gets a request that it does not serve if no server serves it: it
    /// answers 404 then.
    #[test]
    fn a_local_server_that_does_not_serve_is_never_chosen(mut facts in any_facts()) {
        facts.local_serves = false;
        let now = Instant::now();
        let is_served = facts.peers.iter().any(|it| it.serves && it.is_polled);
        let may_be_served = facts.peers.iter().any(|it| !it.is_polled);
        match facts.route(HopState::First, &facts.cluster(now), now) {
            Route::Local { .. } => prop_assert!(!is_served && !may_be_served),
            Route::Peers(peers) => {
                prop_assert!(is_served);
                prop_assert!(peers.fallback.is_none());
            }
            Route::Refuse(Refusal::PeerUnknown(_)) => prop_assert!(!is_served && may_be_served),
            Route::Refuse(Refusal::NotEnforced(_)) => prop_assert!(is_served),
            Route::Refuse(other) => prop_assert!(may_be_served, "{:?}", other),
        }
    }

    /// KEP-4020, Risks 4: at most one hop. The local server gets the request if it may process it, and
    /// the sender gets it back otherwise.
    #[test]
    fn a_request_that_came_from_a_peer_is_never_routed_to_peers(facts in any_facts()) {
        let now = Instant::now();
        let route = facts.route(HopState::FromPeer, &facts.cluster(now), now);
        let is_write = facts.method != "GET";
        let is_unjudged = is_write && facts.has_policies && facts.admission == AdmissionGuard::On;
        match route {
            Route::Local { .. } => prop_assert!(facts.local_serves && !is_unjudged),
            Route::Peers(peers) => prop_assert!(false, "{:?}", peers),
            Route::Refuse(Refusal::NotServed) => prop_assert!(!facts.local_serves),
            Route::Refuse(Refusal::NotEnforced(_)) => {
                prop_assert!(facts.local_serves && is_unjudged);
            }
            Route::Refuse(other) => prop_assert!(false, "{:?}", other),
        }
    }
}
