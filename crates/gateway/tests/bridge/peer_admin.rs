//! What a bridge reports about its peers: metrics, `/debug/peers` and `/readyz`.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use skewbridge_discovery::{ServerDiscoveryList, servers};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::{Config, Features};
use skewbridge_testkit::{Ca, RecordedRequest, Reply, TEST_TIMEOUT, eventually};

use crate::support::admin_client;
use crate::support::cluster::{
    ClusterFixture, NEW, NEW_PATH, OWN, SHARED_PATH, peer_view, peers, send_request, served_by,
    status_message,
};
use crate::support::fake_apiserver::LEASES;
use crate::support::pki::{self, start};

const B: &str = "apiserver-b";
const C: &str = "apiserver-c";
const BEARER: (&str, &str) = ("Authorization", "Bearer t0ken");

#[tokio::test]
async fn without_the_feature_gate_or_a_certificate_peering_is_off_and_reported_as_off() {
    type Change = fn(&mut Config);
    let rows: [(&str, Change); 4] = [
        ("UnknownVersionInteroperabilityProxy is off", |config| {
            config.features = Features(BTreeSet::new());
        }),
        ("--peer-ca-file is not set", |config| {
            config.peers.ca = None;
        }),
        ("--proxy-client-cert-file is not set", |config| {
            config.upstream.front_proxy = None;
        }),
        ("--requestheader-client-ca-file is not set", |config| {
            config.callers.request_header = None;
        }),
    ];
    for (why, change) in rows {
        let cluster = ClusterFixture::new(&[]).await;
        let b = cluster.peer(B, &[NEW]).await;
        let mut config = cluster.config();
        change(&mut config);
        let bridge = start(&config);
        let bearer = async |path: &str| {
            send_request(&cluster.pki.client(), &bridge, "GET", path, &[BEARER], "").await
        };
        eventually("the bridge is ready", TEST_TIMEOUT, async || {
            bearer("/readyz").await.status == 200
        })
        .await;
        let answer = bearer(NEW_PATH).await;
        assert_eq!(answer.status, 404, "{why}");
        assert_eq!(answer.text(), "404 page not found\n", "{why}");
        assert_eq!(served_by(&bearer(SHARED_PATH).await), OWN);

        let ready = admin_client::get(bridge.admin_address(), "/readyz?verbose").await;
        assert_eq!(ready.status, 200, "{}", ready.body);
        let line = format!("[+]peers ok: local only, since {why}\n");
        assert!(ready.body.contains(&line), "{}", ready.body);
        assert_eq!(peers(&bridge).await["localOnly"], Value::from(why));
        // `skew` recognises the answer, and clients learn nothing about the flags.
        let accept = [BEARER, ("Accept", servers::ACCEPT)];
        let client = cluster.pki.client();
        let answer = send_request(&client, &bridge, "GET", "/apis", &accept, "").await;
        assert_eq!(answer.header("content-type"), Some(servers::MEDIA_TYPE));
        let list = ServerDiscoveryList::parse(&answer.body).unwrap();
        assert!(list.bridge_version.is_some());
        let reason = list.local_only.unwrap();
        assert_eq!(
            reason.contains("is off"),
            why.contains("is off"),
            "{reason}"
        );
        assert!(
            list.servers.is_empty() && !reason.contains("--"),
            "{reason}"
        );
        let metrics = admin_client::scrape(bridge.admin_address()).await;
        assert_eq!(metrics.value("skewbridge_peering_enabled", &[]), Some(0.0));
        assert!(b.apiserver.server.requests().is_empty());
    }
}

