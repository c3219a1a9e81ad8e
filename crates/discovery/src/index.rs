//! An index of what one server serves, for lookups on every request.

use std::collections::BTreeMap;
use std::fmt;

use skewbridge_k8s_api::request_info::{Kind, RequestInfo, Verb};

use crate::document::Document;

/// What one server serves. Lookups do not allocate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    groups: ByName<ByName<ByName<IndexedResource>>>,
}

/// A resource or subresource that a server serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    /// The version of the group.
    pub version: &'a str,
    /// In the plural: `pods`.
    pub resource: &'a str,
    /// Empty for the resource itself.
    pub subresource: &'a str,
    /// The supported verbs.
    pub verbs: Verbs,
}

/// A set of verbs, as discovery lists them.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Verbs(u16);

/// A resource and its subresources.
#[derive(Debug, Clone, PartialEq, Eq)]
struct IndexedResource {
    verbs: Verbs,
    subresources: ByName<Verbs>,
}

/// Sorted by name. A fraction of a map's memory, and as fast at this size.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ByName<T>(Box<[(Box<str>, T)]>);

impl Index {
    /// From all documents of one server: `/api` and `/apis`.
    pub fn new(documents: &[&Document]) -> Self {
        type Resources<'a> = BTreeMap<&'a str, (Verbs, BTreeMap<&'a str, Verbs>)>;
        let mut groups: BTreeMap<&str, BTreeMap<&str, Resources<'_>>> = BTreeMap::new();
        for group in documents.iter().flat_map(|document| &document.items) {
            let versions = groups.entry(group.name()).or_default();
            for version in &group.versions {
                let resources = versions.entry(&version.version).or_default();
                // Resources without a name cannot be requested, and an empty name denotes the
                // resource itself.
                let named = version
                    .resources
                    .iter()
                    .filter(|it| !it.resource.is_empty());
                for resource in named {
                    let (verbs, subresources) = resources.entry(&resource.resource).or_default();
                    verbs.extend(&resource.verbs);
                    let named = resource.subresources.iter();
                    for subresource in named.filter(|it| !it.subresource.is_empty()) {
                        subresources
                            .entry(&subresource.subresource)
                            .or_default()
                            .extend(&subresource.verbs);
                    }
                }
            }
        }
        let groups = ByName::from(groups, |versions| {
            ByName::from(versions, |resources| {
                ByName::from(resources, |(verbs, subresources)| IndexedResource {
                    verbs,
                    subresources: ByName::from(subresources, |verbs| verbs),
                })
            })
        });
        Self { groups }
    }

    /// Whether the server serves a request, down to the subresource and the verb. Always false
    /// for a request without a resource.
    pub fn serves(&self, request: &RequestInfo<'_>) -> bool {
        request.kind == Kind::Resource
            && self
                .verbs(
                    request.group,
                    request.version,
                    request.resource,
                    request.subresource,
                )
                .allow(request.verb)
    }

    /// Whether the server serves a resource, and not only subresources of it.
    pub fn serves_resource(&self, group: &str, version: &str, resource: &str) -> bool {
        !self.verbs(group, version, resource, "").is_empty()
    }

    /// Whether the server lists a group version, even without resources.
    pub fn has_group_version(&self, group: &str, version: &str) -> bool {
        self.groups
            .get(group)
            .and_then(|versions| versions.get(version))
            .is_some()
    }

    /// The resources of a group with their versions, without subresources.
    pub fn resources_of(&self, group: &str) -> impl Iterator<Item = (&str, &str)> {
        let versions = self.groups.get(group).into_iter().flat_map(ByName::iter);
        versions.flat_map(|(version, resources)| {
            let served = resources.iter().filter(|(_, it)| !it.verbs.is_empty());
            served.map(move |(resource, _)| (version, resource))
        })
    }

    /// Everything that the server serves, sorted by group, version, resource and subresource.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.groups.iter().flat_map(|(group, versions)| {
            versions.iter().flat_map(move |(version, resources)| {
                resources.iter().flat_map(move |(resource, served)| {
                    std::iter::once(("", served.verbs))
                        .chain(
                            served
                                .subresources
                                .iter()
                                .map(|(name, verbs)| (name, *verbs)),
                        )
                        .filter(|(_, verbs)| !verbs.is_empty())
                        .map(move |(subresource, verbs)| Entry {
                            group,
                            version,
                            resource,
                            subresource,
                            verbs,
                        })
                })
            })
        })
    }

    /// What only this server serves, as sorted lines: `storage.k8s.io/v1alpha1
    /// volumeattributesclasses`, `v1 pods/resize`. A difference in verbs alone does not count.
    pub fn difference(&self, others: &[&Self]) -> Vec<String> {
        self.difference_without(others, |_, _| false)
    }

    /// Like [`Self::difference`], without some group-versions: those that all servers share.
    pub fn difference_without(
        &self,
        others: &[&Self],
        leave_out: impl Fn(&str, &str) -> bool,
    ) -> Vec<String> {
        let is_elsewhere = |entry: &Entry<'_>| {
            let (group, version) = (entry.group, entry.version);
            let verbs =
                |other: &&Self| other.verbs(group, version, entry.resource, entry.subresource);
            others.iter().any(|other| !verbs(other).is_empty())
        };
        let mut lines: Vec<_> = self
            .entries()
            .filter(|entry| !leave_out(entry.group, entry.version) && !is_elsewhere(entry))
            .map(|entry| entry.to_string())
            .collect();
        lines.sort_unstable();
        lines
    }

    /// The empty set for a resource that is not served.
    fn verbs(&self, group: &str, version: &str, resource: &str, subresource: &str) -> Verbs {
        self.groups
            .get(group)
            .and_then(|versions| versions.get(version))
            .and_then(|resources| resources.get(resource))
            .and_then(|served| match subresource {
                "" => Some(served.verbs),
                name => served.subresources.get(name).copied(),
            })
            .unwrap_or_default()
    }
}

