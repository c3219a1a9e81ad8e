//! The APIs that a kube-apiserver of each version serves.
//!
//! The data are the discovery documents of real servers with default settings. They include the
//! differences that the tour shows: `mutatingadmissionpolicies` of
//! `admissionregistration.k8s.io/v1` are served from 1.36 on, `resource.k8s.io/v1` by 1.34 and
//! 1.36, and flow control's `v1beta2` and `v1beta3` by 1.28 alone.

use std::fmt;
use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA512, digest};
use skewbridge_discovery::document::{Document, Resource, Schema, Scope, Subresource, Version};
use skewbridge_discovery::lists::{ApiGroup, ApiGroupList, ApiResourceList};
use skewbridge_discovery::{Layout, Object as _, ParseError};
use skewbridge_k8s_api::request_info::{Kind, RequestInfo};

use skewbridge_k8s_api::content_negotiation::Format;

use crate::status::GroupResource;

/// A version of Kubernetes that the playground has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // the names of the variants describe them
pub enum Release {
    V1_28,
    V1_34,
    V1_36,
}

/// The APIs of a server of one version.
#[derive(Debug, Clone)]
pub struct Catalogue {
    release: Release,
    api: Document,
    apis: Document,
}

/// A resource or subresource, as a request finds it.
#[derive(Debug, Clone, Copy)]
pub struct Served<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    /// The version of the group.
    pub version: &'a str,
    /// The resource, or that of the subresource.
    pub resource: &'a Resource,
    /// The subresource, if the request is for one.
    pub subresource: Option<&'a Subresource>,
}

impl Release {
    /// The oldest first.
    pub const ALL: [Self; 3] = [Self::V1_28, Self::V1_34, Self::V1_36];

    /// The full version of the server that these documents are from.
    pub fn git_version(self) -> &'static str {
        match self {
            Self::V1_28 => "v1.28.15",
            Self::V1_34 => "v1.34.4",
            Self::V1_36 => "v1.36.4",
        }
    }

    /// The release of a name such as `1.34`.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|release| release.to_string() == name)
    }

    /// Whether it serves a version of `apidiscovery.k8s.io`.
    pub fn serves_discovery_schema(self, schema: Schema) -> bool {
        // Servers with v2 no longer serve v2beta1.
        (schema == Schema::V2Beta1) == (self == Self::V1_28)
    }

    fn documents(self) -> (&'static str, &'static str) {
        match self {
            Self::V1_28 => (
                include_str!("../data/1.28-api.json"),
                include_str!("../data/1.28-apis.json"),
            ),
            Self::V1_34 => (
                include_str!("../data/1.34-api.json"),
                include_str!("../data/1.34-apis.json"),
            ),
            Self::V1_36 => (
                include_str!("../data/1.36-api.json"),
                include_str!("../data/1.36-apis.json"),
            ),
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::V1_28 => "1.28",
            Self::V1_34 => "1.34",
            Self::V1_36 => "1.36",
        })
    }
}

impl Catalogue {
    /// The catalogue of a version. The data are part of the program; a test shows that they are
    /// valid.
    pub fn new(release: Release) -> Result<Self, ParseError> {
        let (api, apis) = release.documents();
        let api = Document::parse(api.as_bytes())?;
        let apis = Document::parse(apis.as_bytes())?;
        Ok(Self { release, api, apis })
    }

    /// Its version.
    pub fn release(&self) -> Release {
        self.release
    }

    /// The document at `/api` or `/apis`, in a version that the server supports.
    pub fn document(&self, root: Root, schema: Schema) -> Option<Document> {
        self.release
            .serves_discovery_schema(schema)
            .then(|| Document {
                schema,
                ..self.root(root).clone()
            })
    }

    /// The `ETag` of a document, computed as by kube-apiserver: without the kind, so the same in
    /// every version of it.
    pub fn etag(&self, root: Root) -> String {
        let bytes = self.root(root).write(Format::Json, Layout::Compact);
        let text = String::from_utf8_lossy(&bytes);
        let content = text.find("\"metadata\"").map_or("", |at| &text[at..]);
        let content = format!("{{{}", content.trim_end());
        let mut etag = String::from("\"");
        for byte in digest(&SHA512, content.as_bytes()).as_ref() {
            // Writing to a String does not fail.
            let _ = write!(etag, "{byte:02X}");
        }
        etag.push('"');
        etag
    }

    /// `/apis` for clients without aggregated discovery.
    pub fn groups(&self) -> ApiGroupList {
        ApiGroupList::from_document(&self.apis)
    }

    /// `/apis/GROUP`
    pub fn group(&self, group: &str) -> Option<ApiGroup> {
        self.apis.group(group).map(ApiGroup::from_group)
    }

    /// `/api/v1` and `/apis/GROUP/VERSION`
    pub fn resources(&self, group: &str, version: &str) -> Option<ApiResourceList> {
        let version = self.version(group, version)?;
        Some(ApiResourceList::from_version(group, version))
    }

