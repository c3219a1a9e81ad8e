//! Compares the merged discovery document of a real server with that of a bridge, for the
//! same two servers.

use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_e2e::{
    AGGREGATED, ControlPlane, Protocol, Request, ServerSpec, VersionSpecificApi, Via,
};
use skewbridge_peer_directory::Identity;
use skewbridge_testkit::{Response, eventually};

/// From the last readiness to the time when all servers know each other.
const PEER_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// The merge order depends on identities: each of the two servers is first once.
#[tokio::test]
async fn a_bridge_merges_like_a_real_server() {
    let ours = || ServerSpec::of("1.34.4").peer();
    let real = || ServerSpec::of("1.36.4").native_peer();
    let mut first = Vec::new();
    for (servers, (ours, real)) in [([ours(), real()], (0, 1)), ([real(), ours()], (1, 0))] {
        let plane = ControlPlane::start(&servers).await;
        let identity = |server: usize| Identity::of_hostname(&plane.servers[server].host);
        first.push(identity(ours) < identity(real));
        wait_until_all_is_shown(&plane, ours, real).await;
        compare(&plane, ours, real).await;
        create_custom_resource(&plane, ours, real).await;
        compare(&plane, ours, real).await;
    }
    assert_eq!(first, [false, true]);
}

/// Waits until both show everything that only one of them serves.
async fn wait_until_all_is_shown(plane: &ControlPlane, ours: usize, real: usize) {
    eventually("both show everything", PEER_DISCOVERY_TIMEOUT, async || {
        let mut all_shown = true;
        for server in [ours, real] {
            let document = plane.aggregated(server, Via::Bridge, "/apis").await;
            for special in [
                VersionSpecificApi::POLICIES,
                VersionSpecificApi::ATTRIBUTES_CLASSES,
            ] {
                let mut parts = special.path.rsplit('/');
                let (resource, version) = (parts.next().unwrap(), parts.next().unwrap());
                all_shown &= shows(&document, parts.next().unwrap(), version, resource);
            }
        }
        all_shown
    })
    .await;
}

/// A resource that all servers share is shown once, by each as its own.
async fn create_custom_resource(plane: &ControlPlane, ours: usize, real: usize) {
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition", "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"],
                "categories": ["all"]},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let request = Request::new("POST", path).body("application/json", &definition.to_string());
    let mut client = plane.http_client(ours, Via::Bridge, Protocol::H2);
    let made = client.send(&request).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.text());
    let mut missing = Vec::new();
    eventually(
        "both show a custom resource",
        PEER_DISCOVERY_TIMEOUT,
        async || {
            let before = std::mem::take(&mut missing);
            for server in [ours, real] {
                let document = plane.aggregated(server, Via::Bridge, "/apis").await;
                if !shows(&document, "example.com", "v1", "things") {
                    missing.push(plane.servers[server].host.clone());
                }
            }
            if missing != before {
                println!("not shown by {missing:?}");
            }
            missing.is_empty()
        },
    )
    .await;
}

async fn compare(plane: &ControlPlane, ours: usize, real: usize) {
    let merged = async |server: usize| plane.aggregated(server, Via::Bridge, "/apis").await;
    let (bridged, direct) = (merged(ours).await, merged(real).await);
    let different = differences(&read(&direct), &read(&bridged));
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(bridged.body == direct.body, "not the same bytes");
    for name in ["etag", "content-type", "cache-control", "vary"] {
        assert_eq!(bridged.header(name), direct.header(name), "{name}");
    }
    let etag = bridged.header("etag").unwrap();
    println!("{} bytes, {etag}", bridged.body.len());
    the_etag_of_one_is_valid_at_the_other(plane, ours, real, etag).await;
    let accept = "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;\
         as=APIGroupDiscoveryList";
    let request = Request::get("/apis").header("Accept", accept);
    let mut bridged = plane.http_client(ours, Via::Bridge, Protocol::H2);
    let mut direct = plane.http_client(real, Via::Bridge, Protocol::H2);
    let bridged = bridged.send(&request).await.unwrap();
    let direct = direct.send(&request).await.unwrap();
    assert_eq!(
        bridged.header("content-type"),
        direct.header("content-type")
    );
    assert!(bridged.body == direct.body, "not the same protobuf");
}

