//! Merged discovery and OpenAPI of all servers, for clients that the local server permits to read
//! them.

use serde_json::Value;
use skewbridge_discovery::{ServerDiscovery, ServerDiscoveryList, servers};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Feature;
use skewbridge_testkit::{RecordedRequest, Reply, Response, TEST_TIMEOUT, TlsClient, eventually};

use crate::discovery_freshness::join_all;
use crate::support::admin_client;
use crate::support::cluster::{
    self, ClusterFixture, NEW, OWN, PeerServer, peer_view, send_request, status_message,
};
use crate::support::fake_apiserver::{CRDS, DiscoveryFormat, crd};
use crate::support::log_capture;
use crate::support::pki::start;

const B: &str = "apiserver-b";
pub(super) const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const LEGACY_LIST: &str = "application/json";
/// Both servers have this version, but only the peer has this resource in it.
const PEER_RESOURCE: &str = "apps/v1 fleets";

/// A local server with `apps/v1`, and a peer with another resource of it and with `NEW`.
pub(super) async fn mixed_cluster() -> (ClusterFixture, PeerServer, Handle) {
    let local = ["v1 pods", "apps/v1 deployments"];
    let peer = [
        "v1 pods",
        "v1 podgroups",
        "apps/v1 deployments",
        PEER_RESOURCE,
        NEW,
    ];
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&local, [(B, &peer)]).await;
    (cluster, b, bridge)
}

/// How many requests of clients for `/apis` the local server has received.
pub(super) fn discovery_request_count(cluster: &ClusterFixture) -> usize {
    let recorded = cluster.local.client_requests();
    recorded
        .iter()
        .filter(|recorded| recorded.path() == "/apis")
        .count()
}

pub(super) async fn discovery(client: &TlsClient, bridge: &Handle) -> Response {
    send_request(client, bridge, "GET", "/apis", &[("accept", V2)], "").await
}

async fn get(cluster: &ClusterFixture, bridge: &Handle, path: &str, accept: &str) -> Response {
    let headers = [("accept", accept)];
    send_request(&cluster.alice(), bridge, "GET", path, &headers, "").await
}

fn json(response: &Response) -> Value {
    assert_eq!(response.status, 200, "{}", response.text());
    serde_json::from_slice(&response.body).unwrap()
}

pub(super) async fn metrics(bridge: &Handle) -> String {
    admin_client::get(bridge.admin_address(), "/metrics")
        .await
        .body
}

#[tokio::test]
async fn the_local_server_authorizes_discovery_once_in_ten_seconds_per_client() {
    let (cluster, _b, bridge) = mixed_cluster().await;
    let alice = cluster.alice();
    let bob = cluster.pki.user("bob", &[]);
    let before = discovery_request_count(&cluster);
    for _ in 0..5 {
        assert!(discovery(&alice, &bridge).await.text().contains("fleets"));
    }
    assert_eq!(discovery_request_count(&cluster), before + 1);
    discovery(&bob, &bridge).await;
    assert_eq!(discovery_request_count(&cluster), before + 2);
    // An impersonating request is another client.
    let headers = [("accept", V2), ("impersonate-user", "carol")];
    send_request(&alice, &bridge, "GET", "/apis", &headers, "").await;
    assert_eq!(discovery_request_count(&cluster), before + 3);
    let metrics = metrics(&bridge).await;
    assert!(metrics.contains("aggregator_discovery_peer_aggregated_cache_hits_total"));
    assert!(metrics.contains("skewbridge_discovery_document_bytes{path=\"/apis\"}"));
}

#[tokio::test]
async fn a_client_without_permission_is_denied_even_after_others_have_read() {
    let (cluster, _b, bridge) = mixed_cluster().await;
    let alice = cluster.alice();
    let bob = cluster.pki.user("bob", &[]);
    cluster.local.set_hook(|recorded: &RecordedRequest| {
        let bob = recorded.all("x-remote-user") == ["bob"] && recorded.path() == "/apis";
        bob.then(|| Reply::new(403).body("bob may not"))
    });
    for _ in 0..3 {
        assert_eq!(discovery(&alice, &bridge).await.status, 200);
        let refused = discovery(&bob, &bridge).await;
        assert_eq!(
            (refused.status, refused.text()),
            (403, "bob may not".into())
        );
    }
}

