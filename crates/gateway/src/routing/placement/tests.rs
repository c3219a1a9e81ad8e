use std::fmt::Write;
use std::time::Duration;

use http::Method;
use serde_json::json;
use skewbridge_discovery::{Document, Index};
use skewbridge_k8s_api::request_info::DecodedPath;
use skewbridge_peer_directory::{Identity, PeerRecord, Peers, ServedApis};

use super::*;
use crate::admission_guard::{ADMISSION_GROUP, MatchRule, PolicyKind, PolicyMatches};
use crate::field_guard::{FieldDifferences, KindDifference};

pub(in crate::routing) fn version(minor: u16) -> Version {
    Version {
        major: 1,
        minor,
        patch: 4,
    }
}

const VERBS: [&str; 7] = [
    "get",
    "list",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];

pub(in crate::routing) fn served(resource: &str, version: Option<Version>) -> Arc<ServedApis> {
    let text = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "items": [{"metadata": {"name": ""}, "versions": [{"version": "v1", "resources": [
            {"resource": resource, "scope": "Namespaced", "verbs": VERBS}]}]}]});
    let document = Arc::new(Document::parse(text.to_string().as_bytes()).unwrap());
    Arc::new(ServedApis {
        index: Arc::new(Index::new(&[&document])),
        documents: [document, Arc::default()],
        etags: [None, None],
        version,
        version_suffix: Arc::default(),
        by_bridge: true,
    })
}

