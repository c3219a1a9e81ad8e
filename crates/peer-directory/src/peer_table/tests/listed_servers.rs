//! Servers whose addresses are listed: without an identity, with an identity and no bridge, and
//! beside a bridge.

use std::net::SocketAddr;

use super::*;
use crate::peer::ApiSource;
use crate::registry::AddressOrigin;

const LISTED: u8 = 7;

fn address() -> SocketAddr {
    ([10, 0, 0, LISTED], 6443).into()
}

/// The identity of the listed server before its Lease is known.
fn unidentified() -> Identity {
    Identity::of_address(address())
}

/// Lists the address: for this identity, and in `addresses` unless that has a bridge.
fn list(table: &mut PeerTable, identity: Option<&str>, mut addresses: Addresses, at: Instant) {
    let identified = identity.map(|name| (super::identity(name), address()));
    table.set_listed_addresses(ListedAddresses {
        all: [address()].into(),
        identified: identified.clone().into_iter().collect(),
    });
    let server = identified.map_or_else(unidentified, |(identity, _)| identity);
    addresses
        .entry(server)
        .or_insert(AdvertisedAddress::by_endpoints(address()));
    table.set_addresses(&addresses, at);
}

fn unlist(table: &mut PeerTable, at: Instant) {
    table.set_listed_addresses(ListedAddresses::default());
    table.set_addresses(&Addresses::new(), at);
}

fn names(table: &PeerTable) -> Vec<String> {
    let peers = table.snapshot().peers;
    peers.iter().map(|it| it.identity.to_string()).collect()
}

fn answer(table: &mut PeerTable, identity: &Identity, at: Instant) {
    table.take_due(at);
    table.record_poll(identity, Ok(served()), at, SystemTime::now(), 0.0);
}

#[test]
fn a_listed_server_runs_until_it_is_no_longer_listed_and_may_restart() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(Vec::new(), at);
    list(&mut table, None, Addresses::new(), at);
    let peer = table.snapshot().peers[0].clone();
    assert!(peer.is_awaited(at), "its APIs are not known yet");
    assert!(!peer.is_awaited(at + DISCOVERY_GRACE));
    assert_eq!(due(&mut table, at), [unidentified().as_str()]);
    table.record_poll(&unidentified(), Ok(served()), at, SystemTime::now(), 0.0);
    // No Lease is renewed for it, and a list of Leases does not end it.
    let later = at + 2 * LEASE_DURATION;
    table.set_leases(Vec::new(), later);
    table.expire(later);
    let peer = table.snapshot().peers[0].clone();
    assert!(peer.is_available(later) && peer.served.is_some());
    assert_eq!(peer.record.origin, Some(AddressOrigin::Endpoints));

    unlist(&mut table, later);
    table.expire(later + RESTART_GRACE / 2);
    let peer = table.snapshot().peers[0].clone();
    assert!(peer.served.is_some() && !peer.is_available(later));
    assert!(due(&mut table, later + RESTART_GRACE / 2).is_empty());
    // It returns.
    let later = later + RESTART_GRACE / 2;
    list(&mut table, None, Addresses::new(), later);
    assert_eq!(due(&mut table, later), [unidentified().as_str()]);
    // It does not.
    unlist(&mut table, later);
    assert!(table.expire(later + RESTART_GRACE));
    assert!(names(&table).is_empty());
}

#[test]
fn an_identity_that_becomes_known_keeps_what_the_server_answered() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    list(&mut table, None, Addresses::new(), at);
    answer(&mut table, &unidentified(), at);
    assert_eq!(names(&table), [unidentified().as_str(), A]);
    list(&mut table, Some(A), Addresses::new(), at);
    assert_eq!(names(&table), [A], "it counts once");
    let peer = table.snapshot().peers[0].clone();
    assert!(peer.served.is_some(), "no request waits for another poll");
    assert_eq!(peer.address, Some(address()));
    assert_eq!(due(&mut table, at), [A]);
    // Another identity is ambiguous now.
    list(&mut table, None, Addresses::new(), at);
    assert_eq!(names(&table), [unidentified().as_str(), A]);
    let peers = table.snapshot().peers;
    assert!(peers[0].served.is_some());
    assert_eq!(peers[1].address, None);
    // It is the address of the local server.
    table.set_listed_addresses(ListedAddresses {
        all: [address()].into(),
        identified: BTreeMap::new(),
    });
    table.set_addresses(&Addresses::new(), at);
    assert_eq!(names(&table), [A]);
}