#[tokio::test]
async fn a_new_resource_is_in_discovery_at_once() {
    let (cluster, _b, bridge) = mixed_cluster().await;
    let alice = cluster.alice();
    assert!(
        !discovery(&alice, &bridge)
            .await
            .text()
            .contains("example.com")
    );
    cluster.local.put(CRDS, crd("example.com", "widgets"));
    cluster.local.serve(&[
        cluster::SHARED,
        "v1 pods",
        "apps/v1 deployments",
        "example.com/v1 widgets",
    ]);
    // Whether or not its watch event has arrived.
    let document = discovery(&alice, &bridge).await.text();
    assert!(
        document.contains("widgets") && document.contains("fleets"),
        "{document}"
    );
    // Without an event, for a client without a cached permission.
    let mut serves = vec![cluster::SHARED, "v1 pods", "apps/v1 deployments"];
    serves.push("example.com/v1 contraptions");
    cluster.local.serve(&serves);
    let document = discovery(&cluster.pki.user("dora", &[]), &bridge)
        .await
        .text();
    assert!(
        document.contains("contraptions") && document.contains("fleets"),
        "{document}"
    );
}

#[tokio::test]
async fn the_server_list_has_the_discovery_of_each_server() {
    let (cluster, b, bridge) = mixed_cluster().await;
    let answer = get(&cluster, &bridge, "/apis", servers::ACCEPT).await;
    assert_eq!(answer.header("content-type"), Some(servers::MEDIA_TYPE));
    let list = ServerDiscoveryList::parse(&answer.body).unwrap();
    assert_eq!(
        list.bridge_version.as_deref(),
        Some(env!("CARGO_PKG_VERSION"))
    );
    let [peer, own] = list.servers.as_slice() else {
        panic!("{list:#?}");
    };
    assert_eq!((&*own.identity, own.local), (cluster::OWN, true));
    assert_eq!((&*peer.identity, peer.local), (B, false));
    assert!(own.reachable && peer.reachable && peer.last_sync.is_some());
    let serves = |server: &ServerDiscovery, resource: &str| {
        let groups = server.groups.as_ref().unwrap();
        serde_json::to_string(groups).unwrap().contains(resource)
    };
    assert!(!serves(own, "fleets") && serves(own, "deployments") && serves(own, "pods"));
    assert!(serves(peer, "fleets") && serves(peer, "pods"));

    cluster.local.set_hook(|recorded: &RecordedRequest| {
        let alice = recorded.all("x-remote-user") == ["alice"];
        alice.then(|| Reply::new(403).body("no"))
    });
    let refused = get(&cluster, &bridge, "/apis", servers::ACCEPT).await;
    assert_eq!(refused.status, 403);
    cluster.local.remove_hook();

    b.shut_down().await;
    cluster.local.lease(B, "two");
    eventually(
        "the peer is reported as unreachable",
        TEST_TIMEOUT,
        async || {
            let answer = get(&cluster, &bridge, "/apis", servers::ACCEPT).await;
            let list = ServerDiscoveryList::parse(&answer.body).unwrap();
            !list.servers[0].reachable && list.servers[0].problem.is_some()
        },
    )
    .await;
}

