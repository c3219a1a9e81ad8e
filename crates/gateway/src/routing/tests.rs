mod guarded_writes;

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use http::Method;
use serde_json::{Value, json};
use skewbridge_discovery::{Document, Index};
use skewbridge_http_signature::VerifyingKey;
use skewbridge_k8s_api::identity::{IdentityHeaders, User};
use skewbridge_k8s_api::request_info::DecodedPath;
use skewbridge_k8s_api::version::Version;
use skewbridge_peer_directory::{
    CustomResourceDefinition, LeaseSnapshot, PeerTable, ServedApis, SharedGroupVersionTracker,
};

use super::*;
use crate::admission_guard::{
    AdmissionGuard, AdmissionPolicies, MatchRule, PolicyKind, PolicyMatches,
};
use crate::authn::CertificateUser;
use crate::authn::SignedUser;
use crate::connection_slots::Class;
use crate::field_guard::FieldGuard;
use crate::routing::placement::tests::{
    cluster as placement_cluster, with_policies, with_policy_kind,
};

const READY: RouteInput = RouteInput {
    shutting_down: false,
    can_assert: true,
    hop_state: HopState::First,
    placement: PlacementInput {
        component: None,
        fields: FieldGuard::Writes,
        admission: AdmissionGuard::On,
    },
};
const SHUTTING_DOWN: RouteInput = RouteInput {
    shutting_down: true,
    ..READY
};
const CANNOT_ASSERT: RouteInput = RouteInput {
    can_assert: false,
    ..READY
};
const LOOP: RouteInput = RouteInput {
    hop_state: HopState::Loop,
    ..READY
};
const REROUTED: RouteInput = RouteInput {
    hop_state: HopState::FromPeer,
    ..READY
};

fn peer() -> Caller {
    Caller::Asserted(alice())
}

fn certificate() -> Caller {
    let user = alice();
    Caller::Certificate(Arc::new(CertificateUser {
        class: Class::Authenticated,
        headers: IdentityHeaders::default().prepare(&user).unwrap(),
        with_credential: IdentityHeaders::default().prepare(&user).unwrap(),
        user,
    }))
}

fn signed() -> Caller {
    let user = alice();
    Caller::Signed(Arc::new(SignedUser {
        headers: IdentityHeaders::default().prepare(&user).unwrap(),
        key: VerifyingKey::hmac(&[0; 32]).unwrap(),
        name: user.name,
    }))
}

fn alice() -> User {
    User {
        name: "alice".to_owned(),
        ..User::default()
    }
}

/// A route as text.
fn describe(route: &Route) -> String {
    match route {
        Route::Local { identity, unmet } if unmet.is_empty() => identity.as_str().to_owned(),
        Route::Local { identity, unmet } => format!("{}, not {unmet}", identity.as_str()),
        Route::Peers(route) => {
            let groups: Vec<_> = (route.peers.iter())
                .map(|group| {
                    let names: Vec<_> = group.iter().map(|it| it.identity.as_str()).collect();
                    names.join("+")
                })
                .collect();
            let mut text = groups.join(", then ");
            if route.rule != Rule::Serves {
                write!(text, " by {}", route.rule.as_str()).unwrap();
            }
            if !route.unmet.is_empty() {
                write!(text, ", not {}", route.unmet).unwrap();
            }
            if let Some(identity) = route.fallback {
                write!(text, ", else {}", identity.as_str()).unwrap();
            }
            text
        }
        Route::Refuse(refusal) => format!("{refusal:?}"),
    }
}

fn route_of(
    method: &Method,
    path: &str,
    caller: &Caller,
    bridge: RouteInput,
    cluster: &Cluster,
) -> String {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let decoded = DecodedPath::new(path).unwrap();
    let request = RequestInfo::parse(method, &decoded, Some(query));
    describe(&route(
        &request,
        caller,
        bridge,
        Some((cluster, Instant::now())),
    ))
}

