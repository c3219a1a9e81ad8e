//! Tracks the admission policies that not all servers enforce.
//!
//! A kind of policy is tracked while a server does not serve it in the newest version that any server
//! serves. Its objects are watched at a server that serves it. Without such a difference nothing is
//! watched.

mod tracked_kind;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skewbridge_discovery::Index;
use skewbridge_peer_directory::peer_table::ROLLOUT_GRACE;
use skewbridge_peer_directory::{Peer, Peers, ServedApis};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use self::tracked_kind::{Reading, TrackedKind, Watch};
use super::Event;
use super::policy_file::{PolicyFile, StoredKind};
use super::policy_watch::{PolicyEvent, PolicyWatch, REFRESH_QUEUE_LEN, WatchedKind};
use crate::admission_guard::{
    ADMISSION_GROUP, AdmissionGuard, AdmissionPolicies, PolicyVersion, newest_versions,
};
use crate::cluster_state::{PolicyWrite, PolicyWriteStage};
use crate::control::internal_client::InternalClient;

/// How long a server counts as running after it has answered a poll: two intervals of polls. The
/// Lease of a server that has crashed expires in less.
const ANSWER_VALIDITY: Duration = Duration::from_mins(1);

/// How long the kinds of a server without a Lease count after its last answer. kube-apiserver deletes
/// the Lease of a server that has gone after this time.
const SILENT_SERVER_RETENTION: Duration = Duration::from_hours(1);

/// A server counts as running after the watch of policies has failed if that is shown at least this much
/// later: events may be delayed, and a server that ends may renew its Lease once more.
const WATCH_FAILURE_MARGIN: Duration = Duration::from_secs(15);

/// The evidence that another server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Liveness {
    /// Its Lease, or its published address.
    Leases,
    /// Answered polls: the server is one of several values of `--upstream`, which would otherwise
    /// count as running without a time limit.
    Answers {
        /// When this process began to wait for answers.
        since: Instant,
    },
}

impl Liveness {
    /// Whether a server runs, or has not had time to answer since the start.
    fn is_running(self, peer: &Peer, now: Instant) -> bool {
        match self {
            Self::Leases => peer.published || peer.alive_until > now,
            Self::Answers { since } => {
                peer.health.last_poll().unwrap_or(since) + ANSWER_VALIDITY > now
            }
        }
    }

    /// Whether a server has run after a watch had failed, and still runs as far as is known.
    fn has_run_since(self, failing_since: Instant, peer: &Peer, now: Instant) -> bool {
        let reported = match self {
            Self::Leases => peer.reported_alive_at(now),
            // Their Leases are not real ones.
            Self::Answers { .. } => None,
        };
        let alive_at = reported.max(peer.health.last_poll());
        alive_at.is_some_and(|alive_at| {
            alive_at > failing_since + WATCH_FAILURE_MARGIN && alive_at + ANSWER_VALIDITY > now
        })
    }

    /// Whether the APIs of a server count.
    fn is_kept(self, peer: &Peer, now: Instant) -> bool {
        match self {
            // It is not in the table any more after its Lease has been deleted.
            Self::Leases => true,
            Self::Answers { since } => {
                peer.health.last_poll().unwrap_or(since) + SILENT_SERVER_RETENTION > now
            }
        }
    }
}

/// Tracks kinds of policies and their objects.
pub(super) struct PolicyTracker {
    guard: AdmissionGuard,
    liveness: Liveness,
    /// How long policies stay in force after the last server that serves their kind ran.
    retention: Duration,
    kinds: BTreeMap<String, TrackedKind>,
    /// What an earlier process has stored about kinds that are not tracked yet.
    stored: BTreeMap<String, StoredKind>,
    file: Option<PolicyFile>,
    current: Arc<AdmissionPolicies>,
    next_watch_id: u64,
    /// Notified after the next snapshot is published.
    waiters: Vec<oneshot::Sender<()>>,
    /// Policies that are no longer in force although they may still exist, since the last call of
    /// [`PolicyTracker::take_dropped`].
    dropped: u64,
}

