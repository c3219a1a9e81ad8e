//! What a bridge says about its peers: metrics, `/debug/peers` and `/readyz`.
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests are tests

#[path = "common/cluster.rs"]
mod cluster;
mod common;
#[path = "common/plain.rs"]
mod plain;
#[path = "common/standin.rs"]
mod standin;

use std::collections::BTreeSet;

use cluster::{
    Cluster, NEW, NEW_PATH, OWN, SHARED_PATH, ask, peer_view, peers, refusal, served_by,
};
use common::start;
use serde_json::{Value, json};
use skewbridge_gateway::config::{Config, Features};
use skewbridge_testkit::{Ca, PATIENCE, eventually};

const B: &str = "apiserver-b";
const C: &str = "apiserver-c";
const BEARER: (&str, &str) = ("Authorization", "Bearer t0ken");

#[tokio::test]
async fn without_the_gate_or_a_certificate_it_is_a_plain_gateway_that_says_so() {
    type Change = fn(&mut Config);
    let rows: [(&str, Change); 4] = [
        ("UnknownVersionInteroperabilityProxy is off", |config| {
            config.features = Features(BTreeSet::new());
        }),
        ("--peer-ca-file is not given", |config| {
            config.peers.ca = None;
        }),
        ("--proxy-client-cert-file is not given", |config| {
            config.upstream.front_proxy = None;
        }),
        ("--requestheader-client-ca-file is not given", |config| {
            config.callers.request_header = None;
        }),
    ];
    for (why, change) in rows {
        let cluster = Cluster::new(&[]).await;
        let b = cluster.peer(B, &[NEW]).await;
        let mut config = cluster.config();
        change(&mut config);
        let bridge = start(&config);
        let bearer = async |path: &str| {
            ask(&cluster.bed.client(), &bridge, "GET", path, &[BEARER], "").await
        };
        eventually("it is ready", PATIENCE, async || {
            bearer("/readyz").await.status == 200
        })
        .await;
        let answer = bearer(NEW_PATH).await;
        assert_eq!(answer.status, 404, "{why}");
        assert_eq!(answer.text(), "404 page not found\n", "{why}");
        assert_eq!(served_by(&bearer(SHARED_PATH).await), OWN);

        let ready = plain::get(bridge.admin_address(), "/readyz?verbose").await;
        assert_eq!(ready.status, 200, "{}", ready.body);
        let line = format!("[+]peers ok: local only, since {why}\n");
        assert!(ready.body.contains(&line), "{}", ready.body);
        assert_eq!(peers(&bridge).await["localOnly"], Value::from(why));
        let metrics = plain::scrape(bridge.admin_address()).await;
        assert_eq!(metrics.value("skewbridge_peering", &[]), Some(0.0));
        assert!(b.standin.server.requests().is_empty());
    }
}

#[tokio::test]
async fn what_peers_did_is_told_by_metrics_and_by_debug_peers() {
    let (cluster, [b], bridge) = Cluster::with_peers(&["v1 pods"], [(B, &[NEW])]).await;
    cluster.get(&bridge, NEW_PATH).await;
    let view = peers(&bridge).await;
    assert!(view["localOnly"].is_null(), "{view}");
    assert_eq!(view["local"]["version"], "1.36.4", "{view}");
    assert_eq!(view["local"]["servesAlone"], json!(["v1 pods"]));
    let peer = &view["peers"][0];
    assert_eq!(peer["identity"], B);
    assert_eq!(peer["version"], "1.36.4");
    assert_eq!(peer["address"], b.standin.server.addr().to_string());
    for yes in ["published", "alive", "healthy"] {
        assert_eq!(peer[yes], true, "{yes} of {view}");
    }
    assert_eq!(peer["servesAlone"], json!([NEW]));
    assert!(peer["problem"].is_null());

    b.die().await;
    refusal(&cluster.post(&bridge, NEW_PATH, "{}").await, 503);
    let metrics = plain::scrape(bridge.admin_address()).await;
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
    let rerouted = [("peer", B), ("code", "200")];
    let rerouted = metrics.value("skewbridge_rerouted_requests_total", &rerouted);
    assert_eq!(rerouted, Some(1.0));
    assert_eq!(metrics.value("skewbridge_peering", &[]), Some(1.0));
    eventually("the failure to learn is counted", PATIENCE, async || {
        let metrics = plain::scrape(bridge.admin_address()).await;
        let name = "apiserver_peer_discovery_sync_errors_total";
        metrics
            .value(name, &[("type", "fetch_discovery")])
            .is_some()
    })
    .await;
}

#[tokio::test]
async fn who_cannot_prove_to_be_a_peer_is_not_believed_and_that_is_said() {
    let cluster = Cluster::new(&[]).await;
    let stranger = Ca::new("stranger").server(&["kubernetes.default.svc"]);
    let other_name = cluster.peer_ca.server(&["localhost", "127.0.0.1"]);
    let rows = [
        (B, stranger, "it is not signed by --peer-ca-file"),
        (C, other_name, "has to be for kubernetes.default.svc"),
    ];
    let mut servers = Vec::new();
    let mut problems = Vec::new();
    for (name, certificate, problem) in rows {
        servers.push(cluster.peer_showing(name, &[NEW], certificate).await);
        problems.push((name, problem));
    }
    let bridge = common::start(&cluster.config());
    cluster.becomes(&bridge, "/readyz", 200).await;
    for (name, problem) in problems {
        eventually(problem, PATIENCE, async || {
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
        assert!(server.standin.server.requests().is_empty());
        let refused = async || server.standin.server.failed_handshakes() > 0;
        eventually("a handshake was broken off", PATIENCE, refused).await;
    }
}