#[test]
fn requests_of_all_callers_are_routed() {
    use Caller::{Anonymous, Bearer, Unauthorized};
    let (peer, certificate, signed) = (peer(), certificate(), signed());
    let rows = [
        // The caller decides on the upstream identity.
        ("/api/v1/pods", &peer, READY, "front-proxy"),
        ("/api/v1/pods", &certificate, READY, "front-proxy"),
        ("/api/v1/pods", &signed, READY, "front-proxy"),
        ("/api/v1/pods", &Bearer, READY, "anonymous-or-token"),
        ("/api/v1/pods", &Anonymous, READY, "anonymous-or-token"),
        ("/api/v1/pods", &Unauthorized, READY, "Unauthorized"),
        ("/apis", &certificate, READY, "front-proxy"),
        ("/healthz", &Anonymous, READY, "anonymous-or-token"),
        ("/", &Unauthorized, READY, "Unauthorized"),
        // Without a front-proxy certificate no caller becomes anonymous.
        ("/api/v1/pods", &peer, CANNOT_ASSERT, "CannotAssert"),
        ("/api/v1/pods", &certificate, CANNOT_ASSERT, "CannotAssert"),
        ("/api/v1/pods", &signed, CANNOT_ASSERT, "CannotAssert"),
        ("/readyz", &certificate, CANNOT_ASSERT, "CannotAssert"),
        ("/api/v1/pods", &Bearer, CANNOT_ASSERT, "anonymous-or-token"),
        (
            "/api/v1/pods",
            &Anonymous,
            CANNOT_ASSERT,
            "anonymous-or-token",
        ),
        ("/api/v1/pods", &Unauthorized, CANNOT_ASSERT, "Unauthorized"),
        // While the bridge shuts down, only `/readyz` is rejected.
        ("/readyz", &Anonymous, READY, "anonymous-or-token"),
        ("/readyz", &Anonymous, SHUTTING_DOWN, "NotReady"),
        ("/readyz", &certificate, SHUTTING_DOWN, "NotReady"),
        ("/readyz", &Unauthorized, SHUTTING_DOWN, "NotReady"),
        ("/readyz/", &Anonymous, SHUTTING_DOWN, "NotReady"),
        ("/readyz/etcd", &Bearer, SHUTTING_DOWN, "NotReady"),
        ("/readyzs", &Anonymous, SHUTTING_DOWN, "anonymous-or-token"),
        ("/livez", &Anonymous, SHUTTING_DOWN, "anonymous-or-token"),
        ("/healthz", &Anonymous, SHUTTING_DOWN, "anonymous-or-token"),
        ("/api/v1/pods", &peer, SHUTTING_DOWN, "front-proxy"),
        (
            "/api/v1/namespaces/readyz",
            &Bearer,
            SHUTTING_DOWN,
            "anonymous-or-token",
        ),
        // A loop is rejected for all callers.
        ("/api/v1/pods", &peer, LOOP, "Loop"),
        ("/api/v1/pods", &certificate, LOOP, "Loop"),
        ("/api/v1/pods", &Anonymous, LOOP, "Loop"),
        ("/api/v1/pods", &Unauthorized, LOOP, "Loop"),
        ("/readyz", &Anonymous, LOOP, "Loop"),
    ];
    for (path, caller, bridge, expected) in rows {
        let decoded = DecodedPath::new(path).unwrap();
        for method in [Method::GET, Method::POST, Method::DELETE] {
            let request = RequestInfo::parse(&method, &decoded, None);
            let went = describe(&route(&request, caller, bridge, None));
            assert_eq!(went, expected, "{method} {path} {caller:?} {bridge:?}");
        }
    }
}