#[tokio::test]
async fn the_server_list_has_the_leaders_that_renew_their_leases_through_the_bridge() {
    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler";
    let (cluster, _b, bridge) = mixed_cluster().await;
    let leaders = async || {
        let answer = get(&cluster, &bridge, "/apis", servers::ACCEPT).await;
        ServerDiscoveryList::parse(&answer.body).unwrap().leaders
    };
    assert_eq!(leaders().await, []);
    cluster.local.set_hook(|recorded: &RecordedRequest| {
        let is_renewal = recorded.method == "PUT" && recorded.path() == LEASE;
        is_renewal.then(|| Reply::new(200).body("{}"))
    });
    let agent = [("User-Agent", "kube-scheduler/v1.35.8 (linux/amd64)")];
    let renewed = send_request(&cluster.alice(), &bridge, "PUT", LEASE, &agent, "{}").await;
    assert_eq!(renewed.status, 200);
    let found = leaders().await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (&*found[0].component, &*found[0].version),
        ("kube-scheduler", "v1.35.8")
    );
}

#[tokio::test]
async fn legacy_lists_and_the_core_group_are_merged_unless_the_feature_gate_is_off() {
    let (cluster, _b, bridge) = mixed_cluster().await;
    let alice = cluster.alice();
    let (group_version, resource) = NEW.split_once(' ').unwrap();
    let (group, _) = group_version.split_once('/').unwrap();
    let paths = [
        ("/apis".to_owned(), LEGACY_LIST, group),
        (format!("/apis/{group}"), LEGACY_LIST, group_version),
        (format!("/apis/{group_version}"), LEGACY_LIST, resource),
        ("/apis/apps/v1".to_owned(), LEGACY_LIST, "fleets"),
        ("/api/v1".to_owned(), LEGACY_LIST, "podgroups"),
        ("/api".to_owned(), V2, "podgroups"),
    ];
    for (path, accept, expected) in &paths {
        let answer = get(&cluster, &bridge, path, accept).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert!(
            answer.text().contains(expected),
            "{path}: {}",
            answer.text()
        );
    }

    let mut config = cluster.config();
    config.features.0.remove(&Feature::CompleteDiscovery);
    let plain = start(&config);
    eventually("the peer is known", TEST_TIMEOUT, async || {
        !peer_view(&plain, B).await["secondsSinceSync"].is_null()
    })
    .await;
    for (path, accept, expected) in &paths {
        let answer = get(&cluster, &plain, path, accept).await;
        assert!(
            !answer.text().contains(expected),
            "{path}: {}",
            answer.text()
        );
    }
    eventually(
        "aggregated discovery of KEP-4020 is still merged",
        TEST_TIMEOUT,
        async || discovery(&alice, &plain).await.text().contains("fleets"),
    )
    .await;
}

