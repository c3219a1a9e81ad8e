//! etcd is unreachable, crashes, or loses members: routing continues from known state, and the
//! records of bridges exist again as soon as etcd is available.

use std::time::{Duration, Instant};

use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ServerSpec, VersionSpecificApi, Via,
    old_and_new_versions,
};
use skewbridge_etcd::{Client, Event};
use skewbridge_peer_directory::AddressRecord;
use skewbridge_testkit::eventually;
use tokio::time::{sleep, timeout};

use crate::peer_pair::{
    NEW, OLD, PEER_DISCOVERY_TIMEOUT, debug_peers, etcd, record_keys, wait_until_published,
    wait_until_served, wait_until_served_by,
};

/// How long etcd is unreachable.
const ETCD_OUTAGE: Duration = Duration::from_mins(1);

/// The interval between two requests of a client: a steady load, not a flood.
const REQUEST_INTERVAL: Duration = Duration::from_millis(50);

/// The lifetime of a record without keepalive.
const RECORD_LIFETIME: Duration = Duration::from_secs(15);

/// For etcd to elect a leader and to end a lease, on a loaded machine.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// The number of members with which etcd survives the loss of one.
const MEMBERS: usize = 3;

fn servers() -> Option<[ServerSpec; 2]> {
    Some(old_and_new_versions()?.map(|version| ServerSpec::of(&version).peer()))
}

/// The request to the bridge of the old server: the new server responds from its watch cache.
fn cached_list() -> Request {
    Request::get(&format!(
        "{}?resourceVersion=0",
        VersionSpecificApi::POLICIES.path
    ))
}

fn clients(plane: &ControlPlane) -> [HttpClient; 2] {
    [Protocol::H1, Protocol::H2].map(|it| plane.http_client(OLD, Via::Bridge, it))
}

