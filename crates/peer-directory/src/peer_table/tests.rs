use proptest::prelude::*;
use skewbridge_k8s_api::request_info::{DecodedPath, RequestInfo};

use super::*;
use crate::peer::PeerLookup;

const A: &str = "apiserver-a";
const B: &str = "apiserver-b";
const ME: &str = "apiserver-me";

fn identity(name: &str) -> Identity {
    Identity::named(name).unwrap()
}

fn seen(name: &str, holder: &str, version: u32) -> LeaseSnapshot {
    LeaseSnapshot {
        identity: identity(name),
        host: None,
        holder: holder.to_owned(),
        resource_version: version.to_string(),
    }
}

fn addresses(list: &[(&str, u16)]) -> Addresses {
    let advertised = |port| AdvertisedAddress::by_bridge(([127, 0, 0, 1], port).into());
    list.iter()
        .map(|(name, port)| (identity(name), advertised(*port)))
        .collect()
}

fn served() -> ServedApis {
    ServedApis {
        index: Arc::default(),
        documents: [Arc::default(), Arc::default()],
        etags: [None, None],
        version: None,
        by_bridge: false,
    }
}

fn due(table: &mut PeerTable, at: Instant) -> Vec<String> {
    let due = table.take_due(at);
    due.iter().map(|peer| peer.identity.to_string()).collect()
}

/// Events, in any order.
#[derive(Debug, Clone, Copy)]
enum Step {
    Lease,
    Address,
    Tick,
}

proptest! {
    /// kube-apiserver gives up on a peer whose Lease comes before its address.
    #[test]
    fn a_peer_is_polled_in_whatever_order_lease_and_address_appear(
        steps in proptest::collection::vec(
            prop_oneof![Just(Step::Lease), Just(Step::Address), Just(Step::Tick)], 0..40),
    ) {
        let mut at = Instant::now();
        let mut table = PeerTable::new(identity(ME));
        let (mut leased, mut addressed, mut fetched) = (false, false, 0);
        for step in steps {
            at += Duration::from_secs(10);
            match step {
                Step::Lease => {
                    table.update_lease(seen(A, "h", 1), at);
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
fn the_last_successful_poll_counts_while_the_lease_is_valid() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(ME));
    table.set_leases(vec![seen(A, "h", 1), seen(ME, "h", 1)], at);
    table.set_addresses(&addresses(&[(A, 1), (ME, 2)]), at);
    assert_eq!(due(&mut table, at), [A], "not itself");
    table.record_poll(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
    assert!(table.snapshot().peers[0].served.is_some());

    // It restarts, cannot be reached, and its record runs out.
    table.update_lease(seen(A, "another", 2), at);
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
    table.update_lease(seen(A, "third", 3), at);
    assert!(table.snapshot().peers[0].served.is_none());
}

#[test]
fn a_poll_result_after_the_lease_has_ended_is_ignored() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(ME));
    table.set_leases(vec![seen(A, "h", 1)], at);
    table.set_addresses(&addresses(&[(A, 1)]), at);
    assert_eq!(due(&mut table, at), [A]);
    table.remove_lease(&identity(A), at);
    table.record_poll(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
    table.update_lease(seen(A, "another", 2), at);
    assert!(table.snapshot().peers[0].served.is_none());
    assert_eq!(due(&mut table, at), [A], "it is polled at once");
}

/// From 1.35 on a server deletes its Lease when it ends, and its bridge stays.
#[test]
fn a_server_that_restarts_behind_its_bridge_is_kept() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(ME));
    let begin = |table: &mut PeerTable| {
        table.set_leases(vec![seen(A, "h", 1)], at);
        table.set_addresses(&addresses(&[(A, 1)]), at);
        table.take_due(at);
        table.record_poll(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
        table.remove_lease(&identity(A), at);
    };
    begin(&mut table);
    let peer = &table.snapshot().peers[0];
    assert!(peer.served.is_some() && peer.alive_until <= at);
    assert!(!table.expire(at));
    // Back again, it is asked at once.
    table.update_lease(seen(A, "another", 2), at);
    assert_eq!(due(&mut table, at), [A]);
    assert!(table.snapshot().peers[0].served.is_some());

    // Both leave.
    let mut table = PeerTable::new(identity(ME));
    begin(&mut table);
    table.set_addresses(&addresses(&[]), at);
    assert!(table.snapshot().peers.is_empty());

    // It does not come back.
    let mut table = PeerTable::new(identity(ME));
    begin(&mut table);
    assert!(table.expire(at + RESTART_GRACE));
    assert!(table.snapshot().peers.is_empty());
}

#[test]
fn a_lease_that_is_neither_renewed_nor_deleted_expires() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(ME));
    table.set_leases(vec![seen(A, "h", 1)], at);
    assert!(!table.expire(at + LEASE_DURATION / 2));
    assert!(table.expire(at + LEASE_DURATION));
    assert!(table.snapshot().peers.is_empty());
}

