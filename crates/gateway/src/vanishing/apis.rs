//! The built-in APIs that a newer release does not serve.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use skewbridge_released_apis::{ApiName, Minor, Release, known_minors, release_of};

/// Why calls to an API are counted, the most severe reason first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The target release does not have the API.
    Removed,
    /// The target release serves the API only with `--runtime-config` or a feature gate, and an
    /// earlier release serves it by default.
    OffByDefault,
    /// The server warns that the API is deprecated.
    Deprecated,
}

impl Reason {
    /// The metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Removed => "removed",
            Self::OffByDefault => "off-by-default",
            Self::Deprecated => "deprecated",
        }
    }
}

/// The releases that are compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Releases {
    /// The newest server of the cluster, once known.
    pub(crate) newest: Option<Minor>,
    /// The release whose missing APIs are watched.
    pub(crate) target: Option<Minor>,
}

impl Releases {
    /// The target is that of `--watch-target`, or the minor version after the newest server.
    pub(crate) fn new(newest: Option<Minor>, watch_target: Option<Minor>) -> Self {
        let next = newest.map(|newest| Minor {
            minor: newest.minor.saturating_add(1),
            ..newest
        });
        Self {
            newest,
            target: watch_target.or(next),
        }
    }
}

/// The built-in APIs whose calls are counted. Lookups do not allocate.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchedApis {
    pub(crate) releases: Releases,
    /// Whether the APIs of the newest server and those of the target are known.
    pub(crate) is_target_known: bool,
    /// Sorted by name.
    apis: Vec<(ApiName, Reason)>,
}

impl WatchedApis {
    /// From the data of released versions.
    pub(crate) fn of(releases: Releases) -> Result<Self, skewbridge_released_apis::Error> {
        let (Some(newest), Some(target)) = (releases.newest, releases.target) else {
            return Ok(Self::unknown(releases));
        };
        let is_newest_known = known_minors().any(|it| it == newest);
        let later = release_of(target)?.filter(|_| is_newest_known);
        let Some(later) = later else {
            return Ok(Self::unknown(releases));
        };
        let mut earlier = Vec::new();
        for minor in known_minors().filter(|it| *it <= newest) {
            earlier.extend(release_of(minor)?);
        }
        Ok(Self {
            releases,
            is_target_known: true,
            apis: removed(&earlier, &later).into_iter().collect(),
        })
    }

    /// Without knowing what vanishes.
    pub(crate) fn unknown(releases: Releases) -> Self {
        Self {
            releases,
            ..Self::default()
        }
    }

    /// Why calls to this API are counted.
    pub(crate) fn find(&self, group: &str, version: &str, resource: &str) -> Option<Reason> {
        let wanted = (group, version, resource);
        let found = self.apis.binary_search_by(|(name, _)| {
            (&*name.group, &*name.version, &*name.resource).cmp(&wanted)
        });
        found.ok().map(|index| self.apis[index].1)
    }
}