impl PolicyTracker {
    pub(super) fn new(guard: AdmissionGuard, liveness: Liveness, file: Option<PolicyFile>) -> Self {
        let stored = match (&file, guard) {
            (Some(file), AdmissionGuard::On) => file.read(),
            _ => BTreeMap::new(),
        };
        Self {
            guard,
            liveness,
            retention: ROLLOUT_GRACE,
            kinds: BTreeMap::new(),
            stored,
            file,
            current: Arc::default(),
            next_watch_id: 0,
            waiters: Vec::new(),
            dropped: 0,
        }
    }

    /// Sets how long policies stay in force after the last server that serves their kind ran.
    pub(super) fn retained_for(mut self, retention: Option<Duration>) -> Self {
        self.retention = retention.unwrap_or(self.retention);
        self
    }

    /// Adds policies that the view of another backend knows.
    pub(super) fn with_known(mut self, policies: BTreeMap<String, StoredKind>) -> Self {
        if self.guard == AdmissionGuard::On {
            self.stored.extend(policies);
        }
        self
    }

    /// Takes over which servers serve which kinds.
    pub(super) fn update(&mut self, local: Option<&ServedApis>, peers: &Peers, now: Instant) {
        let Some(local) = local.filter(|_| self.guard == AdmissionGuard::On) else {
            return;
        };
        let others = (peers.peers.iter()).filter(|it| self.liveness.is_kept(it, now));
        let others = others.filter_map(|it| it.served.as_deref());
        let indexes: Vec<&Index> = (std::iter::once(local).chain(others))
            .map(|it| &*it.index)
            .collect();
        let newest = newest_versions(indexes.iter().copied());
        let all_serve = |resource: &str, version: &str| {
            let mut servers = indexes.iter();
            servers.all(|it| it.serves_resource(ADMISSION_GROUP, version, resource))
        };
        for (resource, version) in &newest {
            let is_newest = |it: &TrackedKind| PolicyVersion(&it.version) <= *version;
            match self.kinds.get_mut(*resource) {
                Some(kind) if is_newest(kind) && all_serve(resource, version.0) => {
                    self.kinds.remove(*resource);
                }
                Some(kind) if is_newest(kind) => kind.set_version(version.0),
                // No server serves the newest version any more; see `drop_unserved`.
                Some(_) => {}
                None if all_serve(resource, version.0) => {}
                None => {
                    let stored = self.stored.remove(*resource);
                    let kind = TrackedKind::new(version.0, stored, now);
                    self.kinds.insert((*resource).to_owned(), kind);
                }
            }
        }
        for (resource, stored) in std::mem::take(&mut self.stored) {
            // Stored policies stay in force although the server that enforces them is not known yet.
            let is_enforced = newest.get(&*resource).is_some_and(|newest| {
                *newest >= PolicyVersion(&stored.version) && all_serve(&resource, newest.0)
            });
            if !is_enforced {
                let version = stored.version.clone();
                let kind = TrackedKind::new(&version, Some(stored), now);
                self.kinds.entry(resource).or_insert(kind);
            }
        }
        self.note_running(local, peers, now);
        self.drop_unserved(&indexes, now);
    }

    fn note_running(&mut self, local: &ServedApis, peers: &Peers, now: Instant) {
        for (resource, kind) in &mut self.kinds {
            let serves = |it: &ServedApis| {
                let index = &it.index;
                index.serves_resource(ADMISSION_GROUP, &kind.version, resource)
            };
            let is_running = |peer: &Peer| {
                self.liveness.is_running(peer, now) && peer.served.as_deref().is_some_and(serves)
            };
            kind.is_running = serves(local) || peers.peers.iter().any(|it| is_running(it));
            if kind.is_running {
                kind.last_running = now;
            }
            if let Some(since) = kind.reading.failing_since() {
                let has_run = |peer: &Peer| {
                    self.liveness.has_run_since(since, peer, now)
                        && peer.served.as_deref().is_some_and(serves)
                };
                kind.reading = if peers.peers.iter().any(|it| has_run(it)) {
                    Reading::HasMissedChanges(since)
                } else {
                    Reading::FailsSince(since)
                };
            }
        }
    }