#[test]
fn a_server_without_an_address_is_awaited_for_a_limited_time() {
    let start = Instant::now();
    let mut table = PeerTable::new(identity(ME));
    table.set_leases(vec![seen(A, "h", 1)], start);
    let later = start + ADDRESS_GRACE + Duration::from_secs(1);
    table.update_lease(seen(A, "h", 2), later);
    let awaited = |table: &PeerTable, at| table.snapshot().peers[0].is_awaited(at);
    assert!(awaited(&table, start));
    assert!(!awaited(&table, later), "it runs, and takes no part");
    table.set_addresses(&addresses(&[(A, 1)]), later);
    assert!(awaited(&table, later), "it does now");
}

#[test]
fn a_list_of_leases_removes_servers_that_are_not_in_it() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(ME));
    assert!(!table.snapshot().leases_listed);
    table.set_leases(vec![seen(A, "h", 1), seen(B, "h", 1)], at);
    assert!(table.snapshot().leases_listed);
    table.set_leases(vec![seen(B, "h", 1)], at);
    let snapshot = table.snapshot();
    assert_eq!(snapshot.peers.len(), 1);
    assert!(snapshot.get(&identity(B)).is_some());
}

#[test]
fn only_an_observed_change_of_the_lease_proves_that_a_server_runs() {
    let start = Instant::now();
    let mut table = PeerTable::new(identity(ME));
    table.set_leases(vec![seen(A, "h", 1)], start);
    let later = start + Duration::from_secs(30);
    table.set_leases(vec![seen(A, "h", 1)], later);
    let alive_until = |table: &PeerTable| table.snapshot().peers[0].alive_until;
    assert_eq!(alive_until(&table), start + RENEWAL_TIMEOUT);
    table.update_lease(seen(A, "h", 2), later);
    assert_eq!(alive_until(&table), later + RENEWAL_TIMEOUT);
}

#[test]
fn a_new_address_is_polled_at_once_after_the_current_poll() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(ME));
    table.set_leases(vec![seen(A, "h", 1)], at);
    table.set_addresses(&addresses(&[(A, 1)]), at);
    assert_eq!(due(&mut table, at), [A]);
    table.set_addresses(&addresses(&[(A, 2)]), at);
    assert!(due(&mut table, at).is_empty(), "one at a time");
    table.record_poll(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
    let again = table.take_due(at);
    assert_eq!(again[0].address.unwrap().port(), 2);
}

