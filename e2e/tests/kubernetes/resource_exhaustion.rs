//! Unauthenticated clients that try to exhaust a bridge in front of a real kube-apiserver,
//! or to disturb other clients.

use std::time::Duration;

use skewbridge_e2e::{HttpClient, Protocol, Request, ResponseStream};
use skewbridge_testkit::TEST_TIMEOUT;
use skewbridge_testkit::h2frames::{self, kind};
use tokio::time::timeout;

use crate::resource_exhaustion_fixture::{
    ATTACK_CONNECTIONS, Attack, HeaderBomb, Medians, Observer, POST, PhaseMedians, bytes_read,
    observe_attack, open, receives_goaway, resident_bytes, send, start_server_and_bridge,
};

const MIB: u64 = 1 << 20;

/// What the bridge may buffer for all clients.
const BUFFER_BUDGET_BYTES: u64 = 64 * MIB;

/// The further memory of a connection: TLS with its buffers, HTTP/2 with 16 streams.
/// Without a budget a connection of the attack used 5 MiB.
const MAX_BYTES_PER_CONNECTION: u64 = 192 * 1024;

/// How much longer a request through the bridge may take than one that goes to kube-apiserver
/// at the same time. Without an attack it takes 1.3 to 2 times as long: the bridge of these
/// tests is built without optimisation.
const MAX_SLOWDOWN: u32 = 3;

/// The measurement error of a median on a machine that runs other tests.
const MEDIAN_TOLERANCE: Duration = Duration::from_millis(5);

/// The same while the attackers connect, and while they send 4 GiB, which the bridge decrypts on
/// the threads that also serve the user.
const ATTACK_MEDIAN_TOLERANCE: Duration = Duration::from_millis(25);

/// A stream is counted once a second, and one that is chosen for eviction ends when it is
/// counted next: until then the budget can be exceeded.
const MAX_EXCESS_BYTES: u64 = BUFFER_BUDGET_BYTES / 8;

#[tokio::test]
async fn anonymous_connections_get_goaway_as_from_kube_apiserver() {
    let (plane, bridge) = start_server_and_bridge().await;
    let server = plane.servers[0].address;
    for client in [plane.anonymous_client(), plane.client("jane")] {
        let direct = receives_goaway(&client, server).await;
        // Once for each worker, and once more.
        for _ in 0..4 {
            let bridged = receives_goaway(&client, bridge.address).await;
            assert_eq!(bridged, direct, "{:?}", client.identity.is_some());
        }
    }
    assert!(receives_goaway(&plane.anonymous_client(), bridge.address).await);
}

