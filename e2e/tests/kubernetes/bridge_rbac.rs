//! Bridges whose own requests run as a user with only the rights in docs/rbac.md.

use std::time::Duration;

use serde_json::Value;
use skewbridge_e2e::{
    ControlPlane, ServerSpec, User, VersionSpecificApi, Via, old_and_new_versions,
};
use skewbridge_testkit::eventually;

use crate::peer_pair::{
    NEW, OLD, PEER_DISCOVERY_TIMEOUT, lease_of, lease_path, wait_until_served, wait_until_served_by,
};

const PAGE: &str = include_str!("../../../docs/rbac.md");

const USER: &str = "skewbridge";

/// Two renewals of a Lease.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(30);

/// The manifest in the documentation page.
fn manifest() -> &'static str {
    let (_, rest) = PAGE.split_once("```yaml\n").unwrap();
    rest.split_once("```").unwrap().0
}

/// The audit events of the bridge's own requests at a server.
fn own_requests(plane: &ControlPlane, server: usize) -> Vec<Value> {
    let log = std::fs::read_to_string(&plane.servers[server].audit_log).unwrap();
    log.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|entry| entry["user"]["username"] == USER)
        .collect()
}

#[tokio::test]
async fn the_documented_rights_are_enough_for_routing_discovery_and_leases() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let bridge = |version: &str| {
        ServerSpec::of(version)
            .peer()
            .bridge_flag("--bridge-user=skewbridge")
            .bridge_flag("--peer-registry=leases,endpoints")
            .bridge_flag("--peer-cidrs=127.0.0.0/8")
    };
    // The old server has no Lease of its own: its bridge creates it. The Lease of the new
    // server is annotated.
    let servers = [bridge(&old).gate("APIServerIdentity", false), bridge(&new)];
    let mut plane = ControlPlane::prepare(&servers);
    for server in [OLD, NEW] {
        plane.start_server(server);
    }
    for server in [OLD, NEW] {
        let address = plane.servers[server].address;
        plane.wait_for_ready("a kube-apiserver", address).await;
    }
    let file = plane.file("rbac.yaml", manifest());
    let applied = plane
        .kubectl(NEW, Via::Server, User::Admin, &["apply", "-f", &file])
        .await;
    assert_eq!(applied.code, Some(0), "{}", applied.stderr);
    for server in [OLD, NEW] {
        plane.start_bridge(server);
    }
    plane.wait_until_ready().await;

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
    let listed = plane
        .kubectl(OLD, Via::Bridge, User::Admin, &["api-resources"])
        .await;
    assert!(
        listed.stdout.contains("mutatingadmissionpolicies"),
        "{listed:?}"
    );

    let before = lease_of(&plane, OLD).await;
    eventually("the bridge renews the Lease", RENEWAL_TIMEOUT, async || {
        lease_of(&plane, OLD).await["spec"]["renewTime"] != before["spec"]["renewTime"]
    })
    .await;
    let annotations = &lease_of(&plane, NEW).await["metadata"]["annotations"];
    let address = plane.servers[NEW].bridge.to_string();
    assert_eq!(annotations["skewbridge.io/peer-advertise-address"], address);

    // The bridge requests the metrics of its server after some renewals.
    eventually(
        "the bridge has sent all kinds of requests",
        PEER_DISCOVERY_TIMEOUT * 2,
        async || {
            own_requests(&plane, OLD)
                .iter()
                .any(|entry| entry["requestURI"] == "/metrics")
        },
    )
    .await;
    // The old server does not serve these: its bridge reads them from the new one.
    let resource = "mutatingadmissionpolicies";
    let mut requests = own_requests(&plane, NEW).into_iter();
    assert!(requests.any(|it| it["verb"] == "watch" && it["objectRef"]["resource"] == resource));
    plane.stop_bridge(OLD, "TERM");
    let path = lease_path(&plane, OLD);
    assert_eq!(plane.status(NEW, Via::Server, &path).await, 404);

    for server in [OLD, NEW] {
        let own = own_requests(&plane, server);
        for verb in ["list", "watch", "get"] {
            assert!(own.iter().any(|it| it["verb"] == verb), "{server} {verb}");
        }
        for entry in own {
            let code = entry["responseStatus"]["code"].as_u64().unwrap_or(200);
            assert!(code != 401 && code != 403, "{entry}");
            let groups = entry["user"]["groups"].to_string();
            assert!(!groups.contains("system:masters"), "{entry}");
        }
        // No request of the bridge runs with all rights.
        let log = std::fs::read_to_string(&plane.servers[server].audit_log).unwrap();
        let all_rights = log.lines().find(|line| {
            line.contains("\"userAgent\":\"skewbridge/") && line.contains("system:masters")
        });
        assert_eq!(all_rights, None);
    }
}