    /// Whether it serves a group-version: kube-apiserver has different messages for an unknown
    /// resource and an unknown version.
    pub fn has_version(&self, group: &str, version: &str) -> bool {
        self.version(group, version).is_some()
    }

    /// The resource of a request, whatever its verb.
    pub fn find(&self, request: &RequestInfo<'_>) -> Option<Served<'_>> {
        if request.kind != Kind::Resource {
            return None;
        }
        let mut found = self.resource(request.group, request.version, request.resource)?;
        if request.subresource.is_empty() {
            return (!found.resource.verbs.is_empty()).then_some(found);
        }
        let mut subresources = found.resource.subresources.iter();
        let subresource = subresources.find(|it| it.subresource == request.subresource)?;
        found.subresource = Some(subresource);
        Some(found)
    }

    /// A resource of a version of a group.
    pub fn resource(&self, group: &str, version: &str, resource: &str) -> Option<Served<'_>> {
        let root = self.root(Root::of(group));
        let group = root.group(group)?;
        let version = group.version(version)?;
        let mut resources = version.resources.iter();
        Some(Served {
            group: group.name(),
            version: &version.version,
            resource: resources.find(|it| it.resource == resource)?,
            subresource: None,
        })
    }

    /// All resources, each in the version that its group prefers.
    pub fn preferred(&self) -> impl Iterator<Item = Served<'_>> {
        let groups = self.api.items.iter().chain(&self.apis.items);
        groups.flat_map(|group| {
            let versions = group.versions.iter().enumerate();
            versions.flat_map(move |(place, version)| {
                let earlier = &group.versions[..place];
                let new = move |resource: &&Resource| {
                    let same = |it: &Resource| it.resource == resource.resource;
                    !earlier.iter().any(|it| it.resources.iter().any(same))
                };
                let resources = version.resources.iter().filter(new);
                resources.map(move |resource| Served {
                    group: group.name(),
                    version: &version.version,
                    resource,
                    subresource: None,
                })
            })
        })
    }

    /// All groups and their versions.
    pub fn versions(&self) -> impl Iterator<Item = (&str, &str)> {
        let groups = self.api.items.iter().chain(&self.apis.items);
        groups.flat_map(|group| {
            let versions = group.versions.iter();
            versions.map(|version| (group.name(), version.version.as_str()))
        })
    }

    /// The resources of a version of a group.
    pub fn in_version<'a>(
        &'a self,
        group: &'a str,
        version: &str,
    ) -> impl Iterator<Item = Served<'a>> {
        let version = self.version(group, version).into_iter();
        version.flat_map(move |version| {
            let resources = version.resources.iter();
            resources.map(move |resource| Served {
                group,
                version: &version.version,
                resource,
                subresource: None,
            })
        })
    }

    fn version(&self, group: &str, version: &str) -> Option<&Version> {
        self.root(Root::of(group)).version(group, version)
    }

    fn root(&self, root: Root) -> &Document {
        match root {
            Root::Api => &self.api,
            Root::Apis => &self.apis,
        }
    }
}

/// The discovery roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// `/api`: the core group.
    Api,
    /// `/apis`: all other groups.
    Apis,
}

impl Root {
    fn of(group: &str) -> Self {
        if group.is_empty() {
            Self::Api
        } else {
            Self::Apis
        }
    }
}

