//! Everything that is known of the other servers of the cluster, as a state
//! machine: what is seen goes in, what to fetch and where to route comes out.
//!
//! Leases, addresses and discovery documents come by three ways and in any
//! order. Real kube-apiservers lose a peer for good when its Lease comes first
//! (they give up after some tries); here nobody is given up while its Lease
//! lives, and the last good answer of a peer counts until then.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use skewbridge_api::request_info::RequestInfo;
use skewbridge_api::version::Version;
use skewbridge_discovery::{Document, Index};

use crate::identity::Identity;
use crate::schedule::{News, Schedule};
use crate::standing::Standing;

/// After this without a renewal a server is taken for dead. kube-apiserver
/// renews every 10 s; three may be lost.
const ALIVE: Duration = Duration::from_secs(40);

/// How long a server that runs may take to say where it is. One that has not by
/// then takes no part, such as one that has no bridge yet: what nobody else
/// serves is then not found, as it would be without us.
const TO_APPEAR: Duration = Duration::from_mins(1);

/// How long a server that says where it is may take to tell what it serves.
const TO_TELL: Duration = Duration::from_mins(5);

/// How long a server that has ended its Lease while its bridge stays may take to
/// come back: from 1.35 on a restart deletes the Lease, and what only this server
/// has must not be "not found" meanwhile.
const TO_RESTART: Duration = Duration::from_mins(2);

/// A Lease that has not changed for its duration has run out, whoever forgets to
/// delete it.
const LEASE: Duration = Duration::from_hours(1);

/// What a server says that it serves.
#[derive(Debug)]
pub struct Served {
    /// For routing.
    pub index: Arc<Index>,
    /// `/api` and `/apis`, for merging.
    pub documents: [Arc<Document>; 2],
    /// What they are called by who sent them, to ask for news only.
    pub etags: [Option<String>; 2],
    /// As `/version` has it.
    pub version: Option<Version>,
}

/// The first servers that change the holder of their Lease with each start, and
/// delete it when they end. Older ones go on with the holder that they find.
const SINCE_TELLING: (u16, u16) = (1, 35);

impl Served {
    fn news(&self) -> News {
        let version = self.version.map(|it| (it.major, it.minor));
        // Who has no documents (before 1.26) is asked for dozens of lists.
        let is_cheap = self.etags.iter().all(Option::is_some);
        match version {
            Some(version) if version < SINCE_TELLING && is_cheap => News::AskedFor,
            _ => News::Told,
        }
    }
}

/// What is known of all servers.
#[derive(Debug)]
pub struct Roster {
    own: Identity,
    listed: bool,
    entries: BTreeMap<Identity, Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    lease: Option<Life>,
    /// When its Lease ended, if we saw it.
    ended: Option<Instant>,
    address: Option<SocketAddr>,
    /// Whether the registry still has the address.
    published: bool,
    /// What it has published that is not believed.
    refused: Option<SocketAddr>,
    served: Option<Arc<Served>>,
    fetch: Schedule,
    succeeded: Option<SystemTime>,
    problem: Option<String>,
    standing: Arc<Standing>,
}

/// A Lease as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Whose.
    pub identity: Identity,
    /// New with each start of the server.
    pub holder: String,
    /// Changes with each renewal.
    pub resource_version: String,
}

#[derive(Debug)]
struct Life {
    holder: String,
    resource_version: String,
    /// When we first saw it, and when we saw it change: by our own clock, as
    /// clocks differ.
    first: Instant,
    changed: Instant,
}

impl Roster {
    /// Nobody is known yet.
    pub fn new(own: Identity) -> Self {
        Self {
            own,
            listed: false,
            entries: BTreeMap::new(),
        }
    }

    /// Whether the Leases have been read.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// All Leases there are.
    pub fn leases(&mut self, all: Vec<Seen>, at: Instant) {
        self.listed = true;
        for (identity, entry) in &mut self.entries {
            if !all.iter().any(|seen| seen.identity == *identity) {
                entry.end(at);
            }
        }
        for seen in all {
            self.lease(seen, at);
        }
        self.forget();
    }