#[tokio::test]
async fn without_certificates_for_peers_discovery_is_local_and_counted() {
    let (cluster, _b, _bridge) = mixed_cluster().await;
    let mut config = cluster.config();
    config.peers.ca = None;
    let alice = cluster.alice();
    let alone = start(&config);
    eventually("the bridge is ready", TEST_TIMEOUT, async || {
        get(&cluster, &alone, "/readyz", "*/*").await.status == 200
    })
    .await;
    let document = discovery(&alice, &alone).await;
    assert_eq!(document.status, 200);
    assert!(!document.text().contains("fleets"));
    let nopeer = format!("{V2};profile=nopeer");
    get(&cluster, &alone, "/apis", &nopeer).await;
    let metrics = metrics(&alone).await;
    for line in [
        "skewbridge_discovery_fallbacks_total{reason=\"no_peering\"} 1",
        "aggregator_discovery_nopeer_requests_total 1",
        "aggregator_discovery_local_requests_total 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn openapi_is_merged_and_fetched_from_a_peer_once() {
    let (cluster, b, bridge) = mixed_cluster().await;
    let index = json(&get(&cluster, &bridge, "/openapi/v3", "*/*").await);
    let (group_version, _) = NEW.split_once(' ').unwrap();
    for key in ["api/v1", "apis/apps/v1", &format!("apis/{group_version}")] {
        let url = index["paths"][key]["serverRelativeURL"].as_str().unwrap();
        let document = get(&cluster, &bridge, url, LEGACY_LIST).await;
        assert!(json(&document)["paths"].is_object(), "{key}");
    }
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"]
        .as_str()
        .unwrap();
    let document = get(&cluster, &bridge, url, LEGACY_LIST).await;
    let immutable = document.header("cache-control").unwrap();
    assert_eq!(immutable, "public, immutable");
    let paths = &json(&document)["paths"];
    // The local server's description takes precedence.
    let local = &paths["/apis/apps/v1/deployments"]["get"]["description"];
    assert_ne!(local, B);
    assert_eq!(paths["/apis/apps/v1/fleets"]["get"]["description"], B);

    let path = "/openapi/v3/apis/apps/v1";
    let later_requests = b.apiserver.gateway_requests(path);
    assert_eq!(later_requests.len(), 1, "{later_requests:#?}");
    // So that a bridge there does not fetch from other peers in turn.
    assert_eq!(later_requests[0].all("x-kubernetes-peer-proxied"), ["true"]);

    let many = (0..20).map(|_| get(&cluster, &bridge, "/openapi/v2", LEGACY_LIST));
    for answer in join_all(many).await {
        assert!(json(&answer)["paths"]["/apis/apps/v1/fleets"].is_object());
    }
    assert_eq!(b.apiserver.gateway_requests("/openapi/v2").len(), 1);
}

#[tokio::test]
async fn openapi_of_one_server_is_not_merged() {
    let (cluster, b, bridge) = mixed_cluster().await;
    let path = "/openapi/v3/apis/apps/v1";
    let local = get(&cluster, &bridge, path, "application/json;profile=nopeer").await;
    let local = json(&local);
    assert!(local["paths"]["/apis/apps/v1/deployments"].is_object());
    assert!(local["paths"].get("/apis/apps/v1/fleets").is_none());
    assert!(b.apiserver.gateway_requests(path).is_empty());

    let (group_version, _) = NEW.split_once(' ').unwrap();
    let only_there = format!("/openapi/v3/apis/{group_version}");
    let accept = servers::openapi_accept(B);
    for path in ["/openapi/v3", path, &only_there] {
        let answer = get(&cluster, &bridge, path, &accept).await;
        let content_type = answer.header("content-type").unwrap_or_default();
        assert!(
            servers::is_openapi_content_type(content_type),
            "{path}: {content_type}"
        );
        assert!(json(&answer)["paths"].is_object());
    }
    let document = json(&get(&cluster, &bridge, path, &accept).await);
    let deployments = &document["paths"]["/apis/apps/v1/deployments"]["get"];
    assert_eq!(deployments["description"], B);

    // The local server can be named, too: a client may not know which bridge answers.
    let accept = servers::openapi_accept(OWN);
    let answer = get(&cluster, &bridge, path, &accept).await;
    let content_type = answer.header("content-type").unwrap_or_default();
    assert!(servers::is_openapi_content_type(content_type));
    assert_eq!(json(&answer), local);
    let answer = get(&cluster, &bridge, &only_there, &accept).await;
    assert_eq!(answer.status, 404, "{}", answer.text());

    let status_of = async |path: &str, server: &str| {
        let accept = servers::openapi_accept(server);
        get(&cluster, &bridge, path, &accept).await.status
    };
    assert_eq!(status_of("/openapi/v3/apis/none/v1", B).await, 404);
    assert_eq!(status_of("/openapi/v3", "apiserver-none").await, 404);
    // A path that is no group-version is left to the local server.
    let before = b.apiserver.gateway_requests("/openapi/v3/version").len();
    status_of("/openapi/v3/version", B).await;
    assert_eq!(
        b.apiserver.gateway_requests("/openapi/v3/version").len(),
        before
    );

    cluster.local.set_hook(|recorded: &RecordedRequest| {
        let alice = recorded.all("x-remote-user") == ["alice"];
        alice.then(|| Reply::new(403).body("no"))
    });
    assert_eq!(status_of("/openapi/v3", B).await, 403);
}

#[tokio::test]
async fn merged_openapi_is_served_while_a_peer_is_unreachable() {
    let (cluster, b, bridge) = mixed_cluster().await;
    let path = "/openapi/v3/apis/apps/v1";
    let before = json(&get(&cluster, &bridge, path, LEGACY_LIST).await);
    assert!(before["paths"]["/apis/apps/v1/fleets"].is_object());
    b.shut_down().await;
    // Known documents stay in use, also when the local server changes.
    let after = json(&get(&cluster, &bridge, path, LEGACY_LIST).await);
    assert_eq!(after, before);
    let serves = [
        cluster::SHARED,
        "v1 pods",
        "apps/v1 deployments",
        "apps/v1 daemons",
    ];
    cluster.local.serve(&serves);
    let changed = json(&get(&cluster, &bridge, path, LEGACY_LIST).await);
    for resource in ["fleets", "daemons"] {
        let path = format!("/apis/apps/v1/{resource}");
        assert!(changed["paths"][&path].is_object(), "{changed}");
    }
    // Documents that were never fetched come from the local server; those that it does not have are
    // temporarily unavailable.
    let everything = json(&get(&cluster, &bridge, "/openapi/v2", LEGACY_LIST).await);
    assert!(everything["paths"]["/apis/apps/v1/deployments"].is_object());
    let index = json(&get(&cluster, &bridge, "/openapi/v3", "*/*").await);
    assert!(index["paths"]["apis/apps/v1"].is_object());
    let (group_version, _) = NEW.split_once(' ').unwrap();
    let url = &index["paths"][format!("apis/{group_version}")]["serverRelativeURL"];
    let url = url.as_str().unwrap();
    let absent = get(&cluster, &bridge, url, LEGACY_LIST).await;
    assert!(
        status_message(&absent, 503).contains("cannot be reached"),
        "{}",
        absent.text()
    );
    let metrics = metrics(&bridge).await;
    let counted = "skewbridge_discovery_fallbacks_total{reason=\"merge_error\"}";
    assert!(metrics.contains(counted), "{metrics}");
}

#[tokio::test]
async fn openapi_log_lines_name_a_peer_by_its_host() {
    const PEER_NAME: &str = "apiserver-of-the-log";
    log_capture::capture();
    let local = ["apps/v1 deployments"];
    let peer = ["apps/v1 deployments", PEER_RESOURCE, NEW];
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&local, [(PEER_NAME, &peer)]).await;
    let name = format!("host-of-{PEER_NAME} ({PEER_NAME})");
    let path = "/openapi/v3/apis/apps/v1";
    for (reply, line) in [
        (500, "the OpenAPI document of a peer cannot be fetched"),
        (200, "the OpenAPI document of a peer cannot be parsed"),
    ] {
        b.apiserver.set_hook(move |recorded| {
            let is_requested = recorded.path() == path;
            is_requested.then(|| {
                Reply::new(reply)
                    .header("ETag", "\"new\"")
                    .body("no document")
            })
        });
        eventually(line, TEST_TIMEOUT, async || {
            assert_eq!(get(&cluster, &bridge, path, LEGACY_LIST).await.status, 200);
            let lines = log_capture::lines_with(line);
            let mut lines = lines.iter().filter(|line| line.contains(PEER_NAME));
            lines.any(|it| it.contains(&name))
        })
        .await;
    }
}

