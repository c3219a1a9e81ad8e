//! Fetches the OpenAPI v3 documents of one server.

use http::StatusCode;
use skewbridge_client::Request;
use skewbridge_discovery::document::{Freshness, Group, Version};
use skewbridge_discovery::{accept, servers};
use skewbridge_field_sets::error::MAX_DOCUMENT_BYTES;
use skewbridge_field_sets::{ServerFields, ServerFieldsBuilder};
use skewbridge_openapi::{GroupVersion, Index};

use crate::skew::fetch::{ServerClient, refusal};

const INDEX: &str = "/openapi/v3";

/// Maximum number of documents that are fetched: Kubernetes 1.36 has 50 for built-in groups.
const MAX_DOCUMENTS: usize = 1_000;

/// Whose OpenAPI is requested.
pub(super) enum Source {
    /// That of the server that is asked, without a bridge.
    Own,
    /// That of the server with this identity, from any bridge of the cluster.
    Of(String),
}

/// The fields that a server with this discovery has.
pub(super) async fn fields(
    client: &mut ServerClient,
    groups: &[Group],
    source: &Source,
) -> Result<ServerFields, String> {
    let index = document(client, INDEX, source).await?;
    let index = index.ok_or("the server has no OpenAPI v3 (before Kubernetes 1.24)")?;
    let index = Index::parse(&index).map_err(|error| format!("{INDEX}: {error}"))?;
    let mut builder = ServerFieldsBuilder::new(groups);
    let documents = index
        .iter()
        .filter_map(|(key, _)| GroupVersion::from_key(key));
    let documents = documents.filter(|it| may_be_built_in(it.group));
    let documents = documents.filter(|it| is_served(groups, *it));
    for (number, group_version) in documents.enumerate() {
        if number >= MAX_DOCUMENTS {
            return Err(format!("{INDEX}: more than {MAX_DOCUMENTS} documents"));
        }
        let path = format!("{INDEX}/{group_version}");
        // The version may have been removed since discovery was read.
        let Some(document) = document(client, &path, source).await? else {
            continue;
        };
        builder
            .add(group_version.group, group_version.version, &document)
            .map_err(|error| format!("{path}: {error}"))?;
    }
    builder.build().map_err(|error| error.to_string())
}

/// Documents of other groups have custom resources, or belong to aggregated APIs. They need not be
/// fetched: clusters have hundreds.
fn may_be_built_in(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io")
}

/// Whether the server serves the version itself. The server behind a stale one does not answer.
fn is_served(groups: &[Group], group_version: GroupVersion<'_>) -> bool {
    let is_current =
        |it: &Version| it.version == group_version.version && it.freshness != Freshness::Stale;
    let mut groups = groups.iter();
    groups.any(|it| it.name() == group_version.group && it.versions.iter().any(is_current))
}

/// A document; `None` if the server does not have it.
async fn document(
    client: &mut ServerClient,
    path: &str,
    source: &Source,
) -> Result<Option<Vec<u8>>, String> {
    let accept = match source {
        // kube-apiserver ignores the profile.
        Source::Own => accept::LEGACY_NOPEER.to_owned(),
        Source::Of(identity) => servers::openapi_accept(identity),
    };
    let request = Request::get(path).header("accept", &accept);
    let answer = client.send(&request.limit(MAX_DOCUMENT_BYTES)).await?;
    match (answer.status, source) {
        (StatusCode::OK, Source::Of(_))
            if !servers::is_openapi_content_type(answer.content_type()) =>
        {
            Err(
                "the bridge is too old to pass OpenAPI of other servers; use several --context, \
                 or several --server"
                    .to_owned(),
            )
        }
        (StatusCode::OK, _) => Ok(Some(answer.body.into())),
        (StatusCode::NOT_FOUND, _) => Ok(None),
        _ => Err(refusal(path, &answer)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_of_custom_resources_are_not_fetched() {
        for (group, expected) in [
            ("", true),
            ("apps", true),
            ("storage.k8s.io", true),
            ("gateway.networking.k8s.io", true),
            ("example.com", false),
            ("cluster.x-k8s.io", false),
            ("k8s.io.example.com", false),
        ] {
            assert_eq!(may_be_built_in(group), expected, "{group}");
        }
    }
}