/// Its bridge has left and come back at the same address, and before 1.35 its Lease
/// says nothing.
#[test]
fn an_address_that_is_published_again_is_polled_at_once() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(ME));
    table.set_leases(vec![seen(A, "h", 1)], at);
    table.set_addresses(&addresses(&[(A, 1)]), at);
    table.take_due(at);
    table.record_poll(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
    table.set_addresses(&addresses(&[(A, 1)]), at);
    assert!(due(&mut table, at).is_empty(), "nothing has happened");
    table.set_addresses(&addresses(&[]), at);
    assert!(due(&mut table, at).is_empty(), "it is away");
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
        let mut table = PeerTable::new(identity(ME));
        table.set_leases(vec![seen(A, "h", 1)], at);
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

/// A table that has polled A, whose bridge has then announced its departure; the address of the
/// server itself is `server`.
fn bridge_has_left(server: Option<u16>, at: Instant, wall: SystemTime) -> PeerTable {
    let mut table = PeerTable::new(identity(ME));
    table.set_leases(vec![seen(A, "h", 1)], at);
    table.set_addresses(&addresses(&[(A, 1)]), at);
    table.take_due(at);
    table.record_poll(&identity(A), Ok(served()), at, wall, 0.0);
    table.set_published_records(&records(server, Some(wall)), at);
    assert!(!table.snapshot().peers[0].record.bridge_left, "not yet");
    table.set_addresses(&addresses(&[]), at);
    table
}

fn records(server: Option<u16>, left: Option<SystemTime>) -> Records {
    let mut record = crate::served_record::tests::record(A, &["apps"], SystemTime::UNIX_EPOCH);
    record.server = server.map(|port| ([10, 0, 0, 1], port).into());
    record.bridge_left_at = left;
    [(identity(A), Arc::new(record))].into()
}

#[test]
fn a_server_whose_bridge_has_left_is_polled_directly_if_its_address_is_known() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let mut table = bridge_has_left(Some(6443), at, wall);
    let asked = table.take_due(at);
    assert_eq!(asked[0].address, Some(([10, 0, 0, 1], 6443).into()));
    table.record_poll(&identity(A), Ok(served()), at, wall, 0.0);
    let later = at + 2 * ROLLOUT_GRACE;
    table.update_lease(seen(A, "h", 2), later);
    table.expire(later);
    let peer = &table.snapshot().peers[0];
    assert!(peer.served.is_some() && peer.record.bridge_left);

    // It does not answer: after the time of a rollout it has no part any more.
    let mut table = bridge_has_left(Some(6443), at, wall);
    table.take_due(at);
    table.record_poll(&identity(A), Err("refused".into()), at, wall, 0.0);
    table.expire(later);
    assert!(table.snapshot().peers[0].served.is_none());
    // Until it does.
    table.update_lease(seen(A, "h", 2), later);
    assert_eq!(due(&mut table, later), [A]);
    table.record_poll(&identity(A), Ok(served()), later, wall, 0.0);
    assert!(table.snapshot().peers[0].served.is_some());
}

#[test]
fn a_server_whose_bridge_has_left_and_that_cannot_be_reached_counts_for_a_rollout() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let mut table = bridge_has_left(None, at, wall);
    let before = at + ROLLOUT_GRACE / 2;
    table.update_lease(seen(A, "h", 2), before);
    assert!(!table.expire(before));
    let peer = &table.snapshot().peers[0];
    assert!(peer.served.is_some() && peer.record.bridge_left);
    assert_eq!(peer.address, None, "its bridge is not there any more");
    assert!(table.expire(at + ROLLOUT_GRACE), "an event");
    assert!(!table.expire(at + ROLLOUT_GRACE), "once");
    let peer = &table.snapshot().peers[0];
    assert!(peer.served.is_none() && peer.record.bridge_left);
    assert!(!peer.is_awaited(at + ROLLOUT_GRACE));

    // The bridge starts again.
    let later = at + 2 * ROLLOUT_GRACE;
    table.set_addresses(&addresses(&[(A, 1)]), later);
    let peer = &table.snapshot().peers[0];
    assert!(peer.served.is_some() && !peer.record.bridge_left);
    table.set_published_records(&records(None, None), later);
    // And crashes: that is no announcement.
    table.set_addresses(&addresses(&[]), later);
    table.expire(later + 2 * ROLLOUT_GRACE);
    assert!(table.snapshot().peers[0].served.is_some());
}

/// Since 1.36 a server publishes its own address, also where it listens on loopback.
#[test]
fn the_own_address_of_a_server_is_not_that_of_its_bridge() {
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
    let mut table = bridge_has_left(None, at, wall);
    table.set_published_records(&pinned(Some(wall)), at);
    table.set_addresses(&by_server, at);
    let peer = &table.snapshot().peers[0];
    assert!(peer.record.bridge_left && peer.published);
    assert_eq!(peer.address, Some(address), "the server itself is asked");
    assert_eq!(keys(&table), 0, "with its own key");
    table.take_due(at);
    table.record_poll(&identity(A), Err("refused".into()), at, wall, 0.0);
    assert!(table.snapshot().peers[0].served.is_some());
    assert!(table.expire(at + ROLLOUT_GRACE));
    assert!(table.snapshot().peers[0].served.is_none());

    // A bridge of an older release writes no record that takes the announcement back.
    table.set_addresses(&addresses(&[(A, 1)]), at);
    assert!(!table.snapshot().peers[0].record.bridge_left);
    assert_eq!(keys(&table), 0);
    table.set_published_records(&pinned(None), at);
    assert_eq!(keys(&table), 1);
    table.set_addresses(&by_server, at);
    assert_eq!(keys(&table), 0, "not behind the address of a server");
}

