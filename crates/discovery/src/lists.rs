//! Discovery as lists, which every client supports: the list of groups, a group, and the
//! resources of a group version. Older clients support nothing else.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use skewbridge_k8s_api::protobuf::Writer;

use crate::document::{Document, Group, GroupVersionKind, Resource, Scope, Subresource, Version};
use crate::merge::{sorted_union, union};
use crate::object::Object;
use crate::parse::{ParseError, TypeMeta, null_as_default, read};

/// `/apis`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiGroupList {
    /// In order of priority.
    #[serde(default, deserialize_with = "null_as_default")]
    pub groups: Vec<ApiGroup>,
}

/// `/apis/GROUP`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiGroup {
    /// `apps`
    #[serde(default, deserialize_with = "null_as_default")]
    pub name: String,
    /// Usually the preferred one first.
    #[serde(default, deserialize_with = "null_as_default")]
    pub versions: Vec<GroupVersion>,
    /// The version for clients without a preference.
    #[serde(default, deserialize_with = "null_as_default")]
    pub preferred_version: GroupVersion,
}

/// A version of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupVersion {
    /// `apps/v1`
    #[serde(default, deserialize_with = "null_as_default")]
    pub group_version: String,
    /// `v1`
    #[serde(default, deserialize_with = "null_as_default")]
    pub version: String,
}

/// `/apis/GROUP/VERSION`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiResourceList {
    /// `apps/v1`, and `v1` of the core group.
    #[serde(default, deserialize_with = "null_as_default")]
    pub group_version: String,
    /// Includes subresources, such as `deployments/scale`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub resources: Vec<ApiResource>,
}

/// A resource, or a subresource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiResource {
    /// `deployments`, or `deployments/scale`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub name: String,
    /// `deployment`
    #[serde(default, deserialize_with = "null_as_default")]
    pub singular_name: String,
    /// Whether its objects are namespaced.
    #[serde(default, deserialize_with = "null_as_default")]
    pub namespaced: bool,
    /// The group of the kind, if it is not that of the list.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub group: String,
    /// The version of the kind, if it is not that of the list.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub version: String,
    /// `Deployment`
    #[serde(default, deserialize_with = "null_as_default")]
    pub kind: String,
    /// The supported verbs.
    #[serde(default, deserialize_with = "null_as_default")]
    pub verbs: Vec<String>,
    /// `deploy`
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub short_names: Vec<String>,
    /// `all`
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub categories: Vec<String>,
    /// The hash of the storage version, which aggregated discovery does not have.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub storage_version_hash: String,
}

impl ApiGroupList {
    /// Parses a list.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        TypeMeta::expect(bytes, Self::KIND)?;
        read(bytes, Self::KIND)
    }

    /// The groups of a document.
    pub fn from_document(document: &Document) -> Self {
        let named = document.items.iter().filter(|it| !it.name().is_empty());
        Self {
            groups: named.map(ApiGroup::from_group).collect(),
        }
    }
}

impl ApiGroup {
    /// Parses a group.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        TypeMeta::expect(bytes, Self::KIND)?;
        read(bytes, Self::KIND)
    }

    /// Adds missing versions after the existing ones.
    pub fn add(&mut self, versions: Vec<GroupVersion>) {
        for version in versions {
            if !self.versions.contains(&version) {
                self.versions.push(version);
            }
        }
    }

    /// From a group of a document.
    pub fn from_group(group: &Group) -> Self {
        let versions: Vec<_> = (group.versions.iter())
            .map(|version| GroupVersion {
                group_version: format!("{}/{}", group.name(), version.version),
                version: version.version.clone(),
            })
            .collect();
        Self {
            name: group.name().to_owned(),
            preferred_version: versions.first().cloned().unwrap_or_default(),
            versions,
        }
    }
}

