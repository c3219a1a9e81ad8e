//! `--peer-registry=file:PATH`: an administrator maintains the addresses. Served records and
//! departure announcements of bridges are annotations of identity Leases; addresses in Leases are
//! ignored.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use skewbridge_gateway::config::{Config, RegistryKind};
use skewbridge_peer_directory::ServedRecord;
use skewbridge_testkit::{RecordedRequest, Reply, TEST_TIMEOUT, eventually};

use crate::support::cluster::{
    ClusterFixture, NEW, NEW_PATH, OWN, peer_view, peers, served_by, status_message,
};
use crate::support::fake_apiserver::{FakeApiServer, LEASES};
use crate::support::pki::start;
use crate::support::served_records::{
    B, SERVED_ANNOTATION, age_departure_of_b, record_of_b, wait_until_b_is_known, with_state_dir,
};

/// An address without a listener.
const CLOSED_ADDRESS: &str = "127.0.0.1:1";

/// Writes the registry file; `b` holds the fields of B besides its identity, or `None` to omit B.
fn write_registry_file(cluster: &ClusterFixture, b: Option<&str>) -> Config {
    let text = match b {
        Some(fields) => format!("peers: [{{identity: {B}, {fields}}}]\n"),
        None => "peers: []\n".to_owned(),
    };
    let path = cluster.pki.dir.write("peers.yaml", text);
    let mut config = with_state_dir(cluster);
    config.peers.registry = RegistryKind::File(path);
    config
}

/// Writes the served record as an annotation of B's Lease.
fn annotate_lease_of_b(cluster: &ClusterFixture, record: &ServedRecord) {
    let mut lease = cluster.local.object(LEASES, B).unwrap();
    let text = STANDARD.encode(record.encode().unwrap());
    lease["metadata"]["annotations"][SERVED_ANNOTATION] = text.into();
    cluster.local.put(LEASES, lease);
}

async fn server_b(cluster: &ClusterFixture) -> FakeApiServer {
    let leaf = cluster.peer_ca.server(&["kubernetes.default.svc"]);
    cluster.server(B, &[NEW], leaf).await
}

async fn wait_until_departed(bridge: &skewbridge_gateway::Handle) {
    eventually(
        "the departure of its bridge is known",
        TEST_TIMEOUT,
        async || peer_view(bridge, B).await["state"] == "bridge-left",
    )
    .await;
}

#[tokio::test]
async fn a_bridge_announces_its_departure_on_its_lease_and_publishes_no_address() {
    let cluster = ClusterFixture::new(&[NEW]).await;
    let config = write_registry_file(&cluster, None);
    let refuse = |recorded: &RecordedRequest| {
        let is_patch = recorded.method == "PATCH" && recorded.path().starts_with(LEASES);
        is_patch.then(|| Reply::new(403).body("no right to patch leases"))
    };
    cluster.local.set_hook(refuse);
    let mut bridge = start(&config);
    let registry = async || peers(&bridge).await["registry"].clone();
    eventually("the registry is down", TEST_TIMEOUT, async || {
        let error = registry().await["lastError"].to_string();
        error.contains("--peer-registry=file") && error.contains("no right to patch leases")
    })
    .await;
    assert_eq!(registry().await["up"], false);
    cluster.local.remove_hook();

    let annotations = || {
        let lease = cluster.local.object(LEASES, OWN).unwrap();
        lease["metadata"]["annotations"].clone()
    };
    let record = || {
        let bytes = STANDARD.decode(annotations()[SERVED_ANNOTATION].as_str()?);
        ServedRecord::decode(&bytes.ok()?).ok()
    };
    eventually("the record is written", TEST_TIMEOUT, async || {
        record().is_some_and(|it| it.bridge_left_at.is_none())
    })
    .await;
    let address = "skewbridge.io/peer-advertise-address";
    assert_eq!(annotations()[address], Value::Null);
    eventually("the registry is up", TEST_TIMEOUT, async || {
        registry().await["up"] == true
    })
    .await;
    bridge.finish().await;
    assert!(record().is_some_and(|it| it.bridge_left_at.is_some()));
    drop(bridge);
    // The next bridge withdraws the announcement.
    let _bridge = start(&config);
    eventually("the announcement is withdrawn", TEST_TIMEOUT, async || {
        record().is_some_and(|it| it.bridge_left_at.is_none())
    })
    .await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn resources_of_a_departed_bridge_are_503_during_a_rollout_and_then_404() {
    let cluster = ClusterFixture::new(&[]).await;
    let mut record = record_of_b(&cluster).await;
    // Announced by a clock that is hours slow.
    record.bridge_left_at = Some(SystemTime::now() - Duration::from_hours(7));
    annotate_lease_of_b(&cluster, &record);
    let listed = format!("address: '{CLOSED_ADDRESS}'");
    // An address that is still in the file is tried for another minute after startup.
    for (fields, status) in [(Some(&*listed), 503), (None, 404)] {
        let bridge = start(&write_registry_file(&cluster, fields));
        wait_until_departed(&bridge).await;
        cluster.wait_for_status(&bridge, "/readyz", 200).await;
        assert_eq!(cluster.get(&bridge, NEW_PATH).await.status, status);
        if status == 503 {
            age_departure_of_b(&cluster, Duration::from_mins(6)).await;
        }
    }
    // The bridge returns.
    let b = server_b(&cluster).await;
    let config = write_registry_file(&cluster, Some(&format!("address: '{}'", b.server.addr())));
    let bridge = start(&config);
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    assert_eq!(peer_view(&bridge, B).await["state"], Value::Null);
}

#[tokio::test]
async fn after_its_bridge_has_departed_a_server_is_reached_at_the_address_in_the_file() {
    let cluster = ClusterFixture::new(&[]).await;
    let b = server_b(&cluster).await;
    let elsewhere = server_b(&cluster).await;
    let mut record = record_of_b(&cluster).await;
    record.bridge_left_at = Some(SystemTime::now());
    // An address that a writer of Leases could inject.
    record.server = Some(elsewhere.server.addr());
    record.bridge = Some(elsewhere.server.addr());
    annotate_lease_of_b(&cluster, &record);
    let server = b.server.addr();
    let fields = format!("address: '{CLOSED_ADDRESS}', server: '{server}'");
    let bridge = start(&write_registry_file(&cluster, Some(&fields)));
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);
    let view = peer_view(&bridge, B).await;
    assert_eq!(view["state"], "bridge-left");
    assert_eq!(view["address"], server.to_string());
    assert_eq!(view["reachable"], true, "{view}");

    // Without an entry in the file the server gets no requests.
    write_registry_file(&cluster, Some(&format!("address: '{CLOSED_ADDRESS}'")));
    cluster.wait_for_status(&bridge, NEW_PATH, 503).await;
    assert!(elsewhere.server.requests().is_empty());
}

