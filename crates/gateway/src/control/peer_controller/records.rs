//! Maintains served records: publishes the record of the local server in the registry, and stores
//! the records of all other servers in `--state-dir`.

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

use super::permitted_networks::keep_permitted_server;
use super::policy_file::StoredKind;
use super::state_dir::StateDir;
use crate::cluster_state::ClusterHandle;

/// How long requests wait at the start for the registry to be read. Afterwards the APIs of servers
/// that do not answer are known from `--state-dir` only.
const REGISTRY_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout for publishing the departure of this bridge.
const DEPARTURE_RECORD_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause after a failed write to `--state-dir`.
const SAVE_BACKOFF: Duration = Duration::from_secs(10);

/// Outdated records that wait for their removal from the registry. A record that does not fit is
/// sent again with the next tick.
const OUTDATED_QUEUE_LEN: usize = 16;

/// The served records that this bridge publishes and stores.
pub(super) struct RecordStore {
    identity: Identity,
    /// The address of the local server, if other hosts can reach it.
    server: Option<SocketAddr>,
    /// The address of this bridge.
    bridge: SocketAddr,
    /// Digests of the serving keys of this bridge.
    keys: Arc<Vec<KeyDigest>>,
    own: watch::Sender<Option<Arc<ServedRecord>>>,
    /// The documents that the record of the local server was built from.
    source_documents: Option<([Arc<Document>; 2], Arc<SharedGroupVersions>)>,
    outdated: mpsc::Sender<Arc<ServedRecord>>,
    task: Option<JoinHandle<()>>,
    /// The record of the local server as an annotation, where records are in annotations.
    annotation: Option<String>,
    /// Records decoded from annotations.
    annotated: AnnotatedRecords<Arc<ServedRecord>>,
    /// Until when requests wait for the registry. `None` once it has been read.
    registry_wait_until: Option<Instant>,
    /// Peers that were polled successfully since the last sync.
    polled: BTreeSet<Identity>,
    /// The documents that the last record of each peer was built from.
    recorded: BTreeMap<Identity, [Arc<Document>; 2]>,
    state: Option<StateDir>,
    /// The records in `--state-dir`.
    saved: Records,
    /// The outcome of the write in progress.
    pending_write: Option<oneshot::Receiver<Result<(), String>>>,
    next_save: Instant,
    /// Peers whose bridge has departed: the name, and whether the peer now counts as a server
    /// without a bridge.
    departed: BTreeMap<Identity, (String, bool)>,
}

/// What is known of other servers before they are polled: the content of `--state-dir`, and what the
/// views of other backends know.
pub(crate) struct StoredRecords {
    pub(super) state: Option<StateDir>,
    pub(super) records: Vec<ServedRecord>,
    pub(super) policies: BTreeMap<String, StoredKind>,
}

impl StoredRecords {
    /// The content of `--state-dir`.
    pub(crate) fn read(state: Option<StateDir>) -> Self {
        Self {
            records: state.as_ref().map(StateDir::read).unwrap_or_default(),
            state,
            policies: BTreeMap::new(),
        }
    }

    /// Adds what the view of another backend knows. That is later than what is stored.
    pub(crate) fn add_view(&mut self, own: &Identity, view: &ClusterHandle) {
        let cluster = view.cluster.load();
        let Some(shared) = &cluster.shared else {
            return;
        };
        let local = cluster.local.as_ref().map(|it| (&view.local.identity, it));
        let peers = cluster.peers.peers.iter();
        let peers = peers.filter_map(|it| Some((&it.identity, it.served.as_ref()?)));
        for (identity, served) in local.into_iter().chain(peers) {
            if identity != own {
                self.records.retain(|it| it.identity != *identity);
                let record = build_record(identity.clone(), served, shared);
                self.records.push(record);
            }
        }
        for kind in &cluster.policies.kinds {
            if let Some(objects) = kind.objects {
                let stored = StoredKind {
                    version: kind.version.clone(),
                    objects,
                    matches: kind.matches.clone(),
                };
                self.policies.insert(kind.resource.clone(), stored);
            }
        }
    }

    /// Removes addresses outside of `--peer-cidrs`.
    pub(super) fn keep_permitted(mut self, networks: &[IpNet]) -> Self {
        for record in &mut self.records {
            keep_permitted_server(record, networks);
        }
        self
    }
}