#[tokio::test]
async fn requests_to_peers_are_reported_by_metrics_and_debug_peers() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&["v1 pods"], [(B, &[NEW])]).await;
    cluster.get(&bridge, NEW_PATH).await;
    let view = peers(&bridge).await;
    assert!(view["localOnly"].is_null(), "{view}");
    assert_eq!(view["local"]["version"], "1.36.4", "{view}");
    assert_eq!(view["local"]["identity"], OWN);
    assert_eq!(view["local"]["address"], bridge.address().to_string());
    assert!(view["local"]["problem"].is_null(), "{view}");
    assert_eq!(view["local"]["servesAlone"], json!(["v1 pods"]));
    let peer = &view["peers"][0];
    assert_eq!(peer["identity"], B);
    assert_eq!(peer["version"], "1.36.4");
    assert_eq!(peer["address"], b.apiserver.server.addr().to_string());
    for yes in ["published", "alive", "healthy"] {
        assert_eq!(peer[yes], true, "{yes} of {view}");
    }
    assert_eq!(peer["servesAlone"], json!([NEW]));
    assert!(peer["problem"].is_null());

    b.shut_down().await;
    status_message(&cluster.post(&bridge, NEW_PATH, "{}").await, 503);
    let metrics = admin_client::scrape(bridge.admin_address()).await;
    let of = [
        ("group", "storage.k8s.io"),
        ("version", "v1alpha1"),
        ("resource", "volumeattributesclasses"),
    ];
    let with = |more| [&[more], &of[..]].concat();
    for name in [
        "apiserver_rerouted_request_total",
        "kubernetes_apiserver_rerouted_request_total",
    ] {
        assert_eq!(
            metrics.value(name, &with(("code", "200"))),
            Some(1.0),
            "{name}"
        );
    }
    let error = metrics.value(
        "apiserver_peer_proxy_errors_total",
        &with(("type", "proxy_transport")),
    );
    assert_eq!(error, Some(1.0));
    let rerouted = [
        ("peer", B),
        ("host", "host-of-apiserver-b"),
        ("code", "200"),
    ];
    let rerouted = metrics.value("skewbridge_rerouted_requests_total", &rerouted);
    assert_eq!(rerouted, Some(1.0));
    assert_eq!(metrics.value("skewbridge_peering_enabled", &[]), Some(1.0));
    // The metric's name of the last release.
    assert_eq!(metrics.value("skewbridge_peering", &[]), Some(1.0));
    eventually(
        "the failed discovery is counted",
        TEST_TIMEOUT,
        async || {
            let metrics = admin_client::scrape(bridge.admin_address()).await;
            let name = "apiserver_peer_discovery_sync_errors_total";
            let count = metrics.value(name, &[("type", "fetch_discovery")]);
            count.is_some_and(|count| count > 0.0)
        },
    )
    .await;
}

#[tokio::test]
async fn peer_metrics_have_help_lines_before_the_first_event() {
    let cluster = ClusterFixture::new(&[]).await;
    let bridge = cluster.start().await;
    let metrics = admin_client::scrape(bridge.admin_address()).await;
    for (name, kind) in [
        ("apiserver_rerouted_request", "counter"),
        ("kubernetes_apiserver_rerouted_request", "counter"),
        ("apiserver_peer_proxy_errors", "counter"),
        ("apiserver_peer_discovery_sync_errors", "counter"),
        ("skewbridge_rerouted_requests", "counter"),
        ("skewbridge_peer_request_duration_seconds", "histogram"),
        ("skewbridge_peer_discovery_age_seconds", "gauge"),
        ("skewbridge_peer_up", "gauge"),
        ("skewbridge_peer_registry_up", "gauge"),
        ("skewbridge_peer_discovery_polls", "counter"),
    ] {
        let found = metrics.families.get(name).map(String::as_str);
        assert_eq!(found, Some(kind), "{name}");
    }
    for cause in ["lease_list", "fetch_discovery"] {
        let name = "apiserver_peer_discovery_sync_errors_total";
        assert_eq!(metrics.value(name, &[("type", cause)]), Some(0.0));
    }
}

#[tokio::test]
async fn the_error_message_of_failed_peer_discovery_is_reported_verbatim() {
    let cluster = ClusterFixture::new(&[]).await;
    let b = cluster.peer(B, &[NEW]).await;
    b.apiserver.set_hook(|recorded| {
        let status = r#"{"kind":"Status","code":503,"message":"no \"quorum\" in etcd"}"#;
        (recorded.path() == "/apis").then(|| Reply::json(status).status(503))
    });
    let bridge = start(&cluster.config());
    eventually(
        "the failed discovery is reported",
        TEST_TIMEOUT,
        async || peer_view(&bridge, B).await["problem"] == r#"/apis: 503: no "quorum" in etcd"#,
    )
    .await;
}

