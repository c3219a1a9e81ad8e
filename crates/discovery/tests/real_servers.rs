//! Discovery of real servers of several versions.

#![allow(clippy::unwrap_used)] // test helpers panic on failure

use serde_json::{Value, json};
use skewbridge_discovery::diff::Missing;
use skewbridge_discovery::document::{Group, Schema, Scope, Version};
use skewbridge_discovery::{Document, Index, Layout, LegacyDiscovery, Object as _, Skew, diff};
use skewbridge_k8s_api::content_negotiation::Format;

struct Server {
    name: &'static str,
    schema: Schema,
    api: &'static [u8],
    apis: &'static [u8],
}

macro_rules! server {
    ($name:literal, $schema:expr) => {
        Server {
            name: $name,
            schema: $schema,
            api: include_bytes!(concat!("data/", $name, "-api.json")),
            apis: include_bytes!(concat!("data/", $name, "-apis.json")),
        }
    };
}

const SERVERS: [Server; 5] = [
    server!("1.28.15-all", Schema::V2Beta1),
    server!("1.29.15-all", Schema::V2Beta1),
    server!("1.34.4-all", Schema::V2),
    server!("1.36.4-all", Schema::V2),
    server!("1.36.4-default", Schema::V2),
];

impl Server {
    fn documents(&self) -> [Document; 2] {
        [self.api, self.apis].map(|bytes| Document::parse(bytes).unwrap())
    }
}

fn index(name: &str) -> Index {
    let server = SERVERS.iter().find(|it| it.name == name).unwrap();
    let [api, apis] = server.documents();
    Index::new(&[&api, &apis])
}

#[test]
fn a_document_serialises_to_the_bytes_of_the_server() {
    for server in SERVERS {
        for bytes in [server.api, server.apis] {
            let document = Document::parse(bytes).unwrap();
            assert_eq!(document.schema, server.schema, "{}", server.name);
            assert!(!document.items.is_empty(), "{}", server.name);
            let written = document.write(Format::Json, Layout::Compact);
            let written = written.strip_suffix(b"\n").unwrap();
            assert_eq!(
                serde_json::from_slice::<Value>(written).unwrap(),
                serde_json::from_slice::<Value>(bytes).unwrap(),
                "{}",
                server.name
            );
            assert!(written == bytes, "{}: other bytes", server.name);
        }
    }
}

#[test]
fn resources_that_only_one_of_two_versions_serves_are_reported() {
    let rows: [(&str, &str, &[&str]); 5] = [
        (
            "1.34.4-all",
            "1.36.4-all",
            &["storage.k8s.io/v1alpha1 volumeattributesclasses"],
        ),
        (
            "1.36.4-all",
            "1.34.4-all",
            &[
                "admissionregistration.k8s.io/v1 mutatingadmissionpolicies",
                "admissionregistration.k8s.io/v1 mutatingadmissionpolicybindings",
                "resource.k8s.io/v1alpha3 devicetaintrules/status",
                "resource.k8s.io/v1alpha3 resourcepoolstatusrequests",
                "resource.k8s.io/v1alpha3 resourcepoolstatusrequests/status",
                "resource.k8s.io/v1beta2 devicetaintrules",
                "resource.k8s.io/v1beta2 devicetaintrules/status",
            ],
        ),
        (
            "1.28.15-all",
            "1.29.15-all",
            &[
                "flowcontrol.apiserver.k8s.io/v1beta2 flowschemas",
                "flowcontrol.apiserver.k8s.io/v1beta2 flowschemas/status",
                "flowcontrol.apiserver.k8s.io/v1beta2 prioritylevelconfigurations",
                "flowcontrol.apiserver.k8s.io/v1beta2 prioritylevelconfigurations/status",
                "networking.k8s.io/v1alpha1 clustercidrs",
            ],
        ),
        (
            "1.29.15-all",
            "1.28.15-all",
            &[
                "flowcontrol.apiserver.k8s.io/v1 flowschemas",
                "flowcontrol.apiserver.k8s.io/v1 flowschemas/status",
                "flowcontrol.apiserver.k8s.io/v1 prioritylevelconfigurations",
                "flowcontrol.apiserver.k8s.io/v1 prioritylevelconfigurations/status",
                "networking.k8s.io/v1alpha1 servicecidrs",
                "networking.k8s.io/v1alpha1 servicecidrs/status",
                "storage.k8s.io/v1alpha1 volumeattributesclasses",
            ],
        ),
        ("1.36.4-default", "1.36.4-all", &[]),
    ];
    for (one, other, expected) in rows {
        assert_eq!(
            index(one).difference(&[&index(other)]),
            expected,
            "{one} beside {other}"
        );
    }
}