/// Only a bridge needs the front-proxy certificate beside a token.
#[test]
fn an_address_is_a_bridges_only_where_a_bridge_has_answered_the_last_poll() {
    let at = Instant::now();
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let is_bridge = |table: &PeerTable| table.snapshot().peers[0].record.is_bridge;
    let mut table = PeerTable::new(identity(ME));
    table.set_leases(vec![seen(A, "h", 1)], at);
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
        // A kube-apiserver has taken over the address.
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
        // Another address, of which nothing is known yet.
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
    assert!(
        !is_bridge(&table),
        "it may be another process that answers next"
    );
}

/// Its Lease with the record is deleted and made again.
#[test]
fn an_announcement_outlives_the_published_record() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let mut table = bridge_has_left(None, at, wall);
    table.set_published_records(&Records::new(), at);
    assert!(table.snapshot().peers[0].record.bridge_left);
    assert!(table.expire(at + ROLLOUT_GRACE));
    assert!(table.snapshot().peers[0].served.is_none());

    // It is in `--state-dir`, too.
    let mut restarted = restarted(&table, None);
    restarted.set_leases(vec![seen(A, "h", 1)], at);
    assert!(restarted.snapshot().peers[0].served.is_some());
    restarted.set_published_records(&Records::new(), at);
    assert!(restarted.snapshot().peers[0].record.bridge_left);
    assert!(restarted.expire(at + ROLLOUT_GRACE));
    assert!(restarted.snapshot().peers[0].served.is_none());
}

/// The table of the next process, with the records that the previous one stored.
fn restarted(before: &PeerTable, clock: Option<HostClock>) -> PeerTable {
    let mut table = PeerTable::new(identity(ME));
    table.set_host_clock(clock);
    for record in before.stored_records().values() {
        let bytes = record.encode().unwrap();
        table.store_record(Arc::new(ServedRecord::decode(&bytes).unwrap()));
    }
    table
}

/// The clock of the host, in the boot of this name.
fn clock(boot: &str, at: Instant, millis: i64) -> HostClock {
    let boot = boot.to_owned();
    let time = crate::HostTime { boot, millis };
    HostClock { at, time }
}

#[test]
fn a_new_announcement_counts_from_its_arrival() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let mut table = PeerTable::new(identity(ME));
    table.set_leases(vec![seen(A, "h", 1)], at);
    table.set_published_records(&records(None, None), at);
    // The clock of that host is late.
    let announced = wall - 2 * ROLLOUT_GRACE;
    table.set_published_records(&records(None, Some(announced)), at);
    table.expire(at + ROLLOUT_GRACE / 2);
    assert!(table.snapshot().peers[0].served.is_some());
    assert!(table.expire(at + ROLLOUT_GRACE));
}

/// The clock of another host does not count.
#[test]
fn an_existing_announcement_counts_from_its_first_observation() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let hour = Duration::from_hours(1);
    for announced in [wall, wall - hour, wall + 9 * hour, SystemTime::UNIX_EPOCH] {
        let mut table = PeerTable::new(identity(ME));
        table.set_leases(vec![seen(A, "h", 1)], at);
        table.set_published_records(&records(None, Some(announced)), at);
        let before = at + ROLLOUT_GRACE * 9 / 10;
        table.update_lease(seen(A, "h", 2), before);
        assert!(!table.expire(before), "{announced:?}");
        assert!(table.snapshot().peers[0].served.is_some());
        assert!(table.expire(at + ROLLOUT_GRACE), "{announced:?}");
        assert!(table.snapshot().peers[0].served.is_none());
    }
}

