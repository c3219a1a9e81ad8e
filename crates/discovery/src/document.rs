//! Aggregated discovery: everything that a server serves, in one document.
//!
//! `apidiscovery.k8s.io/v2` and `v2beta1` differ only in name. Fields have the order and the
//! omissions of kube-apiserver's Go code, so a parsed document serialises to the same bytes.

use serde::de::IgnoredAny;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use skewbridge_k8s_api::protobuf::Writer;

use crate::object::Object;
use crate::parse::{ParseError, TypeMeta, null_as_default, read};

const KIND: &str = "APIGroupDiscoveryList";

/// An `APIGroupDiscoveryList`, as served at `/api` and `/apis`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    /// The schema version.
    pub schema: Schema,
    /// The groups, in order of priority.
    pub items: Vec<Group>,
}

/// A version of `apidiscovery.k8s.io`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Schema {
    /// Since Kubernetes 1.30.
    #[default]
    V2,
    /// Since Kubernetes 1.26.
    V2Beta1,
}

/// A group and its versions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The metadata, which has the name.
    #[serde(default, deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    /// The preferred one first.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub versions: Vec<Version>,
}

/// The fields of `ObjectMeta` that a group has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// Empty for the core group.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub name: String,
    /// Whether it has `"creationTimestamp": null`, as servers before 1.34 write.
    #[serde(
        rename = "creationTimestamp",
        default,
        deserialize_with = "is_null",
        serialize_with = "as_null",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub null_timestamp: bool,
}

/// A version of a group and its resources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// `v1`, `v1beta1`, ...
    #[serde(default, deserialize_with = "null_as_default")]
    pub version: String,
    /// Sorted by name, if the server sorts them.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub resources: Vec<Resource>,
    /// Whether the resources are current.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Freshness::is_empty"
    )]
    pub freshness: Freshness,
}

/// Whether a version's resources are up to date.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freshness {
    /// The resources are up to date.
    Current,
    /// The server that has them did not answer recently.
    Stale,
    /// A value of a later Kubernetes, or none.
    #[serde(untagged)]
    Other(String),
}

/// A resource and its subresources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// In the plural: `pods`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub resource: String,
    /// The usual kind of its responses. An empty group or version is that of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_kind: Option<GroupVersionKind>,
    /// The scope of its objects.
    #[serde(default, deserialize_with = "null_as_default")]
    pub scope: Scope,
    /// `pod`
    #[serde(default, deserialize_with = "null_as_default")]
    pub singular_resource: String,
    /// The supported verbs. Empty if only its subresources are served.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        serialize_with = "empty_as_null"
    )]
    pub verbs: Vec<String>,
    /// `po`
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
    /// Such as `pods/log`.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub subresources: Vec<Subresource>,
}

/// The scope of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// Cluster-scoped.
    Cluster,
    /// Namespaced.
    Namespaced,
    /// A value of a later Kubernetes, or none.
    #[serde(untagged)]
    Other(String),
}

/// A subresource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subresource {
    /// `log` of `pods/log`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub subresource: String,
    /// The usual kind of its responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_kind: Option<GroupVersionKind>,
    /// The kinds that it accepts.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub accepted_types: Vec<GroupVersionKind>,
    /// The supported verbs.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        serialize_with = "empty_as_null"
    )]
    pub verbs: Vec<String>,
}

/// A kind of object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupVersionKind {
    /// `policy`
    #[serde(default, deserialize_with = "null_as_default")]
    pub group: String,
    /// `v1`
    #[serde(default, deserialize_with = "null_as_default")]
    pub version: String,
    /// `Eviction`
    #[serde(default, deserialize_with = "null_as_default")]
    pub kind: String,
}

impl Document {
    /// Parses a document. Unknown fields are ignored, and `null` is treated as missing.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        #[derive(Deserialize)]
        struct Body {
            #[serde(default, deserialize_with = "null_as_default")]
            items: Vec<Group>,
        }
        let meta = TypeMeta::expect(bytes, KIND)?;
        let schema = Schema::named(&meta.api_version).ok_or_else(|| meta.unexpected(KIND))?;
        let Body { items } = read(bytes, KIND)?;
        Ok(Self { schema, items })
    }
}

impl Document {
    /// The group with this name.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.items.iter().find(|group| group.name() == name)
    }

    /// A version of a group.
    pub fn version(&self, group: &str, version: &str) -> Option<&Version> {
        self.group(group)?.version(version)
    }

    /// All versions of all groups, with their group names.
    pub fn versions(&self) -> impl Iterator<Item = (&str, &Version)> {
        (self.items.iter())
            .flat_map(|group| group.versions.iter().map(|version| (group.name(), version)))
    }
}

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct ListMeta {}
        let mut list = serializer.serialize_struct(KIND, 2)?;
        list.serialize_field("metadata", &ListMeta {})?;
        list.serialize_field("items", &self.items)?;
        list.end()
    }
}

