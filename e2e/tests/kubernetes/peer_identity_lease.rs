//! Servers without an identity Lease, and bridges that do not know the identity of their
//! server.

use std::time::Duration;

use skewbridge_e2e::{
    ControlPlane, ServerSpec, VersionSpecificApi, Via, newest, old_and_new_versions, oldest,
    versions,
};
use skewbridge_testkit::eventually;

use crate::peer_pair::{
    NEW, OLD, PEER_DISCOVERY_TIMEOUT, debug_peers, identity, lease_of, lease_path,
    wait_until_served, wait_until_served_by,
};

/// For a bridge to detect that its server has no Lease, and to renew its own.
const LEASE_TIMEOUT: Duration = Duration::from_mins(1);

#[tokio::test]
async fn a_bridge_renews_the_lease_of_a_server_that_renews_none() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let servers = [
        ServerSpec::of(&old).peer().gate("APIServerIdentity", false),
        ServerSpec::of(&new).peer(),
    ];
    let mut plane = ControlPlane::start(&servers).await;
    let path = lease_path(&plane, OLD);
    eventually("the Lease exists", LEASE_TIMEOUT, async || {
        plane.status(NEW, Via::Server, &path).await == 200
    })
    .await;
    let lease = lease_of(&plane, OLD).await;
    let labels = &lease["metadata"]["labels"];
    assert_eq!(labels["apiserver.kubernetes.io/identity"], "kube-apiserver");
    assert_eq!(labels["kubernetes.io/hostname"], plane.servers[OLD].host);
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap();
    let expected = format!("{}_", identity(&plane, OLD));
    assert!(holder.starts_with(&expected), "{lease}");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 3600, "{lease}");

    wait_until_served(
        &plane,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    wait_until_served_by(
        &plane,
        NEW,
        &VersionSpecificApi::ATTRIBUTES_CLASSES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    eventually("the Lease is renewed", LEASE_TIMEOUT, async || {
        lease_of(&plane, OLD).await["spec"]["renewTime"] != lease["spec"]["renewTime"]
    })
    .await;
    let kept_by = async |server: usize| {
        let view = debug_peers(&plane, server).await;
        assert!(view["local"]["problem"].is_null(), "{view:#}");
        view["local"]["leaseKeptBy"].clone()
    };
    assert_eq!(kept_by(OLD).await, "skewbridge");
    assert_eq!(kept_by(NEW).await, "kube-apiserver");

    plane.stop_bridge(OLD, "TERM");
    assert_eq!(plane.status(NEW, Via::Server, &path).await, 404);
    plane.stop_bridge(NEW, "TERM");
    let lease = lease_path(&plane, NEW);
    assert_eq!(plane.status(NEW, Via::Server, &lease).await, 200);
}

/// As if a bridge did not have the host name of its server.
#[tokio::test]
#[ignore = "long: cargo xtask e2e --all"]
async fn an_identity_that_no_server_has_is_reported() {
    let versions = versions();
    for version in [oldest(&versions), newest(&versions)] {
        let server = ServerSpec::of(version)
            .peer()
            .bridge_flag("--apiserver-identity=apiserver-unknown");
        let plane = ControlPlane::start(&[server]).await;
        eventually(
            "the identity is reported as doubtful",
            LEASE_TIMEOUT,
            async || debug_peers(&plane, 0).await["local"]["problem"].is_string(),
        )
        .await;
        let view = debug_peers(&plane, 0).await;
        let problem = view["local"]["problem"].as_str().unwrap();
        println!("{version}: {problem}");
        let own = format!("{} ({})", identity(&plane, 0), plane.servers[0].host);
        for part in ["--apiserver-identity", "apiserver-unknown", &own] {
            assert!(problem.contains(part), "{part}: {problem}");
        }
        let ready = plane.admin_page(0, "/readyz?verbose").await;
        assert!(ready.contains(problem), "{ready}");
    }
}