/// A bridge that maintains the Lease of its identity itself, long enough to have checked whether
/// its server maintains one.
async fn bridge_that_maintains_the_lease(feature: u8) -> (ClusterFixture, Handle) {
    let cluster = ClusterFixture::new(&[]).await;
    let line = format!(
        "kubernetes_feature_enabled{{name=\"APIServerIdentity\",stage=\"BETA\"}} {feature}\n"
    );
    cluster.local.set_hook(move |recorded: &RecordedRequest| {
        let line = line.clone();
        (recorded.path() == "/metrics").then(|| Reply::new(200).body(line))
    });
    cluster.local.delete(LEASES, OWN);
    cluster.local.lease(B, "one");
    let bridge = start(&cluster.config());
    eventually(
        "the server's metrics have been read",
        3 * TEST_TIMEOUT,
        async || !cluster.local.gateway_requests("/metrics").is_empty(),
    )
    .await;
    assert_eq!(local(&bridge).await["leaseKeptBy"], "skewbridge");
    (cluster, bridge)
}

async fn local(bridge: &Handle) -> Value {
    peers(bridge).await["local"].clone()
}

async fn ready(bridge: &Handle) -> String {
    let ready = admin_client::get(bridge.admin_address(), "/readyz?verbose").await;
    assert_eq!(ready.status, 200, "{}", ready.body);
    ready.body
}

/// With a host name other than the server's, the bridge computes an identity that no server has.
#[tokio::test]
async fn an_identity_that_differs_from_the_servers_is_reported_as_doubtful() {
    let (cluster, bridge) = bridge_that_maintains_the_lease(1).await;
    eventually(
        "the identity is reported as doubtful",
        TEST_TIMEOUT,
        async || local(&bridge).await["problem"].is_string(),
    )
    .await;
    let problem = local(&bridge).await["problem"].as_str().unwrap().to_owned();
    for part in [
        "--apiserver-identity",
        OWN,
        "apiserver-b (host-of-apiserver-b)",
    ] {
        assert!(problem.contains(part), "{part}: {problem}");
    }
    assert!(ready(&bridge).await.contains(&problem));

    // The server maintains it after all.
    cluster.local.lease(OWN, "two");
    eventually(
        "the identity is no longer reported as doubtful",
        TEST_TIMEOUT,
        async || {
            let local = local(&bridge).await;
            local["leaseKeptBy"] == "kube-apiserver" && local["problem"].is_null()
        },
    )
    .await;
}

#[tokio::test]
async fn the_identity_of_a_server_without_a_lease_is_not_doubtful() {
    let (cluster, bridge) = bridge_that_maintains_the_lease(0).await;
    let renewed = || {
        let lease = cluster.local.object(LEASES, OWN).unwrap();
        lease["spec"]["renewTime"].clone()
    };
    let before = renewed();
    // All requests of the check have been answered before that.
    eventually("the Lease is renewed again", TEST_TIMEOUT, async || {
        renewed() != before
    })
    .await;
    assert!(local(&bridge).await["problem"].is_null());
    assert!(!ready(&bridge).await.contains("--apiserver-identity"));
    assert_eq!(cluster.local.gateway_requests("/metrics").len(), 1);
}

#[tokio::test]
async fn a_peer_with_an_invalid_certificate_is_rejected_and_reported() {
    let cluster = ClusterFixture::new(&[]).await;
    let untrusted = Ca::new("untrusted").server(&["kubernetes.default.svc"]);
    let other_name = cluster.peer_ca.server(&["localhost", "127.0.0.1"]);
    let rows = [
        (B, untrusted, "it is not signed by --peer-ca-file"),
        (C, other_name, "must be valid for kubernetes.default.svc"),
    ];
    let mut servers = Vec::new();
    let mut problems = Vec::new();
    for (name, certificate, problem) in rows {
        servers.push(
            cluster
                .peer_with_certificate(name, &[NEW], certificate)
                .await,
        );
        problems.push((name, problem));
    }
    let bridge = pki::start(&cluster.config());
    cluster.wait_for_status(&bridge, "/readyz", 200).await;
    for (name, problem) in problems {
        eventually(problem, TEST_TIMEOUT, async || {
            let view = peer_view(&bridge, name).await;
            view["problem"]
                .as_str()
                .is_some_and(|it| it.contains(problem))
        })
        .await;
        let view = peer_view(&bridge, name).await;
        assert!(view["secondsSinceSync"].is_null(), "{view}");
    }
    let answer = cluster.get(&bridge, NEW_PATH).await;
    assert!(!answer.text().contains("servedBy"), "{}", answer.text());
    for server in &servers {
        assert!(server.apiserver.server.requests().is_empty());
        let refused = async || server.apiserver.server.failed_handshakes() > 0;
        eventually("the handshake was aborted", TEST_TIMEOUT, refused).await;
    }
}
