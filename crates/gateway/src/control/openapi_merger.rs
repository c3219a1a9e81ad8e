//! Makes documents of what several servers publish: asks them, merges, and puts
//! the result on the shelf. Each is made once, however many wait for it.

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
use crate::gzip::gzip;
use crate::openapi::{DocumentRequest, Local, MergeRequest, Page, Part, PeerIds, Published};

/// How long a server may take to send a document.
const PATIENCE: Duration = Duration::from_secs(5);

/// `/openapi/v2` of a cluster with very many custom resources has some 20 MiB.
const MAX_DOCUMENT: usize = 64 * 1024 * 1024;

/// Documents of which it is remembered when they were looked at.
const MAX_CHECKED: usize = 1_024;

/// How long what a peer publishes is not asked for again. It changes only with the
/// peer's version, which is noticed otherwise.
const FRESH: Duration = Duration::from_secs(10);

type Waiting = oneshot::Sender<Option<Arc<Published>>>;

/// Handles merge requests until the channel closes.
pub(crate) async fn run(own: Arc<InternalClient>, mut orders: mpsc::Receiver<MergeRequest>) {
    let state = Arc::new(State {
        own,
        indexes: Mutex::default(),
        checked: Mutex::default(),
    });
    let mut tasks = JoinSet::new();
    let mut waiting: HashMap<(Page, Format), Vec<Waiting>> = HashMap::new();
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                None => return,
                Some(MergeRequest::Index { local, contributors, reply }) => {
                    let state = state.clone();
                    tasks.spawn(async move {
                        let _ = reply.send(state.index(&local, &contributors).await);
                        None
                    });
                }
                Some(MergeRequest::Document(order)) => {
                    let DocumentRequest { page, format, local, contributors, incomplete, reply } = *order;
                    let key = (page, format);
                    let at_hand = state.at_hand(&key, &local, &contributors);
                    let is_fresh = state.is_fresh(&key, &contributors);
                    if at_hand.is_some() && is_fresh {
                        let _ = reply.send(at_hand);
                        continue;
                    }
                    let is_being_made = waiting.contains_key(&key);
                    let others = waiting.entry(key.clone()).or_default();
                    // What peers add changes seldom: nobody waits for them to say so.
                    match at_hand {
                        Some(before) => drop(reply.send(Some(before))),
                        None => others.push(reply),
                    }
                    if !is_being_made {
                        let state = state.clone();
                        tasks.spawn(async move {
                            let made = state.document(&key, local, contributors, incomplete).await;
                            Some((key, made))
                        });
                    }
                }
            },
            Some(done) = tasks.join_next() => {
                let (key, made) = match done {
                    Ok(Some(made)) => made,
                    Ok(None) => continue,
                    // Whoever waits for it gets what the local server has.
                    Err(_) => {
                        waiting.clear();
                        continue;
                    }
                };
                for reply in waiting.remove(&key).unwrap_or_default() {
                    let _ = reply.send(made.clone());
                }
            }
        }
    }
}

/// When a peer was last asked what it publishes, and what it said.
type Listed = (Instant, Option<Arc<Index>>);

struct State {
    own: Arc<InternalClient>,
    indexes: Mutex<HashMap<Identity, Listed>>,
    /// When it was last looked whether the parts of a document have changed.
    checked: Mutex<HashMap<(Page, Format), (Instant, PeerIds)>>,
}

