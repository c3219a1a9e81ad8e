use std::time::Duration;

use http::Method;
use proptest::prelude::*;
use serde_json::json;
use skewbridge_discovery::{Document, Index};
use skewbridge_k8s_api::request_info::DecodedPath;
use skewbridge_peer_directory::{Identity, PeerRecord, Peers, ServedApis};

use super::*;

fn version(minor: u16) -> Version {
    Version {
        major: 1,
        minor,
        patch: 4,
    }
}

fn served(resource: &str, version: Option<Version>) -> Arc<ServedApis> {
    let text = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "items": [{"metadata": {"name": ""}, "versions": [{"version": "v1", "resources": [
            {"resource": resource, "scope": "Namespaced", "verbs": ["get", "list", "create"]}]}]}]});
    let document = Arc::new(Document::parse(text.to_string().as_bytes()).unwrap());
    Arc::new(ServedApis {
        index: Arc::new(Index::new(&[&document])),
        documents: [document, Arc::default()],
        etags: [None, None],
        version,
        by_bridge: true,
    })
}

fn peer(name: &str, resource: &str, version: Option<Version>, now: Instant) -> Peer {
    Peer {
        identity: Identity::named(name).unwrap(),
        host: None,
        address: Some(([127, 0, 0, 1], 6443).into()),
        published: true,
        alive_until: now + Duration::from_secs(40),
        awaited_until: now,
        served: Some(served(resource, version)),
        record: PeerRecord::default(),
        health: Arc::default(),
        last_success: None,
        problem: None,
    }
}

fn cluster(local: Option<Version>, peers: Vec<Peer>) -> Cluster {
    Cluster {
        local: Some(served("pods", local)),
        peers: Peers {
            leases_listed: true,
            peers: peers.into_iter().map(Arc::new).collect(),
        },
        ..Cluster::default()
    }
}

/// The placement of `GET /api/v1/pods` as text.
fn placed(component: Option<Version>, cluster: &Cluster, now: Instant) -> String {
    let path = DecodedPath::new("/api/v1/pods").unwrap();
    let request = RequestInfo::parse(&Method::GET, &path, None);
    match place(&request, component, cluster, now) {
        Placement::Local(None) => "local".to_owned(),
        Placement::Local(Some(rule)) => format!("local, not {}", rule.as_str()),
        Placement::Peers { peers, unmet } => {
            let names: Vec<_> = peers.iter().map(|it| it.identity.to_string()).collect();
            let unmet = unmet.map(|rule| format!(", not {}", rule.as_str()));
            names.join("+") + &unmet.unwrap_or_default()
        }
    }
}

/// Local server, component, peers, expected.
type Row<'a> = (
    Option<u16>,
    Option<u16>,
    &'a [(&'a str, Option<u16>)],
    &'a str,
);

#[test]
fn a_component_is_placed_on_a_server_that_is_not_older() {
    let now = Instant::now();
    let rows: [Row<'_>; 13] = [
        // Clients without a guarded version stay local.
        (Some(34), None, &[("b", Some(36))], "local"),
        // The local server is new enough.
        (Some(36), Some(36), &[("b", Some(37))], "local"),
        (Some(36), Some(34), &[("b", Some(37))], "local"),
        (Some(36), Some(34), &[("b", Some(34))], "local"),
        // It is older.
        (Some(34), Some(36), &[("b", Some(36))], "b"),
        (
            Some(34),
            Some(35),
            &[("b", Some(36)), ("c", Some(35))],
            "b+c",
        ),
        (Some(34), Some(36), &[("b", Some(36)), ("c", Some(35))], "b"),
        (Some(34), Some(36), &[("b", Some(34)), ("c", Some(37))], "c"),
        // No server is new enough: the newest one, of equals the local one.
        (
            Some(34),
            Some(37),
            &[("b", Some(36)), ("c", Some(35))],
            "b, not version",
        ),
        (Some(34), Some(37), &[("b", Some(34))], "local, not version"),
        (
            Some(35),
            Some(37),
            &[("b", Some(34)), ("c", None)],
            "local, not version",
        ),
        (Some(34), Some(36), &[], "local, not version"),
        // The version of the local server is not known yet.
        (None, Some(36), &[("b", Some(36))], "local"),
    ];
    for (local, component, peers, expected) in rows {
        let described = format!("{local:?} {component:?} {peers:?}");
        let peers = (peers.iter())
            .map(|(name, minor)| peer(name, "pods", minor.map(version), now))
            .collect();
        let cluster = cluster(local.map(version), peers);
        let got = placed(component.map(version), &cluster, now);
        assert_eq!(got, expected, "{described}");
    }
}

#[test]
fn patch_releases_of_one_minor_are_equally_new() {
    let now = Instant::now();
    let cluster = cluster(Some(version(36)), vec![]);
    let newer_patch = Version {
        patch: 9,
        ..version(36)
    };
    assert_eq!(placed(Some(newer_patch), &cluster, now), "local");
}

type Change = fn(&mut Peer, Instant);

#[test]
fn a_peer_that_cannot_answer_or_does_not_serve_the_request_is_not_chosen() {
    let now = Instant::now();
    let changes: [(&str, Change); 6] = [
        ("without an address", |peer, _| peer.address = None),
        ("withdrawn", |peer, _| peer.published = false),
        ("Lease not renewed", |peer, now| peer.alive_until = now),
        ("failed", |peer, now| peer.health.record_failure(now)),
        ("silent", |peer, _| {
            peer.health.record_timeout(Duration::from_secs(2));
        }),
        ("other APIs", |peer, _| {
            peer.served = Some(served("nodes", Some(version(36))));
        }),
    ];
    for (described, change) in changes {
        let mut other = peer("b", "pods", Some(version(36)), now);
        change(&mut other, now);
        let alone = cluster(Some(version(34)), vec![other]);
        let got = placed(Some(version(36)), &alone, now);
        assert_eq!(got, "local, not version", "{described}");
    }
}

proptest! {
    #[test]
    fn the_decision_does_not_depend_on_the_order_of_servers(
        local in 30_u16..40,
        component in 30_u16..40,
        minors in prop::collection::vec(prop::option::of(30_u16..40), 0..6),
        rotation in 0_usize..6,
    ) {
        let now = Instant::now();
        let peers = || minors.iter().enumerate().map(|(index, minor)| {
            peer(&format!("peer-{index}"), "pods", minor.map(version), now)
        });
        let mut turned: Vec<_> = peers().collect();
        if !turned.is_empty() {
            let middle = rotation % turned.len();
            turned.rotate_left(middle);
        }
        let local = Some(version(local));
        let component = Some(version(component));
        let first = placed(component, &cluster(local, peers().collect()), now);
        let second = placed(component, &cluster(local, turned), now);
        prop_assert_eq!(first, second);
    }

    #[test]
    fn a_server_that_satisfies_the_rule_is_chosen_if_there_is_one(
        local in 30_u16..40,
        component in 30_u16..40,
        minors in prop::collection::vec(30_u16..40, 0..6),
    ) {
        let now = Instant::now();
        let peers = minors.iter().enumerate().map(|(index, minor)| {
            peer(&format!("peer-{index}"), "pods", Some(version(*minor)), now)
        });
        let cluster = cluster(Some(version(local)), peers.collect());
        let got = placed(Some(version(component)), &cluster, now);
        let exists = local >= component || minors.iter().any(|minor| *minor >= component);
        prop_assert_eq!(!got.ends_with("not version"), exists, "{}", got);
        if local >= component {
            prop_assert_eq!(got, "local");
        }
    }
}