/// `group/version` with resources, `resource:verb,verb` or
/// `resource/subresource:verb`.
fn served(list: &[(&str, &[&str])]) -> ServedApis {
    let items: Vec<Value> = list
        .iter()
        .map(|(group_version, resources)| {
            let (group, version) = group_version.split_once('/').unwrap();
            let resources: Vec<Value> = resources.iter().map(|text| resource(text)).collect();
            json!({"metadata": {"name": group}, "versions": [
                {"version": version, "freshness": "Current", "resources": resources}]})
        })
        .collect();
    let text = json!({"kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2", "items": items});
    let document = Arc::new(Document::parse(text.to_string().as_bytes()).unwrap());
    ServedApis {
        index: Arc::new(Index::new(&[&document])),
        documents: [Arc::default(), document],
        etags: [None, None],
        version: None,
        version_suffix: Arc::default(),
        by_bridge: false,
    }
}

fn resource(text: &str) -> Value {
    let (names, verbs) = text.split_once(':').unwrap();
    let verbs: Vec<_> = verbs.split(',').collect();
    match names.split_once('/') {
        None => json!({"resource": names, "scope": "Namespaced", "verbs": verbs}),
        Some((name, subresource)) => json!({"resource": name, "scope": "Namespaced", "verbs": [],
            "subresources": [{"subresource": subresource, "verbs": verbs}]}),
    }
}

fn lease_snapshot(name: &str) -> LeaseSnapshot {
    LeaseSnapshot {
        identity: Identity::named(name).unwrap(),
        host: None,
        holder: "h".to_owned(),
        resource_version: "1".to_owned(),
    }
}

const PODS: &str = "pods:get,list,create";
const NEW: &str = "widgets:get,list,watch,create,update,patch,delete,deletecollection";

/// The local server serves pods. Peer `b` serves pods with one more subresource and one more verb,
/// and a new API; `c` serves the new API too; `gone` has not been polled and has an old Lease.
fn cluster() -> Cluster {
    let now = Instant::now();
    let mut peer_table = PeerTable::new(Identity::named("a").unwrap());
    peer_table.set_leases(
        vec![
            lease_snapshot("a"),
            lease_snapshot("b"),
            lease_snapshot("c"),
        ],
        now,
    );
    let addresses = ["a", "b", "c"].map(|name| {
        let address = "127.0.0.1:6443".parse().unwrap();
        let advertised = skewbridge_peer_directory::registry::AdvertisedAddress::by_bridge(address);
        (Identity::named(name).unwrap(), advertised)
    });
    peer_table.set_addresses(&addresses.into(), now);
    assert_eq!(peer_table.take_due(now).len(), 2);
    let mut add_server = |name: &str, list: &[(&str, &[&str])]| {
        let identity = Identity::named(name).unwrap();
        peer_table.record_poll(&identity, Ok(served(list)), now, SystemTime::now(), 0.0);
    };
    add_server(
        "b",
        &[
            ("/v1", &[PODS, "pods:watch", "pods/resize:get,patch"]),
            ("new.k8s.io/v1", &[NEW]),
            ("custom.example.com/v1", &[NEW]),
        ],
    );
    add_server("c", &[("new.k8s.io/v1", &[NEW])]);
    let mut exclusions = SharedGroupVersionTracker::new();
    exclusions.set_crds(&[custom_resource()], now);
    Cluster {
        local: Some(Arc::new(served(&[("/v1", &[PODS])]))),
        peers: peer_table.snapshot(),
        shared: Some(exclusions.snapshot()),
        view: None,
        ..Cluster::default()
    }
}

fn custom_resource() -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "metadata": {"name": "widgets.custom.example.com", "resourceVersion": "1"},
        "spec": {"group": "custom.example.com", "versions": [{"name": "v1", "served": true}]}
    }))
    .unwrap()
}