impl fmt::Display for Entry<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.group.is_empty() {
            write!(out, "{}/", self.group)?;
        }
        write!(out, "{} {}", self.version, self.resource)?;
        if !self.subresource.is_empty() {
            write!(out, "/{}", self.subresource)?;
        }
        Ok(())
    }
}

impl Verbs {
    /// In the order of their bits.
    const NAMES: [&str; 8] = [
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    ];
    /// Verbs that only custom APIs have.
    const OTHERS: u16 = 1 << Self::NAMES.len();

    /// Whether the set has no verb: then a server answers 404.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether a server with these verbs answers a request with this verb. Verbs that
    /// discovery does not list are answered by any server that has the resource, at least with
    /// 405.
    pub fn allow(self, verb: Verb) -> bool {
        match verb {
            Verb::Create
            | Verb::Delete
            | Verb::DeleteCollection
            | Verb::Get
            | Verb::List
            | Verb::Patch
            | Verb::Update
            | Verb::Watch => self.0 & Self::bit(verb.as_str()) != 0,
            Verb::Proxy | Verb::Post | Verb::Put | Verb::Head | Verb::Options | Verb::Other => {
                !self.is_empty()
            }
        }
    }

    /// The standard verbs, sorted.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES
            .into_iter()
            .filter(move |name| self.0 & Self::bit(name) != 0)
    }

    fn bit(name: &str) -> u16 {
        match Self::NAMES.iter().position(|known| *known == name) {
            Some(place) => 1 << place,
            None => Self::OTHERS,
        }
    }

    fn extend(&mut self, names: &[String]) {
        for name in names {
            self.0 |= Self::bit(name);
        }
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others = (self.0 & Self::OTHERS != 0).then_some("...");
        out.debug_set().entries(self.names().chain(others)).finish()
    }
}

impl<T> ByName<T> {
    fn from<F>(sorted: BTreeMap<&str, F>, mut finish: impl FnMut(F) -> T) -> Self {
        Self(
            sorted
                .into_iter()
                .map(|(name, found)| (name.into(), finish(found)))
                .collect(),
        )
    }

