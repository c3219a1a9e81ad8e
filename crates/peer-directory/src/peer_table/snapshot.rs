//! The peers as routing reads them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::entry::DirectPoll;
use super::{
    ADDRESS_GRACE, DISCOVERY_GRACE, LISTED_DURATION, PeerTable, RENEWAL_TIMEOUT, RegistryRead,
};
use crate::identity::Identity;
use crate::peer::{Peer, PeerRecord, Peers};
use crate::registry::AddressOrigin;

impl PeerTable {
    /// The snapshot for routing.
    pub fn snapshot(&self) -> Peers {
        Peers {
            leases_listed: self.leases_listed,
            peers: (self.entries.keys())
                .filter(|identity| !self.counted_by_address.contains(*identity))
                .filter_map(|identity| self.peer(identity).map(Arc::new))
                .collect(),
        }
    }

    pub(super) fn peer(&self, identity: &Identity) -> Option<Peer> {
        let entry = self.entries.get(identity)?;
        let advertised = self.address(identity);
        let address = advertised.map(|it| it.address);
        let known = self.served(identity, entry);
        let without_bridge = entry.direct == DirectPoll::GraceExpired;
        let known = known.filter(|_| !without_bridge);
        let awaited = |first: Instant, alive_until, grace| match self.registry {
            RegistryRead::NotAwaited => first + grace,
            RegistryRead::Pending => alive_until,
            RegistryRead::At(read) => first.max(read) + grace,
        };
        let ended_at = entry.lease_ended_at;
        let (alive_until, awaited_until) = match (&entry.lease, ended_at) {
            (None, _) if let Some(listed) = entry.listed_since => {
                let alive_until = listed + LISTED_DURATION;
                (alive_until, awaited(listed, alive_until, DISCOVERY_GRACE))
            }
            (Some(state), _) => {
                let grace = match address {
                    None if without_bridge => Duration::ZERO,
                    Some(_) if without_bridge => ADDRESS_GRACE,
                    Some(_) => DISCOVERY_GRACE,
                    None => ADDRESS_GRACE,
                };
                // A server that is listed runs, even if only a killed bridge has renewed its Lease.
                let is_listed = self.listed.identified.contains_key(identity);
                let renewal_timeout = if is_listed {
                    LISTED_DURATION
                } else {
                    RENEWAL_TIMEOUT
                };
                let alive_until = state.changed + renewal_timeout;
                (alive_until, awaited(state.first, alive_until, grace))
            }
            // Known, and currently without a Lease.
            (None, Some(lease_ended_at)) if known.is_some() => (lease_ended_at, lease_ended_at),
            (None, _) => return None,
        };
        let departure = self.departures.get(identity);
        let answers = entry.has_bridge() || entry.direct == DirectPoll::BridgeAnswers;
        let departure = departure.filter(|_| !answers);
        let bridge_left = departure.is_some();
        let departure_problem = departure.filter(|_| entry.direct != DirectPoll::ServerAnswers);
        // A kube-apiserver may use the address of a killed bridge now.
        let is_bridge = advertised.is_some_and(|it| {
            it.origin != AddressOrigin::Server && entry.bridge_address == Some(it.address)
        });
        let origin = advertised.map(|it| it.origin);
        let is_published_by_bridge =
            advertised.is_some_and(|it| it.origin == AddressOrigin::Bridge);
        let published = self.published.get(identity);
        Some(Peer {
            identity: identity.clone(),
            host: entry.host.clone(),
            address,
            published: entry.published,
            alive_until,
            awaited_until,
            record: PeerRecord {
                origin,
                // A Lease that was found may be old.
                renewed_at: (entry.lease.as_ref())
                    .filter(|state| state.changed > state.first)
                    .map(|state| state.changed),
                fallback: self.fallback(identity, entry, known.as_ref(), alive_until),
                source: known.as_ref().map(|(_, source)| *source),
                bridge_left,
                is_bridge,
                // The keys belong to the bridge that wrote the record: not to the server behind
                // it, and not to a later bridge of an older release.
                serving_keys: match published {
                    Some(record)
                        if is_published_by_bridge
                            && record.bridge_left_at.is_none()
                            && record.bridge == address =>
                    {
                        record.serving_keys.clone()
                    }
                    _ => Vec::new(),
                },
            },
            served: known.map(|(served, _)| served),
            health: entry.health.clone(),
            last_success: entry.last_success,
            problem: match (entry.refused_address, departure_problem, address) {
                (Some(refused_address), ..) => Some(format!(
                    "the address that it has published, {refused_address}, is refused: it is in none \
                     of the --peer-cidrs"
                )),
                (None, Some(departure), _) => Some(departure.problem().to_owned()),
                // `reachability` derives the reason from the status of the registry.
                (None, None, None) => None,
                (None, None, Some(_)) => entry.problem.clone(),
            },
        })
    }
}