/// Discovery of servers without aggregated discovery is read as lists, which must not contain the
/// APIs of peers.
#[tokio::test]
async fn bridges_of_old_servers_serve_unmerged_lists_to_peers() {
    let local = ["apps/v1 deployments"];
    let (cluster, [b], bridge) =
        ClusterFixture::with_peers(&local, [(B, &[PEER_RESOURCE, NEW])]).await;
    b.apiserver.set_version("v1.25.16", DiscoveryFormat::Legacy);
    cluster
        .local
        .set_version("v1.25.16", DiscoveryFormat::Legacy);
    cluster.local.lease(B, "two");
    eventually("the lists are requested", TEST_TIMEOUT, async || {
        !b.apiserver.gateway_requests("/apis/apps/v1").is_empty()
    })
    .await;
    for list_request in b.apiserver.gateway_requests("/apis/apps/v1") {
        assert_eq!(list_request.all("x-kubernetes-peer-proxied"), ["true"]);
    }
    let proxy = cluster.pki.peer();
    let headers = [
        ("x-remote-user", "system:apiserver"),
        ("x-kubernetes-peer-proxied", "true"),
        ("accept", LEGACY_LIST),
    ];
    for path in ["/apis", "/apis/apps/v1", "/openapi/v2"] {
        let received = send_request(&proxy, &bridge, "GET", path, &headers, "").await;
        assert_eq!(received.status, 200, "{path}");
        assert!(
            !received.text().contains("fleets"),
            "{path}: {}",
            received.text()
        );
    }
    // Also if the client requests unmerged discovery by its Accept header.
    let nopeer = "application/json;profile=nopeer";
    let received = get(&cluster, &bridge, "/apis/apps/v1", nopeer).await;
    assert!(!received.text().contains("fleets"), "{}", received.text());
}

