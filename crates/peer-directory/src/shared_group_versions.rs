//! Group-versions that are never routed to a peer: those of custom resources and of aggregated
//! APIs. They are the same on every server, so one that is not served locally is not served at all;
//! a deleted one must not be "found" on a peer that has not noticed the deletion yet.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::watch::{Metadata, WatchEvent, WatchedObject};

/// How long a group-version stays shared after its deletion: the time that kube-apiserver gives its
/// peers to notice.
pub const DELETION_GRACE: Duration = Duration::from_mins(5);

/// The part of a `CustomResourceDefinition` that declares the served versions.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CustomResourceDefinition {
    metadata: Metadata,
    spec: CustomResourceSpec,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct CustomResourceSpec {
    group: Box<str>,
    versions: Vec<CustomResourceVersion>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct CustomResourceVersion {
    name: Box<str>,
    served: bool,
}

/// The part of an `APIService` that declares the served version and its backend.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ApiService {
    metadata: Metadata,
    spec: ApiServiceSpec,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct ApiServiceSpec {
    #[serde(default)]
    group: Box<str>,
    #[serde(default)]
    version: Box<str>,
    /// Every server registers its own APIs without a service.
    service: Option<serde_json::Value>,
}

impl WatchedObject for CustomResourceDefinition {
    fn name(&self) -> &str {
        &self.metadata.name
    }

    fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl WatchedObject for ApiService {
    fn name(&self) -> &str {
        &self.metadata.name
    }

    fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// Tracks the shared group-versions by lists and watches of both kinds.
#[derive(Debug, Default)]
pub struct SharedGroupVersionTracker {
    crds: ObjectVersions,
    api_services: ObjectVersions,
    groups: VersionsByGroup,
}

type GroupVersion = (Box<str>, Box<str>);

/// What each object declares, by its name.
type ObjectVersions = HashMap<Box<str>, Vec<GroupVersion>>;

impl SharedGroupVersionTracker {
    /// An empty tracker.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets all objects from a list. Returns whether the group-versions changed.
    pub fn set_crds(&mut self, all: &[CustomResourceDefinition], now: Instant) -> bool {
        set(&mut self.crds, &mut self.groups, all, now)
    }

    /// Applies a watch event. Returns whether the group-versions changed.
    pub fn on_crd(&mut self, event: &WatchEvent<CustomResourceDefinition>, now: Instant) -> bool {
        on_event(&mut self.crds, &mut self.groups, event, now)
    }

    /// Sets all objects from a list. Returns whether the group-versions changed.
    pub fn set_api_services(&mut self, all: &[ApiService], now: Instant) -> bool {
        set(&mut self.api_services, &mut self.groups, all, now)
    }

    /// Applies a watch event. Returns whether the group-versions changed.
    pub fn on_api_service(&mut self, event: &WatchEvent<ApiService>, now: Instant) -> bool {
        on_event(&mut self.api_services, &mut self.groups, event, now)
    }

    /// Whether the group-version is never routed to a peer.
    pub fn contains(&self, group: &str, version: &str, now: Instant) -> bool {
        self.groups.contains(group, version, now)
    }

    /// Removes group-versions whose grace has ended. Returns whether there were any; `contains` does
    /// not depend on it.
    pub fn prune(&mut self, now: Instant) -> bool {
        self.groups.prune(now)
    }

    /// Whether an `APIService` has a service: other servers serve its APIs.
    pub fn has_aggregated_apis(&self) -> bool {
        !self.api_services.is_empty()
    }

    /// An immutable snapshot.
    pub fn snapshot(&self) -> Arc<SharedGroupVersions> {
        Arc::new(SharedGroupVersions(self.groups.clone()))
    }
}

/// A snapshot of the shared group-versions. Reading it takes no lock and allocates nothing.
#[derive(Debug, Clone, Default)]
pub struct SharedGroupVersions(VersionsByGroup);

impl SharedGroupVersions {
    /// Whether the group-version is never routed to a peer.
    pub fn contains(&self, group: &str, version: &str, now: Instant) -> bool {
        self.0.contains(group, version, now)
    }
}

/// Versions by group. A group has few.
#[derive(Debug, Clone, Default)]
struct VersionsByGroup(HashMap<Box<str>, Vec<Version>>);

#[derive(Debug, Clone)]
struct Version {
    name: Box<str>,
    state: VersionState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VersionState {
    /// The number of objects that declare it: the kinds of a group share its versions.
    Declared(usize),
    /// No object has declared it since then.
    Deleted(Instant),
}

impl VersionState {
    fn is_in_effect(self, now: Instant) -> bool {
        match self {
            Self::Declared(_) => true,
            Self::Deleted(since) => now < since + DELETION_GRACE,
        }
    }
}

impl VersionsByGroup {
    fn contains(&self, group: &str, version: &str, now: Instant) -> bool {
        self.0.get(group).is_some_and(|versions| {
            versions
                .iter()
                .any(|found| *found.name == *version && found.state.is_in_effect(now))
        })
    }

    /// One more object declares it. Whether it is the first.
    fn declare(&mut self, (group, version): &GroupVersion) -> bool {
        let versions = self.0.entry(group.clone()).or_default();
        let Some(found) = versions.iter_mut().find(|found| found.name == *version) else {
            versions.push(Version {
                name: version.clone(),
                state: VersionState::Declared(1),
            });
            return true;
        };
        let (state, first) = match found.state {
            VersionState::Declared(count) => (VersionState::Declared(count + 1), false),
            VersionState::Deleted(_) => (VersionState::Declared(1), true),
        };
        found.state = state;
        first
    }

    /// One object fewer declares it. Whether it was the last.
    fn withdraw(&mut self, (group, version): &GroupVersion, now: Instant) -> bool {
        let versions = self.0.get_mut(group).into_iter().flatten();
        for found in versions.filter(|found| found.name == *version) {
            match &mut found.state {
                VersionState::Declared(count @ 2..) => *count -= 1,
                VersionState::Declared(_) => {
                    found.state = VersionState::Deleted(now);
                    return true;
                }
                VersionState::Deleted(_) => {}
            }
        }
        false
    }

    fn prune(&mut self, now: Instant) -> bool {
        let mut pruned = false;
        self.0.retain(|_, versions| {
            let before = versions.len();
            versions.retain(|version| version.state.is_in_effect(now));
            pruned |= versions.len() < before;
            !versions.is_empty()
        });
        pruned
    }
}

/// An object that declares group-versions.
trait DeclaresGroupVersions: WatchedObject {
    fn group_versions(&self) -> Vec<GroupVersion>;
}

impl DeclaresGroupVersions for CustomResourceDefinition {
    fn group_versions(&self) -> Vec<GroupVersion> {
        let served = self.spec.versions.iter().filter(|version| version.served);
        served
            .map(|version| (self.spec.group.clone(), version.name.clone()))
            .collect()
    }
}

impl DeclaresGroupVersions for ApiService {
    fn group_versions(&self) -> Vec<GroupVersion> {
        let spec = &self.spec;
        let aggregated = spec.service.as_ref();
        aggregated
            .map(|_| (spec.group.clone(), spec.version.clone()))
            .into_iter()
            .collect()
    }
}

fn set<T: DeclaresGroupVersions>(
    objects: &mut ObjectVersions,
    groups: &mut VersionsByGroup,
    all: &[T],
    now: Instant,
) -> bool {
    let names: HashSet<&str> = all.iter().map(T::name).collect();
    let removed = objects.keys().filter(|name| !names.contains(&***name));
    let removed: Vec<_> = removed.cloned().collect();
    let mut changed = false;
    // Additions first: a group-version that moves to another object is never deleted.
    for object in all {
        changed |= replace(objects, groups, object.name(), object.group_versions(), now);
    }
    for name in removed {
        changed |= replace(objects, groups, &name, Vec::new(), now);
    }
    changed
}

fn on_event<T: DeclaresGroupVersions>(
    objects: &mut ObjectVersions,
    groups: &mut VersionsByGroup,
    event: &WatchEvent<T>,
    now: Instant,
) -> bool {
    let (object, declares) = match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            (object, object.group_versions())
        }
        WatchEvent::Deleted(object) => (object, Vec::new()),
        WatchEvent::Bookmark { .. } | WatchEvent::Error(_) => return false,
    };
    replace(objects, groups, object.name(), declares, now)
}

/// The object of this name declares this from now on.
fn replace(
    objects: &mut ObjectVersions,
    groups: &mut VersionsByGroup,
    name: &str,
    declares: Vec<GroupVersion>,
    now: Instant,
) -> bool {
    let before = objects.remove(name).unwrap_or_default();
    let mut changed = false;
    for group_version in &declares {
        changed |= groups.declare(group_version);
    }
    for group_version in &before {
        changed |= groups.withdraw(group_version, now);
    }
    if !declares.is_empty() {
        objects.insert(name.into(), declares);
    }
    changed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn crd(name: &str, group: &str, versions: &[(&str, bool)]) -> CustomResourceDefinition {
        let versions: Vec<_> = versions
            .iter()
            .map(|(name, served)| json!({ "name": name, "served": served, "storage": true }))
            .collect();
        serde_json::from_value(json!({
            "metadata": { "name": name, "resourceVersion": "1" },
            "spec": { "group": group, "versions": versions, "scope": "Namespaced" },
        }))
        .unwrap()
    }

    fn api_service(group: &str, version: &str, service: &serde_json::Value) -> ApiService {
        serde_json::from_value(json!({
            "metadata": { "name": format!("{version}.{group}"), "resourceVersion": "1" },
            "spec": { "group": group, "version": version, "service": service, "versionPriority": 1 },
        }))
        .unwrap()
    }

    fn aggregated(group: &str, version: &str) -> ApiService {
        let service = json!({ "name": "metrics", "namespace": "kube-system", "port": 443 });
        api_service(group, version, &service)
    }

    #[test]
    fn served_versions_of_custom_resources_are_shared() {
        let now = Instant::now();
        let mut tracker = SharedGroupVersionTracker::new();
        let widgets = crd("widgets.a.io", "a.io", &[("v1", true), ("v1beta1", false)]);
        assert!(tracker.set_crds(&[widgets], now));
        for (group, version, expected) in [
            ("a.io", "v1", true),
            ("a.io", "v1beta1", false),
            ("a.io", "", false),
            ("b.io", "v1", false),
            ("", "v1", false),
        ] {
            assert_eq!(tracker.contains(group, version, now), expected);
            assert_eq!(tracker.snapshot().contains(group, version, now), expected);
        }
    }

    #[test]
    fn only_api_services_with_a_service_are_shared() {
        let now = Instant::now();
        let mut tracker = SharedGroupVersionTracker::new();
        // As kube-apiserver 1.36.4 registers its own core group: no group, no service.
        let core = r#"{"metadata":{"name":"v1.","resourceVersion":"5"},"spec":{"version":"v1","groupPriorityMinimum":18000,"versionPriority":1}}"#;
        let all = [
            serde_json::from_str(core).unwrap(),
            api_service("apps", "v1", &json!(null)),
            aggregated("metrics.k8s.io", "v1beta1"),
        ];
        tracker.set_api_services(&all, now);
        assert!(!tracker.contains("", "v1", now));
        assert!(!tracker.contains("apps", "v1", now));
        assert!(tracker.contains("metrics.k8s.io", "v1beta1", now));
    }

    #[test]
    fn a_deleted_group_version_stays_shared_for_five_minutes() {
        let start = Instant::now();
        let mut tracker = SharedGroupVersionTracker::new();
        let widgets = crd("widgets.a.io", "a.io", &[("v1", true)]);
        tracker.set_crds(std::slice::from_ref(&widgets), start);
        assert!(tracker.on_crd(&WatchEvent::Deleted(widgets), start));
        let snapshot = tracker.snapshot();
        let (last, end) = (start + Duration::from_secs(299), start + DELETION_GRACE);
        for (now, expected) in [(start, true), (last, true), (end, false)] {
            assert_eq!(tracker.contains("a.io", "v1", now), expected);
            assert_eq!(snapshot.contains("a.io", "v1", now), expected);
        }
        assert!(!tracker.prune(last));
        assert!(tracker.prune(end));
        assert!(!tracker.prune(end));
        assert!(tracker.groups.0.is_empty() && tracker.crds.is_empty());
    }

    #[test]
    fn every_kind_of_deletion_has_a_grace() {
        let start = Instant::now();
        let later = start + Duration::from_hours(1);
        let both = crd("widgets.a.io", "a.io", &[("v1", true), ("v2", true)]);
        let one = crd("widgets.a.io", "a.io", &[("v1", false), ("v2", true)]);
        let goes: [&dyn Fn(&mut SharedGroupVersionTracker) -> bool; 4] = [
            &|e| e.on_crd(&WatchEvent::Deleted(both.clone()), later),
            &|e| e.on_crd(&WatchEvent::Modified(one.clone()), later),
            &|e| e.set_crds(&[], later),
            &|e| e.set_crds(std::slice::from_ref(&one), later),
        ];
        for (number, go) in goes.iter().enumerate() {
            let mut tracker = SharedGroupVersionTracker::new();
            tracker.set_crds(std::slice::from_ref(&both), start);
            assert!(go(&mut tracker), "{number}");
            assert!(tracker.contains("a.io", "v1", later), "{number}");
            assert!(
                !tracker.contains("a.io", "v1", later + DELETION_GRACE),
                "{number}"
            );
        }
    }

    #[test]
    fn a_group_version_is_shared_while_any_object_declares_it() {
        let start = Instant::now();
        let later = start + Duration::from_hours(1);
        let widgets = crd("widgets.a.io", "a.io", &[("v1", true)]);
        let gadgets = crd("gadgets.a.io", "a.io", &[("v1", true)]);
        let mut tracker = SharedGroupVersionTracker::new();
        assert!(tracker.on_crd(&WatchEvent::Added(widgets.clone()), start));
        assert!(!tracker.on_crd(&WatchEvent::Added(gadgets.clone()), start));
        assert!(!tracker.on_crd(&WatchEvent::Deleted(widgets.clone()), start));
        assert!(tracker.contains("a.io", "v1", later));
        assert!(tracker.on_crd(&WatchEvent::Deleted(gadgets), later));
        assert!(tracker.on_crd(&WatchEvent::Added(widgets.clone()), later));
        assert!(tracker.contains("a.io", "v1", later + DELETION_GRACE));
        // The same event again, and events without objects.
        assert!(!tracker.on_crd(&WatchEvent::Modified(widgets), later));
        let failure = WatchEvent::Error(crate::WatchError::default());
        assert!(!tracker.on_crd(&failure, later));
    }

    proptest! {
        /// Regardless of the sequence of events, the currently declared group-versions are
        /// excluded from routing, and after the grace period no others.
        #[test]
        fn events_and_lists_agree(
            events in prop::collection::vec((0..4_usize, 0..3_usize, prop::collection::vec(any::<bool>(), 3)), 0..30),
        ) {
            let now = Instant::now();
            let groups = ["a.io", "b.io", "c.io"];
            let mut tracker = SharedGroupVersionTracker::new();
            let mut existing: HashMap<usize, CustomResourceDefinition> = HashMap::new();
            for (name, group, served) in events {
                let versions: Vec<_> = ["v1", "v2", "v3"].into_iter().zip(served.iter().copied()).collect();
                let object = crd(&name.to_string(), groups[group], &versions);
                if served.contains(&true) {
                    tracker.on_crd(&WatchEvent::Modified(object.clone()), now);
                    existing.insert(name, object);
                } else {
                    tracker.on_crd(&WatchEvent::Deleted(object), now);
                    existing.remove(&name);
                }
            }
            let all: Vec<_> = existing.into_values().collect();
            let mut listed = SharedGroupVersionTracker::new();
            listed.set_crds(&all, now);
            prop_assert!(!tracker.set_crds(&all, now));
            for group in groups {
                for version in ["v1", "v2", "v3"] {
                    let expected = all.iter().any(|crd| {
                        crd.group_versions().contains(&(group.into(), version.into()))
                    });
                    prop_assert_eq!(listed.contains(group, version, now), expected);
                    prop_assert!(!expected || tracker.contains(group, version, now));
                    prop_assert_eq!(tracker.contains(group, version, now + DELETION_GRACE), expected);
                }
            }
        }
    }
}
