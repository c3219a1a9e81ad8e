//! The fields that servers have, for the placement rule `fields`: which sets are needed, which are
//! known, and how they differ. Sets are read once for each version and set of APIs, and read from
//! `--state-dir` if an earlier process has stored them, also for an unavailable server.
//!
//! This module has no I/O: `load` reads files and servers.

mod cache_dir;
mod fetch;
mod load;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use skewbridge_field_sets::{ComparedServer, FieldSkew, Fingerprint, ServerFields};
use skewbridge_k8s_api::version::Version;
use skewbridge_peer_directory::{Identity, Peer, Peers, ServedApis, SharedGroupVersions};

pub(super) use self::cache_dir::CacheDir;
use self::cache_dir::StoredFields;
pub(super) use self::load::{FieldLoadError, load, load_stored, note_use};
use crate::field_guard::{CompleteServers, FieldDifferences, FieldGuard, KindDifference};

/// The delay after a failure to read the fields of a server.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Default retention of the fields of a version after its last server ended: longer than a restart or an
/// upgrade of a control-plane node takes. Objects in etcd still have the fields of that version.
const DEPARTED_RETENTION: Duration = Duration::from_mins(15);

/// The interval at which the last use of stored fields is written. A restart of the bridge must not
/// shorten [`DEPARTED_RETENTION`], so it is extended by this time.
const LAST_USE_INTERVAL: Duration = Duration::from_secs(30);

/// Field sets in memory. A cluster has two or three versions at a time.
const MAX_FIELD_SETS: usize = 16;

/// Servers with the same key have the same fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FieldKey {
    version: Version,
    /// A digest of the rest of its `gitVersion`, and of the built-in resources that the server serves:
    /// pre-releases of one version have different fields.
    digest: u64,
}

impl FieldKey {
    fn of(served: &ServedApis, shared: &SharedGroupVersions, now: Instant) -> Option<Self> {
        // Part of the names of files, which later releases read.
        let mut fingerprint = Fingerprint::default();
        fingerprint.write_text(&served.version_suffix);
        for (group, version) in built_in_versions(served, shared, now) {
            fingerprint.write_text(group);
            fingerprint.write_text(&version.version);
            for resource in &version.resources {
                fingerprint.write_text(&resource.resource);
            }
        }
        Some(Self {
            version: served.version?,
            digest: fingerprint.finish(),
        })
    }

    /// The name of the file with the fields.
    fn file_name(&self) -> String {
        format!("{}-{:016x}.json", self.version, self.digest)
    }

    fn from_file_name(name: &str) -> Option<Self> {
        let (version, digest) = name.strip_suffix(".json")?.split_once('-')?;
        let key = Self {
            version: version.parse().ok()?,
            digest: u64::from_str_radix(digest, 16).ok()?,
        };
        (key.file_name() == name).then_some(key)
    }
}

/// The group-versions that a server serves itself: no custom resources and aggregated APIs.
fn built_in_versions<'a>(
    served: &'a ServedApis,
    shared: &'a SharedGroupVersions,
    now: Instant,
) -> impl Iterator<Item = (&'a str, &'a skewbridge_discovery::document::Version)> {
    let documents = served.documents.iter();
    let versions = documents.flat_map(|document| document.versions());
    versions.filter(move |(group, version)| !shared.contains(group, &version.version, now))
}

/// What is known of the fields of servers of one key.
#[derive(Debug)]
enum FieldSetState {
    Known(Arc<ServerFields>),
    /// They are being loaded.
    Loading,
    /// They are not stored, and no server that has them is available.
    NotStored,
    /// They could not be loaded.
    Failed {
        retry_at: Instant,
    },
}

/// The fields of a server that have to be loaded.
#[derive(Debug)]
pub(super) struct NeededFields {
    pub(super) key: FieldKey,
    pub(super) source: FieldSource,
    pub(super) served: Arc<ServedApis>,
    cache: Option<CacheDir>,
}

/// Stored fields that servers have now.
#[derive(Debug)]
pub(super) struct UsedFields {
    cache: CacheDir,
    keys: BTreeSet<FieldKey>,
}

/// Where fields that are not stored can be fetched.
#[derive(Debug)]
pub(super) enum FieldSource {
    Local,
    Peer(Arc<Peer>),
    /// The server is not available.
    Nowhere,
}

/// The fields of all servers, and how they differ.
#[derive(Debug)]
pub(super) struct FieldComparison {
    known: HashMap<FieldKey, FieldSetState>,
    cache: Option<CacheDir>,
    /// The sets that an earlier process has stored, by the names of their files, until a server needs
    /// them.
    stored: HashMap<String, ServerFields>,
    /// When a server last had a key.
    last_used: HashMap<FieldKey, Instant>,
    /// How long a key counts after that.
    retention: Duration,
    /// The keys whose use was last stored, and when.
    stored_use: Option<(Instant, BTreeSet<FieldKey>)>,
    /// The last comparison, and its inputs.
    compared: Option<(Vec<ComparedKey>, Arc<FieldDifferences>)>,
}

