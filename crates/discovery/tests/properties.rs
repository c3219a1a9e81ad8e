//! Properties of all documents.

#![allow(clippy::unwrap_used)] // test helpers panic on failure

use std::borrow::Cow;
use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;
use skewbridge_discovery::document::{
    Freshness, Group, GroupVersionKind, Metadata, Resource, Schema, Scope, Subresource, Version,
};
use skewbridge_discovery::servers::Leader;
use skewbridge_discovery::{
    DiscoveryFormat, Document, Index, Layout, LegacyDiscovery, Object as _, ServerDiscovery,
    ServerDiscoveryList, Skew, diff, merge,
};
use skewbridge_k8s_api::content_negotiation::Format;
use skewbridge_k8s_api::request_info::{Kind, RequestInfo, Verb};

const GROUPS: [&str; 3] = ["", "apps", "apps.example"];
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v2"];
const RESOURCES: [&str; 3] = ["pods", "podlets", "nodes"];
const SUBRESOURCES: [&str; 3] = ["status", "scale", "log"];
const VERBS: [&str; 9] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
    "ponder",
];
const REQUEST_VERBS: [Verb; 14] = [
    Verb::Get,
    Verb::List,
    Verb::Watch,
    Verb::Create,
    Verb::Update,
    Verb::Patch,
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Proxy,
    Verb::Post,
    Verb::Put,
    Verb::Head,
    Verb::Options,
    Verb::Other,
];

fn word(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    proptest::sample::select(words).prop_map(str::to_owned)
}

fn verbs() -> impl Strategy<Value = Vec<String>> {
    vec(word(&VERBS), 0..4)
}

fn kind() -> impl Strategy<Value = GroupVersionKind> {
    (word(&GROUPS), word(&VERSIONS), ".{0,4}").prop_map(|(group, version, kind)| GroupVersionKind {
        group,
        version,
        kind,
    })
}

fn subresource() -> impl Strategy<Value = Subresource> {
    (
        word(&SUBRESOURCES),
        proptest::option::of(kind()),
        vec(kind(), 0..2),
        verbs(),
    )
        .prop_map(
            |(subresource, response_kind, accepted_types, verbs)| Subresource {
                subresource,
                response_kind,
                accepted_types,
                verbs,
            },
        )
}

fn resource() -> impl Strategy<Value = Resource> {
    let scope = prop_oneof![
        Just(Scope::Cluster),
        Just(Scope::Namespaced),
        Just(Scope::Other("Galaxy".to_owned())),
        Just(Scope::default()),
    ];
    (
        (
            word(&RESOURCES),
            proptest::option::of(kind()),
            scope,
            ".{0,4}",
        ),
        verbs(),
        vec(".{0,4}", 0..2),
        vec(".{0,4}", 0..2),
        vec(subresource(), 0..3),
    )
        .prop_map(
            |(
                (resource, response_kind, scope, singular_resource),
                verbs,
                short_names,
                categories,
                subresources,
            )| {
                Resource {
                    resource,
                    response_kind,
                    scope,
                    singular_resource,
                    verbs,
                    short_names,
                    categories,
                    subresources,
                }
            },
        )
}

fn group() -> impl Strategy<Value = Group> {
    let freshness = prop_oneof![
        Just(Freshness::Current),
        Just(Freshness::Stale),
        Just(Freshness::Other("Ripe".to_owned())),
        Just(Freshness::default()),
    ];
    let version = (word(&VERSIONS), vec(resource(), 0..3), freshness).prop_map(
        |(version, resources, freshness)| Version {
            version,
            resources,
            freshness,
        },
    );
    (word(&GROUPS), any::<bool>(), vec(version, 0..3)).prop_map(
        |(name, null_timestamp, versions)| Group {
            metadata: Metadata {
                name,
                null_timestamp,
            },
            versions,
        },
    )
}

fn document() -> impl Strategy<Value = Document> {
    let schema = prop_oneof![Just(Schema::V2), Just(Schema::V2Beta1)];
    (schema, vec(group(), 0..4)).prop_map(|(schema, items)| Document { schema, items })
}

