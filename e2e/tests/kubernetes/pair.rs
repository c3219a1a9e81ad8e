//! An old and a new server with bridges that are peers, and what they have
//! published.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use skewbridge_e2e::{Plane, Protocol, Request, Special, Via};
use skewbridge_etcd::Client;
use skewbridge_peer_directory::{AddressRecord, Identity};
use skewbridge_testkit::eventually;

/// From the last readiness to when everybody knows everybody.
pub(crate) const FOUND: Duration = Duration::from_secs(30);

/// The server through whose bridge everything is asked for.
pub(crate) const OLD: usize = 0;

/// The first of those that serve it.
pub(crate) const NEW: usize = 1;

/// Waits until the bridge of the old server reaches this.
pub(crate) async fn is_found(plane: &Plane, special: &Special, within: Duration) {
    is_found_by(plane, OLD, special, within).await;
}

/// Waits until the bridge of a server reaches this.
pub(crate) async fn is_found_by(plane: &Plane, server: usize, special: &Special, within: Duration) {
    let what = format!("{} through the bridge of {server}", special.path);
    eventually(&what, within, async || {
        plane.status(server, Via::Bridge, special.path).await == 200
    })
    .await;
}

pub(crate) fn identity(plane: &Plane, server: usize) -> Identity {
    Identity::of_hostname(&plane.servers[server].host)
}

/// Of the identity Lease of a server.
pub(crate) fn lease_path(plane: &Plane, server: usize) -> String {
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    format!("{leases}/{}", identity(plane, server))
}

/// The identity Lease of a server, as any server has it.
pub(crate) async fn lease_of(plane: &Plane, server: usize) -> Value {
    let mut client = plane.raw(OLD, Via::Server, Protocol::H2);
    let lease = client.send(&Request::get(&lease_path(plane, server))).await;
    let lease = lease.unwrap();
    assert_eq!(lease.status, 200, "{}", lease.text());
    serde_json::from_slice(&lease.body).unwrap()
}

/// What the bridge of a server tells of the others.
pub(crate) async fn debug_peers(plane: &Plane, server: usize) -> Value {
    serde_json::from_str(&plane.admin(server, "/debug/peers").await).unwrap()
}

/// A client of all members.
pub(crate) fn etcd(plane: &mut Plane) -> Client {
    let members = plane.etcd_members().iter();
    let endpoints = members.map(|member| format!("http://{}", member.address).parse().unwrap());
    Client::new(endpoints.collect(), None).unwrap()
}

/// The records of a server: its own, and that of its bridge.
pub(crate) fn keys(plane: &Plane, server: usize) -> [String; 2] {
    let identity = identity(plane, server);
    ["/registry", "/registry/skewbridge"].map(|prefix| AddressRecord::key(prefix, &identity))
}

/// Waits until the bridge of a server is where the others look for it.
pub(crate) async fn is_published(plane: &mut Plane, server: usize) {
    let address = plane.servers[server].bridge;
    for key in keys(plane, server) {
        points_to(plane, &key, address).await;
    }
}

pub(crate) async fn points_to(plane: &mut Plane, key: &str, address: SocketAddr) {
    let etcd = etcd(plane);
    eventually(key, FOUND, async || {
        let value = etcd.get(key.as_bytes()).await.unwrap();
        value.is_some_and(|it| AddressRecord::decode(key, &it.value).unwrap().address == address)
    })
    .await;
}