impl RecordStore {
    /// Starts to publish and read records in a registry. Without one, records are in annotations
    /// of Leases.
    pub(super) fn start(
        identity: Identity,
        (server, bridge): (Option<SocketAddr>, SocketAddr),
        keys: Arc<Vec<KeyDigest>>,
        registry: Option<Arc<dyn Registry>>,
        stored: StoredRecords,
        peer_table: &mut PeerTable,
    ) -> (Self, watch::Receiver<Option<Records>>) {
        let (own, published) = watch::channel(None);
        let (found, records) = watch::channel(None);
        let (outdated, to_remove) = mpsc::channel(OUTDATED_QUEUE_LEN);
        let registry_wait_until = registry
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
        if stored.state.is_none() {
            tracing::info!(
                "no --state-dir: after a restart, the APIs of servers that do not answer are known from the registry only"
            );
        }
        let mut saved = BTreeMap::new();
        for record in stored.records.into_iter().map(Arc::new) {
            saved.insert(record.identity.clone(), record.clone());
            peer_table.store_record(record);
        }
        let store = Self {
            identity,
            server,
            bridge,
            keys,
            own,
            source_documents: None,
            outdated,
            task,
            annotation: None,
            annotated: AnnotatedRecords::default(),
            registry_wait_until,
            polled: BTreeSet::new(),
            recorded: BTreeMap::new(),
            state: stored.state,
            saved,
            pending_write: None,
            next_save: Instant::now(),
            departed: BTreeMap::new(),
        };
        (store, records)
    }

    /// Whether requests have to wait for the registry.
    pub(super) fn is_awaiting_registry(&self, now: Instant) -> bool {
        self.registry_wait_until.is_some_and(|until| now < until)
    }

    /// Ends the wait for the registry if it has timed out, and logs that once. Returns whether it
    /// has ended now.
    pub(super) fn expire_registry_wait(&mut self, now: Instant) -> bool {
        let is_over = self.registry_wait_until.is_some_and(|until| until <= now);
        if is_over {
            self.registry_wait_until = None;
            tracing::warn!(
                "the registry of peers has not answered within {} s; the APIs of servers that do not answer are known from --state-dir only",
                REGISTRY_READ_TIMEOUT.as_secs()
            );
        }
        is_over
    }

    /// The registry has been read. A bridge that starts revokes the departure that its
    /// predecessor announced, even while its server does not answer.
    pub(super) fn on_records_read(&mut self, all: &Records) {
        self.registry_wait_until = None;
        let is_unknown = self.own.borrow().is_none();
        if let Some(record) = all.get(&self.identity)
            && is_unknown
        {
            let record = self.with_own_fields(ServedRecord::clone(record));
            self.publish(record);
        }
    }

    /// Sets the fields that describe this bridge.
    fn with_own_fields(&self, mut record: ServedRecord) -> ServedRecord {
        record.bridge_left_at = None;
        record.server = self.server;
        record.bridge = Some(self.bridge);
        record.serving_keys.clone_from(&self.keys);
        record
    }

    /// Publishes the keys with which this bridge serves, or will serve.
    pub(super) fn update_serving_keys(&mut self, keys: &Arc<Vec<KeyDigest>>) {
        if self.keys == *keys {
            return;
        }
        self.keys = keys.clone();
        let own = self.own.borrow().clone();
        if let Some(own) = own {
            let record = self.with_own_fields(ServedRecord::clone(&own));
            self.publish(record);
        }
    }

    /// The records in annotations. Addresses of servers outside of `networks` are removed, as from
    /// every annotation.
    pub(super) fn annotated(
        &mut self,
        leases: &BTreeMap<Identity, IdentityLease>,
        networks: &[IpNet],
    ) -> Records {
        self.annotated.update(leases, |identity, text| {
            let mut record = decode_annotation(identity, text)?;
            keep_permitted_server(&mut record, networks);
            Some(Arc::new(record))
        })
    }

    /// The record of the local server as an annotation of its Lease.
    pub(super) fn annotation(&self) -> Option<&str> {
        self.annotation.as_deref()
    }

    /// Publishes the record of the local server if its discovery or the shared APIs have changed.
    pub(super) fn update_own_record(
        &mut self,
        local: &ServedApis,
        shared: &Arc<SharedGroupVersions>,
    ) {
        let is_same = self
            .source_documents
            .as_ref()
            .is_some_and(|(documents, excluded)| {
                let mut pairs = documents.iter().zip(&local.documents);
                pairs.all(|(one, other)| Arc::ptr_eq(one, other)) && Arc::ptr_eq(excluded, shared)
            });
        if is_same {
            return;
        }
        self.source_documents = Some((local.documents.clone(), shared.clone()));
        let record = self.with_own_fields(build_record(self.identity.clone(), local, shared));
        let has_changed =
            (self.own.borrow().as_ref()).is_none_or(|own| !own.has_same_content(&record));
        if has_changed {
            self.publish(record);
        }
    }

    fn publish(&mut self, record: ServedRecord) {
        if self.task.is_none() {
            self.annotation = match record.encode() {
                Ok(bytes) => Some(STANDARD.encode(bytes)),
                Err(error) => {
                    tracing::warn!(%error, "the served record of the local server is not published");
                    None
                }
            };
        }
        self.own.send_replace(Some(Arc::new(record)));
    }

    /// Notes that discovery of a peer succeeded.
    pub(super) fn mark_polled(&mut self, identity: &Identity) {
        self.polled.insert(identity.clone());
    }