/// The APIs that one of the earlier releases serves and the later one does not. The servers of a
/// cluster may be of any of them: a bridge forwards calls of APIs that only an older server has.
///
/// As in `ApiChanges::between`, an API that is off by default in both was enabled by a flag, which is
/// expected to stay.
fn removed(earlier: &[Release], later: &Release) -> BTreeMap<ApiName, Reason> {
    let mut found = BTreeMap::new();
    for (name, api) in earlier.iter().flat_map(Release::apis) {
        let reason = match later.api(name) {
            None => Reason::Removed,
            Some(later) if api.by_default && !later.by_default => Reason::OffByDefault,
            Some(_) => continue,
        };
        found.insert(name.clone(), reason);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minor(text: &str) -> Minor {
        text.parse().unwrap()
    }

    fn watched(newest: &str, target: Option<&str>) -> WatchedApis {
        let releases = Releases::new(Some(minor(newest)), target.map(minor));
        WatchedApis::of(releases).unwrap()
    }

    #[test]
    fn the_target_is_the_next_minor_version_unless_a_flag_sets_it() {
        for (newest, flag, expected) in [
            (None, None, None),
            (None, Some("1.37"), Some("1.37")),
            (Some("1.34"), None, Some("1.35")),
            (Some("1.34"), Some("1.37"), Some("1.37")),
        ] {
            let releases = Releases::new(newest.map(minor), flag.map(minor));
            assert_eq!(releases.target, expected.map(minor), "{newest:?} {flag:?}");
        }
    }

    #[test]
    fn apis_of_the_own_release_and_of_older_ones_are_watched() {
        const STORAGE: (&str, &str, &str) =
            ("storage.k8s.io", "v1alpha1", "volumeattributesclasses");
        const BETA: (&str, &str, &str) = ("storage.k8s.io", "v1beta1", "volumeattributesclasses");
        const FLOWS: (&str, &str, &str) =
            ("flowcontrol.apiserver.k8s.io", "v1beta2", "flowschemas");
        const DEPLOYMENTS: (&str, &str, &str) = ("apps", "v1", "deployments");
        const REMOVED: Option<Reason> = Some(Reason::Removed);
        // (newest server, --watch-target, API, expected)
        let rows = [
            ("1.28", None, FLOWS, REMOVED),
            // Of an older server beside it.
            ("1.29", None, FLOWS, REMOVED),
            ("1.33", None, STORAGE, None),
            ("1.34", None, STORAGE, REMOVED),
            ("1.36", None, STORAGE, REMOVED),
            ("1.34", None, BETA, None),
            ("1.34", Some("1.37"), BETA, REMOVED),
            ("1.36", None, BETA, REMOVED),
            // A rollback.
            ("1.36", Some("1.33"), STORAGE, None),
            ("1.36", None, DEPLOYMENTS, None),
            ("1.36", None, ("example.com", "v1", "widgets"), None),
        ];
        for (newest, target, api, expected) in rows {
            let watched = watched(newest, target);
            assert!(watched.is_target_known);
            let found = watched.find(api.0, api.1, api.2);
            assert_eq!(found, expected, "{newest} {target:?} {api:?}");
        }
    }

    #[test]
    fn without_data_of_both_releases_no_api_is_watched() {
        let rows = [
            ("1.20", None),
            ("1.37", None),
            ("1.36", Some("1.99")),
            // The APIs of the newest server are not known.
            ("1.99", Some("1.37")),
            ("1.20", Some("1.37")),
        ];
        for (newest, target) in rows {
            let watched = watched(newest, target);
            assert!(!watched.is_target_known, "{newest} {target:?}");
            assert!(watched.apis.is_empty());
        }
        assert!(
            WatchedApis::of(Releases::default())
                .unwrap()
                .apis
                .is_empty()
        );
    }

    /// The resources of a release, and whether they are served by default.
    type Apis<'a> = &'a [(&'a str, bool)];

    #[test]
    fn an_api_that_a_later_release_turns_off_is_watched_unless_it_was_enabled_by_a_flag() {
        let release = |apis: Apis<'_>| {
            let mut json = serde_json::json!({"version": "1.0.0", "fields": {}, "apis": []});
            let lines = apis.iter().map(|(resource, by_default)| {
                serde_json::json!({"group": "g", "version": "v1", "resource": resource,
                    "kind": "K", "namespaced": true, "byDefault": by_default, "listable": true})
            });
            json["apis"] = lines.collect();
            let fields = skewbridge_field_sets::ServerFields::default().to_json();
            json["fields"] = serde_json::from_slice(&fields).unwrap();
            Release::from_json(&json.to_string()).unwrap()
        };
        // (earlier releases, later release, expected)
        let rows: [(&[Apis<'_>], Apis<'_>, Option<Reason>); 7] = [
            (&[&[("x", true)]], &[("x", true)], None),
            (
                &[&[("x", true)]],
                &[("x", false)],
                Some(Reason::OffByDefault),
            ),
            (&[&[("x", false)]], &[("x", false)], None),
            (&[&[("x", false)]], &[], Some(Reason::Removed)),
            (&[&[("x", true)], &[]], &[], Some(Reason::Removed)),
            (
                &[&[("x", true)], &[("x", false)]],
                &[("x", false)],
                Some(Reason::OffByDefault),
            ),
            (&[&[]], &[("x", true)], None),
        ];
        for (earlier, later, expected) in rows {
            let releases: Vec<_> = earlier.iter().map(|it| release(it)).collect();
            let found = removed(&releases, &release(later));
            assert_eq!(
                found.values().next().copied(),
                expected,
                "{earlier:?} {later:?}"
            );
        }
    }
}
