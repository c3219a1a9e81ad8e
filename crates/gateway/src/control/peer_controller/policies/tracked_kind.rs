//! One kind of admission policy that not all servers enforce, and what is known of its objects.

use std::collections::BTreeMap;
use std::time::Instant;

use skewbridge_peer_directory::watch::WatchEvent;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::admission_guard::{PolicyKind, PolicyMatches, PolicyObject, union};
use crate::control::peer_controller::informer::Change;
use crate::control::peer_controller::policy_file::StoredKind;

/// Objects of one kind that are known. More are treated as ones that match every write.
pub(super) const MAX_POLICIES: usize = 1_000;

/// A kind that is not enforced by all servers.
pub(super) struct TrackedKind {
    /// The newest version that any server serves, or has served recently.
    pub(super) version: String,
    pub(super) known: KnownObjects,
    /// Whether a list has succeeded or failed since tracking began.
    pub(super) is_attempted: bool,
    /// Requests for a new list, because of writes that this bridge has forwarded, and those that the
    /// last list contains.
    pub(super) refreshes: u64,
    pub(super) refreshes_seen: u64,
    /// Whether the response to such a write was sent before the list completed.
    pub(super) is_overdue: bool,
    /// A server that serves the kind runs or has published an address.
    pub(super) is_running: bool,
    pub(super) last_running: Instant,
    pub(super) reading: Reading,
    pub(super) watch: Option<Watch>,
}

/// Whether the objects of a kind can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// No list or watch has failed since the last list.
    Succeeds,
    /// Lists and watches have failed since then.
    FailsSince(Instant),
    /// The same, and a server that serves the kind has run since: clients may have written policies
    /// there.
    HasMissedChanges(Instant),
}

impl Reading {
    /// Since when lists and watches have failed.
    pub(super) fn failing_since(self) -> Option<Instant> {
        match self {
            Self::Succeeds => None,
            Self::FailsSince(since) | Self::HasMissedChanges(since) => Some(since),
        }
    }
}

/// What is known of the objects of a kind.
pub(super) enum KnownObjects {
    Nothing,
    /// From an earlier process.
    Stored(StoredKind),
    Listed(ListedObjects),
}

#[derive(Default)]
pub(super) struct ListedObjects {
    pub(super) by_name: BTreeMap<String, PolicyMatches>,
    /// There are more than [`MAX_POLICIES`].
    pub(super) are_incomplete: bool,
}

/// The task that watches a kind; dropping this ends it.
pub(super) struct Watch {
    pub(super) id: u64,
    pub(super) task: AbortHandle,
    pub(super) refreshes: mpsc::Sender<oneshot::Sender<()>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TrackedKind {
    pub(super) fn new(version: &str, stored: Option<StoredKind>, now: Instant) -> Self {
        Self {
            version: version.to_owned(),
            known: stored.map_or(KnownObjects::Nothing, KnownObjects::Stored),
            is_attempted: false,
            refreshes: 0,
            refreshes_seen: 0,
            is_overdue: false,
            is_running: false,
            last_running: now,
            reading: Reading::Succeeds,
            watch: None,
        }
    }

    /// The objects are the same in all versions, so they stay known.
    pub(super) fn set_version(&mut self, version: &str) {
        if self.version != version {
            version.clone_into(&mut self.version);
            self.watch = None;
        }
    }

    pub(super) fn refresh(&mut self, waiter: oneshot::Sender<()>) {
        if let Some(watch) = &self.watch
            // If the queue is full, the list that follows is later than this write.
            && watch.refreshes.try_send(waiter).is_ok()
        {
            self.refreshes += 1;
        }
    }

    pub(super) fn apply(
        &mut self,
        change: Change<PolicyObject>,
        refreshes_seen: u64,
        now: Instant,
    ) {
        self.is_attempted = true;
        if let (Change::Failed(_), Reading::Succeeds) = (&change, self.reading) {
            self.reading = Reading::FailsSince(now);
        }
        match change {
            Change::Listed(all) => {
                self.reading = Reading::Succeeds;
                self.refreshes_seen = refreshes_seen;
                self.is_overdue &= self.refreshes != refreshes_seen;
                let mut listed = ListedObjects::default();
                for object in all {
                    listed.insert(object);
                }
                self.known = KnownObjects::Listed(listed);
            }
            Change::Event(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                if let KnownObjects::Listed(listed) = &mut self.known {
                    listed.insert(object);
                }
            }
            Change::Event(WatchEvent::Deleted(object)) => {
                if let KnownObjects::Listed(listed) = &mut self.known {
                    listed.by_name.remove(&object.name);
                    if listed.are_incomplete {
                        // A new list shows whether all objects now fit within `MAX_POLICIES`.
                        self.refresh(oneshot::channel().0);
                    }
                }
            }
            Change::Event(_) | Change::Failed(_) | Change::WatchBegan | Change::WatchEnded => {}
        }
    }

    /// Whether objects may exist that are not known, and a server enforces them.
    fn may_be_outdated(&self) -> bool {
        let is_known = match &self.known {
            KnownObjects::Nothing => false,
            KnownObjects::Stored(_) => self.is_attempted,
            KnownObjects::Listed(_) => true,
        };
        let has_missed_changes = matches!(self.reading, Reading::HasMissedChanges(_));
        self.is_running && (!is_known || self.is_overdue || has_missed_changes)
    }

    pub(super) fn objects(&self) -> Option<usize> {
        match &self.known {
            KnownObjects::Nothing => None,
            KnownObjects::Stored(stored) => Some(stored.objects),
            KnownObjects::Listed(listed) => Some(listed.by_name.len()),
        }
    }

    /// The policies for the cluster snapshot; `None` if there are none.
    pub(super) fn policies(&self, resource: &str) -> Option<PolicyKind> {
        let (objects, matches) = if self.may_be_outdated() {
            (None, PolicyMatches::AnyWrite)
        } else {
            let objects = self.objects().filter(|objects| *objects > 0)?;
            (Some(objects), self.matches())
        };
        Some(PolicyKind {
            resource: resource.to_owned(),
            version: self.version.clone(),
            objects,
            matches,
        })
    }

    fn matches(&self) -> PolicyMatches {
        match &self.known {
            KnownObjects::Nothing => PolicyMatches::AnyWrite,
            KnownObjects::Stored(stored) => stored.matches.clone(),
            KnownObjects::Listed(listed) if listed.are_incomplete => PolicyMatches::AnyWrite,
            KnownObjects::Listed(listed) => union(listed.by_name.values()),
        }
    }

    pub(super) fn to_store(&self) -> Option<StoredKind> {
        Some(StoredKind {
            version: self.version.clone(),
            objects: self.objects()?,
            matches: self.matches(),
        })
    }
}

impl ListedObjects {
    fn insert(&mut self, object: PolicyObject) {
        if self.by_name.len() < MAX_POLICIES || self.by_name.contains_key(&object.name) {
            self.by_name.insert(object.name, object.matches);
        } else {
            self.are_incomplete = true;
        }
    }
}
