//! When peers are polled and how long their Leases count.

use std::net::SocketAddr;

use proptest::prelude::*;
use skewbridge_k8s_api::request_info::{DecodedPath, RequestInfo};

use super::*;
use crate::peer::PeerLookup;
use crate::registry::AddressOrigin;

/// Events, in any order.
#[derive(Debug, Clone, Copy)]
enum Step {
    Lease,
    Address,
    Tick,
}

proptest! {
    /// kube-apiserver drops a peer whose Lease appears before its address.
    #[test]
    fn a_peer_is_polled_regardless_of_the_order_of_lease_and_address(
        steps in proptest::collection::vec(
            prop_oneof![Just(Step::Lease), Just(Step::Address), Just(Step::Tick)], 0..40),
    ) {
        let mut at = Instant::now();
        let mut table = PeerTable::new(identity(LOCAL));
        let (mut leased, mut addressed, mut fetched) = (false, false, 0);
        for step in steps {
            at += Duration::from_secs(10);
            match step {
                Step::Lease => {
                    table.update_lease(lease_snapshot(A, "h", 1), at);
                    leased = true;
                }
                Step::Address => {
                    table.set_addresses(&addresses(&[(A, 1)]), at);
                    addressed = true;
                }
                Step::Tick => {}
            }
            for _ in due(&mut table, at) {
                fetched += 1;
                // Every poll fails.
                table.record_poll(&identity(A), Err("no".into()), at, SystemTime::now(), 0.5);
            }
            // Ten seconds later the peer is always polled again.
            prop_assert_eq!(fetched > 0, leased && addressed);
        }
    }
}

#[test]
fn the_last_successful_poll_is_used_while_the_lease_is_valid() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(
        vec![lease_snapshot(A, "h", 1), lease_snapshot(LOCAL, "h", 1)],
        at,
    );
    table.set_addresses(&addresses(&[(A, 1), (LOCAL, 2)]), at);
    assert_eq!(due(&mut table, at), [A], "a server does not poll itself");
    table.record_poll(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
    assert!(table.snapshot().peers[0].served.is_some());

    // The server restarts, is unreachable, and its address expires.
    table.update_lease(lease_snapshot(A, "another", 2), at);
    assert_eq!(due(&mut table, at), [A]);
    table.record_poll(
        &identity(A),
        Err("refused".into()),
        at,
        SystemTime::now(),
        0.0,
    );
    table.set_addresses(&addresses(&[]), at);
    let peer = &table.snapshot().peers[0];
    assert!(peer.served.is_some());
    assert!(peer.address.is_some() && !peer.published);
    assert_eq!(peer.problem.as_deref(), Some("refused"));

    table.remove_lease(&identity(A), at);
    assert!(table.snapshot().peers.is_empty());
    // After its return it is polled again.
    table.update_lease(lease_snapshot(A, "third", 3), at);
    assert!(table.snapshot().peers[0].served.is_none());
}

#[test]
fn a_poll_result_after_the_lease_has_ended_is_ignored() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    table.set_addresses(&addresses(&[(A, 1)]), at);
    assert_eq!(due(&mut table, at), [A]);
    table.remove_lease(&identity(A), at);
    table.record_poll(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
    table.update_lease(lease_snapshot(A, "another", 2), at);
    assert!(table.snapshot().peers[0].served.is_none());
    assert_eq!(due(&mut table, at), [A], "the server is polled at once");
}