/// JSON in which the field names of discovery occur anywhere.
fn near_discovery() -> impl Strategy<Value = Value> {
    const WORDS: [&str; 26] = [
        "kind",
        "apiVersion",
        "metadata",
        "name",
        "creationTimestamp",
        "items",
        "versions",
        "version",
        "resources",
        "resource",
        "freshness",
        "scope",
        "verbs",
        "responseKind",
        "group",
        "groups",
        "subresources",
        "subresource",
        "preferredVersion",
        "namespaced",
        "APIGroupDiscoveryList",
        "APIGroupList",
        "APIVersions",
        "APIResourceList",
        "apidiscovery.k8s.io/v2",
        "pods/log",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        word(&WORDS).prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            vec((word(&WORDS), inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Everything that parses can be used.
fn parse_in_every_way(bytes: &[u8]) {
    if let Ok(document) = Document::parse(bytes) {
        let index = Index::new(&[&document]);
        assert_eq!(index.difference(&[]).len(), index.entries().count());
    }
    if let Ok(list) = ServerDiscoveryList::parse(bytes) {
        let written = serde_json::to_vec(&list).unwrap();
        assert_eq!(ServerDiscoveryList::parse(&written).unwrap(), list);
    }
    let api = br#"{"kind":"APIVersions","versions":["v1"]}"#;
    let apis = br#"{"kind":"APIGroupList"}"#;
    let _ = LegacyDiscovery::from_groups(bytes, apis);
    let _ = LegacyDiscovery::from_groups(api, bytes);
    let mut legacy = LegacyDiscovery::from_groups(api, apis).unwrap();
    let _ = legacy.add("/api/v1", bytes);
    let _ = Index::new(&[&legacy.into_document()]);
}

/// Whether the documents list a request, without an index.
fn lists(documents: &[&Document], request: &RequestInfo<'_>) -> bool {
    let verbs: Vec<&str> = documents
        .iter()
        .flat_map(|document| &document.items)
        .filter(|group| group.name() == request.group)
        .flat_map(|group| &group.versions)
        .filter(|version| version.version == request.version)
        .flat_map(|version| &version.resources)
        .filter(|resource| resource.resource == request.resource)
        .flat_map(|resource| match request.subresource {
            "" => resource.verbs.clone(),
            name => resource
                .subresources
                .iter()
                .filter(|it| it.subresource == name)
                .flat_map(|it| it.verbs.clone())
                .collect(),
        })
        .map(|verb| VERBS.into_iter().find(|known| *known == verb).unwrap())
        .collect();
    if VERBS.contains(&request.verb.as_str()) {
        verbs.contains(&request.verb.as_str())
    } else {
        !verbs.is_empty()
    }
}

/// A verb of a resource or subresource: group, version, resource, subresource,
/// verb.
type Leaf = [String; 5];

/// The servers that list each verb, without a diff.
fn holders(documents: &[Document]) -> BTreeMap<Leaf, Vec<usize>> {
    let mut holders = BTreeMap::<Leaf, Vec<usize>>::new();
    for (server, document) in documents.iter().enumerate() {
        for group in &document.items {
            for version in &group.versions {
                for resource in &version.resources {
                    let itself = std::iter::once((String::new(), &resource.verbs));
                    let subresources = resource.subresources.iter();
                    let subresources = subresources.map(|it| (it.subresource.clone(), &it.verbs));
                    for (subresource, verbs) in itself.chain(subresources) {
                        for verb in verbs {
                            let leaf = [
                                group.name().to_owned(),
                                version.version.clone(),
                                resource.resource.clone(),
                                subresource.clone(),
                                verb.clone(),
                            ];
                            let on = holders.entry(leaf).or_default();
                            on.push(server);
                            on.dedup();
                        }
                    }
                }
            }
        }
    }
    holders
}

fn compare(documents: &[Document]) -> Skew {
    let servers: Vec<_> = documents.iter().map(|it| vec![it]).collect();
    let servers: Vec<&[&Document]> = servers.iter().map(Vec::as_slice).collect();
    diff(&servers)
}

/// The same from a diff; fails if a verb is reported twice.
fn reported(skew: &Skew, name: impl Fn(usize) -> usize) -> BTreeMap<Leaf, Vec<usize>> {
    let mut reported = BTreeMap::new();
    for it in &skew.differences {
        for verb in &it.verbs {
            let leaf = [&it.group, &it.version, &it.resource, &it.subresource, verb];
            let mut on: Vec<_> = it.on.iter().map(|server| name(*server)).collect();
            on.sort_unstable();
            assert_eq!(
                reported.insert(leaf.map(Clone::clone), on),
                None,
                "{leaf:?}"
            );
        }
    }
    reported
}

proptest! {
    #[test]
    fn a_diff_reports_exactly_what_not_all_servers_have(servers in vec(document(), 0..4)) {
        let skew = compare(&servers);
        let mut expected = holders(&servers);
        expected.retain(|_, on| on.len() < servers.len());
        prop_assert_eq!(reported(&skew, |server| server), expected);
        for it in &skew.differences {
            prop_assert!(!it.on.is_empty() && !it.missing.is_empty());
            let mut all: Vec<_> = it.missing.iter().map(|missing| missing.server).collect();
            all.extend(&it.on);
            all.sort_unstable();
            prop_assert_eq!(all, (0..servers.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn equal_documents_have_no_differences(document in document(), count in 0usize..4) {
        let skew = compare(&vec![document; count]);
        prop_assert!(skew.is_empty());
        prop_assert!(skew.stale.is_empty());
    }

    #[test]
    fn the_order_of_servers_does_not_matter(mut servers in vec(document(), 0..4)) {
        let skew = compare(&servers);
        servers.reverse();
        let reversed = compare(&servers);
        let last = servers.len().saturating_sub(1);
        prop_assert_eq!(reported(&skew, |server| server), reported(&reversed, |server| last - server));
        let mut tallies = reversed.servers;
        tallies.reverse();
        prop_assert_eq!(skew.servers, tallies);
    }

    #[test]
    fn a_client_of_all_servers_misses_nothing(mut servers in vec(document(), 1..4)) {
        let merged = merge(&servers.iter().collect::<Vec<_>>());
        servers.push(merged);
        let skew = compare(&servers);
        let last = servers.len() - 1;
        prop_assert_eq!(skew.missing_from(last).count(), 0);
        // The merged document has nothing that no server has.
        prop_assert_eq!(skew.only_on(last).count(), 0);
    }

    #[test]
    fn a_server_discovery_list_round_trips(
        identity in ".{0,8}",
        words in vec(proptest::option::of(".{0,8}"), 7),
        flags in any::<[bool; 2]>(),
        document in proptest::option::of(document()),
        leaders in vec((".{0,8}", ".{0,8}"), 0..3),
    ) {
        let leaders = leaders.into_iter().map(|(component, version)| Leader {
            component,
            version,
            ..Leader::default()
        });
        let list = ServerDiscoveryList {
            servers: vec![ServerDiscovery {
                identity,
                host: words[5].clone(),
                version: words[0].clone(),
                local: flags[0],
                address: words[1].clone(),
                reachable: flags[1],
                last_sync: words[2].clone(),
                problem: words[3].clone(),
                groups: document.map(|document| document.items),
            }],
            local_only: words[4].clone(),
            leaders: leaders.collect(),
            bridge_version: words[6].clone(),
        };
        let written = serde_json::to_vec(&list).unwrap();
        prop_assert_eq!(ServerDiscoveryList::parse(&written).unwrap(), list);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        parse_in_every_way(&bytes);
        let _ = DiscoveryFormat::from_content_type(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn no_json_makes_the_parsers_panic(mut value in near_discovery(), other in near_discovery()) {
        parse_in_every_way(&serde_json::to_vec(&value).unwrap());
        // With each expected kind, so that parsing continues.
        let kinds = [
            ("APIGroupDiscoveryList", "items"),
            ("ServerDiscoveryList", "servers"),
            ("APIVersions", "versions"),
            ("APIGroupList", "groups"),
            ("APIResourceList", "resources"),
        ];
        for (kind, field) in kinds {
            if let Value::Object(fields) = &mut value {
                fields.insert("kind".into(), kind.into());
                let version = match kind {
                    "ServerDiscoveryList" => "skewbridge.io/v1alpha1",
                    _ => "apidiscovery.k8s.io/v2",
                };
                fields.insert("apiVersion".into(), version.into());
                fields.insert(field.into(), other.clone());
                parse_in_every_way(&serde_json::to_vec(&value).unwrap());
            }
        }
    }

    #[test]
    fn documents_round_trip(document in document()) {
        let written = document.write(Format::Json, Layout::Compact);
        prop_assert_eq!(Document::parse(&written).unwrap(), document);
    }

    #[test]
    fn an_index_serves_exactly_what_its_documents_list(one in document(), two in document()) {
        let documents = [&one, &two];
        let index = Index::new(&documents);
        let mut served = 0;
        for group in GROUPS {
            for version in VERSIONS {
                for resource in RESOURCES {
                    for subresource in [""].into_iter().chain(SUBRESOURCES) {
                        let mut request = RequestInfo {
                            kind: Kind::Resource,
                            verb: Verb::Other,
                            path: "",
                            group,
                            version,
                            namespace: "",
                            resource,
                            subresource,
                            name: Cow::Borrowed(""),
                        };
                        served += usize::from(index.serves(&request));
                        for verb in REQUEST_VERBS {
                            request.verb = verb;
                            prop_assert_eq!(index.serves(&request), lists(&documents, &request), "{:?}", request);
                        }
                    }
                }
            }
        }
        prop_assert_eq!(index.entries().count(), served);
        prop_assert!(index.difference(&[&Index::new(&[&two, &one])]).is_empty());
    }
}
