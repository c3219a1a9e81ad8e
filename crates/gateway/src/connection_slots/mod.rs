//! Slots of client connections: at most `--max-connections` are open, and when all slots
//! are taken, the oldest connection that has not authenticated loses its slot.
//!
//! [`table`] has the rules. This module shares the table between the listener and the workers.

mod table;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::config::Limits;
use crate::metrics::connections::{EvictionReason, SlotMetrics};
use crate::source_network::SourceNetwork;

use self::table::{Admission, ConnectionId, Policy, SlotTable};
pub(crate) use self::table::{Class, is_component};

/// All slots of one port.
#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    shared: Mutex<Shared>,
    /// A connection has closed. Only the listener waits for it.
    closed: Notify,
    metrics: SlotMetrics,
}

#[derive(Debug)]
struct Shared {
    table: SlotTable,
    /// The task of each connection that has a slot; none until it has started.
    tasks: HashMap<ConnectionId, Option<AbortHandle>>,
}

impl ConnectionSlots {
    /// Slots without connections.
    pub(crate) fn new(limits: &Limits, metrics: SlotMetrics) -> Arc<Self> {
        Arc::new(Self {
            shared: Mutex::new(Shared {
                table: SlotTable::new(Policy::of(limits)),
                tasks: HashMap::new(),
            }),
            closed: Notify::new(),
            metrics,
        })
    }

    /// Waits until a connection may be accepted.
    pub(crate) async fn wait_for_room(&self) {
        while !self.lock().table.has_room() {
            self.closed.notified().await;
        }
    }

    /// Waits for a slot for a connection from this address, and evicts another connection if the
    /// rules require it.
    pub(crate) async fn admit(self: &Arc<Self>, source: IpAddr) -> ConnectionSlot {
        let source = SourceNetwork::of(source);
        loop {
            if let Some(slot) = self.try_admit(source) {
                return slot;
            }
            self.closed.notified().await;
        }
    }

    fn try_admit(self: &Arc<Self>, source: SourceNetwork) -> Option<ConnectionSlot> {
        let mut shared = self.lock();
        let Admission::Admitted { id, evicted } = shared.table.admit(source) else {
            return None;
        };
        if let Some((connection, reason)) = evicted {
            if let Some(Some(task)) = shared.tasks.remove(&connection) {
                task.abort();
            }
            self.metrics.evicted(reason);
        }
        shared.tasks.insert(id, None);
        self.metrics.slots(shared.table.counts());
        Some(ConnectionSlot {
            slots: self.clone(),
            id,
        })
    }

    fn change(&self, change: impl FnOnce(&mut Shared)) {
        let mut shared = self.lock();
        change(&mut shared);
        self.metrics.slots(shared.table.counts());
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slot of one connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    id: ConnectionId,
}

impl ConnectionSlot {
    /// Ends the connection's task when it loses its slot.
    pub(crate) fn eviction(&self) -> Eviction {
        Eviction {
            slots: self.slots.clone(),
            id: self.id,
        }
    }

    /// Raises the class of the connection.
    pub(crate) fn promotion(&self) -> Promotion {
        Promotion {
            slots: self.slots.clone(),
            id: self.id,
        }
    }

    /// The connection is closed by its own task for this reason.
    pub(crate) fn evict(self, reason: EvictionReason) {
        self.slots.metrics.evicted(reason);
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.change(|shared| {
            shared.tasks.remove(&self.id);
            shared.table.release(self.id);
        });
        self.slots.closed.notify_one();
    }
}

/// Ends a connection that loses its slot by aborting its task, which needs no check while the
/// connection is served.
#[derive(Debug)]
pub(crate) struct Eviction {
    slots: Arc<ConnectionSlots>,
    id: ConnectionId,
}

impl Eviction {
    /// Sets the task that serves the connection. It is aborted at once if the slot is already
    /// lost.
    pub(crate) fn set_task(self, task: AbortHandle) {
        match self.slots.lock().tasks.get_mut(&self.id) {
            Some(place) => *place = Some(task),
            None => task.abort(),
        }
    }
}

/// Raises the class of a connection when its client has authenticated.
#[derive(Debug)]
pub(crate) struct Promotion {
    slots: Arc<ConnectionSlots>,
    id: ConnectionId,
}

impl Promotion {
    /// Does nothing for a connection that has lost its slot.
    pub(crate) fn to(&self, class: Class) {
        self.slots
            .change(|shared| shared.table.promote(self.id, class));
    }
}