    fn get(&self, name: &str) -> Option<&T> {
        let place = self.0.binary_search_by(|(known, _)| (**known).cmp(name));
        place
            .ok()
            .and_then(|place| self.0.get(place))
            .map(|(_, it)| it)
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.0.iter().map(|(name, it)| (&**name, it))
    }
}

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self(Box::default())
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use skewbridge_k8s_api::request_info::DecodedPath;

    use super::*;

    fn served_by(groups: &str) -> Index {
        let text = format!(
            r#"{{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":{groups}}}"#
        );
        Index::new(&[&Document::parse(text.as_bytes()).unwrap()])
    }

    fn small_index() -> Index {
        served_by(
            r#"[{"metadata":{},"versions":[{"version":"v1","resources":[
                    {"resource":"namespaces","verbs":["create","delete","get","list","patch","update","watch"],
                     "subresources":[{"subresource":"finalize","verbs":["update"]},{"subresource":"status","verbs":["get","patch","update"]}]},
                    {"resource":"pods","verbs":["create","delete","deletecollection","get","list","patch","update","watch"],
                     "subresources":[{"subresource":"exec","verbs":["create","get"]},{"subresource":"log","verbs":["get"]},
                        {"subresource":"proxy","verbs":["create","delete","get","patch","update"]},{"subresource":"hollow","verbs":[]}]},
                    {"resource":"reviews","verbs":["create"]}]}]},
                {"metadata":{"name":"odd.example"},"versions":[
                    {"version":"v1","resources":[
                        {"resource":"orphans","verbs":null,"subresources":[{"subresource":"status","verbs":["get"]}]},
                        {"resource":"customs","verbs":["ponder"]}]},
                    {"version":"v2","freshness":"Stale"}]}]"#,
        )
    }

    #[test]
    fn a_request_is_served_where_group_version_resource_subresource_and_verb_are_listed() {
        let index = small_index();
        let rows = [
            ("GET", "/api/v1/pods", true),
            ("GET", "/api/v1/pods?watch=true", true),
            ("GET", "/api/v1/watch/pods", true),
            ("HEAD", "/api/v1/namespaces/a/pods/b", true),
            ("POST", "/api/v1/namespaces/a/pods", true),
            ("DELETE", "/api/v1/namespaces/a/pods", true),
            ("GET", "/apis/v1/v1/pods", false),
            ("GET", "/api/v2/pods", false),
            ("GET", "/api/v1/podlings", false),
            ("GET", "/api/v1/pod", false),
            // Listed without the verb.
            ("DELETE", "/api/v1/namespaces", false),
            ("DELETE", "/api/v1/namespaces/a", true),
            ("POST", "/api/v1/reviews", true),
            ("GET", "/api/v1/reviews", false),
            ("GET", "/api/v1/reviews?watch", false),
            ("PATCH", "/api/v1/reviews/a", false),
            // Subresources.
            ("GET", "/api/v1/namespaces/a/status", true),
            ("PUT", "/api/v1/namespaces/a/finalize", true),
            ("GET", "/api/v1/namespaces/a/finalize", false),
            ("GET", "/api/v1/namespaces/a/pods/b/log", true),
            ("DELETE", "/api/v1/namespaces/a/pods/b/log", false),
            ("GET", "/api/v1/namespaces/a/pods/b/resize", false),
            ("GET", "/api/v1/namespaces/a/pods/b/hollow", false),
            ("OPTIONS", "/api/v1/namespaces/a/pods/b/hollow", false),
            // Streams and proxies.
            ("GET", "/api/v1/namespaces/a/pods/b/exec?command=ls", true),
            ("POST", "/api/v1/namespaces/a/pods/b/exec?command=ls", true),
            ("PUT", "/api/v1/namespaces/a/pods/b/exec", false),
            ("DELETE", "/api/v1/namespaces/a/pods/b:80/proxy/x/y", true),
            ("OPTIONS", "/api/v1/namespaces/a/pods/b/proxy/x", true),
            ("GET", "/api/v1/proxy/namespaces/a/pods/b/x", true),
            ("GET", "/api/v1/proxy/namespaces/a/podlings/b/x", false),
            // The server answers 405 itself.
            ("OPTIONS", "/api/v1/reviews", true),
            ("BREW", "/api/v1/reviews", true),
            ("BREW", "/api/v1/podlings", false),
            // A parent that is listed only for its subresources.
            ("GET", "/apis/odd.example/v1/orphans/a", false),
            ("OPTIONS", "/apis/odd.example/v1/orphans/a", false),
            ("GET", "/apis/odd.example/v1/orphans/a/status", true),
            // Custom verbs.
            ("GET", "/apis/odd.example/v1/customs", false),
            ("OPTIONS", "/apis/odd.example/v1/customs", true),
            // No resources at all.
            ("GET", "/api/v1", false),
            ("GET", "/apis/odd.example/v1", false),
            ("GET", "/healthz", false),
            ("GET", "/api/v1/watch", false),
        ];
        for (method, target, expected) in rows {
            let (path, query) = match target.split_once('?') {
                Some((path, query)) => (path, Some(query)),
                None => (target, None),
            };
            let path = DecodedPath::new(path).unwrap();
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let info = RequestInfo::parse(&method, &path, query);
            assert_eq!(index.serves(&info), expected, "{method} {target}: {info:?}");
        }
    }

    #[test]
    fn resources_and_versions_are_found() {
        let index = small_index();
        assert!(index.serves_resource("", "v1", "pods"));
        assert!(index.serves_resource("odd.example", "v1", "customs"));
        assert!(!index.serves_resource("odd.example", "v1", "orphans"));
        assert!(!index.serves_resource("", "v1", "pods/log"));
        assert!(!index.serves_resource("apps", "v1", "pods"));
        assert!(index.has_group_version("", "v1"));
        assert!(index.has_group_version("odd.example", "v2"));
        assert!(!index.has_group_version("odd.example", "v3"));
        assert!(!index.has_group_version("odd", "v1"));
        assert!(!Index::default().has_group_version("", "v1"));
    }

    #[test]
    fn entries_have_at_least_one_verb() {
        let index = small_index();
        let entries: Vec<_> = index.entries().map(|entry| entry.to_string()).collect();
        assert_eq!(
            entries,
            [
                "v1 namespaces",
                "v1 namespaces/finalize",
                "v1 namespaces/status",
                "v1 pods",
                "v1 pods/exec",
                "v1 pods/log",
                "v1 pods/proxy",
                "v1 reviews",
                "odd.example/v1 customs",
                "odd.example/v1 orphans/status",
            ]
        );
        let log = index.entries().find(|it| it.subresource == "log").unwrap();
        assert_eq!(log.verbs.names().collect::<Vec<_>>(), ["get"]);
        assert_eq!(
            format!(
                "{:?}",
                index
                    .entries()
                    .find(|it| it.resource == "customs")
                    .unwrap()
                    .verbs
            ),
            r#"{"..."}"#
        );
    }

    #[test]
    fn the_difference_is_what_no_other_server_serves() {
        let index = small_index();
        let pods = served_by(
            r#"[{"metadata":{},"versions":[{"version":"v1","resources":[
                {"resource":"pods","verbs":["get"],"subresources":[{"subresource":"log","verbs":[]}]}]}]}]"#,
        );
        let namespaces = served_by(
            r#"[{"metadata":{},"versions":[{"version":"v1","resources":[
                {"resource":"namespaces","verbs":[],"subresources":[{"subresource":"status","verbs":["get"]}]}]}]}]"#,
        );
        assert_eq!(
            index.difference(&[&pods, &namespaces]),
            [
                "odd.example/v1 customs",
                "odd.example/v1 orphans/status",
                "v1 namespaces",
                "v1 namespaces/finalize",
                "v1 pods/exec",
                "v1 pods/log",
                "v1 pods/proxy",
                "v1 reviews",
            ]
        );
        assert_eq!(index.difference(&[]).len(), index.entries().count());
        assert!(index.difference(&[&pods, &index]).is_empty());
    }

    #[test]
    fn resources_without_a_name_are_not_served() {
        let index = served_by(
            r#"[{"metadata":{},"versions":[{"version":"v1","resources":[
                {"resource":"","verbs":["get","watch"]},
                {"resource":"pods","verbs":[],"subresources":[{"subresource":"","verbs":["get"]}]}]}]}]"#,
        );
        assert_eq!(index.entries().count(), 0);
        assert!(!index.serves_resource("", "v1", ""));
        assert!(!index.serves_resource("", "v1", "pods"));
    }

    #[test]
    fn a_group_in_two_documents_is_merged() {
        let one = r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[
            {"metadata":{"name":"g"},"versions":[{"version":"v1","resources":[{"resource":"r","verbs":["get"]}]}]}]}"#;
        let two = one.replace("get", "list");
        let one = Document::parse(one.as_bytes()).unwrap();
        let two = Document::parse(two.as_bytes()).unwrap();
        let index = Index::new(&[&one, &two]);
        let verbs: Vec<_> = index.entries().map(|it| it.verbs).collect();
        assert_eq!(verbs.len(), 1);
        assert!(verbs[0].allow(Verb::Get) && verbs[0].allow(Verb::List));
        assert_eq!(index, Index::new(&[&two, &one]));
    }
}