impl Served<'_> {
    /// Without the version.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.group, &self.resource.resource)
    }

    /// `apps/v1`, and `v1` of the core group.
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// The kind of its objects.
    pub fn kind(&self) -> &str {
        let kind = self.resource.response_kind.as_ref();
        kind.map(|it| it.kind.as_str()).unwrap_or_default()
    }

    /// Whether its objects are in namespaces.
    pub fn is_namespaced(&self) -> bool {
        self.resource.scope == Scope::Namespaced
    }

    /// Whether it, or the subresource, has a verb.
    pub fn allows(&self, verb: &str) -> bool {
        let verbs = match self.subresource {
            Some(subresource) => &subresource.verbs,
            None => &self.resource.verbs,
        };
        verbs.iter().any(|it| it == verb)
    }

    /// Whether it has a status subresource.
    pub fn has_status(&self) -> bool {
        let mut subresources = self.resource.subresources.iter();
        subresources.any(|it| it.subresource == "status")
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use skewbridge_k8s_api::request_info::DecodedPath;

    use super::*;

    fn catalogue(release: Release) -> Catalogue {
        Catalogue::new(release).unwrap()
    }

    #[test]
    fn documents_are_served_as_real_servers_wrote_them() {
        for release in Release::ALL {
            let catalogue = catalogue(release);
            let schema = match release {
                Release::V1_28 => Schema::V2Beta1,
                _ => Schema::V2,
            };
            let (api, apis) = release.documents();
            for (root, text) in [(Root::Api, api), (Root::Apis, apis)] {
                let document = catalogue.document(root, schema).unwrap();
                let written = document.write(Format::Json, Layout::Compact);
                assert_eq!(
                    String::from_utf8(written).unwrap().trim_end(),
                    text.trim_end()
                );
                assert_eq!(catalogue.etag(root).len(), 130);
            }
            assert_ne!(catalogue.etag(Root::Api), catalogue.etag(Root::Apis));
            assert_eq!(Release::named(&release.to_string()), Some(release));
        }
        assert_eq!(
            catalogue(Release::V1_28).document(Root::Api, Schema::V2),
            None
        );
        assert_eq!(Release::named("1.29"), None);
    }

    /// The tour depends on these.
    #[test]
    fn versions_differ_in_what_they_serve() {
        let rows = [
            (
                "admissionregistration.k8s.io",
                "v1",
                "mutatingadmissionpolicies",
                [false, false, true],
            ),
            (
                "admissionregistration.k8s.io",
                "v1",
                "validatingadmissionpolicies",
                [false, true, true],
            ),
            (
                "resource.k8s.io",
                "v1",
                "deviceclasses",
                [false, true, true],
            ),
            (
                "flowcontrol.apiserver.k8s.io",
                "v1beta2",
                "flowschemas",
                [true, false, false],
            ),
            (
                "flowcontrol.apiserver.k8s.io",
                "v1beta3",
                "flowschemas",
                [true, false, false],
            ),
            (
                "flowcontrol.apiserver.k8s.io",
                "v1",
                "flowschemas",
                [false, true, true],
            ),
            ("", "v1", "pods", [true, true, true]),
            ("apps", "v1", "deployments", [true, true, true]),
            ("coordination.k8s.io", "v1", "leases", [true, true, true]),
        ];
        for (group, version, resource, expected) in rows {
            let served = Release::ALL.map(|release| {
                catalogue(release)
                    .resource(group, version, resource)
                    .is_some()
            });
            assert_eq!(served, expected, "{group}/{version} {resource}");
        }
    }

    #[test]
    fn requests_find_their_resource() {
        let catalogue = catalogue(Release::V1_34);
        let rows = [
            (
                Method::GET,
                "/api/v1/namespaces/shop/pods/web",
                Some(("Pod", true)),
            ),
            (
                Method::PUT,
                "/api/v1/nodes/n1/status",
                Some(("Node", false)),
            ),
            (
                Method::GET,
                "/api/v1/namespaces/shop/pods/web/log",
                Some(("Pod", true)),
            ),
            (
                Method::GET,
                "/apis/apps/v1/deployments",
                Some(("Deployment", true)),
            ),
            (Method::GET, "/apis/apps/v1/none", None),
            (Method::GET, "/apis/apps/v2/deployments", None),
            (Method::GET, "/api/v1/namespaces/shop/pods/web/none", None),
            (Method::GET, "/version", None),
        ];
        for (method, path, expected) in rows {
            let path = DecodedPath::new(path).unwrap();
            let request = RequestInfo::parse(&method, &path, None);
            let found = catalogue.find(&request);
            let found_kind = found.as_ref().map(|it| (it.kind(), it.is_namespaced()));
            assert_eq!(found_kind, expected, "{path:?}");
            if let Some(found) = found {
                assert!(found.allows(request.verb.as_str()), "{path:?}");
            }
        }
        let pods = catalogue.resource("", "v1", "pods").unwrap();
        assert!(pods.has_status() && pods.allows("deletecollection") && !pods.allows("proxy"));
        assert_eq!(pods.resource.short_names, ["po"]);
        assert_eq!(pods.resource.categories, ["all"]);
        let scale = catalogue.resource("apps", "v1", "deployments").unwrap();
        assert_eq!(scale.api_version(), "apps/v1");
        assert_eq!(scale.group_resource().to_string(), "deployments.apps");
    }

    #[test]
    fn lists_match_the_documents() {
        let catalogue = catalogue(Release::V1_28);
        assert!(catalogue.groups().groups.iter().any(|it| it.name == "apps"));
        assert_eq!(
            catalogue.group("apps").unwrap().preferred_version.version,
            "v1"
        );
        assert_eq!(catalogue.group("none"), None);
        let core = catalogue.resources("", "v1").unwrap();
        assert!(core.resources.iter().any(|it| it.name == "pods/exec"));
        assert_eq!(catalogue.resources("apps", "v9"), None);
        assert!(catalogue.has_version("", "v1") && !catalogue.has_version("apps", "v9"));
    }

    #[test]
    fn each_resource_is_preferred_once() {
        let catalogue = catalogue(Release::V1_28);
        let mut all: Vec<_> = catalogue
            .preferred()
            .map(|it| it.group_resource())
            .collect();
        let flow = catalogue
            .preferred()
            .find(|it| it.resource.resource == "flowschemas");
        assert_eq!(flow.unwrap().version, "v1beta3");
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
