//! Asks a server what it serves.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use http::StatusCode;
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use skewbridge_discovery::{DiscoveryFormat, Document, Index, LegacyDiscovery, accept};
use skewbridge_k8s_api::version::Version;
use skewbridge_peer_directory::{ServedApis, SharedGroupVersions};
use tokio::time::timeout;

use crate::bridge_headers::is_by_bridge;
use crate::control::internal_client::{
    InternalClient, InternalRequest, InternalResponse, InternalTarget,
};

/// A document of a cluster with very many custom resources has some 2 MiB.
const MAX_DOCUMENT: usize = 32 * 1024 * 1024;

/// Group-versions that are asked for one by one: servers before 1.26 have 30.
const MAX_LISTS: usize = 1_000;

/// A list of one group-version has some KiB. With [`SHARED_LISTS`] this bounds the memory.
const MAX_LIST_BYTES: usize = 2 * 1024 * 1024;

/// Lists of the server's own APIs. One without an answer is as it was known before; if it was
/// not, it is not known what the server serves.
const LISTS: ListLimits = ListLimits {
    each: Duration::from_secs(3),
    all: Duration::from_secs(6),
    concurrency: 8,
};

/// Lists of custom and aggregated APIs. The server behind an aggregated API may hang, so one
/// without an answer is as it was known before, or left out: all servers share these APIs, and
/// no peer is asked for them. More than a hundred may hang.
const SHARED_LISTS: ListLimits = ListLimits {
    each: Duration::from_secs(1),
    all: Duration::from_secs(4),
    concurrency: 32,
};

/// What it serves by itself, whatever its peers do: the aggregated documents
/// where it has them, else one list after the other (before 1.26). Of what is
/// known already only news are asked for. `version` is its answer to [`ask_version`].
/// `shared` are the APIs that all servers share.
pub(crate) async fn discover(
    own: &InternalClient,
    party: InternalTarget<'_>,
    version: InternalResponse,
    known: Option<&ServedApis>,
    shared: Option<&SharedGroupVersions>,
) -> Result<ServedApis, String> {
    let by_bridge = is_by_bridge(&version.headers);
    let version = version_in(version)?;
    // Its ETags are another server's if it has been replaced.
    let known = known.filter(|known| known.version == version);
    let apis = match ask(own, party, "/apis", known, 1).await? {
        Said::Document(apis) => apis,
        Said::Legacy(apis) => {
            let served = legacy(own, party, &apis, version, known, shared).await?;
            return Ok(ServedApis {
                by_bridge,
                ..served
            });
        }
    };
    let api = match ask(own, party, "/api", known, 0).await? {
        Said::Document(api) => api,
        Said::Legacy(_) => return Err("/api: not aggregated, although /apis is".to_owned()),
    };
    let documents = [api.document, apis.document];
    Ok(ServedApis {
        index: index(&documents, known),
        etags: [api.etag, apis.etag],
        documents,
        version,
        by_bridge,
    })
}

/// Of documents that are both known already there is one.
fn index(documents: &[Arc<Document>; 2], known: Option<&ServedApis>) -> Arc<Index> {
    let is_known = |known: &&ServedApis| {
        let mut pairs = documents.iter().zip(&known.documents);
        pairs.all(|(document, known)| Arc::ptr_eq(document, known))
    };
    match known.filter(is_known) {
        Some(known) => Arc::clone(&known.index),
        None => Arc::new(Index::new(&[&documents[0], &documents[1]])),
    }
}

enum Said {
    Document(Tagged),
    Legacy(InternalResponse),
}

struct Tagged {
    document: Arc<Document>,
    etag: Option<String>,
}

async fn ask(
    own: &InternalClient,
    party: InternalTarget<'_>,
    path: &'static str,
    known: Option<&ServedApis>,
    which: usize,
) -> Result<Said, String> {
    let mut ask = InternalRequest::get(path)
        .header(ACCEPT, accept::LOCAL_DOCUMENT)
        .limit(MAX_DOCUMENT);
    let before = known.and_then(|known| {
        let etag = known.etags[which].clone()?;
        Some((known.documents[which].clone(), etag))
    });
    if let Some((_, etag)) = &before {
        ask = ask.header(IF_NONE_MATCH, etag);
    }
    let answer = own.ask(party, ask).await?;
    if let (StatusCode::NOT_MODIFIED, Some((document, etag))) = (answer.status, before) {
        return Ok(Said::Document(Tagged {
            document,
            etag: Some(etag),
        }));
    }
    let answer = answer.ok(path)?;
    match answer
        .header(&CONTENT_TYPE)
        .and_then(DiscoveryFormat::from_content_type)
    {
        Some(DiscoveryFormat::V2 | DiscoveryFormat::V2Beta1) => {
            let document =
                Document::parse(&answer.body).map_err(|error| format!("{path}: {error}"))?;
            Ok(Said::Document(Tagged {
                document: Arc::new(document),
                etag: answer.header(&ETAG).map(str::to_owned),
            }))
        }
        Some(DiscoveryFormat::Legacy) => Ok(Said::Legacy(answer)),
        None => Err(format!("{path}: an answer that is not discovery")),
    }
}