/// Fields by number as in the `generated.proto` of `apidiscovery.k8s.io`.
impl Object for Document {
    const KIND: &'static str = KIND;

    fn api_version(&self) -> &'static str {
        self.schema.api_version()
    }

    fn protobuf(&self) -> Writer {
        // An empty ListMeta: Go writes empty strings too.
        let metadata = Writer::default().text(1, "").text(2, "").text(3, "");
        Writer::default()
            .message(1, metadata)
            .messages(2, &self.items, Group::protobuf)
    }
}

impl Schema {
    /// `apidiscovery.k8s.io/v2`
    pub fn api_version(self) -> &'static str {
        match self {
            Self::V2 => "apidiscovery.k8s.io/v2",
            Self::V2Beta1 => "apidiscovery.k8s.io/v2beta1",
        }
    }

    fn named(api_version: &str) -> Option<Self> {
        [Self::V2, Self::V2Beta1]
            .into_iter()
            .find(|schema| schema.api_version() == api_version)
    }
}

impl Group {
    /// Its name; empty for the core group.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}

impl Freshness {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Other(word) if word.is_empty())
    }
}

impl Default for Freshness {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

impl Default for Scope {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

impl Group {
    fn protobuf(&self) -> Writer {
        let metadata = Writer::default().text(1, &self.metadata.name);
        let metadata = (2..=6).fold(metadata, |writer, number| writer.text(number, ""));
        let metadata = metadata.number(7, 0).message(8, Writer::default());
        Writer::default()
            .message(1, metadata)
            .messages(2, &self.versions, Version::protobuf)
    }
}

impl Group {
    /// The version with this name.
    pub fn version(&self, version: &str) -> Option<&Version> {
        self.versions.iter().find(|it| it.version == version)
    }
}

impl Version {
    /// Whether another version has everything that this one has: resources, subresources and
    /// their verbs.
    pub fn is_subset_of(&self, other: &Self) -> bool {
        self.resources.iter().all(|resource| {
            let mut others = other.resources.iter();
            let other = others.find(|it| it.resource == resource.resource);
            other.is_some_and(|other| resource.is_subset_of(other))
        })
    }

    fn protobuf(&self) -> Writer {
        let freshness = match &self.freshness {
            Freshness::Current => "Current",
            Freshness::Stale => "Stale",
            Freshness::Other(word) => word,
        };
        Writer::default()
            .text(1, &self.version)
            .messages(2, &self.resources, Resource::protobuf)
            .text(3, freshness)
    }
}

impl Resource {
    fn is_subset_of(&self, other: &Self) -> bool {
        let verbs = |one: &[String], other: &[String]| one.iter().all(|it| other.contains(it));
        verbs(&self.verbs, &other.verbs)
            && self.subresources.iter().all(|subresource| {
                let mut others = other.subresources.iter();
                let other = others.find(|it| it.subresource == subresource.subresource);
                other.is_some_and(|other| verbs(&subresource.verbs, &other.verbs))
            })
    }