async fn wait_until_all_are_peers(plane: &mut ControlPlane) {
    for special in [
        VersionSpecificApi::POLICIES,
        VersionSpecificApi::TAINT_RULES,
    ] {
        wait_until_served(plane, &special, PEER_DISCOVERY_TIMEOUT).await;
    }
    wait_until_served_by(
        plane,
        NEW,
        &VersionSpecificApi::ATTRIBUTES_CLASSES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    for server in [OLD, NEW] {
        wait_until_published(plane, server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routing_continues_while_etcd_is_unreachable() {
    let Some(servers) = servers() else { return };
    let mut plane = ControlPlane::start(&servers).await;
    wait_until_all_are_peers(&mut plane).await;

    plane.etcd().suspend();
    let started = Instant::now();
    let mut clients = clients(&plane);
    let mut responses = 0;
    while started.elapsed() < ETCD_OUTAGE {
        for client in &mut clients {
            let response = client.send(&cached_list()).await.expect("an answer");
            let at = started.elapsed();
            assert_eq!(response.status, 200, "after {at:.1?}: {}", response.text());
            responses += 1;
        }
        sleep(REQUEST_INTERVAL).await;
    }
    plane.etcd().resume();
    println!("{responses} times 200 in {:.1?}", started.elapsed());

    let since = Instant::now();
    wait_until_all_are_peers(&mut plane).await;
    wait_until_writable(&plane).await;
    println!("as before {:.1?} after etcd is back", since.elapsed());
    plane.wait_until_ready().await;
}

/// The outage may be shorter than the lifetime of records: a record without keepalive shows
/// that the others are kept alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: cargo xtask e2e --all"]
async fn records_survive_a_crash_of_etcd() {
    let Some(servers) = servers() else { return };
    let mut plane = ControlPlane::start(&servers).await;
    wait_until_all_are_peers(&mut plane).await;

    plane.etcd().kill();
    let started = Instant::now();
    let mut clients = clients(&plane);
    let mut responses = 0;
    while started.elapsed() < RECORD_LIFETIME {
        for client in &mut clients {
            let response = client.send(&cached_list()).await.expect("an answer");
            assert_eq!(response.status, 200, "{}", response.text());
            responses += 1;
        }
        sleep(REQUEST_INTERVAL).await;
    }
    println!("{responses} times 200 in {:.1?}", started.elapsed());
    plane.etcd().run();
    let since = Instant::now();
    let etcd = etcd(&mut plane);
    eventually("etcd is back", COMMAND_TIMEOUT, async || {
        etcd.get(b"/").await.is_ok()
    })
    .await;
    wait_until_all_are_peers(&mut plane).await;
    wait_until_writable(&plane).await;
    println!("as before {:.1?} after etcd is back", since.elapsed());
    records_outlive_one_without_keepalive(&plane, &etcd).await;
    assert_servers_are_peers(&plane).await;
    plane.wait_until_ready().await;
}

/// A bridge switches to the next member, so each member is in use in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: cargo xtask e2e --all"]
async fn records_survive_the_loss_of_any_etcd_member() {
    let Some(servers) = servers() else { return };
    let mut plane = ControlPlane::prepare_on(MEMBERS, &servers);
    plane.start_all();
    plane.wait_until_ready().await;
    wait_until_all_are_peers(&mut plane).await;
    for member in 0..MEMBERS {
        println!("without member {member}");
        plane.etcd_members()[member].kill();
        let etcd = etcd(&mut plane);
        let status = plane
            .status(
                OLD,
                Via::Bridge,
                &format!("{}?resourceVersion=0", VersionSpecificApi::POLICIES.path),
            )
            .await;
        assert_eq!(status, 200);
        records_outlive_one_without_keepalive(&plane, &etcd).await;
        assert_servers_are_peers(&plane).await;
        wait_until_all_are_peers(&mut plane).await;
        wait_until_writable(&plane).await;

        let lost = &mut plane.etcd_members()[member];
        lost.run();
        let address = format!("http://{}", lost.address).parse().unwrap();
        let lost = Client::new(vec![address], None).unwrap();
        eventually("the member is back", COMMAND_TIMEOUT, async || {
            lost.get(b"/").await.is_ok()
        })
        .await;
    }
}

/// A test record without keepalive expires; those of the bridges exist whenever etcd
/// responds meanwhile, and afterwards.
async fn records_outlive_one_without_keepalive(plane: &ControlPlane, etcd: &Client) {
    let marker = b"/skewbridge-e2e/marker";
    let granted = async || {
        let lease = etcd.grant(RECORD_LIFETIME).await.ok()?;
        let put = etcd.put(marker, b"", Some(lease.id)).await.ok()?;
        etcd.watch_prefix(marker, put.next()).await.ok()
    };
    let mut watch = None;
    eventually("etcd stores a record", COMMAND_TIMEOUT, async || {
        watch = granted().await;
        watch.is_some()
    })
    .await;
    let mut watch = watch.unwrap();
    let ended = async {
        let events = watch.next().await.unwrap();
        assert!(matches!(&events[..], [Event::Delete { .. }]), "{events:?}");
    };
    let kept = async {
        loop {
            assert_records_exist(plane, etcd).await;
            sleep(REQUEST_INTERVAL).await;
        }
    };
    let first = async {
        tokio::select! {
            () = ended => {}
            () = kept => {}
        }
    };
    timeout(COMMAND_TIMEOUT, first)
        .await
        .expect("the record expires");
    assert_records_exist(plane, etcd).await;
}

async fn assert_records_exist(plane: &ControlPlane, etcd: &Client) {
    for server in [OLD, NEW] {
        let address = plane.servers[server].bridge;
        let [_, of_the_bridge] = record_keys(plane, server);
        let value = etcd.get(of_the_bridge.as_bytes()).await.unwrap();
        let value = value.expect(&of_the_bridge);
        let record = AddressRecord::decode(&of_the_bridge, &value.value).unwrap();
        assert_eq!(record.address, address);
    }
}

async fn assert_servers_are_peers(plane: &ControlPlane) {
    for (server, other) in [(OLD, NEW), (NEW, OLD)] {
        let view = debug_peers(plane, server).await;
        let peers = view["peers"].as_array().unwrap();
        assert_eq!(peers.len(), 1, "{view:#}");
        let peer = &peers[0];
        assert_eq!(peer["published"], true, "{view:#}");
        let address = plane.servers[other].bridge.to_string();
        assert_eq!(peer["address"], address, "{view:#}");
    }
}

/// Waits until an object can be created through the bridge of the old server.
async fn wait_until_writable(plane: &ControlPlane) {
    let special = VersionSpecificApi::TAINT_RULES;
    let object = special.object("written-again");
    let request = Request::new("POST", special.path).body("application/json", &object);
    let mut client = plane.http_client(OLD, Via::Bridge, Protocol::H2);
    eventually("a write", PEER_DISCOVERY_TIMEOUT, async || {
        let response = client.send(&request).await;
        // 409: an earlier response was late.
        response.is_ok_and(|it| matches!(it.status, 201 | 409))
    })
    .await;
}
