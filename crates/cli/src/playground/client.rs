//! The client of the tour: sends kubectl's requests, by the contexts of the kubeconfig.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http::StatusCode;
use serde_json::Value;
use skewbridge_client::{Connection, Endpoint, Kubeconfig, Request, Response};
use skewbridge_discovery::{Document, accept};

/// Time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// All contexts.
#[derive(Debug)]
pub(super) struct Contexts(Kubeconfig);

/// The status and message of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResponseSummary {
    pub(super) status: StatusCode,
    /// The name of an object, or the message of an error.
    pub(super) summary: String,
}

impl Contexts {
    /// Reads the file.
    pub(super) fn read(kubeconfig: &Path) -> Result<Self> {
        Ok(Self(Kubeconfig::load(Some(kubeconfig))?))
    }

    /// The endpoint of a context.
    pub(super) async fn endpoint(&self, context: &str) -> Result<Endpoint> {
        let target = self.0.target(Some(context))?;
        Ok(Endpoint::prepare(&target, Some(REQUEST_TIMEOUT)).await?)
    }

    /// A connection for a context.
    async fn connect(&self, context: &str) -> Result<Connection> {
        Ok(self.endpoint(context).await?.connect().await?)
    }

    async fn send(&self, context: &str, request: &Request) -> Result<Response> {
        Ok(self.connect(context).await?.send(request).await?)
    }

    /// Sends a GET.
    pub(super) async fn get(&self, context: &str, path: &str) -> Result<ResponseSummary> {
        let request = Request::get(path).header("accept", "application/json");
        let answer = self.send(context, &request).await?;
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let summary = match (body["kind"].as_str(), body["metadata"]["name"].as_str()) {
            (Some("Status"), _) => body["message"].as_str().unwrap_or_default().to_owned(),
            (Some(kind), Some(name)) => format!("{kind} {name}"),
            _ => String::from_utf8_lossy(&answer.body).trim().to_owned(),
        };
        Ok(ResponseSummary {
            status: answer.status,
            summary,
        })
    }

    /// The number of resources in the discovery of a context, as `kubectl api-resources` counts
    /// them.
    pub(super) async fn resources(&self, context: &str) -> Result<usize> {
        let mut found = BTreeSet::new();
        let mut connection = self.connect(context).await?;
        for path in ["/api", "/apis"] {
            let request = Request::get(path);
            let accepted = format!("{},{}", accept::V2, accept::V2_BETA1);
            let answer = connection
                .send(&request.header("accept", &accepted))
                .await?;
            if answer.status != StatusCode::OK {
                bail!("{path} of {context}: {}", answer.status);
            }
            let document = Document::parse(&answer.body);
            let document = document.with_context(|| format!("{path} of {context}"))?;
            for group in document.items {
                for version in group.versions {
                    let resources = version.resources.into_iter();
                    let names = resources.map(|it| (group.metadata.name.clone(), it.resource));
                    found.extend(names);
                }
            }
        }
        Ok(found.len())
    }
}