/// The rules of KEP-4020, Aggregation Layer, extended to subresources and verbs.
#[test]
fn requests_that_the_local_server_does_not_serve_go_to_peers_that_do() {
    let cluster = cluster();
    let rows = [
        // The local server serves it: local.
        ("GET", "/api/v1/pods", READY, "front-proxy"),
        ("POST", "/api/v1/namespaces/n/pods", READY, "front-proxy"),
        // Not a resource: always local.
        ("GET", "/apis", READY, "front-proxy"),
        ("GET", "/apis/new.k8s.io/v1", READY, "front-proxy"),
        ("GET", "/version", READY, "front-proxy"),
        // A peer serves it: peer.
        ("GET", "/apis/new.k8s.io/v1/widgets", READY, "b+c"),
        ("DELETE", "/apis/new.k8s.io/v1/widgets", READY, "b+c"),
        ("GET", "/apis/new.k8s.io/v1/widgets?watch=1", READY, "b+c"),
        (
            "PUT",
            "/apis/new.k8s.io/v1/namespaces/n/widgets/w",
            READY,
            "b+c",
        ),
        // The local server serves the resource, but not the subresource or the verb.
        ("PATCH", "/api/v1/namespaces/n/pods/p/resize", READY, "b"),
        ("GET", "/api/v1/pods?watch=true", READY, "b"),
        (
            "DELETE",
            "/api/v1/namespaces/n/pods/p",
            READY,
            "front-proxy",
        ),
        (
            "PUT",
            "/api/v1/namespaces/n/pods/p/resize",
            READY,
            "front-proxy",
        ),
        // No server serves it: local, which answers 404.
        ("GET", "/apis/new.k8s.io/v2/widgets", READY, "front-proxy"),
        ("GET", "/apis/none.k8s.io/v1/widgets", READY, "front-proxy"),
        // All servers share custom resources: they are never rerouted.
        (
            "GET",
            "/apis/custom.example.com/v1/widgets",
            READY,
            "front-proxy",
        ),
        // Rerouted by a peer: local or rejected, and not 404.
        ("GET", "/api/v1/pods", REROUTED, "front-proxy"),
        ("GET", "/apis", REROUTED, "front-proxy"),
        (
            "GET",
            "/apis/custom.example.com/v1/widgets",
            REROUTED,
            "front-proxy",
        ),
        ("GET", "/apis/new.k8s.io/v1/widgets", REROUTED, "NotServed"),
        ("GET", "/api/v1/pods?watch=true", REROUTED, "NotServed"),
        ("GET", "/apis/none.k8s.io/v1/widgets", REROUTED, "NotServed"),
        // A loop is rejected before the cluster is looked up.
        ("GET", "/apis/new.k8s.io/v1/widgets", LOOP, "Loop"),
        // Requests are still routed while the bridge shuts down.
        ("GET", "/apis/new.k8s.io/v1/widgets", SHUTTING_DOWN, "b+c"),
    ];
    for (method, path, bridge, expected) in rows {
        let method = method.parse().unwrap();
        let went = route_of(&method, path, &certificate(), bridge, &cluster);
        assert_eq!(went, expected, "{method} {path} {bridge:?}");
    }
    let path = "/apis/new.k8s.io/v1/widgets";
    for (caller, expected) in [
        (signed(), "b+c"),
        (Caller::Bearer, "b+c"),
        (Caller::Anonymous, "b+c"),
        (Caller::Unauthorized, "Unauthorized"),
    ] {
        assert_eq!(
            route_of(&Method::GET, path, &caller, READY, &cluster),
            expected
        );
    }
}

#[test]
fn requests_are_rejected_until_all_inputs_are_read() {
    let complete = cluster;
    let rows = [
        (
            Cluster {
                local: None,
                ..complete()
            },
            "TooEarly(LocalDiscovery)",
        ),
        (
            Cluster {
                peers: skewbridge_peer_directory::Peers::default(),
                ..complete()
            },
            "TooEarly(Leases)",
        ),
        (
            Cluster {
                shared: None,
                ..complete()
            },
            "TooEarly(Extensions)",
        ),
        (
            Cluster {
                awaits_registry: true,
                ..complete()
            },
            "TooEarly(Registry)",
        ),
    ];
    for (cluster, expected) in rows {
        for path in ["/api/v1/pods", "/apis/new.k8s.io/v1/widgets"] {
            for bridge in [READY, REROUTED] {
                let went = route_of(&Method::GET, path, &certificate(), bridge, &cluster);
                assert_eq!(went, expected, "{path}");
            }
        }
        let went = route_of(&Method::GET, "/version", &certificate(), READY, &cluster);
        assert_eq!(went, "front-proxy");
    }
}