    /// Drops kinds that no server has served for the retention: the newer servers have departed
    /// for good, and no other server can enforce these policies.
    fn drop_unserved(&mut self, indexes: &[&Index], now: Instant) {
        let (dropped, retention) = (&mut self.dropped, self.retention);
        self.kinds.retain(|resource, kind| {
            let version = &kind.version;
            let mut servers = indexes.iter();
            let is_served =
                servers.any(|it| it.serves_resource(ADMISSION_GROUP, version, resource));
            let is_kept = is_served || kind.last_running + retention > now;
            let objects = kind.objects().unwrap_or(0);
            if !is_kept && objects > 0 {
                *dropped += objects as u64;
                tracing::warn!(
                    kind = resource,
                    version = kind.version,
                    objects,
                    "no server serves a kind of admission policy any more; its policies are not enforced"
                );
            }
            is_kept
        });
    }

    /// Starts the watches of kinds that have none.
    pub(super) fn start_watches(
        &mut self,
        tasks: &mut JoinSet<()>,
        client: &Arc<InternalClient>,
        events: &mpsc::Sender<Event>,
    ) {
        for (resource, kind) in &mut self.kinds {
            if kind.watch.is_some() {
                continue;
            }
            self.next_watch_id += 1;
            let watched = WatchedKind {
                resource: resource.clone(),
                version: kind.version.clone(),
                watch_id: self.next_watch_id,
            };
            let (refreshes, requested) = mpsc::channel(REFRESH_QUEUE_LEN);
            let watch = PolicyWatch::new(client.clone(), watched, events.clone(), requested);
            kind.watch = Some(Watch {
                id: self.next_watch_id,
                task: tasks.spawn(watch.run()),
                refreshes,
            });
            kind.refreshes = 0;
            kind.refreshes_seen = 0;
        }
    }

    /// A client has written a policy through this bridge. Its response is held until a list has
    /// followed. If the list is overdue, the policies may match every write until then.
    pub(super) fn on_write(&mut self, write: PolicyWrite) {
        let kind = self.kinds.get_mut(&write.resource);
        match kind {
            Some(kind) if write.stage == PolicyWriteStage::Overdue => {
                kind.is_overdue = true;
                self.waiters.push(write.reply);
            }
            Some(kind) => kind.refresh(write.reply),
            // All servers enforce this kind.
            None => drop(write.reply.send(())),
        }
    }

    pub(super) fn on_event(&mut self, event: PolicyEvent, now: Instant) {
        let kind = self.kinds.get_mut(&event.kind.resource);
        let is_current = |kind: &&mut TrackedKind| {
            let watch = kind.watch.as_ref();
            watch.is_some_and(|watch| watch.id == event.kind.watch_id)
        };
        if let Some(kind) = kind.filter(is_current) {
            kind.apply(event.change, event.refreshes_seen, now);
        }
        self.waiters.extend(event.waiters);
    }

    /// The snapshot that contains all changes so far is published.
    pub(super) fn notify_waiters(&mut self) {
        for waiter in self.waiters.drain(..) {
            let _ = waiter.send(());
        }
    }

    /// The policies that not all servers enforce.
    pub(super) fn current(&mut self) -> Arc<AdmissionPolicies> {
        let kinds = self.kinds.iter();
        let policies = AdmissionPolicies {
            kinds: kinds
                .filter_map(|(name, kind)| kind.policies(name))
                .collect(),
        };
        if *self.current != policies {
            self.current = Arc::new(policies);
        }
        self.current.clone()
    }

    /// Stores what is known, if it has changed.
    pub(super) fn save(&mut self, now: Instant) {
        let Some(file) = &mut self.file else {
            return;
        };
        let kinds = self.kinds.iter();
        let known = kinds.filter_map(|(name, kind)| Some((name.clone(), kind.to_store()?)));
        file.save(known.chain(self.stored.clone()).collect(), now);
    }

    /// Whether a kind is tracked.
    pub(super) fn is_tracking(&self) -> bool {
        !self.kinds.is_empty()
    }

    pub(super) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests;
