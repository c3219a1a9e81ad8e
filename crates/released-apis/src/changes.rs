//! Which APIs another release removes from those that a server serves, and which it adds.

use std::collections::{BTreeMap, BTreeSet};

use skewbridge_discovery::document::Group;

use crate::release::{Api, ApiName, Release, named};

/// The APIs that another release removes and adds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiChanges {
    /// Served now, not served by the other release; sorted.
    pub removed: Vec<RemovedApi>,
    /// Not served now, served by the other release by default; sorted.
    pub added: Vec<ApiName>,
}

/// An API that another release does not serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedApi {
    /// The API.
    pub name: ApiName,
    /// How it is served now.
    pub api: Api,
    /// Why the other release does not serve it.
    pub reason: Removal,
    /// The versions in which the other release serves the same resource, the most stable one first.
    pub remaining_versions: Vec<String>,
}

/// Why a release does not serve an API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Removal {
    /// The release does not have it.
    Absent,
    /// The release has it, but serves it only with `--runtime-config` or a feature gate, while
    /// the current release serves it by default.
    OffByDefault,
}

impl ApiChanges {
    /// Compares what a server serves with the release `target`. `current` are the releases of the
    /// server: the one that it emulates, and its own, whose APIs flags may enable as well. The first
    /// one that has an API counts.
    ///
    /// An API that `current` does not have is a custom resource or an aggregated API: these are
    /// stored in the cluster and do not depend on the release. One that is off by default, but is
    /// served, was enabled by a flag; the flag is expected to stay.
    pub fn between(served: &[Group], current: &[&Release], target: &Release) -> Self {
        let served: BTreeMap<_, _> = named(served)
            .filter_map(|(name, _)| {
                let api = current.iter().find_map(|it| it.api(&name))?.clone();
                Some((name, api))
            })
            .collect();
        let mut removed = Vec::new();
        for (name, api) in &served {
            let reason = match target.api(name) {
                None => Removal::Absent,
                Some(later) if api.by_default && !later.by_default => Removal::OffByDefault,
                Some(_) => continue,
            };
            let enabled: BTreeSet<_> = target
                .apis()
                .filter(|(other, api)| {
                    other.group == name.group
                        && other.resource == name.resource
                        && (api.by_default || served.contains_key(other))
                        && *other != name
                })
                .map(|(other, _)| other.version.clone())
                .collect();
            let mut enabled: Vec<_> = enabled.into_iter().collect();
            enabled.sort_by_key(|version| std::cmp::Reverse(priority(version)));
            removed.push(RemovedApi {
                name: name.clone(),
                api: api.clone(),
                reason,
                remaining_versions: enabled,
            });
        }
        let added = target
            .apis()
            .filter(|(name, api)| api.by_default && !served.contains_key(name))
            .map(|(name, _)| name.clone())
            .collect();
        Self { removed, added }
    }
}