    /// Builds records of polled peers, stores changed records, and requests the removal of
    /// outdated ones.
    pub(super) fn sync(
        &mut self,
        peer_table: &mut PeerTable,
        shared: Option<&Arc<SharedGroupVersions>>,
    ) {
        if let Some(shared) = shared
            && !self.polled.is_empty()
        {
            let peers = peer_table.snapshot();
            for identity in std::mem::take(&mut self.polled) {
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
                    peer_table.store_polled_record(build_record(identity.clone(), served, shared));
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

    /// Writes changed records to `--state-dir`: one write at a time, on a thread that may block.
    fn save(&mut self, peer_table: &PeerTable, now: Instant) {
        let Some(state) = &self.state else {
            return;
        };
        if let Some(pending_write) = &mut self.pending_write {
            match pending_write.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => return,
                Ok(Err(problem)) => {
                    tracing::warn!(flag = "--state-dir", %problem, "served records of peers cannot be stored");
                    self.saved.clear();
                    self.next_save = now + SAVE_BACKOFF;
                }
                Ok(Ok(())) | Err(oneshot::error::TryRecvError::Closed) => {}
            }
            self.pending_write = None;
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
        let removed_identities: Vec<_> = self
            .saved
            .keys()
            .filter(|identity| !stored.contains_key(*identity))
            .cloned()
            .collect();
        if changed.is_empty() && removed_identities.is_empty() {
            return;
        }
        for record in &changed {
            self.saved.insert(record.identity.clone(), record.clone());
        }
        for identity in &removed_identities {
            self.saved.remove(identity);
        }
        let state = state.clone();
        let (done, outcome) = oneshot::channel();
        self.pending_write = Some(outcome);
        tokio::task::spawn_blocking(move || {
            let mut problem = Ok(());
            for record in changed {
                let written = state.write(&record);
                problem = problem.and(written.map_err(|it| format!("{}: {it}", record.identity)));
            }
            for identity in removed_identities {
                let removed = state.remove(&identity);
                problem = problem.and(removed.map_err(|it| format!("{identity}: {it}")));
            }
            let _ = done.send(problem);
        });
    }

    /// Logs once when a bridge departs, returns, or does not return in time.
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
                        "the bridge of a peer has departed; requests go to its kube-apiserver directly if it can be reached"
                    );
                }
                (None | Some(false), true) => {
                    tracing::warn!(
                        peer = name,
                        problem,
                        "the bridge of a peer has not returned within {} s, and its kube-apiserver does not answer other hosts: requests for APIs that only this server serves get 404 from now on",
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
                "the bridge of a peer has returned, or the Lease of the peer has ended"
            );
        }
        self.departed = departed;
    }

    /// Announces the departure of this bridge, and waits until the record is written. Where
    /// records are in annotations, it only updates the annotation.
    pub(super) async fn announce_departure(&mut self) {
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
        if timeout(DEPARTURE_RECORD_TIMEOUT, task).await.is_err() {
            abort.abort();
            tracing::warn!(
                "the departure of this bridge could not be announced; peers wait for its return"
            );
        }
    }
}

fn build_record(
    identity: Identity,
    served: &ServedApis,
    shared: &SharedGroupVersions,
) -> ServedRecord {
    let now = Instant::now();
    let is_shared = |group: &str, version: &str| shared.contains(group, version, now);
    ServedRecord::new(identity, served, is_shared, SystemTime::now())
}

/// Decoded annotations. Every client that may write Leases can add one with a record of up to
/// 4 MiB, so their number is bounded.
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
        let stored = self.0.values().filter(|it| it.record.is_some());
        let mut free_slots = MAX_RECORDS.saturating_sub(stored.count());
        for (identity, lease) in leases {
            let text = lease.served_record().unwrap_or_default();
            let text_hash = hash(text);
            let known = self.0.get(identity);
            if known.is_some_and(|it| it.text_hash == text_hash) {
                continue;
            }
            free_slots += usize::from(known.is_some_and(|it| it.record.is_some()));
            if free_slots == 0 {
                continue;
            }
            let record = decode(identity, text);
            free_slots -= usize::from(record.is_some());
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
            tracing::warn!(%identity, named = %record.identity, "the served record on a Lease names another server; it is ignored");
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
        // A known record can change.
        leases.extend([lease(0, "b"), lease(many - 1, "b")]);
        let records_held = records.update(&leases, decode);
        assert_eq!(records_held.len(), MAX_RECORDS);
        assert_eq!(records_held.values().filter(|it| *it == "b").count(), 1);
        // The removal of a record makes room for another.
        leases.remove(&lease(1, "").0);
        let records_held = records.update(&leases, decode);
        assert_eq!(records_held.len(), MAX_RECORDS);
        assert!(!records_held.contains_key(&lease(1, "").0));
    }
}
