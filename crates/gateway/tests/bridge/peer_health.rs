//! What a bridge reports about unreachable peers and an unreadable registry: `/readyz?verbose`,
//! `/debug/peers`, metrics and the text of 503 responses.

use std::net::TcpListener;

use serde_json::Value;
use skewbridge_discovery::accept;
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::{Etcd, RegistryKind};
use skewbridge_testkit::{RecordedRequest, Reply, TEST_TIMEOUT, eventually};

use crate::support::admin_client::{self, Scrape};
use crate::support::cluster::{
    ClusterFixture, NEW, NEW_PATH, OWN, SHARED_PATH, peer_view, peers, send_request, served_by,
    status_message,
};
use crate::support::fake_apiserver::LEASES;
use crate::support::pki::start;

const B: &str = "apiserver-b";
const B_HOST: &str = "host-of-apiserver-b";
const B_NAME: &str = "host-of-apiserver-b (apiserver-b)";
const C: &str = "apiserver-c";
const LABELS_OF_NEW: [(&str, &str); 3] = [
    ("group", "storage.k8s.io"),
    ("version", "v1alpha1"),
    ("resource", "volumeattributesclasses"),
];

async fn readyz(bridge: &Handle) -> (u16, String) {
    let answer = admin_client::get(bridge.admin_address(), "/readyz?verbose").await;
    (answer.status, answer.body)
}

async fn scrape(bridge: &Handle) -> Scrape {
    admin_client::scrape(bridge.admin_address()).await
}

/// Waits until `/readyz?verbose` contains this text.
async fn wait_for_readyz_text(bridge: &Handle, text: &str) -> String {
    eventually(text, TEST_TIMEOUT, async || {
        readyz(bridge).await.1.contains(text)
    })
    .await;
    readyz(bridge).await.1
}

async fn peer_up(bridge: &Handle, peer: &str, host: &str) -> Option<f64> {
    let labels = [("peer", peer), ("host", host)];
    scrape(bridge).await.value("skewbridge_peer_up", &labels)
}

#[tokio::test]
async fn an_unreachable_peer_is_named_and_reported_as_unhealthy() {
    let peers = [(B, &[NEW][..]), (C, &[])];
    let (cluster, [mut b, _c], bridge) = ClusterFixture::with_peers(&[], peers).await;
    wait_for_readyz_text(&bridge, "[+]peers ok: 2 of 2 reachable\n").await;
    cluster.wait_for_status(&bridge, "/readyz", 200).await;
    assert_eq!(peer_up(&bridge, B, B_HOST).await, Some(1.0));
    assert_eq!(peer_view(&bridge, B).await["healthy"], true);
    assert_eq!(peer_view(&bridge, B).await["host"], B_HOST);

    b.shut_down().await;
    let message = status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
    assert!(message.contains(&format!("{B_NAME}: ")), "{message}");
    // At once because of the failed request, and later because of failed polls.
    for _ in 0..3 {
        let view = peer_view(&bridge, B).await;
        assert_eq!(
            (&view["healthy"], &view["reachable"]),
            (&false.into(), &false.into())
        );
        assert!(view["problem"].is_string(), "{view}");
        status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
    }
    let line = format!("[+]peers ok: 1 of 2 reachable; unreachable: {B_NAME}: ");
    wait_for_readyz_text(&bridge, &line).await;
    // Everything else is served, so the bridge is ready.
    assert_eq!(readyz(&bridge).await.0, 200);
    assert_eq!(served_by(&cluster.get(&bridge, SHARED_PATH).await), OWN);
    assert_eq!(peer_up(&bridge, B, B_HOST).await, Some(0.0));
    assert_eq!(peer_up(&bridge, C, "host-of-apiserver-c").await, Some(1.0));

    b.apiserver.server.listen_again().await;
    wait_for_readyz_text(&bridge, "[+]peers ok: 2 of 2 reachable\n").await;
    assert_eq!(peer_up(&bridge, B, B_HOST).await, Some(1.0));
    b.withdraw_address();
    cluster.local.delete(LEASES, B);
    eventually("a removed peer has no series", TEST_TIMEOUT, async || {
        peer_up(&bridge, B, B_HOST).await.is_none()
    })
    .await;
}