/// A server as an input of a comparison. A server without a key has not reported its version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ComparedKey {
    server: Server,
    key: Option<FieldKey>,
    is_known: bool,
    /// Whether requests can be sent to it; set only while its fields are not known.
    is_available: bool,
}

impl ComparedKey {
    fn version(&self) -> Option<Version> {
        self.key.map(|key| key.version)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Server {
    Local,
    Peer(Identity),
    /// A peer that runs and of which nothing is known yet.
    Unread(Identity),
    /// No server has this key any more.
    Departed,
}

/// The servers that may get requests, as candidates: `None` is the local server.
fn candidates<'a>(
    servers: impl Iterator<Item = &'a Server>,
) -> impl Iterator<Item = Option<Identity>> {
    servers.filter_map(|server| match server {
        Server::Peer(identity) => Some(Some(identity.clone())),
        Server::Local => Some(None),
        Server::Unread(_) | Server::Departed => None,
    })
}

impl FieldComparison {
    /// `None` if the guard is off: fields are not compared then.
    pub(super) fn of(guard: FieldGuard, state_dir: Option<PathBuf>) -> Option<Self> {
        (guard != FieldGuard::Off).then(|| Self {
            known: HashMap::new(),
            cache: state_dir.map(|dir| CacheDir::new(&dir)),
            stored: HashMap::new(),
            last_used: HashMap::new(),
            retention: DEPARTED_RETENTION,
            stored_use: None,
            compared: None,
        })
    }

    /// Sets how long the fields of a version count after its last server ended.
    #[must_use]
    pub(super) fn retained_for(mut self, retention: Option<Duration>) -> Self {
        self.retention = retention.unwrap_or(self.retention);
        self
    }

    /// Adds the sets from `--state-dir`. Without them, the first writes after a start would not be checked.
    /// Those of versions whose last server has ended recently count from the start.
    pub(super) fn set_stored(
        &mut self,
        stored: HashMap<String, StoredFields>,
        now: Instant,
        wall: SystemTime,
    ) {
        for (name, StoredFields { fields, last_used }) in stored {
            // If the clock was set back, they count as used now.
            let age = wall.duration_since(last_used).unwrap_or_default();
            let age = age.saturating_sub(LAST_USE_INTERVAL);
            match FieldKey::from_file_name(&name) {
                Some(key) if age < self.retention => {
                    let used = now.checked_sub(age).unwrap_or(now);
                    self.last_used.insert(key, used);
                    self.known
                        .insert(key, FieldSetState::Known(Arc::new(fields)));
                }
                _ => {
                    self.stored.insert(name, fields);
                }
            }
        }
    }

    /// The stored fields that servers have now, if their use has to be stored.
    pub(super) fn take_used(&mut self, now: Instant) -> Option<UsedFields> {
        let (cache, (inputs, _)) = (self.cache.as_ref()?, self.compared.as_ref()?);
        let used = inputs.iter().filter(|it| it.server != Server::Departed);
        let used = used.filter(|it| it.is_known).filter_map(|it| it.key);
        let keys: BTreeSet<FieldKey> = used.collect();
        let is_stored = self.stored_use.as_ref().is_some_and(|(at, stored)| {
            now.saturating_duration_since(*at) < LAST_USE_INTERVAL && keys.is_subset(stored)
        });
        if keys.is_empty() || is_stored {
            return None;
        }
        self.stored_use = Some((now, keys.clone()));
        let cache = cache.clone();
        Some(UsedFields { cache, keys })
    }

    /// The directory of stored sets.
    pub(super) fn cache(&self) -> Option<CacheDir> {
        self.cache.clone()
    }