#[test]
fn a_stored_announcement_counts_from_when_this_host_first_saw_it() {
    // As a record that was encoded has it.
    let wall = SystemTime::UNIX_EPOCH + Duration::from_hours(500_000);
    let at = Instant::now();
    let minute = Duration::from_mins(1);
    let left = records(None, Some(wall));
    // The wall clock may be set: it has no part in it.
    let table = [
        (Some(clock("one", at, 4 * 60_000)), minute),
        (Some(clock("one", at, 100 * 60_000)), Duration::ZERO),
        // Booted, or a clock that cannot be read.
        (Some(clock("other", at, 4 * 60_000)), ROLLOUT_GRACE),
        (None, ROLLOUT_GRACE),
    ];
    for (next, remaining) in table {
        let mut first = PeerTable::new(identity(ME));
        first.set_host_clock(Some(clock("one", at, 0)));
        first.set_leases(vec![seen(A, "h", 1)], at);
        first.set_published_records(&left, at);
        // An answer that is stored meanwhile changes nothing.
        first.store_polled_record(ServedRecord::clone(&left[&identity(A)]));

        let mut second = restarted(&first, next.clone());
        second.set_leases(vec![seen(A, "h", 1)], at);
        second.set_published_records(&left, at);
        second.expire(at);
        if !remaining.is_zero() {
            let last = at + remaining * 9 / 10;
            second.update_lease(seen(A, "h", 2), last);
            second.expire(last);
            let peer = second.snapshot().peers.remove(0);
            assert!(peer.served.is_some(), "{next:?}");
        }
        second.expire(at + remaining);
        let peer = second.snapshot().peers.remove(0);
        assert!(peer.served.is_none(), "{next:?}");
        // Another announcement counts from its arrival.
        let again = records(None, Some(wall + minute));
        second.set_published_records(&again, at);
        assert!(second.snapshot().peers[0].served.is_none());
        second.set_published_records(&records(None, None), at);
        let stored = &second.stored_records()[&identity(A)];
        assert_eq!(stored.departure.is_some(), next.is_none(), "{stored:?}");
        second.set_published_records(&again, at);
        second.expire(at + ROLLOUT_GRACE / 2);
        assert!(second.snapshot().peers[0].served.is_some(), "{next:?}");
    }
}

/// An entry of the file: a bridge, and the server behind it.
fn in_file(server: Option<u16>) -> Addresses {
    let address = ([10, 0, 0, 1], 7443).into();
    let server = server.map(|port| ([10, 0, 0, 1], port).into());
    [(identity(A), AdvertisedAddress::by_file(address, server))].into()
}

/// Where an administrator keeps the addresses: A is in the file, has answered, and its
/// bridge has then announced that it leaves.
fn left_but_in_file(server: Option<u16>, at: Instant) -> PeerTable {
    let wall = SystemTime::now();
    let mut table = PeerTable::new(identity(ME)).with_addresses_in_file();
    table.set_leases(vec![seen(A, "h", 1)], at);
    table.set_addresses(&in_file(server), at);
    table.set_published_records(&records(Some(666), None), at);
    table.take_due(at);
    table.record_poll(&identity(A), Ok(served()), at, wall, 0.0);
    table.set_published_records(&records(Some(666), Some(wall)), at);
    table
}

/// Polls A, and returns the polled port.
fn ask(table: &mut PeerTable, at: Instant, outcome: Result<ServedApis, String>) -> Option<u16> {
    let asked = table.take_due(at).pop();
    table.record_poll(&identity(A), outcome, at, SystemTime::now(), 0.0);
    asked.and_then(|peer| Some(peer.address?.port()))
}

fn fails() -> Result<ServedApis, String> {
    Err("refused".to_owned())
}

#[test]
fn a_bridge_that_has_left_counts_for_a_rollout_although_the_file_has_its_address() {
    let at = Instant::now();
    let mut table = left_but_in_file(None, at);
    assert!(table.snapshot().peers[0].record.bridge_left);
    let mut now = at;
    for number in 2..9 {
        now += Duration::from_secs(30);
        table.update_lease(seen(A, "h", number), now);
        let port = ask(&mut table, now, fails());
        assert!(port == Some(7443) || port.is_none(), "{port:?}");
        table.expire(now);
        assert!(table.snapshot().peers[0].served.is_some());
    }
    assert!(table.expire(at + ROLLOUT_GRACE), "an event");
    let peer = table.snapshot().peers.remove(0);
    assert!(peer.served.is_none() && peer.record.bridge_left);
    // It is back: its record says so, or it answers.
    let mut answering = left_but_in_file(None, at);
    answering.expire(at + ROLLOUT_GRACE);
    assert!(answering.snapshot().peers[0].served.is_none());
    ask(&mut answering, at + ROLLOUT_GRACE, Ok(served()));
    let peer = answering.snapshot().peers.remove(0);
    assert!(peer.served.is_some() && !peer.record.bridge_left);
    table.set_published_records(&records(None, None), at + ROLLOUT_GRACE);
    let peer = table.snapshot().peers.remove(0);
    assert!(peer.served.is_some() && !peer.record.bridge_left);
}

