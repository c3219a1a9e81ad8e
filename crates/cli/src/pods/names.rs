//! The names of all objects of a kind, for completion.

use serde::Deserialize;
use skewbridge_client::{Endpoint, Request};

use super::object::NamedObject;
use super::reference::Kind;

/// Objects in a response.
const PAGE_SIZE: usize = 500;

/// Maximum number of responses: more names help no user.
const MAX_PAGES: usize = 40;

/// Metadata only, which servers support since 1.15.
const ACCEPT: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(default)]
    items: Vec<NamedObject>,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(rename = "continue", default)]
    next: String,
}

/// The names of the pods or workloads in a namespace.
pub(crate) async fn list_names(
    endpoint: &Endpoint,
    kind: Kind,
    namespace: &str,
) -> Result<Vec<String>, String> {
    list(endpoint, &kind.path(&escaped(namespace))).await
}

/// The names of all namespaces.
pub(crate) async fn list_namespaces(endpoint: &Endpoint) -> Result<Vec<String>, String> {
    list(endpoint, "/api/v1/namespaces").await
}

async fn list(endpoint: &Endpoint, path: &str) -> Result<Vec<String>, String> {
    let (mut names, mut next) = (Vec::new(), String::new());
    for _ in 0..MAX_PAGES {
        let target = if next.is_empty() {
            format!("{path}?limit={PAGE_SIZE}")
        } else {
            format!("{path}?limit={PAGE_SIZE}&continue={}", escaped(&next))
        };
        let request = Request::get(&target).header("accept", ACCEPT);
        let answer = endpoint.send(&request).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status.as_u16() != 200 {
            return Err(format!("{path}: the server answered {}", answer.status));
        }
        let page: Page = serde_json::from_slice(&answer.body)
            .map_err(|error| format!("the server's answer to {path} cannot be read: {error}"))?;
        names.extend(page.items.into_iter().map(|it| it.metadata.name));
        next = page.metadata.next;
        if next.is_empty() {
            break;
        }
    }
    Ok(names)
}

fn escaped(text: &str) -> String {
    skewbridge_client::remote_command::escape_component(text)
}
