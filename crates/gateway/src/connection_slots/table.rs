//! The rules of connection slots, over plain data.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::config::Limits;
use crate::metrics::connections::{EvictionReason, SlotCounts};
use crate::source_network::SourceNetwork;

/// The default of `--reserved-connections`: this part of `--max-connections`.
const DEFAULT_RESERVED_DIVISOR: usize = 10;

/// The default of `--max-unauthenticated-connections-per-source`: this part of
/// `--max-connections`. Behind a load balancer all clients are one source, and after a
/// restart all of them are in their TLS handshakes at once.
const DEFAULT_PER_SOURCE_DIVISOR: usize = 4;

/// The minimum of that default: one kubectl opens several connections.
const MIN_DEFAULT_PER_SOURCE: usize = 16;

/// The maximum number of evicted connections whose sockets are still open. At this number the
/// listener waits, so that it does not accept faster than the workers close.
pub(super) const MAX_CLOSING_CONNECTIONS: usize = 128;

/// Users of control-plane and node components. Their connections use the reserved share.
const COMPONENT_USERS: [&str; 5] = [
    "system:apiserver",
    "system:cloud-controller-manager",
    "system:kube-controller-manager",
    "system:kube-proxy",
    "system:kube-scheduler",
];

/// Groups with the reserved share. Administrators in `system:masters` need access when nothing else
/// works; API Priority and Fairness exempts the group for the same reason.
const COMPONENT_GROUPS: [&str; 2] = ["system:nodes", "system:masters"];

/// Whether connections of this user use the reserved share.
pub(crate) fn is_component(user: &str, groups: &[String]) -> bool {
    COMPONENT_USERS.contains(&user)
        || (groups.iter()).any(|group| COMPONENT_GROUPS.contains(&group.as_str()))
}

/// The class of a connection, by the identity that its client has proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// No identity so far.
    Unauthenticated,
    /// Any identity.
    Authenticated,
    /// A peer, a node, or a component of the control plane.
    Reserved,
}

/// The limits of the classes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Policy {
    /// All classes together.
    pub(super) max_connections: usize,
    /// Slots that authenticated connections cannot use.
    pub(super) reserved: usize,
    /// Unauthenticated connections of one source.
    pub(super) max_unauthenticated_per_source: usize,
}

impl Policy {
    /// The limits of the flags; the defaults are fractions of `--max-connections`.
    pub(super) fn of(limits: &Limits) -> Self {
        let max = limits.max_connections;
        let reserved = limits.reserved_connections;
        let per_source = limits.max_unauthenticated_connections_per_source;
        Self {
            max_connections: max,
            reserved: reserved.unwrap_or(max / DEFAULT_RESERVED_DIVISOR),
            max_unauthenticated_per_source: per_source
                .unwrap_or((max / DEFAULT_PER_SOURCE_DIVISOR).max(MIN_DEFAULT_PER_SOURCE)),
        }
    }
}

/// Ids are in the order of arrival.
pub(super) type ConnectionId = u64;

/// The result of admitting a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The connection has a slot.
    Admitted {
        id: ConnectionId,
        /// The connection that loses its slot for it.
        evicted: Option<(ConnectionId, EvictionReason)>,
    },
    /// The connection has to wait until another one ends.
    Full,
}

/// The share in which a connection has its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    Unauthenticated,
    /// Authenticated, while all slots for authenticated connections are taken. It is
    /// served, and evicted after the unauthenticated ones.
    Overflow,
    Authenticated,
    Reserved,
}

/// All connections that hold slots.
#[derive(Debug)]
pub(super) struct SlotTable {
    policy: Policy,
    next: ConnectionId,
    open: HashMap<ConnectionId, (SourceNetwork, Share)>,
    unauthenticated: BTreeSet<ConnectionId>,
    /// Open connections by source.
    sources: HashMap<SourceNetwork, BTreeSet<ConnectionId>>,
    overflow: BTreeSet<ConnectionId>,
    authenticated: usize,
    reserved: usize,
    /// Evicted, and not closed yet.
    closing: HashSet<ConnectionId>,
}

