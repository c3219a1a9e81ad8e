//! The data of released versions (`crates/released-apis/data`) are what real servers serve.
//! `cargo xtask api-data` runs this suite with [`OUTPUT_DIRECTORY`], and it writes the data.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use skewbridge_discovery::Document;
use skewbridge_discovery::document::Group;
use skewbridge_e2e::{ControlPlane, Protocol, Request, ServerSpec, Via, is_since, versions};
use skewbridge_field_sets::ServerFieldsBuilder;
use skewbridge_released_apis::{Minor, Release, release_of};

/// Environment variable with the directory to write the data of the servers to.
const OUTPUT_DIRECTORY: &str = "SKEWBRIDGE_API_DATA";

/// The servers of [`servers`].
const DEFAULT: usize = 0;
const ALL: usize = 1;

/// A server with the default APIs, and one with all that a flag enables.
fn servers(version: &str) -> [ServerSpec; 2] {
    let servers = ["api/legacy=true", "api/all=true"].map(|apis| {
        ServerSpec::of(version)
            .runtime_config(apis)
            .without_bridge()
    });
    if is_since(version, 27) {
        return servers;
    }
    // Alpha in 1.26.
    servers.map(|server| server.gate("AggregatedDiscoveryEndpoint", true))
}

/// 1.26 publishes no OpenAPI v3 of this group.
const AGGREGATOR_GROUP: &str = "apiregistration.k8s.io";

async fn groups(plane: &ControlPlane, server: usize) -> Vec<Group> {
    let mut groups = Vec::new();
    for path in ["/api", "/apis"] {
        let response = plane.aggregated(server, Via::Server, path).await;
        groups.extend(Document::parse(&response.body).expect(path).items);
    }
    groups
}

async fn release(plane: &ControlPlane, version: &str) -> Release {
    let all = groups(plane, ALL).await;
    let mut fields = ServerFieldsBuilder::new(&all);
    let mut client = plane.http_client(ALL, Via::Server, Protocol::H2);
    let index = client.send(&Request::get("/openapi/v3")).await.unwrap();
    let index: Value = serde_json::from_slice(&index.body).unwrap();
    let paths: BTreeSet<_> = index["paths"].as_object().unwrap().keys().collect();
    for group in &all {
        for served in &group.versions {
            let path = match group.name() {
                "" => format!("api/{}", served.version),
                name => format!("apis/{name}/{}", served.version),
            };
            if !is_since(version, 27) && group.name() == AGGREGATOR_GROUP {
                continue;
            }
            assert!(paths.contains(&path), "{path} is not in /openapi/v3");
            let request = Request::get(&format!("/openapi/v3/{path}"));
            let document = client.send(&request).await.unwrap();
            assert_eq!(document.status, 200, "{path}");
            let added = fields.add(group.name(), &served.version, &document.body);
            added.expect(&path);
        }
    }
    let default = groups(plane, DEFAULT).await;
    let version = version.parse().expect("a version");
    Release::new(version, &default, &all, fields.build().expect("fields"))
}

fn written(directory: &Path, release: &Release) -> PathBuf {
    let file = directory.join(format!("{}.json", Minor::from(release.version)));
    std::fs::write(&file, release.to_json().unwrap()).unwrap();
    file
}

#[tokio::test]
async fn the_data_of_released_versions_are_what_servers_serve() {
    let directory = std::env::var_os(OUTPUT_DIRECTORY).map(PathBuf::from);
    for version in versions() {
        let plane = ControlPlane::start(&servers(&version)).await;
        let served = release(&plane, &version).await;
        if let Some(directory) = &directory {
            println!("{}", written(directory, &served).display());
            continue;
        }
        let minor = Minor::from(served.version);
        let known = release_of(minor).unwrap();
        let known = known.unwrap_or_else(|| panic!("no data of {minor}"));
        // A patch release adds no API and no field.
        let apis = |release: &Release| {
            let apis = release
                .apis()
                .map(|(name, api)| format!("{name:?} {api:?}"));
            apis.collect::<BTreeSet<_>>()
        };
        assert_eq!(apis(&served), apis(&known), "{version}");
        assert_eq!(served.fields(), known.fields(), "{version}");
    }
}