fn compare(names: &[&str]) -> Skew {
    let of = |name: &&str| SERVERS.iter().find(|it| it.name == *name).unwrap();
    let documents: Vec<_> = names.iter().map(|name| of(name).documents()).collect();
    let documents: Vec<_> = documents.iter().map(|[api, apis]| [api, apis]).collect();
    let documents: Vec<&[&Document]> = documents.iter().map(|it| &it[..]).collect();
    diff(&documents)
}

#[test]
fn two_versions_differ_in_the_apis_that_only_one_of_them_serves() {
    for (one, first) in SERVERS.iter().enumerate() {
        for second in &SERVERS[one..] {
            let skew = compare(&[first.name, second.name]);
            for (server, own, other) in [(0, first, second), (1, second, first)] {
                let mut lines: Vec<_> = skew
                    .only_on(server)
                    .filter(|it| it.missing[0].missing > Missing::Verbs)
                    .map(|it| {
                        let group = match it.group.as_str() {
                            "" => String::new(),
                            group => format!("{group}/"),
                        };
                        let line = format!("{group}{} {}", it.version, it.resource);
                        match it.subresource.as_str() {
                            "" => line,
                            subresource => format!("{line}/{subresource}"),
                        }
                    })
                    .collect();
                lines.sort_unstable();
                let expected = index(own.name).difference(&[&index(other.name)]);
                assert_eq!(lines, expected, "{} beside {}", own.name, other.name);
                let entries = index(own.name).entries().count();
                let tally = skew.servers[server];
                assert_eq!(tally.resources + tally.subresources, entries);
            }
        }
    }
}

#[test]
fn a_missing_version_is_reported_as_a_whole() {
    let skew = compare(&["1.34.4-all", "1.36.4-all"]);
    let lacks = |group: &str, version: &str, resource: &str| {
        let it = skew
            .differences
            .iter()
            .find(|it| (&*it.group, &*it.version, &*it.resource) == (group, version, resource));
        it.unwrap().missing[0].missing
    };
    let alpha = lacks("storage.k8s.io", "v1alpha1", "volumeattributesclasses");
    assert_eq!(alpha, Missing::Version);
    let policies = lacks(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingadmissionpolicies",
    );
    assert_eq!(policies, Missing::Resource);
    let status = lacks("resource.k8s.io", "v1alpha3", "devicetaintrules");
    assert_eq!(status, Missing::Subresource);
    assert_eq!(skew.missing_from(0).count(), skew.only_on(1).count());
}

#[test]
fn older_lists_build_the_aggregated_document_of_the_same_server() {
    for server in SERVERS {
        let [mut api, apis] = server.documents();
        let groups: Vec<_> = apis.items.iter().map(group_as_listed).collect();
        let mut legacy = LegacyDiscovery::from_groups(
            &serde_json::to_vec(&json!({"kind": "APIVersions", "versions": ["v1"]})).unwrap(),
            &serde_json::to_vec(
                &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}),
            )
            .unwrap(),
        )
        .unwrap();
        api.items.extend(apis.items);
        for group in &mut api.items {
            group.metadata.null_timestamp = false;
            for version in &group.versions {
                let path = match group.metadata.name.as_str() {
                    "" => format!("/api/{}", version.version),
                    name => format!("/apis/{name}/{}", version.version),
                };
                assert!(legacy.paths().any(|requested| requested == path), "{path}");
                let list = serde_json::to_vec(&resources_as_listed(version)).unwrap();
                legacy.add(&path, &list).unwrap();
            }
        }
        assert_eq!(legacy.paths().count(), 0);
        assert_eq!(legacy.into_document().items, api.items, "{}", server.name);
    }
}

fn group_as_listed(group: &Group) -> Value {
    let versions: Vec<_> = group
        .versions
        .iter()
        .map(|it| json!({"groupVersion": format!("{}/{}", group.name(), it.version), "version": it.version}))
        .collect();
    json!({"name": group.name(), "versions": versions, "preferredVersion": versions[0]})
}

/// As `/apis/GROUP/VERSION` lists them: flat.
fn resources_as_listed(version: &Version) -> Value {
    let mut flat = Vec::new();
    for resource in &version.resources {
        let namespaced = resource.scope == Scope::Namespaced;
        let kind = resource.response_kind.clone().unwrap();
        flat.push(json!({
            "name": resource.resource, "singularName": resource.singular_resource,
            "namespaced": namespaced, "group": kind.group, "version": kind.version,
            "kind": kind.kind, "verbs": resource.verbs, "shortNames": resource.short_names,
            "categories": resource.categories, "storageVersionHash": "AAAAAAAAAAA=",
        }));
        for subresource in &resource.subresources {
            let kind = subresource.response_kind.clone().unwrap();
            flat.push(json!({
                "name": format!("{}/{}", resource.resource, subresource.subresource),
                "singularName": "", "namespaced": namespaced, "group": kind.group,
                "version": kind.version, "kind": kind.kind, "verbs": subresource.verbs,
            }));
        }
    }
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "x", "resources": flat})
}
