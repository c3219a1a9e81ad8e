//! Who keeps the identity Lease of our kube-apiserver: the server itself
//! wherever it does, and the bridge where it does not.
//!
//! Whether somebody renews a Lease is judged as leader election judges it: by
//! seeing it change, and by our own monotonic clock, since clocks differ.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Add;
use std::time::{Duration, Instant, SystemTime};

use crate::watch::WatchedObject as _;
use crate::{Identity, IdentityLease, LeaseDeletion, MicroTime};

/// How often a Lease is renewed, by kube-apiserver as by us. Also the shortest
/// time between two writes of ours.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);

/// A Lease that has not changed for so long is not being renewed: a server has
/// missed three renewals.
const SILENCE: Duration = Duration::from_secs(40);

/// How long a server that is ready may be without a Lease: at its start,
/// kube-apiserver deletes its old one before it creates another.
const START: Duration = Duration::from_secs(10);

/// How many of our own writes are remembered, to know them again: more than
/// can be under way at once.
const REMEMBERED_WRITES: usize = 8;

/// Now, on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct ClockReading {
    /// What lengths of time are measured by.
    pub monotonic: Instant,
    /// What is written into Leases.
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

/// Whether our kube-apiserver is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upstream {
    /// It is, and so has had the occasion to write its Lease.
    Ready,
    /// It is not, or not yet.
    NotReady,
}

/// What to do about the Lease. Whatever it is, look again when the Lease or
/// upstream changes, and at `until` or 10 s after a write at the latest.
#[derive(Debug, Clone, PartialEq)]
pub enum LeaseAction {
    /// Nothing yet.
    Wait {
        /// When to look again.
        until: Instant,
    },
    /// Nothing: its server keeps it.
    LeaveAlone {
        /// When to look whether it still does.
        until: Instant,
    },
    /// Create this Lease.
    Create(IdentityLease),
    /// Update our Lease to this, by its resource version.
    Renew(IdentityLease),
    /// Update a Lease that nobody keeps to this, by its resource version.
    TakeOver(IdentityLease),
}

/// Decides about the identity Lease of our own kube-apiserver.
#[derive(Debug)]
pub struct LeaseController {
    identity: Identity,
    hostname: String,
    holder: String,
    peer_address: Option<SocketAddr>,
    sight: Sight,
    ready_since: Option<Instant>,
    last_write: Option<Instant>,
    /// When we renewed it, as it says in the Lease: how our writes are told
    /// from those of a kube-apiserver that goes on with our holder.
    written: VecDeque<MicroTime>,
}

/// What we have seen.
#[derive(Debug)]
enum Sight {
    /// We have not looked.
    Nothing,
    Absent {
        since: Instant,
    },
    Present {
        state: State,
        /// The last change, or when it was first seen.
        since: Instant,
        /// Whether it has changed before our eyes.
        changed: bool,
    },
}

/// What changes when a Lease is renewed.
#[derive(Debug, PartialEq, Eq)]
struct State {
    uid: Option<String>,
    resource_version: String,
    holder: Option<String>,
    renew_time: Option<MicroTime>,
}

impl State {
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
    /// Speaks for this identity, on this host. The UUID is new at each start of
    /// the bridge: others see by the holder that a process is new.
    pub fn new(identity: Identity, hostname: &str, holder_uuid: &str) -> Self {
        Self {
            holder: format!("{identity}_{holder_uuid}"),
            identity,
            hostname: hostname.to_owned(),
            peer_address: None,
            sight: Sight::Nothing,
            ready_since: None,
            last_write: None,
            written: VecDeque::with_capacity(REMEMBERED_WRITES),
        }
    }

    /// Leases that we write say that peers reach the server at this address, as
    /// those of a kube-apiserver that takes part do.
    #[must_use]
    pub fn advertising(mut self, address: SocketAddr) -> Self {
        self.peer_address = Some(address);
        self
    }

