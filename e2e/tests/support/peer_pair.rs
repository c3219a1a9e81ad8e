//! An old and a new server with bridges that are peers, and their published records.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use skewbridge_e2e::{ControlPlane, Protocol, Request, VersionSpecificApi, Via};
use skewbridge_etcd::Client;
use skewbridge_peer_directory::{AddressRecord, Identity};
use skewbridge_testkit::eventually;

/// From the last readiness to the time when all servers know each other.
pub(crate) const PEER_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// The server through whose bridge clients send their requests.
pub(crate) const OLD: usize = 0;

/// The first of the servers that serve the API.
pub(crate) const NEW: usize = 1;

/// Waits until the bridge of the old server serves this API.
pub(crate) async fn wait_until_served(
    plane: &ControlPlane,
    special: &VersionSpecificApi,
    within: Duration,
) {
    wait_until_served_by(plane, OLD, special, within).await;
}

/// Waits until the bridge of a server serves this API.
pub(crate) async fn wait_until_served_by(
    plane: &ControlPlane,
    server: usize,
    special: &VersionSpecificApi,
    within: Duration,
) {
    let what = format!("{} through the bridge of {server}", special.path);
    eventually(&what, within, async || {
        plane.status(server, Via::Bridge, special.path).await == 200
    })
    .await;
}

pub(crate) fn identity(plane: &ControlPlane, server: usize) -> Identity {
    Identity::of_hostname(&plane.servers[server].host)
}

/// The path of the identity Lease of a server.
pub(crate) fn lease_path(plane: &ControlPlane, server: usize) -> String {
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    format!("{leases}/{}", identity(plane, server))
}

/// The identity Lease of a server.
pub(crate) async fn lease_of(plane: &ControlPlane, server: usize) -> Value {
    let mut client = plane.http_client(OLD, Via::Server, Protocol::H2);
    let lease = client.send(&Request::get(&lease_path(plane, server))).await;
    let lease = lease.unwrap();
    assert_eq!(lease.status, 200, "{}", lease.text());
    serde_json::from_slice(&lease.body).unwrap()
}

/// What the bridge of a server reports about the others.
pub(crate) async fn debug_peers(plane: &ControlPlane, server: usize) -> Value {
    serde_json::from_str(&plane.admin_page(server, "/debug/peers").await).unwrap()
}

/// A client of all members.
pub(crate) fn etcd(plane: &mut ControlPlane) -> Client {
    let members = plane.etcd_members().iter();
    let endpoints = members.map(|member| format!("http://{}", member.address).parse().unwrap());
    Client::new(endpoints.collect(), None).unwrap()
}

/// The keys of the records of a server: its own, and that of its bridge.
pub(crate) fn record_keys(plane: &ControlPlane, server: usize) -> [String; 2] {
    let identity = identity(plane, server);
    ["/registry", "/registry/skewbridge"].map(|prefix| AddressRecord::key(prefix, &identity))
}

/// Waits until the records of a server contain the address of its bridge.
pub(crate) async fn wait_until_published(plane: &mut ControlPlane, server: usize) {
    let address = plane.servers[server].bridge;
    for key in record_keys(plane, server) {
        wait_until_record_points_to(plane, &key, address).await;
    }
}

pub(crate) async fn wait_until_record_points_to(
    plane: &mut ControlPlane,
    key: &str,
    address: SocketAddr,
) {
    let etcd = etcd(plane);
    eventually(key, PEER_DISCOVERY_TIMEOUT, async || {
        let value = etcd.get(key.as_bytes()).await.unwrap();
        value.is_some_and(|it| AddressRecord::decode(key, &it.value).unwrap().address == address)
    })
    .await;
}