    /// How the fields of all servers differ.
    pub(super) fn differences(
        &mut self,
        local: &Arc<ServedApis>,
        peers: &Peers,
        shared: &SharedGroupVersions,
        now: Instant,
    ) -> Arc<FieldDifferences> {
        let mut inputs = Vec::new();
        let servers = std::iter::once((None, local)).chain(
            (peers.peers.iter()).filter_map(|peer| Some((Some(peer), peer.served.as_ref()?))),
        );
        for (peer, served) in servers {
            let key = FieldKey::of(served, shared, now);
            if let Some(key) = key
                && !self.known.contains_key(&key)
                && let Some(fields) = self.stored.remove(&key.file_name())
            {
                self.known
                    .insert(key, FieldSetState::Known(Arc::new(fields)));
            }
            let is_known = key.is_some_and(|key| self.fields(&key).is_some());
            inputs.push(ComparedKey {
                server: match peer {
                    Some(peer) => Server::Peer(peer.identity.clone()),
                    None => Server::Local,
                },
                key,
                is_known,
                is_available: is_known || peer.is_none_or(|peer| peer.is_available(now)),
            });
        }
        let unread = peers.peers.iter().filter(|peer| peer.is_unread(now));
        inputs.extend(unread.map(|peer| ComparedKey {
            server: Server::Unread(peer.identity.clone()),
            key: None,
            is_known: false,
            is_available: false,
        }));
        inputs.extend(self.departed(&inputs, now));
        if let Some((before, differences)) = &self.compared
            && *before == inputs
        {
            return differences.clone();
        }
        let differences = Arc::new(self.compare(&inputs));
        self.compared = Some((inputs, differences.clone()));
        differences
    }

    /// The keys that no server has any more.
    fn departed(&mut self, inputs: &[ComparedKey], now: Instant) -> Vec<ComparedKey> {
        for key in inputs.iter().filter_map(|input| input.key) {
            self.last_used.insert(key, now);
        }
        let retention = self.retention;
        (self.last_used).retain(|_, used| now.saturating_duration_since(*used) < retention);
        let is_used = |key: &FieldKey| inputs.iter().any(|input| input.key == Some(*key));
        let mut departed: Vec<_> = (self.last_used.keys())
            .filter(|key| {
                !is_used(key) && matches!(self.known.get(key), Some(FieldSetState::Known(_)))
            })
            .map(|key| ComparedKey {
                server: Server::Departed,
                key: Some(*key),
                is_known: true,
                is_available: true,
            })
            .collect();
        departed.sort_by_key(|input| input.key);
        departed
    }

    /// The fields that have to be loaded now. Without a difference between the servers, none.
    pub(super) fn take_needed(
        &mut self,
        local: &Arc<ServedApis>,
        peers: &Peers,
        now: Instant,
    ) -> Vec<NeededFields> {
        let Some((inputs, _)) = &self.compared else {
            return Vec::new();
        };
        if !has_skew(inputs) {
            return Vec::new();
        }
        let mut needed = Vec::<NeededFields>::new();
        for input in inputs {
            let Some(key) = input.key else { continue };
            let (source, served) = match &input.server {
                Server::Local => (FieldSource::Local, local.clone()),
                Server::Peer(identity) => {
                    let peer = peers.get(identity);
                    let Some((peer, served)) = peer.and_then(|it| Some((it, it.served.as_ref()?)))
                    else {
                        continue;
                    };
                    let source = if peer.is_available(now) {
                        FieldSource::Peer(peer.clone())
                    } else {
                        FieldSource::Nowhere
                    };
                    (source, served.clone())
                }
                Server::Unread(_) | Server::Departed => continue,
            };
            let is_available = !matches!(source, FieldSource::Nowhere);
            let is_due = match self.known.get(&key) {
                None => true,
                Some(FieldSetState::NotStored) => is_available,
                Some(FieldSetState::Failed { retry_at }) => is_available && *retry_at <= now,
                Some(FieldSetState::Known(_) | FieldSetState::Loading) => false,
            };
            let taken = needed.iter_mut().find(|it| it.key == key);
            match taken {
                // Another server of the same key can be queried.
                Some(taken) if matches!(taken.source, FieldSource::Nowhere) => {
                    taken.source = source;
                }
                None if is_due => needed.push(NeededFields {
                    key,
                    source,
                    served,
                    cache: self.cache.clone(),
                }),
                Some(_) | None => {}
            }
        }
        for it in &needed {
            self.known.insert(it.key, FieldSetState::Loading);
        }
        needed
    }

    /// The result of loading the fields of a server.
    pub(super) fn record(
        &mut self,
        key: FieldKey,
        result: Result<ServerFields, FieldLoadError>,
        now: Instant,
    ) {
        let knowledge = match result {
            Ok(fields) => {
                tracing::info!(version = %key.version, bytes = fields.heap_bytes(), "the fields of a kube-apiserver version are known");
                FieldSetState::Known(Arc::new(fields))
            }
            Err(FieldLoadError::NotStored) => {
                tracing::info!(version = %key.version, "no kube-apiserver of a version is available, and its fields are not stored");
                FieldSetState::NotStored
            }
            Err(FieldLoadError::Failed(error)) => {
                tracing::warn!(version = %key.version, %error, "the fields of a kube-apiserver version cannot be read; until they are, all writes go to the newest server (--guard-fields)");
                FieldSetState::Failed {
                    retry_at: now + RETRY_INTERVAL,
                }
            }
        };
        self.make_room();
        self.known.insert(key, knowledge);
    }

