//! The history of events.

use std::collections::VecDeque;
use std::sync::Arc;

use skewbridge_k8s_api::status::Status;

use super::{History, Key};
use crate::object::Object;
use crate::status;

/// An event of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Increases with every event.
    pub version: u64,
    /// The kind of event.
    pub kind: EventKind,
    /// The key of the object.
    pub key: Key,
    /// The current or last state.
    pub object: Arc<Object>,
    /// The previous state, if it existed.
    pub before: Option<Arc<Object>>,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names of the variants describe them
pub enum EventKind {
    Added,
    Modified,
    Deleted,
}

/// The last events.
#[derive(Debug)]
pub(super) struct EventLog {
    events: VecDeque<Event>,
    most: History,
    /// The size of the objects of all events.
    bytes: usize,
    version: u64,
    /// The version of the last dropped event.
    last_dropped: u64,
}

impl EventLog {
    pub(super) fn new(most: History) -> Self {
        Self {
            events: VecDeque::new(),
            most,
            bytes: 0,
            // 0 means "any version" to clients, so no event has it.
            version: 1,
            last_dropped: 0,
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn next_version(&self) -> u64 {
        self.version + 1
    }

    pub(super) fn push(&mut self, event: Event) {
        self.version = event.version;
        self.bytes = self.bytes.saturating_add(event.object.size());
        self.events.push_back(event);
        while self.is_full()
            && let Some(oldest) = self.events.pop_front()
        {
            self.bytes = self.bytes.saturating_sub(oldest.object.size());
            self.last_dropped = oldest.version;
        }
    }

    fn is_full(&self) -> bool {
        let count = self.events.len();
        count > self.most.events || count > 1 && self.bytes > self.most.bytes
    }

    /// The events in order; 410 if the history no longer has them.
    pub(super) fn after(
        &self,
        version: u64,
    ) -> Result<impl DoubleEndedIterator<Item = &Event>, Status> {
        if version < self.last_dropped {
            return Err(status::expired(format!(
                "too old resource version: {version} ({})",
                self.last_dropped
            )));
        }
        let first = self
            .events
            .partition_point(|event| event.version <= version);
        Ok(self.events.range(first..))
    }
}
