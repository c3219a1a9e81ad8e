//! What servers and bridges say there is.

use std::collections::BTreeSet;

use serde_json::Value;
use skewbridge_testkit::Response;

use crate::control_plane::ControlPlane;
use crate::endpoint::Via;
use crate::http_client::{Protocol, Request};

/// What client-go asks for since 1.30, and what it takes of older servers.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
     application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// A resource as a document of discovery has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiscoveredResource {
    /// `/apis/apps/v1`
    pub prefix: String,
    /// `deployments`
    pub resource: String,
    /// `apps/v1/Deployment`, as client-go maps it; empty where only subresources
    /// are served.
    pub kind: String,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// What can be done with it.
    pub verbs: BTreeSet<String>,
    /// And with what is below it.
    pub subresources: Vec<(String, BTreeSet<String>)>,
}

impl ControlPlane {
    /// A document of aggregated discovery, `/api` or `/apis`, by the admin.
    pub async fn aggregated(&self, server: usize, via: Via, path: &str) -> Response {
        let request = Request::get(path).header("Accept", AGGREGATED);
        let mut client = self.raw(server, via, Protocol::H2);
        let answer = client.send(&request).await.expect("an answer");
        assert_eq!(answer.status, 200, "{server} {path}: {}", answer.text());
        answer
    }

    /// All that a server, or its bridge, says there is.
    pub async fn discovered(&self, server: usize, via: Via) -> Vec<DiscoveredResource> {
        let mut all = Vec::new();
        for path in ["/api", "/apis"] {
            let document = self.aggregated(server, via, path).await;
            let document = serde_json::from_slice(&document.body).expect("a document");
            all.extend(read(path, &document));
        }
        all
    }

    /// The kinds of all that, as client-go maps them.
    pub async fn kinds(&self, server: usize, via: Via) -> BTreeSet<String> {
        let all = self.discovered(server, via).await.into_iter();
        let kinds = all.map(|it| it.kind).filter(|kind| !kind.is_empty());
        kinds.collect()
    }
}

fn read(path: &str, document: &Value) -> Vec<DiscoveredResource> {
    let mut all = Vec::new();
    for group in items(document, "items") {
        let name = text(&group["metadata"], "name");
        for version in items(group, "versions") {
            let version_name = text(version, "version");
            let prefix = match name {
                "" => format!("{path}/{version_name}"),
                _ => format!("{path}/{name}/{version_name}"),
            };
            for resource in items(version, "resources") {
                let kind = match text(&resource["responseKind"], "kind") {
                    "" => String::new(),
                    kind => format!("{name}/{version_name}/{kind}"),
                };
                let subresources = items(resource, "subresources");
                all.push(DiscoveredResource {
                    prefix: prefix.clone(),
                    resource: text(resource, "resource").to_owned(),
                    kind,
                    namespaced: text(resource, "scope") == "Namespaced",
                    verbs: words(resource),
                    subresources: subresources
                        .map(|it| (text(it, "subresource").to_owned(), words(it)))
                        .collect(),
                });
            }
        }
    }
    all
}

fn items<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    of[name].as_array().into_iter().flatten()
}

fn text<'a>(of: &'a Value, name: &str) -> &'a str {
    of[name].as_str().unwrap_or_default()
}

fn words(of: &Value) -> BTreeSet<String> {
    let verbs = items(of, "verbs").filter_map(Value::as_str);
    verbs.map(str::to_owned).collect()
}
