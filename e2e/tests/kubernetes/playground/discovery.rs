//! The discovery documents and lists of servers, byte for byte.
//!
//! Two things are ignored: the address in the response to `/api`, and the hashes of storage
//! versions, because the playground stores all objects in one form.

use std::path::Path;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, VARY};
use serde_json::Value;
use skewbridge_client::{Endpoint, Kubeconfig, Request, Response};

use super::{COMMAND_TIMEOUT, PlaygroundAndReal, minor};

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const V2_BETA1: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const V2_PROTOBUF: &str =
    "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

pub(super) async fn differences(both: &PlaygroundAndReal, number: usize) -> Vec<String> {
    let server = &both.plane.servers[number];
    let name = format!("server-{}", minor(&server.version));
    let config = both.plane.kubeconfig_of(&[("real", server.address)]);
    let real = endpoint(Path::new(&config), "real").await;
    let playground = endpoint(&both.playground.kubeconfig(), &name).await;
    let mut found = Vec::new();
    for (path, accept) in requests(&real).await {
        let request = Request::get(&path).header("accept", accept);
        let expected = compared_lines(&real.send(&request).await.unwrap());
        let got = compared_lines(&playground.send(&request).await.unwrap());
        if expected != got {
            let only = |these: &[String], those: &[String]| {
                let only = these.iter().filter(|it| !those.contains(it));
                only.cloned().collect::<Vec<_>>().join("\n")
            };
            found.push(format!(
                "{name} {path} {accept}\n--- only real\n{}\n--- only playground\n{}",
                only(&expected, &got),
                only(&got, &expected)
            ));
        }
    }
    found
}

async fn endpoint(config: &Path, context: &str) -> Endpoint {
    let config = Kubeconfig::load(Some(config)).unwrap();
    let target = config.target(Some(context)).unwrap();
    Endpoint::prepare(&target, Some(COMMAND_TIMEOUT))
        .await
        .unwrap()
}

/// All discovery requests to a real server.
async fn requests(real: &Endpoint) -> Vec<(String, &'static str)> {
    let mut all: Vec<(String, &'static str)> = Vec::new();
    let both = format!("{V2},{V2_BETA1},{JSON}");
    for path in ["/api", "/apis"] {
        for accept in [V2, V2_BETA1, JSON] {
            all.push((path.to_owned(), accept));
        }
    }
    all.push(("/apis".to_owned(), PROTOBUF));
    all.push(("/apis".to_owned(), V2_PROTOBUF));
    let request = Request::get("/apis").header("accept", &both);
    let document = real.send(&request).await.unwrap();
    let document: Value = serde_json::from_slice(&document.body).unwrap();
    all.push(("/api/v1".to_owned(), JSON));
    all.push(("/api/v2".to_owned(), JSON));
    all.push(("/apis/nope".to_owned(), JSON));
    for group in document["items"].as_array().unwrap() {
        let name = group["metadata"]["name"].as_str().unwrap();
        all.push((format!("/apis/{name}"), JSON));
        for version in group["versions"].as_array().unwrap() {
            let version = version["version"].as_str().unwrap();
            all.push((format!("/apis/{name}/{version}"), JSON));
        }
    }
    all
}

/// The compared lines of a response.
fn compared_lines(response: &Response) -> Vec<String> {
    let mut lines = vec![response.status.to_string()];
    for name in [CONTENT_TYPE, VARY, CACHE_CONTROL, ETAG] {
        for value in response.headers.get_all(&name) {
            lines.push(format!("{name}: {}", value.to_str().unwrap()));
        }
    }
    let body = String::from_utf8_lossy(&response.body);
    let body = without(&body, ",\"storageVersionHash\":\"");
    let body = without(&body, "\"serverAddress\":\"");
    lines.extend(body.split_inclusive("},{").map(str::to_owned));
    lines
}

/// Removes fields with this prefix.
fn without(text: &str, field: &str) -> String {
    let mut parts = text.split(field);
    let mut rest = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        rest.push_str(part.split_once('"').map_or("", |(_, after)| after));
    }
    rest
}
