//! Writes that an admission policy matches only go to servers that enforce it.

use serde_json::{Value, json};
use skewbridge_gateway::Handle;
use skewbridge_gateway::admission_guard::AdmissionGuard;
use skewbridge_gateway::config::Config;
use skewbridge_testkit::{Reply, Response, TEST_TIMEOUT, eventually};

use crate::support::admin_client::{self, scrape};
use crate::support::cluster::{
    ClusterFixture, OWN, PeerServer, SHARED_PATH, peers, send_request, served_by, status_message,
};
use crate::support::fake_apiserver::{DiscoveryFormat, LEASES, POLICIES, POLICY_KIND};
use crate::support::pki::start;

const B: &str = "apiserver-b";
const C: &str = "apiserver-c";

/// Served by every server here, and matched by no policy.
const UNMATCHED: &str = "apps/v1 statefulsets";
const UNMATCHED_PATH: &str = "/apis/apps/v1/namespaces/a/statefulsets";

const NEWER_SERVER: [&str; 2] = [UNMATCHED, POLICY_KIND];

/// A policy that matches the creation of this resource.
fn policy(name: &str, resource: &str) -> Value {
    let rules = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"],
        "resources": [resource]}]);
    json!({"metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": rules}}})
}

/// The local server has version 1.34.4 and does not serve policies. B has version 1.36.4 and serves
/// them. The bridge has listed them.
async fn mixed_cluster() -> (ClusterFixture, PeerServer, Handle) {
    mixed_cluster_with(|_| ()).await
}

async fn mixed_cluster_with(
    change: impl FnOnce(&mut Config),
) -> (ClusterFixture, PeerServer, Handle) {
    let cluster = old_server().await;
    let b = cluster.peer(B, &NEWER_SERVER).await;
    let mut config = cluster.config();
    change(&mut config);
    let bridge = cluster.start_with(&config).await;
    wait_until_listed(&bridge).await;
    (cluster, b, bridge)
}

async fn old_server() -> ClusterFixture {
    let cluster = ClusterFixture::new(&[UNMATCHED]).await;
    cluster.local.set_version("v1.34.4", DiscoveryFormat::V2);
    cluster
}

/// Waits until all kinds of policies can be read.
async fn wait_until_listed(bridge: &Handle) {
    eventually("policies are listed", TEST_TIMEOUT, async || {
        let scrape = scrape(bridge.admin_address()).await;
        scrape.value("skewbridge_unknown_policy_kinds", &[]) == Some(0.0)
    })
    .await;
}

/// Waits until the bridge has read this many policies.
async fn wait_until_known(bridge: &Handle, count: u64) {
    eventually("the policies are known", TEST_TIMEOUT, async || {
        let view = peers(bridge).await;
        view["policies"][0]["objects"].as_u64().unwrap_or_default() == count
    })
    .await;
}

async fn send(cluster: &ClusterFixture, bridge: &Handle, method: &str, path: &str) -> Response {
    send_request(&cluster.alice(), bridge, method, path, &[], "{}").await
}

async fn create(cluster: &ClusterFixture, bridge: &Handle, path: &str) -> Response {
    send(cluster, bridge, "POST", path).await
}

async fn rule_count(bridge: &Handle, name: &str) -> f64 {
    let scrape = scrape(bridge.admin_address()).await;
    scrape.value(name, &[("rule", "admission")]).unwrap()
}

#[tokio::test]
async fn a_write_that_a_policy_matches_goes_to_a_server_that_enforces_it() {
    let (cluster, b, bridge) = mixed_cluster().await;
    assert_eq!(
        served_by(&create(&cluster, &bridge, SHARED_PATH).await),
        OWN
    );
    b.apiserver.put(POLICIES, policy("a", "deployments"));
    wait_until_known(&bridge, 1).await;
    assert_eq!(served_by(&create(&cluster, &bridge, SHARED_PATH).await), B);
    for (method, path) in [
        ("GET", SHARED_PATH),
        ("DELETE", SHARED_PATH),
        ("POST", UNMATCHED_PATH),
    ] {
        let answer = send(&cluster, &bridge, method, path).await;
        assert_eq!(served_by(&answer), OWN, "{method} {path}");
    }
    let placed = rule_count(&bridge, "skewbridge_placed_requests_total").await;
    assert!((placed - 1.0).abs() < f64::EPSILON, "{placed}");
    // The policy changes, and is deleted.
    b.apiserver.put(POLICIES, policy("a", "statefulsets"));
    eventually("the change is known", TEST_TIMEOUT, async || {
        served_by(&create(&cluster, &bridge, UNMATCHED_PATH).await) == B
    })
    .await;
    assert_eq!(
        served_by(&create(&cluster, &bridge, SHARED_PATH).await),
        OWN
    );
    b.apiserver.delete(POLICIES, "a");
    wait_until_known(&bridge, 0).await;
    assert_eq!(
        served_by(&create(&cluster, &bridge, UNMATCHED_PATH).await),
        OWN
    );
}