/// Since 1.35 a server deletes its Lease when it shuts down, while its bridge keeps running.
#[test]
fn a_server_that_restarts_behind_its_bridge_is_kept() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(LOCAL));
    let begin = |table: &mut PeerTable| {
        table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
        table.set_addresses(&addresses(&[(A, 1)]), at);
        table.take_due(at);
        table.record_poll(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
        table.remove_lease(&identity(A), at);
    };
    begin(&mut table);
    let peer = &table.snapshot().peers[0];
    assert!(peer.served.is_some() && peer.alive_until <= at);
    assert!(!table.expire(at));
    // After its return it is polled at once.
    table.update_lease(lease_snapshot(A, "another", 2), at);
    assert_eq!(due(&mut table, at), [A]);
    assert!(table.snapshot().peers[0].served.is_some());

    // Server and bridge shut down.
    let mut table = PeerTable::new(identity(LOCAL));
    begin(&mut table);
    table.set_addresses(&addresses(&[]), at);
    assert!(table.snapshot().peers.is_empty());

    // The server does not return.
    let mut table = PeerTable::new(identity(LOCAL));
    begin(&mut table);
    assert!(table.expire(at + RESTART_GRACE));
    assert!(table.snapshot().peers.is_empty());
}

#[test]
fn a_lease_that_is_neither_renewed_nor_deleted_expires() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    assert!(!table.expire(at + LEASE_DURATION / 2));
    assert!(table.expire(at + LEASE_DURATION));
    assert!(table.snapshot().peers.is_empty());
}

#[test]
fn a_server_without_an_address_is_awaited_for_a_limited_time() {
    let start = Instant::now();
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], start);
    let later = start + ADDRESS_GRACE + Duration::from_secs(1);
    table.update_lease(lease_snapshot(A, "h", 2), later);
    let awaited = |table: &PeerTable, at| table.snapshot().peers[0].is_awaited(at);
    assert!(awaited(&table, start));
    assert!(!awaited(&table, later), "it runs without peering");
    table.set_addresses(&addresses(&[(A, 1)]), later);
    assert!(awaited(&table, later), "it takes part in peering now");
}

#[test]
fn a_list_of_leases_removes_servers_that_are_not_in_it() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(LOCAL));
    assert!(!table.snapshot().leases_listed);
    table.set_leases(
        vec![lease_snapshot(A, "h", 1), lease_snapshot(B, "h", 1)],
        at,
    );
    assert!(table.snapshot().leases_listed);
    table.set_leases(vec![lease_snapshot(B, "h", 1)], at);
    let snapshot = table.snapshot();
    assert_eq!(snapshot.peers.len(), 1);
    assert!(snapshot.get(&identity(B)).is_some());
}

#[test]
fn only_an_observed_change_of_the_lease_proves_that_a_server_runs() {
    let start = Instant::now();
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], start);
    let later = start + Duration::from_secs(30);
    table.set_leases(vec![lease_snapshot(A, "h", 1)], later);
    let alive_until = |table: &PeerTable| table.snapshot().peers[0].alive_until;
    assert_eq!(alive_until(&table), start + RENEWAL_TIMEOUT);
    table.update_lease(lease_snapshot(A, "h", 2), later);
    assert_eq!(alive_until(&table), later + RENEWAL_TIMEOUT);
}

#[test]
fn a_new_address_is_polled_at_once_after_the_current_poll() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    table.set_addresses(&addresses(&[(A, 1)]), at);
    assert_eq!(due(&mut table, at), [A]);
    table.set_addresses(&addresses(&[(A, 2)]), at);
    assert!(due(&mut table, at).is_empty(), "one poll at a time");
    table.record_poll(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
    let again = table.take_due(at);
    assert_eq!(again[0].address.unwrap().port(), 2);
}

/// Its bridge has restarted at the same address; before 1.35 the Lease does not show that.
#[test]
fn an_address_that_is_published_again_is_polled_at_once() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    table.set_addresses(&addresses(&[(A, 1)]), at);
    table.take_due(at);
    table.record_poll(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
    table.set_addresses(&addresses(&[(A, 1)]), at);
    assert!(due(&mut table, at).is_empty(), "nothing has changed");
    table.set_addresses(&addresses(&[]), at);
    assert!(due(&mut table, at).is_empty(), "the address is withdrawn");
    table.set_addresses(&addresses(&[(A, 1)]), at);
    assert_eq!(due(&mut table, at), [A]);
    assert!(table.snapshot().peers[0].served.is_some());
}

