//! Differences between servers: everything that some of them serve and others do not.

use std::collections::BTreeMap;

use crate::document::{Document, Freshness};

/// The differences between servers, which are identified by their index in the argument of
/// [`diff`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skew {
    /// How much each server serves.
    pub servers: Vec<DiffCounts>,
    /// Sorted by group, version, resource and subresource. Each verb of a resource is in
    /// exactly one entry, or in none if all servers have it.
    pub differences: Vec<Difference>,
    /// Group versions that a server reports as stale, because the server behind them does not
    /// answer. Only those with differences.
    pub stale: Vec<StaleGroup>,
}

/// How much a server serves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiffCounts {
    /// Resources, once for each version of a group.
    pub resources: usize,
    /// Subresources.
    pub subresources: usize,
}

/// Verbs of a resource or subresource that the same servers have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Empty for the core group.
    pub group: String,
    /// The version of the group.
    pub version: String,
    /// In the plural: `pods`.
    pub resource: String,
    /// Empty for the resource itself.
    pub subresource: String,
    /// Sorted.
    pub verbs: Vec<String>,
    /// The servers that have it, in order; never empty.
    pub on: Vec<usize>,
    /// The servers that do not, in order; never empty.
    pub missing: Vec<MissingOn>,
}

/// A server that does not have something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingOn {
    /// Its index.
    pub server: usize,
    /// The largest missing unit that includes it.
    pub missing: Missing,
}

/// The largest unit that a server lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// Verbs of a resource or subresource that it has.
    Verbs,
    /// The subresource of a resource that it has.
    Subresource,
    /// The resource, in a version that it has.
    Resource,
    /// The whole group version.
    Version,
}

/// A group version that is not up to date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleGroup {
    /// The group.
    pub group: String,
    /// Its version.
    pub version: String,
    /// The servers that report it.
    pub on: Vec<usize>,
}

/// Compares what servers serve: of each, its documents (`/api` and `/apis`).
///
/// ```
/// use skewbridge_discovery::diff::{Missing, diff};
/// use skewbridge_discovery::Document;
///
/// let serving = |resources: &str| {
///     Document::parse(format!(r#"{{
///         "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
///         "items": [{{"metadata": {{"name": "apps"}}, "versions": [
///             {{"version": "v1", "resources": {resources}}}]}}]
///     }}"#).as_bytes())
/// };
/// let old = serving("[]")?;
/// let new = serving(r#"[{"resource": "deployments", "verbs": ["get"]}]"#)?;
/// let skew = diff(&[&[&old], &[&new]]);
/// assert_eq!(skew.differences[0].resource, "deployments");
/// assert_eq!(skew.differences[0].on, [1]);
/// assert_eq!(skew.differences[0].missing[0].missing, Missing::Resource);
/// assert_eq!(skew.missing_from(0).count(), 1);
/// # Ok::<(), skewbridge_discovery::ParseError>(())
/// ```
pub fn diff(servers: &[&[&Document]]) -> Skew {
    let mut versions = BTreeMap::<(&str, &str), Version<'_>>::new();
    for (server, documents) in servers.iter().enumerate() {
        for group in documents.iter().flat_map(|document| &document.items) {
            for version in &group.versions {
                let known = versions
                    .entry((group.name(), &version.version))
                    .or_default();
                known.add(server, version);
            }
        }
    }
    let mut skew = Skew {
        servers: vec![DiffCounts::default(); servers.len()],
        ..Skew::default()
    };
    for ((group, name), version) in &versions {
        let before = skew.differences.len();
        version.compare(group, name, &mut skew);
        if skew.differences.len() > before && !version.stale.is_empty() {
            skew.stale.push(StaleGroup {
                group: (*group).to_owned(),
                version: (*name).to_owned(),
                on: version.stale.0.clone(),
            });
        }
    }
    skew
}

impl Skew {
    /// Whether all servers serve the same.
    pub fn is_empty(&self) -> bool {
        self.differences.is_empty()
    }

