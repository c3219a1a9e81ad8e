//! A watcher: a place in the sequence of events, and what it wants to see of it.
//! It is asked for news whenever the version of the store has changed.

use std::sync::Arc;

use serde_json::{Value, json};
use skewbridge_k8s_api::status::Status;

use crate::conversion::{self, kept_as};
use crate::object::Object;
use crate::select::Selection;
use crate::status::{self, GroupResource};
use crate::store::{Event, EventKind, ListOptions, Store, parse_version};

/// Sees every event of what it watches once, and in order.
#[derive(Debug, Clone)]
pub struct Watcher {
    resource: GroupResource,
    namespace: String,
    selection: Selection,
    /// All up to this version has been seen.
    seen: u64,
}

/// What a watcher is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// It is there, or it is selected now.
    Added(Arc<Object>),
    /// It has changed.
    Modified(Arc<Object>),
    /// It is gone, or it is not selected any more.
    Deleted(Arc<Object>),
    /// All up to this version has been told.
    Bookmark {
        /// Where a watch may go on.
        version: u64,
        /// Whether all that was there at the beginning has been told.
        initial: InitialEvents,
    },
}

/// What a bookmark says of the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialEvents {
    /// It is over: said once, to those who asked for it.
    End,
    /// Nothing.
    Unmentioned,
}

/// How a watch begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Beginning {
    /// With what there is, unless a version is given: for those who do not say.
    #[default]
    Unsaid,
    /// With what there is, and a bookmark (`sendInitialEvents=true`).
    Initial,
    /// With what happens from now on (`sendInitialEvents=false`).
    News,
}

impl Watcher {
    /// Begins to watch a resource, in a namespace or in all (an empty one), after a
    /// version as the client writes it. What is to be told at once comes with it.
    pub fn start(
        store: &Store,
        resource: &GroupResource,
        namespace: &str,
        selection: Selection,
        resource_version: &str,
        beginning: Beginning,
    ) -> Result<(Self, Vec<Change>), Status> {
        let asked = parse_version(resource_version)?;
        let mut watcher = Self {
            resource: kept_as(resource),
            namespace: namespace.to_owned(),
            selection,
            seen: asked,
        };
        let from_now = match (beginning, asked) {
            (Beginning::Initial, asked) if asked > store.version() => {
                return Err(status::too_large_version(asked, store.version()));
            }
            (Beginning::Initial, _) | (Beginning::Unsaid, 0) => {
                return watcher.with_initial_events(store, beginning);
            }
            (Beginning::News, 0) => true,
            (Beginning::News | Beginning::Unsaid, _) => false,
        };
        if from_now {
            watcher.seen = store.version();
        }
        // Known now if it is too old, not when something happens.
        let _ = store.events_after(watcher.seen)?;
        Ok((watcher, Vec::new()))
    }

    fn with_initial_events(
        mut self,
        store: &Store,
        beginning: Beginning,
    ) -> Result<(Self, Vec<Change>), Status> {
        let all = ListOptions::default();
        let listed = store.list(&self.resource, &self.namespace, &self.selection, &all)?;
        self.seen = listed.version;
        let mut changes: Vec<_> = listed.items.into_iter().map(Change::Added).collect();
        if beginning == Beginning::Initial {
            changes.push(Change::Bookmark {
                version: self.seen,
                initial: InitialEvents::End,
            });
        }
        Ok((self, changes))
    }

    /// What has happened since it was last asked; 410 if it was not asked for too
    /// long.
    pub fn news(&mut self, store: &Store) -> Result<Vec<Change>, Status> {
        let events = store.events_after(self.seen)?;
        let watched = events.filter(|event| event.key.is_within(&self.resource, &self.namespace));
        let changes = watched.filter_map(|event| self.change(event)).collect();
        self.seen = self.seen.max(store.version());
        Ok(changes)
    }

    /// How far it has come, for clients that ask for bookmarks.
    pub fn bookmark(&self) -> Change {
        Change::Bookmark {
            version: self.seen,
            initial: InitialEvents::Unmentioned,
        }
    }

    /// To whom an object begins or ceases to matter, it comes or goes.
    fn change(&self, event: &Event) -> Option<Change> {
        let before = event.before.as_ref();
        let mattered = before.is_some_and(|before| self.selection.matches(before));
        let matters = event.kind != EventKind::Deleted && self.selection.matches(&event.object);
        let object = || Arc::clone(&event.object);
        match (mattered, matters) {
            (false, false) => None,
            (false, true) => Some(Change::Added(object())),
            (true, true) => Some(Change::Modified(object())),
            // As it was when it last mattered, at the version of the event.
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
    /// As it is sent: a `metav1.WatchEvent`, with an object of this version and kind.
    pub fn to_json(&self, api_version: &str, kind: &str) -> Value {
        let event = |word: &str, object: &Object| {
            let object = conversion::shown(object, api_version, kind);
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

    /// The version that it is of.
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
