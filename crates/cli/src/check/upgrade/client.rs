//! Requests to one server, with bounded responses.

use http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use skewbridge_client::{Endpoint, Request, Response};

use crate::skew::refusal;

/// A response of one page of a list, a discovery document or `/metrics`.
const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;

/// The objects of one page of a list.
const PAGE_OBJECTS: usize = 500;

/// The pages that are read of one list: 20,000 objects.
const MAX_PAGES: usize = 40;

/// Only metadata, with `managedFields`.
const METADATA_ONLY: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// A server.
#[derive(Debug, Clone)]
pub(super) struct ApiClient {
    endpoint: Endpoint,
}

/// How much of a list was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Extent {
    /// The objects that were read.
    pub(super) read: u64,
    /// Whether there are more.
    pub(super) has_more: bool,
    /// The number of objects that were not read, if the server says it.
    pub(super) remaining: u64,
}

/// What of each object is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    Metadata,
    Everything,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMetadata,
    // `null` in a list without objects.
    #[serde(default)]
    items: Option<Vec<Value>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    #[serde(default)]
    r#continue: String,
    #[serde(default)]
    remaining_item_count: Option<u64>,
}

impl ApiClient {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    /// Sends a GET; the response may be an error.
    pub(super) async fn get(&self, path: &str, accept: &str) -> Result<Response, String> {
        let request = Request::get(path).header("accept", accept);
        let sent = self.endpoint.send(&request.limit(MAX_RESPONSE_BYTES)).await;
        sent.map_err(|error| error.to_string())
    }

    async fn ok(&self, path: &str, accept: &str) -> Result<Response, String> {
        let response = self.get(path, accept).await?;
        match response.status {
            StatusCode::OK => Ok(response),
            _ => Err(refusal(path, &response)),
        }
    }

    /// The text at a path.
    pub(super) async fn text(&self, path: &str) -> Result<String, String> {
        let response = self.ok(path, "*/*").await?;
        Ok(String::from_utf8_lossy(&response.body).into_owned())
    }

    /// The object at a path.
    pub(super) async fn json<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let response = self.ok(path, "application/json").await?;
        serde_json::from_slice(&response.body).map_err(|error| format!("{path}: {error}"))
    }

    /// Folds the objects at a path, page by page: one page is in memory at a time. `None` if
    /// nothing is served there.
    pub(super) async fn list<T: Default>(
        &self,
        path: &str,
        parts: Parts,
        fold: impl Fn(&mut T, &Value),
    ) -> Result<Option<(T, Extent)>, String> {
        let accept = match parts {
            Parts::Metadata => METADATA_ONLY,
            Parts::Everything => "application/json",
        };
        let mut folded = T::default();
        let mut extent = Extent::default();
        let mut token = String::new();
        for _ in 0..MAX_PAGES {
            let page = match token.as_str() {
                "" => format!("{path}?limit={PAGE_OBJECTS}"),
                token => format!("{path}?limit={PAGE_OBJECTS}&continue={token}"),
            };
            let response = self.get(&page, accept).await?;
            match response.status {
                StatusCode::OK => {}
                StatusCode::NOT_FOUND => return Ok(None),
                _ => return Err(refusal(path, &response)),
            }
            let page: Page = serde_json::from_slice(&response.body)
                .map_err(|error| format!("{path}: {error}"))?;
            for object in page.items.into_iter().flatten() {
                fold(&mut folded, &object);
                extent.read += 1;
            }
            extent.remaining = page.metadata.remaining_item_count.unwrap_or_default();
            // Tokens are URL-safe base64.
            token = page.metadata.r#continue;
            if token.is_empty() {
                return Ok(Some((folded, extent)));
            }
        }
        extent.has_more = true;
        Ok(Some((folded, extent)))
    }
}
