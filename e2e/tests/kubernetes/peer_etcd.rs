//! etcd is away, crashes, or loses members: routing goes on from what is known,
//! and what bridges have published is there again when etcd is.

use std::time::{Duration, Instant};

use skewbridge_e2e::{Plane, Protocol, Raw, Request, Server, Special, Via, told_apart};
use skewbridge_etcd::{Client, Event};
use skewbridge_peer_directory::AddressRecord;
use skewbridge_testkit::eventually;
use tokio::time::{sleep, timeout};

use crate::pair::{FOUND, NEW, OLD, debug_peers, etcd, is_found, is_found_by, is_published, keys};

/// How long etcd is away.
const NO_ETCD: Duration = Duration::from_mins(1);

/// Between two requests of a client: a steady load, not a flood.
const PAUSE: Duration = Duration::from_millis(50);

/// As long as a record lives that nobody keeps alive.
const RECORD: Duration = Duration::from_secs(15);

/// For etcd to elect a leader and to end a lease, on a loaded machine.
const BOUND: Duration = Duration::from_mins(1);

/// For how many members etcd goes on if one is lost.
const MEMBERS: usize = 3;

fn servers() -> Option<[Server; 2]> {
    Some(told_apart()?.map(|version| Server::of(&version).peer()))
}

/// What the bridge of the old server is asked for: the new server has it in its
/// memory.
fn cached() -> Request {
    Request::get(&format!("{}?resourceVersion=0", Special::POLICIES.path))
}

fn clients(plane: &Plane) -> [Raw; 2] {
    [Protocol::H1, Protocol::H2].map(|it| plane.raw(OLD, Via::Bridge, it))
}

async fn everybody_is_found(plane: &mut Plane) {
    for special in [Special::POLICIES, Special::TAINT_RULES] {
        is_found(plane, &special, FOUND).await;
    }
    is_found_by(plane, NEW, &Special::ATTRIBUTES_CLASSES, FOUND).await;
    for server in [OLD, NEW] {
        is_published(plane, server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routing_goes_on_while_etcd_is_away() {
    let Some(servers) = servers() else { return };
    let mut plane = Plane::start(&servers).await;
    everybody_is_found(&mut plane).await;

    plane.etcd().suspend();
    let began = Instant::now();
    let mut clients = clients(&plane);
    let mut asked = 0;
    while began.elapsed() < NO_ETCD {
        for client in &mut clients {
            let response = client.send(&cached()).await.expect("an answer");
            let at = began.elapsed();
            assert_eq!(response.status, 200, "after {at:.1?}: {}", response.text());
            asked += 1;
        }
        sleep(PAUSE).await;
    }
    plane.etcd().resume();
    println!("{asked} times 200 in {:.1?}", began.elapsed());

    let since = Instant::now();
    everybody_is_found(&mut plane).await;
    is_written(&plane).await;
    println!("as before {:.1?} after etcd is back", since.elapsed());
    plane.all_ready().await;
}

/// It may be away for less time than records live: that they are kept alive is
/// seen by one that nobody keeps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: cargo xtask e2e --all"]
async fn what_was_published_outlives_a_crash_of_etcd() {
    let Some(servers) = servers() else { return };
    let mut plane = Plane::start(&servers).await;
    everybody_is_found(&mut plane).await;

    plane.etcd().kill();
    let began = Instant::now();
    let mut clients = clients(&plane);
    let mut asked = 0;
    while began.elapsed() < RECORD {
        for client in &mut clients {
            let response = client.send(&cached()).await.expect("an answer");
            assert_eq!(response.status, 200, "{}", response.text());
            asked += 1;
        }
        sleep(PAUSE).await;
    }
    println!("{asked} times 200 in {:.1?}", began.elapsed());
    plane.etcd().run();
    let since = Instant::now();
    let etcd = etcd(&mut plane);
    eventually("etcd is back", BOUND, async || etcd.get(b"/").await.is_ok()).await;
    everybody_is_found(&mut plane).await;
    is_written(&plane).await;
    println!("as before {:.1?} after etcd is back", since.elapsed());
    records_outlive_one_that_nobody_keeps(&plane, &etcd).await;
    they_are_peers_of_each_other(&plane).await;
    plane.all_ready().await;
}

/// A bridge goes on with the next member, so each is the one in use in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: cargo xtask e2e --all"]
async fn what_was_published_outlives_the_loss_of_any_member_of_etcd() {
    let Some(servers) = servers() else { return };
    let mut plane = Plane::prepare_on(MEMBERS, &servers);
    plane.run_all();
    plane.all_ready().await;
    everybody_is_found(&mut plane).await;
    for member in 0..MEMBERS {
        println!("without member {member}");
        plane.etcd_members()[member].kill();
        let etcd = etcd(&mut plane);
        let status = plane
            .status(
                OLD,
                Via::Bridge,
                &format!("{}?resourceVersion=0", Special::POLICIES.path),
            )
            .await;
        assert_eq!(status, 200);
        records_outlive_one_that_nobody_keeps(&plane, &etcd).await;
        they_are_peers_of_each_other(&plane).await;
        everybody_is_found(&mut plane).await;
        is_written(&plane).await;

        let lost = &mut plane.etcd_members()[member];
        lost.run();
        let address = format!("http://{}", lost.address).parse().unwrap();
        let lost = Client::new(vec![address], None).unwrap();
        eventually("the member is back", BOUND, async || {
            lost.get(b"/").await.is_ok()
        })
        .await;
    }
}

/// A record of ours that is not kept alive ends; those of the bridges were there
/// whenever etcd could be asked meanwhile, and are there after it.
async fn records_outlive_one_that_nobody_keeps(plane: &Plane, etcd: &Client) {
    let marker = b"/skewbridge-e2e/marker";
    let granted = async || {
        let lease = etcd.grant(RECORD).await.ok()?;
        let put = etcd.put(marker, b"", Some(lease.id)).await.ok()?;
        etcd.watch_prefix(marker, put.next()).await.ok()
    };
    let mut watch = None;
    eventually("etcd takes a record", BOUND, async || {
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
            records_are_there(plane, etcd).await;
            sleep(PAUSE).await;
        }
    };
    let first = async {
        tokio::select! {
            () = ended => {}
            () = kept => {}
        }
    };
    timeout(BOUND, first).await.expect("the record ends");
    records_are_there(plane, etcd).await;
}

async fn records_are_there(plane: &Plane, etcd: &Client) {
    for server in [OLD, NEW] {
        let address = plane.servers[server].bridge;
        let [_, of_the_bridge] = keys(plane, server);
        let value = etcd.get(of_the_bridge.as_bytes()).await.unwrap();
        let value = value.expect(&of_the_bridge);
        let record = AddressRecord::decode(&of_the_bridge, &value.value).unwrap();
        assert_eq!(record.address, address);
    }
}

async fn they_are_peers_of_each_other(plane: &Plane) {
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
async fn is_written(plane: &Plane) {
    let special = Special::TAINT_RULES;
    let object = special.object("written-again");
    let request = Request::new("POST", special.path).body("application/json", &object);
    let mut client = plane.raw(OLD, Via::Bridge, Protocol::H2);
    eventually("a write", FOUND, async || {
        let response = client.send(&request).await;
        // 409: an answer was late.
        response.is_ok_and(|it| matches!(it.status, 201 | 409))
    })
    .await;
}
