//! Addresses that are not in etcd: in annotations of identity Leases, and in a file.

use std::time::Duration;

use serde_json::Value;
use skewbridge_e2e::{ControlPlane, ServerSpec, VersionSpecificApi, Via, old_and_new_versions};
use skewbridge_testkit::eventually;

use crate::peer_pair::{
    NEW, OLD, PEER_DISCOVERY_TIMEOUT, debug_peers, etcd, identity, lease_of, record_keys,
    wait_until_served, wait_until_served_by,
};

/// Two renewals of a Lease.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(30);

const SERVER_ADDRESS_ANNOTATION: &str = "kubernetes.io/peer-advertise-address";
const BRIDGE_ADDRESS_ANNOTATION: &str = "skewbridge.io/peer-advertise-address";
const SERVED_ANNOTATION: &str = "skewbridge.io/served";

fn servers(registry: &str) -> Option<[ServerSpec; 2]> {
    let registry = format!("--peer-registry={registry}");
    let server = |version: String| {
        ServerSpec::of(&version)
            .peer()
            .bridge_flag(&registry)
            .bridge_flag("--peer-cidrs=127.0.0.0/8")
    };
    Some(old_and_new_versions()?.map(server))
}

async fn assert_servers_reach_each_other(plane: &ControlPlane) {
    for special in [
        VersionSpecificApi::POLICIES,
        VersionSpecificApi::TAINT_RULES,
    ] {
        assert_eq!(plane.status(OLD, Via::Server, special.path).await, 404);
        wait_until_served(plane, &special, PEER_DISCOVERY_TIMEOUT).await;
    }
    let special = VersionSpecificApi::ATTRIBUTES_CLASSES;
    assert_eq!(plane.status(NEW, Via::Server, special.path).await, 404);
    wait_until_served_by(plane, NEW, &special, PEER_DISCOVERY_TIMEOUT).await;
}

async fn assert_no_record_in_etcd(plane: &mut ControlPlane) {
    let etcd = etcd(plane);
    for server in [OLD, NEW] {
        let [_, of_the_bridge] = record_keys(plane, server);
        let value = etcd.get(of_the_bridge.as_bytes()).await.unwrap();
        assert!(value.is_none(), "{of_the_bridge}");
    }
}

#[tokio::test]
async fn peers_are_found_by_their_leases() {
    let Some(servers) = servers("leases") else {
        return;
    };
    let mut plane = ControlPlane::start(&servers).await;
    assert_servers_reach_each_other(&plane).await;
    assert_no_record_in_etcd(&mut plane).await;

    eventually(
        "the served record of the server is on its Lease",
        PEER_DISCOVERY_TIMEOUT,
        async || {
            lease_of(&plane, NEW).await["metadata"]["annotations"][SERVED_ANNOTATION].is_string()
        },
    )
    .await;

    // The new server publishes its own address, which does not create a loop between the two.
    let renewals = async |plane: &ControlPlane| {
        let lease = lease_of(plane, NEW).await;
        let annotations = &lease["metadata"]["annotations"];
        let [server, bridge] = [SERVER_ADDRESS_ANNOTATION, BRIDGE_ADDRESS_ANNOTATION]
            .map(|it| annotations[it].clone());
        assert_eq!(server, plane.servers[NEW].address.to_string(), "{lease}");
        assert_eq!(bridge, plane.servers[NEW].bridge.to_string(), "{lease}");
        assert!(annotations[SERVED_ANNOTATION].is_string(), "{lease}");
        lease["spec"]["renewTime"].clone()
    };
    let mut seen = vec![renewals(&plane).await];
    eventually("the Lease is renewed twice", RENEWAL_TIMEOUT, async || {
        let renewed = renewals(&plane).await;
        if !seen.contains(&renewed) {
            seen.push(renewed);
        }
        seen.len() > 2
    })
    .await;

    // The annotations of the bridge are removed with it, and the server is contacted directly.
    plane.stop_bridge(NEW, "TERM");
    let lease = lease_of(&plane, NEW).await;
    let annotations = &lease["metadata"]["annotations"];
    assert_eq!(
        annotations[BRIDGE_ADDRESS_ANNOTATION],
        Value::Null,
        "{lease}"
    );
    wait_until_served(
        &plane,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
}

#[tokio::test]
async fn peers_are_found_by_a_file() {
    let Some(servers) = servers("file:peers.yaml") else {
        return;
    };
    let mut plane = ControlPlane::prepare(&servers);
    plane.file("peers.yaml", "peers: []\n");
    plane.start_all();
    plane.wait_until_ready().await;
    assert_ne!(
        plane
            .status(OLD, Via::Bridge, VersionSpecificApi::POLICIES.path)
            .await,
        200
    );

    // All bridges read the same file.
    let entries = [OLD, NEW].map(|server| {
        let address = plane.servers[server].bridge;
        format!(
            "- identity: {}\n  address: {address}\n",
            identity(&plane, server)
        )
    });
    plane.file("peers.yaml", &format!("peers:\n{}", entries.concat()));
    assert_servers_reach_each_other(&plane).await;
    assert_no_record_in_etcd(&mut plane).await;

    // The Lease contains what a server serves, and no address.
    eventually(
        "the served record of the server is on its Lease",
        PEER_DISCOVERY_TIMEOUT,
        async || {
            lease_of(&plane, NEW).await["metadata"]["annotations"][SERVED_ANNOTATION].is_string()
        },
    )
    .await;
    let lease = lease_of(&plane, NEW).await;
    let annotations = &lease["metadata"]["annotations"];
    assert_eq!(
        annotations[BRIDGE_ADDRESS_ANNOTATION],
        Value::Null,
        "{lease}"
    );

    // A bridge that shuts down announces that in its Lease. Only the file contains the address of
    // its server.
    plane.stop_bridge(NEW, "TERM");
    let policies = VersionSpecificApi::POLICIES.path;
    let peer = async |plane: &ControlPlane| debug_peers(plane, OLD).await["peers"][0].clone();
    eventually(
        "the departure of the bridge is known",
        PEER_DISCOVERY_TIMEOUT,
        async || peer(&plane).await["state"] == "bridge-left",
    )
    .await;
    assert_eq!(plane.status(OLD, Via::Bridge, policies).await, 503);
    let server = plane.servers[NEW].address;
    let with_server = format!("{}  server: {server}\n", entries[1]);
    plane.file(
        "peers.yaml",
        &format!("peers:\n{}{with_server}", entries[0]),
    );
    wait_until_served(
        &plane,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    assert_eq!(peer(&plane).await["address"], server.to_string());

    // A server that the administrator removes from the file has left, too.
    plane.file("peers.yaml", &format!("peers:\n{}", entries[0]));
    eventually(
        "the removed server gets no requests",
        PEER_DISCOVERY_TIMEOUT,
        async || plane.status(OLD, Via::Bridge, policies).await == 503,
    )
    .await;
    let problem = peer(&plane).await["problem"].to_string();
    assert!(problem.contains("--peer-registry file"), "{problem}");
    plane.start_bridge(NEW);
    plane.file("peers.yaml", &format!("peers:\n{}", entries.concat()));
    plane.wait_until_ready().await;
    wait_until_served(
        &plane,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    assert_eq!(peer(&plane).await["state"], Value::Null);
}
