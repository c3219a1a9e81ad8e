//! The fixture itself: control planes start quickly, are complete, and leave no processes
//! behind.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ServerSpec, Via, control_planes, newest, oldest,
};

/// Much longer than it takes on two shared cores.
const START_TIMEOUT: Duration = Duration::from_mins(1);

const IDENTITIES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases\
     ?labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver";

#[tokio::test]
async fn a_control_plane_of_three_starts_quickly_and_leaves_no_processes() {
    let versions = control_planes().swap_remove(0);
    let versions = [oldest(&versions), newest(&versions), newest(&versions)];
    let start = Instant::now();
    let plane = ControlPlane::start(&versions.map(ServerSpec::of)).await;
    let elapsed = start.elapsed();
    println!(
        "{versions:?} were ready after {:.1} s",
        elapsed.as_secs_f64()
    );
    assert!(elapsed < START_TIMEOUT, "{elapsed:?}");

    each_server_has_its_own_identity(&plane).await;

    let processes: Vec<_> = plane
        .process_ids()
        .into_iter()
        .map(proc_directory)
        .collect();
    // etcd, and each server with its bridge.
    assert_eq!(processes.len(), 1 + 2 * versions.len());
    for process in &processes {
        assert!(process.exists(), "{process:?} has ended");
    }
    drop(plane);
    for process in &processes {
        assert!(!process.exists(), "{process:?} is still there");
    }
}

async fn each_server_has_its_own_identity(plane: &ControlPlane) {
    for server in &plane.servers {
        let mut client =
            HttpClient::new(plane.client("admin"), server.at(Via::Bridge), Protocol::H2);
        let answer = client.send(&Request::get(IDENTITIES)).await.unwrap();
        let list: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        let leases = list["items"].as_array().unwrap();
        let holders: BTreeSet<_> = leases
            .iter()
            .map(|lease| lease["spec"]["holderIdentity"].as_str().unwrap())
            .collect();
        let all = plane.servers.len();
        assert_eq!((leases.len(), holders.len()), (all, all), "{list}");
    }
}

fn proc_directory(id: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{id}"))
}