#[test]
fn a_server_whose_restart_causes_no_event_is_polled_often() {
    let at = Instant::now();
    let etag = Some("\"a\"".to_owned());
    for (version, etag, soon) in [
        ("1.25.16", None, false),
        ("1.28.15", etag.clone(), true),
        ("1.34.4", etag.clone(), true),
        ("1.35.8", etag, false),
    ] {
        let mut table = PeerTable::new(identity(LOCAL));
        table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
        table.set_addresses(&addresses(&[(A, 1)]), at);
        table.take_due(at);
        let version = Some(version.parse().unwrap());
        let served = ServedApis {
            version,
            etags: [etag.clone(), etag],
            ..served()
        };
        table.record_poll(&identity(A), Ok(served), at, SystemTime::now(), 0.0);
        let later = at + Duration::from_secs(5);
        assert_eq!(!due(&mut table, later).is_empty(), soon, "{version:?}");
    }
}

/// Since 1.36 a server publishes its own address, even if it listens on loopback.
#[test]
fn the_address_of_a_server_is_not_taken_for_that_of_its_bridge() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let by_server = Addresses::from([(identity(A), AdvertisedAddress::by_server(address))]);
    let keys = |table: &PeerTable| table.snapshot().peers[0].record.serving_keys.len();
    let pinned = |left| {
        let mut all = records(None, left);
        let record = Arc::make_mut(all.get_mut(&identity(A)).unwrap());
        record.bridge = Some(address);
        record.serving_keys = vec![[7; 32]];
        all
    };
    let mut table = table_after_departure(None, at, wall);
    table.set_published_records(&pinned(Some(wall)), at);
    table.set_addresses(&by_server, at);
    let peer = &table.snapshot().peers[0];
    assert!(peer.record.bridge_left && peer.published);
    assert_eq!(peer.address, Some(address), "the server itself is polled");
    assert_eq!(keys(&table), 0, "the keys of the bridge do not apply");
    table.take_due(at);
    table.record_poll(&identity(A), Err("refused".into()), at, wall, 0.0);
    assert!(table.snapshot().peers[0].served.is_some());
    assert!(table.expire(at + ROLLOUT_GRACE));
    assert!(table.snapshot().peers[0].served.is_none());

    // A bridge of an older release writes no record that withdraws the announcement.
    table.set_addresses(&addresses(&[(A, 1)]), at);
    assert!(!table.snapshot().peers[0].record.bridge_left);
    assert_eq!(keys(&table), 0);
    table.set_published_records(&pinned(None), at);
    assert_eq!(keys(&table), 1);
    table.set_addresses(&by_server, at);
    assert_eq!(
        keys(&table),
        0,
        "the keys do not apply to the address of a server"
    );
}

/// Only a bridge needs the front-proxy certificate in addition to a token.
#[test]
fn an_address_belongs_to_a_bridge_only_if_a_bridge_has_answered_the_last_poll() {
    let at = Instant::now();
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let is_bridge = |table: &PeerTable| table.snapshot().peers[0].record.is_bridge;
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    let mut answers = |advertised: AdvertisedAddress, by_bridge| {
        table.set_addresses(&Addresses::from([(identity(A), advertised)]), at);
        let before = is_bridge(&table);
        table.recheck(&identity(A), at);
        table.take_due(at);
        let served = ServedApis {
            by_bridge,
            ..served()
        };
        table.record_poll(&identity(A), Ok(served), at, SystemTime::now(), 0.0);
        (before, is_bridge(&table))
    };
    let rows = [
        (
            AdvertisedAddress::by_bridge(address(1)),
            true,
            (false, true),
        ),
        // A kube-apiserver uses the address now.
        (
            AdvertisedAddress::by_bridge(address(1)),
            false,
            (true, false),
        ),
        (
            AdvertisedAddress::by_bridge(address(6)),
            true,
            (false, true),
        ),
        (
            AdvertisedAddress::by_server(address(2)),
            true,
            (false, false),
        ),
        (
            AdvertisedAddress::by_file(address(3), None),
            false,
            (false, false),
        ),
        (
            AdvertisedAddress::by_file(address(4), None),
            true,
            (false, true),
        ),
        // Another address that has not been polled yet.
        (
            AdvertisedAddress::by_file(address(5), None),
            false,
            (false, false),
        ),
    ];
    for (advertised, by_bridge, expected) in rows {
        assert_eq!(answers(advertised, by_bridge), expected, "{advertised:?}");
    }
    let advertised = AdvertisedAddress::by_bridge(address(7));
    assert_eq!(answers(advertised, true), (false, true));
    table.recheck(&identity(A), at);
    table.take_due(at);
    let failed = Err("no answer".to_owned());
    table.record_poll(&identity(A), failed, at, SystemTime::now(), 0.0);
    assert!(!is_bridge(&table), "another process may answer next");
}

