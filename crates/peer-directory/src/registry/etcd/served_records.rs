//! Served records in etcd, which outlive the bridges that wrote them.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use skewbridge_etcd::{Event, Revision};
use tokio::sync::watch;
use tokio::time::sleep;

use super::{CHECK_INTERVAL, EtcdRegistry, RegistryError, identity_from_key};
use crate::identity::Identity;
use crate::registry::Activity;
use crate::served_record::{MAX_RECORDS, RecordError, Records, ServedRecord};

/// The directory of served records under the prefix. They are not under a lease: a record
/// has to outlive the bridge that wrote it, and the host.
const SERVED_RECORDS_DIRECTORY: &str = "/skewbridge/served/";

impl EtcdRegistry {
    /// Watches the served records of all servers until an error.
    pub(super) async fn watch_records(
        &self,
        found: &watch::Sender<Option<Records>>,
    ) -> Result<(), RegistryError> {
        let client = self.client()?;
        let directory = self.served_directory();
        let listing = client.range_prefix(directory.as_bytes()).await?;
        self.records().clear();
        for kv in &listing.kvs {
            self.apply_record(&directory, &kv.key, &kv.value, kv.mod_revision);
        }
        self.send_records(found);
        self.reporter.succeeded(Activity::ReadRecords);
        let from = listing.revision.next();
        let mut watch = client.watch_prefix(directory.as_bytes(), from).await?;
        loop {
            for event in watch.next().await? {
                match event {
                    Event::Put(kv) => {
                        self.apply_record(&directory, &kv.key, &kv.value, kv.mod_revision);
                    }
                    Event::Delete { key, .. } => {
                        if let Some(identity) = identity_from_key(&directory, &key) {
                            self.records().remove(&identity);
                        }
                    }
                }
            }
            self.send_records(found);
        }
    }

    /// A record applies only to the server that its key names.
    fn apply_record(&self, directory: &str, key: &[u8], value: &[u8], revision: Revision) {
        let Some(identity) = identity_from_key(directory, key) else {
            return;
        };
        let mut records = self.records();
        match ServedRecord::decode(value) {
            Ok(record) if record.identity == identity => {
                if records.len() < MAX_RECORDS || records.contains_key(&identity) {
                    records.insert(identity, (Arc::new(record), revision));
                }
            }
            Ok(record) => {
                tracing::warn!(%identity, named = %record.identity, "a served record in etcd names another server, and is ignored");
                records.remove(&identity);
            }
            Err(error @ RecordError::UnknownVersion(_)) => {
                tracing::info!(%identity, %error, "a served record in etcd is ignored");
                records.remove(&identity);
            }
            Err(error) => {
                tracing::warn!(%identity, %error, "a served record in etcd is ignored");
                records.remove(&identity);
            }
        }
    }

    fn send_records(&self, found: &watch::Sender<Option<Records>>) {
        let records = self.records().clone().into_iter();
        let records = records.map(|(identity, (record, _))| (identity, record));
        found.send_replace(Some(records.collect()));
    }

    fn records(
        &self,
    ) -> std::sync::MutexGuard<'_, BTreeMap<Identity, (Arc<ServedRecord>, Revision)>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn served_directory(&self) -> String {
        match self.prefix.trim_matches('/') {
            "" => SERVED_RECORDS_DIRECTORY.to_owned(),
            prefix => format!("/{prefix}{SERVED_RECORDS_DIRECTORY}"),
        }
    }

    /// Writes the record of the local server whenever etcd has another one. Ends after the last record
    /// is written.
    pub(super) async fn publish_records(
        &self,
        own: &mut watch::Receiver<Option<Arc<ServedRecord>>>,
    ) -> Result<(), RegistryError> {
        let client = self.client()?;
        let mut written: Option<Arc<ServedRecord>> = None;
        loop {
            let record = own.borrow_and_update().clone();
            if let Some(record) = record {
                let is_known = (self.records().get(&record.identity))
                    .is_some_and(|(known, _)| known.has_same_content(&record));
                let is_written = written.as_ref().is_some_and(|it| Arc::ptr_eq(it, &record));
                let mut problem = None;
                if !(is_known || is_written && record.bridge_left_at.is_some()) {
                    match record.encode() {
                        Ok(value) => {
                            let key = self.served_directory() + record.identity.as_str();
                            client.put(key.as_bytes(), &value, None).await?;
                        }
                        Err(error) => {
                            if !is_written {
                                tracing::warn!(%error, "the served record of the local server is not published");
                            }
                            problem = Some(format!("the served record is not published: {error}"));
                        }
                    }
                }
                match problem {
                    None => self.reporter.succeeded(Activity::PublishRecord),
                    Some(problem) => self.reporter.failed(Activity::PublishRecord, problem),
                }
                if record.bridge_left_at.is_some() {
                    return Ok(());
                }
                written = Some(record);
            }
            tokio::select! {
                changed = own.changed() => if changed.is_err() { return Ok(()) },
                () = sleep(CHECK_INTERVAL) => {}
            }
        }
    }

    /// Removes a record unless it has been written again since it was found to be outdated.
    pub(super) async fn remove_record(&self, outdated: &ServedRecord) -> Result<(), RegistryError> {
        let identity = &outdated.identity;
        let known = self.records().get(identity).cloned();
        if let Some((record, revision)) = known
            && record.observed_at == outdated.observed_at
        {
            let key = self.served_directory() + identity.as_str();
            let client = self.client()?;
            if client.delete_if_unchanged(key.as_bytes(), revision).await? {
                tracing::info!(%identity, "the served record of a server without a Lease is removed from etcd");
            }
        }
        Ok(())
    }
}