#[tokio::test]
async fn a_failed_rerouted_request_is_counted_with_its_code() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);
    b.shut_down().await;
    for _ in 0..2 {
        status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
    }
    let metrics = scrape(&bridge).await;
    let of = |metrics: &Scrape, name: &str, code: &'static str| {
        let labels = [&[("code", code)], &LABELS_OF_NEW[..]].concat();
        metrics.value(name, &labels)
    };
    for name in [
        "apiserver_rerouted_request_total",
        "kubernetes_apiserver_rerouted_request_total",
    ] {
        assert_eq!(of(&metrics, name, "200"), Some(1.0), "{name}");
        assert_eq!(of(&metrics, name, "503"), Some(2.0), "{name}");
    }
    let to = |metrics: &Scrape, peer: &str, host: &str, code: &str| {
        let labels = [("peer", peer), ("host", host), ("code", code)];
        metrics.value("skewbridge_rerouted_requests_total", &labels)
    };
    assert_eq!(to(&metrics, B, B_HOST, "200"), Some(1.0));
    assert_eq!(to(&metrics, B, B_HOST, "503"), Some(2.0));

    // An error response of a peer itself is counted once, as a response of the peer.
    b.apiserver.server.listen_again().await;
    b.apiserver.set_hook(|recorded: &RecordedRequest| {
        (recorded.path() == NEW_PATH).then(|| Reply::new(403).body("no"))
    });
    cluster.wait_for_status(&bridge, NEW_PATH, 403).await;
    let refused = to(&scrape(&bridge).await, B, B_HOST, "403");
    assert_eq!(refused, Some(1.0));
}

#[tokio::test]
async fn discovery_polls_are_counted_by_peer_and_result_and_at_the_polled_bridge() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    let polls = async |result: &str| {
        let labels = [("peer", B), ("host", B_HOST), ("result", result)];
        let metrics = scrape(&bridge).await;
        metrics.value("skewbridge_peer_discovery_polls_total", &labels)
    };
    let request_count = b.apiserver.gateway_requests("/apis").len();
    assert!(request_count > 0);
    #[allow(clippy::cast_precision_loss)] // a handful
    let request_count = request_count as f64;
    assert_eq!(polls("ok").await, Some(request_count));
    b.shut_down().await;
    status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
    eventually("a poll has failed", TEST_TIMEOUT, async || {
        polls("failed").await.is_some_and(|count| count >= 1.0)
    })
    .await;

    // The polled side: requests of a peer to this bridge.
    let local_requests = async || {
        let metrics = scrape(&bridge).await;
        let value = |name| metrics.value(name, &[]);
        (
            value("aggregator_discovery_local_requests_total"),
            value("aggregator_discovery_nopeer_requests_total"),
        )
    };
    assert_eq!(local_requests().await, (Some(0.0), Some(0.0)));
    let headers = [
        ("x-kubernetes-peer-proxied", "true"),
        ("x-remote-user", "system:apiserver"),
        ("accept", accept::LOCAL_DOCUMENT),
    ];
    let poll = send_request(&cluster.pki.peer(), &bridge, "GET", "/apis", &headers, "").await;
    assert_eq!(poll.status, 200);
    assert_eq!(local_requests().await, (Some(1.0), Some(1.0)));
}

