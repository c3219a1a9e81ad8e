//! Loads the fields of a server: from `--state-dir`, or else from the server. Files are read and
//! written on threads that may block, because the control thread has the timers of the bridge.

use std::collections::HashMap;
use std::sync::Arc;

use skewbridge_field_sets::ServerFields;
use skewbridge_peer_directory::SharedGroupVersions;
use tokio::task::spawn_blocking;

use super::cache_dir::StoredFields;
use super::fetch::fetch;
use super::{CacheDir, FieldSource, NeededFields, UsedFields};
use crate::control::internal_client::{InternalClient, InternalTarget};

/// Why the fields of a server are not known.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum FieldLoadError {
    /// They are not stored, and the server is not available.
    NotStored,
    /// The server has not answered as expected.
    Failed(String),
}

/// The field sets that earlier processes have stored, by the names of their files.
pub(in super::super) async fn load_stored(cache: CacheDir) -> HashMap<String, StoredFields> {
    let read = spawn_blocking(move || cache.read_all());
    // The join fails only while the bridge shuts down.
    read.await.unwrap_or_default()
}

/// Loads the fields of a server, and stores them if they were not.
pub(in super::super) async fn load(
    client: &InternalClient,
    needed: &NeededFields,
    shared: &SharedGroupVersions,
) -> Result<ServerFields, FieldLoadError> {
    if let Some(stored) = read_stored(needed).await {
        return Ok(stored);
    }
    let target = match &needed.source {
        FieldSource::Local => InternalTarget::Upstream,
        FieldSource::Peer(peer) => InternalTarget::Peer(peer),
        FieldSource::Nowhere => return Err(FieldLoadError::NotStored),
    };
    let fetched = fetch(client, target, &needed.served, shared).await;
    let fields = Arc::new(fetched.map_err(FieldLoadError::Failed)?);
    store(needed, fields.clone()).await;
    Ok(Arc::unwrap_or_clone(fields))
}

/// The fields that an earlier process has stored.
pub(super) async fn read_stored(needed: &NeededFields) -> Option<ServerFields> {
    let (cache, name) = (needed.cache.clone()?, needed.key.file_name());
    let read = spawn_blocking(move || cache.read(&name));
    read.await.ok().flatten()
}

/// Stores fields for the next process.
pub(super) async fn store(needed: &NeededFields, fields: Arc<ServerFields>) {
    if let Some(cache) = needed.cache.clone() {
        let name = needed.key.file_name();
        // It only fails if the bridge ends.
        let _ = spawn_blocking(move || cache.write(&name, &fields)).await;
    }
}

/// Stores that servers have these fields now, for the next process.
pub(in super::super) async fn note_use(used: UsedFields) {
    let UsedFields { cache, keys } = used;
    let note = move || (keys.iter()).for_each(|key| cache.note_use(&key.file_name()));
    // It only fails if the bridge ends.
    let _ = spawn_blocking(note).await;
}