#[tokio::test]
async fn a_deleted_resource_is_removed_from_lists_at_once() {
    let (cluster, _b, bridge) = mixed_cluster().await;
    cluster.local.put(CRDS, crd("example.com", "widgets"));
    let with = [
        cluster::SHARED,
        "v1 pods",
        "apps/v1 deployments",
        "example.com/v1 widgets",
    ];
    cluster.local.serve(&with);
    eventually("the resource is in discovery", TEST_TIMEOUT, async || {
        get(&cluster, &bridge, "/apis", V2)
            .await
            .text()
            .contains("widgets")
    })
    .await;
    // The server no longer lists it, and its watch event has not arrived yet.
    cluster.local.serve(&with[..3]);
    let list = get(&cluster, &bridge, "/apis", LEGACY_LIST).await;
    assert!(!list.text().contains("example.com"), "{}", list.text());
    assert_eq!(
        get(&cluster, &bridge, "/apis/example.com", LEGACY_LIST)
            .await
            .status,
        404
    );
    assert!(
        !get(&cluster, &bridge, "/apis", V2)
            .await
            .text()
            .contains("widgets")
    );
}

/// Each credential with its own permissions.
#[tokio::test]
async fn a_cached_permission_is_valid_for_one_credential_and_one_method() {
    let (cluster, _b, bridge) = mixed_cluster().await;
    cluster.local.set_hook(|recorded: &RecordedRequest| {
        let good =
            recorded.header("sec-websocket-protocol") == Some("good") && recorded.method != "HEAD";
        (recorded.path() == "/apis" && !recorded.is_probe() && !good)
            .then(|| Reply::new(403).body("no"))
    });
    let anonymous = cluster.pki.client();
    let status_of = async |method: &str, token: &str| {
        let headers = [("accept", V2), ("sec-websocket-protocol", token)];
        send_request(&anonymous, &bridge, method, "/apis", &headers, "")
            .await
            .status
    };
    for _ in 0..2 {
        assert_eq!(status_of("GET", "good").await, 200);
        assert_eq!(status_of("GET", "bad").await, 403);
        assert_eq!(status_of("HEAD", "good").await, 403);
    }
}

#[tokio::test]
async fn a_client_without_permission_for_openapi_is_denied() {
    let (cluster, b, bridge) = mixed_cluster().await;
    cluster.local.set_hook(|recorded: &RecordedRequest| {
        let alice = recorded.all("x-remote-user") == ["alice"];
        alice.then(|| Reply::new(403).body("no"))
    });
    for path in ["/openapi/v2", "/openapi/v3", "/openapi/v3/apis/apps/v1"] {
        assert_eq!(
            get(&cluster, &bridge, path, LEGACY_LIST).await.status,
            403,
            "{path}"
        );
    }
    assert!(b.apiserver.gateway_requests("/openapi/v2").is_empty());
}
