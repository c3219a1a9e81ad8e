//! The fixtures of the tests of the peer table.

mod confirmation;
mod departures;
mod file_registry;
mod leases_and_polls;
mod listed_servers;
mod records;

use std::sync::Arc;
use std::time::SystemTime;

use super::*;
use crate::registry::{Addresses, AdvertisedAddress};
use crate::served_apis::ServedApis;
use crate::served_record::ServedRecord;

const A: &str = "apiserver-a";
const B: &str = "apiserver-b";
const LOCAL: &str = "apiserver-me";

fn identity(name: &str) -> Identity {
    Identity::named(name).unwrap()
}

fn lease_snapshot(name: &str, holder: &str, version: u32) -> LeaseSnapshot {
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
        version_suffix: Arc::default(),
        by_bridge: false,
    }
}

fn due(table: &mut PeerTable, at: Instant) -> Vec<String> {
    let due = table.take_due(at);
    due.iter().map(|peer| peer.identity.to_string()).collect()
}

/// A table that has polled A, whose bridge has then announced its departure; the address of the
/// server itself is `server`.
fn table_after_departure(server: Option<u16>, at: Instant, wall: SystemTime) -> PeerTable {
    let mut table = PeerTable::new(identity(LOCAL));
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
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

/// The table of the next process, with the records that the previous one stored.
fn restarted(before: &PeerTable, clock: Option<HostClock>) -> PeerTable {
    let mut table = PeerTable::new(identity(LOCAL));
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

/// An entry of the file: a bridge, and the server behind it.
fn in_file(server: Option<u16>) -> Addresses {
    let address = ([10, 0, 0, 1], 7443).into();
    let server = server.map(|port| ([10, 0, 0, 1], port).into());
    [(identity(A), AdvertisedAddress::by_file(address, server))].into()
}

/// With addresses in a file: A is in the file and has answered, and its bridge has then announced
/// its departure.
fn table_with_departed_bridge_in_file(server: Option<u16>, at: Instant) -> PeerTable {
    let wall = SystemTime::now();
    let mut table = PeerTable::new(identity(LOCAL)).with_addresses_in_file();
    table.set_leases(vec![lease_snapshot(A, "h", 1)], at);
    table.set_addresses(&in_file(server), at);
    table.set_published_records(&records(Some(666), None), at);
    table.take_due(at);
    table.record_poll(&identity(A), Ok(served()), at, wall, 0.0);
    table.set_published_records(&records(Some(666), Some(wall)), at);
    table
}

/// Polls A, and returns the polled port.
fn poll(table: &mut PeerTable, at: Instant, outcome: Result<ServedApis, String>) -> Option<u16> {
    let polled = table.take_due(at).pop();
    table.record_poll(&identity(A), outcome, at, SystemTime::now(), 0.0);
    polled.and_then(|peer| Some(peer.address?.port()))
}

fn refused() -> Result<ServedApis, String> {
    Err("refused".to_owned())
}
