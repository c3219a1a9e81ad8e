//! Decides which program writes the identity Lease of the local kube-apiserver: the server itself
//! if it does, and otherwise the bridge.
//!
//! Renewal is detected as in leader election: by observing changes, and by the local monotonic
//! clock, because the clocks of hosts differ.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Add;
use std::time::{Duration, Instant, SystemTime};

use crate::watch::WatchedObject as _;
use crate::{Identity, IdentityLease, LeaseDeletion, MicroTime};

/// The interval at which kube-apiserver and the bridge renew a Lease. Also the shortest time
/// between two writes of the bridge.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);

/// A Lease that has not changed for this long is not being renewed: its server has missed three
/// renewals.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(40);

/// How long a ready server may be without a Lease: at its start, kube-apiserver deletes its old
/// Lease before it creates another.
const CREATION_DELAY: Duration = Duration::from_secs(10);

/// How many of the bridge's own writes are stored to recognise them: more than can be in flight
/// at once.
const MAX_REMEMBERED_WRITES: usize = 8;

/// The current time on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct ClockReading {
    /// For durations.
    pub monotonic: Instant,
    /// For the timestamps in Leases.
    pub wall: SystemTime,
}

impl Add<Duration> for ClockReading {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self {
            monotonic: self.monotonic + time,
            wall: self.wall + time,
        }
    }
}

/// Whether the local kube-apiserver is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upstream {
    /// It is ready, and so could have written its Lease.
    Ready,
    /// It is not ready, or not yet.
    NotReady,
}

/// What to do about the Lease. In each case, call [`LeaseController::observe`] again when the Lease
/// or upstream changes, and at `until` or 10 s after a write at the latest.
#[derive(Debug, Clone, PartialEq)]
pub enum LeaseAction {
    /// Nothing to do yet.
    Wait {
        /// When to observe again.
        until: Instant,
    },
    /// Nothing to do: the server renews it.
    LeaveAlone {
        /// When to check that it still does.
        until: Instant,
    },
    /// Create this Lease.
    Create(IdentityLease),
    /// Update the bridge's Lease to this, by its resource version.
    Renew(IdentityLease),
    /// Update a Lease that is not renewed to this, by its resource version.
    TakeOver(IdentityLease),
}

/// Decides what to do about the identity Lease of the local kube-apiserver.
#[derive(Debug)]
pub struct LeaseController {
    identity: Identity,
    hostname: String,
    holder: String,
    peer_address: Option<SocketAddr>,
    observation: Observation,
    ready_since: Option<Instant>,
    last_write: Option<Instant>,
    /// The renew times that the bridge wrote: they distinguish its writes from those of a
    /// kube-apiserver that keeps the bridge's holder.
    written_renew_times: VecDeque<MicroTime>,
}

/// The last observation of the Lease.
#[derive(Debug)]
enum Observation {
    /// Not observed yet.
    None,
    Absent {
        since: Instant,
    },
    Present {
        state: LeaseState,
        /// The last change, or the first observation.
        since: Instant,
        /// Whether a change has been observed.
        changed: bool,
    },
}

/// The fields that change when a Lease is renewed.
#[derive(Debug, PartialEq, Eq)]
struct LeaseState {
    uid: Option<String>,
    resource_version: String,
    holder: Option<String>,
    renew_time: Option<MicroTime>,
}

impl LeaseState {
    fn of(lease: &IdentityLease) -> Self {
        Self {
            uid: lease.uid().map(str::to_owned),
            resource_version: lease.resource_version().to_owned(),
            holder: lease.holder().map(str::to_owned),
            renew_time: lease.renew_time(),
        }
    }
}

impl LeaseController {
    /// A controller for this identity on this host. The UUID is new at each start of the bridge: the
    /// holder shows others that the process is new.
    pub fn new(identity: Identity, hostname: &str, holder_uuid: &str) -> Self {
        Self {
            holder: format!("{identity}_{holder_uuid}"),
            identity,
            hostname: hostname.to_owned(),
            peer_address: None,
            observation: Observation::None,
            ready_since: None,
            last_write: None,
            written_renew_times: VecDeque::with_capacity(MAX_REMEMBERED_WRITES),
        }
    }

    /// Writes this address into Leases as the address for peers, as a peering kube-apiserver does.
    #[must_use]
    pub fn with_peer_address(mut self, address: SocketAddr) -> Self {
        self.peer_address = Some(address);
        self
    }

    /// The holder in Leases that the bridge writes.
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// What to do, given the current Lease. Call it with the content of a synchronised cache: a Lease
    /// that is not known yet is not absent.
    pub fn observe(
        &mut self,
        lease: Option<&IdentityLease>,
        upstream: Upstream,
        now: ClockReading,
    ) -> LeaseAction {
        let at = now.monotonic;
        self.ready_since = match upstream {
            Upstream::Ready => self.ready_since.or(Some(at)),
            Upstream::NotReady => None,
        };
        let lease = lease.filter(|lease| *lease.identity() == self.identity);
        match lease {
            None => self.create_if_absent(now),
            Some(lease) => {
                let (since, changed) = self.record_observation(lease, at);
                if self.is_ours(lease) {
                    self.renew_own(lease, now)
                } else if changed && at < since + RENEWAL_TIMEOUT {
                    LeaseAction::LeaveAlone {
                        until: since + RENEWAL_TIMEOUT,
                    }
                } else {
                    self.take_over_abandoned(lease, since, now)
                }
            }
        }
    }