/// Any writer of Leases could forge an announcement: a bridge that answers has not departed, and
/// keeps the address of the file.
#[tokio::test]
async fn a_departure_announcement_is_ignored_while_the_bridge_answers() {
    let cluster = ClusterFixture::new(&[]).await;
    let b = server_b(&cluster).await;
    let mut record = record_of_b(&cluster).await;
    record.bridge_left_at = Some(SystemTime::now());
    annotate_lease_of_b(&cluster, &record);
    let fields = format!("address: '{}'", b.server.addr());
    let bridge = start(&write_registry_file(&cluster, Some(&fields)));
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    eventually("the peer is reachable", TEST_TIMEOUT, async || {
        let view = peer_view(&bridge, B).await;
        view["reachable"] == true && view["state"] == Value::Null
    })
    .await;
    b.server.stop_listening().await;
    b.server.kill_connections().await;
    // A failed request triggers a poll.
    cluster.wait_for_status(&bridge, NEW_PATH, 503).await;
    wait_until_departed(&bridge).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn removing_an_address_from_the_file_is_a_departure() {
    let cluster = ClusterFixture::new(&[]).await;
    let b = server_b(&cluster).await;
    cluster.local.lease(B, "one");
    let address: SocketAddr = b.server.addr();
    let fields = format!("address: '{address}'");
    let bridge = start(&write_registry_file(&cluster, Some(&fields)));
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    let config = write_registry_file(&cluster, None);
    wait_until_departed(&bridge).await;
    let answer = cluster.get(&bridge, NEW_PATH).await;
    status_message(&answer, 503);
    let view = peer_view(&bridge, B).await;
    let problem = view["problem"].as_str().unwrap();
    assert!(problem.contains("the --peer-registry file has no address"));
    assert_eq!(view["address"], Value::Null);
    // The address is added again.
    write_registry_file(&cluster, Some(&fields));
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    assert_eq!(peer_view(&bridge, B).await["state"], Value::Null);

    write_registry_file(&cluster, None);
    wait_until_departed(&bridge).await;
    age_departure_of_b(&cluster, Duration::from_mins(6)).await;
    drop(bridge);
    let bridge = start(&config);
    wait_until_departed(&bridge).await;
    cluster.wait_for_status(&bridge, NEW_PATH, 404).await;
}

/// Without `--state-dir`, as with the other registries.
#[tokio::test]
async fn the_apis_of_a_dead_peer_are_known_from_its_lease() {
    let cluster = ClusterFixture::new(&[]).await;
    let record = record_of_b(&cluster).await;
    annotate_lease_of_b(&cluster, &record);
    let mut config = write_registry_file(&cluster, Some(&format!("address: '{CLOSED_ADDRESS}'")));
    config.peers.state_dir = None;
    let bridge = start(&config);
    wait_until_b_is_known(&bridge).await;
    cluster.wait_for_status(&bridge, "/readyz", 200).await;
    let message = status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
    assert!(message.contains("cannot connect"), "{message}");
    assert_eq!(peer_view(&bridge, B).await["state"], Value::Null);
}
