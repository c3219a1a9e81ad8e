//! Fetches OpenAPI documents of several servers, merges them and caches the result. Concurrent
//! requests for a document share one merge.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT, ETAG, IF_NONE_MATCH};
use http::{HeaderValue, StatusCode};
use skewbridge_openapi::{Format, GroupVersion, Index, Server, combined_hash, json, protobuf};
use skewbridge_peer_directory::Identity;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use super::internal_client::{InternalClient, InternalRequest, InternalTarget};
use super::shared_merges::SharedMerges;
use crate::gzip::gzip;
use crate::openapi::{
    DocumentId, DocumentRequest, LocalDocument, MergeRequest, MergedDocument, Part, PeerDocument,
    PeerIds,
};

/// The timeout of a request for a document.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// `/openapi/v2` of a cluster with very many custom resources has about 20 MiB.
const MAX_DOCUMENT_BYTES: usize = 64 * 1024 * 1024;

/// Documents whose last revalidation time is stored.
const MAX_REVALIDATED_DOCUMENTS: usize = 1_024;

/// How long documents of peers are used without revalidation. They only change with the version
/// of the peer, which polling detects.
const REVALIDATION_INTERVAL: Duration = Duration::from_secs(10);

type ReplySender = oneshot::Sender<Option<Arc<MergedDocument>>>;

/// Handles merge requests until the channel closes.
pub(crate) async fn run(
    client: Arc<InternalClient>,
    mut merge_requests: mpsc::Receiver<MergeRequest>,
) {
    let state = Arc::new(State {
        client,
        indexes: Mutex::default(),
        revalidated: Mutex::default(),
    });
    let mut tasks = JoinSet::new();
    let mut merges: Merges = SharedMerges::new();
    loop {
        tokio::select! {
            request = merge_requests.recv() => match request {
                None => return,
                Some(MergeRequest::Index { local, contributors, reply }) => {
                    let state = state.clone();
                    tasks.spawn(async move {
                        let _ = reply.send(state.index(&local, &contributors).await);
                        None
                    });
                }
                Some(MergeRequest::OfPeer { peer, path, reply }) => {
                    let state = state.clone();
                    tasks.spawn(async move {
                        let _ = reply.send(state.of_peer(&peer, &path).await);
                        None
                    });
                }
                Some(MergeRequest::Document(request)) => {
                    let DocumentRequest { document_id, format, local, contributors, incomplete, reply } = *request;
                    let key = (document_id, format);
                    let cached = state.cached(&key, &local, &contributors);
                    let is_fresh = state.is_fresh(&key, &contributors);
                    if cached.is_some() && is_fresh {
                        let _ = reply.send(cached);
                        continue;
                    }
                    // Documents of peers change rarely: the cached document is served while it is
                    // revalidated.
                    let reply = match cached {
                        Some(cached) => {
                            let _ = reply.send(Some(cached));
                            None
                        }
                        None => Some(reply),
                    };
                    let merged_from = (local.etag().cloned(), contributors.clone());
                    let input = MergeInput { local, contributors, incomplete };
                    if let Some(input) = merges.request(&key, merged_from, input, reply) {
                        spawn_merge(&mut tasks, &state, key, input);
                    }
                }
            },
            Some(done) = tasks.join_next() => {
                let Ok(Some((key, document))) = done else {
                    continue;
                };
                let finished = merges.finish(&key);
                for reply in finished.replies {
                    let _ = reply.send(document.clone());
                }
                if let Some(input) = finished.next {
                    spawn_merge(&mut tasks, &state, key, input);
                }
            }
        }
    }
}

/// The name of a document, and its encoding.
type Key = (DocumentId, Format);

/// The merges in progress. A request shares the merge of the same local document and the same peers.
type Merges = SharedMerges<Key, (Option<HeaderValue>, PeerIds), MergeInput, ReplySender>;

/// What a merge needs to know.
struct MergeInput {
    local: LocalDocument,
    contributors: PeerIds,
    incomplete: Vec<(String, String)>,
}