    /// The fields of a key, if known.
    fn fields(&self, key: &FieldKey) -> Option<&Arc<ServerFields>> {
        match self.known.get(key)? {
            FieldSetState::Known(fields) => Some(fields),
            FieldSetState::Loading | FieldSetState::NotStored | FieldSetState::Failed { .. } => {
                None
            }
        }
    }

    /// Drops sets that the last comparison did not need.
    fn make_room(&mut self) {
        if self.known.len() < MAX_FIELD_SETS {
            return;
        }
        let inputs = self.compared.as_ref().map_or(&[][..], |(inputs, _)| inputs);
        let is_used = |key: &FieldKey| inputs.iter().any(|input| input.key == Some(*key));
        self.known.retain(|key, _| is_used(key));
    }

    fn compare(&self, inputs: &[ComparedKey]) -> FieldDifferences {
        if !has_skew(inputs) {
            return FieldDifferences::default();
        }
        let known: Vec<_> = (inputs.iter())
            .filter_map(|input| Some((input, self.fields(&input.key?)?)))
            .collect();
        let servers: Vec<_> = (known.iter())
            .map(|(input, fields)| ComparedServer {
                version: input.version(),
                fields,
            })
            .collect();
        let skew = match FieldSkew::compare(&servers, |_, _| false) {
            Ok(skew) => skew,
            Err(error) => {
                tracing::warn!(%error, "the fields of kube-apiservers cannot be compared");
                return FieldDifferences::unknown(newest(inputs));
            }
        };
        let unknown = relevant_unknown(inputs);
        let newest_unknown = unknown.iter().filter(|input| input.is_available);
        let newest_unknown = newest_unknown.filter_map(|input| input.version()).max();
        let mut differences = if unknown.is_empty() {
            FieldDifferences::default()
        } else {
            FieldDifferences::unknown(newest(inputs))
        };
        for (group, resource, difference) in skew.differences() {
            let input = |server: &usize| known.get(*server).map(|(input, _)| *input);
            let mut complete: Vec<_> = difference.knows_most().iter().filter_map(input).collect();
            let version = complete.iter().filter_map(|input| input.version()).max();
            // Until its fields are known, a newer server is taken to have all of them, and so is one of the
            // same version if all servers whose fields are known have gone: one that starts does not
            // list all of its APIs at once, which makes another key.
            let is_served = candidates(complete.iter().map(|it| &it.server))
                .next()
                .is_some();
            let may_be_complete = newest_unknown.is_some() && newest_unknown >= version;
            if newest_unknown > version || (!is_served && may_be_complete) {
                complete = (unknown.iter().copied())
                    .filter(|input| input.is_available && input.version() == newest_unknown)
                    .collect();
            }
            let lacking = difference.servers().filter_map(|server| {
                let of_server = std::iter::once(&input(&server)?.server);
                let identity = candidates(of_server).next()?;
                Some((identity, difference.lacking(server).to_vec()))
            });
            let difference = KindDifference {
                complete: candidates(complete.iter().map(|input| &input.server)).collect(),
                fields: difference.unknown().to_vec(),
                lacking: lacking.collect(),
            };
            differences.insert(group, resource, difference);
        }
        differences
    }
}

/// The servers whose fields are unknown and relevant. An unavailable server gets no request; if it
/// is not newer than the others, it is not expected to have fields that they lack.
fn relevant_unknown(inputs: &[ComparedKey]) -> Vec<&ComparedKey> {
    let known = inputs.iter().filter(|input| input.is_known);
    let newest_known = known.filter_map(ComparedKey::version).max();
    let unknown = inputs.iter().filter(|input| !input.is_known);
    let counts = |input: &&ComparedKey| {
        let may_be_newer = input.key.is_none() || input.version() > newest_known;
        input.is_available || may_be_newer
    };
    unknown.filter(counts).collect()
}

/// Whether servers can have different fields: they have different keys, or the key of one of them is not
/// known.
fn has_skew(inputs: &[ComparedKey]) -> bool {
    let Some(first) = inputs.first() else {
        return false;
    };
    let differs = |input: &ComparedKey| input.key.is_none() || input.key != first.key;
    inputs.iter().skip(1).any(differs)
}

/// The servers of the newest version.
fn newest(inputs: &[ComparedKey]) -> CompleteServers {
    let newest = inputs.iter().filter_map(ComparedKey::version).max();
    let servers = inputs.iter().filter(|input| input.version() == newest);
    candidates(servers.map(|input| &input.server)).collect()
}

#[cfg(test)]
mod tests;