    /// A Lease that is new, or has changed.
    pub fn lease(&mut self, seen: Seen, at: Instant) {
        if seen.identity == self.own {
            return;
        }
        let entry = self.entries.entry(seen.identity).or_default();
        let (restarted, changed) = match &entry.lease {
            None => (true, at),
            Some(life) if life.resource_version == seen.resource_version => (false, life.changed),
            Some(life) => (life.holder != seen.holder, at),
        };
        let first = entry.lease.as_ref().map_or(at, |life| life.first);
        entry.ended = None;
        entry.lease = Some(Life {
            holder: seen.holder,
            resource_version: seen.resource_version,
            first,
            changed,
        });
        if restarted {
            entry.fetch.now(at);
        }
    }

    /// A Lease that is gone.
    pub fn lease_gone(&mut self, identity: &Identity, at: Instant) {
        if let Some(entry) = self.entries.get_mut(identity) {
            entry.end(at);
        }
        self.forget();
    }

    /// All addresses there are. One that is no longer published is kept as the
    /// last resort: etcd may have been away, and a wrong one is found out by its
    /// certificate.
    pub fn addresses(&mut self, all: &BTreeMap<Identity, SocketAddr>, at: Instant) {
        for (identity, entry) in &mut self.entries {
            entry.published &= all.contains_key(identity);
        }
        for (identity, address) in all {
            if *identity == self.own {
                continue;
            }
            let entry = self.entries.entry(identity.clone()).or_default();
            // Back at the same place it may be another version.
            let is_back = !std::mem::replace(&mut entry.published, true);
            if is_back || entry.address != Some(*address) {
                entry.address = Some(*address);
                entry.standing.forgive();
                entry.fetch.now(at);
            }
        }
        self.forget();
    }

    /// All addresses that are published and not believed, since they are in none
    /// of the networks that an administrator allows.
    pub fn refuse(&mut self, all: &BTreeMap<Identity, SocketAddr>) {
        for (identity, entry) in &mut self.entries {
            entry.refused = all.get(identity).copied();
        }
    }

    /// Ends what has run out. Whether that was anything.
    pub fn expire(&mut self, at: Instant) -> bool {
        let mut any = false;
        for entry in self.entries.values_mut() {
            if (entry.lease.as_ref()).is_some_and(|life| life.changed + LEASE <= at) {
                entry.end(at);
                any = true;
            }
            if entry.ended.is_some_and(|ended| ended + TO_RESTART <= at) {
                entry.ended = None;
                entry.served = None;
                any = true;
            }
        }
        self.forget();
        any
    }

    /// Whom to ask now. Each is to be followed by [`Roster::fetched`].
    pub fn due(&mut self, at: Instant) -> Vec<Peer> {
        let mut due = Vec::new();
        for (identity, entry) in &mut self.entries {
            if entry.lease.is_some() && entry.address.is_some() && entry.fetch.begin(at) {
                due.extend(entry.peer(identity));
            }
        }
        due
    }

    /// What came of asking a peer. `jitter` spreads the next time: 0 to 1.
    pub fn fetched(
        &mut self,
        identity: &Identity,
        outcome: Result<Served, String>,
        at: Instant,
        wall: SystemTime,
        jitter: f64,
    ) {
        let Some(entry) = self.entries.get_mut(identity) else {
            return;
        };
        match outcome {
            // Its Lease has ended meanwhile: back again, it has to tell anew.
            _ if entry.lease.is_none() => entry.fetch.failed(at, jitter),
            Ok(served) => {
                entry.fetch.succeeded(at, served.news(), jitter);
                entry.succeeded = Some(wall);
                entry.served = Some(Arc::new(served));
                // Back again. One that tells what it serves and fails with
                // requests is not better for it.
                if entry.problem.take().is_some() {
                    entry.standing.forgive();
                }
            }
            Err(problem) => {
                entry.fetch.failed(at, jitter);
                entry.problem = Some(problem);
            }
        }
    }

    /// A request could not be brought to this peer: find out whether it is
    /// there, and what it is now.
    pub fn doubt(&mut self, identity: &Identity, at: Instant) {
        if let Some(entry) = self.entries.get_mut(identity) {
            entry.fetch.doubt(at);
        }
    }

    /// What routing needs to know.
    pub fn snapshot(&self) -> Peers {
        Peers {
            listed: self.listed,
            peers: self
                .entries
                .iter()
                .filter_map(|(identity, entry)| entry.peer(identity).map(Arc::new))
                .collect(),
        }
    }

