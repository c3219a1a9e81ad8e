//! Departures of bridges: announced in the served record of their server, or, with addresses in a
//! file, implied when an administrator removes the address from it.
//!
//! The clocks of other hosts are not trusted. A departure begins when this process first observes
//! it, or when an earlier process in the same boot of this host observed and stored it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::entry::{DirectPoll, Entry};
use super::{PeerTable, ROLLOUT_GRACE};
use crate::identity::Identity;
use crate::registry::Addresses;
use crate::served_record::StoredDeparture;

/// A stored time is rewritten only if the departure begins at least this much later.
const STORED_PRECISION: Duration = Duration::from_mins(1);

/// The departure of the bridge of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Departure {
    /// The time in the served record.
    pub(super) announced: Option<SystemTime>,
    /// Whether the file of addresses has no entry for the server.
    pub(super) is_missing_in_file: bool,
    /// When the departure began, by the clock of this host.
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

    /// Whether the bridge may still return as part of a rollout.
    pub(super) fn is_recent(&self, at: Instant) -> bool {
        self.since + ROLLOUT_GRACE > at
    }
}

impl Entry {
    /// Treats a server whose bridge departed long ago as one that never had a bridge.
    /// Returns whether that changed.
    pub(super) fn end_grace(&mut self, departure: Option<&Departure>, at: Instant) -> bool {
        let has_left = departure.is_some_and(|it| !it.is_recent(at)) && !self.has_bridge();
        let has_ended = has_left && self.direct == DirectPoll::Untried;
        if has_ended {
            self.direct = DirectPoll::GraceExpired;
        }
        has_ended
    }
}

impl PeerTable {
    /// Computes the departures from records and addresses.
    pub(super) fn update_departures(&mut self, at: Instant) {
        let identities: BTreeSet<_> = self.stored.keys().chain(self.published.keys()).collect();
        let departures: BTreeMap<_, _> = identities
            .into_iter()
            .filter_map(|identity| Some((identity.clone(), self.departure(identity, at)?)))
            .collect();
        let before = std::mem::replace(&mut self.departures, departures);
        for (identity, departure) in &self.departures {
            // The Lease may have been deleted before the announcement arrived.
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
                        entry.next_poll_is_direct = false;
                    }
                }
                Some(departure) => {
                    let known = before.get(identity);
                    if known.is_none_or(|known| known.since != departure.since) {
                        // The server itself may be reachable from now on.
                        entry.next_poll_is_direct = true;
                        entry.poll_again(at);
                    }
                }
            }
        }
        self.store_departures();
    }

    fn departure(&self, identity: &Identity, at: Instant) -> Option<Departure> {
        let stored = self.stored.get(identity);
        let record = self.published.get(identity).or(stored)?;
        if identity.address().is_some() {
            // A server that never had a bridge.
            return None;
        }
        let announced = record.bridge_left_at;
        let is_missing_in_file = self.is_missing_in_file(identity);
        if announced.is_none() && !is_missing_in_file {
            return None;
        }
        // A server without an address stays departed, regardless of announcements.
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
                // A longer age makes no difference.
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

    /// Whether addresses are in a file that has none for this server.
    fn is_missing_in_file(&self, identity: &Identity) -> bool {
        let is_in_it = |entry: &Entry| entry.published;
        self.file_is_read && !self.entries.get(identity).is_some_and(is_in_it)
    }

    /// Ends direct polls of addresses that an administrator has changed or removed after they
    /// answered for a departed bridge.
    pub(super) fn end_direct_polls(&mut self, all: &Addresses, at: Instant) {
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

    /// Restarts [`ROLLOUT_GRACE`] because a server whose bridge has departed answers: either the
    /// server itself, or the bridge, which still drains or has not sent the announcement itself.
    pub(super) fn restart_grace(&mut self, identity: &Identity, at: Instant) {
        if let Some(departure) = self.departures.get_mut(identity) {
            departure.since = at;
        }
        self.store_departures();
    }

    /// Stores the departures for the next process on this host.
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
