//! Fields of objects that not every server has, for the placement rule `fields`.
//!
//! A kube-apiserver decodes an object into its own types: it drops the fields that it does not
//! have, also when it patches or deletes an object that a newer server has stored.

use std::collections::{BTreeMap, BTreeSet};

use skewbridge_field_sets::FieldPath;
use skewbridge_k8s_api::request_info::{Kind, RequestInfo, Verb};
use skewbridge_peer_directory::Identity;

/// `--guard-fields`: which requests go to a server that has every field of the kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FieldGuard {
    /// None.
    Off,
    /// Writes, and reads of a single object: they are the base of an update.
    #[default]
    Writes,
    /// Writes, reads, lists and watches.
    All,
}

impl FieldGuard {
    /// Whether the rule applies to a request.
    pub fn covers(self, request: &RequestInfo<'_>) -> bool {
        // These subresources do not store the object.
        let is_stored = !matches!(
            request.subresource,
            "attach" | "exec" | "log" | "portforward" | "proxy" | "token"
        );
        let is_covered = match request.verb {
            Verb::Create
            | Verb::Update
            | Verb::Patch
            | Verb::Delete
            | Verb::DeleteCollection
            | Verb::Get => self != Self::Off,
            Verb::List | Verb::Watch => self == Self::All,
            _ => false,
        };
        request.kind == Kind::Resource && is_stored && is_covered
    }
}

/// The resources whose kinds do not have the same fields on all servers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FieldDifferences {
    /// By group and resource.
    groups: BTreeMap<String, BTreeMap<String, KindDifference>>,
    /// While the fields of a server are not known: any kind may differ.
    unknown: Option<KindDifference>,
}

/// How servers differ in the fields of a kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KindDifference {
    /// The servers that have every field; if there is none, the newest.
    pub complete: CompleteServers,
    /// The fields that not all servers have.
    pub fields: Vec<FieldPath>,
    /// The fields that each server lacks and another one has.
    pub lacking: LackingFields,
}

/// The fields that servers lack. `None` is the local server.
pub type LackingFields = BTreeMap<Option<Identity>, Vec<FieldPath>>;

impl KindDifference {
    /// The fields that one of these servers lacks, without duplicates. A server that is not known may
    /// lack all of them.
    pub fn lacked_by<'a>(
        &self,
        servers: impl IntoIterator<Item = Option<&'a Identity>>,
    ) -> Vec<FieldPath> {
        let mut lacked = BTreeSet::new();
        for server in servers {
            let fields = self.lacking.iter().find(|(it, _)| it.as_ref() == server);
            lacked.extend(fields.map_or(&self.fields, |(_, fields)| fields));
        }
        lacked.into_iter().cloned().collect()
    }
}

/// The servers that have every field of a kind. `None` is the local server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompleteServers(BTreeSet<Option<Identity>>);

impl CompleteServers {
    /// Whether no server has every field.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a server has every field. `None` is the local server.
    pub fn contains(&self, server: Option<&Identity>) -> bool {
        self.0.iter().any(|it| it.as_ref() == server)
    }
}

impl FromIterator<Option<Identity>> for CompleteServers {
    fn from_iter<T: IntoIterator<Item = Option<Identity>>>(servers: T) -> Self {
        Self(servers.into_iter().collect())
    }
}

impl FieldDifferences {
    /// Every kind may differ, and only these servers are taken to have every field.
    pub fn unknown(complete: CompleteServers) -> Self {
        Self {
            groups: BTreeMap::new(),
            unknown: Some(KindDifference {
                complete,
                ..KindDifference::default()
            }),
        }
    }

    /// Whether the fields of all servers are known.
    pub fn are_known(&self) -> bool {
        self.unknown.is_none()
    }

    /// Whether it is known how servers differ in the fields of a resource.
    pub fn is_known(&self, group: &str, resource: &str) -> bool {
        let difference = self.difference(group, resource);
        self.are_known() || difference.is_some_and(|it| !it.fields.is_empty())
    }

    /// The number of resources whose fields differ.
    pub fn len(&self) -> usize {
        self.groups.values().map(BTreeMap::len).sum()
    }

    /// Whether the fields of no resource differ.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.unknown.is_none()
    }

    /// Adds a resource whose fields differ.
    pub fn insert(&mut self, group: &str, resource: &str, difference: KindDifference) {
        let resources = self.groups.entry(group.to_owned()).or_default();
        resources.insert(resource.to_owned(), difference);
    }

    /// How servers differ in the fields of a resource; `None` if they do not.
    pub fn difference(&self, group: &str, resource: &str) -> Option<&KindDifference> {
        // A legacy Binding changes the pod that it names.
        let resource = match (group, resource) {
            ("", "bindings") => "pods",
            _ => resource,
        };
        let known = self.groups.get(group).and_then(|it| it.get(resource));
        known.or(self.unknown.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use skewbridge_k8s_api::request_info::DecodedPath;

    use super::*;

    #[test]
    fn what_servers_lack_is_the_union_and_everything_for_an_unknown_one() {
        let paths = |texts: &[&str]| -> Vec<FieldPath> {
            texts.iter().map(|it| it.parse().unwrap()).collect()
        };
        let [a, b, c] = ["a", "b", "c"].map(|name| Identity::named(name).unwrap());
        let difference = KindDifference {
            fields: paths(&["x", "y", "z"]),
            lacking: LackingFields::from([
                (None, paths(&["x", "y"])),
                (Some(a.clone()), paths(&["y", "z"])),
                (Some(b.clone()), Vec::new()),
            ]),
            ..KindDifference::default()
        };
        let rows: [(&[Option<&Identity>], &[&str]); 5] = [
            (&[None], &["x", "y"]),
            (&[None, Some(&a)], &["x", "y", "z"]),
            (&[Some(&b)], &[]),
            (&[Some(&b), Some(&c)], &["x", "y", "z"]),
            (&[], &[]),
        ];
        for (servers, expected) in rows {
            let got = difference.lacked_by(servers.iter().copied());
            assert_eq!(got, paths(expected), "{servers:?}");
        }
    }

    #[test]
    fn the_guard_covers_requests_that_can_erase_a_field_or_prepare_that() {
        let rows = [
            ("GET", "/api/v1/nodes/n", false, true, true),
            ("GET", "/api/v1/nodes/n/status", false, true, true),
            ("GET", "/api/v1/nodes", false, false, true),
            ("GET", "/api/v1/nodes?watch=true", false, false, true),
            ("POST", "/api/v1/nodes", false, true, true),
            ("PUT", "/api/v1/nodes/n", false, true, true),
            ("PATCH", "/api/v1/nodes/n/status", false, true, true),
            ("DELETE", "/api/v1/nodes/n", false, true, true),
            ("DELETE", "/api/v1/nodes", false, true, true),
            (
                "POST",
                "/api/v1/namespaces/n/pods/p/eviction",
                false,
                true,
                true,
            ),
            (
                "GET",
                "/api/v1/namespaces/n/pods/p/log",
                false,
                false,
                false,
            ),
            (
                "POST",
                "/api/v1/namespaces/n/pods/p/exec",
                false,
                false,
                false,
            ),
            ("GET", "/apis", false, false, false),
        ];
        for (method, target, off, writes, all) in rows {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let path = DecodedPath::new(path).unwrap();
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let request = RequestInfo::parse(&method, &path, Some(query));
            let got = [FieldGuard::Off, FieldGuard::Writes, FieldGuard::All]
                .map(|guard| guard.covers(&request));
            assert_eq!(got, [off, writes, all], "{method} {target}");
        }
    }
}
