//! The document of a real server that merges by itself, and that of a bridge
//! beside it, of the same two servers.

use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_e2e::{AGGREGATED, Plane, Protocol, Request, Server, Special, Via};
use skewbridge_peer_directory::Identity;
use skewbridge_testkit::{Response, eventually};

/// From the last readiness to when everybody knows everybody.
const FOUND: Duration = Duration::from_secs(30);

/// Merging goes by the order of identities: once one is the first, once the other.
#[tokio::test]
async fn a_bridge_merges_as_a_real_server_does() {
    let ours = || Server::of("1.34.4").peer();
    let real = || Server::of("1.36.4").native_peer();
    let mut first = Vec::new();
    for (servers, (ours, real)) in [([ours(), real()], (0, 1)), ([real(), ours()], (1, 0))] {
        let plane = Plane::start(&servers).await;
        let identity = |server: usize| Identity::of_hostname(&plane.servers[server].host);
        first.push(identity(ours) < identity(real));
        everything_is_known(&plane, ours, real).await;
        compare(&plane, ours, real).await;
        make_a_custom_resource(&plane, ours, real).await;
        compare(&plane, ours, real).await;
    }
    assert_eq!(first, [false, true]);
}

/// Everything that only one of them serves is there at both.
async fn everything_is_known(plane: &Plane, ours: usize, real: usize) {
    eventually("both show everything", FOUND, async || {
        let mut shown = true;
        for server in [ours, real] {
            let document = plane.aggregated(server, Via::Bridge, "/apis").await;
            for special in [Special::POLICIES, Special::ATTRIBUTES_CLASSES] {
                let mut parts = special.path.rsplit('/');
                let (resource, version) = (parts.next().unwrap(), parts.next().unwrap());
                shown &= shows(&document, parts.next().unwrap(), version, resource);
            }
        }
        shown
    })
    .await;
}

/// What is shared by all servers is shown once, by each as its own.
async fn make_a_custom_resource(plane: &Plane, ours: usize, real: usize) {
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
    let mut client = plane.raw(ours, Via::Bridge, Protocol::H2);
    let made = client.send(&request).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.text());
    eventually("both show a custom resource", FOUND, async || {
        let mut shown = true;
        for server in [ours, real] {
            let document = plane.aggregated(server, Via::Bridge, "/apis").await;
            shown &= shows(&document, "example.com", "v1", "things");
        }
        shown
    })
    .await;
}

async fn compare(plane: &Plane, ours: usize, real: usize) {
    let merged = async |server: usize| plane.aggregated(server, Via::Bridge, "/apis").await;
    let (bridged, straight) = (merged(ours).await, merged(real).await);
    let different = differences(&read(&straight), &read(&bridged));
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(bridged.body == straight.body, "not the same bytes");
    for name in ["etag", "content-type", "cache-control", "vary"] {
        assert_eq!(bridged.header(name), straight.header(name), "{name}");
    }
    let etag = bridged.header("etag").unwrap();
    println!("{} bytes, {etag}", bridged.body.len());
    the_name_of_one_counts_at_the_other(plane, ours, real, etag).await;
    let accept = "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;\
         as=APIGroupDiscoveryList";
    let request = Request::get("/apis").header("Accept", accept);
    let mut bridged = plane.raw(ours, Via::Bridge, Protocol::H2);
    let mut straight = plane.raw(real, Via::Bridge, Protocol::H2);
    let bridged = bridged.send(&request).await.unwrap();
    let straight = straight.send(&request).await.unwrap();
    assert_eq!(
        bridged.header("content-type"),
        straight.header("content-type")
    );
    assert!(bridged.body == straight.body, "not the same protobuf");
}

/// A client that has read one need not read the other.
async fn the_name_of_one_counts_at_the_other(plane: &Plane, ours: usize, real: usize, etag: &str) {
    for server in [ours, real] {
        let request = Request::get("/apis").header("Accept", AGGREGATED);
        let request = request.header("If-None-Match", etag);
        let mut client = plane.raw(server, Via::Bridge, Protocol::H2);
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
    let (there, here) = (names(real), names(ours));
    if there != here {
        found.push(format!("{at}: real {there:?}, ours {here:?}"));
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
