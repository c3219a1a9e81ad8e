//! Asks a server what it serves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use skewbridge_api::version::Version;
use skewbridge_discovery::{DiscoveryFormat, Document, Index, LegacyDiscovery, accept};
use skewbridge_peers::{Excluded, Served};
use tokio::time::timeout;

use crate::own::{Answer, Ask, Own, Party};

/// A document of a cluster with very many custom resources has some 2 MiB.
const MAX_DOCUMENT: usize = 32 * 1024 * 1024;

/// Group-versions that are asked for one by one: servers before 1.26 have 30.
const MAX_LISTS: usize = 1_000;

/// How long a list of a custom or aggregated API may take where lists are asked for one by
/// one. The server behind an aggregated API may hang, and all servers share these APIs.
const SHARED_LIST_TIMEOUT: Duration = Duration::from_secs(1);

/// What it serves by itself, whatever its peers do: the aggregated documents
/// where it has them, else one list after the other (before 1.26). Of what is
/// known already only news are asked for. `version` is its answer to [`ask_version`].
/// `shared` are the APIs that all servers share.
pub(crate) async fn discover(
    own: &Own,
    party: Party<'_>,
    version: Answer,
    known: Option<&Served>,
    shared: Option<&Excluded>,
) -> Result<Served, String> {
    let version = version_in(version)?;
    // Its ETags are another server's if it has been replaced.
    let known = known.filter(|known| known.version == version);
    let apis = match ask(own, party, "/apis", known, 1).await? {
        Said::Document(apis) => apis,
        Said::Legacy(apis) => return legacy(own, party, &apis, version, shared).await,
    };
    let api = match ask(own, party, "/api", known, 0).await? {
        Said::Document(api) => api,
        Said::Legacy(_) => return Err("/api: not aggregated, although /apis is".to_owned()),
    };
    let documents = [api.document, apis.document];
    Ok(Served {
        index: index(&documents, known),
        etags: [api.etag, apis.etag],
        documents,
        version,
    })
}

/// Of documents that are both known already there is one.
fn index(documents: &[Arc<Document>; 2], known: Option<&Served>) -> Arc<Index> {
    let is_known = |known: &&Served| {
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
    Legacy(Answer),
}

struct Tagged {
    document: Arc<Document>,
    etag: Option<String>,
}

async fn ask(
    own: &Own,
    party: Party<'_>,
    path: &'static str,
    known: Option<&Served>,
    which: usize,
) -> Result<Said, String> {
    let mut ask = Ask::get(path)
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
    own: &Own,
    party: Party<'_>,
    apis: &Answer,
    version: Option<Version>,
    shared: Option<&Excluded>,
) -> Result<Served, String> {
    let api = own
        .ask(party, Ask::get("/api").limit(MAX_DOCUMENT))
        .await?
        .ok("/api")?;
    let mut legacy =
        LegacyDiscovery::from_groups(&api.body, &apis.body).map_err(|error| error.to_string())?;
    let paths: Vec<_> = legacy.paths().take(MAX_LISTS + 1).collect();
    if paths.len() > MAX_LISTS {
        return Err(format!("it lists more than {MAX_LISTS} group-versions"));
    }
    for path in paths {
        let is_shared = shared
            .zip(group_version(&path))
            .is_some_and(|(shared, it)| {
                let (group, version) = it;
                shared.contains(group, version, Instant::now())
            });
        let asked = own.ask(party, Ask::get(&path).limit(MAX_DOCUMENT));
        let answer = if is_shared {
            match timeout(SHARED_LIST_TIMEOUT, asked).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) | Err(_) => continue,
            }
        } else {
            asked.await?
        };
        match ListUse::of(answer.status, is_shared) {
            ListUse::Served => legacy
                .add(&path, &answer.body)
                .map_err(|error| format!("{path}: {error}"))?,
            ListUse::NotServed => {}
            ListUse::Failure => {
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
    Ok(Served {
        index: index(&documents, None),
        documents,
        etags: [None, None],
        version,
    })
}

/// Group and version of the path of a list; `None` for the core group.
fn group_version(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix("/apis/")?.split_once('/')
}

/// What the answer to the question for one list means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListUse {
    Served,
    /// Registered by another server, or by one that is away: not served by this one.
    NotServed,
    /// It is not known what the server serves.
    Failure,
}

impl ListUse {
    fn of(status: StatusCode, is_shared: bool) -> Self {
        match status {
            StatusCode::OK => Self::Served,
            StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE => Self::NotServed,
            // The server behind an aggregated API fails, and not the one that was asked.
            _ if is_shared => Self::NotServed,
            _ => Self::Failure,
        }
    }
}

/// The first question of a poll. An error is a server that does not answer.
pub(crate) async fn ask_version(own: &Own, party: Party<'_>) -> Result<Answer, String> {
    let ask = Ask::get("/version").limit(MAX_DOCUMENT);
    own.ask(party, ask).await
}

/// Which version it is, where it tells.
fn version_in(answer: Answer) -> Result<Option<Version>, String> {
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
    fn a_failing_list_of_a_shared_group_is_not_served() {
        let table = [
            (200, false, ListUse::Served),
            (200, true, ListUse::Served),
            (404, false, ListUse::NotServed),
            (503, false, ListUse::NotServed),
            (500, false, ListUse::Failure),
            (504, false, ListUse::Failure),
            (500, true, ListUse::NotServed),
            (504, true, ListUse::NotServed),
        ];
        for (status, is_shared, expected) in table {
            let code = StatusCode::from_u16(status).unwrap();
            let found = ListUse::of(code, is_shared);
            assert_eq!(found, expected, "{status}, shared: {is_shared}");
        }
        let metrics = group_version("/apis/metrics.k8s.io/v1beta1");
        assert_eq!(metrics, Some(("metrics.k8s.io", "v1beta1")));
        assert_eq!(group_version("/api/v1"), None);
    }
}
