//! Discovery of servers older than 1.26: builds a document from the lists of versions, of
//! groups, and of the resources of each group version.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;

use crate::document::{
    Document, Freshness, Group, GroupVersionKind, Metadata, Resource, Schema, Subresource, Version,
};
use crate::lists::{ApiGroup, ApiGroupList, ApiResource, ApiResourceList};
use crate::parse::{ParseError, TypeMeta, null_as_default, read};

/// Builds a document from lists.
///
/// Group versions whose list is never added are omitted. That is right in a mixed cluster,
/// where `/apis` lists what any server has, and `/apis/GROUP/VERSION` is 404 on servers that
/// do not have it.
///
/// ```
/// use skewbridge_discovery::LegacyDiscovery;
///
/// let mut legacy = LegacyDiscovery::from_groups(
///     br#"{"kind":"APIVersions","versions":["v1"]}"#,
///     br#"{"kind":"APIGroupList","apiVersion":"v1","groups":[
///         {"name":"apps","versions":[{"groupVersion":"apps/v1","version":"v1"}]}]}"#,
/// )?;
/// assert_eq!(legacy.paths().collect::<Vec<_>>(), ["/api/v1", "/apis/apps/v1"]);
/// legacy.add("/api/v1", br#"{"kind":"APIResourceList","groupVersion":"v1","resources":[
///     {"name":"pods","singularName":"","namespaced":true,"kind":"Pod","verbs":["get"]},
///     {"name":"pods/log","singularName":"","namespaced":true,"kind":"Pod","verbs":["get"]}]}"#)?;
/// let document = legacy.into_document();
/// assert_eq!(document.items.len(), 1);
/// assert_eq!(document.items[0].versions[0].resources[0].subresources[0].subresource, "log");
/// # Ok::<(), skewbridge_discovery::ParseError>(())
/// ```
#[derive(Debug, Clone)]
pub struct LegacyDiscovery {
    lists: Vec<List>,
}

/// The resources of a version of a group.
#[derive(Debug, Clone)]
struct List {
    path: String,
    group: String,
    version: String,
    resources: Option<Vec<Resource>>,
}

impl LegacyDiscovery {
    /// Starts with the responses of `/api` and `/apis`.
    pub fn from_groups(api: &[u8], apis: &[u8]) -> Result<Self, ParseError> {
        TypeMeta::expect(api, "APIVersions")?;
        let core: ApiVersions = read(api, "APIVersions")?;
        let named = ApiGroupList::parse(apis)?;
        let mut lists = Vec::new();
        let mut seen = HashSet::new();
        let mut push = |path: String, group: &str, version: String| {
            if seen.insert(path.clone()) {
                lists.push(List {
                    path,
                    group: group.to_owned(),
                    version,
                    resources: None,
                });
            }
        };
        for version in core.versions.into_iter().filter(|it| is_path_part(it)) {
            push(format!("/api/{version}"), "", version);
        }
        for group in named.groups.iter().filter(|it| is_path_part(&it.name)) {
            for version in by_preference(group).filter(|it| is_path_part(it)) {
                let path = format!("/apis/{}/{version}", group.name);
                push(path, &group.name, version.to_owned());
            }
        }
        Ok(Self { lists })
    }

    /// The paths of the resource lists that were not added yet.
    pub fn paths(&self) -> impl Iterator<Item = String> {
        self.lists
            .iter()
            .filter(|list| list.resources.is_none())
            .map(|list| list.path.clone())
    }

    /// Adds the list of resources from a path.
    pub fn add(&mut self, path: &str, bytes: &[u8]) -> Result<(), ParseError> {
        let Some(list) = self.lists.iter_mut().find(|list| list.path == path) else {
            return Err(ParseError::UnknownPath {
                path: path.to_owned(),
            });
        };
        list.resources = Some(nest(ApiResourceList::parse(bytes)?.resources));
        Ok(())
    }

    /// Keeps the resources of a path as they were known before. Returns whether the path is listed.
    pub fn keep(&mut self, path: &str, known: &Version) -> bool {
        let list = self.lists.iter_mut().find(|list| list.path == path);
        list.map(|list| list.resources = Some(known.resources.clone()))
            .is_some()
    }