/// The order of versions as in Kubernetes' own discovery: stable before beta before alpha, then by
/// number (`CompareKubeAwareVersionStrings` of k8s.io/apimachinery).
fn priority(version: &str) -> (u8, u32, u32) {
    let number = |text: &str| text.parse().unwrap_or_default();
    let rest = version.strip_prefix('v').unwrap_or(version);
    match (rest.split_once("beta"), rest.split_once("alpha")) {
        (Some((major, minor)), _) => (1, number(major), number(minor)),
        (None, Some((major, minor))) => (0, number(major), number(minor)),
        (None, None) => (2, number(rest), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skewbridge_discovery::Document;
    use skewbridge_field_sets::ServerFields;

    /// `GROUP/VERSION RESOURCE`, separated by commas.
    fn groups(text: &str) -> Vec<Group> {
        let mut items = Vec::new();
        for api in text.split(", ").filter(|it| !it.is_empty()) {
            let (group_version, resource) = api.split_once(' ').unwrap();
            let (group, version) = group_version.split_once('/').unwrap();
            items.push(format!(
                r#"{{"metadata":{{"name":"{group}"}},"versions":[{{"version":"{version}",
                "resources":[{{"resource":"{resource}","scope":"Namespaced",
                "responseKind":{{"kind":"K"}},"verbs":["get","list"]}}]}}]}}"#
            ));
        }
        let document = format!(
            r#"{{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2",
            "items":[{}]}}"#,
            items.join(",")
        );
        Document::parse(document.as_bytes()).unwrap().items
    }

    fn release(default: &str, all: &str) -> Release {
        let version = "1.0.0".parse().unwrap();
        Release::new(
            version,
            &groups(default),
            &groups(all),
            ServerFields::default(),
        )
    }

    #[test]
    fn an_emulated_release_counts_before_that_of_the_program() {
        let target = release("b/v1 y", "b/v1 y, c/v1 z");
        let own = release("b/v1 y", "b/v1 y, c/v1 z");
        let emulated = release("a/v1 x, c/v1 z", "a/v1 x, c/v1 z");
        let served = groups("a/v1 x, b/v1 y, c/v1 z");
        let removed = |current: &[&Release]| {
            let changes = ApiChanges::between(&served, current, &target);
            let removed = changes.removed.into_iter();
            removed
                .map(|it| (it.name.resource, it.reason))
                .collect::<Vec<_>>()
        };
        assert_eq!(removed(&[&own]), []);
        assert_eq!(
            removed(&[&emulated, &own]),
            [
                ("x".to_owned(), Removal::Absent),
                ("z".to_owned(), Removal::OffByDefault)
            ]
        );
    }

    #[test]
    fn the_most_stable_version_is_first() {
        let mut versions = ["v1alpha3", "v1beta1", "v2", "v1", "v1beta2", "v2alpha1"];
        versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
        let expected = ["v2", "v1", "v1beta2", "v1beta1", "v2alpha1", "v1alpha3"];
        assert_eq!(versions, expected);
    }

    #[test]
    fn apis_that_go_and_come_are_found() {
        // (served, current: default, all; target: default, all; removed, added)
        let rows = [
            ("a/v1 x", "a/v1 x", "a/v1 x", "a/v1 x", "a/v1 x", "", ""),
            // Gone, with and without another version.
            ("a/v1 x", "a/v1 x", "a/v1 x", "", "", "a/v1 x Absent", ""),
            (
                "a/v1beta1 x, a/v1 x",
                "a/v1beta1 x, a/v1 x",
                "a/v1beta1 x, a/v1 x",
                "a/v1 x",
                "a/v1 x",
                "a/v1beta1 x Absent: v1",
                "",
            ),
            // Replaced by a version that is new.
            (
                "a/v1beta1 x",
                "a/v1beta1 x",
                "a/v1beta1 x",
                "a/v1 x",
                "a/v1 x",
                "a/v1beta1 x Absent: v1",
                "a/v1 x",
            ),
            // On by default before, and off by default afterwards.
            (
                "a/v1 x",
                "a/v1 x",
                "a/v1 x",
                "",
                "a/v1 x",
                "a/v1 x OffByDefault",
                "",
            ),
            // Enabled by a flag that stays.
            ("a/v1 x", "", "a/v1 x", "", "a/v1 x", "", ""),
            // Enabled by a flag, and gone.
            ("a/v1 x", "", "a/v1 x", "", "", "a/v1 x Absent", ""),
            // A version that is off by default is no replacement.
            (
                "a/v1 x",
                "a/v1 x",
                "a/v1 x",
                "",
                "a/v2 x",
                "a/v1 x Absent",
                "",
            ),
            // Custom resources do not depend on the release.
            ("example.com/v1 x", "", "", "", "", "", ""),
            // New, but off by default.
            ("", "", "", "", "a/v1 x", "", ""),
        ];
        for (served, default, all, target_default, target_all, removed, added) in rows {
            let changes = ApiChanges::between(
                &groups(served),
                &[&release(default, all)],
                &release(target_default, target_all),
            );
            let name = |name: &ApiName| format!("{} {}", name.group_version(), name.resource);
            let described = changes.removed.iter().map(|it| {
                let rest = match it.remaining_versions.join(",") {
                    none if none.is_empty() => none,
                    versions => format!(": {versions}"),
                };
                format!("{} {:?}{rest}", name(&it.name), it.reason)
            });
            assert_eq!(
                described.collect::<Vec<_>>().join("; "),
                removed,
                "{served}"
            );
            let come: Vec<_> = changes.added.iter().map(name).collect();
            assert_eq!(come.join("; "), added, "{served}");
        }
    }
}
