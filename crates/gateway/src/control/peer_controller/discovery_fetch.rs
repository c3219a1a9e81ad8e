//! Fetches discovery of a server.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use http::StatusCode;
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use skewbridge_discovery::{DiscoveryFormat, Document, Index, LegacyDiscovery, accept};
use skewbridge_k8s_api::version::{self, Version};
use skewbridge_peer_directory::{ServedApis, SharedGroupVersions};
use tokio::time::timeout;

use crate::bridge_headers::is_by_bridge;
use crate::control::internal_client::{
    InternalClient, InternalRequest, InternalResponse, InternalTarget,
};

/// The document of a cluster with very many custom resources has about 2 MiB.
const MAX_DOCUMENT_BYTES: usize = 32 * 1024 * 1024;

/// Group-versions whose lists are requested one by one. Servers before 1.26 have about 30.
const MAX_GROUP_VERSIONS: usize = 1_000;

/// The list of one group-version has a few KiB. Together with the concurrency of
/// [`SHARED_LISTS`] this bounds the memory.
const MAX_LIST_BYTES: usize = 2 * 1024 * 1024;

/// Lists of the server's own APIs. If one is not answered, the last known list is used. Without
/// one, the poll fails.
const OWN_LISTS: ListLimits = ListLimits {
    each_timeout: Duration::from_secs(3),
    total_timeout: Duration::from_secs(6),
    concurrency: 8,
};

/// Lists of custom and aggregated APIs. The server behind an aggregated API may hang. If a list is
/// not answered, the last known list is used, or it is omitted: all servers share these APIs, so
/// no request for them is rerouted. The limits allow for more than a hundred lists that hang.
const SHARED_LISTS: ListLimits = ListLimits {
    each_timeout: Duration::from_secs(1),
    total_timeout: Duration::from_secs(4),
    concurrency: 32,
};

/// The APIs that the server itself serves, without those of its peers: from the aggregated
/// documents, or from lists of each group-version where it has none (before 1.26). Requests for
/// `known` documents are conditional. `version` is the response to [`fetch_version`]. `shared`
/// are the APIs that all servers share.
pub(crate) async fn fetch(
    client: &InternalClient,
    target: InternalTarget<'_>,
    version: InternalResponse,
    known: Option<&ServedApis>,
    shared: Option<&SharedGroupVersions>,
) -> Result<ServedApis, String> {
    let by_bridge = is_by_bridge(&version.headers);
    let (version, version_suffix) = match parse_version(version)? {
        Some((version, suffix)) => (Some(version), suffix),
        None => (None, Arc::default()),
    };
    // If the server has been replaced, the known ETags are not its own.
    let known =
        known.filter(|known| known.version == version && known.version_suffix == version_suffix);
    let apis = match fetch_document(client, target, "/apis", known, 1).await? {
        DiscoveryResponse::Aggregated(apis) => apis,
        DiscoveryResponse::Legacy(apis) => {
            let served = fetch_legacy(client, target, &apis, version, known, shared).await?;
            return Ok(ServedApis {
                by_bridge,
                version_suffix,
                ..served
            });
        }
    };
    let api = match fetch_document(client, target, "/api", known, 0).await? {
        DiscoveryResponse::Aggregated(api) => api,
        DiscoveryResponse::Legacy(_) => {
            return Err("/api: not aggregated, although /apis is".to_owned());
        }
    };
    let documents = [api.document, apis.document];
    Ok(ServedApis {
        index: index(&documents, known),
        etags: [api.etag, apis.etag],
        documents,
        version,
        version_suffix,
        by_bridge,
    })
}

/// The index of the documents. The known one is reused if neither document has changed.
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

enum DiscoveryResponse {
    Aggregated(TaggedDocument),
    Legacy(InternalResponse),
}

struct TaggedDocument {
    document: Arc<Document>,
    etag: Option<String>,
}

async fn fetch_document(
    client: &InternalClient,
    target: InternalTarget<'_>,
    path: &'static str,
    known: Option<&ServedApis>,
    document_index: usize,
) -> Result<DiscoveryResponse, String> {
    let mut request = InternalRequest::get(path)
        .header(ACCEPT, accept::LOCAL_DOCUMENT)
        .max_response_bytes(MAX_DOCUMENT_BYTES);
    let before = known.and_then(|known| {
        let etag = known.etags[document_index].clone()?;
        Some((known.documents[document_index].clone(), etag))
    });
    if let Some((_, etag)) = &before {
        request = request.header(IF_NONE_MATCH, etag);
    }
    let response = client.request(target, request).await?;
    if let (StatusCode::NOT_MODIFIED, Some((document, etag))) = (response.status, before) {
        return Ok(DiscoveryResponse::Aggregated(TaggedDocument {
            document,
            etag: Some(etag),
        }));
    }
    let response = response.ok(path)?;
    match response
        .header(&CONTENT_TYPE)
        .and_then(DiscoveryFormat::from_content_type)
    {
        Some(DiscoveryFormat::V2 | DiscoveryFormat::V2Beta1) => {
            let document =
                Document::parse(&response.body).map_err(|error| format!("{path}: {error}"))?;
            Ok(DiscoveryResponse::Aggregated(TaggedDocument {
                document: Arc::new(document),
                etag: response.header(&ETAG).map(str::to_owned),
            }))
        }
        Some(DiscoveryFormat::Legacy) => Ok(DiscoveryResponse::Legacy(response)),
        None => Err(format!("{path}: the response is not a discovery document")),
    }
}

