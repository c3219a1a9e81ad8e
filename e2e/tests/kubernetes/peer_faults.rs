//! The only server of an API is killed and restarted; and a bridge whose feature gate is off.
//!
//! No client gets "not found" for an API that a server of the cluster serves, as long as its
//! identity Lease exists: it gets a 503 Status with `Retry-After` while none of those servers
//! is reachable. A server that returns is used again within seconds.

use std::time::{Duration, Instant};

use serde_json::Value;
use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ServerSpec, User, VersionSpecificApi, Via,
    old_and_new_versions,
};
use skewbridge_testkit::eventually;
use tokio::time::sleep;

use crate::peer_pair::{
    NEW, OLD, PEER_DISCOVERY_TIMEOUT, etcd, lease_of, lease_path, record_keys,
    wait_until_published, wait_until_served,
};

/// How long a server that has returned may stay unused.
const REUSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the API of a dead server is polled: longer than the lifetime of its record in etcd.
const DEAD_POLL_DURATION: Duration = Duration::from_secs(25);

/// The interval between two requests of a client: a steady load, not a flood.
const REQUEST_INTERVAL: Duration = Duration::from_millis(50);

const GATE_OFF: &str = "--feature-gates=UnknownVersionInteroperabilityProxy=false";

/// Asserts a 503 Status with a retry delay.
async fn assert_unavailable(client: &mut HttpClient, path: &str) {
    let response = client.send(&Request::get(path)).await.expect("an answer");
    let text = response.text();
    assert_eq!(response.status, 503, "{text}");
    assert!(response.header("retry-after").is_some(), "{text}");
    let status: Value = serde_json::from_slice(&response.body).expect("a Status");
    assert_eq!(status["kind"], "Status", "{text}");
    assert_eq!(status["code"], 503, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_of_a_dead_server_is_unavailable_until_its_lease_is_gone() {
    let Some(versions) = old_and_new_versions() else {
        return;
    };
    let servers = versions.map(|version| ServerSpec::of(&version).peer());
    let mut plane = ControlPlane::start(&servers).await;
    let path = VersionSpecificApi::POLICIES.path;
    wait_until_served(
        &plane,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;

    plane.stop_server(NEW, "KILL");
    plane.stop_bridge(NEW, "KILL");
    let killed = Instant::now();
    let mut responses = 0;
    let mut clients =
        [Protocol::H1, Protocol::H2].map(|it| plane.http_client(OLD, Via::Bridge, it));
    while killed.elapsed() < DEAD_POLL_DURATION {
        for client in &mut clients {
            assert_unavailable(client, path).await;
            responses += 1;
        }
        sleep(REQUEST_INTERVAL).await;
    }
    println!("{responses} times 503 in {:.1?}", killed.elapsed());
    assert!(responses > 200);
    let lease = lease_path(&plane, NEW);
    assert_eq!(plane.status(OLD, Via::Server, &lease).await, 200);

    let words = ["delete", "--raw", &lease];
    let deleted = plane.kubectl(OLD, Via::Bridge, User::Admin, &words).await;
    assert_eq!(deleted.code, Some(0), "{deleted:?}");
    let since = Instant::now();
    eventually("the API is not found", REUSE_TIMEOUT, async || {
        plane.status(OLD, Via::Bridge, path).await == 404
    })
    .await;
    println!("404 after {:.1?}", since.elapsed());

    plane.start_server(NEW);
    plane.start_bridge(NEW);
    plane.wait_until_ready().await;
    let since = Instant::now();
    wait_until_served(&plane, &VersionSpecificApi::POLICIES, REUSE_TIMEOUT).await;
    println!("found again {:.1?} after readiness", since.elapsed());
}

#[tokio::test]
async fn without_the_gate_a_bridge_is_a_plain_gateway() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let servers = [
        ServerSpec::of(&old).peer().bridge_flag(GATE_OFF),
        ServerSpec::of(&new).peer(),
    ];
    let mut plane = ControlPlane::start(&servers).await;
    wait_until_published(&mut plane, NEW).await;
    let etcd = etcd(&mut plane);
    let no_record = async |plane: &ControlPlane| {
        // The servers themselves write none before 1.36.
        for key in record_keys(plane, OLD) {
            assert!(etcd.get(key.as_bytes()).await.unwrap().is_none(), "{key}");
        }
    };
    let path = VersionSpecificApi::POLICIES.path;
    assert_eq!(plane.status(OLD, Via::Server, path).await, 404);
    assert_eq!(plane.status(OLD, Via::Bridge, path).await, 404);
    no_record(&plane).await;

    plane.stop_bridge(OLD, "TERM");
    plane.remove_bridge_flag(OLD, GATE_OFF);
    plane.start_bridge(OLD);
    plane.wait_until_ready().await;
    wait_until_served(
        &plane,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    wait_until_published(&mut plane, OLD).await;

    let before = lease_of(&plane, OLD).await;
    plane.stop_bridge(OLD, "TERM");
    no_record(&plane).await;
    let after = lease_of(&plane, OLD).await;
    // It is renewed continuously.
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert_eq!(
        before["metadata"]["annotations"],
        after["metadata"]["annotations"]
    );
    assert_eq!(
        before["spec"]["holderIdentity"],
        after["spec"]["holderIdentity"]
    );
}