/// A finished merge; nothing for other tasks.
type MergeDone = Option<(Key, Option<Arc<MergedDocument>>)>;

fn spawn_merge(tasks: &mut JoinSet<MergeDone>, state: &Arc<State>, key: Key, input: MergeInput) {
    let state = state.clone();
    tasks.spawn(async move {
        let MergeInput {
            local,
            contributors,
            incomplete,
        } = input;
        let of = key.clone();
        let merge = async move { state.document(&of, local, contributors, incomplete).await };
        // After a panic, waiting requests get the document of the local server.
        let merged = tokio::spawn(merge).await.ok().flatten();
        Some((key, merged))
    });
}

/// When the index of a peer was last requested, and the index.
type FetchedIndex = (Instant, Option<Arc<Index>>);

struct State {
    client: Arc<InternalClient>,
    indexes: Mutex<HashMap<Identity, FetchedIndex>>,
    /// When the parts of a document were last revalidated, and with which peers.
    revalidated: Mutex<HashMap<(DocumentId, Format), (Instant, PeerIds)>>,
}

impl State {
    async fn index(
        self: &Arc<Self>,
        local: &[u8],
        contributors: &[((String, String), PeerIds)],
    ) -> Option<Vec<u8>> {
        let local = Index::parse(local).ok()?;
        let mut peers: Vec<&Identity> = contributors.iter().flat_map(|(_, peers)| peers).collect();
        peers.sort();
        peers.dedup();
        let mut fetches = JoinSet::new();
        for (position, peer) in peers.iter().enumerate() {
            let (state, peer) = (self.clone(), (*peer).clone());
            fetches.spawn(async move { (position, state.index_of(&peer).await) });
        }
        let mut indexes: Vec<_> = peers.iter().map(|peer| (*peer, None)).collect();
        while let Some(fetched) = fetches.join_next().await {
            if let Ok((position, index)) = fetched {
                indexes[position].1 = index;
            }
        }
        // Documents of a peer that does not answer stay in the list.
        let indexes: Vec<_> = (indexes.into_iter())
            .map(|(peer, index)| {
                let listed = || {
                    contributors
                        .iter()
                        .filter(|(_, peers)| peers.contains(peer))
                };
                let index = index
                    .unwrap_or_else(|| Arc::new(index_without_hashes(listed().map(|it| &it.0))));
                (peer, index)
            })
            .collect();
        let others: Vec<&Index> = indexes.iter().map(|(_, index)| &**index).collect();
        let merged = local.merge(&others, |requested: GroupVersion<'_>, number| {
            let (peer, _) = indexes[number];
            contributors.iter().any(|((group, version), peers)| {
                (&**group, &**version) == (requested.group, requested.version)
                    && peers.contains(peer)
            })
        });
        Some(merged.to_json())
    }

    async fn of_peer(&self, peer: &Identity, path: &str) -> PeerDocument {
        match self.fetch(peer, path, "application/json", None).await {
            Ok(FetchResult::Modified(_, bytes)) => PeerDocument::Found(bytes),
            Ok(FetchResult::NotModified | FetchResult::NotFound) => PeerDocument::NotFound,
            Err(problem) => {
                let peer = self.name_of(peer);
                tracing::debug!(peer, %problem, "the OpenAPI document of a peer cannot be fetched");
                PeerDocument::Unavailable
            }
        }
    }

    /// The index of a peer. An outdated index is served while it is revalidated.
    async fn index_of(self: &Arc<Self>, peer: &Identity) -> Option<Arc<Index>> {
        let known = {
            let indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
            indexes.get(peer).cloned()
        };
        match known {
            Some((at, index)) if at.elapsed() < REVALIDATION_INTERVAL => index,
            Some((_, Some(index))) => {
                self.store_index(peer, Some(index.clone()));
                let (state, peer, known) = (self.clone(), peer.clone(), index.clone());
                tokio::spawn(async move { state.fetch_index(&peer, Some(known)).await });
                Some(index)
            }
            Some((_, None)) | None => self.fetch_index(peer, None).await,
        }
    }

    async fn fetch_index(&self, peer: &Identity, known: Option<Arc<Index>>) -> Option<Arc<Index>> {
        let response = self
            .fetch(peer, "/openapi/v3", "application/json", None)
            .await;
        let index = match response {
            Ok(FetchResult::Modified(_, bytes)) => Index::parse(&bytes).ok().map(Arc::new),
            Ok(FetchResult::NotModified | FetchResult::NotFound) | Err(_) => None,
        };
        let index = index.or(known);
        self.store_index(peer, index.clone());
        index
    }

    fn store_index(&self, peer: &Identity, index: Option<Arc<Index>>) {
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = self
            .client
            .bridge
            .cluster_handle
            .as_ref()
            .map(|it| it.cluster.load());
        indexes.retain(|peer, _| {
            let is_known = |it: &crate::cluster_state::Cluster| it.peers.get(peer).is_some();
            cluster.as_ref().is_some_and(|it| is_known(it))
        });
        indexes.insert(peer.clone(), (Instant::now(), index));
    }

    /// Merges all parts of a document. Parts that are not available are omitted.
    async fn document(
        self: &Arc<Self>,
        key: &(DocumentId, Format),
        local: LocalDocument,
        contributors: PeerIds,
        incomplete: Vec<(String, String)>,
    ) -> Option<Arc<MergedDocument>> {
        let (document_id, format) = key;
        let openapi = &self.client.bridge.cluster_handle.as_ref()?.openapi;
        let before = openapi.cache.get(document_id, *format);
        let local_etag = local.etag().cloned();
        let is_fresh = self.is_fresh(key, &contributors);
        let mut fetches = JoinSet::new();
        for (position, peer) in contributors.iter().enumerate() {
            let known = before.as_ref().and_then(|before| {
                let mut parts = before.parts.iter();
                parts.find(|part| part.identity == *peer).cloned()
            });
            let (state, peer, document_id) = (self.clone(), peer.clone(), document_id.clone());
            let format = *format;
            fetches.spawn(async move {
                let part = state
                    .part(&peer, &document_id, format, known, is_fresh)
                    .await;
                (position, part)
            });
        }
        let mut parts: Vec<_> = contributors.iter().map(|_| None).collect();
        while let Some(fetched) = fetches.join_next().await {
            if let Ok((position, part)) = fetched {
                parts[position] = part;
            }
        }
        let is_complete = parts.iter().all(Option::is_some);
        let contributors_count = parts.len();
        let parts: Vec<Part> = parts.into_iter().flatten().collect();
        {
            let mut revalidated = self
                .revalidated
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if revalidated.len() >= MAX_REVALIDATED_DOCUMENTS {
                revalidated.clear();
            }
            revalidated.insert(key.clone(), (Instant::now(), contributors));
        }
        if parts.is_empty() {
            return before;
        }
        let hash = if is_complete {
            hash(local_etag.as_ref(), &parts)
        } else {
            None
        };
        if let Some(before) = &before
            && hash.is_some()
            && before.hash == hash
        {
            return Some(before.clone());
        }
        let local = match local {
            LocalDocument::Missing => None,
            LocalDocument::Tagged(_, Some(bytes)) => Some(bytes),
            LocalDocument::Tagged(..) => Some(self.local(document_id, *format).await?),
        };
        let (document_id, format) = key.clone();
        let merged =
            spawn_blocking(move || merge(&document_id, format, local.as_ref(), parts, &incomplete))
                .await;
        let MergeResult {
            plain,
            gzip,
            parts,
            unreadable,
        } = merged.ok()??;
        for (peer, problem) in &unreadable {
            let (peer, path) = (self.name_of(peer), key.0.path());
            tracing::warn!(
                problem,
                peer,
                path,
                "the OpenAPI document of a peer cannot be parsed"
            );
        }
        // A document without all parts must not be cached under their hash.
        let hash = hash.filter(|_| parts.len() == contributors_count);
        let merged = Arc::new(MergedDocument {
            document_id: key.0.clone(),
            format: key.1,
            plain,
            gzip,
            hash,
            local_etag,
            parts,
        });
        openapi.cache.put(merged.clone());
        Some(merged)
    }

    /// The cached document, if the document of the local server and the peers are the same.
    fn cached(
        &self,
        (document_id, format): &(DocumentId, Format),
        local: &LocalDocument,
        contributors: &PeerIds,
    ) -> Option<Arc<MergedDocument>> {
        let openapi = &self.client.bridge.cluster_handle.as_ref()?.openapi;
        let before = openapi.cache.get(document_id, *format)?;
        let is_same = before.local_etag.as_ref() == local.etag();
        let peers = before.parts.iter().map(|part| &part.identity);
        (is_same && before.hash.is_some() && peers.eq(contributors)).then_some(before)
    }

    fn is_fresh(&self, key: &(DocumentId, Format), contributors: &PeerIds) -> bool {
        let revalidated = self
            .revalidated
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let last = revalidated.get(key);
        last.is_some_and(|(at, peers)| {
            at.elapsed() < REVALIDATION_INTERVAL && peers == contributors
        })
    }

    /// The part of a peer; the last known one if the peer does not answer.
    async fn part(
        &self,
        peer: &Identity,
        document_id: &DocumentId,
        format: Format,
        known: Option<Part>,
        is_fresh: bool,
    ) -> Option<Part> {
        if known.is_some() && is_fresh {
            return known;
        }
        let media = format.media_type(document_id.spec());
        let etag = known.as_ref().and_then(|known| known.etag.as_ref());
        match self.fetch(peer, &document_id.path(), media, etag).await {
            Ok(FetchResult::Modified(etag, bytes)) => Some(Part {
                identity: peer.clone(),
                etag,
                bytes,
            }),
            Ok(FetchResult::NotModified) => known,
            Ok(FetchResult::NotFound) => None,
            Err(problem) => {
                let peer = self.name_of(peer);
                tracing::debug!(peer, %problem, "the OpenAPI document of a peer cannot be fetched");
                known
            }
        }
    }

    /// Host and identity of a peer, for the log.
    fn name_of(&self, peer: &Identity) -> String {
        match &self.client.bridge.cluster_handle {
            Some(cluster_handle) => cluster_handle.name_of(peer),
            None => peer.to_string(),
        }
    }

    async fn local(&self, document_id: &DocumentId, format: Format) -> Option<Bytes> {
        let path = document_id.path();
        let request =
            InternalRequest::get(&path).header(ACCEPT, format.media_type(document_id.spec()));
        let response = timeout(
            REQUEST_TIMEOUT,
            self.client.request(InternalTarget::Upstream, request),
        )
        .await;
        let response = response.ok()?.ok()?.ok(&path).ok()?;
        Some(response.body)
    }

    async fn fetch(
        &self,
        peer: &Identity,
        path: &str,
        media: &str,
        known: Option<&HeaderValue>,
    ) -> Result<FetchResult, String> {
        let cluster = self
            .client
            .bridge
            .cluster_handle
            .as_ref()
            .map(|it| it.cluster.load());
        let peer = cluster.and_then(|cluster| cluster.peers.get(peer).cloned());
        let peer = peer.ok_or("the peer does not exist any more")?;
        if let Some(problem) = &peer.problem {
            return Err(problem.clone());
        }
        let mut request = InternalRequest::get(path)
            .header(ACCEPT, media)
            .max_response_bytes(MAX_DOCUMENT_BYTES);
        if let Some(etag) = known.and_then(|etag| etag.to_str().ok()) {
            request = request.header(IF_NONE_MATCH, etag);
        }
        let response = timeout(
            REQUEST_TIMEOUT,
            self.client.request(InternalTarget::Peer(&peer), request),
        )
        .await;
        let response = response.map_err(|_| "request timed out".to_owned())??;
        match response.status {
            StatusCode::NOT_MODIFIED => Ok(FetchResult::NotModified),
            StatusCode::NOT_FOUND => Ok(FetchResult::NotFound),
            _ => {
                let response = response.ok(path)?;
                Ok(FetchResult::Modified(
                    response.headers.get(ETAG).cloned(),
                    response.body,
                ))
            }
        }
    }
}

