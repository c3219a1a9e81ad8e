//! Keeps served records in step with what is known: the own server's record in the
//! registry, and the records of all others in `--state-dir`.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use skewbridge_discovery::Document;
use skewbridge_peer_directory::peer_table::ROLLOUT_GRACE;
use skewbridge_peer_directory::registry::{RecordChannels, Registry};
use skewbridge_peer_directory::served_record::MAX_RECORDS;
use skewbridge_peer_directory::{
    ApiSource, Identity, IdentityLease, KeyDigest, PeerTable, Peers, Records, ServedApis,
    ServedRecord, SharedGroupVersions,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::keep_permitted_server;
use super::state_dir::StateDir;

/// How long requests wait at the start for the registry to be read. Afterwards only
/// `--state-dir` says what servers serve that do not answer.
const REGISTRY_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the announcement that this bridge leaves may take.
const LEAVE_RECORD_TIMEOUT: Duration = Duration::from_secs(2);

/// After a failed write to `--state-dir`.
const SAVE_BACKOFF: Duration = Duration::from_secs(10);

/// Outdated records on their way to the registry; what finds no room is found again.
const OUTDATED_QUEUE: usize = 16;

/// The records of this bridge.
pub(super) struct RecordKeeper {
    identity: Identity,
    /// The address of the own server, where other hosts may reach it.
    server: Option<SocketAddr>,
    /// The address of this bridge.
    bridge: SocketAddr,
    /// The keys with which it serves.
    keys: Arc<Vec<KeyDigest>>,
    own: watch::Sender<Option<Arc<ServedRecord>>>,
    /// What the own record was made of.
    made_of: Option<([Arc<Document>; 2], Arc<SharedGroupVersions>)>,
    outdated: mpsc::Sender<Arc<ServedRecord>>,
    task: Option<JoinHandle<()>>,
    /// The own record as an annotation, where records are in annotations.
    annotation: Option<String>,
    /// Records from annotations, by their text.
    annotated: AnnotatedRecords<Arc<ServedRecord>>,
    /// Until when the registry is waited for. `None` once it has been read.
    awaited_until: Option<Instant>,
    /// Peers that have answered since the last look.
    answered: BTreeSet<Identity>,
    /// Of what the last record of a peer was made.
    recorded: BTreeMap<Identity, [Arc<Document>; 2]>,
    state: Option<StateDir>,
    /// What is in `--state-dir`.
    saved: Records,
    /// Gets the outcome of the write that is under way.
    saving: Option<oneshot::Receiver<Result<(), String>>>,
    next_save: Instant,
    /// Peers whose bridge has left, by name, and whether they have come to count as servers
    /// that never had one.
    departed: BTreeMap<Identity, (String, bool)>,
}

/// What `--state-dir` gave at the start.
pub(crate) struct Stored {
    pub(crate) state: StateDir,
    pub(crate) records: Vec<ServedRecord>,
}

impl Stored {
    /// The same, without addresses outside of `--peer-cidrs`.
    pub(super) fn permitted(mut self, networks: &[IpNet]) -> Self {
        for record in &mut self.records {
            keep_permitted_server(record, networks);
        }
        self
    }
}

impl RecordKeeper {
    /// Begins to follow the records of a registry. Without one, records are in
    /// annotations of Leases.
    pub(super) fn start(
        identity: Identity,
        (server, bridge): (Option<SocketAddr>, SocketAddr),
        keys: Arc<Vec<KeyDigest>>,
        registry: Option<Arc<dyn Registry>>,
        stored: Option<Stored>,
        peer_table: &mut PeerTable,
    ) -> (Self, watch::Receiver<Option<Records>>) {
        let (own, published) = watch::channel(None);
        let (found, records) = watch::channel(None);
        let (outdated, to_remove) = mpsc::channel(OUTDATED_QUEUE);
        let awaited_until = registry
            .is_some()
            .then(|| Instant::now() + REGISTRY_READ_TIMEOUT);
        let task = registry.map(|registry| {
            let channels = RecordChannels {
                own: published,
                found,
                outdated: to_remove,
            };
            tokio::spawn(async move { registry.run_records(channels).await })
        });
        if stored.is_none() {
            tracing::info!(
                "no --state-dir: after a restart, what servers serve that do not answer is known from the registry alone"
            );
        }
        let mut saved = BTreeMap::new();
        let state = stored.map(|Stored { state, records }| {
            for record in records.into_iter().map(Arc::new) {
                saved.insert(record.identity.clone(), record.clone());
                peer_table.store_record(record);
            }
            state
        });
        let keeper = Self {
            identity,
            server,
            bridge,
            keys,
            own,
            made_of: None,
            outdated,
            task,
            annotation: None,
            annotated: AnnotatedRecords::default(),
            awaited_until,
            answered: BTreeSet::new(),
            recorded: BTreeMap::new(),
            state,
            saved,
            saving: None,
            next_save: Instant::now(),
            departed: BTreeMap::new(),
        };
        (keeper, records)
    }

    /// Whether requests have to wait for the registry.
    pub(super) fn is_awaiting(&self, now: Instant) -> bool {
        self.awaited_until.is_some_and(|until| now < until)
    }

    /// The wait is over without an answer of the registry: said once.
    pub(super) fn gives_up(&mut self, now: Instant) -> bool {
        let is_over = self.awaited_until.is_some_and(|until| until <= now);
        if is_over {
            self.awaited_until = None;
            tracing::warn!(
                "the registry of peers has not answered within {} s; what servers serve that do not answer is known from --state-dir alone",
                REGISTRY_READ_TIMEOUT.as_secs()
            );
        }
        is_over
    }

    /// The registry has been read. A bridge that starts takes back the announcement of
    /// its predecessor, even while its server does not answer.
    pub(super) fn heard(&mut self, all: &Records) {
        self.awaited_until = None;
        let is_unknown = self.own.borrow().is_none();
        if let Some(record) = all.get(&self.identity)
            && is_unknown
        {
            let record = self.completed(ServedRecord::clone(record));
            self.publish(record);
        }
    }

    /// With what this bridge says of itself.
    fn completed(&self, mut record: ServedRecord) -> ServedRecord {
        record.bridge_left_at = None;
        record.server = self.server;
        record.bridge = Some(self.bridge);
        record.serving_keys.clone_from(&self.keys);
        record
    }

    /// The keys with which this bridge serves, or is about to.
    pub(super) fn look_at_keys(&mut self, keys: &Arc<Vec<KeyDigest>>) {
        if self.keys == *keys {
            return;
        }
        self.keys = keys.clone();
        let own = self.own.borrow().clone();
        if let Some(own) = own {
            let record = self.completed(ServedRecord::clone(&own));
            self.publish(record);
        }
    }

    /// Records in annotations. An address of a server outside of `networks` is not
    /// believed, as in every annotation.
    pub(super) fn annotated(
        &mut self,
        leases: &BTreeMap<Identity, IdentityLease>,
        networks: &[IpNet],
    ) -> Records {
        self.annotated.update(leases, |identity, text| {
            let mut record = decode_annotation(identity, text)?;
            super::keep_permitted_server(&mut record, networks);
            Some(Arc::new(record))
        })
    }

    /// The own record as an annotation of the own Lease.
    pub(super) fn annotation(&self) -> Option<&str> {
        self.annotation.as_deref()
    }

    /// What the own server serves, and what all servers share, as they are now.
    pub(super) fn look_at_own(&mut self, local: &ServedApis, shared: &Arc<SharedGroupVersions>) {
        let is_same = self.made_of.as_ref().is_some_and(|(documents, excluded)| {
            let mut pairs = documents.iter().zip(&local.documents);
            pairs.all(|(one, other)| Arc::ptr_eq(one, other)) && Arc::ptr_eq(excluded, shared)
        });
        if is_same {
            return;
        }
        self.made_of = Some((local.documents.clone(), shared.clone()));
        let record = self.completed(made(self.identity.clone(), local, shared));
        let is_news = (self.own.borrow().as_ref()).is_none_or(|own| !own.has_same_content(&record));
        if is_news {
            self.publish(record);
        }
    }

    fn publish(&mut self, record: ServedRecord) {
        if self.task.is_none() {
            self.annotation = match record.encode() {
                Ok(bytes) => Some(STANDARD.encode(bytes)),
                Err(error) => {
                    tracing::warn!(%error, "the record of what the own server serves is not published");
                    None
                }
            };
        }
        self.own.send_replace(Some(Arc::new(record)));
    }

    /// A peer has answered what it serves.
    pub(super) fn answered(&mut self, identity: &Identity) {
        self.answered.insert(identity.clone());
    }

    /// Makes records of what peers have answered, stores what is new, and has removed
    /// what is outdated.
    pub(super) fn look(
        &mut self,
        peer_table: &mut PeerTable,
        shared: Option<&Arc<SharedGroupVersions>>,
    ) {
        if let Some(shared) = shared
            && !self.answered.is_empty()
        {
            let peers = peer_table.snapshot();
            for identity in std::mem::take(&mut self.answered) {
                let Some(peer) = peers.get(&identity) else {
                    self.recorded.remove(&identity);
                    continue;
                };
                let (Some(served), Some(ApiSource::Polled)) = (&peer.served, peer.record.source)
                else {
                    continue;
                };
                let known = self.recorded.get(&identity);
                let is_same = known.is_some_and(|known| {
                    let mut pairs = known.iter().zip(&served.documents);
                    pairs.all(|(one, other)| Arc::ptr_eq(one, other))
                });
                if !is_same {
                    peer_table.store_polled_record(made(identity.clone(), served, shared));
                    self.recorded.insert(identity, served.documents.clone());
                }
            }
        }
        let now = Instant::now();
        for record in peer_table.outdated_records(now) {
            let _ = self.outdated.try_send(record.clone());
        }
        self.save(peer_table, now);
    }

    /// One write at a time, on a thread that may wait for a disk.
    fn save(&mut self, peer_table: &PeerTable, now: Instant) {
        let Some(state) = &self.state else {
            return;
        };
        if let Some(saving) = &mut self.saving {
            match saving.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => return,
                Ok(Err(problem)) => {
                    tracing::warn!(flag = "--state-dir", %problem, "what peers serve is not stored");
                    self.saved.clear();
                    self.next_save = now + SAVE_BACKOFF;
                }
                Ok(Ok(())) | Err(oneshot::error::TryRecvError::Closed) => {}
            }
            self.saving = None;
        }
        if now < self.next_save {
            return;
        }
        let stored = peer_table.stored_records();
        let changed: Vec<_> = stored
            .values()
            .filter(|record| {
                let saved = self.saved.get(&record.identity);
                !saved.is_some_and(|saved| Arc::ptr_eq(saved, record))
            })
            .cloned()
            .collect();
        let gone: Vec<_> = self
            .saved
            .keys()
            .filter(|identity| !stored.contains_key(*identity))
            .cloned()
            .collect();
        if changed.is_empty() && gone.is_empty() {
            return;
        }
        for record in &changed {
            self.saved.insert(record.identity.clone(), record.clone());
        }
        for identity in &gone {
            self.saved.remove(identity);
        }
        let state = state.clone();
        let (done, outcome) = oneshot::channel();
        self.saving = Some(outcome);
        tokio::task::spawn_blocking(move || {
            let mut problem = Ok(());
            for record in changed {
                let written = state.write(&record);
                problem = problem.and(written.map_err(|it| format!("{}: {it}", record.identity)));
            }
            for identity in gone {
                let removed = state.remove(&identity);
                problem = problem.and(removed.map_err(|it| format!("{identity}: {it}")));
            }
            let _ = done.send(problem);
        });
    }

    /// Logs which bridges have left, come back, and not come back in time: once each.
    pub(super) fn log_departures(&mut self, peers: &Peers) {
        let mut departed = BTreeMap::new();
        for peer in peers.peers.iter().filter(|peer| peer.record.bridge_left) {
            let is_over = peer.served.is_none();
            let (name, problem) = (peer.name().to_string(), peer.problem.as_deref());
            let before = self.departed.get(&peer.identity).map(|(_, it)| *it);
            departed.insert(peer.identity.clone(), (name.clone(), is_over));
            match (before, is_over) {
                (None, false) => {
                    tracing::warn!(
                        peer = name,
                        problem,
                        "the bridge of a peer has left; its kube-apiserver is asked directly where it can be reached"
                    );
                }
                (None | Some(false), true) => {
                    tracing::warn!(
                        peer = name,
                        problem,
                        "the bridge of a peer has not come back within {} s, and its kube-apiserver does not answer other hosts: APIs that only this server serves are not found from now on",
                        ROLLOUT_GRACE.as_secs()
                    );
                }
                (Some(true), false) => {
                    tracing::info!(
                        peer = name,
                        "the kube-apiserver of a peer without a bridge answers"
                    );
                }
                _ => {}
            }
        }
        let before = self.departed.iter();
        for (_, (peer, _)) in before.filter(|(it, _)| !departed.contains_key(*it)) {
            tracing::info!(
                peer,
                "a peer whose bridge had left is back, or its Lease has ended"
            );
        }
        self.departed = departed;
    }

    /// Announces that this bridge leaves, and waits until that is written. For a Lease
    /// that keeps the record: the annotation that does.
    pub(super) async fn leave(&mut self) {
        let record = self.own.borrow().clone();
        if let Some(record) = record {
            let mut record = ServedRecord::clone(&record);
            record.bridge_left_at = Some(SystemTime::now());
            self.publish(record);
        }
        let Some(task) = self.task.take() else {
            return;
        };
        if self.own.borrow().is_none() {
            return task.abort();
        }
        let abort = task.abort_handle();
        if timeout(LEAVE_RECORD_TIMEOUT, task).await.is_err() {
            abort.abort();
            tracing::warn!(
                "peers could not be told that this bridge leaves; they wait for it to come back"
            );
        }
    }
}