impl SlotTable {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
            next: 0,
            open: HashMap::new(),
            unauthenticated: BTreeSet::new(),
            sources: HashMap::new(),
            overflow: BTreeSet::new(),
            authenticated: 0,
            reserved: 0,
            closing: HashSet::new(),
        }
    }

    /// Whether a new connection of a source below its limit would be admitted.
    pub(super) fn has_room(&self) -> bool {
        self.closing.len() < MAX_CLOSING_CONNECTIONS
            && (self.open.len() < self.policy.max_connections
                || self.eviction_candidate().is_some())
    }

    /// A new connection.
    pub(super) fn admit(&mut self, source: SourceNetwork) -> Admission {
        if self.closing.len() >= MAX_CLOSING_CONNECTIONS {
            return Admission::Full;
        }
        let evicted = match (self.over_limit(source), self.eviction_candidate()) {
            (Some(oldest), _) => Some((oldest, EvictionReason::SourceLimit)),
            (None, _) if self.open.len() < self.policy.max_connections => None,
            (None, Some(oldest)) => Some((oldest, EvictionReason::SlotsFull)),
            (None, None) => return Admission::Full,
        };
        if let Some((candidate, _)) = evicted {
            self.remove(candidate);
            self.closing.insert(candidate);
        }
        let id = self.next;
        self.next += 1;
        self.insert(id, source, Share::Unauthenticated);
        Admission::Admitted { id, evicted }
    }

    /// Raises the class of a connection. Classes are never lowered.
    pub(super) fn promote(&mut self, id: ConnectionId, class: Class) {
        let Some(&(source, share)) = self.open.get(&id) else {
            return;
        };
        let to = match (class, share) {
            (_, Share::Reserved) => return,
            (Class::Reserved, _) => Share::Reserved,
            (Class::Authenticated, Share::Unauthenticated)
                if self.authenticated < self.authenticated_share() =>
            {
                Share::Authenticated
            }
            (Class::Authenticated, Share::Unauthenticated) => Share::Overflow,
            _ => return,
        };
        self.remove(id);
        self.insert(id, source, to);
        self.fill();
    }

    /// A connection has closed.
    pub(super) fn release(&mut self, id: ConnectionId) {
        if !self.closing.remove(&id) {
            self.remove(id);
            self.fill();
        }
    }

    /// Assigns a free authenticated slot to the oldest connection that waits for one.
    fn fill(&mut self) {
        if self.authenticated < self.authenticated_share()
            && let Some(&waiting) = self.overflow.first()
            && let Some(&(source, _)) = self.open.get(&waiting)
        {
            self.remove(waiting);
            self.insert(waiting, source, Share::Authenticated);
        }
    }

    pub(super) fn counts(&self) -> SlotCounts {
        SlotCounts {
            unauthenticated: self.unauthenticated.len(),
            overflow: self.overflow.len(),
            authenticated: self.authenticated,
            reserved: self.reserved,
        }
    }

    fn authenticated_share(&self) -> usize {
        (self.policy.max_connections).saturating_sub(self.policy.reserved)
    }

    /// The connection that is evicted when all slots are taken.
    fn eviction_candidate(&self) -> Option<ConnectionId> {
        let oldest = self.unauthenticated.first();
        oldest.or_else(|| self.overflow.first()).copied()
    }

    /// The oldest unauthenticated connection of a source that may have no further one.
    fn over_limit(&self, source: SourceNetwork) -> Option<ConnectionId> {
        let ids = self.sources.get(&source)?;
        if ids.len() < self.policy.max_unauthenticated_per_source {
            return None;
        }
        ids.first().copied()
    }

    fn insert(&mut self, id: ConnectionId, source: SourceNetwork, share: Share) {
        self.open.insert(id, (source, share));
        match share {
            Share::Unauthenticated => {
                self.unauthenticated.insert(id);
                self.sources.entry(source).or_default().insert(id);
            }
            Share::Overflow => {
                self.overflow.insert(id);
            }
            Share::Authenticated => self.authenticated += 1,
            Share::Reserved => self.reserved += 1,
        }
    }

    fn remove(&mut self, id: ConnectionId) {
        let Some((source, share)) = self.open.remove(&id) else {
            return;
        };
        match share {
            Share::Unauthenticated => {
                self.unauthenticated.remove(&id);
                if let Some(ids) = self.sources.get_mut(&source) {
                    ids.remove(&id);
                    if ids.is_empty() {
                        self.sources.remove(&source);
                    }
                }
            }
            Share::Overflow => {
                self.overflow.remove(&id);
            }
            Share::Authenticated => self.authenticated -= 1,
            Share::Reserved => self.reserved -= 1,
        }
    }
}

#[cfg(test)]
mod tests;
