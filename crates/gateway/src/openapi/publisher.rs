//! Makes documents of what several servers publish: asks them, merges, and puts
//! the result on the shelf. Each is made once, however many wait for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT, ETAG, IF_NONE_MATCH};
use http::{HeaderName, HeaderValue, StatusCode};
use skewbridge_api::hygiene::PEER_HOP;
use skewbridge_openapi::{Format, GroupVersion, Index, combined_hash, json, protobuf};
use skewbridge_peers::Identity;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use super::shelf::Part;
use super::{Contributors, DocumentOrder, Local, Order, Page, Published};
use crate::gzip::gzip;
use crate::own::{Ask, Own, Party};

/// How long a server may take to send a document.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long what a peer publishes is not asked for again. It changes only with the
/// peer's version, which is noticed otherwise.
const FRESH: Duration = Duration::from_secs(10);

/// Says that a peer has passed a request on.
const HOPPED: HeaderName = HeaderName::from_static(PEER_HOP[0]);

type Waiting = oneshot::Sender<Option<Arc<Published>>>;

/// Takes orders until nobody can give any.
pub(crate) async fn run(own: Arc<Own>, mut orders: mpsc::Receiver<Order>) {
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
                Some(Order::Index { local, contributors, reply }) => {
                    let state = state.clone();
                    tasks.spawn(async move {
                        let _ = reply.send(state.index(&local, &contributors).await);
                        None
                    });
                }
                Some(Order::Document(order)) => {
                    let DocumentOrder { page, format, local, contributors, incomplete, reply } = *order;
                    let key = (page, format);
                    let others = waiting.entry(key.clone()).or_default();
                    others.push(reply);
                    if others.len() == 1 {
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
    own: Arc<Own>,
    indexes: Mutex<HashMap<Identity, Listed>>,
    /// When it was last looked whether the parts of a document have changed.
    checked: Mutex<HashMap<(Page, Format), (Instant, Contributors)>>,
}

impl State {
    async fn index(
        &self,
        local: &[u8],
        contributors: &[((String, String), Contributors)],
    ) -> Option<Vec<u8>> {
        let local = Index::parse(local).ok()?;
        let mut peers: Vec<&Identity> = contributors.iter().flat_map(|(_, who)| who).collect();
        peers.sort();
        peers.dedup();
        let mut indexes = Vec::new();
        for peer in peers {
            if let Some(index) = self.index_of(peer).await {
                indexes.push((peer, index));
            }
        }
        let others: Vec<&Index> = indexes.iter().map(|(_, index)| &**index).collect();
        let merged = local.merge(&others, |asked: GroupVersion<'_>, number| {
            let (peer, _) = indexes[number];
            contributors.iter().any(|((group, version), who)| {
                (&**group, &**version) == (asked.group, asked.version) && who.contains(peer)
            })
        });
        Some(merged.to_json())
    }

    /// What a peer lists; what it last listed, if it does not answer.
    async fn index_of(&self, peer: &Identity) -> Option<Arc<Index>> {
        let known = {
            let indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
            indexes.get(peer).cloned()
        };
        if let Some((at, index)) = &known
            && at.elapsed() < FRESH
        {
            return index.clone();
        }
        let answer = self
            .ask(peer, "/openapi/v3", "application/json", None)
            .await;
        let index = match answer {
            Ok(Said::News(_, bytes)) => Index::parse(&bytes).ok().map(Arc::new),
            Ok(Said::Same | Said::Nothing) | Err(_) => None,
        };
        let index = index.or(known.and_then(|(_, index)| index));
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = self.own.bridge.interop.as_ref().map(|it| it.cluster.load());
        indexes.retain(|peer, _| {
            let is_there = |it: &crate::cluster::Cluster| it.peers.get(peer).is_some();
            cluster.as_ref().is_some_and(|it| is_there(it))
        });
        indexes.insert(peer.clone(), (Instant::now(), index.clone()));
        index
    }

    /// A document of all parts; without those that cannot be had, if need be.
    async fn document(
        &self,
        key: &(Page, Format),
        local: Local,
        contributors: Contributors,
        incomplete: Vec<(String, String)>,
    ) -> Option<Arc<Published>> {
        let (page, format) = key;
        let library = &self.own.bridge.interop.as_ref()?.library;
        let before = library.shelf.get(page, *format);
        let local_etag = match &local {
            Local::Nothing => None,
            Local::Tagged(etag, _) => Some(etag.clone()),
        };
        let is_fresh = self.is_fresh(key, &contributors);
        if let Some(before) = &before
            && before.local_etag == local_etag
            && is_fresh
        {
            return Some(before.clone());
        }
        let mut parts = Vec::new();
        let mut is_whole = true;
        for peer in &contributors {
            let known = before.as_ref().and_then(|before| {
                let mut parts = before.parts.iter();
                parts.find(|part| part.identity == *peer)
            });
            match self.part(peer, page, *format, known, is_fresh).await {
                Some(part) => parts.push(part),
                None => is_whole = false,
            }
        }
        self.checked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key.clone(), (Instant::now(), contributors));
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
        let (plain, gzip, parts) = merged.ok()??;
        let published = Arc::new(Published {
            page: key.0.clone(),
            format: key.1,
            plain,
            gzip,
            hash,
            local_etag,
            parts,
        });
        library.shelf.put(published.clone());
        Some(published)
    }

    fn is_fresh(&self, key: &(Page, Format), contributors: &Contributors) -> bool {
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
        known: Option<&Part>,
        is_fresh: bool,
    ) -> Option<Part> {
        if let (Some(known), true) = (known, is_fresh) {
            return Some(known.clone());
        }
        let media = format.media_type(page.spec());
        let etag = known.and_then(|known| known.etag.as_ref());
        match self.ask(peer, &page.path(), media, etag).await {
            Ok(Said::News(etag, bytes)) => Some(Part {
                identity: peer.clone(),
                etag,
                bytes,
            }),
            Ok(Said::Same) => known.cloned(),
            Ok(Said::Nothing) => None,
            Err(problem) => {
                tracing::debug!(%peer, %problem, "a peer does not send OpenAPI");
                known.cloned()
            }
        }
    }

    async fn local(&self, page: &Page, format: Format) -> Option<Bytes> {
        let path = page.path();
        let ask = Ask::get(&path).header(ACCEPT, format.media_type(page.spec()));
        let answer = timeout(PATIENCE, self.own.ask(Party::Upstream, ask)).await;
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
        let cluster = self.own.bridge.interop.as_ref().map(|it| it.cluster.load());
        let peer = cluster.and_then(|cluster| cluster.peers.get(peer).cloned());
        let peer = peer.ok_or("it is gone")?;
        // As a request that has hopped already: a bridge there answers with what its
        // own server publishes, and asks nobody else.
        let mut ask = Ask::get(path).header(ACCEPT, media).header(HOPPED, "true");
        if let Some(etag) = known.and_then(|etag| etag.to_str().ok()) {
            ask = ask.header(IF_NONE_MATCH, etag);
        }
        let answer = timeout(PATIENCE, self.own.ask(Party::Peer(&peer), ask)).await;
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

/// Merges, and compresses. A part that cannot be read is left out.
fn merge(
    page: &Page,
    format: Format,
    local: Option<&Bytes>,
    parts: Vec<Part>,
    incomplete: &[(String, String)],
) -> Option<(Bytes, Bytes, Vec<Part>)> {
    let documents = local
        .into_iter()
        .chain(parts.iter().map(|part| &part.bytes));
    let mut documents = documents.map(|bytes| &**bytes);
    let first = documents.next()?;
    let others: Vec<&[u8]> = documents.collect();
    let take = |path: &str| {
        let Some(asked) = GroupVersion::of_path(path) else {
            return false;
        };
        (incomplete.iter())
            .any(|(group, version)| (&**group, &**version) == (asked.group, asked.version))
    };
    let merged = match format {
        Format::Json => json::merge(page.spec(), first, &others, take),
        Format::Protobuf => protobuf::merge(page.spec(), first, &others, take),
    };
    let merged = match merged {
        Ok(merged) => Bytes::from(merged.into_owned()),
        Err(problem) => {
            tracing::warn!(%problem, path = page.path(), "OpenAPI of several servers cannot be merged");
            return None;
        }
    };
    let compressed = gzip(&merged);
    Some((merged, compressed, parts))
}