/// A writer of Leases cannot name addresses, and a bridge that answers has not left.
#[test]
fn records_do_not_change_the_polled_address_of_a_server_in_the_file() {
    let mut now = Instant::now();
    let mut table = left_but_in_file(None, now);
    for number in 2..40 {
        now += Duration::from_mins(1);
        table.update_lease(seen(A, "h", number), now);
        assert_eq!(ask(&mut table, now, Ok(served())), Some(7443));
        table.expire(now);
        let peer = table.snapshot().peers.remove(0);
        assert!(peer.served.is_some() && !peer.record.bridge_left);
        assert_eq!(peer.problem, None);
        assert!(peer.record.serving_keys.is_empty());
    }
    // From its last answer on.
    let later = now + ROLLOUT_GRACE / 2;
    assert_eq!(ask(&mut table, later, fails()), Some(7443));
    table.expire(later);
    assert!(table.snapshot().peers[0].served.is_some());
    table.expire(now + ROLLOUT_GRACE);
    assert!(table.snapshot().peers[0].served.is_none());
}

#[test]
fn a_server_in_the_file_is_polled_directly_after_its_bridge_has_left() {
    let mut now = Instant::now();
    let mut table = left_but_in_file(Some(6443), now);
    let mut ports = Vec::new();
    for _ in 0..3 {
        ports.extend(ask(&mut table, now, fails()));
        now += Duration::from_secs(5);
    }
    assert_eq!(ports, [6443, 7443, 6443], "in turn");
    ports.clear();
    ports.extend(ask(&mut table, now, fails()));
    now += Duration::from_secs(5);
    ports.extend(ask(&mut table, now, Ok(served())));
    assert_eq!(ports, [7443, 6443]);
    let later = now + 2 * ROLLOUT_GRACE;
    table.update_lease(seen(A, "h", 2), later);
    table.expire(later);
    let peer = table.snapshot().peers.remove(0);
    assert!(peer.served.is_some() && peer.record.bridge_left);
    assert_eq!(peer.address, Some(([10, 0, 0, 1], 6443).into()));
    assert_eq!(peer.problem, None);
    // It is removed from the file, or only the address at which it answers.
    for changed in [Addresses::new(), in_file(None)] {
        let mut table = left_but_in_file(Some(6443), now);
        ask(&mut table, now, Ok(served()));
        table.update_lease(seen(A, "h", 3), later);
        table.set_addresses(&changed, later);
        let peer = table.snapshot().peers.remove(0);
        assert!(peer.served.is_some() && peer.record.bridge_left);
        assert!(peer.problem.is_some());
        table.expire(later + ROLLOUT_GRACE / 2);
        assert!(table.snapshot().peers[0].served.is_some());
        table.expire(later + ROLLOUT_GRACE);
        assert!(table.snapshot().peers[0].served.is_none(), "{changed:?}");
    }
    table.set_published_records(&records(None, None), later);
    assert_eq!(ask(&mut table, later, Ok(served())), Some(7443));
}

