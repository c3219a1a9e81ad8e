//! The kinds of admission policies that servers serve, and their newest versions.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use skewbridge_discovery::Index;

use super::ADMISSION_GROUP;

/// Kinds that are tracked. Kubernetes 1.36 has two.
const MAX_POLICY_KINDS: usize = 16;

/// Whether the objects of this resource of the admission group match requests by rules of their own.
/// A binding only selects objects of its policy, and every server calls webhooks.
pub(crate) fn is_policy_kind(resource: &str) -> bool {
    !resource.ends_with("bindings") && !resource.ends_with("webhookconfigurations")
}

/// Each kind of policy in the newest version that any of these servers serves.
pub(crate) fn newest_versions<'a>(
    servers: impl Iterator<Item = &'a Index>,
) -> BTreeMap<&'a str, PolicyVersion<'a>> {
    let mut newest = BTreeMap::new();
    for (version, resource) in servers.flat_map(|it| it.resources_of(ADMISSION_GROUP)) {
        if !is_policy_kind(resource)
            || (newest.len() >= MAX_POLICY_KINDS && !newest.contains_key(resource))
        {
            continue;
        }
        let version = PolicyVersion(version);
        let known = newest.entry(resource).or_insert(version);
        *known = version.max(*known);
    }
    newest
}

/// A version of an API, ordered as Kubernetes does: `v2` is newer than `v1`, which is newer than
/// every beta version, which is newer than every alpha version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PolicyVersion<'a>(pub(crate) &'a str);

impl PolicyVersion<'_> {
    /// Stability, major and minor number; `None` for other texts.
    fn key(self) -> Option<(u8, u32, u32)> {
        let numbers = self.0.strip_prefix('v')?;
        for (stability, name) in [(1, "alpha"), (2, "beta")] {
            if let Some((major, minor)) = numbers.split_once(name) {
                return Some((stability, major.parse().ok()?, minor.parse().ok()?));
            }
        }
        Some((3, numbers.parse().ok()?, 0))
    }
}

impl Ord for PolicyVersion<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.key().cmp(&other.key())).then_with(|| self.0.cmp(other.0))
    }
}

impl PartialOrd for PolicyVersion<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skewbridge_discovery::Document;

    use super::*;

    fn server(group: &str, served: &[(&str, &str)]) -> Index {
        let versions: Vec<_> = served
            .iter()
            .map(|(version, resource)| {
                json!({"version": version, "resources": [
                    {"resource": resource, "scope": "Cluster", "verbs": ["list"]}]})
            })
            .collect();
        let text = json!({"kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2",
            "items": [{"metadata": {"name": group}, "versions": versions}]});
        Index::new(&[&Document::parse(text.to_string().as_bytes()).unwrap()])
    }

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let ascending = [
            "foo10",
            "v1alpha1",
            "v1alpha2",
            "v11alpha2",
            "v1beta1",
            "v3beta1",
            "v1",
            "v2",
            "v10",
        ];
        assert!(ascending.map(PolicyVersion).is_sorted());
    }

    #[test]
    fn the_newest_version_of_each_policy_kind_is_found() {
        let servers = [
            server(ADMISSION_GROUP, &[("v1", "a"), ("v1beta1", "b")]),
            server(ADMISSION_GROUP, &[("v1alpha1", "a"), ("v1", "b")]),
            server(ADMISSION_GROUP, &[("v1", "abindings")]),
            server(ADMISSION_GROUP, &[("v1", "mutatingwebhookconfigurations")]),
            server("apps", &[("v1", "c")]),
        ];
        let newest: Vec<_> = newest_versions(servers.iter()).into_iter().collect();
        assert_eq!(
            newest,
            [("a", PolicyVersion("v1")), ("b", PolicyVersion("v1"))]
        );
    }
}