async fn legacy(
    own: &InternalClient,
    party: InternalTarget<'_>,
    apis: &InternalResponse,
    version: Option<Version>,
    known: Option<&ServedApis>,
    shared: Option<&SharedGroupVersions>,
) -> Result<ServedApis, String> {
    let api = own
        .ask(party, InternalRequest::get("/api").limit(MAX_DOCUMENT))
        .await?
        .ok("/api")?;
    let mut legacy =
        LegacyDiscovery::from_groups(&api.body, &apis.body).map_err(|error| error.to_string())?;
    let paths: Vec<_> = legacy.paths().take(MAX_LISTS + 1).collect();
    if paths.len() > MAX_LISTS {
        return Err(format!("it lists more than {MAX_LISTS} group-versions"));
    }
    let now = Instant::now();
    let knows_shared = shared.is_some();
    let is_shared = |path: &String| {
        let of_list = shared.zip(group_version(path));
        of_list.is_some_and(|(shared, (group, version))| shared.contains(group, version, now))
    };
    let (shared, not_shared): (Vec<_>, Vec<_>) = paths.into_iter().partition(is_shared);
    let ask = |path: String| async move {
        let answer = own
            .ask(party, InternalRequest::get(&path).limit(MAX_LIST_BYTES))
            .await;
        (path, answer)
    };
    // At the same time, so that neither takes the time of the other.
    let (shared, not_shared) = tokio::join!(
        SHARED_LISTS.collect(shared, ask),
        LISTS.collect(not_shared, ask)
    );
    for (path, answer) in shared {
        let answer = answer.and_then(Result::ok);
        match answer.filter(|it| it.status == StatusCode::OK) {
            // What cannot be read is the fault of the server behind an aggregated API.
            Some(answer) if legacy.add(&path, &answer.body).is_ok() => {}
            _ => {
                keep_known(&mut legacy, &path, known);
            }
        }
    }
    for (path, answer) in not_shared {
        let Some(answer) = answer else {
            if keep_known(&mut legacy, &path, known) {
                continue;
            }
            return Err(format!("{path}: no answer"));
        };
        let answer = answer?;
        match list_use(answer.status, knows_shared) {
            ListUse::Add => legacy
                .add(&path, &answer.body)
                .map_err(|error| format!("{path}: {error}"))?,
            ListUse::LeaveOut => {}
            ListUse::KeepKnown if keep_known(&mut legacy, &path, known) => {}
            ListUse::KeepKnown | ListUse::Fail => {
                answer.ok(&path)?;
            }
        }
    }
    let (core, others): (Vec<_>, Vec<_>) =
        (legacy.into_document().items.into_iter()).partition(|group| group.name().is_empty());
    let documents = [core, others].map(|items| Document {
        items,
        ..Document::default()
    });
    let documents = documents.map(Arc::new);
    Ok(ServedApis {
        index: index(&documents, None),
        documents,
        etags: [None, None],
        version,
        by_bridge: false,
    })
}

/// What the answer to the request for a list of the server's own APIs means.
#[derive(Debug, PartialEq, Eq)]
enum ListUse {
    /// It is the list.
    Add,
    /// The server does not serve the group-version.
    LeaveOut,
    /// The server serves what it served before, and cannot say so now.
    KeepKnown,
    /// Nothing is known of the server by this poll.
    Fail,
}

fn list_use(status: StatusCode, knows_shared: bool) -> ListUse {
    match status {
        StatusCode::OK => ListUse::Add,
        // Registered by another server.
        StatusCode::NOT_FOUND => ListUse::LeaveOut,
        // Until it is known which APIs are aggregated, this one may be, and its server away.
        StatusCode::SERVICE_UNAVAILABLE if !knows_shared => ListUse::LeaveOut,
        // The server is shutting down, or its bridge does not reach it. Without the list, its
        // APIs would be 404 for as long as its Lease lives.
        StatusCode::SERVICE_UNAVAILABLE => ListUse::KeepKnown,
        _ => ListUse::Fail,
    }
}

/// Adds the list of a path as it was known before. Whether it was.
fn keep_known(legacy: &mut LegacyDiscovery, path: &str, known: Option<&ServedApis>) -> bool {
    let (group, version) = match group_version(path) {
        Some(group_version) => group_version,
        None => ("", path.trim_start_matches("/api/")),
    };
    let mut documents = known.into_iter().flat_map(|known| &known.documents);
    let list = documents.find_map(|document| document.version(group, version));
    list.is_some_and(|list| legacy.keep(path, list))
}

