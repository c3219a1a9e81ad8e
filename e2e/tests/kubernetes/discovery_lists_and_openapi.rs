//! The parts of merged discovery that KEP-4020 does not specify, through any bridge: lists for
//! older clients, the core group, OpenAPI.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use skewbridge_e2e::{
    ControlPlane, Protocol, Request, ServerSpec, User, VersionSpecificApi, Via, control_planes,
    newest, oldest, versions,
};
use skewbridge_testkit::eventually;

/// From the last readiness to the time when all servers know each other.
const PEER_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
     application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

#[tokio::test]
async fn older_lists_and_openapi_contain_the_whole_cluster() {
    for versions in control_planes() {
        if newest(&versions) == oldest(&versions) {
            continue;
        }
        println!("plane {versions:?}");
        let servers = versions
            .iter()
            .map(|version| ServerSpec::of(version).peer());
        let plane = ControlPlane::start(&servers.collect::<Vec<_>>()).await;
        let all = 0..versions.len();
        eventually(
            "all bridges show the same",
            PEER_DISCOVERY_TIMEOUT,
            async || {
                let mut documents = BTreeSet::new();
                for server in all.clone() {
                    documents.insert(get(&plane, server, "/apis", AGGREGATED).await.to_string());
                }
                documents.len() == 1
            },
        )
        .await;
        let expected = discovery_documents(&plane, 0).await;
        for server in all.clone() {
            assert_eq!(
                discovery_documents(&plane, server).await,
                expected,
                "{server}"
            );
            lists_match_the_documents(&plane, server, &expected).await;
            every_openapi_document_is_available(&plane, server, &expected).await;
        }
        for version_specific_apis in version_specific_apis(&plane).await {
            for server in all.clone() {
                the_api_is_explained(&plane, server, &version_specific_apis).await;
                the_api_is_validated(&plane, server, &version_specific_apis).await;
            }
        }
    }
}

async fn get(plane: &ControlPlane, server: usize, path: &str, accept: &str) -> Value {
    let request = Request::get(path).header("Accept", accept);
    let mut client = plane.http_client(server, Via::Bridge, Protocol::H2);
    let answer = client.send(&request).await.unwrap();
    assert_eq!(answer.status, 200, "{server} {path}: {}", answer.text());
    serde_json::from_slice(&answer.body).unwrap()
}

/// The version-specific APIs that only some servers serve.
async fn version_specific_apis(plane: &ControlPlane) -> Vec<VersionSpecificApi> {
    let mut version_specific_apis = Vec::new();
    for it in VersionSpecificApi::ALL {
        let mut statuses = BTreeSet::new();
        for server in 0..plane.servers.len() {
            statuses.insert(plane.status(server, Via::Server, it.path).await);
        }
        if statuses.len() > 1 {
            version_specific_apis.push(it);
        }
    }
    assert!(
        !version_specific_apis.is_empty(),
        "the versions serve the same APIs"
    );
    version_specific_apis
}

/// By group-version, the names of resources and subresources with their verbs.
type ClusterResources = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn verbs(list: &Value) -> BTreeSet<String> {
    let verbs = list.as_array().into_iter().flatten();
    verbs.map(|it| it.as_str().unwrap().to_owned()).collect()
}

/// From aggregated discovery.
async fn discovery_documents(plane: &ControlPlane, server: usize) -> ClusterResources {
    let mut expected = ClusterResources::new();
    for (path, prefix) in [("/api", "/api/"), ("/apis", "/apis/")] {
        let document = get(plane, server, path, AGGREGATED).await;
        for group in document["items"].as_array().unwrap() {
            let name = group["metadata"]["name"].as_str().unwrap_or_default();
            for version in group["versions"].as_array().unwrap() {
                let version_name = version["version"].as_str().unwrap();
                let path = match name {
                    "" => format!("{prefix}{version_name}"),
                    _ => format!("{prefix}{name}/{version_name}"),
                };
                let resources = expected.entry(path).or_default();
                for resource in version["resources"].as_array().unwrap() {
                    let name = resource["resource"].as_str().unwrap().to_owned();
                    let subresources = resource["subresources"].as_array();
                    for subresource in subresources.into_iter().flatten() {
                        let sub = subresource["subresource"].as_str().unwrap();
                        resources.insert(format!("{name}/{sub}"), verbs(&subresource["verbs"]));
                    }
                    if !resource["verbs"].is_null() {
                        resources.insert(name, verbs(&resource["verbs"]));
                    }
                }
            }
        }
    }
    expected
}

/// The lists for clients without aggregated discovery.
async fn lists_match_the_documents(
    plane: &ControlPlane,
    server: usize,
    expected: &ClusterResources,
) {
    let groups = get(plane, server, "/apis", "application/json").await;
    let mut listed = ClusterResources::new();
    let mut paths = vec!["/api/v1".to_owned()];
    for group in groups["groups"].as_array().unwrap() {
        let name = group["name"].as_str().unwrap();
        let alone = get(plane, server, &format!("/apis/{name}"), "application/json").await;
        assert_eq!(alone["versions"], group["versions"], "{server} {name}");
        for version in group["versions"].as_array().unwrap() {
            let version = version["groupVersion"].as_str().unwrap();
            paths.push(format!("/apis/{version}"));
        }
    }
    for path in paths {
        let list = get(plane, server, &path, "application/json").await;
        let resources = list["resources"].as_array().unwrap().iter();
        let resources = resources.map(|resource| {
            let name = resource["name"].as_str().unwrap().to_owned();
            (name, verbs(&resource["verbs"]))
        });
        listed.insert(path, resources.collect());
    }
    assert_eq!(listed, *expected, "{server}");

    // As controllers request it.
    let protobuf = "application/vnd.kubernetes.protobuf";
    for path in expected.keys().map(String::as_str).chain(["/apis"]) {
        let request = Request::get(path).header("Accept", protobuf);
        let mut client = plane.http_client(server, Via::Bridge, Protocol::H2);
        let answer = client.send(&request).await.unwrap();
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("content-type"), Some(protobuf));
        assert!(answer.body.starts_with(b"k8s\0"), "{path}");
        for name in expected
            .get(path)
            .into_iter()
            .flatten()
            .map(|(name, _)| name)
        {
            assert!(contains_name(&answer.body, name), "{path}: {name}");
        }
    }
}