#[tokio::test]
async fn a_policy_that_is_written_through_the_bridge_is_in_force_with_its_response() {
    let (cluster, b, bridge) = mixed_cluster().await;
    for turn in 0..20 {
        let body = policy(&format!("policy-{turn}"), "deployments").to_string();
        let written = send_request(&cluster.alice(), &bridge, "POST", POLICIES, &[], body).await;
        assert_eq!(written.status, 200, "{}", written.text());
        assert_eq!(served_by(&create(&cluster, &bridge, SHARED_PATH).await), B);
        let path = format!("{POLICIES}/policy-{turn}");
        let deleted = send(&cluster, &bridge, "DELETE", &path).await;
        assert_eq!(deleted.status, 200, "{}", deleted.text());
        assert_eq!(
            served_by(&create(&cluster, &bridge, SHARED_PATH).await),
            OWN
        );
    }
    assert_eq!(b.apiserver.count(POLICIES), 0);
}

#[tokio::test]
async fn after_a_policy_that_cannot_be_read_back_every_write_counts_as_matched() {
    let (cluster, b, bridge) = mixed_cluster().await;
    b.apiserver.set_hook(|recorded| {
        let is_list = recorded.path() == POLICIES && recorded.method == "GET";
        is_list.then(|| Reply::new(500).body("etcd is down"))
    });
    // The response is sent nevertheless.
    let body = policy("a", "deployments").to_string();
    let written = send_request(&cluster.alice(), &bridge, "POST", POLICIES, &[], body).await;
    assert_eq!(written.status, 200, "{}", written.text());
    let answer = create(&cluster, &bridge, UNMATCHED_PATH).await;
    assert_eq!(served_by(&answer), B);
    b.apiserver.remove_hook();
    wait_until_known(&bridge, 1).await;
    assert_eq!(served_by(&create(&cluster, &bridge, SHARED_PATH).await), B);
    let answer = create(&cluster, &bridge, UNMATCHED_PATH).await;
    assert_eq!(served_by(&answer), OWN);
}

#[tokio::test]
async fn without_a_server_that_enforces_the_policy_matching_writes_are_refused_and_others_pass() {
    let (cluster, mut b, bridge) = mixed_cluster().await;
    b.apiserver
        .put(POLICIES, policy("secret-name", "deployments"));
    wait_until_known(&bridge, 1).await;
    // The bridge of B runs, and its server does not.
    b.apiserver.set_hook(|recorded| {
        let not_processed = || Reply::new(503).header("x-skewbridge-not-processed", "true");
        (recorded.path() == SHARED_PATH).then(not_processed)
    });
    let answer = create(&cluster, &bridge, SHARED_PATH).await;
    assert_refused(&answer);
    b.shut_down().await;
    for _ in 0..3 {
        assert_refused(&create(&cluster, &bridge, SHARED_PATH).await);
        assert_eq!(
            served_by(&create(&cluster, &bridge, UNMATCHED_PATH).await),
            OWN
        );
    }
    let anonymous = cluster.pki.client();
    let answer = send_request(&anonymous, &bridge, "POST", SHARED_PATH, &[], "{}").await;
    let message = status_message(&answer, 503);
    assert!(!message.contains("polic"), "{message}");
    // The peer has ended: its policies stay in force for some minutes.
    b.withdraw_address();
    eventually("the address is withdrawn", TEST_TIMEOUT, async || {
        peers(&bridge).await["peers"][0]["published"] == false
    })
    .await;
    cluster.local.delete(LEASES, B);
    eventually("the peer is gone", TEST_TIMEOUT, async || {
        peers(&bridge).await["peers"] == json!([])
    })
    .await;
    assert_refused(&create(&cluster, &bridge, SHARED_PATH).await);
    assert!(rule_count(&bridge, "skewbridge_unmet_placements_total").await >= 6.0);

    let page = admin_client::get(bridge.admin_address(), "/readyz?verbose").await;
    let note = "1 mutatingadmissionpolicies that not all servers enforce";
    assert!(page.body.contains(note), "{}", page.body);
    let query = format!("/debug/route?method=POST&path={SHARED_PATH}");
    let explained = admin_client::get(bridge.admin_address(), &query).await;
    let explained: Value = serde_json::from_str(&explained.body).unwrap();
    assert_eq!(explained["route"], "rejected", "{explained}");
    assert_eq!(explained["policies"], json!(["mutatingadmissionpolicies"]));
    let reason = explained["reason"].as_str().unwrap();
    assert!(reason.contains("mutatingadmissionpolicies"), "{reason}");
    assert_eq!(
        peers(&bridge).await["policies"],
        json!([{"resource": "mutatingadmissionpolicies", "version": "v1", "objects": 1,
            "matches": {"rules": [{"operations": ["CREATE"], "resources": ["deployments"]}]}}])
    );
}