fn made(identity: Identity, served: &ServedApis, shared: &SharedGroupVersions) -> ServedRecord {
    let now = Instant::now();
    let is_shared = |group: &str, version: &str| shared.contains(group, version, now);
    ServedRecord::new(identity, served, is_shared, SystemTime::now())
}

/// Decoded annotations. Every client that may write Leases can add one, with a record of up to
/// 4 MiB in it, so their number is bounded.
#[derive(Debug)]
struct AnnotatedRecords<T>(BTreeMap<Identity, Annotated<T>>);

#[derive(Debug)]
struct Annotated<T> {
    /// The hash of the text that was decoded.
    text_hash: u64,
    /// `None` if the text is not a record.
    record: Option<T>,
}

impl<T> Default for AnnotatedRecords<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Clone> AnnotatedRecords<T> {
    /// Decodes the annotations that have changed. A Lease beyond [`MAX_RECORDS`] counts as one
    /// without a record.
    fn update(
        &mut self,
        leases: &BTreeMap<Identity, IdentityLease>,
        decode: impl Fn(&Identity, &str) -> Option<T>,
    ) -> BTreeMap<Identity, T> {
        self.0.retain(|identity, _| leases.contains_key(identity));
        let held = self.0.values().filter(|it| it.record.is_some());
        let mut room = MAX_RECORDS.saturating_sub(held.count());
        for (identity, lease) in leases {
            let text = lease.served_record().unwrap_or_default();
            let text_hash = hash(text);
            let known = self.0.get(identity);
            if known.is_some_and(|it| it.text_hash == text_hash) {
                continue;
            }
            room += usize::from(known.is_some_and(|it| it.record.is_some()));
            if room == 0 {
                continue;
            }
            let record = decode(identity, text);
            room -= usize::from(record.is_some());
            let annotated = Annotated { text_hash, record };
            self.0.insert(identity.clone(), annotated);
        }
        let records = self.0.iter();
        records
            .filter_map(|(identity, it)| Some((identity.clone(), it.record.clone()?)))
            .collect()
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn decode_annotation(identity: &Identity, text: &str) -> Option<ServedRecord> {
    if text.is_empty() {
        return None;
    }
    let record = match STANDARD.decode(text) {
        Ok(bytes) => ServedRecord::decode(&bytes).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match record {
        Ok(record) if record.identity == *identity => Some(record),
        Ok(record) => {
            tracing::warn!(%identity, named = %record.identity, "the served record on a Lease names another server, and is ignored");
            None
        }
        Err(problem) => {
            tracing::warn!(%identity, %problem, "the served record on a Lease is ignored");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Lease with this text as its served record.
    fn lease(number: usize, text: &str) -> (Identity, IdentityLease) {
        let identity = Identity::named(&format!("apiserver-{number:04}")).unwrap();
        let lease = IdentityLease::new(&identity, "host", "holder", SystemTime::UNIX_EPOCH);
        let mut json: serde_json::Value = serde_json::from_str(&lease.to_json()).unwrap();
        json["metadata"]["annotations"]["skewbridge.io/served"] = text.into();
        let lease = IdentityLease::parse(json.to_string().as_bytes()).unwrap();
        (identity, lease)
    }

    #[test]
    fn the_number_of_annotated_records_is_bounded() {
        let decode = |_: &Identity, text: &str| (!text.is_empty()).then(|| text.to_owned());
        let many = MAX_RECORDS + 9;
        let mut leases: BTreeMap<_, _> = (0..many).map(|number| lease(number, "a")).collect();
        leases.extend([lease(many, "")]);
        let mut records = AnnotatedRecords::default();
        assert_eq!(records.update(&leases, decode).len(), MAX_RECORDS);
        // A record that is held can change.
        leases.extend([lease(0, "b"), lease(many - 1, "b")]);
        let held = records.update(&leases, decode);
        assert_eq!(held.len(), MAX_RECORDS);
        assert_eq!(held.values().filter(|it| *it == "b").count(), 1);
        // Where one goes, another has room.
        leases.remove(&lease(1, "").0);
        let held = records.update(&leases, decode);
        assert_eq!(held.len(), MAX_RECORDS);
        assert!(!held.contains_key(&lease(1, "").0));
    }
}
