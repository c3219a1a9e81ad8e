//! Reads identity Leases: snapshots for the peer table, addresses in annotations, and Leases that
//! were deleted recently.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use skewbridge_peer_directory::peer_table::ROLLOUT_GRACE;
use skewbridge_peer_directory::registry::{Addresses, AdvertisedAddress};
use skewbridge_peer_directory::served_record::MAX_RECORDS;
use skewbridge_peer_directory::{
    Identity, IdentityLease, LeaseSnapshot, Records, WatchedObject as _,
};

pub(super) fn lease_snapshot(lease: &IdentityLease) -> LeaseSnapshot {
    LeaseSnapshot {
        identity: lease.identity().clone(),
        host: lease.hostname().map(str::to_owned),
        holder: lease.holder().unwrap_or_default().to_owned(),
        resource_version: lease.resource_version().to_owned(),
    }
}

/// Addresses in annotations of Leases. A bridge that renews the Lease of its server writes the
/// annotation that kube-apiserver writes otherwise. Then the served record has the same address.
pub(super) fn annotated_addresses(
    leases: &BTreeMap<Identity, IdentityLease>,
    records: &Records,
) -> Addresses {
    let advertised = |(identity, lease): (&Identity, &IdentityLease)| {
        let address = lease.peer_address()?;
        let is_bridge = lease.bridge_address().is_some()
            || (records.get(identity))
                .is_some_and(|it| it.bridge_left_at.is_none() && it.bridge == Some(address));
        let advertised = if is_bridge {
            AdvertisedAddress::by_bridge(address)
        } else {
            AdvertisedAddress::by_server(address)
        };
        Some((identity.clone(), advertised))
    };
    leases.iter().filter_map(advertised).collect()
}

/// The servers that have a Lease, with the address in its annotations. It identifies a server and is
/// not used for routing.
pub(super) fn lease_addresses(
    leases: &BTreeMap<Identity, IdentityLease>,
) -> BTreeMap<Identity, Option<SocketAddr>> {
    let leases = leases.iter();
    leases
        .map(|(identity, lease)| (identity.clone(), lease.peer_address()))
        .collect()
}

/// Leases that were deleted recently. Where Leases are the registry, the deletion of a Lease
/// removes the address of the bridge and the served record, but a server since 1.35 also deletes
/// its Lease when it restarts. The peer table decides how long a server counts as running without
/// a Lease; annotations are kept for the longest of these times.
#[derive(Debug, Default)]
pub(super) struct EndedLeases(BTreeMap<Identity, (IdentityLease, Instant)>);

impl EndedLeases {
    pub(super) fn add(&mut self, lease: IdentityLease, now: Instant) {
        // Leases that are created and deleted in a loop must not accumulate.
        if self.0.len() < MAX_RECORDS || self.0.contains_key(lease.identity()) {
            self.0.insert(lease.identity().clone(), (lease, now));
        }
    }

    /// Existing Leases, and those that were deleted recently.
    pub(super) fn with_existing(
        &mut self,
        existing: &BTreeMap<Identity, IdentityLease>,
        now: Instant,
    ) -> BTreeMap<Identity, IdentityLease> {
        self.0.retain(|identity, (_, ended)| {
            !existing.contains_key(identity) && *ended + ROLLOUT_GRACE > now
        });
        let ended = self.0.iter();
        let ended = ended.map(|(identity, (lease, _))| (identity.clone(), lease.clone()));
        ended.chain(existing.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn the_number_of_ended_leases_is_bounded() {
        let now = Instant::now();
        let mut ended = EndedLeases::default();
        for number in 0..MAX_RECORDS + 9 {
            let identity = Identity::named(&format!("apiserver-{number}")).unwrap();
            let lease = IdentityLease::new(&identity, "host", "holder", SystemTime::UNIX_EPOCH);
            ended.add(lease, now);
        }
        assert_eq!(
            ended.with_existing(&BTreeMap::new(), now).len(),
            MAX_RECORDS
        );
    }
}
