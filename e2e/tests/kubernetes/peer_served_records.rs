//! The APIs of a killed server stay known after a restart of the bridge that clients use.
//!
//! The only server of an API is killed, with or without its bridge; then the bridge that
//! clients use restarts. For two minutes the API is 503 and never 404: its server has a valid
//! Lease, and served records are in the registry and in state directories.

use std::time::{Duration, Instant};

use skewbridge_e2e::{ControlPlane, ServerSpec, VersionSpecificApi, Via, old_and_new_versions};
use skewbridge_testkit::eventually;

use crate::peer_pair::{NEW, OLD, PEER_DISCOVERY_TIMEOUT, etcd, identity, wait_until_served};
use crate::status_poll::{POLL_DURATION, poll};

/// How long a server that has returned may stay unused.
const REUSE_TIMEOUT: Duration = Duration::from_secs(15);

/// Waits until the registry contains what the new server serves.
async fn wait_until_recorded(plane: &mut ControlPlane) {
    let key = format!("/registry/skewbridge/served/{}", identity(plane, NEW));
    let etcd = etcd(plane);
    eventually(&key, PEER_DISCOVERY_TIMEOUT, async || {
        etcd.get(key.as_bytes()).await.unwrap().is_some()
    })
    .await;
}

async fn start_control_planes(old: &str, new: &str) -> [ControlPlane; 2] {
    let plane = |state: Option<&str>| {
        let server = ServerSpec::of(old).peer();
        let server = match state {
            Some(directory) => server.bridge_flag(&format!("--state-dir={directory}")),
            None => server,
        };
        [server, ServerSpec::of(new).peer()]
    };
    let mut start_control_planes = [
        ControlPlane::prepare(&plane(None)),
        ControlPlane::prepare(&plane(Some("state"))),
    ];
    for plane in &mut start_control_planes {
        plane.start_all();
    }
    for plane in &mut start_control_planes {
        plane.wait_until_ready().await;
        wait_until_served(plane, &VersionSpecificApi::POLICIES, PEER_DISCOVERY_TIMEOUT).await;
        wait_until_recorded(plane).await;
    }
    start_control_planes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_that_restarts_beside_a_dead_peer_never_responds_404() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let [mut bridge_runs, mut both_killed] = start_control_planes(&old, &new).await;
    bridge_runs.stop_server(NEW, "KILL");
    both_killed.stop_server(NEW, "KILL");
    both_killed.stop_bridge(NEW, "KILL");
    // With the state directory only: the registry is cleared.
    let key = format!(
        "/registry/skewbridge/served/{}",
        identity(&both_killed, NEW)
    );
    assert!(etcd(&mut both_killed).delete(key.as_bytes()).await.unwrap());
    for plane in [&mut bridge_runs, &mut both_killed] {
        plane.stop_bridge(OLD, "KILL");
        plane.start_bridge(OLD);
    }
    let path = VersionSpecificApi::POLICIES.path;
    let (one, other) = tokio::join!(
        poll(&bridge_runs, OLD, path, POLL_DURATION),
        poll(&both_killed, OLD, path, POLL_DURATION),
    );
    for (seen, plane) in [(one, "its bridge still runs"), (other, "both are dead")] {
        println!("{plane}: {seen:?}");
        assert_eq!(seen.count(404), 0, "{seen:?}");
        assert_eq!(seen.count(200), 0, "{seen:?}");
        assert!(seen.count(503) > 100, "{seen:?}");
    }
    // An unknown API is still 404.
    let unserved_path = "/apis/admissionregistration.k8s.io/v1/nothings";
    for plane in [&bridge_runs, &both_killed] {
        assert_eq!(plane.status(OLD, Via::Bridge, unserved_path).await, 404);
    }
    for plane in [&mut bridge_runs, &mut both_killed] {
        plane.start_server(NEW);
    }
    both_killed.start_bridge(NEW);
    for plane in [&mut bridge_runs, &mut both_killed] {
        plane.wait_until_ready().await;
        let since = Instant::now();
        wait_until_served(plane, &VersionSpecificApi::POLICIES, REUSE_TIMEOUT).await;
        println!("found again {:.1?} after readiness", since.elapsed());
    }
}
