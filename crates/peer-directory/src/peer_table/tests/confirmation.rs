//! Whether the known APIs of a peer are later than the last sign that its server was replaced.

use super::*;

/// A table with the peer A, whose address is published, and which has answered.
fn polled(at: Instant) -> PeerTable {
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    table.set_addresses(&addresses(&[(A, 1)]), at);
    poll(&mut table, at, Ok(served()));
    table
}

fn is_unconfirmed(table: &PeerTable, at: Instant) -> bool {
    table.snapshot().has_unconfirmed(at)
}

#[test]
fn every_sign_of_a_replaced_server_needs_a_poll_that_begins_later() {
    type Sign = fn(&mut PeerTable, Instant);
    let signs: [(&str, Sign); 7] = [
        ("a failed poll", |table, at| {
            table.refresh(&identity(A), at);
            table.snapshot().peers[0].health.record_unanswered_poll();
            poll(table, at, refused());
        }),
        ("a failed request", |table, at| {
            table.snapshot().peers[0].health.record_failure(at);
        }),
        ("a false 404", |table, at| table.recheck(&identity(A), at)),
        ("a restart", |table, at| {
            table.update_lease(lease_snapshot(A, "new", 2), at);
        }),
        ("its return", |table, at| table.refresh(&identity(A), at)),
        ("another address", |table, at| {
            table.set_addresses(&addresses(&[(A, 2)]), at);
        }),
        ("the same address after it was withdrawn", |table, at| {
            table.set_addresses(&addresses(&[]), at);
            table.set_addresses(&addresses(&[(A, 1)]), at);
        }),
    ];
    let start = Instant::now();
    let later = start + Duration::from_secs(2);
    for (what, sign) in signs {
        let mut table = polled(start);
        assert!(!is_unconfirmed(&table, start), "{what}");
        sign(&mut table, later);
        assert!(is_unconfirmed(&table, later), "{what}");
        assert!(
            table.awaits_confirmation(later + Duration::from_millis(1)),
            "{what}"
        );
        // A poll that is already in progress confirms nothing.
        table.refresh(&identity(A), later);
        assert_eq!(due(&mut table, later), [A]);
        table.recheck(&identity(A), later);
        table.record_poll(&identity(A), Ok(served()), later, SystemTime::now(), 0.0);
        assert!(is_unconfirmed(&table, later), "{what}");
        table.refresh(&identity(A), later);
        poll(&mut table, later, Ok(served()));
        assert!(!is_unconfirmed(&table, later), "{what}");
        assert!(!table.awaits_confirmation(later), "{what}");
    }
}

#[test]
fn a_peer_is_polled_at_once_for_a_write_and_not_awaited_if_it_refuses() {
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let mut table = polled(start);
    table.refresh(&identity(A), at(100));
    table.snapshot().peers[0].health.record_unanswered_poll();
    for millis in [100, 400, 900] {
        poll(&mut table, at(millis), refused());
    }
    assert_eq!(due(&mut table, at(1_000)), [""; 0], "the backoff");
    let since = at(1_000);
    table.poll_unconfirmed(since, since);
    assert!(table.awaits_confirmation(since));
    assert_eq!(due(&mut table, since), [A]);
    // A second write does not cause another poll before the first one ends.
    table.poll_unconfirmed(at(1_000), at(1_001));
    table.record_poll(&identity(A), refused(), at(1_002), SystemTime::now(), 0.0);
    assert!(!table.awaits_confirmation(since), "it is down");
    assert!(
        table.awaits_confirmation(at(1_003)),
        "it may have returned since"
    );
    table.poll_unconfirmed(at(1_003), at(1_003));
    poll(&mut table, at(1_003), Ok(served()));
    assert!(!table.awaits_confirmation(at(1_004)));
}

#[test]
fn a_running_peer_that_answers_with_errors_is_not_polled_for_each_write() {
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let mut table = polled(start);
    table.refresh(&identity(A), at(100));
    poll(&mut table, at(100), Err("403".to_owned()));
    for millis in [100, 200, 349] {
        assert!(!table.awaits_confirmation(at(millis)), "{millis}");
        table.poll_unconfirmed(at(millis), at(millis));
        assert_eq!(due(&mut table, at(millis)), [""; 0], "{millis}");
    }
    assert!(table.awaits_confirmation(at(351)));
}

/// Its `/version` answers, so that it is reachable, and its discovery does not.
#[test]
fn a_peer_whose_discovery_hangs_keeps_no_write_waiting_until_it_answers_or_restarts() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut table = polled(start);
    let hang = |table: &mut PeerTable, began| {
        table.recheck(&identity(A), at(began));
        table.poll_unconfirmed(at(began), at(began));
        assert_eq!(due(table, at(began)), [A]);
        table.snapshot().peers[0].health.mark_reachable();
        let (ended, timeout) = (at(began + 5), Err("no answer within 5 s".to_owned()));
        table.record_poll(&identity(A), timeout, ended, SystemTime::now(), 0.0);
    };
    hang(&mut table, 10);
    assert!(is_unconfirmed(&table, at(16)));
    for seconds in [16, 60, 3_600] {
        assert!(!table.awaits_confirmation(at(seconds)), "{seconds}");
    }
    // It answers again, and fails again.
    table.refresh(&identity(A), at(3_601));
    poll(&mut table, at(3_601), Ok(served()));
    table.recheck(&identity(A), at(3_602));
    assert!(table.awaits_confirmation(at(3_602)));
    hang(&mut table, 3_610);
    assert!(!table.awaits_confirmation(at(3_620)));
    // It has restarted.
    table.update_lease(lease_snapshot(A, "new", 2), at(3_621));
    assert!(table.awaits_confirmation(at(3_621)));
}

#[test]
fn a_peer_that_hangs_or_cannot_be_polled_keeps_no_write_waiting() {
    let at = Instant::now();
    let hanging = polled(at);
    let peer = hanging.snapshot().peers[0].clone();
    peer.health.record_failure(at);
    assert!(hanging.awaits_confirmation(at));
    peer.health.record_timeout(Duration::from_secs(3));
    assert!(!hanging.awaits_confirmation(at));
    let mut without_address = PeerTable::new(identity(LOCAL));
    without_address.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    assert!(!without_address.awaits_confirmation(at));
    assert!(!is_unconfirmed(&without_address, at));
}

#[test]
fn a_running_peer_of_which_nothing_is_known_is_unread_for_a_bounded_time() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut table = PeerTable::new(identity(LOCAL));
    let unread = |table: &PeerTable, now| table.snapshot().unread(now).is_some();
    for seconds in [0, 10, 20, 30, 41] {
        let version = u32::try_from(seconds).unwrap();
        table.set_leases(vec![lease_snapshot(A, "h", version)], at(seconds));
        if seconds == 0 {
            assert!(
                !unread(&table, at(0)),
                "without an address it has no bridge"
            );
            table.set_addresses(&addresses(&[(A, 1)]), at(0));
        }
        poll(&mut table, at(seconds), refused());
        assert_eq!(unread(&table, at(seconds)), seconds < 40, "{seconds}");
    }
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], start);
    table.set_addresses(&addresses(&[(A, 1)]), start);
    assert!(unread(&table, start));
    table.snapshot().peers[0].health.record_unanswered_poll();
    assert!(!unread(&table, start), "no server runs there");
    table.snapshot().peers[0].health.mark_reachable();
    assert!(unread(&table, start));
    poll(&mut table, start, Ok(served()));
    assert!(!unread(&table, start));
    let table = restarted(&table, None);
    assert!(!unread(&table, start), "its record is stored");
}
