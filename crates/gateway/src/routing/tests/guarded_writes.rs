//! Writes that need a server with every field, or one that enforces the admission policies.

use super::*;

/// The reason for a refusal does not depend on another rule that the local server does not satisfy.
#[test]
fn a_write_that_the_local_server_may_not_get_because_of_a_policy_is_marked() {
    let now = Instant::now();
    let path = DecodedPath::new("/api/v1/pods").unwrap();
    let request = RequestInfo::parse(&Method::POST, &path, None);
    for (is_available, has_policy, rule, expected) in [
        (true, true, Rule::Admission, true),
        (false, true, Rule::Available, true),
        (false, false, Rule::Available, false),
    ] {
        let peers = vec![with_policy_kind("b", now)];
        let mut cluster = Cluster {
            shared: cluster().shared,
            ..placement_cluster(Some("v1.34.4".parse().unwrap()), peers)
        };
        if has_policy {
            cluster = with_policies(cluster, "CREATE");
        }
        cluster.local_health.probed(is_available, 0);
        let routed = route(&request, &certificate(), READY, Some((&cluster, now)));
        let Route::Peers(routed) = routed else {
            panic!("{}", describe(&routed));
        };
        assert_eq!((routed.rule, routed.must_enforce), (rule, expected));
    }
}

#[test]
fn a_write_waits_for_a_running_peer_of_which_nothing_is_known() {
    let now = Instant::now();
    let unread = Peer {
        identity: Identity::named("unread").unwrap(),
        host: None,
        address: Some(([127, 0, 0, 1], 6443).into()),
        published: true,
        alive_until: now + Duration::from_secs(40),
        awaited_until: now + Duration::from_secs(40),
        served: None,
        record: skewbridge_peer_directory::PeerRecord::default(),
        health: Arc::default(),
        last_success: None,
        problem: None,
    };
    let mut cluster = cluster();
    cluster.peers.peers.push(Arc::new(unread));
    let with_guards = |fields, admission| RouteInput {
        placement: PlacementInput {
            component: None,
            fields,
            admission,
        },
        ..READY
    };
    let only_fields = with_guards(FieldGuard::Writes, AdmissionGuard::Off);
    let only_admission = with_guards(FieldGuard::Off, AdmissionGuard::On);
    let off = with_guards(FieldGuard::Off, AdmissionGuard::Off);
    let pods = "/api/v1/namespaces/n/pods";
    let refused = "PeerUnread";
    let rows = [
        (Method::POST, pods, READY, refused),
        (Method::POST, pods, only_fields, refused),
        (Method::POST, pods, only_admission, refused),
        (Method::POST, pods, off, "front-proxy"),
        (Method::POST, "/apis/new.k8s.io/v1/widgets", READY, refused),
        // Policies match custom resources, too.
        (
            Method::POST,
            "/apis/custom.example.com/v1/widgets",
            READY,
            refused,
        ),
        (Method::GET, pods, READY, "front-proxy"),
        (Method::POST, "/apis", READY, "front-proxy"),
        // The sending bridge has placed the request.
        (Method::POST, pods, REROUTED, "front-proxy"),
    ];
    for (method, path, input, expected) in rows {
        let went = route_of(&method, path, &certificate(), input, &cluster);
        assert!(went.starts_with(expected), "{method} {path}: {went}");
    }
    // It no longer counts once it turns out that no server runs there.
    let health = cluster.peers.peers.last().unwrap().health.clone();
    health.record_unanswered_poll();
    let went = route_of(&Method::POST, pods, &certificate(), READY, &cluster);
    assert_eq!(went, "front-proxy");
}

/// The sending server may be a kube-apiserver that does not know of policies that others enforce.
#[test]
fn a_rerouted_write_is_refused_where_a_policy_that_matches_it_is_not_enforced() {
    let cluster_with = |local: &[(&str, &[&str])]| {
        let rule = MatchRule {
            operations: vec!["CREATE".to_owned()],
            resources: vec!["pods".to_owned()],
        };
        Cluster {
            local: Some(Arc::new(served(local))),
            policies: Arc::new(AdmissionPolicies {
                kinds: vec![PolicyKind {
                    resource: "policies".to_owned(),
                    version: "v1".to_owned(),
                    objects: Some(1),
                    matches: PolicyMatches::Rules(vec![rule]),
                }],
            }),
            ..cluster()
        }
    };
    let pods: (&str, &[&str]) = ("/v1", &[PODS, "pods:delete"]);
    let policies: (&str, &[&str]) = ("admissionregistration.k8s.io/v1", &["policies:get,list"]);
    let (lacks, enforces) = (cluster_with(&[pods]), cluster_with(&[pods, policies]));
    let off = RouteInput {
        placement: PlacementInput {
            admission: AdmissionGuard::Off,
            ..REROUTED.placement
        },
        ..REROUTED
    };
    let path = "/api/v1/namespaces/n/pods";
    for (method, path, input, cluster, expected) in [
        ("POST", path, REROUTED, &lacks, "NotEnforced"),
        ("POST", path, REROUTED, &enforces, "front-proxy"),
        ("POST", path, off, &lacks, "front-proxy"),
        ("GET", path, REROUTED, &lacks, "front-proxy"),
        (
            "DELETE",
            "/api/v1/namespaces/n/pods/p",
            REROUTED,
            &lacks,
            "front-proxy",
        ),
    ] {
        let method = method.parse().unwrap();
        let went = route_of(&method, path, &peer(), input, cluster);
        assert!(went.starts_with(expected), "{method} {path} {went}");
    }
}