impl State {
    async fn index(
        self: &Arc<Self>,
        local: &[u8],
        contributors: &[((String, String), PeerIds)],
    ) -> Option<Vec<u8>> {
        let local = Index::parse(local).ok()?;
        let mut peers: Vec<&Identity> = contributors.iter().flat_map(|(_, who)| who).collect();
        peers.sort();
        peers.dedup();
        let mut asked = JoinSet::new();
        for (place, peer) in peers.iter().enumerate() {
            let (state, peer) = (self.clone(), (*peer).clone());
            asked.spawn(async move { (place, state.index_of(&peer).await) });
        }
        let mut indexes: Vec<_> = peers.iter().map(|peer| (*peer, None)).collect();
        while let Some(told) = asked.join_next().await {
            if let Ok((place, index)) = told {
                indexes[place].1 = index;
            }
        }
        // A document that cannot be had now is still one that there is.
        let indexes: Vec<_> = (indexes.into_iter())
            .map(|(peer, index)| {
                let listed = || contributors.iter().filter(|(_, who)| who.contains(peer));
                let index = index.unwrap_or_else(|| Arc::new(unhashed(listed().map(|it| &it.0))));
                (peer, index)
            })
            .collect();
        let others: Vec<&Index> = indexes.iter().map(|(_, index)| &**index).collect();
        let merged = local.merge(&others, |asked: GroupVersion<'_>, number| {
            let (peer, _) = indexes[number];
            contributors.iter().any(|((group, version), who)| {
                (&**group, &**version) == (asked.group, asked.version) && who.contains(peer)
            })
        });
        Some(merged.to_json())
    }

    /// What a peer lists: what it last listed, and then it is asked for the next time.
    async fn index_of(self: &Arc<Self>, peer: &Identity) -> Option<Arc<Index>> {
        let known = {
            let indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
            indexes.get(peer).cloned()
        };
        match known {
            Some((at, index)) if at.elapsed() < FRESH => index,
            Some((_, Some(index))) => {
                self.listed(peer, Some(index.clone()));
                let (state, peer, known) = (self.clone(), peer.clone(), index.clone());
                tokio::spawn(async move { state.ask_for_index(&peer, Some(known)).await });
                Some(index)
            }
            Some((_, None)) | None => self.ask_for_index(peer, None).await,
        }
    }

    async fn ask_for_index(
        &self,
        peer: &Identity,
        known: Option<Arc<Index>>,
    ) -> Option<Arc<Index>> {
        let answer = self
            .ask(peer, "/openapi/v3", "application/json", None)
            .await;
        let index = match answer {
            Ok(Said::News(_, bytes)) => Index::parse(&bytes).ok().map(Arc::new),
            Ok(Said::Same | Said::Nothing) | Err(_) => None,
        };
        let index = index.or(known);
        self.listed(peer, index.clone());
        index
    }

    fn listed(&self, peer: &Identity, index: Option<Arc<Index>>) {
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = self
            .own
            .bridge
            .cluster_handle
            .as_ref()
            .map(|it| it.cluster.load());
        indexes.retain(|peer, _| {
            let is_there = |it: &crate::cluster_state::Cluster| it.peers.get(peer).is_some();
            cluster.as_ref().is_some_and(|it| is_there(it))
        });
        indexes.insert(peer.clone(), (Instant::now(), index));
    }

    /// A document of all parts; without those that cannot be had, if need be.
    async fn document(
        self: &Arc<Self>,
        key: &(Page, Format),
        local: Local,
        contributors: PeerIds,
        incomplete: Vec<(String, String)>,
    ) -> Option<Arc<Published>> {
        let (page, format) = key;
        let openapi = &self.own.bridge.cluster_handle.as_ref()?.openapi;
        let before = openapi.cache.get(page, *format);
        let local_etag = match &local {
            Local::Nothing => None,
            Local::Tagged(etag, _) => Some(etag.clone()),
        };
        let is_fresh = self.is_fresh(key, &contributors);
        let mut asked = JoinSet::new();
        for (place, peer) in contributors.iter().enumerate() {
            let known = before.as_ref().and_then(|before| {
                let mut parts = before.parts.iter();
                parts.find(|part| part.identity == *peer).cloned()
            });
            let (state, peer, page) = (self.clone(), peer.clone(), page.clone());
            let format = *format;
            asked.spawn(async move {
                let part = state.part(&peer, &page, format, known, is_fresh).await;
                (place, part)
            });
        }
        let mut parts: Vec<_> = contributors.iter().map(|_| None).collect();
        while let Some(told) = asked.join_next().await {
            if let Ok((place, part)) = told {
                parts[place] = part;
            }
        }
        let is_whole = parts.iter().all(Option::is_some);
        let contributors_count = parts.len();
        let parts: Vec<Part> = parts.into_iter().flatten().collect();
        {
            let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
            if checked.len() >= MAX_CHECKED {
                checked.clear();
            }
            checked.insert(key.clone(), (Instant::now(), contributors));
        }
        if parts.is_empty() {
            return before;
        }
        let hash = if is_whole {
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
            Local::Nothing => None,
            Local::Tagged(_, Some(bytes)) => Some(bytes),
            Local::Tagged(..) => Some(self.local(page, *format).await?),
        };
        let (page, format) = key.clone();
        let merged =
            spawn_blocking(move || merge(&page, format, local.as_ref(), parts, &incomplete)).await;
        let Merged {
            plain,
            gzip,
            parts,
            unreadable,
        } = merged.ok()??;
        for (peer, problem) in &unreadable {
            let (peer, path) = (self.name_of(peer), key.0.path());
            tracing::warn!(problem, peer, path, "OpenAPI of a peer cannot be read");
        }
        // Without some part it must not be kept under the hash of all.
        let hash = hash.filter(|_| parts.len() == contributors_count);
        let published = Arc::new(Published {
            page: key.0.clone(),
            format: key.1,
            plain,
            gzip,
            hash,
            local_etag,
            parts,
        });
        openapi.cache.put(published.clone());
        Some(published)
    }

    /// What is on the shelf, if the local server's part of it is as it was.
    fn at_hand(
        &self,
        (page, format): &(Page, Format),
        local: &Local,
        contributors: &PeerIds,
    ) -> Option<Arc<Published>> {
        let openapi = &self.own.bridge.cluster_handle.as_ref()?.openapi;
        let before = openapi.cache.get(page, *format)?;
        let is_same = match local {
            Local::Nothing => before.local_etag.is_none(),
            Local::Tagged(etag, _) => before.local_etag.as_ref() == Some(etag),
        };
        let who = before.parts.iter().map(|part| &part.identity);
        (is_same && before.hash.is_some() && who.eq(contributors)).then_some(before)
    }

    fn is_fresh(&self, key: &(Page, Format), contributors: &PeerIds) -> bool {
        let checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        let last = checked.get(key);
        last.is_some_and(|(at, who)| at.elapsed() < FRESH && who == contributors)
    }

    /// What a peer has of a document; what it last had, if it does not answer.
    async fn part(
        &self,
        peer: &Identity,
        page: &Page,
        format: Format,
        known: Option<Part>,
        is_fresh: bool,
    ) -> Option<Part> {
        if known.is_some() && is_fresh {
            return known;
        }
        let media = format.media_type(page.spec());
        let etag = known.as_ref().and_then(|known| known.etag.as_ref());
        match self.ask(peer, &page.path(), media, etag).await {
            Ok(Said::News(etag, bytes)) => Some(Part {
                identity: peer.clone(),
                etag,
                bytes,
            }),
            Ok(Said::Same) => known,
            Ok(Said::Nothing) => None,
            Err(problem) => {
                let peer = self.name_of(peer);
                tracing::debug!(peer, %problem, "a peer does not send OpenAPI");
                known
            }
        }
    }

    /// Host and identity of a peer, for the log.
    fn name_of(&self, peer: &Identity) -> String {
        match &self.own.bridge.cluster_handle {
            Some(cluster_handle) => cluster_handle.name_of(peer),
            None => peer.to_string(),
        }
    }

    async fn local(&self, page: &Page, format: Format) -> Option<Bytes> {
        let path = page.path();
        let ask = InternalRequest::get(&path).header(ACCEPT, format.media_type(page.spec()));
        let answer = timeout(PATIENCE, self.own.ask(InternalTarget::Upstream, ask)).await;
        let answer = answer.ok()?.ok()?.ok(&path).ok()?;
        Some(answer.body)
    }

    async fn ask(
        &self,
        peer: &Identity,
        path: &str,
        media: &str,
        known: Option<&HeaderValue>,
    ) -> Result<Said, String> {
        let cluster = self
            .own
            .bridge
            .cluster_handle
            .as_ref()
            .map(|it| it.cluster.load());
        let peer = cluster.and_then(|cluster| cluster.peers.get(peer).cloned());
        let peer = peer.ok_or("it is gone")?;
        if let Some(problem) = &peer.problem {
            return Err(problem.clone());
        }
        let mut ask = InternalRequest::get(path)
            .header(ACCEPT, media)
            .limit(MAX_DOCUMENT);
        if let Some(etag) = known.and_then(|etag| etag.to_str().ok()) {
            ask = ask.header(IF_NONE_MATCH, etag);
        }
        let answer = timeout(PATIENCE, self.own.ask(InternalTarget::Peer(&peer), ask)).await;
        let answer = answer.map_err(|_| "no answer in time".to_owned())??;
        match answer.status {
            StatusCode::NOT_MODIFIED => Ok(Said::Same),
            StatusCode::NOT_FOUND => Ok(Said::Nothing),
            _ => {
                let answer = answer.ok(path)?;
                Ok(Said::News(answer.headers.get(ETAG).cloned(), answer.body))
            }
        }
    }
}

