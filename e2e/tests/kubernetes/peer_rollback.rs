//! A partial rollback: a bridge is stopped by SIGTERM, and its kube-apiserver keeps
//! running. The others never respond 404 for its APIs during a rollout. Afterwards a server
//! that is unreachable without its bridge counts as one that never had a bridge: 404, and
//! not 503 forever.

use std::time::{Duration, Instant};

use skewbridge_e2e::{ControlPlane, ServerSpec, VersionSpecificApi, Via, old_and_new_versions};
use skewbridge_peer_directory::peer_table::ROLLOUT_GRACE;
use skewbridge_testkit::eventually;

use crate::peer_pair::{
    NEW, OLD, PEER_DISCOVERY_TIMEOUT, debug_peers, identity, wait_until_served,
    wait_until_served_by,
};
use crate::status_poll::{POLL_DURATION, StatusCounts, poll};

/// How soon after the rollout period a server counts as one without a bridge.
const GIVE_UP_TIMEOUT: Duration = Duration::from_secs(30);

/// The third server of a control plane, another new one.
const THIRD_SERVER: usize = 2;

/// An API that only the old server serves.
const OLD_ONLY: VersionSpecificApi = VersionSpecificApi::ATTRIBUTES_CLASSES;

fn peers_file(plane: &ControlPlane) {
    let entries = [OLD, NEW].map(|server| {
        let address = plane.servers[server].bridge;
        let identity = identity(plane, server);
        format!("- identity: {identity}\n  address: {address}\n")
    });
    plane.file("peers.yaml", &format!("peers:\n{}", entries.concat()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_that_stops_makes_no_api_not_found_during_a_rollout() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let peer = |version: &str| ServerSpec::of(version).peer();
    let in_file = |version: &str| peer(version).bridge_flag("--peer-registry=file:peers.yaml");
    let mut direct = ControlPlane::prepare(&[peer(&old), peer(&new)]);
    let mut three = ControlPlane::prepare(&[peer(&old), peer(&new), peer(&new)]);
    let mut file = ControlPlane::prepare(&[in_file(&old), in_file(&new)]);
    peers_file(&file);
    for plane in [&mut direct, &mut three, &mut file] {
        plane.start_all();
        plane.wait_until_ready().await;
    }
    wait_until_served(
        &direct,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    wait_until_served_by(&three, NEW, &OLD_ONLY, PEER_DISCOVERY_TIMEOUT).await;
    wait_until_served_by(&three, THIRD_SERVER, &OLD_ONLY, PEER_DISCOVERY_TIMEOUT).await;
    wait_until_served_by(&file, NEW, &OLD_ONLY, PEER_DISCOVERY_TIMEOUT).await;
    tokio::join!(
        check_direct_service(&mut direct),
        check_unreachable(&mut three, &[NEW, THIRD_SERVER], "three bridges"),
        check_unreachable(&mut file, &[NEW], "addresses in a file"),
    );
}

/// Since 1.36 a server publishes its own address, and accepts requests of other hosts.
async fn check_direct_service(plane: &mut ControlPlane) {
    plane.stop_bridge(NEW, "TERM");
    let answers = poll(plane, OLD, VersionSpecificApi::POLICIES.path, POLL_DURATION).await;
    println!("served directly: {answers:?}");
    assert_eq!(answers.count(404), 0, "{answers:?}");
    assert!(answers.count(200) > 100, "{answers:?}");
    plane.start_bridge(NEW);
    plane.wait_until_ready().await;
    wait_until_served(plane, &VersionSpecificApi::POLICIES, PEER_DISCOVERY_TIMEOUT).await;
}

/// An older server does not, and listens on loopback.
async fn check_unreachable(plane: &mut ControlPlane, others: &[usize], what: &str) {
    let left = Instant::now();
    plane.stop_bridge(OLD, "TERM");
    for server in others {
        eventually(
            "the departure of the bridge is known",
            PEER_DISCOVERY_TIMEOUT,
            async || {
                let peers = debug_peers(plane, *server).await["peers"].clone();
                let mut peers = peers.as_array().unwrap().iter();
                peers.any(|peer| peer["state"] == "bridge-left")
            },
        )
        .await;
    }
    let shared = &*plane;
    let watched = async |server: usize| -> (StatusCounts, Duration) {
        let answers = poll(shared, server, OLD_ONLY.path, POLL_DURATION).await;
        let over = ROLLOUT_GRACE + GIVE_UP_TIMEOUT;
        eventually(
            "the server counts as one without a bridge",
            over,
            async || shared.status(server, Via::Bridge, OLD_ONLY.path).await == 404,
        )
        .await;
        (answers, left.elapsed())
    };
    let (first, last) = (others[0], others[others.len() - 1]);
    let (one, other) = tokio::join!(watched(first), watched(last));
    for (answers, took) in [one, other] {
        println!("{what}: {answers:?}, 404 after {took:.0?}");
        assert_eq!(answers.count(404) + answers.count(200), 0, "{answers:?}");
        assert!(answers.count(503) > 100, "{answers:?}");
        assert!(took >= ROLLOUT_GRACE, "{took:?}");
        assert!(took < ROLLOUT_GRACE + GIVE_UP_TIMEOUT, "{took:?}");
    }
    for server in others {
        let metrics = plane.admin_page(*server, "/metrics").await;
        assert!(metrics.contains("skewbridge_peers_without_bridge 1"));
        let bridge = plane.servers[*server].bridge_process.as_ref().unwrap();
        let log = bridge.log();
        assert!(log.contains("get 404 from now on"), "{log}");
    }
    plane.start_bridge(OLD);
    plane.wait_until_ready().await;
    for server in others {
        wait_until_served_by(plane, *server, &OLD_ONLY, PEER_DISCOVERY_TIMEOUT).await;
    }
}