/// The answer comes from an address that the administrator has removed meanwhile.
#[test]
fn a_poll_that_began_before_the_file_changed_does_not_prove_that_a_server_answers() {
    let at = Instant::now();
    for changed in [in_file(None), in_file(Some(6444)), Addresses::new()] {
        let mut table = left_but_in_file(Some(6443), at);
        let asked = table.take_due(at).pop().and_then(|peer| peer.address);
        assert_eq!(asked.map(|it| it.port()), Some(6443));
        table.set_addresses(&changed, at);
        table.record_poll(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
        let peer = table.snapshot().peers.remove(0);
        assert!(peer.record.bridge_left && peer.problem.is_some());
        table.expire(at + ROLLOUT_GRACE);
        assert!(table.snapshot().peers[0].served.is_none(), "{changed:?}");
    }
}

#[test]
fn a_server_whose_address_was_removed_from_the_file_counts_for_a_rollout() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let mut table = PeerTable::new(identity(ME)).with_addresses_in_file();
    table.set_host_clock(Some(clock("one", at, 0)));
    table.set_leases(vec![seen(A, "h", 1)], at);
    table.set_addresses(&in_file(None), at);
    table.take_due(at);
    table.record_poll(&identity(A), Ok(served()), at, wall, 0.0);
    table.set_published_records(&records(Some(666), None), at);
    table.set_addresses(&Addresses::new(), at);
    let peer = table.snapshot().peers.remove(0);
    assert!(peer.served.is_some() && peer.record.bridge_left);
    assert_eq!(peer.address, None, "it is not asked any more");
    assert!(
        peer.problem
            .as_ref()
            .unwrap()
            .contains("--peer-registry file")
    );

    // A restart of this bridge does not lengthen the time.
    let half = at + ROLLOUT_GRACE / 2;
    let mut next = restarted(&table, Some(clock("one", half, 150_000)));
    next.addresses_in_file = true;
    next.set_leases(vec![seen(A, "h", 1)], half);
    next.set_published_records(&records(Some(666), None), half);
    assert!(!next.snapshot().peers[0].record.bridge_left, "not read yet");
    next.set_addresses(&Addresses::new(), half);
    for table in [&mut table, &mut next] {
        table.expire(half);
        assert!(table.snapshot().peers[0].served.is_some());
        table.expire(at + ROLLOUT_GRACE);
        assert!(table.snapshot().peers[0].served.is_none());
    }
    table.set_addresses(&in_file(None), at + ROLLOUT_GRACE);
    let peer = table.snapshot().peers.remove(0);
    assert!(peer.served.is_some() && !peer.record.bridge_left);
}

#[test]
fn a_server_and_bridge_that_leave_together_count_for_a_rollout() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let gone = |table: &mut PeerTable, at| {
        table.expire(at);
        table.snapshot().peers.is_empty()
    };
    // In either order.
    let mut table = bridge_has_left(None, at, wall);
    table.remove_lease(&identity(A), at);
    assert!(!gone(&mut table, at + ROLLOUT_GRACE / 2));
    assert!(gone(&mut table, at + ROLLOUT_GRACE));
    let mut table = PeerTable::new(identity(ME));
    table.set_leases(Vec::new(), at);
    table.set_published_records(&records(None, Some(wall)), at);
    assert!(!gone(&mut table, at + ROLLOUT_GRACE / 2));
    assert!(gone(&mut table, at + ROLLOUT_GRACE));
}

#[test]
fn after_a_crash_of_a_bridge_its_server_and_the_bridge_are_polled_in_turn() {
    let (mut at, wall) = (Instant::now(), SystemTime::now());
    let mut table = bridge_has_left(None, at, wall);
    table.set_published_records(&records(Some(6443), None), at);
    let mut ports = Vec::new();
    for _ in 0..4 {
        at += Duration::from_mins(1);
        let due = table.take_due(at);
        ports.extend(due.iter().filter_map(|peer| Some(peer.address?.port())));
        table.record_poll(&identity(A), Err("refused".into()), at, wall, 0.0);
    }
    assert_eq!(ports, [1, 6443, 1, 6443]);
}

#[test]
fn records_of_servers_without_a_lease_are_kept_for_an_hour() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(ME));
    table.set_leases(vec![seen(A, "h", 1)], at);
    table.set_published_records(&records(None, None), at);
    let outdated = |table: &PeerTable, at| table.outdated_records(at).count();
    table.set_leases(Vec::new(), at);
    table.expire(at);
    let later = at + RECORD_RETENTION;
    assert_eq!(outdated(&table, at + RECORD_RETENTION / 2), 0);
    assert_eq!(outdated(&table, later), 1);
    assert_eq!(table.stored_records().len(), 1);
    table.expire(later);
    assert!(table.stored_records().is_empty());
    // It comes back meanwhile.
    table.update_lease(seen(A, "h", 2), later);
    table.expire(later);
    assert_eq!(outdated(&table, later), 0);
}

#[test]
fn the_number_of_records_is_bounded() {
    let mut table = PeerTable::new(identity(ME));
    for number in 0..MAX_RECORDS + 9 {
        let name = format!("apiserver-{number}");
        let record = crate::served_record::tests::record(&name, &[], SystemTime::UNIX_EPOCH);
        table.store_record(Arc::new(record));
    }
    assert_eq!(table.stored_records().len(), MAX_RECORDS);
}