#[tokio::test]
async fn header_bombs_cut_no_watch_of_another_user() {
    let (plane, bridge) = start_server_and_bridge().await;
    let watch = Request::get(&format!("{POST}?watch=1"));
    let user = HttpClient::new(plane.client("admin"), bridge.address, Protocol::H2);
    let mut watches: Vec<ResponseStream> = Vec::new();
    for _ in 0..6 {
        watches.push(user.stream(&watch).await.unwrap());
    }
    let server = plane.servers[0].process.as_ref().unwrap().id();
    let before = bytes_read(server);
    for client in [plane.anonymous_client(), plane.client("jane")] {
        // Attackers try more often and are disconnected. A user may do it 20 times.
        let requests = if client.identity.is_some() { 20 } else { 200 };
        let mut io = open(&client, bridge.address, &[]).await;
        let mut bomb = HeaderBomb(1);
        for _ in 0..requests {
            if send(&mut io, bomb.request()).await.is_err() {
                break;
            }
        }
        // To the end of the connection, or to the last answer.
        let mut answers = 0;
        let reading = async {
            while answers < requests
                && let Ok(frame) = h2frames::read_frame(&mut io).await
            {
                answers += usize::from(frame.header.kind == kind::HEADERS);
            }
        };
        timeout(TEST_TIMEOUT, reading).await.expect("an end");
        println!("header bombs: {answers} of {requests} answered");
        if client.identity.is_some() {
            assert_eq!(answers, requests);
        }
    }
    // A megabyte each, with long values that are joined, which Go's HTTP/2 would not accept.
    let mut raw = HttpClient::new(plane.client("jane"), bridge.address, Protocol::H2);
    let mut large = Request::get("/api");
    for number in 0..500 {
        large = large.header("Cookie", &format!("c{number}={}", "v".repeat(2000)));
    }
    assert_eq!(raw.send(&large).await.unwrap().status, 431);

    let read = bytes_read(server) - before;
    println!("header bombs: kube-apiserver has read {} KiB", read >> 10);
    assert!(read < 64 * MIB, "{} MiB", read / MIB);

    // All six connections continue.
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"seen-by-all"}}"#;
    let create = Request::new("POST", POST).body("application/json", body);
    let mut admin = HttpClient::new(plane.client("admin"), bridge.address, Protocol::H2);
    assert_eq!(admin.send(&create).await.unwrap().status, 201);
    for watch in &mut watches {
        assert_eq!(watch.status, 200);
        let seen = async {
            let mut events = String::new();
            while !events.contains("seen-by-all") {
                let piece = watch.next().await.unwrap().expect("the watch was not cut");
                events.push_str(&String::from_utf8_lossy(&piece));
            }
        };
        timeout(TEST_TIMEOUT, seen).await.expect("the event");
    }
}

#[tokio::test]
async fn a_thousand_unauthenticated_connections_stay_within_the_budget_and_harm_no_user() {
    let (plane, bridge) = start_server_and_bridge().await;
    let mut observer = Observer::new(&plane, &bridge);
    observer.measure().await;
    let quiet = observer.measure().await.medians();
    println!("without an attack: {quiet:?}");

    // The baseline: the same attack on kube-apiserver directly.
    let attack = Attack::start(plane.anonymous_client(), plane.servers[0].address);
    let direct_attack = observe_attack(&attack, &mut observer, async || ()).await;
    println!("attack on kube-apiserver: {attack}; {direct_attack:?}");
    drop(attack);

    let (process, admin) = (bridge.process.id(), bridge.admin);
    let before = resident_bytes(process);
    let (mut most, mut most_counted) = (0, 0);
    let attack = Attack::start(plane.anonymous_client(), bridge.address);
    let bridged_attack = observe_attack(&attack, &mut observer, async || {
        most = most.max(resident_bytes(process));
        let counted = plane.metrics(admin).await;
        most_counted = most_counted.max(counted.sum("skewbridge_buffered_bytes", &[]));
    });
    let bridged_attack = bridged_attack.await;
    println!("attack on the bridge: {attack}; {bridged_attack:?}");
    let grown = most.saturating_sub(before);
    println!(
        "memory {} MiB and {} MiB more, {} KiB of it counted",
        before / MIB,
        grown / MIB,
        most_counted / 1024
    );
    let allowed = BUFFER_BUDGET_BYTES + MAX_EXCESS_BYTES;
    assert!(most_counted <= allowed, "{} MiB", most_counted / MIB);
    let allowed = BUFFER_BUDGET_BYTES + MAX_BYTES_PER_CONNECTION * ATTACK_CONNECTIONS as u64;
    assert!(grown <= allowed, "{} of {} MiB", grown / MIB, allowed / MIB);
    let PhaseMedians {
        connecting,
        sending,
        held,
    } = bridged_attack;
    for (phase, seen, slack) in [
        ("connecting", connecting, ATTACK_MEDIAN_TOLERANCE),
        ("sending", sending, ATTACK_MEDIAN_TOLERANCE),
        ("held", held, MEDIAN_TOLERANCE),
    ] {
        let Medians { bridged, direct } = seen;
        assert!(
            bridged <= direct * MAX_SLOWDOWN + slack,
            "{phase}: {bridged:?} through the bridge, {direct:?} beside it"
        );
    }
}