    /// At shutdown, the Lease that the bridge wrote is deleted, so that peers need not wait for an
    /// hour (KEP-4020, Risks 7). A Lease that the server writes is left alone.
    pub fn on_shutdown(&self, lease: Option<&IdentityLease>) -> Option<LeaseDeletion> {
        lease.filter(|lease| self.is_ours(lease))?.deletion()
    }

    /// Records the state of the Lease. Returns since when it has that state, and whether a change has
    /// been observed.
    fn record_observation(&mut self, lease: &IdentityLease, at: Instant) -> (Instant, bool) {
        let current = LeaseState::of(lease);
        let (since, changed) = match &self.observation {
            Observation::None => (at, false),
            Observation::Present {
                state,
                since,
                changed,
            } if *state == current => (*since, *changed),
            Observation::Absent { .. } | Observation::Present { .. } => (at, true),
        };
        self.observation = Observation::Present {
            state: current,
            since,
            changed,
        };
        (since, changed)
    }

    /// Held by the bridge, and last renewed by it. kube-apiserver before 1.35 keeps the holder that
    /// it finds, so the holder alone does not prove it.
    fn is_ours(&self, lease: &IdentityLease) -> bool {
        lease.holder() == Some(&self.holder)
            && lease
                .renew_time()
                .is_some_and(|time| self.written_renew_times.contains(&time))
    }

    fn create_if_absent(&mut self, now: ClockReading) -> LeaseAction {
        let since = match self.observation {
            Observation::Absent { since } => since,
            _ => now.monotonic,
        };
        self.observation = Observation::Absent { since };
        if let Err(until) = self.may_write(since + CREATION_DELAY, CREATION_DELAY, now) {
            return LeaseAction::Wait { until };
        }
        let lease = IdentityLease::new(&self.identity, &self.hostname, &self.holder, now.wall);
        LeaseAction::Create(self.record_write(lease, now))
    }

    fn renew_own(&mut self, lease: &IdentityLease, now: ClockReading) -> LeaseAction {
        let due = self.last_write.map(|last| last + RENEW_INTERVAL);
        match due.filter(|due| now.monotonic < *due) {
            Some(until) => LeaseAction::Wait { until },
            None => LeaseAction::Renew(self.record_write(lease.renewed(now.wall), now)),
        }
    }

    /// Not written by the bridge, and no recent renewal observed. An expired Lease counts as absent:
    /// its server has had an hour.
    fn take_over_abandoned(
        &mut self,
        lease: &IdentityLease,
        since: Instant,
        now: ClockReading,
    ) -> LeaseAction {
        let may = if lease.is_expired(now.wall) {
            self.may_write(now.monotonic, CREATION_DELAY, now)
        } else {
            self.may_write(since + RENEWAL_TIMEOUT, RENEWAL_TIMEOUT, now)
        };
        if let Err(until) = may {
            return LeaseAction::Wait { until };
        }
        let lease = lease.taken_over(&self.hostname, &self.holder, now.wall);
        LeaseAction::TakeOver(self.record_write(lease, now))
    }

    /// Whether a write is due: not before `due`, not before upstream has been ready for `settled`,
    /// and not directly after another write. If not, when to observe again.
    fn may_write(&self, due: Instant, settled: Duration, now: ClockReading) -> Result<(), Instant> {
        let Some(ready_since) = self.ready_since else {
            return Err(now.monotonic + RENEW_INTERVAL);
        };
        let due = due.max(ready_since + settled);
        let due = self
            .last_write
            .map_or(due, |last| due.max(last + RENEW_INTERVAL));
        if now.monotonic < due {
            return Err(due);
        }
        Ok(())
    }

    fn record_write(&mut self, lease: IdentityLease, now: ClockReading) -> IdentityLease {
        self.last_write = Some(now.monotonic);
        if self.written_renew_times.len() == MAX_REMEMBERED_WRITES {
            self.written_renew_times.pop_front();
        }
        self.written_renew_times.push_back(now.wall.into());
        match self.peer_address {
            Some(address) => lease.with_peer_address(address),
            None => lease,
        }
    }
}

/// A Lease of another identity on this host that has not been renewed for this long belongs to a
/// stopped server: a server renews every 10 s, by the clock of this host.
const STALE_LEASE_AGE: Duration = Duration::from_mins(5);

/// Stale Leases of servers on this host, to be deleted (KEP-4020, Risks 7): expired Leases of the
/// own identity or of a kube-apiserver with the own host name, and Leases of a kube-apiserver with
/// the own host name and another identity that have not been renewed for minutes.
pub fn stale_leases<'a>(
    all: impl IntoIterator<Item = &'a IdentityLease>,
    own: &Identity,
    hostname: &str,
    now: SystemTime,
) -> Vec<&'a IdentityLease> {
    let is_stale = |lease: &IdentityLease| {
        let of_this_host = lease.is_kube_apiserver() && lease.hostname() == Some(hostname);
        let is_abandoned = || {
            let renewed = lease.renew_time().map(SystemTime::from);
            renewed.is_some_and(|renewed| renewed + STALE_LEASE_AGE < now)
        };
        if lease.identity() == own {
            lease.is_expired(now)
        } else {
            of_this_host && (lease.is_expired(now) || is_abandoned())
        }
    };
    all.into_iter().filter(|lease| is_stale(lease)).collect()
}

#[cfg(test)]
mod tests;
