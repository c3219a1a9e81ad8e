//! Clusters of released versions.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use skewbridge_discovery::document::{Group, GroupVersionKind, Metadata, Resource, Scope, Version};
use skewbridge_released_apis::{ApiName, Release, known_minors, release_of};
use skewbridge_upgrade_check::facts::{Components, ObjectCount, Server};
use skewbridge_upgrade_check::{Facts, apis};

const YEAR: Duration = Duration::from_hours(365 * 24);

pub(crate) fn release(minor: &str) -> Release {
    release_of(minor.parse().unwrap()).unwrap().expect(minor)
}

/// All known releases.
pub(crate) fn releases() -> &'static [Release] {
    static RELEASES: LazyLock<Vec<Release>> =
        LazyLock::new(|| known_minors().map(|it| release(&it.to_string())).collect());
    &RELEASES
}

/// The discovery of a server of a release.
pub(crate) fn discovery(
    release: &Release,
    is_served: impl Fn(&ApiName, bool) -> bool,
) -> Vec<Group> {
    let mut groups: BTreeMap<String, BTreeMap<String, Vec<Resource>>> = BTreeMap::new();
    for (name, api) in release.apis() {
        if !is_served(name, api.by_default) {
            continue;
        }
        let versions = groups.entry(name.group.clone()).or_default();
        let verbs: &[&str] = if api.listable {
            &["get", "list"]
        } else {
            &["create"]
        };
        versions
            .entry(name.version.clone())
            .or_default()
            .push(Resource {
                resource: name.resource.clone(),
                response_kind: Some(GroupVersionKind {
                    kind: api.kind.clone(),
                    ..GroupVersionKind::default()
                }),
                scope: if api.namespaced {
                    Scope::Namespaced
                } else {
                    Scope::Cluster
                },
                verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
                ..Resource::default()
            });
    }
    let groups = groups.into_iter().map(|(name, versions)| Group {
        metadata: Metadata {
            name,
            ..Metadata::default()
        },
        versions: versions
            .into_iter()
            .map(|(version, resources)| Version {
                version,
                resources,
                ..Version::default()
            })
            .collect(),
    });
    groups.collect()
}

/// A healthy server with the default APIs.
fn server(release: &Release) -> Server {
    Server {
        name: "cp-1".to_owned(),
        version: Ok(release.version),
        emulated: None,
        min_compatibility: None,
        bridge: None,
        discovery: Ok(discovery(release, |_, by_default| by_default)),
        failing_checks: Ok(Vec::new()),
        certificate_expiry: Ok(SystemTime::UNIX_EPOCH + YEAR),
        deprecated_calls: Ok(Vec::new()),
        storage_versions: Ok(BTreeMap::new()),
    }
}

/// A cluster without findings.
pub(crate) fn clean(current: &Release, target: &Release) -> Facts {
    let servers = vec![server(current)];
    let objects = apis::to_count(&servers, releases(), target);
    Facts {
        read_at: SystemTime::UNIX_EPOCH,
        kubelets: Ok(Vec::new()),
        components: Components::default(),
        objects: objects
            .into_keys()
            .map(|name| (name, Ok(ObjectCount::default())))
            .collect(),
        stored_versions: Ok(Vec::new()),
        migrations: Ok(Vec::new()),
        fields_in_use: Ok(Vec::new()),
        servers,
        unqueried: Vec::new(),
        unlisted: None,
    }
}
