//! Learns what the cluster is: which servers there are, where, and what each of
//! them serves; and tells them about the one behind this bridge.
//!
//! One task owns all of that knowledge. Others ask and listen for it, and tell
//! it by [`Event`]; what requests need to know is published as a whole.

mod discover;
mod informer;
mod own_lease;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use ipnet::IpNet;
use skewbridge_peers::registry::Addresses;
use skewbridge_peers::schedule::{News, Schedule};
use skewbridge_peers::watch::WatchEvent;
use skewbridge_peers::{
    ApiService, CustomResourceDefinition, Excluded, Exclusions, Identity, IdentityLease, Roster,
    Seen, Served, lease,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use self::discover::discover;
use self::informer::{Change, Kind};
use self::own_lease::OwnLease;
use crate::cluster::{Cluster, Hint, Requests};
use crate::flow::Bridge;
use crate::health::UpstreamHealth;
use crate::membership::{Membership, Whereabouts};
use crate::openapi;
use crate::own::{Own, Party};
use crate::peer_metrics::SyncError;
use crate::view::View;

/// How often it is looked whether something is due.
const TICK: Duration = Duration::from_millis(200);

/// How long after an event a server may take to show what was made or deleted, and
/// how often it is asked meanwhile.
const SETTLING: Duration = Duration::from_secs(5);
const SETTLING_LOOK: Duration = Duration::from_secs(1);

/// Ticks between two times of closing unused connections: 5 s.
const TIDY_TICKS: u32 = 25;

/// How long a server may take to tell what it serves.
const FETCH_PATIENCE: Duration = Duration::from_secs(10);

/// How long the registry and the Lease may take to be cleared when we leave.
const FAREWELL: Duration = Duration::from_secs(4);

/// Events that wait; whoever tells more, waits.
const EVENTS: usize = 256;

const LEASES: Kind = Kind {
    path: lease::COLLECTION,
    selector: "&labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver",
    page: 500,
    what: "identity Leases",
};
const API_SERVICES: Kind = Kind {
    path: "/apis/apiregistration.k8s.io/v1/apiservices",
    selector: "",
    page: 500,
    what: "APIServices",
};
/// Each may be as large as an object can be: a small page bounds the memory.
const CUSTOM_RESOURCES: Kind = Kind {
    path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    selector: "",
    page: 20,
    what: "CustomResourceDefinitions",
};

/// What has been learnt.
enum Event {
    Lease(Change<IdentityLease>),
    ApiService(Change<ApiService>),
    CustomResource(Change<CustomResourceDefinition>),
    Peer(Identity, Result<Served, String>),
    Local(Result<Served, String>),
}

impl From<Change<IdentityLease>> for Event {
    fn from(change: Change<IdentityLease>) -> Self {
        Self::Lease(change)
    }
}

impl From<Change<ApiService>> for Event {
    fn from(change: Change<ApiService>) -> Self {
        Self::ApiService(change)
    }
}

impl From<Change<CustomResourceDefinition>> for Event {
    fn from(change: Change<CustomResourceDefinition>) -> Self {
        Self::CustomResource(change)
    }
}

/// Learns until the bridge leaves; then takes back what it has told others.
pub(crate) async fn run(
    bridge: Arc<Bridge>,
    membership: Membership,
    health: Arc<ArcSwap<UpstreamHealth>>,
    requests: Requests,
) {
    tracing::info!(identity = %membership.identity, address = %membership.address, "this bridge is a peer among kube-apiservers");
    let own = Arc::new(Own::new(bridge.clone()));
    let (tell, mut events) = mpsc::channel(EVENTS);
    let mut tasks = JoinSet::new();
    spawn_informers(&mut tasks, &own, &tell);
    tasks.spawn(openapi::run(own.clone(), requests.orders));
    let mut hints = requests.hints;
    let mut looks = requests.looks;

    let (publish, published) =
        watch::channel(Some((membership.identity.clone(), membership.address)));
    let (found, mut addresses) = watch::channel(Addresses::new());
    let (registry, networks) = match membership.whereabouts {
        Whereabouts::Registry(registry) => {
            let task = tokio::spawn(async move { registry.run(published, found).await });
            (Some(task), None)
        }
        Whereabouts::Leases(networks) => (None, Some(networks)),
    };
    let mut learner = Learner {
        roster: Roster::new(membership.identity.clone()),
        exclusions: Exclusions::new(),
        read: Read::default(),
        local: None,
        local_schedule: Schedule::default(),
        leases: BTreeMap::new(),
        own_lease: OwnLease::new(
            own.clone(),
            &membership.identity,
            &membership.hostname,
            membership.address,
            networks.is_some(),
        ),
        networks,
        was_ready: false,
        identity: membership.identity,
        shared: None,
        view: None,
        unsettled_until: None,
        next_settling_look: Instant::now(),
        looking: Vec::new(),
        looking_next: Vec::new(),
        looked: false,
        telling: BTreeSet::new(),
        refused: Addresses::new(),
        own,
        tell,
    };
    let mut drain = bridge.drain.clone();
    let mut ticks = interval(TICK);
    let mut count = 0;
    loop {
        tokio::select! {
            () = drain.leaving() => break,
            Some(event) = events.recv() => {
                learner.learn(event);
                // What has come together is published together.
                while let Ok(event) = events.try_recv() {
                    learner.learn(event);
                }
                learner.publish();
                learner.tell_who_looked();
            }
            Some(hint) = hints.recv() => learner.hear(hint),
            Some(reply) = looks.recv() => learner.look(reply, &mut looks),
            Ok(()) = addresses.changed() => {
                let now = addresses.borrow_and_update().clone();
                learner.roster.addresses(&now, Instant::now());
                learner.publish();
            }
            _ = ticks.tick() => {
                count += 1;
                if count % TIDY_TICKS == 0 {
                    learner.own.tidy();
                }
                learner.look_at_upstream(&health.load());
            }
        }
        learner.fetch(&mut tasks);
        while tasks.try_join_next().is_some() {}
    }
    publish.send_replace(None);
    let farewell = async {
        learner.own_lease.leave().await;
        if let Some(registry) = registry {
            let _ = registry.await;
        }
    };
    if timeout(FAREWELL, farewell).await.is_err() {
        tracing::warn!(
            "peers were not told that this bridge leaves: its record runs out by itself"
        );
    }
}

fn spawn_informers(tasks: &mut JoinSet<()>, own: &Arc<Own>, tell: &mpsc::Sender<Event>) {
    let follow = |own: &Arc<Own>| (own.clone(), tell.clone());
    let (api, to) = follow(own);
    tasks.spawn(async move { informer::follow::<IdentityLease, _>(&api, LEASES, &to).await });
    let (api, to) = follow(own);
    tasks.spawn(async move { informer::follow::<ApiService, _>(&api, API_SERVICES, &to).await });
    let (api, to) = follow(own);
    tasks.spawn(async move {
        informer::follow::<CustomResourceDefinition, _>(&api, CUSTOM_RESOURCES, &to).await;
    });
}

/// Which kinds have been read once.
#[derive(Debug, Default)]
struct Read {
    api_services: bool,
    custom_resources: bool,
}

/// Owns all that is known.
struct Learner {
    own: Arc<Own>,
    tell: mpsc::Sender<Event>,
    roster: Roster,
    exclusions: Exclusions,
    read: Read,
    local: Option<Arc<Served>>,
    local_schedule: Schedule,
    leases: BTreeMap<Identity, IdentityLease>,
    own_lease: OwnLease,
    networks: Option<Vec<IpNet>>,
    was_ready: bool,
    identity: Identity,
    shared: Option<Arc<Excluded>>,
    view: Option<Arc<View>>,
    /// Until when what was made or deleted may still become visible.
    unsettled_until: Option<Instant>,
    next_settling_look: Instant,
    /// Who wait for the look at the local server that is under way, and for the next.
    looking: Vec<oneshot::Sender<()>>,
    looking_next: Vec<oneshot::Sender<()>>,
    /// The look has ended.
    looked: bool,
    /// Peers whose last answer was good, to say it once.
    telling: BTreeSet<Identity>,
    /// Addresses that were refused, to say it once.
    refused: Addresses,
}

impl Learner {
    fn learn(&mut self, event: Event) {
        let now = Instant::now();
        let jitter = self.jitter();
        match event {
            Event::Lease(change) => self.lease(change, now),
            Event::ApiService(change) => {
                self.unsettle(now);
                match change {
                    Change::All(all) => {
                        self.exclusions.set_api_services(&all, now);
                        self.read.api_services = true;
                    }
                    Change::Event(event) => {
                        if !self.exclusions.on_api_service(&event, now) {
                            // Only its status: every server serves the same.
                            return self.local_schedule.now(now);
                        }
                    }
                    Change::Lost => return,
                }
                self.share();
                self.local_schedule.now(now);
            }
            Event::CustomResource(change) => {
                self.unsettle(now);
                match change {
                    Change::All(all) => {
                        self.exclusions.set_crds(&all, now);
                        self.read.custom_resources = true;
                    }
                    Change::Event(event) => {
                        if !self.exclusions.on_crd(&event, now) {
                            return self.local_schedule.now(now);
                        }
                    }
                    Change::Lost => return,
                }
                self.share();
                self.local_schedule.now(now);
            }
            Event::Peer(identity, outcome) => {
                if let Err(problem) = &outcome {
                    let metrics = self.own.bridge.metrics.peers();
                    metrics.sync_error(SyncError::Fetch);
                    if self.telling.remove(&identity) {
                        tracing::warn!(peer = %identity, %problem, "a peer does not tell any more what it serves; what it said counts on");
                    } else {
                        tracing::debug!(peer = %identity, %problem, "a peer does not tell what it serves");
                    }
                } else if self.telling.insert(identity.clone()) {
                    tracing::info!(peer = %identity, "a peer has told what it serves");
                }
                self.roster
                    .fetched(&identity, outcome, now, SystemTime::now(), jitter);
            }
            Event::Local(outcome) => {
                self.looked = true;
                match outcome {
                    Ok(served) => {
                        // Its health is looked at all the time.
                        self.local_schedule.succeeded(now, News::Told, jitter);
                        self.local = Some(Arc::new(served));
                    }
                    Err(problem) => {
                        self.local_schedule.failed(now, jitter);
                        tracing::debug!(%problem, "upstream does not tell what it serves");
                    }
                }
            }
        }
    }

    fn lease(&mut self, change: Change<IdentityLease>, now: Instant) {
        match change {
            Change::All(mut all) => {
                self.own_lease.remove_stale(&all);
                // What ran out before we looked is nobody's.
                let wall = SystemTime::now();
                all.retain(|lease| !lease.is_expired(wall));
                self.roster.leases(all.iter().map(seen).collect(), now);
                self.leases = all
                    .into_iter()
                    .map(|lease| (lease.identity().clone(), lease))
                    .collect();
            }
            Change::Event(WatchEvent::Deleted(lease)) => {
                self.roster.lease_gone(lease.identity(), now);
                self.leases.remove(lease.identity());
            }
            Change::Event(WatchEvent::Added(lease) | WatchEvent::Modified(lease)) => {
                self.roster.lease(seen(&lease), now);
                self.leases.insert(lease.identity().clone(), lease);
            }
            Change::Event(_) => {}
            Change::Lost => {
                let metrics = self.own.bridge.metrics.peers();
                metrics.sync_error(SyncError::Leases);
            }
        }
        if let Some(networks) = &self.networks {
            let (annotated, refused) = annotated(&self.leases, networks);
            for (identity, address) in &refused {
                if self.refused.get(identity) != Some(address) {
                    tracing::warn!(%identity, %address, "an address outside of --peer-cidrs is refused");
                }
            }
            self.roster.addresses(&annotated, now);
            self.roster.refuse(&refused);
            self.refused = refused;
        }
    }

    /// Somebody wants to be sure of what the local server serves.
    fn look(
        &mut self,
        reply: oneshot::Sender<()>,
        others: &mut mpsc::Receiver<oneshot::Sender<()>>,
    ) {
        self.looking_next.push(reply);
        while let Ok(reply) = others.try_recv() {
            self.looking_next.push(reply);
        }
        self.local_schedule.now(Instant::now());
    }

    fn tell_who_looked(&mut self) {
        if std::mem::take(&mut self.looked) {
            for reply in self.looking.drain(..) {
                let _ = reply.send(());
            }
        }
    }

    fn hear(&mut self, hint: Hint) {
        let now = Instant::now();
        match hint {
            Hint::LocalChanged => self.local_schedule.doubt(now),
            Hint::Doubt(identity) => self.roster.doubt(&identity, now),
        }
    }

    /// What is behind us may be another version after each start.
    fn look_at_upstream(&mut self, health: &UpstreamHealth) {
        let now = Instant::now();
        let ready = *health == UpstreamHealth::Ready;
        let is_unsettled = self.unsettled_until.is_some_and(|until| now < until);
        if is_unsettled && now >= self.next_settling_look {
            self.next_settling_look = now + SETTLING_LOOK;
            self.local_schedule.now(now);
        }
        if ready && !self.was_ready {
            self.local_schedule.now(now);
        }
        self.was_ready = ready;
        if self.roster.is_listed() {
            self.own_lease.look(&self.leases, ready);
        }
        let expired = self.roster.expire(now);
        if self.exclusions.prune(now) {
            self.share();
            self.publish();
        } else if expired {
            self.publish();
        }
    }

    /// Asks whom it is time to ask.
    fn fetch(&mut self, tasks: &mut JoinSet<()>) {
        let now = Instant::now();
        if self.local_schedule.begin(now) {
            self.looking.append(&mut self.looking_next);
            let (own, tell) = (self.own.clone(), self.tell.clone());
            let known = self.local.clone();
            tasks.spawn(async move {
                let asked = discover(&own, Party::Upstream, known.as_deref());
                let outcome = timeout(FETCH_PATIENCE, asked).await;
                let outcome = outcome.unwrap_or_else(|_| Err(no_answer()));
                let _ = tell.send(Event::Local(outcome)).await;
            });
        }
        for peer in self.roster.due(now) {
            let (own, tell) = (self.own.clone(), self.tell.clone());
            tasks.spawn(async move {
                let asked = discover(&own, Party::Peer(&peer), peer.served.as_deref());
                let outcome = timeout(FETCH_PATIENCE, asked).await;
                let outcome = outcome.unwrap_or_else(|_| Err(no_answer()));
                let _ = tell.send(Event::Peer(peer.identity.clone(), outcome)).await;
            });
        }
    }

    fn publish(&mut self) {
        let Some(interop) = &self.own.bridge.interop else {
            return;
        };
        let peers = self.roster.snapshot();
        let began = Instant::now();
        let view = match (&self.local, &self.shared) {
            (Some(local), Some(shared)) if peers.listed => {
                View::of(&self.identity, local, &peers, shared, self.view.as_ref())
            }
            _ => None,
        };
        let is_new = match (&self.view, &view) {
            (Some(before), Some(view)) => !Arc::ptr_eq(before, view),
            (before, view) => before.is_some() != view.is_some(),
        };
        if is_new {
            let metrics = self.own.bridge.metrics.discovery();
            metrics.recomputed(view.as_deref(), began.elapsed());
        }
        self.view.clone_from(&view);
        interop.cluster.store(Arc::new(Cluster {
            local: self.local.clone(),
            peers,
            shared: self.shared.clone(),
            view,
        }));
    }

    /// Something that all servers share was made or deleted. Each of them shows it
    /// in its own time, and tells nobody when.
    fn unsettle(&mut self, now: Instant) {
        self.unsettled_until = Some(now + SETTLING);
    }

    /// After a change of what all servers share.
    fn share(&mut self) {
        if self.read.api_services && self.read.custom_resources {
            self.shared = Some(self.exclusions.snapshot());
        }
    }

    /// From 0 to 1.
    #[allow(clippy::cast_precision_loss)] // it only spreads
    fn jitter(&self) -> f64 {
        self.own.bridge.chance() as f64 / u64::MAX as f64
    }
}

fn seen(lease: &IdentityLease) -> Seen {
    use skewbridge_peers::Object as _;
    Seen {
        identity: lease.identity().clone(),
        holder: lease.holder().unwrap_or_default().to_owned(),
        resource_version: lease.resource_version().to_owned(),
    }
}

/// Addresses that Leases say, where an administrator has asked for that, and
/// those of them that are refused. Whoever may write Leases could point anywhere
/// (KEP-4020, Risks 5): only into these networks.
fn annotated(
    leases: &BTreeMap<Identity, IdentityLease>,
    networks: &[IpNet],
) -> (Addresses, Addresses) {
    let mut addresses = Addresses::new();
    let mut refused = Addresses::new();
    for (identity, lease) in leases {
        match lease.peer_address() {
            Some(address) if networks.iter().any(|net| net.contains(&address.ip())) => {
                addresses.insert(identity.clone(), address);
            }
            Some(address) => {
                refused.insert(identity.clone(), address);
            }
            None => {}
        }
    }
    (addresses, refused)
}

fn no_answer() -> String {
    format!("no answer within {} s", FETCH_PATIENCE.as_secs())
}
