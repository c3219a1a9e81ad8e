//! Fetches the fields of a server from its OpenAPI v3 documents.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use skewbridge_discovery::document::Group;
use skewbridge_field_sets::{ServerFields, ServerFieldsBuilder};
use skewbridge_peer_directory::{ServedApis, SharedGroupVersions};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::super::discovery_fetch::{fetch_version, parse_version};
use super::built_in_versions;
use crate::control::internal_client::{InternalClient, InternalRequest, InternalTarget};

/// The timeout of one document.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest document of Kubernetes 1.36 has less than 1 MiB.
const MAX_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;

/// Fetches the documents of all built-in group-versions of a server, one after the other.
pub(super) async fn fetch(
    client: &InternalClient,
    target: InternalTarget<'_>,
    served: &ServedApis,
    shared: &SharedGroupVersions,
) -> Result<ServerFields, String> {
    let now = Instant::now();
    let mut builder = ServerFieldsBuilder::new(&built_in_groups(served, shared, now));
    let names: Vec<_> = built_in_versions(served, shared, now)
        .map(|(group, version)| (group.to_owned(), version.version.clone()))
        .collect();
    for (group, version) in names {
        let path = match group.as_str() {
            "" => format!("/openapi/v3/api/{version}"),
            group => format!("/openapi/v3/apis/{group}/{version}"),
        };
        let Some(document) = fetch_document(client, target, &path).await? else {
            continue;
        };
        // A document takes tens of milliseconds, and this thread has the timers of the bridge.
        let parsed = spawn_blocking(move || {
            let added = builder.add(&group, &version, &document);
            added.map(|()| builder)
        });
        let parsed = parsed.await.map_err(|error| error.to_string())?;
        builder = parsed.map_err(|error| format!("{path}: {error}"))?;
    }
    // If the server was replaced during the fetch, its documents are of two versions.
    let answered = fetch_version(client, target)
        .await
        .and_then(parse_version)?;
    let before = served
        .version
        .map(|version| (version, served.version_suffix.clone()));
    if answered != before {
        return Err("its version has changed meanwhile".to_owned());
    }
    let fields = builder.build().map_err(|error| error.to_string())?;
    if fields.kinds().next().is_none() {
        return Err("its OpenAPI v3 documents contain no kinds".to_owned());
    }
    Ok(fields)
}

/// The groups of a server without custom resources and aggregated APIs.
fn built_in_groups(served: &ServedApis, shared: &SharedGroupVersions, now: Instant) -> Vec<Group> {
    let groups = served.documents.iter().flat_map(|document| &document.items);
    let mut groups: Vec<Group> = groups.cloned().collect();
    for group in &mut groups {
        let name = group.name().to_owned();
        (group.versions).retain(|version| !shared.contains(&name, &version.version, now));
    }
    groups
}

/// One document; `None` if the server has none for this group-version.
async fn fetch_document(
    client: &InternalClient,
    target: InternalTarget<'_>,
    path: &str,
) -> Result<Option<Bytes>, String> {
    let request = InternalRequest::get(path).max_response_bytes(MAX_DOCUMENT_BYTES);
    let response = timeout(DOCUMENT_TIMEOUT, client.request(target, request)).await;
    let response = response
        .map_err(|_| format!("{path}: no answer within {} s", DOCUMENT_TIMEOUT.as_secs()))?
        .map_err(|error| format!("{path}: {error}"))?;
    if response.status == StatusCode::NOT_FOUND {
        return Ok(None);
    }
    Ok(Some(response.ok(path)?.body))
}