    /// The holder in Leases that we keep.
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// What to do, the Lease being this now. Call it with what a synchronised
    /// cache says: a Lease that is not known yet is not absent.
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
            None => self.absent(now),
            Some(lease) => {
                let (since, changed) = self.look(lease, at);
                if self.is_ours(lease) {
                    self.ours(lease, now)
                } else if changed && at < since + SILENCE {
                    LeaseAction::LeaveAlone {
                        until: since + SILENCE,
                    }
                } else {
                    self.abandoned(lease, since, now)
                }
            }
        }
    }

    /// When we leave: our Lease is to be deleted, so that peers need not wait
    /// for an hour (KEP-4020, Risks 7). A server's own is its own business.
    pub fn on_shutdown(&self, lease: Option<&IdentityLease>) -> Option<LeaseDeletion> {
        lease.filter(|lease| self.is_ours(lease))?.deletion()
    }

    /// Remembers what it looks like: since when, and whether it has changed
    /// before our eyes.
    fn look(&mut self, lease: &IdentityLease, at: Instant) -> (Instant, bool) {
        let seen = State::of(lease);
        let (since, changed) = match &self.sight {
            Sight::Nothing => (at, false),
            Sight::Present {
                state,
                since,
                changed,
            } if *state == seen => (*since, *changed),
            Sight::Absent { .. } | Sight::Present { .. } => (at, true),
        };
        self.sight = Sight::Present {
            state: seen,
            since,
            changed,
        };
        (since, changed)
    }

    /// Held by us, and last renewed by us. kube-apiserver before 1.35 goes on
    /// with the holder that it finds, so the holder alone does not say it.
    fn is_ours(&self, lease: &IdentityLease) -> bool {
        lease.holder() == Some(&self.holder)
            && lease
                .renew_time()
                .is_some_and(|time| self.written.contains(&time))
    }

    fn absent(&mut self, now: ClockReading) -> LeaseAction {
        let since = match self.sight {
            Sight::Absent { since } => since,
            _ => now.monotonic,
        };
        self.sight = Sight::Absent { since };
        if let Err(until) = self.may_write(since + START, START, now) {
            return LeaseAction::Wait { until };
        }
        let lease = IdentityLease::new(&self.identity, &self.hostname, &self.holder, now.wall);
        LeaseAction::Create(self.write(lease, now))
    }

    fn ours(&mut self, lease: &IdentityLease, now: ClockReading) -> LeaseAction {
        let due = self.last_write.map(|last| last + RENEW_INTERVAL);
        match due.filter(|due| now.monotonic < *due) {
            Some(until) => LeaseAction::Wait { until },
            None => LeaseAction::Renew(self.write(lease.renewed(now.wall), now)),
        }
    }

    /// Not ours, and not seen being renewed lately. One that has run out is as
    /// good as none: its server has had an hour.
    fn abandoned(
        &mut self,
        lease: &IdentityLease,
        since: Instant,
        now: ClockReading,
    ) -> LeaseAction {
        let may = if lease.is_expired(now.wall) {
            self.may_write(now.monotonic, START, now)
        } else {
            self.may_write(since + SILENCE, SILENCE, now)
        };
        if let Err(until) = may {
            return LeaseAction::Wait { until };
        }
        let lease = lease.taken_over(&self.hostname, &self.holder, now.wall);
        LeaseAction::TakeOver(self.write(lease, now))
    }

    /// Whether the time has come: not before `due`, not before upstream has
    /// been ready for `settled`, and not at once after another write. If not,
    /// when to look again.
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

    fn write(&mut self, lease: IdentityLease, now: ClockReading) -> IdentityLease {
        self.last_write = Some(now.monotonic);
        if self.written.len() == REMEMBERED_WRITES {
            self.written.pop_front();
        }
        self.written.push_back(now.wall.into());
        match self.peer_address {
            Some(address) => lease.with_peer_address(address),
            None => lease,
        }
    }
}

/// A Lease of another identity on this host that has not been renewed for so long belongs
/// to a server that has ended: a server renews every 10 s, by the clock of this host.
const STALE_LEASE_AGE: Duration = Duration::from_mins(5);

/// Leases that a server of this host has left behind, to be deleted (KEP-4020, Risks 7):
/// run out, and under our name or of a kube-apiserver with our host name; or of a
/// kube-apiserver with our host name and another identity, and not renewed for minutes.
pub fn stale_leases<'a>(
    all: impl IntoIterator<Item = &'a IdentityLease>,
    own: &Identity,
    hostname: &str,
    now: SystemTime,
) -> Vec<&'a IdentityLease> {
    let is_stale = |lease: &IdentityLease| {
        let of_this_host = lease.is_of_kube_apiserver() && lease.hostname() == Some(hostname);
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
