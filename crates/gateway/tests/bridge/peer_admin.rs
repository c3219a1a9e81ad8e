//! What a bridge says about its peers: metrics, `/debug/peers` and `/readyz`.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use skewbridge_discovery::{ServerDiscoveryList, servers};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::{Config, Features};
use skewbridge_testkit::{Ca, PATIENCE, RecordedRequest, Reply, eventually};

use crate::bed::{self, start};
use crate::cluster::{
    Cluster, NEW, NEW_PATH, OWN, SHARED_PATH, ask, peer_view, peers, refusal, served_by,
};
use crate::plain;
use crate::standin::LEASES;

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
        // `skew` recognises it, and callers learn nothing of its flags.
        let accept = [BEARER, ("Accept", servers::ACCEPT)];
        let client = cluster.bed.client();
        let answer = ask(&client, &bridge, "GET", "/apis", &accept, "").await;
        assert_eq!(answer.header("content-type"), Some(servers::MEDIA_TYPE));
        let list = ServerDiscoveryList::parse(&answer.body).unwrap();
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
        let metrics = plain::scrape(bridge.admin_address()).await;
        assert_eq!(metrics.value("skewbridge_peering_enabled", &[]), Some(0.0));
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
    assert_eq!(view["local"]["identity"], OWN);
    assert_eq!(view["local"]["address"], bridge.address().to_string());
    assert!(view["local"]["problem"].is_null(), "{view}");
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
    let rerouted = [
        ("peer", B),
        ("host", "host-of-apiserver-b"),
        ("code", "200"),
    ];
    let rerouted = metrics.value("skewbridge_rerouted_requests_total", &rerouted);
    assert_eq!(rerouted, Some(1.0));
    assert_eq!(metrics.value("skewbridge_peering_enabled", &[]), Some(1.0));
    // The name of the last release.
    assert_eq!(metrics.value("skewbridge_peering", &[]), Some(1.0));
    eventually("the failure to learn is counted", PATIENCE, async || {
        let metrics = plain::scrape(bridge.admin_address()).await;
        let name = "apiserver_peer_discovery_sync_errors_total";
        let count = metrics.value(name, &[("type", "fetch_discovery")]);
        count.is_some_and(|count| count > 0.0)
    })
    .await;
}

#[tokio::test]
async fn what_is_counted_of_peers_is_described_before_it_happens() {
    let cluster = Cluster::new(&[]).await;
    let bridge = cluster.start().await;
    let metrics = plain::scrape(bridge.admin_address()).await;
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
async fn why_a_peer_does_not_tell_is_said_in_its_own_words() {
    let cluster = Cluster::new(&[]).await;
    let b = cluster.peer(B, &[NEW]).await;
    b.standin.hook(|seen| {
        let status = r#"{"kind":"Status","code":503,"message":"no \"quorum\" in etcd"}"#;
        (seen.path() == "/apis").then(|| Reply::json(status).status(503))
    });
    let bridge = start(&cluster.config());
    eventually("it has been asked", PATIENCE, async || {
        peer_view(&bridge, B).await["problem"] == r#"/apis: 503: no "quorum" in etcd"#
    })
    .await;
}

/// A bridge that keeps the Lease of its identity itself, for so long that it has
/// asked its server whether that keeps one.
async fn keeping_a_lease(feature: u8) -> (Cluster, Handle) {
    let cluster = Cluster::new(&[]).await;
    let line = format!(
        "kubernetes_feature_enabled{{name=\"APIServerIdentity\",stage=\"BETA\"}} {feature}\n"
    );
    cluster.local.hook(move |seen: &RecordedRequest| {
        let line = line.clone();
        (seen.path() == "/metrics").then(|| Reply::new(200).body(line))
    });
    cluster.local.delete(LEASES, OWN);
    cluster.local.lease(B, "one");
    let bridge = start(&cluster.config());
    eventually("the server has been asked", 3 * PATIENCE, async || {
        !cluster.local.questions("/metrics").is_empty()
    })
    .await;
    assert_eq!(local(&bridge).await["leaseKeptBy"], "skewbridge");
    (cluster, bridge)
}

async fn local(bridge: &Handle) -> Value {
    peers(bridge).await["local"].clone()
}

async fn ready(bridge: &Handle) -> String {
    let ready = plain::get(bridge.admin_address(), "/readyz?verbose").await;
    assert_eq!(ready.status, 200, "{}", ready.body);
    ready.body
}

/// A host name that is not the server's makes an identity that no server has.
#[tokio::test]
async fn an_identity_that_is_not_the_servers_is_doubted_and_that_is_said() {
    let (cluster, bridge) = keeping_a_lease(1).await;
    eventually("the identity is doubted", PATIENCE, async || {
        local(&bridge).await["problem"].is_string()
    })
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

    // The server keeps it after all.
    cluster.local.lease(OWN, "two");
    eventually("it is not doubted any more", PATIENCE, async || {
        let local = local(&bridge).await;
        local["leaseKeptBy"] == "kube-apiserver" && local["problem"].is_null()
    })
    .await;
}

#[tokio::test]
async fn an_identity_of_a_server_that_keeps_no_lease_is_not_doubted() {
    let (cluster, bridge) = keeping_a_lease(0).await;
    let renewed = || {
        let lease = cluster.local.object(LEASES, OWN).unwrap();
        lease["spec"]["renewTime"].clone()
    };
    let before = renewed();
    // Whatever was asked has been answered before that.
    eventually("it is renewed again", PATIENCE, async || {
        renewed() != before
    })
    .await;
    assert!(local(&bridge).await["problem"].is_null());
    assert!(!ready(&bridge).await.contains("--apiserver-identity"));
    assert_eq!(cluster.local.questions("/metrics").len(), 1);
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
    let bridge = bed::start(&cluster.config());
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
