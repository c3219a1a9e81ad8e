//! Peers that do not respond, and bridges that stop: 503 or a response for two minutes,
//! never 404.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::Value;
use skewbridge_e2e::{ControlPlane, ServerSpec, VersionSpecificApi, Via, old_and_new_versions};
use skewbridge_testkit::eventually;

use crate::peer_pair::{
    NEW, OLD, PEER_DISCOVERY_TIMEOUT, debug_peers, lease_path, wait_until_served,
    wait_until_served_by,
};
use crate::status_poll::{POLL_DURATION, poll};

/// How soon the first request that waits for a stopped peer detects it.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a later request to it takes on a busy machine.
const FAST_RESPONSE: Duration = Duration::from_secs(2);

/// The part of the two minutes in which a server is contacted without its bridge.
const DIRECT_DURATION: Duration = Duration::from_secs(20);

/// What the bridge of one server reports about the other.
async fn peer_state(plane: &ControlPlane, server: usize) -> Value {
    debug_peers(plane, server).await["peers"][0]["state"].clone()
}

/// The address of the new server's bridge does not respond, as behind a firewall: the kernel
/// accepts connections, and no program does.
fn unreachable_peer(old: &str, new: &str, firewall: &TcpListener) -> ControlPlane {
    let port = firewall.local_addr().unwrap().port();
    let servers = [
        ServerSpec::of(old).peer(),
        ServerSpec::of(new)
            .peer()
            .bridge_flag("--peer-advertise-ip=127.0.0.1")
            .bridge_flag(&format!("--peer-advertise-port={port}")),
    ];
    let mut plane = ControlPlane::prepare(&servers);
    plane.start_all();
    plane
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_peers_and_stopped_bridges_never_make_an_api_not_found() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let firewall = TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = [ServerSpec::of(&old).peer(), ServerSpec::of(&new).peer()];
    let behind_firewall = unreachable_peer(&old, &new, &firewall);
    let mut left = ControlPlane::prepare(&pair);
    let mut stopped = ControlPlane::prepare(&pair);
    left.start_all();
    stopped.start_all();
    for plane in [&behind_firewall, &left, &stopped] {
        plane.wait_until_ready().await;
    }
    wait_until_served(&left, &VersionSpecificApi::POLICIES, PEER_DISCOVERY_TIMEOUT).await;
    wait_until_served_by(
        &left,
        NEW,
        &VersionSpecificApi::ATTRIBUTES_CLASSES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    wait_until_served(
        &stopped,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;

    let ((), (), ()) = tokio::join!(
        a_peer_behind_a_firewall(&behind_firewall),
        a_bridge_leaves(&mut left),
        a_bridge_is_stopped(&stopped),
    );
}

async fn a_peer_behind_a_firewall(plane: &ControlPlane) {
    let path = VersionSpecificApi::POLICIES.path;
    eventually(
        "the APIs of the peer are known from the registry",
        PEER_DISCOVERY_TIMEOUT,
        async || plane.status(OLD, Via::Bridge, path).await == 503,
    )
    .await;
    let answers = poll(plane, OLD, path, POLL_DURATION).await;
    println!("behind a firewall: {answers:?}");
    assert_eq!(answers.count(404) + answers.count(200), 0, "{answers:?}");
    assert!(answers.count(503) > 30, "{answers:?}");
    assert!(answers.slowest_later < DETECTION_TIMEOUT, "{answers:?}");
}

async fn a_bridge_leaves(plane: &mut ControlPlane) {
    // Since 1.36 a server publishes its own address: it is contacted directly.
    plane.stop_bridge(NEW, "TERM");
    let answers = poll(
        plane,
        OLD,
        VersionSpecificApi::POLICIES.path,
        DIRECT_DURATION,
    )
    .await;
    println!("served without its bridge: {answers:?}");
    assert_eq!(answers.count(404), 0, "{answers:?}");
    // It publishes its address every 10 s.
    assert!(answers.count(200) > 10, "{answers:?}");
    plane.start_bridge(NEW);
    plane.wait_until_ready().await;
    wait_until_served_by(
        plane,
        NEW,
        &VersionSpecificApi::ATTRIBUTES_CLASSES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;

    // An older one does not, and listens on loopback.
    plane.stop_bridge(OLD, "TERM");
    eventually(
        "the departure of the bridge is known",
        PEER_DISCOVERY_TIMEOUT,
        async || peer_state(plane, NEW).await == "bridge-left",
    )
    .await;
    let path = VersionSpecificApi::ATTRIBUTES_CLASSES.path;
    let answers = poll(plane, NEW, path, POLL_DURATION).await;
    println!("without a bridge: {answers:?}");
    assert_eq!(answers.count(404) + answers.count(200), 0, "{answers:?}");
    assert!(answers.count(503) > 100, "{answers:?}");
    let metrics = plane.admin_page(NEW, "/metrics").await;
    assert!(metrics.contains("skewbridge_peers_without_bridge 1"));
    let log = plane.servers[NEW].bridge_process.as_ref().unwrap().log();
    assert!(log.contains("the bridge of a peer has departed"), "{log}");
    plane.start_bridge(OLD);
    plane.wait_until_ready().await;
    wait_until_served_by(
        plane,
        NEW,
        &VersionSpecificApi::ATTRIBUTES_CLASSES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    assert_eq!(peer_state(plane, NEW).await, Value::Null);

    // Before 1.35 a server leaves its Lease behind: its bridge deletes it.
    let lease = lease_path(plane, OLD);
    plane.stop_server(OLD, "TERM");
    assert_eq!(plane.status(NEW, Via::Server, &lease).await, 200);
    plane.stop_bridge(OLD, "TERM");
    assert_eq!(plane.status(NEW, Via::Server, &lease).await, 404);
    assert_eq!(plane.status(NEW, Via::Bridge, path).await, 503);
}

async fn a_bridge_is_stopped(plane: &ControlPlane) {
    let bridge = plane.servers[NEW].bridge_process.as_ref().unwrap();
    let path = VersionSpecificApi::POLICIES.path;
    bridge.signal("STOP");
    let answers = poll(plane, OLD, path, POLL_DURATION).await;
    println!("stopped: {answers:?}");
    bridge.signal("CONT");
    // When its address has expired in etcd, the 1.36 server behind it is contacted directly.
    assert_eq!(answers.count(404), 0, "{answers:?}");
    assert!(answers.count(503) > 0, "{answers:?}");
    assert!(answers.first < DETECTION_TIMEOUT, "{answers:?}");
    assert!(answers.slowest_later < FAST_RESPONSE, "{answers:?}");
    let since = Instant::now();
    wait_until_served(plane, &VersionSpecificApi::POLICIES, PEER_DISCOVERY_TIMEOUT).await;
    println!("found again {:.1?} after it was resumed", since.elapsed());
}
