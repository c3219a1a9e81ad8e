//! A watcher: a position in the sequence of events, and a selection. It is polled when the
//! version of the store has changed.

use std::sync::Arc;

use serde_json::{Value, json};
use skewbridge_k8s_api::status::Status;

use crate::conversion::{self, storage_resource};
use crate::object::Object;
use crate::selectors::Selection;
use crate::status::{self, GroupResource};
use crate::store::{Event, EventKind, ListOptions, Store, parse_version};

/// Returns every event of its resource once, in order.
#[derive(Debug, Clone)]
pub struct Watcher {
    resource: GroupResource,
    namespace: String,
    selection: Selection,
    /// The last version that was returned.
    seen: u64,
}

/// A change that a watcher returns.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The object was created, or is selected now.
    Added(Arc<Object>),
    /// The object has changed.
    Modified(Arc<Object>),
    /// The object was deleted, or is no longer selected.
    Deleted(Arc<Object>),
    /// All changes up to this version have been returned.
    Bookmark {
        /// The version from which a watch can continue.
        version: u64,
        /// Whether all initial objects have been returned.
        initial: InitialEvents,
    },
}

/// The initial-events annotation of a bookmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialEvents {
    /// The initial events have ended: sent once, if requested.
    End,
    /// No annotation.
    None,
}

/// The start of a watch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WatchStart {
    /// With the current objects, unless a version is given: without `sendInitialEvents`.
    #[default]
    Default,
    /// With the current objects, and a bookmark (`sendInitialEvents=true`).
    Initial,
    /// With changes from now on (`sendInitialEvents=false`).
    ChangesOnly,
}

impl Watcher {
    /// Starts to watch a resource, in a namespace or in all (empty), after a client's resource
    /// version. Returns the initial changes too.
    pub fn start(
        store: &Store,
        resource: &GroupResource,
        namespace: &str,
        selection: Selection,
        resource_version: &str,
        beginning: WatchStart,
    ) -> Result<(Self, Vec<Change>), Status> {
        let requested = parse_version(resource_version)?;
        let mut watcher = Self {
            resource: storage_resource(resource),
            namespace: namespace.to_owned(),
            selection,
            seen: requested,
        };
        let from_now = match (beginning, requested) {
            (WatchStart::Initial, requested) if requested > store.version() => {
                return Err(status::too_large_version(requested, store.version()));
            }
            (WatchStart::Initial, _) | (WatchStart::Default, 0) => {
                return watcher.with_initial_events(store, beginning);
            }
            (WatchStart::ChangesOnly, 0) => true,
            (WatchStart::ChangesOnly | WatchStart::Default, _) => false,
        };
        if from_now {
            watcher.seen = store.version();
        }
        // Detects now whether the version is too old.
        let _ = store.events_after(watcher.seen)?;
        Ok((watcher, Vec::new()))
    }

    fn with_initial_events(
        mut self,
        store: &Store,
        beginning: WatchStart,
    ) -> Result<(Self, Vec<Change>), Status> {
        let all = ListOptions::default();
        let listed = store.list(&self.resource, &self.namespace, &self.selection, &all)?;
        self.seen = listed.version;
        let mut changes: Vec<_> = listed.items.into_iter().map(Change::Added).collect();
        if beginning == WatchStart::Initial {
            changes.push(Change::Bookmark {
                version: self.seen,
                initial: InitialEvents::End,
            });
        }
        Ok((self, changes))
    }

    /// The changes since the last call; 410 if the history no longer has them.
    pub fn poll_changes(&mut self, store: &Store) -> Result<Vec<Change>, Status> {
        let events = store.events_after(self.seen)?;
        let watched = events.filter(|event| event.key.is_within(&self.resource, &self.namespace));
        let changes = watched.filter_map(|event| self.change(event)).collect();
        self.seen = self.seen.max(store.version());
        Ok(changes)
    }

    /// A bookmark, for clients that accept them.
    pub fn bookmark(&self) -> Change {
        Change::Bookmark {
            version: self.seen,
            initial: InitialEvents::None,
        }
    }

    /// An object that begins or ceases to match is reported as added or deleted.
    fn change(&self, event: &Event) -> Option<Change> {
        let before = event.before.as_ref();
        let mattered = before.is_some_and(|before| self.selection.matches(before));
        let matters = event.kind != EventKind::Deleted && self.selection.matches(&event.object);
        let object = || Arc::clone(&event.object);
        match (mattered, matters) {
            (false, false) => None,
            (false, true) => Some(Change::Added(object())),
            (true, true) => Some(Change::Modified(object())),
            // Its last matching state, at the version of the event.
            (true, false) => Some(Change::Deleted(match (event.kind, before) {
                (EventKind::Deleted, _) | (_, None) => object(),
                (_, Some(before)) => {
                    let mut last = Object::clone(before);
                    last.take_from(&event.object, &["metadata", "resourceVersion"]);
                    Arc::new(last)
                }
            })),
        }
    }
}

impl Change {
    /// As a `metav1.WatchEvent`, with an object of this version and kind.
    pub fn to_json(&self, api_version: &str, kind: &str) -> Value {
        let event = |word: &str, object: &Object| {
            let object = conversion::from_storage(object, api_version, kind);
            json!({"type": word, "object": object.into_value()})
        };
        match self {
            Self::Added(object) => event("ADDED", object),
            Self::Modified(object) => event("MODIFIED", object),
            Self::Deleted(object) => event("DELETED", object),
            Self::Bookmark { version, initial } => {
                let mut metadata = json!({"resourceVersion": version.to_string()});
                if *initial == InitialEvents::End {
                    metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
                }
                json!({"type": "BOOKMARK", "object": {
                    "apiVersion": api_version, "kind": kind, "metadata": metadata,
                }})
            }
        }
    }

    /// The version of the change.
    pub fn version(&self) -> u64 {
        match self {
            Self::Added(object) | Self::Modified(object) | Self::Deleted(object) => {
                parse_version(object.resource_version()).unwrap_or_default()
            }
            Self::Bookmark { version, .. } => *version,
        }
    }
}

#[cfg(test)]
mod tests;
