//! What the kube-apiserver of one release serves.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skewbridge_discovery::document::{Group, Scope};
use skewbridge_field_sets::ServerFields;
use skewbridge_k8s_api::version::Version;

use crate::error::Error;

/// The built-in APIs of a release, and the fields of their kinds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The release that was queried.
    pub version: Version,
    apis: BTreeMap<ApiName, Api>,
    fields: ServerFields,
}

/// A resource in one version of its group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ApiName {
    /// Empty for the core group.
    pub group: String,
    /// `v1`, `v1beta1`, ...
    pub version: String,
    /// In the plural: `deployments`.
    pub resource: String,
}

/// How a release serves a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Api {
    /// `Deployment`
    pub kind: String,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// Whether it is served without `--runtime-config` and feature gates.
    pub by_default: bool,
    /// Whether its objects are stored: they can be listed.
    pub listable: bool,
}

impl ApiName {
    /// `apps/v1`, or `v1` for the core group.
    pub fn group_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// `deployments.v1.apps`, as kubectl accepts it.
    pub fn qualified(&self) -> String {
        match self.group.as_str() {
            "" => self.resource.clone(),
            group => format!("{}.{}.{group}", self.resource, self.version),
        }
    }
}

impl Release {
    /// From what a server of the release serves by default, from what it serves with all APIs
    /// enabled, and from its OpenAPI with all APIs enabled.
    pub fn new(version: Version, default: &[Group], all: &[Group], fields: ServerFields) -> Self {
        let by_default: BTreeSet<_> = named(default).map(|(name, _)| name).collect();
        let apis = named(all).map(|(name, mut api)| {
            api.by_default = by_default.contains(&name);
            (name, api)
        });
        Self {
            version,
            apis: apis.collect(),
            fields,
        }
    }

    /// How the release serves a resource.
    pub fn api(&self, name: &ApiName) -> Option<&Api> {
        self.apis.get(name)
    }

    /// All resources, sorted by group, version and name.
    pub fn apis(&self) -> impl Iterator<Item = (&ApiName, &Api)> {
        self.apis.iter()
    }

    /// The versions in which the release serves a resource by default.
    pub fn default_versions<'a>(
        &'a self,
        group: &'a str,
        resource: &'a str,
    ) -> impl Iterator<Item = &'a str> {
        let same = move |name: &&ApiName| name.group == group && name.resource == resource;
        self.apis
            .iter()
            .filter(move |(name, api)| same(name) && api.by_default)
            .map(|(name, _)| name.version.as_str())
    }

    /// The fields of each kind.
    pub fn fields(&self) -> &ServerFields {
        &self.fields
    }

    /// The text of a data file, with one API per line.
    pub fn to_json(&self) -> Result<String, Error> {
        let mut text = format!("{{\"version\":\"{}\",\"apis\":[", self.version);
        for (number, (name, api)) in self.apis.iter().enumerate() {
            let separator = if number == 0 { "\n" } else { ",\n" };
            text.push_str(separator);
            text.push_str(&serde_json::to_string(&Line { name, api })?);
        }
        let fields = self.fields.to_json();
        text.push_str("\n],\"fields\":\n");
        text.push_str(&String::from_utf8_lossy(&fields));
        text.push_str("}\n");
        Ok(text)
    }

    /// Parses a data file.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let file: File = serde_json::from_str(text)?;
        let version = file.version.parse();
        let version = version.map_err(|_| Error::Version(file.version.clone()))?;
        let apis = file.apis.into_iter().map(|line| (line.name, line.api));
        Ok(Self {
            version,
            apis: apis.collect(),
            fields: ServerFields::from_json(file.fields.to_string().as_bytes())?,
        })
    }
}

/// The resources of discovery. A resource of which only subresources are served has no verbs, and
/// is left out.
pub(crate) fn named(groups: &[Group]) -> impl Iterator<Item = (ApiName, Api)> {
    groups.iter().flat_map(|group| {
        group.versions.iter().flat_map(move |version| {
            let served = version.resources.iter().filter(|it| !it.verbs.is_empty());
            served.map(move |resource| {
                let name = ApiName {
                    group: group.name().to_owned(),
                    version: version.version.clone(),
                    resource: resource.resource.clone(),
                };
                let kind = resource.response_kind.as_ref();
                let api = Api {
                    kind: kind.map(|it| it.kind.clone()).unwrap_or_default(),
                    namespaced: resource.scope == Scope::Namespaced,
                    by_default: false,
                    listable: resource.verbs.iter().any(|verb| verb == "list"),
                };
                (name, api)
            })
        })
    })
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    name: &'a ApiName,
    #[serde(flatten)]
    api: &'a Api,
}

#[derive(Deserialize)]
struct File {
    version: String,
    apis: Vec<OwnedLine>,
    fields: Value,
}

#[derive(Deserialize)]
struct OwnedLine {
    #[serde(flatten)]
    name: ApiName,
    #[serde(flatten)]
    api: Api,
}