    /// The differences that only this server has.
    pub fn only_on(&self, server: usize) -> impl Iterator<Item = &Difference> {
        self.differences
            .iter()
            .filter(move |difference| difference.on == [server])
    }

    /// What a client of this server alone would miss.
    pub fn missing_from(&self, server: usize) -> impl Iterator<Item = &Difference> {
        self.differences
            .iter()
            .filter(move |difference| difference.missing_on(server).is_some())
    }
}

impl Difference {
    /// The largest unit of this difference that a server lacks, if it lacks any.
    pub fn missing_on(&self, server: usize) -> Option<Missing> {
        let mut missing = self.missing.iter();
        missing
            .find(|missing| missing.server == server)
            .map(|missing| missing.missing)
    }
}

/// Indexes of servers, ascending.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Servers(Vec<usize>);

impl Servers {
    /// Servers are added in order, so only the last one can be present already.
    fn add(&mut self, server: usize) {
        if self.0.last() != Some(&server) {
            self.0.push(server);
        }
    }

    fn has(&self, server: usize) -> bool {
        self.0.binary_search(&server).is_ok()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The servers that list a group version, and what they list of it.
#[derive(Default)]
struct Version<'a> {
    on: Servers,
    stale: Servers,
    resources: BTreeMap<&'a str, Resource<'a>>,
}

#[derive(Default)]
struct Resource<'a> {
    /// The servers that have it, or at least a subresource of it.
    on: Servers,
    itself: Verbs<'a>,
    subresources: BTreeMap<&'a str, Verbs<'a>>,
}

#[derive(Default)]
struct Verbs<'a> {
    /// The servers that have any verb.
    on: Servers,
    by_name: BTreeMap<&'a str, Servers>,
}

impl<'a> Version<'a> {
    fn add(&mut self, server: usize, version: &'a crate::document::Version) {
        self.on.add(server);
        if version.freshness == Freshness::Stale {
            self.stale.add(server);
        }
        for resource in version
            .resources
            .iter()
            .filter(|it| !it.resource.is_empty())
        {
            let known = self.resources.entry(&resource.resource).or_default();
            known.itself.add(server, &resource.verbs);
            if !resource.verbs.is_empty() {
                known.on.add(server);
            }
            let named = resource.subresources.iter();
            for subresource in named.filter(|it| !it.subresource.is_empty()) {
                let verbs = known
                    .subresources
                    .entry(&subresource.subresource)
                    .or_default();
                verbs.add(server, &subresource.verbs);
                if !subresource.verbs.is_empty() {
                    known.on.add(server);
                }
            }
        }
    }

    fn compare(&self, group: &str, version: &str, skew: &mut Skew) {
        for (name, resource) in &self.resources {
            let itself = std::iter::once(("", &resource.itself));
            let parts = itself.chain(resource.subresources.iter().map(|(name, it)| (*name, it)));
            for (subresource, verbs) in parts {
                for server in &verbs.on.0 {
                    if let Some(counts) = skew.servers.get_mut(*server) {
                        counts.count(subresource);
                    }
                }
                let missing_unit = |server| {
                    if !self.on.has(server) {
                        Missing::Version
                    } else if !resource.on.has(server) {
                        Missing::Resource
                    } else if verbs.on.has(server) {
                        Missing::Verbs
                    } else if subresource.is_empty() {
                        Missing::Resource
                    } else {
                        Missing::Subresource
                    }
                };
                for (on, verbs) in verbs.grouped_by_servers() {
                    let missing: Vec<_> = (0..skew.servers.len())
                        .filter(|server| !on.has(*server))
                        .map(|server| MissingOn {
                            server,
                            missing: missing_unit(server),
                        })
                        .collect();
                    if !missing.is_empty() {
                        skew.differences.push(Difference {
                            group: group.to_owned(),
                            version: version.to_owned(),
                            resource: (*name).to_owned(),
                            subresource: subresource.to_owned(),
                            verbs,
                            on: on.0.clone(),
                            missing,
                        });
                    }
                }
            }
        }
    }
}