/// A bridge that restarts with a wrong certificate for etcd can only read the Leases.
#[test]
fn a_running_server_is_awaited_until_the_registry_has_been_read() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let path = DecodedPath::new("/apis/example.io/v1/things").unwrap();
    let request = RequestInfo::parse(&http::Method::GET, &path, None);
    let answer = |table: &PeerTable, now| match table.snapshot().lookup(&request, now) {
        PeerLookup::Unknown(_) => "unknown",
        PeerLookup::NotServed => "not served",
        other => panic!("{other:?}"),
    };
    let mut table = PeerTable::new(identity(LOCAL));
    table.await_registry();
    for minute in 0..20 {
        let now = at(minute * 60);
        table.set_leases(
            vec![lease_snapshot(A, "h", u32::try_from(minute).unwrap())],
            now,
        );
        table.expire(now);
        assert_eq!(answer(&table, now), "unknown", "minute {minute}");
    }
    // A server whose Lease is not renewed does not count as running.
    assert_eq!(answer(&table, at(19 * 60 + 41)), "not served");
    // The usual timeouts begin with the first read.
    let read = at(20 * 60);
    table.mark_registry_read(read);
    // Later reads do not restart them.
    table.mark_registry_read(at(21 * 60));
    table.update_lease(lease_snapshot(A, "h", 100), read);
    assert_eq!(answer(&table, at(20 * 60 + 30)), "unknown");
    table.update_lease(lease_snapshot(A, "h", 101), at(21 * 60 + 1));
    assert_eq!(answer(&table, at(21 * 60 + 1)), "not served");
    // A server that has answered is not awaited, with or without the registry.
    let mut table = PeerTable::new(identity(LOCAL));
    table.await_registry();
    table.set_leases(vec![lease_snapshot(A, "h", 1)], start);
    table.set_addresses(&addresses(&[(A, 1)]), start);
    table.take_due(start);
    table.record_poll(&identity(A), Ok(served()), start, SystemTime::now(), 0.0);
    assert_eq!(answer(&table, start), "not served");
}

#[test]
fn only_an_observed_renewal_or_a_current_listing_shows_that_a_server_runs() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let alive_at = |table: &PeerTable, now| table.snapshot().peers[0].reported_alive_at(now);
    let mut table = PeerTable::new(identity(LOCAL));
    // The Lease may be that of a server that has crashed.
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at(0));
    assert_eq!(alive_at(&table, at(1)), None);
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at(2));
    assert_eq!(alive_at(&table, at(3)), None);
    table.update_lease(lease_snapshot(A, "h", 2), at(10));
    assert_eq!(alive_at(&table, at(30)), Some(at(10)));
    // An address in an EndpointSlice is removed a while after a crash.
    let listed = AdvertisedAddress {
        origin: AddressOrigin::Endpoints,
        ..AdvertisedAddress::by_bridge(([10, 0, 0, 1], 6443).into())
    };
    table.set_addresses(&[(identity(A), listed)].into(), at(20));
    assert_eq!(alive_at(&table, at(60)), Some(at(40)));
    table.set_addresses(&addresses(&[]), at(61));
    assert_eq!(alive_at(&table, at(62)), Some(at(10)));
}
