//! The resources in the discovery documents of servers and bridges.

use std::collections::BTreeSet;

use serde_json::Value;
use skewbridge_testkit::Response;

use crate::control_plane::ControlPlane;
use crate::endpoint::Via;
use crate::http_client::{Protocol, Request};

/// The media types that client-go requests since 1.30, including that of older servers.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
     application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// A resource in a discovery document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiscoveredResource {
    /// `/apis/apps/v1`
    pub prefix: String,
    /// `deployments`
    pub resource: String,
    /// `apps/v1/Deployment`, as client-go maps it; empty if only subresources are served.
    pub kind: String,
    /// Whether its objects are namespaced.
    pub namespaced: bool,
    /// The verbs of the resource.
    pub verbs: BTreeSet<String>,
    /// The verbs of its subresources.
    pub subresources: Vec<(String, BTreeSet<String>)>,
}

impl ControlPlane {
    /// Requests a document of aggregated discovery, `/api` or `/apis`, as the admin.
    pub async fn aggregated(&self, server: usize, via: Via, path: &str) -> Response {
        let request = Request::get(path).header("Accept", AGGREGATED);
        let mut client = self.http_client(server, via, Protocol::H2);
        let response = client.send(&request).await.expect("a response");
        assert_eq!(response.status, 200, "{server} {path}: {}", response.text());
        response
    }

    /// All resources that a server or its bridge lists.
    pub async fn discovered(&self, server: usize, via: Via) -> Vec<DiscoveredResource> {
        let mut all = Vec::new();
        for path in ["/api", "/apis"] {
            let document = self.aggregated(server, via, path).await;
            let document = serde_json::from_slice(&document.body).expect("a document");
            all.extend(read(path, &document));
        }
        all
    }

    /// The kinds of all these resources, as client-go maps them.
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
                    verbs: verbs(resource),
                    subresources: subresources
                        .map(|it| (text(it, "subresource").to_owned(), verbs(it)))
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

fn verbs(of: &Value) -> BTreeSet<String> {
    let verbs = items(of, "verbs").filter_map(Value::as_str);
    verbs.map(str::to_owned).collect()
}
