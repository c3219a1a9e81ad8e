//! Announced departures of bridges, and the rollout grace that follows them.

use super::*;

#[test]
fn a_server_whose_bridge_has_departed_is_polled_directly_if_its_address_is_known() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let mut table = table_after_departure(Some(6443), at, wall);
    let polled = table.take_due(at);
    assert_eq!(polled[0].address, Some(([10, 0, 0, 1], 6443).into()));
    table.record_poll(&identity(A), Ok(served()), at, wall, 0.0);
    let later = at + 2 * ROLLOUT_GRACE;
    table.update_lease(lease_snapshot(A, "h", 2), later);
    table.expire(later);
    let peer = &table.snapshot().peers[0];
    assert!(peer.served.is_some() && peer.record.bridge_left);

    // The server does not answer: after the grace period its APIs are dropped.
    let mut table = table_after_departure(Some(6443), at, wall);
    table.take_due(at);
    table.record_poll(&identity(A), Err("refused".into()), at, wall, 0.0);
    table.expire(later);
    assert!(table.snapshot().peers[0].served.is_none());
    // Until it answers.
    table.update_lease(lease_snapshot(A, "h", 2), later);
    assert_eq!(due(&mut table, later), [A]);
    table.record_poll(&identity(A), Ok(served()), later, wall, 0.0);
    assert!(table.snapshot().peers[0].served.is_some());
}

#[test]
fn an_unreachable_server_whose_bridge_has_departed_is_kept_for_the_rollout_grace() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let mut table = table_after_departure(None, at, wall);
    let before = at + ROLLOUT_GRACE / 2;
    table.update_lease(lease_snapshot(A, "h", 2), before);
    assert!(!table.expire(before));
    let peer = &table.snapshot().peers[0];
    assert!(peer.served.is_some() && peer.record.bridge_left);
    assert_eq!(peer.address, None, "the address of its bridge is withdrawn");
    assert!(table.expire(at + ROLLOUT_GRACE), "the expiry is reported");
    assert!(
        !table.expire(at + ROLLOUT_GRACE),
        "the expiry is reported once"
    );
    let peer = &table.snapshot().peers[0];
    assert!(peer.served.is_none() && peer.record.bridge_left);
    assert!(!peer.is_awaited(at + ROLLOUT_GRACE));

    // The bridge starts again.
    let later = at + 2 * ROLLOUT_GRACE;
    table.set_addresses(&addresses(&[(A, 1)]), later);
    let peer = &table.snapshot().peers[0];
    assert!(peer.served.is_some() && !peer.record.bridge_left);
    table.set_published_records(&records(None, None), later);
    // It crashes, which is not a departure.
    table.set_addresses(&addresses(&[]), later);
    table.expire(later + 2 * ROLLOUT_GRACE);
    assert!(table.snapshot().peers[0].served.is_some());
}

/// The Lease that holds the record is deleted and created again.
#[test]
fn an_announcement_outlives_the_published_record() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let mut table = table_after_departure(None, at, wall);
    table.set_published_records(&Records::new(), at);
    assert!(table.snapshot().peers[0].record.bridge_left);
    assert!(table.expire(at + ROLLOUT_GRACE));
    assert!(table.snapshot().peers[0].served.is_none());

    // The departure is also in `--state-dir`.
    let mut restarted = restarted(&table, None);
    restarted.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    assert!(restarted.snapshot().peers[0].served.is_some());
    restarted.set_published_records(&Records::new(), at);
    assert!(restarted.snapshot().peers[0].record.bridge_left);
    assert!(restarted.expire(at + ROLLOUT_GRACE));
    assert!(restarted.snapshot().peers[0].served.is_none());
}

#[test]
fn the_grace_of_a_new_announcement_begins_at_its_arrival() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    table.set_published_records(&records(None, None), at);
    // The clock of that host is slow.
    let announced = wall - 2 * ROLLOUT_GRACE;
    table.set_published_records(&records(None, Some(announced)), at);
    table.expire(at + ROLLOUT_GRACE / 2);
    assert!(table.snapshot().peers[0].served.is_some());
    assert!(table.expire(at + ROLLOUT_GRACE));
}

/// The clock of another host is not trusted.
#[test]
fn the_grace_of_an_existing_announcement_begins_at_its_first_observation() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let hour = Duration::from_hours(1);
    for announced in [wall, wall - hour, wall + 9 * hour, SystemTime::UNIX_EPOCH] {
        let mut table = PeerTable::new(identity(LOCAL));
        table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
        table.set_published_records(&records(None, Some(announced)), at);
        let before = at + ROLLOUT_GRACE * 9 / 10;
        table.update_lease(lease_snapshot(A, "h", 2), before);
        assert!(!table.expire(before), "{announced:?}");
        assert!(table.snapshot().peers[0].served.is_some());
        assert!(table.expire(at + ROLLOUT_GRACE), "{announced:?}");
        assert!(table.snapshot().peers[0].served.is_none());
    }
}

#[test]
fn the_grace_of_a_stored_announcement_begins_when_this_host_first_observed_it() {
    // A time that survives encoding.
    let wall = SystemTime::UNIX_EPOCH + Duration::from_hours(500_000);
    let at = Instant::now();
    let minute = Duration::from_mins(1);
    let left = records(None, Some(wall));
    // The wall clock may be set, so it is not used.
    let table = [
        (Some(clock("one", at, 4 * 60_000)), minute),
        (Some(clock("one", at, 100 * 60_000)), Duration::ZERO),
        // After a reboot, or with an unreadable clock.
        (Some(clock("other", at, 4 * 60_000)), ROLLOUT_GRACE),
        (None, ROLLOUT_GRACE),
    ];
    for (next, remaining) in table {
        let mut first = PeerTable::new(identity(LOCAL));
        first.set_host_clock(Some(clock("one", at, 0)));
        first.set_leases(vec![lease_snapshot(A, "h", 1)], at);
        first.set_published_records(&left, at);
        // A polled record that is stored in the meantime changes nothing.
        first.store_polled_record(ServedRecord::clone(&left[&identity(A)]));

        let mut second = restarted(&first, next.clone());
        second.set_leases(vec![lease_snapshot(A, "h", 1)], at);
        second.set_published_records(&left, at);
        second.expire(at);
        if !remaining.is_zero() {
            let last = at + remaining * 9 / 10;
            second.update_lease(lease_snapshot(A, "h", 2), last);
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

#[test]
fn a_server_and_bridge_that_depart_together_are_kept_for_the_rollout_grace() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let is_removed = |table: &mut PeerTable, at| {
        table.expire(at);
        table.snapshot().peers.is_empty()
    };
    // In either order.
    let mut table = table_after_departure(None, at, wall);
    table.remove_lease(&identity(A), at);
    assert!(!is_removed(&mut table, at + ROLLOUT_GRACE / 2));
    assert!(is_removed(&mut table, at + ROLLOUT_GRACE));
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(Vec::new(), at);
    table.set_published_records(&records(None, Some(wall)), at);
    assert!(!is_removed(&mut table, at + ROLLOUT_GRACE / 2));
    assert!(is_removed(&mut table, at + ROLLOUT_GRACE));
}

#[test]
fn after_a_crash_of_a_bridge_its_server_and_the_bridge_are_polled_alternately() {
    let (mut at, wall) = (Instant::now(), SystemTime::now());
    let mut table = table_after_departure(None, at, wall);
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
