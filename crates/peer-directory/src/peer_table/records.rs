//! Served records: in the registry, and in `--state-dir`.

use std::sync::Arc;
use std::time::Instant;

use super::entry::Entry;
use super::{PeerTable, RECORD_RETENTION};
use crate::identity::Identity;
use crate::peer::ApiSource;
use crate::served_apis::ServedApis;
use crate::served_record::{MAX_RECORDS, Records, ServedRecord};

impl PeerTable {
    /// Keeps a record that an earlier process of this bridge stored.
    pub fn store_record(&mut self, mut record: Arc<ServedRecord>) {
        let stored = self.stored.get(&record.identity);
        let has_room = stored.is_some() || self.stored.len() < MAX_RECORDS;
        if record.identity != self.own && has_room {
            if let Some(departure) = stored.and_then(|it| it.departure.clone())
                && record.departure.is_none()
            {
                Arc::make_mut(&mut record).departure = Some(departure);
            }
            self.stored.insert(record.identity.clone(), record);
        }
    }

    /// Stores the record of the last answer of a server, and keeps the data of its bridge.
    pub fn store_polled_record(&mut self, mut answer: ServedRecord) {
        let identity = &answer.identity;
        let stored = self.stored.get(identity);
        let published = self.published.get(identity);
        let known = stored.and_then(|it| it.supersedes);
        if let Some(entry) = self.entries.get_mut(identity) {
            if let Some(published) = published
                && published.has_same_apis(&answer)
            {
                entry.superseded = Some(published.observed_at);
            }
            answer.supersedes = entry.superseded.or(known);
        }
        if let Some(record) = published.or(stored) {
            answer = answer.with_bridge_of(record);
        }
        self.store_record(Arc::new(answer));
    }

    /// Stores a published record that has changed. It replaces the stored record, unless that is an
    /// answer that is later than this record.
    fn store_published_record(&mut self, published: &ServedRecord, at: Instant) {
        let observed_at = published.observed_at;
        let stored = self.stored.get(&published.identity);
        let answer = stored.filter(|it| it.supersedes != Some(it.observed_at));
        let entry = self.entries.get_mut(&published.identity);
        if let Some(entry) = entry
            && entry.served.is_some()
            && entry.superseded != Some(observed_at)
        {
            if answer.is_some_and(|it| it.has_same_apis(published)) {
                entry.superseded = Some(observed_at);
            } else {
                // The server has changed: poll it.
                entry.poll_again(at);
            }
        }
        let is_answered = |it: &&Arc<ServedRecord>| it.supersedes == Some(observed_at);
        let mut record = match answer.filter(is_answered) {
            Some(answer) => ServedRecord::clone(answer).with_bridge_of(published),
            None => published.clone(),
        };
        record.supersedes = Some(observed_at);
        // Only departures that this host has stored.
        record.departure = None;
        self.store_record(Arc::new(record));
    }

    /// The last known record of each server: the content for `--state-dir`.
    pub fn stored_records(&self) -> &Records {
        &self.stored
    }

    /// The served records in the registry.
    pub fn published_records(&self) -> &Records {
        &self.published
    }

    /// Records in the registry whose servers have had no Lease for [`RECORD_RETENTION`].
    pub fn outdated_records(&self, at: Instant) -> impl Iterator<Item = &Arc<ServedRecord>> {
        self.published.values().filter(move |record| {
            let since = self.without_lease_since.get(&record.identity);
            since.is_some_and(|since| *since + RECORD_RETENTION <= at)
        })
    }

    /// Sets all records in the registry. A record is used if it arrived later than other data,
    /// regardless of the clocks of other hosts.
    pub fn set_published_records(&mut self, all: &Records, at: Instant) {
        let before = std::mem::replace(&mut self.published, all.clone());
        self.published.remove(&self.own);
        for record in self.published.clone().values() {
            let known = before.get(&record.identity);
            if known.is_none_or(|known| known.observed_at != record.observed_at) {
                // A bridge has just written it: its server may be about to return.
                self.without_lease_since.remove(&record.identity);
            }
            let is_same = |known: &Arc<ServedRecord>| {
                known.observed_at == record.observed_at && known.has_same_content(record)
            };
            if !known.is_some_and(is_same) {
                self.store_published_record(record, at);
            }
        }
        self.update_departures(at);
        self.remove_unused_entries(at);
    }

    pub(super) fn retain_records(&mut self, at: Instant) {
        if !self.leases_listed {
            return;
        }
        let entries = &self.entries;
        let has_lease = |identity: &Identity| {
            let entry = entries.get(identity);
            entry.is_some_and(Entry::runs)
        };
        self.without_lease_since.retain(|identity, _| {
            let is_kept =
                self.stored.contains_key(identity) || self.published.contains_key(identity);
            is_kept && !has_lease(identity)
        });
        for identity in self.stored.keys().chain(self.published.keys()) {
            if !has_lease(identity) {
                self.without_lease_since
                    .entry(identity.clone())
                    .or_insert(at);
            }
        }
        let without_lease_since = &self.without_lease_since;
        self.stored.retain(|identity, _| {
            let since = without_lease_since.get(identity);
            since.is_none_or(|since| *since + RECORD_RETENTION > at)
        });
    }

    /// The record that is used if the server has not been polled: the published one, unless a later
    /// answer is stored.
    fn record(&self, identity: &Identity) -> Option<(&Arc<ServedRecord>, ApiSource)> {
        match (self.published.get(identity), self.stored.get(identity)) {
            (Some(published), Some(stored))
                if stored.supersedes == Some(published.observed_at)
                    && stored.observed_at != published.observed_at =>
            {
                Some((stored, ApiSource::Stored))
            }
            (Some(published), _) => Some((published, ApiSource::Published)),
            (None, Some(stored)) => Some((stored, ApiSource::Stored)),
            (None, None) => None,
        }
    }

    /// The last known served APIs of a server: its own answer, unless another record was published
    /// since that poll began.
    pub(super) fn served(
        &self,
        identity: &Identity,
        entry: &Entry,
    ) -> Option<(Arc<ServedApis>, ApiSource)> {
        let published = self
            .published
            .get(identity)
            .map(|record| record.observed_at);
        let stored = self.stored.get(identity);
        let latest = published.or_else(|| stored.and_then(|record| record.supersedes));
        match (&entry.served, self.record(identity)) {
            (Some(polled), _) if latest.is_none() || latest == entry.superseded => {
                Some((polled.clone(), ApiSource::Polled))
            }
            (_, Some((record, source))) => Some((record.served.clone(), source)),
            (polled, None) => polled.clone().map(|polled| (polled, ApiSource::Polled)),
        }
    }
}