pub(in crate::routing) fn peer(
    name: &str,
    resource: &str,
    version: Option<Version>,
    now: Instant,
) -> Peer {
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

pub(in crate::routing) fn cluster(local: Option<Version>, peers: Vec<Peer>) -> Cluster {
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
pub(super) fn placed(component: Option<Version>, cluster: &Cluster, now: Instant) -> String {
    let input = PlacementInput {
        component,
        ..PlacementInput::default()
    };
    placement_of(&Method::GET, input, cluster, now)
}

/// The placement of a request for `/api/v1/pods` as text.
pub(super) fn placement_of(
    method: &Method,
    input: PlacementInput,
    cluster: &Cluster,
    now: Instant,
) -> String {
    let path = DecodedPath::new("/api/v1/pods").unwrap();
    let request = RequestInfo::parse(method, &path, None);
    let placement = place(&request, input, cluster, now);
    let mut tried = names_of(&placement.peers);
    if placement.local {
        tried.push("local".to_owned());
    }
    let mut text = tried.join(", ");
    if !placement.unmet.is_empty() {
        write!(text, "; not {}", placement.unmet).unwrap();
    }
    text
}

fn names_of(groups: &[Vec<Arc<Peer>>]) -> Vec<String> {
    let names = groups.iter().map(|group| {
        let names: Vec<_> = group.iter().map(|it| it.identity.to_string()).collect();
        names.join("+")
    });
    names.collect()
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
        (Some(34), Some(36), &[("b", Some(36))], "b, local"),
        (
            Some(34),
            Some(35),
            &[("b", Some(36)), ("c", Some(35))],
            "b+c, local",
        ),
        (
            Some(34),
            Some(36),
            &[("b", Some(36)), ("c", Some(35))],
            "b, c, local",
        ),
        (
            Some(34),
            Some(36),
            &[("b", Some(34)), ("c", Some(37))],
            "c, local",
        ),
        // No server is new enough: the newest one is chosen, the local server if it is among the newest.
        (
            Some(34),
            Some(37),
            &[("b", Some(36)), ("c", Some(35))],
            "b, c, local; not version",
        ),
        (Some(34), Some(37), &[("b", Some(34))], "local; not version"),
        (
            Some(35),
            Some(37),
            &[("b", Some(34)), ("c", None)],
            "local; not version",
        ),
        (Some(34), Some(36), &[], "local; not version"),
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
        ("unresponsive", |peer, _| {
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
        assert_eq!(got, "local; not version", "{described}");
    }
}

/// The group and resource of pods are those of every request here.
pub(in crate::routing) fn with_fields(mut cluster: Cluster, complete: &[Option<&str>]) -> Cluster {
    let complete = complete
        .iter()
        .map(|it| it.map(|name| Identity::named(name).unwrap()));
    let mut fields = FieldDifferences::default();
    let difference = KindDifference {
        complete: complete.collect(),
        ..KindDifference::default()
    };
    fields.insert("", "pods", difference);
    cluster.fields = Arc::new(fields);
    cluster
}

pub(in crate::routing) fn with_policies(mut cluster: Cluster, operation: &str) -> Cluster {
    let rule = MatchRule {
        operations: vec![operation.to_owned()],
        resources: vec!["pods".to_owned()],
    };
    cluster.policies = Arc::new(AdmissionPolicies {
        kinds: vec![PolicyKind {
            resource: "policies".to_owned(),
            version: "v1".to_owned(),
            objects: Some(1),
            matches: PolicyMatches::Rules(vec![rule]),
        }],
    });
    cluster
}

/// A server that serves pods and policies.
pub(in crate::routing) fn with_policy_kind(name: &str, now: Instant) -> Peer {
    let text = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "items": [{"metadata": {"name": ADMISSION_GROUP}, "versions": [{"version": "v1",
            "resources": [{"resource": "policies", "scope": "Cluster", "verbs": ["get"]}]}]}]});
    let policies = Arc::new(Document::parse(text.to_string().as_bytes()).unwrap());
    let pods = served("pods", Some(version(36)));
    Peer {
        served: Some(Arc::new(ServedApis {
            index: Arc::new(Index::new(&[&pods.documents[0], &policies])),
            documents: [pods.documents[0].clone(), policies],
            etags: [None, None],
            version: Some(version(36)),
            version_suffix: Arc::default(),
            by_bridge: true,
        })),
        ..peer(name, "pods", None, now)
    }
}

#[test]
fn writes_go_to_a_server_that_has_every_field() {
    let now = Instant::now();
    let (get, post) = (Method::GET, Method::POST);
    let (writes, all, off) = (FieldGuard::Writes, FieldGuard::All, FieldGuard::Off);
    let rows: [(_, _, &[Option<&str>], _); 8] = [
        (&post, writes, &[Some("b")], "b"),
        (&post, writes, &[Some("b"), Some("c")], "b+c"),
        (&post, writes, &[None], "local"),
        (&post, writes, &[None, Some("b")], "local"),
        (&post, off, &[Some("b")], "local"),
        // A list is not the base of an update of one object.
        (&get, writes, &[Some("b")], "local"),
        (&get, all, &[Some("b")], "b, c, local"),
        // The server that has every field is not available: the newest one.
        (&post, writes, &[Some("gone")], "b, c, local; not fields"),
    ];
    for (method, guard, complete, expected) in rows {
        let peers = vec![
            peer("c", "pods", Some(version(35)), now),
            peer("b", "pods", Some(version(36)), now),
        ];
        let cluster = with_fields(cluster(Some(version(34)), peers), complete);
        let input = PlacementInput {
            fields: guard,
            ..PlacementInput::default()
        };
        let got = placement_of(method, input, &cluster, now);
        assert_eq!(got, expected, "{method} {guard:?} {complete:?}");
    }
}

/// A request that the first servers do not accept may be sent to a later one.
#[test]
fn no_write_reaches_a_server_without_every_field_after_one_that_has_them() {
    let now = Instant::now();
    let (is_here, is_gone) = (true, false);
    // The method, whether b (complete) and c are available, and the servers that are tried.
    let rows = [
        ("GET", is_gone, is_gone, "b, c"),
        ("GET", is_gone, is_here, "c, b; not fields"),
        ("POST", is_here, is_here, "b"),
        ("POST", is_gone, is_gone, "b"),
        ("PUT", is_gone, is_gone, "b"),
        ("PATCH", is_gone, is_gone, "b"),
        ("DELETE", is_gone, is_gone, "b"),
        // What c would erase is checked (`proxy::update_guard`).
        ("PATCH", is_gone, is_here, "c, b; not fields"),
        ("DELETE", is_gone, is_here, "c, b; not fields"),
    ];
    for (method, b_is_available, c_is_available, expected) in rows {
        let available = |name, is_available| Peer {
            published: is_available,
            ..peer(name, "pods", Some(version(36)), now)
        };
        let peers = vec![
            available("b", b_is_available),
            available("c", c_is_available),
        ];
        let mut cluster = with_fields(cluster(Some(version(34)), peers), &[Some("b")]);
        // The local server does not serve the request.
        cluster.local = Some(served("nodes", Some(version(34))));
        let input = PlacementInput {
            fields: FieldGuard::All,
            ..PlacementInput::default()
        };
        let request = Method::from_bytes(method.as_bytes()).unwrap();
        let got = placement_of(&request, input, &cluster, now);
        assert_eq!(got, expected, "{method} {b_is_available} {c_is_available}");
        // After a false 404 of the local server nothing is checked.
        let path = DecodedPath::new("/api/v1/pods").unwrap();
        let info = RequestInfo::parse(&request, &path, None);
        let names = names_of(&place_among_peers(&info, input, &cluster, now));
        match method {
            "GET" => assert_eq!(names.len(), 2),
            _ => assert_eq!(names, ["b"], "{method} {c_is_available}"),
        }
    }
}

#[test]
fn writes_that_a_policy_matches_only_go_to_servers_that_enforce_it() {
    let now = Instant::now();
    let (get, post) = (Method::GET, Method::POST);
    let input = PlacementInput::default();
    let off = PlacementInput {
        admission: AdmissionGuard::Off,
        ..input
    };
    let enforcing = || {
        vec![
            peer("c", "pods", Some(version(34)), now),
            with_policy_kind("b", now),
        ]
    };
    let others = || vec![peer("c", "pods", Some(version(37)), now)];
    let rows = [
        (&post, "CREATE", input, enforcing(), "b"),
        (&post, "*", input, enforcing(), "b"),
        (&post, "DELETE", input, enforcing(), "local"),
        (&get, "*", input, enforcing(), "local"),
        (&post, "CREATE", off, enforcing(), "local"),
        // No server enforces it: no server gets the write.
        (&post, "CREATE", input, others(), "; not admission"),
        (&post, "CREATE", input, Vec::new(), "; not admission"),
        (&get, "CREATE", input, others(), "local"),
    ];
    for (method, operation, input, peers, expected) in rows {
        let described = format!("{method} {operation} {input:?} {peers:?}");
        let cluster = with_policies(cluster(Some(version(34)), peers), operation);
        let got = placement_of(method, input, &cluster, now);
        assert_eq!(got, expected, "{described}");
    }
}

#[test]
fn a_policy_outweighs_fields_and_fields_outweigh_the_version() {
    let now = Instant::now();
    let input = PlacementInput {
        component: Some(version(36)),
        ..PlacementInput::default()
    };
    let peers = || {
        vec![
            peer("complete", "pods", Some(version(35)), now),
            peer("new", "pods", Some(version(36)), now),
            with_policy_kind("enforcing", now),
        ]
    };
    let complete = [Some("complete")];
    let cluster = || with_fields(cluster(Some(version(34)), peers()), &complete);
    let got = placement_of(&Method::POST, input, &cluster(), now);
    assert_eq!(got, "complete; not version");
    let got = placement_of(&Method::POST, input, &with_policies(cluster(), "*"), now);
    assert_eq!(got, "enforcing; not fields");
}

#[test]
fn an_available_peer_gets_the_requests_of_a_local_server_that_is_not() {
    let now = Instant::now();
    let peers = |is_available: bool| {
        let mut other = peer("b", "pods", Some(version(34)), now);
        other.published = is_available;
        vec![other]
    };
    let rows = [
        (true, true, "local"),
        (true, false, "local"),
        (false, true, "b, local"),
        // None is available.
        (false, false, "local"),
    ];
    for (local, other, expected) in rows {
        let cluster = cluster(Some(version(34)), peers(other));
        cluster.local_health.probed(local, 0);
        for method in [Method::GET, Method::POST] {
            let input = PlacementInput::default();
            let got = placement_of(&method, input, &cluster, now);
            assert_eq!(got, expected, "{method} {local} {other}");
        }
    }
}

#[test]
fn a_request_that_the_local_server_has_not_processed_goes_to_available_peers() {
    let now = Instant::now();
    let mut gone = peer("gone", "pods", Some(version(36)), now);
    gone.published = false;
    let peers = vec![peer("b", "pods", Some(version(34)), now), gone];
    let cluster = with_fields(cluster(Some(version(34)), peers), &[Some("gone"), None]);
    let path = DecodedPath::new("/api/v1/pods").unwrap();
    let elsewhere = |method: &Method, input| -> Vec<_> {
        let request = RequestInfo::parse(method, &path, None);
        let groups = place_elsewhere(&request, input, &cluster, now);
        let all = groups.iter().flatten();
        all.map(|it| it.identity.to_string()).collect()
    };
    let input = PlacementInput::default();
    assert_eq!(elsewhere(&Method::GET, input), ["b"]);
    // It would erase fields.
    assert!(elsewhere(&Method::POST, input).is_empty());
    let off = PlacementInput {
        fields: FieldGuard::Off,
        ..input
    };
    assert_eq!(elsewhere(&Method::POST, off), ["b"]);
    let version_path = DecodedPath::new("/version").unwrap();
    let other = RequestInfo::parse(&Method::GET, &version_path, None);
    assert!(place_elsewhere(&other, input, &cluster, now).is_empty());
}

#[test]
fn a_write_with_options_only_goes_to_newer_peers_that_satisfy_the_rules() {
    let now = Instant::now();
    let peers = || {
        vec![
            peer("b", "pods", Some(version(36)), now),
            peer("same", "pods", Some(version(34)), now),
            with_policy_kind("enforcing", now),
        ]
    };
    let cluster = || cluster(Some(version(34)), peers());
    let newer = |method: &Method, cluster: &Cluster| {
        let path = DecodedPath::new("/api/v1/namespaces/n/pods").unwrap();
        let request = RequestInfo::parse(method, &path, Some("fieldSelector=a%3Db"));
        let newer = newer_peers(&request, PlacementInput::default(), cluster, now);
        names_of(&[newer]).join("")
    };
    let complete = [Some("b")];
    for (method, cluster, expected) in [
        (Method::GET, cluster(), "b+enforcing"),
        (Method::DELETE, cluster(), "b+enforcing"),
        (
            Method::GET,
            with_policies(cluster(), "DELETE"),
            "b+enforcing",
        ),
        (
            Method::DELETE,
            with_policies(cluster(), "DELETE"),
            "enforcing",
        ),
        (Method::DELETE, with_fields(cluster(), &complete), "b"),
        (
            Method::GET,
            with_fields(cluster(), &complete),
            "b+enforcing",
        ),
    ] {
        assert_eq!(newer(&method, &cluster), expected, "{method}");
    }
}

#[test]
fn equally_good_peers_are_ordered_by_their_requests_in_flight() {
    let now = Instant::now();
    let peers: Vec<_> = [("a", 3), ("b", 1), ("c", 2)]
        .map(|(name, load)| (peer(name, "pods", Some(version(36)), now), load))
        .into_iter()
        .collect();
    let mut running = Vec::new();
    for (peer, load) in &peers {
        running.extend((0..*load).map(|_| peer.health.track_request()));
    }
    let peers = peers.into_iter().map(|(peer, _)| peer).collect();
    let cluster = cluster(Some(version(34)), peers);
    let got = placed(Some(version(36)), &cluster, now);
    assert_eq!(got, "b+c+a, local");
    drop(running);
    let got = placed(Some(version(36)), &cluster, now);
    assert_eq!(got, "a+b+c, local", "without requests by name");
}

#[test]
fn the_rules_that_a_fallback_does_not_satisfy_are_known() {
    let now = Instant::now();
    let peers = vec![
        peer("new", "pods", Some(version(36)), now),
        peer("old", "pods", Some(version(34)), now),
    ];
    let cluster = with_fields(cluster(Some(version(34)), peers), &[Some("new")]);
    let path = DecodedPath::new("/api/v1/pods").unwrap();
    let request = RequestInfo::parse(&Method::POST, &path, None);
    let input = PlacementInput {
        component: Some(version(36)),
        ..PlacementInput::default()
    };
    let unmet = |name: Option<&str>| {
        let identity = name.map(|it| Identity::named(it).unwrap());
        unmet_by(&request, input, &cluster, now, identity.as_ref()).to_string()
    };
    assert_eq!(unmet(None), "fields, version");
    assert_eq!(unmet(Some("old")), "fields, version");
    assert_eq!(unmet(Some("new")), "");
}

#[test]
fn writes_that_fields_or_policies_can_concern_depend_on_the_versions_of_servers() {
    let (writes, all) = (FieldGuard::Writes, FieldGuard::All);
    let (on, off) = (AdmissionGuard::On, AdmissionGuard::Off);
    let pod = "/api/v1/namespaces/n/pods/p";
    let exec = "/api/v1/namespaces/n/pods/p/exec";
    let review = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let rows = [
        ("PUT", pod, writes, on, true),
        ("PATCH", pod, writes, off, true),
        ("DELETE", pod, FieldGuard::Off, on, true),
        ("DELETE", pod, FieldGuard::Off, off, false),
        // Policies match CONNECT; nothing is stored.
        ("GET", exec, writes, on, true),
        ("GET", exec, writes, off, false),
        ("GET", pod, all, on, false),
        ("GET", "/api/v1/pods?watch=true", all, on, false),
        ("POST", review, FieldGuard::Off, on, false),
        ("POST", "/version", writes, on, false),
    ];
    for (method, target, fields, admission, expected) in rows {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = DecodedPath::new(path).unwrap();
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = RequestInfo::parse(&method, &path, Some(query));
        let input = PlacementInput {
            component: None,
            fields,
            admission,
        };
        assert_eq!(
            depends_on_versions(&request, input),
            expected,
            "{method} {target}"
        );
    }
}