#[test]
fn a_running_peer_with_unknown_apis_causes_503_instead_of_404() {
    let start = Instant::now();
    let mut peer_table = PeerTable::new(Identity::named("a").unwrap());
    peer_table.set_leases(vec![lease_snapshot("unreachable")], start);
    let cluster = Cluster {
        peers: peer_table.snapshot(),
        ..cluster()
    };
    let decoded = DecodedPath::new("/apis/none.k8s.io/v1/widgets").unwrap();
    let request = RequestInfo::parse(&Method::GET, &decoded, None);
    let at = |now| {
        describe(&route(
            &request,
            &certificate(),
            READY,
            Some((&cluster, now)),
        ))
    };
    assert_eq!(at(start), r#"PeerUnknown("unreachable")"#);
    // A peer whose Lease has expired is not running.
    assert_eq!(at(start + Duration::from_mins(1)), "front-proxy");
    let pods = route_of(
        &Method::GET,
        "/api/v1/pods",
        &certificate(),
        READY,
        &cluster,
    );
    assert_eq!(pods, "front-proxy");
}

#[test]
fn routes_have_metric_labels() {
    assert_eq!(Route::local(UpstreamIdentity::Plain).as_str(), "local");
    let peers = PeerRoute {
        peers: Vec::new(),
        fallback: None,
        rule: Rule::Serves,
        unmet: RuleSet::EMPTY,
        must_enforce: false,
    };
    assert_eq!(Route::Peers(peers).as_str(), "peer");
    assert_eq!(Route::Refuse(Refusal::Loop).as_str(), "rejected");
}

#[test]
fn a_rule_applies_only_to_requests_that_no_bridge_has_placed() {
    let now = Instant::now();
    let version = |text: &str| Some(text.parse::<Version>().unwrap());
    let mut cluster = cluster();
    let with_version = |apis: &ServedApis, text| {
        Arc::new(ServedApis {
            index: apis.index.clone(),
            documents: apis.documents.clone(),
            etags: [None, None],
            version: version(text),
            version_suffix: Arc::default(),
            by_bridge: true,
        })
    };
    cluster.local = Some(with_version(cluster.local.as_deref().unwrap(), "v1.34.4"));
    for peer in &mut cluster.peers.peers {
        let served = with_version(peer.served.as_deref().unwrap(), "v1.36.4");
        *peer = Arc::new(Peer {
            identity: peer.identity.clone(),
            host: None,
            address: peer.address,
            published: true,
            alive_until: now + Duration::from_secs(40),
            awaited_until: now,
            served: Some(served),
            record: peer.record.clone(),
            health: peer.health.clone(),
            last_success: None,
            problem: None,
        });
    }
    let component = |text| PlacementInput {
        component: version(text),
        ..READY.placement
    };
    let newer = RouteInput {
        placement: component("v1.36.0"),
        ..READY
    };
    let same = RouteInput {
        placement: component("v1.34.9"),
        ..READY
    };
    let rerouted = RouteInput {
        placement: component("v1.36.0"),
        ..REROUTED
    };
    for (path, input, expected) in [
        ("/api/v1/pods", newer, "b by version, else front-proxy"),
        ("/api/v1/pods", same, "front-proxy"),
        // At most one hop.
        ("/api/v1/pods", rerouted, "front-proxy"),
        // Discovery is merged by the local bridge.
        ("/apis", newer, "front-proxy"),
        // Custom resources are the same everywhere.
        ("/apis/custom.example.com/v1/widgets", newer, "front-proxy"),
        ("/apis/new.k8s.io/v1/widgets", newer, "b+c"),
    ] {
        let went = route_of(&Method::GET, path, &certificate(), input, &cluster);
        assert_eq!(went, expected, "{path} {input:?}");
    }
}