#[test]
fn a_bridge_is_preferred_and_its_listed_server_is_the_fallback() {
    let at = Instant::now();
    let bridge = addresses(&[(A, 1)]);
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    list(&mut table, Some(A), Addresses::new(), at);
    answer(&mut table, &identity(A), at);
    list(&mut table, Some(A), bridge.clone(), at);
    let peer = table.snapshot().peers[0].clone();
    assert_eq!(peer.address, Some(([127, 0, 0, 1], 1).into()));
    let fallback = peer.record.fallback.clone().unwrap();
    assert_eq!(fallback.address, Some(address()));
    assert!(fallback.served.is_some() && !fallback.record.is_bridge);
    answer(&mut table, &identity(A), at);

    // The bridge is killed: both are polled alternately, and requests go to the server.
    let mut at = at + Duration::from_mins(1);
    table.update_lease(lease_snapshot(A, "h", 2), at);
    let mut polled = Vec::new();
    for _ in 0..4 {
        at += Duration::from_secs(5);
        let due = table.take_due(at).pop().unwrap();
        let is_fallback = due.address == Some(address());
        polled.push(is_fallback);
        assert_eq!(table.polls_fallback(&identity(A)), is_fallback);
        let outcome = if is_fallback { Ok(served()) } else { refused() };
        due.health.record_failure(at);
        table.record_poll(&identity(A), outcome, at, SystemTime::now(), 0.0);
        let peer = table.snapshot().peers[0].clone();
        assert_eq!(peer.problem.as_deref(), Some("refused"), "of the bridge");
    }
    assert_eq!(polled, [false, true, false, true]);
    let peer = table.snapshot().peers[0].clone();
    assert!(peer.is_available(at));
    // Its address is withdrawn.
    list(&mut table, Some(A), Addresses::new(), at);
    let peer = table.snapshot().peers[0].clone();
    assert_eq!(peer.address, Some(address()));
    assert!(peer.published && peer.record.fallback.is_none());
    assert_eq!(due(&mut table, at), [A]);
    table.record_poll(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
    assert!(table.snapshot().peers[0].problem.is_none());
}

#[test]
fn a_listed_server_whose_bridge_has_announced_its_departure_is_a_peer() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let mut table = table_after_departure(None, at, wall);
    assert_eq!(table.snapshot().peers[0].address, None);
    list(&mut table, Some(A), Addresses::new(), at);
    answer(&mut table, &identity(A), at);
    let later = at + 2 * ROLLOUT_GRACE;
    table.update_lease(lease_snapshot(A, "h", 2), later);
    table.expire(later);
    let peer = table.snapshot().peers[0].clone();
    assert!(peer.served.is_some() && peer.is_available(later));
    assert_eq!(peer.problem, None);
    assert!(peer.record.bridge_left);
}

/// From 1.35 on a server that ends removes its address and its Lease, also for a restart.
#[test]
fn a_listed_server_with_a_lease_may_restart() {
    let at = Instant::now();
    for lease_ends_first in [false, true] {
        let mut table = PeerTable::new(identity(LOCAL));
        table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
        list(&mut table, Some(A), Addresses::new(), at);
        answer(&mut table, &identity(A), at);
        if lease_ends_first {
            table.remove_lease(&identity(A), at);
            unlist(&mut table, at);
        } else {
            unlist(&mut table, at);
            table.remove_lease(&identity(A), at);
        }
        table.expire(at + RESTART_GRACE / 2);
        let peer = table.snapshot().peers[0].clone();
        assert!(peer.served.is_some() && peer.address.is_none());
        let mut later = table;
        assert!(later.expire(at + RESTART_GRACE));
        assert!(names(&later).is_empty());
    }
}

/// For example because only a killed bridge has renewed it.
#[test]
fn a_listed_server_runs_even_if_its_lease_is_not_renewed() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    list(&mut table, Some(A), Addresses::new(), at);
    answer(&mut table, &identity(A), at);
    let later = at + 2 * RENEWAL_TIMEOUT;
    assert!(table.snapshot().peers[0].is_available(later));
    unlist(&mut table, later);
    assert!(!table.snapshot().peers[0].is_available(later));
}

/// Where all servers share one certificate, their identities cannot be found out.
#[test]
fn a_lease_without_an_address_does_not_count_beside_a_listed_server_without_an_identity() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    list(&mut table, None, Addresses::new(), at);
    answer(&mut table, &unidentified(), at);
    table.expire(at);
    assert_eq!(names(&table), [unidentified().as_str(), A], "A may start");
    let later = at + ADDRESS_GRACE;
    assert!(table.expire(later) && !table.expire(later));
    assert_eq!(names(&table), [unidentified().as_str()]);
    // Another server has no listed address.
    table.update_lease(lease_snapshot(B, "h", 1), later);
    let last = later + ADDRESS_GRACE;
    assert!(table.expire(last));
    assert_eq!(names(&table), [unidentified().as_str(), A, B]);
    // A bridge publishes its address.
    table.remove_lease(&identity(B), last);
    table.expire(last);
    assert_eq!(names(&table), [unidentified().as_str()]);
    list(&mut table, None, addresses(&[(A, 1)]), last);
    table.expire(last);
    assert_eq!(names(&table), [unidentified().as_str(), A]);
}

/// The record of a listed server that does not answer is read from the state directory after a
/// restart.
#[test]
fn the_record_of_a_listed_server_outlives_the_process() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(Vec::new(), at);
    list(&mut table, None, Addresses::new(), at);
    answer(&mut table, &unidentified(), at);
    let mut record = crate::served_record::tests::record(A, &["apps"], SystemTime::now());
    record.identity = unidentified();
    table.store_polled_record(record);
    for in_file in [false, true] {
        let mut next = restarted(&table, Some(clock("a", at, 0)));
        if in_file {
            next = next.with_addresses_in_file();
        }
        next.set_leases(Vec::new(), at);
        assert!(names(&next).is_empty(), "only while it is listed");
        list(&mut next, None, Addresses::new(), at);
        next.take_due(at);
        next.record_poll(&unidentified(), refused(), at, SystemTime::now(), 0.0);
        let later = at + 2 * DISCOVERY_GRACE;
        next.expire(later);
        let peer = next.snapshot().peers[0].clone();
        assert_eq!(peer.record.source, Some(ApiSource::Stored));
        assert!(peer.served.is_some());
        assert!(!peer.record.bridge_left, "it never had a bridge");
        // No longer listed: the record is kept in case the server returns, and has no effect.
        unlist(&mut next, later);
        assert!(next.expire(later + RESTART_GRACE));
        assert!(names(&next).is_empty());
        assert_eq!(next.stored_records().len(), 1);
        next.expire(later + RESTART_GRACE + RECORD_RETENTION);
        assert!(next.stored_records().is_empty());
    }
}