/// A client that has the document of one gets 304 from the other.
async fn the_etag_of_one_is_valid_at_the_other(
    plane: &ControlPlane,
    ours: usize,
    real: usize,
    etag: &str,
) {
    for server in [ours, real] {
        let request = Request::get("/apis").header("Accept", AGGREGATED);
        let request = request.header("If-None-Match", etag);
        let mut client = plane.http_client(server, Via::Bridge, Protocol::H2);
        assert_eq!(client.send(&request).await.unwrap().status, 304);
    }
}

fn read(document: &Response) -> Value {
    serde_json::from_slice(&document.body).unwrap()
}

fn shows(document: &Response, group: &str, version: &str, resource: &str) -> bool {
    let document = read(document);
    let group = named(&document["items"], &["metadata", "name"], group);
    let version = group.and_then(|it| named(&it["versions"], &["version"], version));
    let resource = version.and_then(|it| named(&it["resources"], &["resource"], resource));
    resource.is_some()
}

fn named<'a>(list: &'a Value, path: &[&str], name: &str) -> Option<&'a Value> {
    let mut items = list.as_array()?.iter();
    items.find(|item| path.iter().fold(*item, |at, key| &at[key]) == name)
}

/// Item by item, in order: groups, versions, resources, and each of their fields.
fn differences(real: &Value, ours: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare_lists(
        "",
        &real["items"],
        &ours["items"],
        &["metadata", "name"],
        &mut found,
        &mut |group, real, ours, found| {
            let name = &["version"][..];
            compare_fields(group, real, ours, "versions", found);
            compare_lists(
                group,
                &real["versions"],
                &ours["versions"],
                name,
                found,
                &mut |version, real, ours, found| {
                    compare_fields(version, real, ours, "resources", found);
                    compare_lists(
                        version,
                        &real["resources"],
                        &ours["resources"],
                        &["resource"],
                        found,
                        &mut |resource, real, ours, found| {
                            compare_fields(resource, real, ours, "", found);
                        },
                    );
                },
            );
        },
    );
    found
}

type Compare<'a> = &'a mut dyn FnMut(&str, &Value, &Value, &mut Vec<String>);

fn compare_lists(
    at: &str,
    real: &Value,
    ours: &Value,
    name: &[&str],
    found: &mut Vec<String>,
    each: Compare<'_>,
) {
    let names = |list: &Value| -> Vec<String> {
        let items = list.as_array().into_iter().flatten();
        let names = items.map(|item| name.iter().fold(item, |at, key| &at[key]).to_string());
        names.collect()
    };
    let (real_names, our_names) = (names(real), names(ours));
    if real_names != our_names {
        found.push(format!("{at}: real {real_names:?}, ours {our_names:?}"));
    }
    for item in real.as_array().into_iter().flatten() {
        let item_name = name.iter().fold(item, |at, key| &at[key]);
        let item_name = item_name.as_str().unwrap_or_default();
        if let Some(ours) = named(ours, name, item_name) {
            each(&format!("{at}/{item_name}"), item, ours, found);
        }
    }
}

fn compare_fields(at: &str, real: &Value, ours: &Value, but: &str, found: &mut Vec<String>) {
    let keys = |of: &Value| -> Vec<String> {
        let fields = of.as_object().into_iter().flatten();
        fields.map(|(key, _)| key.clone()).collect()
    };
    let mut all = keys(real);
    all.extend(keys(ours));
    all.sort();
    all.dedup();
    for key in all.iter().filter(|key| *key != but) {
        if real[key] != ours[key] {
            found.push(format!(
                "{at} {key}: real {}, ours {}",
                real[key], ours[key]
            ));
        }
    }
}