#[tokio::test]
async fn the_reason_is_the_same_while_the_local_server_is_not_available() {
    let (cluster, b, bridge) = mixed_cluster().await;
    b.apiserver
        .put(POLICIES, policy("secret-name", "deployments"));
    wait_until_known(&bridge, 1).await;
    b.apiserver.set_hook(|recorded| {
        let not_processed = || Reply::new(503).header("x-skewbridge-not-processed", "true");
        (recorded.path() == SHARED_PATH).then(not_processed)
    });
    (cluster.local).set_hook(|recorded| (recorded.path() == "/readyz").then(|| Reply::new(500)));
    let query = format!("/debug/route?method=POST&path={SHARED_PATH}");
    eventually(
        "the local server is not available",
        TEST_TIMEOUT,
        async || {
            let explained = admin_client::get(bridge.admin_address(), &query).await;
            explained.body.contains("\"available\":false")
        },
    )
    .await;
    assert_refused(&create(&cluster, &bridge, SHARED_PATH).await);
}

#[track_caller]
fn assert_refused(answer: &Response) {
    let message = status_message(answer, 503);
    let reason = "no available kube-apiserver enforces the admission policies that may match this \
                  write: mutatingadmissionpolicies";
    assert!(message.contains(reason), "{message}");
    assert!(!message.contains("secret-name"), "{message}");
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn known_policies_survive_a_restart_of_the_bridge_with_a_state_dir() {
    let cluster = old_server().await;
    let b = cluster.peer(B, &NEWER_SERVER).await;
    b.apiserver.put(POLICIES, policy("a", "deployments"));
    let mut config = cluster.config();
    let state = cluster.pki.path().join("state");
    config.peers.state_dir = Some(state.clone());
    let bridge = cluster.start_with(&config).await;
    wait_until_known(&bridge, 1).await;
    let is_stored = |name| state.join(name).exists();
    eventually("the policies are stored", TEST_TIMEOUT, async || {
        is_stored("admission-policies.json") && is_stored("served/apiserver-b")
    })
    .await;
    b.shut_down().await;
    drop(bridge);

    let bridge = start(&config);
    cluster.wait_for_status(&bridge, "/readyz", 200).await;
    wait_until_known(&bridge, 1).await;
    assert_refused(&create(&cluster, &bridge, SHARED_PATH).await);
    assert_eq!(
        served_by(&create(&cluster, &bridge, UNMATCHED_PATH).await),
        OWN
    );
}

#[tokio::test]
async fn policies_that_cannot_be_read_match_every_write() {
    let cluster = old_server().await;
    let b = cluster.peer(B, &NEWER_SERVER).await;
    b.apiserver.set_hook(|recorded| {
        (recorded.path() == POLICIES).then(|| Reply::new(403).body("forbidden"))
    });
    let bridge = cluster.start().await;
    for path in [SHARED_PATH, UNMATCHED_PATH] {
        assert_eq!(served_by(&create(&cluster, &bridge, path).await), B);
        assert_eq!(served_by(&send(&cluster, &bridge, "GET", path).await), OWN);
    }
    let page = admin_client::get(bridge.admin_address(), "/readyz?verbose").await;
    let note = "mutatingadmissionpolicies cannot be read";
    assert!(page.body.contains(note), "{}", page.body);
    b.apiserver.remove_hook();
    wait_until_listed(&bridge).await;
    assert_eq!(
        served_by(&create(&cluster, &bridge, UNMATCHED_PATH).await),
        OWN
    );
}

#[tokio::test]
async fn the_watch_moves_to_another_server_that_serves_the_kind() {
    let cluster = old_server().await;
    let mut servers = Vec::new();
    for name in [B, C] {
        servers.push(cluster.peer(name, &NEWER_SERVER).await);
    }
    let bridge = cluster.start().await;
    wait_until_listed(&bridge).await;
    let watched = |it: &PeerServer| {
        let requests = it.apiserver.gateway_requests(POLICIES);
        requests
            .iter()
            .any(|it| it.query().unwrap().contains("watch=true"))
    };
    eventually("a watch", TEST_TIMEOUT, async || {
        servers.iter().any(watched)
    })
    .await;
    let first = servers.iter().position(watched).unwrap();
    // Both servers use the same etcd.
    for server in &servers {
        server.apiserver.put(POLICIES, policy("a", "deployments"));
    }
    wait_until_known(&bridge, 1).await;
    servers[first].shut_down().await;
    let other = &servers[1 - first];
    other.apiserver.put(POLICIES, policy("b", "deployments"));
    wait_until_known(&bridge, 2).await;
    assert_eq!(
        served_by(&create(&cluster, &bridge, SHARED_PATH).await),
        other.name
    );
}

#[tokio::test]
async fn policies_are_read_as_the_user_of_the_bridge_in_one_hop() {
    let (_cluster, b, bridge) = mixed_cluster().await;
    let requests = b.apiserver.gateway_requests(POLICIES);
    assert!(!requests.is_empty());
    for recorded in requests {
        assert_eq!(recorded.all("x-kubernetes-peer-proxied"), ["true"]);
        assert_eq!(recorded.all("x-remote-user"), ["system:apiserver"]);
        assert_eq!(recorded.all("x-remote-group"), ["system:masters"]);
    }
    drop(bridge);
}

#[tokio::test]
async fn nothing_is_watched_where_all_servers_enforce_policies_or_the_guard_is_off() {
    // All servers serve the kind.
    let cluster = ClusterFixture::new(&NEWER_SERVER).await;
    let b = cluster.peer(B, &NEWER_SERVER).await;
    let bridge = cluster.start().await;
    b.apiserver.put(POLICIES, policy("a", "deployments"));
    assert_eq!(
        served_by(&create(&cluster, &bridge, SHARED_PATH).await),
        OWN
    );
    let written = policy("b", "deployments").to_string();
    let answer = send_request(&cluster.alice(), &bridge, "POST", POLICIES, &[], written).await;
    assert_eq!(answer.status, 200);
    for server in [&cluster.local, &b.apiserver] {
        assert!(server.gateway_requests(POLICIES).is_empty());
    }
    drop(bridge);

    let (cluster, b, bridge) =
        mixed_cluster_with(|config| config.peers.guards.admission = AdmissionGuard::Off).await;
    b.apiserver.put(POLICIES, policy("a", "deployments"));
    assert_eq!(
        served_by(&create(&cluster, &bridge, SHARED_PATH).await),
        OWN
    );
    assert!(b.apiserver.gateway_requests(POLICIES).is_empty());
}

/// The local server enforces policies. An API that only the older peer serves must not bypass them.
#[tokio::test]
async fn a_write_that_only_an_older_server_serves_is_refused_if_a_policy_matches_it() {
    const OLD_API: &str = "resource.k8s.io/v1alpha2 podschedulings";
    const OLD_PATH: &str = "/apis/resource.k8s.io/v1alpha2/namespaces/a/podschedulings";
    let cluster = ClusterFixture::new(&NEWER_SERVER).await;
    let _b = cluster.peer(B, &[UNMATCHED, OLD_API]).await;
    let bridge = cluster.start().await;
    wait_until_listed(&bridge).await;
    assert_eq!(served_by(&create(&cluster, &bridge, OLD_PATH).await), B);
    cluster.local.put(POLICIES, policy("a", "podschedulings"));
    wait_until_known(&bridge, 1).await;
    assert_refused(&create(&cluster, &bridge, OLD_PATH).await);
    let read = send(&cluster, &bridge, "GET", OLD_PATH).await;
    assert_eq!(served_by(&read), B);
}
