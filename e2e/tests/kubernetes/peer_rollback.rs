//! A partial rollback: a bridge is stopped by SIGTERM, and its kube-apiserver goes on. The
//! others never answer 404 for its APIs during the time of a rollout. Afterwards a server that
//! cannot be reached without its bridge counts as one that never had a bridge: 404, and not
//! 503 without end.

use std::time::{Duration, Instant};

use skewbridge_e2e::{Plane, Server, Special, Via, told_apart};
use skewbridge_peer_directory::peer_table::ROLLOUT_GRACE;
use skewbridge_testkit::eventually;

use crate::pair::{FOUND, NEW, OLD, debug_peers, identity, is_found, is_found_by};
use crate::watched::{Answers, WATCHED, watch};

/// Within which a server counts as one without a bridge after the time of a rollout.
const GIVEN_UP: Duration = Duration::from_secs(30);

/// The third server of a plane, another new one.
const THIRD: usize = 2;

/// What the old server alone serves.
const OLD_ONLY: Special = Special::ATTRIBUTES_CLASSES;

fn peers_file(plane: &Plane) {
    let entries = [OLD, NEW].map(|server| {
        let address = plane.servers[server].bridge;
        let identity = identity(plane, server);
        format!("- identity: {identity}\n  address: {address}\n")
    });
    plane.file("peers.yaml", &format!("peers:\n{}", entries.concat()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_that_leaves_makes_no_api_not_found_during_a_rollout() {
    let Some([old, new]) = told_apart() else {
        return;
    };
    let peer = |version: &str| Server::of(version).peer();
    let in_file = |version: &str| peer(version).bridge_flag("--peer-registry=file:peers.yaml");
    let mut direct = Plane::prepare(&[peer(&old), peer(&new)]);
    let mut three = Plane::prepare(&[peer(&old), peer(&new), peer(&new)]);
    let mut file = Plane::prepare(&[in_file(&old), in_file(&new)]);
    peers_file(&file);
    for plane in [&mut direct, &mut three, &mut file] {
        plane.run_all();
        plane.all_ready().await;
    }
    is_found(&direct, &Special::POLICIES, FOUND).await;
    is_found_by(&three, NEW, &OLD_ONLY, FOUND).await;
    is_found_by(&three, THIRD, &OLD_ONLY, FOUND).await;
    is_found_by(&file, NEW, &OLD_ONLY, FOUND).await;
    tokio::join!(
        served_directly(&mut direct),
        not_reachable(&mut three, &[NEW, THIRD], "three bridges"),
        not_reachable(&mut file, &[NEW], "addresses in a file"),
    );
}

/// Since 1.36 a server says itself where it is, and answers other hosts.
async fn served_directly(plane: &mut Plane) {
    plane.end_bridge(NEW, "TERM");
    let answers = watch(plane, OLD, Special::POLICIES.path, WATCHED).await;
    println!("served directly: {answers:?}");
    assert_eq!(answers.count(404), 0, "{answers:?}");
    assert!(answers.count(200) > 100, "{answers:?}");
    plane.run_bridge(NEW);
    plane.all_ready().await;
    is_found(plane, &Special::POLICIES, FOUND).await;
}

/// An older one does not, and listens on loopback.
async fn not_reachable(plane: &mut Plane, others: &[usize], what: &str) {
    let left = Instant::now();
    plane.end_bridge(OLD, "TERM");
    for server in others {
        eventually("it is known to have left", FOUND, async || {
            let peers = debug_peers(plane, *server).await["peers"].clone();
            let mut peers = peers.as_array().unwrap().iter();
            peers.any(|peer| peer["state"] == "bridge-left")
        })
        .await;
    }
    let shared = &*plane;
    let watched = async |server: usize| -> (Answers, Duration) {
        let answers = watch(shared, server, OLD_ONLY.path, WATCHED).await;
        let over = ROLLOUT_GRACE + GIVEN_UP;
        eventually("it counts as a server without a bridge", over, async || {
            shared.status(server, Via::Bridge, OLD_ONLY.path).await == 404
        })
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
        assert!(took < ROLLOUT_GRACE + GIVEN_UP, "{took:?}");
    }
    for server in others {
        let metrics = plane.admin(*server, "/metrics").await;
        assert!(metrics.contains("skewbridge_peers_without_bridge 1"));
        let bridge = plane.servers[*server].bridge_process.as_ref().unwrap();
        let log = bridge.log();
        assert!(log.contains("are not found from now on"), "{log}");
    }
    plane.run_bridge(OLD);
    plane.all_ready().await;
    for server in others {
        is_found_by(plane, *server, &OLD_ONLY, FOUND).await;
    }
}