#[test]
fn the_latest_record_or_answer_counts() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let second = Duration::from_secs(1);
    let record = |group: &str, learnt| {
        let record = crate::served_record::tests::record(A, &[group], learnt);
        Arc::new(record)
    };
    let published = |record: Arc<ServedRecord>| Records::from([(identity(A), record)]);
    let known = |table: &PeerTable| {
        let peer = table.snapshot().peers.remove(0);
        let served = peer.served.clone().unwrap();
        let group = served.documents[1].items.first();
        (
            group.map_or("", |it| it.name()).to_owned(),
            peer.record.source,
        )
    };
    let mut table = PeerTable::new(identity(ME));
    table.set_leases(vec![seen(A, "h", 1)], at);
    let mut answer = ServedRecord::clone(&record("stored", wall));
    answer.supersedes = Some(record("older", wall + second).observed_at);
    table.store_record(Arc::new(answer));
    assert_eq!(known(&table), ("stored".into(), Some(ApiSource::Stored)));
    table.set_published_records(&published(record("older", wall + second)), at);
    assert_eq!(known(&table), ("stored".into(), Some(ApiSource::Stored)));
    table.set_published_records(&published(record("newer", wall - second)), at);
    assert_eq!(known(&table), ("newer".into(), Some(ApiSource::Published)));
    assert!(table.stored_records()[&identity(A)].has_same_apis(&record("newer", wall)));
    // An answer counts more than what was published before it, whatever the clocks say.
    table.set_addresses(&addresses(&[(A, 1)]), at);
    table.take_due(at);
    table.record_poll(&identity(A), Ok(served()), at, wall, 0.0);
    assert_eq!(known(&table).1, Some(ApiSource::Polled));
    let newest = record("newest", wall - 2 * second);
    table.set_published_records(&published(newest), at);
    assert_eq!(known(&table), ("newest".into(), Some(ApiSource::Published)));
    // A record that comes while a server is asked may be later than the answer.
    assert_eq!(due(&mut table, at), [A], "it is polled at once");
    table.set_published_records(&published(record("last", wall)), at);
    table.record_poll(&identity(A), Ok(served()), at, wall, 0.0);
    assert_eq!(known(&table), ("last".into(), Some(ApiSource::Published)));
    // A record of what the server has answered is not later than the answer.
    let answer = ServedRecord::clone(&record("last", wall + second));
    table.store_polled_record(answer);
    assert_eq!(known(&table).1, Some(ApiSource::Polled));
}

/// A bridge that restarts with a wrong certificate for etcd reads the Leases alone.
#[test]
fn a_living_server_is_awaited_until_the_registry_has_been_read() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let path = DecodedPath::new("/apis/example.io/v1/things").unwrap();
    let request = RequestInfo::parse(&http::Method::GET, &path, None);
    let answer = |table: &PeerTable, now| match table.snapshot().lookup(&request, now) {
        PeerLookup::Unknown(_) => "unknown",
        PeerLookup::NotServed => "nowhere",
        other => panic!("{other:?}"),
    };
    let mut table = PeerTable::new(identity(ME));
    table.await_registry();
    for minute in 0..20 {
        let now = at(minute * 60);
        table.set_leases(vec![seen(A, "h", u32::try_from(minute).unwrap())], now);
        table.expire(now);
        assert_eq!(answer(&table, now), "unknown", "minute {minute}");
    }
    // A server that is not renewed is not alive.
    assert_eq!(answer(&table, at(19 * 60 + 41)), "nowhere");
    // From the first read on, the usual times count.
    let read = at(20 * 60);
    table.mark_registry_read(read);
    // Only the first read counts.
    table.mark_registry_read(at(21 * 60));
    table.update_lease(seen(A, "h", 100), read);
    assert_eq!(answer(&table, at(20 * 60 + 30)), "unknown");
    table.update_lease(seen(A, "h", 101), at(21 * 60 + 1));
    assert_eq!(answer(&table, at(21 * 60 + 1)), "nowhere");
    // A server that has answered is not awaited, registry or not.
    let mut table = PeerTable::new(identity(ME));
    table.await_registry();
    table.set_leases(vec![seen(A, "h", 1)], start);
    table.set_addresses(&addresses(&[(A, 1)]), start);
    table.take_due(start);
    table.record_poll(&identity(A), Ok(served()), start, SystemTime::now(), 0.0);
    assert_eq!(answer(&table, start), "nowhere");
}