    /// The document of everything that was added, including the core group.
    pub fn into_document(self) -> Document {
        let mut items: Vec<Group> = Vec::new();
        let mut places = HashMap::new();
        for list in self.lists {
            let Some(resources) = list.resources else {
                continue;
            };
            let version = Version {
                version: list.version,
                resources,
                freshness: Freshness::Current,
            };
            let place = *places.entry(list.group).or_insert_with_key(|name| {
                items.push(Group {
                    metadata: Metadata {
                        name: name.clone(),
                        null_timestamp: false,
                    },
                    versions: Vec::new(),
                });
                items.len() - 1
            });
            items[place].versions.push(version);
        }
        Document {
            schema: Schema::V2,
            items,
        }
    }
}

#[derive(Deserialize)]
struct ApiVersions {
    #[serde(default, deserialize_with = "null_as_default")]
    versions: Vec<String>,
}

/// Aggregated discovery has the preferred version first.
fn by_preference(group: &ApiGroup) -> impl Iterator<Item = &str> {
    let preferred = &*group.preferred_version.version;
    let versions = || group.versions.iter().map(|it| &*it.version);
    versions()
        .filter(move |version| *version == preferred)
        .chain(versions().filter(move |version| *version != preferred))
}

/// Names become parts of request paths: names that could change the meaning of a path are rejected.
fn is_path_part(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

/// Nests `pods/log` into `pods`, as kube-apiserver does: a parent that is not listed is
/// created without verbs.
fn nest(flat: Vec<ApiResource>) -> Vec<Resource> {
    let (children, parents): (Vec<_>, Vec<_>) =
        flat.into_iter().partition(|it| it.name.contains('/'));
    let mut resources: Vec<Resource> = Vec::with_capacity(parents.len());
    let mut places = HashMap::new();
    for parent in parents {
        places.insert(parent.name.clone(), resources.len());
        resources.push(Resource {
            scope: parent.scope(),
            response_kind: Some(parent.kind()),
            resource: parent.name,
            singular_resource: parent.singular_name,
            verbs: parent.verbs,
            short_names: parent.short_names,
            categories: parent.categories,
            subresources: Vec::new(),
        });
    }
    for child in children {
        let Some((parent, name)) = child.name.split_once('/') else {
            continue;
        };
        let place = *places.entry(parent.to_owned()).or_insert_with(|| {
            resources.push(Resource {
                resource: parent.to_owned(),
                response_kind: Some(GroupVersionKind::default()),
                scope: child.scope(),
                ..Resource::default()
            });
            resources.len() - 1
        });
        resources[place].subresources.push(Subresource {
            subresource: name.to_owned(),
            response_kind: Some(child.kind()),
            accepted_types: Vec::new(),
            verbs: child.verbs,
        });
    }
    resources
}

#[cfg(test)]
mod tests {
    use super::*;

    const API: &[u8] = br#"{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"10.0.0.1:6443"}]}"#;

    fn legacy(groups: &str) -> LegacyDiscovery {
        let apis = format!(r#"{{"kind":"APIGroupList","apiVersion":"v1","groups":{groups}}}"#);
        LegacyDiscovery::from_groups(API, apis.as_bytes()).unwrap()
    }

    fn list(resources: &str) -> String {
        format!(
            r#"{{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"g/v1","resources":{resources}}}"#
        )
    }

    #[test]
    fn a_version_that_only_another_server_has_is_omitted() {
        let mut legacy = legacy(
            r#"[{"name":"storage.k8s.io","versions":[{"version":"v1"},{"version":"v1alpha1"}]},
                {"name":"elsewhere.io","versions":[{"version":"v1"}]}]"#,
        );
        assert_eq!(
            legacy.paths().collect::<Vec<_>>(),
            [
                "/api/v1",
                "/apis/storage.k8s.io/v1",
                "/apis/storage.k8s.io/v1alpha1",
                "/apis/elsewhere.io/v1"
            ]
        );
        legacy
            .add("/apis/storage.k8s.io/v1", list("null").as_bytes())
            .unwrap();
        assert_eq!(legacy.paths().count(), 3);
        let document = legacy.into_document();
        assert_eq!(document.items.len(), 1);
        assert_eq!(document.items[0].name(), "storage.k8s.io");
        assert_eq!(document.items[0].versions.len(), 1);
        assert_eq!(document.items[0].versions[0].version, "v1");
        assert_eq!(document.items[0].versions[0].freshness, Freshness::Current);
    }

    #[test]
    fn the_preferred_version_comes_first() {
        let legacy = legacy(
            r#"[{"name":"g","versions":[{"version":"v2"},{"version":"v1"},{"version":"v1beta1"}],
                 "preferredVersion":{"groupVersion":"g/v1","version":"v1"}}]"#,
        );
        assert_eq!(
            legacy.paths().skip(1).collect::<Vec<_>>(),
            ["/apis/g/v1", "/apis/g/v2", "/apis/g/v1beta1"]
        );
    }

    #[test]
    fn invalid_path_parts_are_skipped_and_paths_are_unique() {
        let legacy = legacy(
            r#"[{"name":"..","versions":[{"version":"v1"}]},
                {"name":"","versions":[{"version":"v1"}]},
                {"name":"a b","versions":[{"version":"v1"}]},
                {"name":"a?b","versions":[{"version":"v1"}]},
                {"name":"good.example","versions":[{"version":"v1/x"},{"version":"v1\r\nHost: x"},{"version":"v1"},{"version":"v1"}]},
                {"name":"good.example","versions":[{"version":"v1"},{"version":"v2"}]}]"#,
        );
        assert_eq!(
            legacy.paths().skip(1).collect::<Vec<_>>(),
            ["/apis/good.example/v1", "/apis/good.example/v2"]
        );
    }

    #[test]
    fn a_subresource_without_a_parent_creates_one_without_verbs() {
        let mut legacy = legacy("null");
        legacy
            .add(
                "/api/v1",
                list(
                    r#"[{"name":"pods/log","singularName":"","namespaced":true,"kind":"Pod","verbs":["get"]},
                        {"name":"pods/eviction","namespaced":true,"group":"policy","version":"v1","kind":"Eviction","verbs":["create"]},
                        {"name":"nodes","singularName":"node","namespaced":false,"kind":"Node","verbs":["get"],
                         "shortNames":["no"],"categories":["all"],"storageVersionHash":"x="}]"#,
                )
                .as_bytes(),
            )
            .unwrap();
        assert_eq!(
            serde_json::to_string(&legacy.into_document().items).unwrap(),
            concat!(
                r#"[{"metadata":{},"versions":[{"version":"v1","resources":["#,
                r#"{"resource":"nodes","responseKind":{"group":"","version":"","kind":"Node"},"#,
                r#""scope":"Cluster","singularResource":"node","verbs":["get"],"shortNames":["no"],"categories":["all"]},"#,
                r#"{"resource":"pods","responseKind":{"group":"","version":"","kind":""},"#,
                r#""scope":"Namespaced","singularResource":"","verbs":null,"subresources":["#,
                r#"{"subresource":"log","responseKind":{"group":"","version":"","kind":"Pod"},"verbs":["get"]},"#,
                r#"{"subresource":"eviction","responseKind":{"group":"policy","version":"v1","kind":"Eviction"},"verbs":["create"]}"#,
                r#"]}],"freshness":"Current"}]}]"#
            )
        );
    }

    #[test]
    fn unexpected_objects_are_rejected() {
        let groups = br#"{"kind":"APIGroupList","apiVersion":"v1","groups":[]}"#;
        assert_eq!(
            LegacyDiscovery::from_groups(groups, groups)
                .unwrap_err()
                .to_string(),
            "expected APIVersions, found APIGroupList of v1"
        );
        assert_eq!(
            LegacyDiscovery::from_groups(API, API)
                .unwrap_err()
                .to_string(),
            "expected APIGroupList, found APIVersions"
        );
        let mut legacy = legacy("[]");
        let error = legacy.add("/apis/g/v1", list("[]").as_bytes()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "/apis/g/v1 is not the path of a known group version"
        );
        let status = br#"{"kind":"Status","apiVersion":"v1","code":404}"#;
        let error = legacy.add("/api/v1", status).unwrap_err();
        assert_eq!(
            error.to_string(),
            "expected APIResourceList, found Status of v1"
        );
        assert_eq!(legacy.paths().collect::<Vec<_>>(), ["/api/v1"]);
    }
}