/// How lists are asked for that are asked for one by one.
struct ListLimits {
    /// For each of them.
    each: Duration,
    /// For all of them together.
    all: Duration,
    /// So many at a time.
    concurrency: usize,
}

impl ListLimits {
    /// Asks for all lists. One that has not come in time has no answer.
    async fn collect<T, F: Future<Output = (String, T)>>(
        &self,
        paths: Vec<String>,
        ask: impl Fn(String) -> F,
    ) -> BTreeMap<String, Option<T>> {
        let mut answers: BTreeMap<_, _> = paths.iter().map(|path| (path.clone(), None)).collect();
        let mut waiting = paths.into_iter();
        let begin = |path| Box::pin(timeout(self.each, ask(path)));
        let mut running: Vec<_> = waiting.by_ref().take(self.concurrency).map(begin).collect();
        let all = poll_fn(|context| {
            let mut at = 0;
            while let Some(list) = running.get_mut(at) {
                let Poll::Ready(outcome) = list.as_mut().poll(context) else {
                    at += 1;
                    continue;
                };
                if let Ok((path, answer)) = outcome {
                    answers.insert(path, Some(answer));
                }
                match waiting.next() {
                    // It is polled at once, in the place of the one that has ended.
                    Some(path) => running[at] = begin(path),
                    None => drop(running.swap_remove(at)),
                }
            }
            if running.is_empty() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        // Without an answer within that time, the rest have none.
        let _ = timeout(self.all, all).await;
        answers
    }
}

/// Group and version of the path of a list; `None` for the core group.
fn group_version(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix("/apis/")?.split_once('/')
}

/// The first question of a poll. An error is a server that does not answer.
pub(crate) async fn ask_version(
    own: &InternalClient,
    party: InternalTarget<'_>,
) -> Result<InternalResponse, String> {
    let ask = InternalRequest::get("/version").limit(MAX_DOCUMENT);
    own.ask(party, ask).await
}

/// Which version it is, where it tells.
fn version_in(answer: InternalResponse) -> Result<Option<Version>, String> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Info<'a> {
        git_version: &'a str,
    }
    if matches!(
        answer.status,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
    ) {
        return Ok(None);
    }
    let answer = answer.ok("/version")?;
    let info: Option<Info<'_>> = serde_json::from_slice(&answer.body).ok();
    Ok(info.and_then(|info| info.git_version.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_away_for_a_moment_keeps_its_apis() {
        let rows = [
            (200, true, ListUse::Add),
            (404, true, ListUse::LeaveOut),
            (503, true, ListUse::KeepKnown),
            (503, false, ListUse::LeaveOut),
            (403, true, ListUse::Fail),
            (500, false, ListUse::Fail),
        ];
        for (status, knows_shared, expected) in rows {
            let status = StatusCode::from_u16(status).unwrap();
            let list_use = list_use(status, knows_shared);
            assert_eq!(list_use, expected, "{status} {knows_shared}");
        }
    }

    #[test]
    fn the_group_version_of_a_list_is_in_its_path() {
        let metrics = group_version("/apis/metrics.k8s.io/v1beta1");
        assert_eq!(metrics, Some(("metrics.k8s.io", "v1beta1")));
        assert_eq!(group_version("/api/v1"), None);
    }

    #[tokio::test]
    async fn lists_that_hang_cost_neither_the_others_nor_more_than_their_time() {
        use std::cell::Cell;
        const LONG: Duration = Duration::from_mins(10);
        const SHORT: Duration = Duration::from_millis(10);
        const CONCURRENCY: usize = 20;
        let paths: Vec<_> = (0..100).map(|number| number.to_string()).collect();
        let [running, most] = [Cell::new(0_usize), Cell::new(0)];
        let ask = |path: String| {
            let (running, most) = (&running, &most);
            async move {
                running.set(running.get() + 1);
                most.set(most.get().max(running.get()));
                tokio::task::yield_now().await;
                if path.ends_with('0') {
                    std::future::pending::<()>().await;
                }
                running.set(running.get() - 1);
                (path, ())
            }
        };
        for (each, all) in [(SHORT, LONG), (LONG, SHORT)] {
            running.set(0);
            let limits = ListLimits {
                each,
                all,
                concurrency: CONCURRENCY,
            };
            let answers = limits.collect(paths.clone(), ask).await;
            assert_eq!(answers.len(), paths.len());
            for (path, answer) in &answers {
                let hangs = path.ends_with('0');
                assert!(!hangs || answer.is_none(), "{path} {each:?}");
                // Beside ten that hang there is always room for others.
                assert!(hangs || answer.is_some() || all == SHORT, "{path}");
            }
            assert!(most.get() <= CONCURRENCY, "{}", most.get());
        }
    }
}
