//! Departures with the addresses in a file (`--peer-registry=file:PATH`).

use super::*;

#[test]
fn a_departed_bridge_is_kept_for_the_rollout_grace_although_the_file_has_its_address() {
    let at = Instant::now();
    let mut table = table_with_departed_bridge_in_file(None, at);
    assert!(table.snapshot().peers[0].record.bridge_left);
    let mut now = at;
    for number in 2..9 {
        now += Duration::from_secs(30);
        table.update_lease(lease_snapshot(A, "h", number), now);
        let port = poll(&mut table, now, refused());
        assert!(port == Some(7443) || port.is_none(), "{port:?}");
        table.expire(now);
        assert!(table.snapshot().peers[0].served.is_some());
    }
    assert!(table.expire(at + ROLLOUT_GRACE), "the expiry is reported");
    let peer = table.snapshot().peers.remove(0);
    assert!(peer.served.is_none() && peer.record.bridge_left);
    // The bridge has returned: its record shows that, or it answers.
    let mut answering = table_with_departed_bridge_in_file(None, at);
    answering.expire(at + ROLLOUT_GRACE);
    assert!(answering.snapshot().peers[0].served.is_none());
    poll(&mut answering, at + ROLLOUT_GRACE, Ok(served()));
    let peer = answering.snapshot().peers.remove(0);
    assert!(peer.served.is_some() && !peer.record.bridge_left);
    table.set_published_records(&records(None, None), at + ROLLOUT_GRACE);
    let peer = table.snapshot().peers.remove(0);
    assert!(peer.served.is_some() && !peer.record.bridge_left);
}

/// A writer of Leases cannot set addresses, and a bridge that answers has not departed.
#[test]
fn records_do_not_change_the_polled_address_of_a_server_in_the_file() {
    let mut now = Instant::now();
    let mut table = table_with_departed_bridge_in_file(None, now);
    for number in 2..40 {
        now += Duration::from_mins(1);
        table.update_lease(lease_snapshot(A, "h", number), now);
        assert_eq!(poll(&mut table, now, Ok(served())), Some(7443));
        table.expire(now);
        let peer = table.snapshot().peers.remove(0);
        assert!(peer.served.is_some() && !peer.record.bridge_left);
        assert_eq!(peer.problem, None);
        assert!(peer.record.serving_keys.is_empty());
    }
    // The grace period begins at its last answer.
    let later = now + ROLLOUT_GRACE / 2;
    assert_eq!(poll(&mut table, later, refused()), Some(7443));
    table.expire(later);
    assert!(table.snapshot().peers[0].served.is_some());
    table.expire(now + ROLLOUT_GRACE);
    assert!(table.snapshot().peers[0].served.is_none());
}

#[test]
fn a_server_in_the_file_is_polled_directly_after_its_bridge_has_departed() {
    let mut now = Instant::now();
    let mut table = table_with_departed_bridge_in_file(Some(6443), now);
    let mut ports = Vec::new();
    for _ in 0..3 {
        ports.extend(poll(&mut table, now, refused()));
        now += Duration::from_secs(5);
    }
    assert_eq!(ports, [6443, 7443, 6443], "alternately");
    ports.clear();
    ports.extend(poll(&mut table, now, refused()));
    now += Duration::from_secs(5);
    ports.extend(poll(&mut table, now, Ok(served())));
    assert_eq!(ports, [7443, 6443]);
    let later = now + 2 * ROLLOUT_GRACE;
    table.update_lease(lease_snapshot(A, "h", 2), later);
    table.expire(later);
    let peer = table.snapshot().peers.remove(0);
    assert!(peer.served.is_some() && peer.record.bridge_left);
    assert_eq!(peer.address, Some(([10, 0, 0, 1], 6443).into()));
    assert_eq!(peer.problem, None);
    // The server is removed from the file, or only the address at which it answers.
    for changed in [Addresses::new(), in_file(None)] {
        let mut table = table_with_departed_bridge_in_file(Some(6443), now);
        poll(&mut table, now, Ok(served()));
        table.update_lease(lease_snapshot(A, "h", 3), later);
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
    assert_eq!(poll(&mut table, later, Ok(served())), Some(7443));
}

/// The answer arrives from an address that the administrator has removed in the meantime.
#[test]
fn a_poll_that_began_before_the_file_changed_does_not_prove_that_a_server_answers() {
    let at = Instant::now();
    for changed in [in_file(None), in_file(Some(6444)), Addresses::new()] {
        let mut table = table_with_departed_bridge_in_file(Some(6443), at);
        let polled = table.take_due(at).pop().and_then(|peer| peer.address);
        assert_eq!(polled.map(|it| it.port()), Some(6443));
        table.set_addresses(&changed, at);
        table.record_poll(&identity(A), Ok(served()), at, SystemTime::now(), 0.0);
        let peer = table.snapshot().peers.remove(0);
        assert!(peer.record.bridge_left && peer.problem.is_some());
        table.expire(at + ROLLOUT_GRACE);
        assert!(table.snapshot().peers[0].served.is_none(), "{changed:?}");
    }
}

#[test]
fn a_server_whose_address_was_removed_from_the_file_is_kept_for_the_rollout_grace() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let mut table = PeerTable::new(identity(LOCAL)).with_addresses_in_file();
    table.set_host_clock(Some(clock("one", at, 0)));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    table.set_addresses(&in_file(None), at);
    table.take_due(at);
    table.record_poll(&identity(A), Ok(served()), at, wall, 0.0);
    table.set_published_records(&records(Some(666), None), at);
    table.set_addresses(&Addresses::new(), at);
    let peer = table.snapshot().peers.remove(0);
    assert!(peer.served.is_some() && peer.record.bridge_left);
    assert_eq!(peer.address, None, "it is no longer polled");
    assert!(
        peer.problem
            .as_ref()
            .unwrap()
            .contains("--peer-registry file")
    );

    // A restart of this bridge does not extend the grace period.
    let half = at + ROLLOUT_GRACE / 2;
    let mut next = restarted(&table, Some(clock("one", half, 150_000)));
    next.addresses_in_file = true;
    next.set_leases(vec![lease_snapshot(A, "h", 1)], half);
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