/// The response of a peer to a conditional request.
enum FetchResult {
    NotModified,
    NotFound,
    /// The `ETag` and the body.
    Modified(Option<HeaderValue>, Bytes),
}

/// The hash of all parts in order; equal documents count once. `None` if a part has no `ETag`.
fn hash(local: Option<&HeaderValue>, parts: &[Part]) -> Option<String> {
    let mut hashes: Vec<&str> = Vec::new();
    let etags = parts.iter().map(|part| part.etag.as_ref());
    for etag in local.map(Some).into_iter().chain(etags) {
        let hash = etag?.to_str().ok()?.trim_matches('"');
        if hash.is_empty() {
            return None;
        }
        if !hashes.contains(&hash) {
            hashes.push(hash);
        }
    }
    match hashes.as_slice() {
        [one] => Some((*one).to_owned()),
        several => Some(combined_hash(several.iter().copied())),
    }
}

/// The result of a merge.
struct MergeResult {
    plain: Bytes,
    gzip: Bytes,
    /// The parts that were merged.
    parts: Vec<Part>,
    /// Peers whose parts cannot be parsed, and the errors.
    unreadable: Vec<(Identity, String)>,
}

/// Merges and compresses. A part that cannot be parsed is omitted.
fn merge(
    document_id: &DocumentId,
    format: Format,
    local: Option<&Bytes>,
    mut parts: Vec<Part>,
    incomplete: &[(String, String)],
) -> Option<MergeResult> {
    let mut unreadable = Vec::new();
    let take = |path: &str| {
        let Some(requested) = GroupVersion::from_path(path) else {
            return false;
        };
        (incomplete.iter())
            .any(|(group, version)| (&**group, &**version) == (requested.group, requested.version))
    };
    loop {
        let documents = local
            .into_iter()
            .chain(parts.iter().map(|part| &part.bytes));
        let mut documents = documents.map(|bytes| &**bytes);
        let first = documents.next()?;
        let others: Vec<&[u8]> = documents.collect();
        let merged = match format {
            Format::Json => json::merge(document_id.spec(), first, &others, take),
            Format::Protobuf => protobuf::merge(document_id.spec(), first, &others, take),
        };
        let problem = match merged {
            Ok(merged) => {
                let plain = Bytes::from(merged.into_owned());
                return Some(MergeResult {
                    gzip: gzip(&plain),
                    plain,
                    parts,
                    unreadable,
                });
            }
            Err(problem) => problem,
        };
        // If the local server has no document, the first one is that of a peer.
        let part_index = match (problem.server(), local) {
            (Some(Server::Other(number)), Some(_)) => Some(number),
            (Some(Server::Other(number)), None) => Some(number + 1),
            (Some(Server::Local), None) => Some(0),
            (Some(Server::Local) | None, _) => None,
        };
        let part_index = part_index.filter(|at| *at < parts.len())?;
        unreadable.push((parts.remove(part_index).identity, problem.to_string()));
    }
}

/// An index of documents whose hashes are not known.
fn index_without_hashes<'a>(listed: impl Iterator<Item = &'a (String, String)>) -> Index {
    let paths = listed.map(|(group, version)| {
        let group_version = GroupVersion { group, version };
        let url = format!("/openapi/v3/{group_version}");
        let location = serde_json::json!({ "serverRelativeURL": url });
        (group_version.to_string(), location)
    });
    let paths: serde_json::Map<_, _> = paths.collect();
    let index = serde_json::json!({ "paths": paths }).to_string();
    Index::parse(index.as_bytes()).unwrap_or_default()
}