enum Said {
    Same,
    Nothing,
    News(Option<HeaderValue>, Bytes),
}

/// Of all parts, in order; the same document counts once. None if one of them does
/// not say what it is called.
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

/// A document of several servers.
struct Merged {
    plain: Bytes,
    gzip: Bytes,
    /// What it is made of.
    parts: Vec<Part>,
    /// Peers whose parts cannot be read, and why.
    unreadable: Vec<(Identity, String)>,
}

/// Merges, and compresses. A peer's part that cannot be read is left out.
fn merge(
    page: &Page,
    format: Format,
    local: Option<&Bytes>,
    mut parts: Vec<Part>,
    incomplete: &[(String, String)],
) -> Option<Merged> {
    let mut unreadable = Vec::new();
    let take = |path: &str| {
        let Some(asked) = GroupVersion::from_path(path) else {
            return false;
        };
        (incomplete.iter())
            .any(|(group, version)| (&**group, &**version) == (asked.group, asked.version))
    };
    loop {
        let documents = local
            .into_iter()
            .chain(parts.iter().map(|part| &part.bytes));
        let mut documents = documents.map(|bytes| &**bytes);
        let first = documents.next()?;
        let others: Vec<&[u8]> = documents.collect();
        let merged = match format {
            Format::Json => json::merge(page.spec(), first, &others, take),
            Format::Protobuf => protobuf::merge(page.spec(), first, &others, take),
        };
        let problem = match merged {
            Ok(merged) => {
                let plain = Bytes::from(merged.into_owned());
                return Some(Merged {
                    gzip: gzip(&plain),
                    plain,
                    parts,
                    unreadable,
                });
            }
            Err(problem) => problem,
        };
        // Where the local server has none, the first is a peer's.
        let whose = match (problem.server(), local) {
            (Some(Server::Other(number)), Some(_)) => Some(number),
            (Some(Server::Other(number)), None) => Some(number + 1),
            (Some(Server::Local), None) => Some(0),
            (Some(Server::Local) | None, _) => None,
        };
        let whose = whose.filter(|at| *at < parts.len())?;
        unreadable.push((parts.remove(whose).identity, problem.to_string()));
    }
}

/// A list of documents of which no more is known than that they are there.
fn unhashed<'a>(listed: impl Iterator<Item = &'a (String, String)>) -> Index {
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