    fn protobuf(&self) -> Writer {
        let scope = match &self.scope {
            Scope::Cluster => "Cluster",
            Scope::Namespaced => "Namespaced",
            Scope::Other(word) => word,
        };
        Writer::default()
            .text(1, &self.resource)
            .messages(2, self.response_kind.as_slice(), GroupVersionKind::protobuf)
            .text(3, scope)
            .text(4, &self.singular_resource)
            .texts(5, &self.verbs)
            .texts(6, &self.short_names)
            .texts(7, &self.categories)
            .messages(8, &self.subresources, Subresource::protobuf)
    }
}

impl Subresource {
    fn protobuf(&self) -> Writer {
        Writer::default()
            .text(1, &self.subresource)
            .messages(2, self.response_kind.as_slice(), GroupVersionKind::protobuf)
            .messages(3, &self.accepted_types, GroupVersionKind::protobuf)
            .texts(4, &self.verbs)
    }
}

impl GroupVersionKind {
    fn protobuf(&self) -> Writer {
        let writer = Writer::default().text(1, &self.group);
        writer.text(2, &self.version).text(3, &self.kind)
    }
}

fn is_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<IgnoredAny>::deserialize(deserializer)?.is_none())
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn as_null<S: Serializer>(_: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_unit()
}

/// Verbs are empty only where Go has a nil slice, which it serialises as null.
fn empty_as_null<S: Serializer>(verbs: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    if verbs.is_empty() {
        serializer.serialize_none()
    } else {
        verbs.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_k8s_api::content_negotiation::Format;

    use super::*;
    use crate::object::Layout;

    fn list(items: &str) -> String {
        format!(
            r#"{{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{{}},"items":{items}}}"#
        )
    }

    fn written(document: &Document) -> String {
        let bytes = document.write(Format::Json, Layout::Compact);
        String::from_utf8(bytes).unwrap().trim_end().to_owned()
    }

    #[test]
    fn null_is_treated_as_missing() {
        let rows = [
            list("null"),
            list("[]"),
            r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2"}"#.to_owned(),
        ];
        for row in rows {
            assert_eq!(
                Document::parse(row.as_bytes()).unwrap(),
                Document::default(),
                "{row}"
            );
        }

        let sparse = list(
            r#"[{"metadata":null,"versions":null},
                {"metadata":{"name":null},"versions":[
                    {"version":"v1","resources":null,"freshness":null},
                    {"version":null,"resources":[{
                        "resource":null,"responseKind":null,"scope":null,"singularResource":null,
                        "verbs":null,"shortNames":null,"categories":null,"subresources":[
                            {"subresource":"s","responseKind":{"kind":null},"acceptedTypes":null,"verbs":null}]}]}]}]"#,
        );
        let document = Document::parse(sparse.as_bytes()).unwrap();
        assert_eq!(document.items.len(), 2);
        let resource = &document.items[1].versions[1].resources[0];
        assert_eq!(resource.response_kind, None);
        assert_eq!(
            resource.subresources[0].response_kind,
            Some(GroupVersionKind::default())
        );
        assert!(resource.verbs.is_empty());
    }

    #[test]
    fn unknown_fields_are_ignored_and_unknown_values_kept() {
        let text = list(
            r#"[{"metadata":{"name":"g","uid":"x","creationTimestamp":"2026-01-01T00:00:00Z"},"new":[1],"versions":[
                {"version":"v1","freshness":"Fermented","resources":[
                    {"resource":"r","scope":"Galaxy","singularResource":"","verbs":["ponder"],"colour":{}}]}]}]"#,
        );
        let document = Document::parse(text.as_bytes()).unwrap();
        assert_eq!(
            written(&document),
            list(
                r#"[{"metadata":{"name":"g"},"versions":[{"version":"v1","resources":[{"resource":"r","scope":"Galaxy","singularResource":"","verbs":["ponder"]}],"freshness":"Fermented"}]}]"#
            )
        );
    }

    #[test]
    fn a_resource_without_verbs_serialises_like_a_server() {
        let text = list(
            r#"[{"metadata":{"name":"g"},"versions":[{"version":"v1","resources":[{"resource":"r","responseKind":{"group":"","version":"","kind":""},"scope":"Cluster","singularResource":"","verbs":null,"subresources":[{"subresource":"s","acceptedTypes":[{"group":"g","version":"v1","kind":"K"}],"verbs":["get"]}]}],"freshness":"Stale"}]}]"#,
        );
        let document = Document::parse(text.as_bytes()).unwrap();
        assert_eq!(written(&document), text);
    }

    #[test]
    fn another_kind_is_rejected_by_name() {
        let long = format!(r#"{{"kind":"{}"}}"#, "K".repeat(5000));
        let rows = [
            (
                r#"{"kind":"APIGroupList","apiVersion":"v1","groups":[]}"#,
                "found APIGroupList of v1",
            ),
            (
                r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":403}"#,
                "found Status of v1",
            ),
            (
                r#"{"kind":"APIVersions","versions":["v1"]}"#,
                "found APIVersions",
            ),
            (
                r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v3","items":7}"#,
                "found APIGroupDiscoveryList of apidiscovery.k8s.io/v3",
            ),
            ("{}", "found an object without a kind"),
            (&long, &format!("found {}", "K".repeat(80))),
        ];
        for (text, expected) in rows {
            let error = Document::parse(text.as_bytes()).unwrap_err();
            assert!(matches!(error, ParseError::WrongKind { .. }), "{error:?}");
            assert_eq!(
                error.to_string(),
                format!("expected APIGroupDiscoveryList, {expected}")
            );
        }
    }

    #[test]
    fn a_truncated_document_is_malformed() {
        let whole = list(r#"[{"metadata":{"name":"g"}}]"#);
        for end in 0..whole.len() {
            let error = Document::parse(&whole.as_bytes()[..end]).unwrap_err();
            assert!(matches!(error, ParseError::Malformed { .. }), "{error:?}");
        }
    }
}