    /// Entries with neither Lease nor address are nobody.
    fn forget(&mut self) {
        self.entries
            .retain(|_, entry| entry.lease.is_some() || entry.published);
    }
}

impl Entry {
    /// Its Lease has ended: what it served is served by it no more, unless its
    /// bridge waits for it to come back.
    fn end(&mut self, at: Instant) {
        if self.lease.take().is_some() {
            self.ended = Some(at);
        }
        if !self.published {
            self.served = None;
            self.address = None;
        }
    }

    fn peer(&self, identity: &Identity) -> Option<Peer> {
        let (alive_until, awaited_until) = match (&self.lease, self.ended) {
            (Some(life), _) => {
                let patience = match self.address {
                    Some(_) => TO_TELL,
                    None => TO_APPEAR,
                };
                (life.changed + ALIVE, life.first + patience)
            }
            // Known, and for the moment not there.
            (None, Some(ended)) if self.served.is_some() => (ended, ended),
            (None, _) => return None,
        };
        Some(Peer {
            identity: identity.clone(),
            address: self.address,
            published: self.published,
            alive_until,
            awaited_until,
            served: self.served.clone(),
            standing: self.standing.clone(),
            succeeded: self.succeeded,
            problem: match (self.refused, self.address) {
                (Some(refused), _) => Some(format!(
                    "the address that it has published, {refused}, is refused: it is in none \
                     of the --peer-cidrs"
                )),
                (None, None) => Some("it has published no address".to_owned()),
                (None, Some(_)) => self.problem.clone(),
            },
        })
    }
}

/// The other servers, as routing sees them: replaced as a whole.
#[derive(Debug, Default)]
pub struct Peers {
    /// Whether the Leases have been read.
    pub listed: bool,
    /// In the order of their identities.
    pub peers: Vec<Arc<Peer>>,
}

/// Another server of the cluster, whose Lease lives.
#[derive(Debug)]
pub struct Peer {
    /// The name of its Lease.
    pub identity: Identity,
    /// Where it, or its bridge, is reached.
    pub address: Option<SocketAddr>,
    /// Whether the registry has that address now.
    pub published: bool,
    /// Until when its last renewal lets us believe that it runs.
    pub alive_until: Instant,
    /// Until when it is waited for to tell what it serves.
    pub awaited_until: Instant,
    /// What it serves, as last heard.
    pub served: Option<Arc<Served>>,
    /// How it does with the requests that it gets.
    pub standing: Arc<Standing>,
    /// When it last told what it serves.
    pub succeeded: Option<SystemTime>,
    /// Why it has not since.
    pub problem: Option<String>,
}

/// Who of the others serves a request.
#[derive(Debug, Clone)]
pub enum Elsewhere {
    /// There is nobody else.
    NoPeers,
    /// These do.
    Served(Vec<Arc<Peer>>),
    /// None of those that have told; but one that runs has not told yet.
    Unknown(Identity),
    /// Nobody.
    Nowhere,
}

impl Peers {
    /// The peer of this identity.
    pub fn get(&self, identity: &Identity) -> Option<&Arc<Peer>> {
        self.peers.iter().find(|peer| peer.identity == *identity)
    }

    /// Who serves this request. "Nobody" is only said for certain.
    pub fn serving(&self, request: &RequestInfo<'_>, now: Instant) -> Elsewhere {
        if self.peers.is_empty() {
            return Elsewhere::NoPeers;
        }
        let serving: Vec<_> = self
            .peers
            .iter()
            .filter(|peer| peer.serves(request))
            .cloned()
            .collect();
        if !serving.is_empty() {
            return Elsewhere::Served(serving);
        }
        let silent = self
            .peers
            .iter()
            .find(|peer| peer.served.is_none() && peer.is_awaited(now));
        match silent {
            Some(peer) => Elsewhere::Unknown(peer.identity.clone()),
            None => Elsewhere::Nowhere,
        }
    }
}

impl Peer {
    /// Whether it runs and may still tell that it serves something.
    fn is_awaited(&self, now: Instant) -> bool {
        self.alive_until > now && self.awaited_until > now
    }

    /// Whether it has said that it serves this.
    pub fn serves(&self, request: &RequestInfo<'_>) -> bool {
        let served = self.served.as_ref();
        served.is_some_and(|served| served.index.serves(request))
    }
}

#[cfg(test)]
mod tests;