/// Every listed document is available under its hash, and together they have a path for
/// every resource.
async fn every_openapi_document_is_available(
    plane: &ControlPlane,
    server: usize,
    expected: &ClusterResources,
) {
    let mut client = plane.http_client(server, Via::Bridge, Protocol::H2);
    let index = get(plane, server, "/openapi/v3", "*/*").await;
    let index = index["paths"].as_object().unwrap();
    for path in expected.keys() {
        let key = path.strip_prefix('/').unwrap();
        let url = index[key]["serverRelativeURL"].as_str().unwrap();
        let answer = client.send(&Request::get(url)).await.unwrap();
        assert_eq!(answer.status, 200, "{server} {url}");
        assert_eq!(answer.header("cache-control"), Some("public, immutable"));
        let etag = answer.header("etag").unwrap().trim_matches('"').to_owned();
        assert!(url.ends_with(&format!("?hash={etag}")), "{url} {etag}");
        let document: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_has_resources(&document, path, &expected[path]);
        // A client with the same document gets 304; a client with an older one is redirected.
        let known = Request::get(url).header("If-None-Match", &format!("\"{etag}\""));
        assert_eq!(client.send(&known).await.unwrap().status, 304);
        let older = Request::get(&format!("/openapi/v3{path}?hash=00"));
        let moved = client.send(&older).await.unwrap();
        assert_eq!(moved.status, 301, "{path}");
        assert_eq!(moved.header("location"), Some(url));
    }
    let everything = get(plane, server, "/openapi/v2", "application/json").await;
    for (path, resources) in expected {
        assert_has_resources(&everything, path, resources);
    }
    let protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let request = Request::get("/openapi/v2").header("Accept", protobuf);
    let answer = client.send(&request).await.unwrap();
    assert_eq!(answer.status, 200);
    for (path, resources) in expected {
        for (name, verbs) in resources.iter().filter(|(name, _)| !name.contains('/')) {
            let path = format!("{path}/{name}");
            assert!(
                !verbs.contains("list") || contains_name(&answer.body, &path),
                "{path}"
            );
        }
    }
}

/// Whether a message contains a name.
fn contains_name(message: &[u8], name: &str) -> bool {
    message.windows(name.len()).any(|it| it == name.as_bytes())
}

fn assert_has_resources(
    document: &Value,
    path: &str,
    resources: &BTreeMap<String, BTreeSet<String>>,
) {
    let paths = document["paths"].as_object().unwrap();
    for (name, verbs) in resources.iter().filter(|(name, _)| !name.contains('/')) {
        if !verbs.contains("list") {
            continue;
        }
        let cluster = format!("{path}/{name}");
        assert!(paths.contains_key(&cluster), "{cluster}");
    }
}

/// `kubectl explain`, of every available version, from both kinds of documents.
async fn the_api_is_explained(
    plane: &ControlPlane,
    server: usize,
    version_specific_apis: &VersionSpecificApi,
) {
    let mut parts = version_specific_apis.kubectl.splitn(3, '.');
    let (resource, version) = (parts.next().unwrap(), parts.next().unwrap());
    let api_version = format!("--api-version={}/{version}", parts.next().unwrap());
    for kubectl in versions() {
        let mut outputs = vec!["plaintext"];
        if kubectl.starts_with("1.2") {
            outputs.push("plaintext-openapiv2");
        }
        for output in outputs {
            let output = format!("--output={output}");
            let arguments = ["explain", resource, &api_version, &output];
            let mut command = plane.kubectl_of(&kubectl, server, Via::Bridge, User::Admin);
            let explained = command.args(arguments).output().await.unwrap();
            let text = String::from_utf8_lossy(&explained.stdout);
            let problem = String::from_utf8_lossy(&explained.stderr);
            assert!(
                explained.status.success(),
                "{kubectl} {arguments:?}: {problem}"
            );
            assert!(text.contains("FIELDS:"), "{kubectl} {arguments:?}: {text}");
        }
    }
}

/// The server accepts objects that match OpenAPI: strictly validated, as a dry run.
async fn the_api_is_validated(
    plane: &ControlPlane,
    server: usize,
    version_specific_apis: &VersionSpecificApi,
) {
    let good = plane.file("good.json", &version_specific_apis.object("dry"));
    for kubectl in versions() {
        let run = async |file: &str, validate: &str| {
            let arguments = ["create", "--dry-run=server", validate, "-f", file];
            let mut command = plane.kubectl_of(&kubectl, server, Via::Bridge, User::Admin);
            command.args(arguments).output().await.unwrap()
        };
        let created = run(&good, "--validate=strict").await;
        let problem = String::from_utf8_lossy(&created.stderr);
        assert!(created.status.success(), "{kubectl} {server}: {problem}");
        let wrong = version_specific_apis
            .object("dry")
            .replace("\"metadata\":", "\"wrongField\":1,\"metadata\":");
        let wrong = plane.file("wrong.json", &wrong);
        let refused = run(&wrong, "--validate=strict").await;
        let problem = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success(), "{kubectl} {server}");
        assert!(
            problem.contains("wrongField"),
            "{kubectl} {server}: {problem}"
        );
    }
}
