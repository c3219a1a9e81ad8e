//! Served records: which of them is used, and for how long they are kept.

use super::*;
use crate::peer::ApiSource;
use crate::served_record::MAX_RECORDS;

#[test]
fn records_of_servers_without_a_lease_are_kept_for_an_hour() {
    let at = Instant::now();
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
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
    // The server returns in the meantime.
    table.update_lease(lease_snapshot(A, "h", 2), later);
    table.expire(later);
    assert_eq!(outdated(&table, later), 0);
}

#[test]
fn the_number_of_records_is_bounded() {
    let mut table = PeerTable::new(identity(LOCAL));
    for number in 0..MAX_RECORDS + 9 {
        let name = format!("apiserver-{number}");
        let record = crate::served_record::tests::record(&name, &[], SystemTime::UNIX_EPOCH);
        table.store_record(Arc::new(record));
    }
    assert_eq!(table.stored_records().len(), MAX_RECORDS);
}

#[test]
fn the_latest_record_or_answer_is_used() {
    let (at, wall) = (Instant::now(), SystemTime::now());
    let second = Duration::from_secs(1);
    let record = |group: &str, observed_at| {
        let record = crate::served_record::tests::record(A, &[group], observed_at);
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
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    let mut answer = ServedRecord::clone(&record("stored", wall));
    answer.supersedes = Some(record("older", wall + second).observed_at);
    table.store_record(Arc::new(answer));
    assert_eq!(known(&table), ("stored".into(), Some(ApiSource::Stored)));
    table.set_published_records(&published(record("older", wall + second)), at);
    assert_eq!(known(&table), ("stored".into(), Some(ApiSource::Stored)));
    table.set_published_records(&published(record("newer", wall - second)), at);
    assert_eq!(known(&table), ("newer".into(), Some(ApiSource::Published)));
    assert!(table.stored_records()[&identity(A)].has_same_apis(&record("newer", wall)));
    // An answer takes precedence over earlier records, regardless of clocks.
    table.set_addresses(&addresses(&[(A, 1)]), at);
    table.take_due(at);
    table.record_poll(&identity(A), Ok(served()), at, wall, 0.0);
    assert_eq!(known(&table).1, Some(ApiSource::Polled));
    let newest = record("newest", wall - 2 * second);
    table.set_published_records(&published(newest), at);
    assert_eq!(known(&table), ("newest".into(), Some(ApiSource::Published)));
    // A record that arrives during a poll may be later than the answer.
    assert_eq!(due(&mut table, at), [A], "the server is polled at once");
    table.set_published_records(&published(record("last", wall)), at);
    table.record_poll(&identity(A), Ok(served()), at, wall, 0.0);
    assert_eq!(known(&table), ("last".into(), Some(ApiSource::Published)));
    // A record with the content of the answer is not later than the answer.
    let answer = ServedRecord::clone(&record("last", wall + second));
    table.store_polled_record(answer);
    assert_eq!(known(&table).1, Some(ApiSource::Polled));
}