impl<'a> Verbs<'a> {
    fn add(&mut self, server: usize, verbs: &'a [String]) {
        for verb in verbs {
            self.on.add(server);
            self.by_name.entry(verb).or_default().add(server);
        }
    }

    /// Verbs, grouped by the servers that have them.
    fn grouped_by_servers(&self) -> BTreeMap<&Servers, Vec<String>> {
        let mut together = BTreeMap::<&Servers, Vec<String>>::new();
        for (verb, on) in &self.by_name {
            together.entry(on).or_default().push((*verb).to_owned());
        }
        together
    }
}

impl DiffCounts {
    fn count(&mut self, subresource: &str) {
        if subresource.is_empty() {
            self.resources += 1;
        } else {
            self.subresources += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line each, like `apps/v1 deployments get,list`; `!` in front marks a stale version.
    fn serving(lines: &[&str]) -> Document {
        let mut document = Document::default();
        for line in lines {
            let (line, freshness) = match line.strip_prefix('!') {
                Some(line) => (line, Freshness::Stale),
                None => (*line, Freshness::Current),
            };
            let words: Vec<_> = line.split(' ').collect();
            let (group, version) = words[0].split_once('/').unwrap_or(("", words[0]));
            let mut resource = crate::document::Resource::default();
            if let [_, name, verbs] = words[..] {
                let verbs = verbs.split(',').map(str::to_owned).collect();
                let (name, subresource) = name.split_once('/').unwrap_or((name, ""));
                name.clone_into(&mut resource.resource);
                if subresource.is_empty() {
                    resource.verbs = verbs;
                } else {
                    resource.subresources = vec![crate::document::Subresource {
                        subresource: subresource.to_owned(),
                        verbs,
                        ..Default::default()
                    }];
                }
            }
            document.items.push(crate::document::Group {
                metadata: crate::document::Metadata {
                    name: group.to_owned(),
                    ..Default::default()
                },
                versions: vec![crate::document::Version {
                    version: version.to_owned(),
                    resources: vec![resource],
                    freshness,
                }],
            });
        }
        document
    }

    /// `apps/v1 deployments/scale get: 0, not 1 (Version)`
    fn described(skew: &Skew) -> Vec<String> {
        let line = |it: &Difference| {
            let missing: Vec<_> = it
                .missing
                .iter()
                .map(|missing| format!("{} ({:?})", missing.server, missing.missing))
                .collect();
            format!(
                "{}/{} {}/{} {}: {:?}, not {}",
                it.group,
                it.version,
                it.resource,
                it.subresource,
                it.verbs.join(","),
                it.on,
                missing.join(" ")
            )
        };
        skew.differences.iter().map(line).collect()
    }

    #[test]
    fn each_difference_is_reported_once_with_the_largest_missing_unit() {
        type Row = (
            &'static str,
            &'static [&'static [&'static str]],
            &'static [&'static str],
        );
        let rows: [Row; 9] = [
            ("no server", &[], &[]),
            ("one server", &[&["v1 pods get"]], &[]),
            (
                "the same",
                &[&["v1 pods get,list"], &["v1 pods list,get"]],
                &[],
            ),
            (
                "a version",
                &[
                    &[
                        "v1 pods get",
                        "apps/v1 sets get,list",
                        "apps/v1 sets/scale get",
                    ],
                    &["v1 pods get"],
                ],
                &[
                    "apps/v1 sets/ get,list: [0], not 1 (Version)",
                    "apps/v1 sets/scale get: [0], not 1 (Version)",
                ],
            ),
            (
                "a resource and all of it",
                &[
                    &["v1 pods get"],
                    &["v1 pods get", "v1 nodes get", "v1 nodes/log get"],
                ],
                &[
                    "/v1 nodes/ get: [1], not 0 (Resource)",
                    "/v1 nodes/log get: [1], not 0 (Resource)",
                ],
            ),
            (
                "a subresource",
                &[&["v1 pods get"], &["v1 pods get", "v1 pods/resize patch"]],
                &["/v1 pods/resize patch: [1], not 0 (Subresource)"],
            ),
            (
                "verbs, also those of an API of its own",
                &[&["v1 pods get,ponder,watch"], &["v1 pods get"]],
                &["/v1 pods/ ponder,watch: [0], not 1 (Verbs)"],
            ),
            (
                "a resource of which the other has a subresource only",
                &[&["v1 pods get", "v1 pods/log get"], &["v1 pods/log get"]],
                &["/v1 pods/ get: [0], not 1 (Resource)"],
            ),
            (
                "three of which each lacks something else",
                &[
                    &["v1 pods get"],
                    &["v1 pods get", "g/v1 x get"],
                    &["v1 pods get,list", "g/v1 x get,list", "g/v1 y get"],
                ],
                &[
                    "/v1 pods/ list: [2], not 0 (Verbs) 1 (Verbs)",
                    "g/v1 x/ get: [1, 2], not 0 (Version)",
                    "g/v1 x/ list: [2], not 0 (Version) 1 (Verbs)",
                    "g/v1 y/ get: [2], not 0 (Version) 1 (Resource)",
                ],
            ),
        ];
        for (name, servers, expected) in rows {
            let documents: Vec<_> = servers.iter().map(|lines| serving(lines)).collect();
            let documents: Vec<_> = documents.iter().map(|it| vec![it]).collect();
            let documents: Vec<&[&Document]> = documents.iter().map(Vec::as_slice).collect();
            let skew = diff(&documents);
            assert_eq!(described(&skew), expected, "{name}");
            assert_eq!(skew.is_empty(), expected.is_empty(), "{name}");
            assert_eq!(skew.servers.len(), servers.len(), "{name}");
        }
    }

    #[test]
    fn a_version_without_resources_is_not_a_difference() {
        let listed = serving(&["v1 pods get", "g/v1"]);
        let absent = serving(&["v1 pods get"]);
        assert!(diff(&[&[&listed], &[&absent]]).is_empty());
    }

    #[test]
    fn resources_are_counted_per_server() {
        let old = serving(&["v1 pods get", "g/v1 x get"]);
        let new = serving(&["v1 pods get", "v1 pods/log get", "g/v2 x get"]);
        let core = serving(&["v1 nodes get"]);
        let skew = diff(&[&[&core, &old], &[&core, &new]]);
        let counts = |resources, subresources| DiffCounts {
            resources,
            subresources,
        };
        assert_eq!(skew.servers, [counts(3, 0), counts(3, 1)]);
        let names = |of: Vec<&Difference>| -> Vec<String> {
            of.iter()
                .map(|it| format!("{}/{} {}", it.group, it.version, it.subresource))
                .collect()
        };
        assert_eq!(names(skew.only_on(0).collect()), ["g/v1 "]);
        assert_eq!(names(skew.only_on(1).collect()), ["/v1 log", "g/v2 "]);
        assert_eq!(names(skew.missing_from(0).collect()), ["/v1 log", "g/v2 "]);
        assert_eq!(names(skew.missing_from(1).collect()), ["g/v1 "]);
    }

    #[test]
    fn a_stale_version_is_reported_if_it_differs() {
        let current = serving(&["g/v1 x get", "h/v1 y get"]);
        let stale = serving(&["!g/v1", "!h/v1 y get"]);
        let skew = diff(&[&[&current], &[&stale]]);
        assert_eq!(described(&skew), ["g/v1 x/ get: [0], not 1 (Resource)"]);
        assert_eq!(
            skew.stale,
            [StaleGroup {
                group: "g".to_owned(),
                version: "v1".to_owned(),
                on: vec![1],
            }]
        );
    }
}