impl ApiResourceList {
    /// Parses a list.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        TypeMeta::expect(bytes, Self::KIND)?;
        read(bytes, Self::KIND)
    }

    /// The resources of a version of a group.
    pub fn from_version(group: &str, version: &Version) -> Self {
        let mut list = Self {
            group_version: match group {
                "" => version.version.clone(),
                _ => format!("{group}/{}", version.version),
            },
            resources: Vec::new(),
        };
        list.merge_version(version);
        list
    }

    /// Adds what only the document has. Existing entries are kept: the list of the server
    /// itself has more details.
    pub fn merge_version(&mut self, version: &Version) {
        let names = self.resources.iter().enumerate();
        let mut places: HashMap<String, usize> =
            (names.map(|(place, resource)| (resource.name.clone(), place))).collect();
        for resource in &version.resources {
            // A parent without verbs is listed only for its subresources.
            if !resource.verbs.is_empty() {
                self.add(ApiResource::from_resource(resource), &mut places);
            }
            for subresource in &resource.subresources {
                self.add(
                    ApiResource::from_subresource(resource, subresource),
                    &mut places,
                );
            }
        }
    }

    fn add(&mut self, other: ApiResource, places: &mut HashMap<String, usize>) {
        if let Some(place) = places.get(&other.name) {
            self.resources[*place].merge(&other);
        } else {
            places.insert(other.name.clone(), self.resources.len());
            self.resources.push(other);
        }
    }
}

impl ApiResource {
    fn from_resource(resource: &Resource) -> Self {
        Self {
            name: resource.resource.clone(),
            singular_name: resource.singular_resource.clone(),
            namespaced: resource.scope == Scope::Namespaced,
            verbs: resource.verbs.clone(),
            short_names: resource.short_names.clone(),
            categories: resource.categories.clone(),
            ..Self::from_kind(resource.response_kind.as_ref())
        }
    }

    fn from_subresource(parent: &Resource, subresource: &Subresource) -> Self {
        Self {
            name: format!("{}/{}", parent.resource, subresource.subresource),
            namespaced: parent.scope == Scope::Namespaced,
            verbs: subresource.verbs.clone(),
            ..Self::from_kind(subresource.response_kind.as_ref())
        }
    }

    fn from_kind(kind: Option<&GroupVersionKind>) -> Self {
        let kind = kind.cloned().unwrap_or_default();
        Self {
            group: kind.group,
            version: kind.version,
            kind: kind.kind,
            ..Self::default()
        }
    }

    fn merge(&mut self, other: &Self) {
        if !other.verbs.iter().all(|verb| self.verbs.contains(verb)) {
            self.verbs = sorted_union(&self.verbs, &other.verbs);
        }
        self.short_names = union(&self.short_names, &other.short_names);
        self.categories = union(&self.categories, &other.categories);
    }

    pub(crate) fn scope(&self) -> Scope {
        if self.namespaced {
            Scope::Namespaced
        } else {
            Scope::Cluster
        }
    }

    pub(crate) fn kind(&self) -> GroupVersionKind {
        GroupVersionKind {
            group: self.group.clone(),
            version: self.version.clone(),
            kind: self.kind.clone(),
        }
    }

    fn protobuf(&self) -> Writer {
        let verbs = Writer::default().texts(1, &self.verbs);
        Writer::default()
            .text(1, &self.name)
            .number(2, self.namespaced.into())
            .text(3, &self.kind)
            .message(4, verbs)
            .texts(5, &self.short_names)
            .text(6, &self.singular_name)
            .texts(7, &self.categories)
            .text(8, &self.group)
            .text(9, &self.version)
            .text(10, &self.storage_version_hash)
    }
}

impl GroupVersion {
    fn protobuf(&self) -> Writer {
        let writer = Writer::default().text(1, &self.group_version);
        writer.text(2, &self.version)
    }
}

/// Fields by number as in the `generated.proto` of apimachinery.
impl Object for ApiGroupList {
    const KIND: &'static str = "APIGroupList";

    fn protobuf(&self) -> Writer {
        Writer::default().messages(1, &self.groups, Object::protobuf)
    }
}

impl Object for ApiGroup {
    const KIND: &'static str = "APIGroup";

    fn protobuf(&self) -> Writer {
        Writer::default()
            .text(1, &self.name)
            .messages(2, &self.versions, GroupVersion::protobuf)
            .message(3, self.preferred_version.protobuf())
    }
}

impl Object for ApiResourceList {
    const KIND: &'static str = "APIResourceList";

    /// Servers omit it for the core group, which is older than API groups.
    fn api_version(&self) -> &'static str {
        if self.group_version.contains('/') {
            "v1"
        } else {
            ""
        }
    }

    fn protobuf(&self) -> Writer {
        Writer::default().text(1, &self.group_version).messages(
            2,
            &self.resources,
            ApiResource::protobuf,
        )
    }
}