async fn fetch_legacy(
    client: &InternalClient,
    target: InternalTarget<'_>,
    apis: &InternalResponse,
    version: Option<Version>,
    known: Option<&ServedApis>,
    shared: Option<&SharedGroupVersions>,
) -> Result<ServedApis, String> {
    let api = client
        .request(
            target,
            InternalRequest::get("/api").max_response_bytes(MAX_DOCUMENT_BYTES),
        )
        .await?
        .ok("/api")?;
    let mut legacy =
        LegacyDiscovery::from_groups(&api.body, &apis.body).map_err(|error| error.to_string())?;
    let paths: Vec<_> = legacy.paths().take(MAX_GROUP_VERSIONS + 1).collect();
    if paths.len() > MAX_GROUP_VERSIONS {
        return Err(format!(
            "the server lists more than {MAX_GROUP_VERSIONS} group-versions"
        ));
    }
    let now = Instant::now();
    let shared_is_known = shared.is_some();
    let is_shared = |path: &String| {
        let listed = shared.zip(group_version(path));
        listed.is_some_and(|(shared, (group, version))| shared.contains(group, version, now))
    };
    let (shared, not_shared): (Vec<_>, Vec<_>) = paths.into_iter().partition(is_shared);
    let fetch_list = |path: String| async move {
        let response = client
            .request(
                target,
                InternalRequest::get(&path).max_response_bytes(MAX_LIST_BYTES),
            )
            .await;
        (path, response)
    };
    // Concurrently, so that neither uses up the time of the other.
    let (shared, not_shared) = tokio::join!(
        SHARED_LISTS.collect(shared, fetch_list),
        OWN_LISTS.collect(not_shared, fetch_list)
    );
    for (path, response) in shared {
        let response = response.and_then(Result::ok);
        match response.filter(|it| it.status == StatusCode::OK) {
            // A list that cannot be parsed comes from the server behind an aggregated API.
            Some(response) if legacy.add(&path, &response.body).is_ok() => {}
            _ => {
                keep_last_known(&mut legacy, &path, known);
            }
        }
    }
    for (path, response) in not_shared {
        let Some(response) = response else {
            if keep_last_known(&mut legacy, &path, known) {
                continue;
            }
            return Err(format!("{path}: no response"));
        };
        let response = response?;
        match list_use(response.status, shared_is_known) {
            ListUse::Add => legacy
                .add(&path, &response.body)
                .map_err(|error| format!("{path}: {error}"))?,
            ListUse::Omit => {}
            ListUse::KeepLastKnown if keep_last_known(&mut legacy, &path, known) => {}
            ListUse::KeepLastKnown | ListUse::Fail => {
                response.ok(&path)?;
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
        version_suffix: Arc::default(),
        by_bridge: false,
    })
}

/// How the response to a request for a list of the server's own APIs is used.
#[derive(Debug, PartialEq, Eq)]
enum ListUse {
    /// The body is the list.
    Add,
    /// The server does not serve the group-version.
    Omit,
    /// The server is temporarily unavailable: the last known list stays in use.
    KeepLastKnown,
    /// The poll of the server fails.
    Fail,
}

fn list_use(status: StatusCode, shared_is_known: bool) -> ListUse {
    match status {
        StatusCode::OK => ListUse::Add,
        // Registered by another server of the cluster.
        StatusCode::NOT_FOUND => ListUse::Omit,
        // Until the aggregated APIs are known, this can be one whose server is unavailable.
        StatusCode::SERVICE_UNAVAILABLE if !shared_is_known => ListUse::Omit,
        // The server is shutting down, or its bridge cannot reach it. Without the list,
        // requests for its APIs would get 404 until its Lease expires.
        StatusCode::SERVICE_UNAVAILABLE => ListUse::KeepLastKnown,
        _ => ListUse::Fail,
    }
}

/// Adds the last known list of a path. Returns whether there is one.
fn keep_last_known(legacy: &mut LegacyDiscovery, path: &str, known: Option<&ServedApis>) -> bool {
    let (group, version) = match group_version(path) {
        Some(group_version) => group_version,
        None => ("", path.trim_start_matches("/api/")),
    };
    let mut documents = known.into_iter().flat_map(|known| &known.documents);
    let list = documents.find_map(|document| document.version(group, version));
    list.is_some_and(|list| legacy.keep(path, list))
}

/// Limits for requests for the lists of group-versions.
struct ListLimits {
    /// The timeout of each request.
    each_timeout: Duration,
    /// The timeout of all requests together.
    total_timeout: Duration,
    /// The number of concurrent requests.
    concurrency: usize,
}

impl ListLimits {
    /// Fetches all lists. `None` is a list that was not received in time.
    async fn collect<T, F: Future<Output = (String, T)>>(
        &self,
        paths: Vec<String>,
        fetch: impl Fn(String) -> F,
    ) -> BTreeMap<String, Option<T>> {
        let mut responses: BTreeMap<_, _> = paths.iter().map(|path| (path.clone(), None)).collect();
        let mut waiting = paths.into_iter();
        let begin = |path| Box::pin(timeout(self.each_timeout, fetch(path)));
        let mut running: Vec<_> = waiting.by_ref().take(self.concurrency).map(begin).collect();
        let all = poll_fn(|context| {
            let mut at = 0;
            while let Some(list) = running.get_mut(at) {
                let Poll::Ready(outcome) = list.as_mut().poll(context) else {
                    at += 1;
                    continue;
                };
                if let Ok((path, response)) = outcome {
                    responses.insert(path, Some(response));
                }
                match waiting.next() {
                    // The next iteration polls it, in the slot of the request that has ended.
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
        // After the timeout, the remaining lists are `None`.
        let _ = timeout(self.total_timeout, all).await;
        responses
    }
}

/// Group and version of the path of a list; `None` for the core group.
fn group_version(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix("/apis/")?.split_once('/')
}

/// The first request of a poll. An error means that the server does not answer.
pub(crate) async fn fetch_version(
    client: &InternalClient,
    target: InternalTarget<'_>,
) -> Result<InternalResponse, String> {
    let request = InternalRequest::get("/version").max_response_bytes(MAX_DOCUMENT_BYTES);
    client.request(target, request).await
}

/// The version in the response, and the rest of the `gitVersion`. `None` if the server denies the
/// request.
pub(super) fn parse_version(
    response: InternalResponse,
) -> Result<Option<(Version, Arc<str>)>, String> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct VersionInfo<'a> {
        git_version: &'a str,
    }
    if matches!(
        response.status,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
    ) {
        return Ok(None);
    }
    let response = response.ok("/version")?;
    let info: Option<VersionInfo<'_>> = serde_json::from_slice(&response.body).ok();
    Ok(info.and_then(|info| {
        let version = info.git_version.parse().ok()?;
        Some((version, version::suffix(info.git_version).into()))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporarily_unavailable_server_keeps_its_last_known_apis() {
        let rows = [
            (200, true, ListUse::Add),
            (404, true, ListUse::Omit),
            (503, true, ListUse::KeepLastKnown),
            (503, false, ListUse::Omit),
            (403, true, ListUse::Fail),
            (500, false, ListUse::Fail),
        ];
        for (status, shared_is_known, expected) in rows {
            let status = StatusCode::from_u16(status).unwrap();
            let list_use = list_use(status, shared_is_known);
            assert_eq!(list_use, expected, "{status} {shared_is_known}");
        }
    }

    #[test]
    fn the_group_version_is_parsed_from_the_path_of_a_list() {
        let metrics = group_version("/apis/metrics.k8s.io/v1beta1");
        assert_eq!(metrics, Some(("metrics.k8s.io", "v1beta1")));
        assert_eq!(group_version("/api/v1"), None);
    }

    #[tokio::test]
    async fn lists_that_hang_do_not_delay_other_lists_and_are_bounded_by_the_timeouts() {
        use std::cell::Cell;
        const LONG_TIMEOUT: Duration = Duration::from_mins(10);
        const SHORT_TIMEOUT: Duration = Duration::from_millis(10);
        const CONCURRENCY: usize = 20;
        let paths: Vec<_> = (0..100).map(|number| number.to_string()).collect();
        let [running, most] = [Cell::new(0_usize), Cell::new(0)];
        let fetch_list = |path: String| {
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
        for (each, all) in [(SHORT_TIMEOUT, LONG_TIMEOUT), (LONG_TIMEOUT, SHORT_TIMEOUT)] {
            running.set(0);
            let limits = ListLimits {
                each_timeout: each,
                total_timeout: all,
                concurrency: CONCURRENCY,
            };
            let responses = limits.collect(paths.clone(), fetch_list).await;
            assert_eq!(responses.len(), paths.len());
            for (path, response) in &responses {
                let hangs = path.ends_with('0');
                assert!(!hangs || response.is_none(), "{path} {each:?}");
                // Ten lists hang: the other concurrent requests remain available.
                assert!(
                    hangs || response.is_some() || all == SHORT_TIMEOUT,
                    "{path}"
                );
            }
            assert!(most.get() <= CONCURRENCY, "{}", most.get());
        }
    }
}