#[tokio::test]
#[allow(clippy::float_cmp)] // whole numbers
async fn merged_discovery_cache_hits_and_misses_are_counted() {
    let (cluster, [_b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    let value = async |name: &str| scrape(&bridge).await.value(name, &[]).unwrap();
    let hits = "aggregator_discovery_peer_aggregated_cache_hits_total";
    let misses = "aggregator_discovery_peer_aggregated_cache_misses_total";
    let local = "aggregator_discovery_local_requests_total";
    let nopeer = "aggregator_discovery_nopeer_requests_total";
    assert_eq!(value(hits).await, 0.0);
    let made = value(misses).await;
    assert!(made >= 1.0);
    let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let own = format!("{v2};profile=nopeer");
    let alice = cluster.alice();
    for turn in 1..=3 {
        let merged = send_request(&alice, &bridge, "GET", "/apis", &[("accept", v2)], "").await;
        assert!(merged.text().contains("volumeattributesclasses"));
        assert_eq!(value(hits).await, f64::from(turn));
    }
    for turn in 1..=2 {
        let alone = send_request(&alice, &bridge, "GET", "/apis", &[("accept", &own)], "").await;
        assert!(!alone.text().contains("volumeattributesclasses"));
        assert_eq!(value(local).await, f64::from(turn));
        assert_eq!(value(nopeer).await, f64::from(turn));
    }
    assert_eq!(
        value(hits).await,
        3.0,
        "the local document does not count as a hit"
    );
    assert_eq!(value(misses).await, made, "nothing has changed");
}

/// A port without a listener.
fn closed_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test]
async fn a_registry_that_was_never_read_is_reported_and_the_bridge_is_not_ready() {
    let cluster = ClusterFixture::new(&[]).await;
    cluster.local.lease(B, "one");
    let etcd = format!("http://127.0.0.1:{}", closed_port());
    let mut config = cluster.config();
    config.peers.registry = RegistryKind::Etcd;
    config.peers.etcd = Etcd {
        servers: vec![etcd.parse().unwrap()],
        prefix: "/registry".to_owned(),
        ..Etcd::default()
    };
    let bridge = start(&config);
    let failed = "[-]registry failed: peer addresses have not been read: --etcd-servers: ";
    let text = wait_for_readyz_text(&bridge, failed).await;
    let line = text
        .lines()
        .find(|line| line.contains("]registry "))
        .unwrap();
    let address = etcd.strip_prefix("http://").unwrap();
    for part in [
        "--etcd-servers",
        address,
        "start etcd, or correct the address",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    cluster.wait_for_status(&bridge, "/readyz", 500).await;
    eventually(
        "the main port reports it without the address",
        TEST_TIMEOUT,
        async || {
            let text = cluster.get(&bridge, "/readyz").await.text().clone();
            assert!(!text.contains(address), "{text}");
            text.contains("addresses of peers have not been read")
        },
    )
    .await;
    eventually("the cluster is known", TEST_TIMEOUT, async || {
        peers(&bridge).await["waitingFor"].is_null()
    })
    .await;
    let view = peers(&bridge).await;
    assert_eq!(view["registry"]["kind"], "etcd", "{view}");
    assert_eq!(view["registry"]["up"], false, "{view}");
    assert!(view["registry"]["since"].is_string(), "{view}");
    for text in [
        &view["registry"]["lastError"],
        &peer_view(&bridge, B).await["problem"],
    ] {
        let text = text.as_str().unwrap();
        assert!(text.contains("--etcd-servers: "), "{text}");
        assert!(text.contains(address), "{text}");
        assert!(!text.contains("published no address"), "{text}");
    }
    let up = scrape(&bridge)
        .await
        .value("skewbridge_peer_registry_up", &[]);
    assert_eq!(up, Some(0.0));
    // Clients get the reason too, without an address in it.
    let message = status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
    assert!(message.contains(B_NAME), "{message}");
    assert!(message.contains("registry of peer addresses"), "{message}");
    assert!(!message.contains(address), "{message}");
    assert_eq!(served_by(&cluster.get(&bridge, SHARED_PATH).await), OWN);
}

#[tokio::test]
async fn a_registry_that_fails_later_is_reported_and_the_bridge_stays_ready() {
    let cluster = ClusterFixture::new(&[]).await;
    let b = cluster.peer(B, &[NEW]).await;
    let address = b.apiserver.server.addr();
    let entry = format!("peers: [{{identity: {B}, address: '{address}'}}]\n");
    let path = cluster.pki.dir.write("peers.yaml", &entry);
    let mut config = cluster.config();
    config.peers.registry = RegistryKind::File(path);
    let bridge = start(&config);
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    wait_for_readyz_text(&bridge, "[+]registry ok: file\n").await;
    let metric = async || {
        scrape(&bridge)
            .await
            .value("skewbridge_peer_registry_up", &[])
    };
    assert_eq!(metric().await, Some(1.0));
    assert_eq!(peers(&bridge).await["registry"]["lastError"], Value::Null);

    cluster.pki.dir.write("peers.yaml", "peers: [{identity");
    let text = wait_for_readyz_text(
        &bridge,
        "[+]registry ok: file fails, known addresses stay in use",
    )
    .await;
    for part in ["--peer-registry", "peers.yaml"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(readyz(&bridge).await.0, 200);
    assert_eq!(metric().await, Some(0.0));
    let view = peers(&bridge).await;
    assert_eq!(view["registry"]["up"], false, "{view}");
    assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);

    cluster.pki.dir.write("peers.yaml", &entry);
    wait_for_readyz_text(&bridge, "[+]registry ok: file\n").await;
    assert_eq!(metric().await, Some(1.0));
}

/// Without its Lease, other bridges do not know the server.
#[tokio::test]
async fn a_lease_that_the_bridge_cannot_renew_fails_the_registry_check() {
    let cluster = ClusterFixture::new(&[]).await;
    cluster.local.delete(LEASES, OWN);
    let refuse = |method: &'static str| {
        cluster.local.set_hook(move |recorded: &RecordedRequest| {
            let is_write = recorded.method == method && recorded.path().starts_with(LEASES);
            is_write.then(|| Reply::new(403).body("no right to write leases"))
        });
    };
    refuse("POST");
    let bridge = start(&cluster.config());
    let metric = async || {
        scrape(&bridge)
            .await
            .value("skewbridge_peer_registry_up", &[])
    };
    for (method, lease) in [("POST", false), ("PUT", true)] {
        refuse(method);
        let what = format!("the failed {method} is reported");
        // The Lease is written every ten seconds.
        eventually(&what, 3 * TEST_TIMEOUT, async || {
            peers(&bridge).await["registry"]["up"] == false
        })
        .await;
        assert_eq!(cluster.local.object(LEASES, OWN).is_some(), lease);
        let view = peers(&bridge).await;
        let error = view["registry"]["lastError"].as_str().unwrap();
        for part in [
            OWN,
            "no right to write leases",
            "--bridge-user",
            "create and update",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let text = wait_for_readyz_text(&bridge, "[+]registry ok: memory fails").await;
        assert!(text.contains("no right to write leases"), "{text}");
        assert_eq!(metric().await, Some(0.0));

        cluster.local.remove_hook();
        eventually("the Lease is written", 3 * TEST_TIMEOUT, async || {
            peers(&bridge).await["registry"]["up"] == true
        })
        .await;
        wait_for_readyz_text(&bridge, "[+]registry ok: memory\n").await;
        assert_eq!(metric().await, Some(1.0));
    }
}

#[tokio::test]
async fn with_leases_as_the_registry_a_failed_watch_is_reported() {
    let cluster = ClusterFixture::new(&[]).await;
    let mut config = cluster.config();
    config.peers.registry = RegistryKind::Leases;
    config.peers.cidrs = vec!["127.0.0.0/8".parse().unwrap()];
    cluster.local.set_hook(|recorded: &RecordedRequest| {
        (recorded.path() == LEASES).then(|| Reply::new(403).body("no right to list leases"))
    });
    let bridge = start(&config);
    let text = wait_for_readyz_text(
        &bridge,
        "[-]registry failed: peer addresses have not been read: ",
    )
    .await;
    assert!(text.contains("no right to list leases"), "{text}");
    assert_eq!(peers(&bridge).await["registry"]["kind"], "leases");
    cluster.local.remove_hook();
    wait_for_readyz_text(&bridge, "[+]registry ok: leases\n").await;
}
