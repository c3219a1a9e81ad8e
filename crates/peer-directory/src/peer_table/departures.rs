//! Bridges that have left: by an announcement in the served record of their server, or, where
//! addresses are in a file, since an administrator has removed the address from it.
//!
//! The clocks of other hosts do not count. A departure counts from when this process first
//! saw it, or an earlier process of the same boot of this host that has stored it.

use super::{
    Addresses, Arc, BTreeMap, BTreeSet, DirectPoll, Duration, Identity, Instant, PeerTable,
    ROLLOUT_GRACE, SystemTime,
};
use crate::served_record::StoredDeparture;

/// A stored time is written anew only if the departure counts from so much later.
const STORED_PRECISION: Duration = Duration::from_mins(1);

/// The bridge of a server has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Departure {
    /// As the record has it.
    pub(super) announced: Option<SystemTime>,
    /// The file of addresses does not have the server.
    pub(super) is_missing_in_file: bool,
    /// Since when it counts, by our own clock.
    pub(super) since: Instant,
}

impl Departure {
    /// Why the server is not reachable.
    pub(super) fn problem(&self) -> &'static str {
        if self.is_missing_in_file {
            "the --peer-registry file has no address for it"
        } else {
            "its bridge has left, and the server itself does not answer other hosts"
        }
    }

    /// Whether the bridge may still come back as part of a rollout.
    pub(super) fn is_recent(&self, at: Instant) -> bool {
        self.since + ROLLOUT_GRACE > at
    }
}

impl PeerTable {
    /// Finds out which bridges have left, by records and addresses.
    pub(super) fn update_departures(&mut self, at: Instant) {
        let identities: BTreeSet<_> = self.stored.keys().chain(self.published.keys()).collect();
        let departures: BTreeMap<_, _> = identities
            .into_iter()
            .filter_map(|identity| Some((identity.clone(), self.departure(identity, at)?)))
            .collect();
        let before = std::mem::replace(&mut self.departures, departures);
        for (identity, departure) in &self.departures {
            // The Lease may have been deleted before the announcement came.
            if departure.announced.is_some() && departure.is_recent(at) {
                let entry = self.entries.entry(identity.clone()).or_default();
                if entry.lease.is_none() {
                    entry.lease_ended_at.get_or_insert(at);
                }
            }
        }
        for (identity, entry) in &mut self.entries {
            let departure = (self.departures.get(identity)).filter(|_| !entry.has_bridge());
            match departure {
                None => {
                    entry.direct = DirectPoll::Untried;
                    if before.contains_key(identity) {
                        entry.next_fetch_is_direct = false;
                    }
                }
                Some(departure) => {
                    let known = before.get(identity);
                    if known.is_none_or(|known| known.since != departure.since) {
                        // The server itself may answer from now on.
                        entry.next_fetch_is_direct = true;
                        entry.fetch.refresh_now(at);
                    }
                }
            }
        }
        self.store_departures();
    }

    fn departure(&self, identity: &Identity, at: Instant) -> Option<Departure> {
        let stored = self.stored.get(identity);
        let record = self.published.get(identity).or(stored)?;
        let announced = record.bridge_left_at;
        let is_missing_in_file = self.is_missing_in_file(identity);
        if announced.is_none() && !is_missing_in_file {
            return None;
        }
        // A server without an address stays departed, whatever its bridge announces.
        let is_same = |before: Option<SystemTime>, was_missing: bool| {
            before == announced || (was_missing && is_missing_in_file)
        };
        let known = self.departures.get(identity);
        let known = known.filter(|it| is_same(it.announced, it.is_missing_in_file));
        let since = known.map_or_else(
            || {
                let stored = stored.and_then(|it| it.departure.as_ref());
                let stored = stored.filter(|it| is_same(it.announced, it.is_missing_in_file));
                let age = stored.zip(self.host_clock.as_ref());
                let age = age.and_then(|(stored, clock)| clock.time_at(at).since(&stored.since));
                // More than twice the time makes no difference.
                let age = age.unwrap_or_default().min(2 * ROLLOUT_GRACE);
                at.checked_sub(age).unwrap_or(at)
            },
            |it| it.since,
        );
        Some(Departure {
            announced,
            is_missing_in_file,
            since,
        })
    }

    /// Whether an administrator keeps the addresses, and has none for this server.
    fn is_missing_in_file(&self, identity: &Identity) -> bool {
        let is_in_it = |entry: &super::Entry| entry.published;
        self.file_is_read && !self.entries.get(identity).is_some_and(is_in_it)
    }

    /// An administrator has changed or removed the address that answered after a bridge had
    /// announced that it leaves.
    pub(super) fn end_direct_answers(&mut self, all: &Addresses, at: Instant) {
        let mut ended = Vec::new();
        for (identity, entry) in &mut self.entries {
            let answers = matches!(
                entry.direct,
                DirectPoll::ServerAnswers | DirectPoll::BridgeAnswers
            );
            if answers && all.get(identity) != entry.address.as_ref() {
                entry.direct = DirectPoll::Untried;
                ended.push(identity.clone());
            }
        }
        for identity in ended {
            self.restart_grace(&identity, at);
        }
    }

    /// A server whose bridge has left answers: the server itself, or the bridge, which drains,
    /// or has not announced it itself. The time of a rollout begins anew.
    pub(super) fn restart_grace(&mut self, identity: &Identity, at: Instant) {
        if let Some(departure) = self.departures.get_mut(identity) {
            departure.since = at;
        }
        self.store_departures();
    }

    /// For the next process of this host.
    fn store_departures(&mut self) {
        let is_known = self.file_is_read || !self.addresses_in_file;
        let Some(clock) = self.host_clock.as_ref().filter(|_| is_known) else {
            return;
        };
        for (identity, record) in &mut self.stored {
            let departure = self.departures.get(identity).map(|it| StoredDeparture {
                announced: it.announced,
                is_missing_in_file: it.is_missing_in_file,
                since: clock.time_at(it.since),
            });
            let is_same = match (&departure, &record.departure) {
                (Some(new), Some(old)) => {
                    let later = new.since.since(&old.since);
                    let is_near = later.is_some_and(|later| later < STORED_PRECISION);
                    let is_missing = new.is_missing_in_file;
                    let same_cause =
                        new.announced == old.announced && is_missing == old.is_missing_in_file;
                    same_cause && is_near
                }
                (None, None) => true,
                _ => false,
            };
            if !is_same {
                Arc::make_mut(record).departure = departure;
            }
        }
    }
}
