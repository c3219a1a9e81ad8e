//! Group-versions that are never routed to a peer: those of custom resources
//! and of aggregated APIs. They are the same on every server, so what is not
//! here is nowhere; a deleted one must not be "found" on a peer that has not
//! noticed yet.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::watch::{Metadata, WatchEvent, WatchedObject};

/// For how long a group-version is still left out after its deletion, as long as
/// kube-apiserver gives its peers to notice.
pub const GRACE: Duration = Duration::from_mins(5);

/// As much of a `CustomResourceDefinition` as says what it serves.
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

/// As much of an `APIService` as says what it serves, and where.
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
    /// Every server registers what it serves itself, without a service.
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

/// What is left out, kept from lists and watches of both kinds.
#[derive(Debug, Default)]
pub struct SharedGroupVersionTracker {
    crds: Declared,
    api_services: Declared,
    groups: Groups,
}

type GroupVersion = (Box<str>, Box<str>);

/// What each object declares, by its name.
type Declared = HashMap<Box<str>, Vec<GroupVersion>>;

impl SharedGroupVersionTracker {
    /// Nothing is left out.
    pub fn new() -> Self {
        Self::default()
    }

    /// These are all that there are, as a list says. Whether anything changed.
    pub fn set_crds(&mut self, all: &[CustomResourceDefinition], now: Instant) -> bool {
        set(&mut self.crds, &mut self.groups, all, now)
    }

    /// One was created, changed or deleted. Whether anything changed here.
    pub fn on_crd(&mut self, event: &WatchEvent<CustomResourceDefinition>, now: Instant) -> bool {
        on_event(&mut self.crds, &mut self.groups, event, now)
    }

    /// These are all that there are, as a list says. Whether anything changed.
    pub fn set_api_services(&mut self, all: &[ApiService], now: Instant) -> bool {
        set(&mut self.api_services, &mut self.groups, all, now)
    }

    /// One was created, changed or deleted. Whether anything changed here.
    pub fn on_api_service(&mut self, event: &WatchEvent<ApiService>, now: Instant) -> bool {
        on_event(&mut self.api_services, &mut self.groups, event, now)
    }

    /// Whether it is never routed to a peer.
    pub fn is_excluded(&self, group: &str, version: &str, now: Instant) -> bool {
        self.groups.contains(group, version, now)
    }

    /// Forgets what was deleted long ago. Whether there was any; what
    /// `is_excluded` says does not depend on it.
    pub fn prune(&mut self, now: Instant) -> bool {
        self.groups.prune(now)
    }

    /// As it is now, to be read elsewhere.
    pub fn snapshot(&self) -> Arc<SharedGroupVersions> {
        Arc::new(SharedGroupVersions(self.groups.clone()))
    }
}

/// What is left out, as it was at one time. Reading it takes no lock and
/// allocates nothing.
#[derive(Debug, Clone, Default)]
pub struct SharedGroupVersions(Groups);

impl SharedGroupVersions {
    /// Whether it is never routed to a peer.
    pub fn contains(&self, group: &str, version: &str, now: Instant) -> bool {
        self.0.contains(group, version, now)
    }
}

/// Versions by group. A group has few.
#[derive(Debug, Clone, Default)]
struct Groups(HashMap<Box<str>, Vec<Version>>);

#[derive(Debug, Clone)]
struct Version {
    name: Box<str>,
    presence: Presence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// So many objects declare it: the kinds of a group share its versions.
    Declared(usize),
    /// None does, since then.
    Gone(Instant),
}

impl Presence {
    fn counts(self, now: Instant) -> bool {
        match self {
            Self::Declared(_) => true,
            Self::Gone(since) => now < since + GRACE,
        }
    }
}

impl Groups {
    fn contains(&self, group: &str, version: &str, now: Instant) -> bool {
        self.0.get(group).is_some_and(|versions| {
            versions
                .iter()
                .any(|found| *found.name == *version && found.presence.counts(now))
        })
    }

    /// One more object declares it. Whether it is the first.
    fn declare(&mut self, (group, version): &GroupVersion) -> bool {
        let versions = self.0.entry(group.clone()).or_default();
        let Some(found) = versions.iter_mut().find(|found| found.name == *version) else {
            versions.push(Version {
                name: version.clone(),
                presence: Presence::Declared(1),
            });
            return true;
        };
        let (presence, first) = match found.presence {
            Presence::Declared(count) => (Presence::Declared(count + 1), false),
            Presence::Gone(_) => (Presence::Declared(1), true),
        };
        found.presence = presence;
        first
    }

    /// One object fewer declares it. Whether it was the last.
    fn withdraw(&mut self, (group, version): &GroupVersion, now: Instant) -> bool {
        let versions = self.0.get_mut(group).into_iter().flatten();
        for found in versions.filter(|found| found.name == *version) {
            match &mut found.presence {
                Presence::Declared(count @ 2..) => *count -= 1,
                Presence::Declared(_) => {
                    found.presence = Presence::Gone(now);
                    return true;
                }
                Presence::Gone(_) => {}
            }
        }
        false
    }

    fn prune(&mut self, now: Instant) -> bool {
        let mut pruned = false;
        self.0.retain(|_, versions| {
            let before = versions.len();
            versions.retain(|version| version.presence.counts(now));
            pruned |= versions.len() < before;
            !versions.is_empty()
        });
        pruned
    }
}

/// An object that declares group-versions.
trait Declares: WatchedObject {
    fn group_versions(&self) -> Vec<GroupVersion>;
}

impl Declares for CustomResourceDefinition {
    fn group_versions(&self) -> Vec<GroupVersion> {
        let served = self.spec.versions.iter().filter(|version| version.served);
        served
            .map(|version| (self.spec.group.clone(), version.name.clone()))
            .collect()
    }
}

impl Declares for ApiService {
    fn group_versions(&self) -> Vec<GroupVersion> {
        let spec = &self.spec;
        let aggregated = spec.service.as_ref();
        aggregated
            .map(|_| (spec.group.clone(), spec.version.clone()))
            .into_iter()
            .collect()
    }
}

fn set<T: Declares>(objects: &mut Declared, groups: &mut Groups, all: &[T], now: Instant) -> bool {
    let names: HashSet<&str> = all.iter().map(T::name).collect();
    let gone = objects.keys().filter(|name| !names.contains(&***name));
    let gone: Vec<_> = gone.cloned().collect();
    let mut changed = false;
    // First what is there: what only moves to another object is never gone.
    for object in all {
        changed |= replace(objects, groups, object.name(), object.group_versions(), now);
    }
    for name in gone {
        changed |= replace(objects, groups, &name, Vec::new(), now);
    }
    changed
}

fn on_event<T: Declares>(
    objects: &mut Declared,
    groups: &mut Groups,
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
    objects: &mut Declared,
    groups: &mut Groups,
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
    fn served_versions_of_custom_resources_are_left_out() {
        let now = Instant::now();
        let mut exclusions = SharedGroupVersionTracker::new();
        let widgets = crd("widgets.a.io", "a.io", &[("v1", true), ("v1beta1", false)]);
        assert!(exclusions.set_crds(&[widgets], now));
        for (group, version, expected) in [
            ("a.io", "v1", true),
            ("a.io", "v1beta1", false),
            ("a.io", "", false),
            ("b.io", "v1", false),
            ("", "v1", false),
        ] {
            assert_eq!(exclusions.is_excluded(group, version, now), expected);
            assert_eq!(
                exclusions.snapshot().contains(group, version, now),
                expected
            );
        }
    }

    #[test]
    fn only_api_services_with_a_service_are_left_out() {
        let now = Instant::now();
        let mut exclusions = SharedGroupVersionTracker::new();
        // As kube-apiserver 1.36.4 registers its own core group: no group, no service.
        let core = r#"{"metadata":{"name":"v1.","resourceVersion":"5"},"spec":{"version":"v1","groupPriorityMinimum":18000,"versionPriority":1}}"#;
        let all = [
            serde_json::from_str(core).unwrap(),
            api_service("apps", "v1", &json!(null)),
            aggregated("metrics.k8s.io", "v1beta1"),
        ];
        exclusions.set_api_services(&all, now);
        assert!(!exclusions.is_excluded("", "v1", now));
        assert!(!exclusions.is_excluded("apps", "v1", now));
        assert!(exclusions.is_excluded("metrics.k8s.io", "v1beta1", now));
    }

    #[test]
    fn what_is_deleted_is_left_out_for_five_minutes_more() {
        let start = Instant::now();
        let mut exclusions = SharedGroupVersionTracker::new();
        let widgets = crd("widgets.a.io", "a.io", &[("v1", true)]);
        exclusions.set_crds(std::slice::from_ref(&widgets), start);
        assert!(exclusions.on_crd(&WatchEvent::Deleted(widgets), start));
        let snapshot = exclusions.snapshot();
        let (last, end) = (start + Duration::from_secs(299), start + GRACE);
        for (now, expected) in [(start, true), (last, true), (end, false)] {
            assert_eq!(exclusions.is_excluded("a.io", "v1", now), expected);
            assert_eq!(snapshot.contains("a.io", "v1", now), expected);
        }
        assert!(!exclusions.prune(last));
        assert!(exclusions.prune(end));
        assert!(!exclusions.prune(end));
        assert!(exclusions.groups.0.is_empty() && exclusions.crds.is_empty());
    }

    #[test]
    fn every_way_to_go_has_its_grace() {
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
            let mut exclusions = SharedGroupVersionTracker::new();
            exclusions.set_crds(std::slice::from_ref(&both), start);
            assert!(go(&mut exclusions), "{number}");
            assert!(exclusions.is_excluded("a.io", "v1", later), "{number}");
            assert!(
                !exclusions.is_excluded("a.io", "v1", later + GRACE),
                "{number}"
            );
        }
    }

    #[test]
    fn it_stays_while_any_object_declares_it_and_comes_back_with_one() {
        let start = Instant::now();
        let later = start + Duration::from_hours(1);
        let widgets = crd("widgets.a.io", "a.io", &[("v1", true)]);
        let gadgets = crd("gadgets.a.io", "a.io", &[("v1", true)]);
        let mut exclusions = SharedGroupVersionTracker::new();
        assert!(exclusions.on_crd(&WatchEvent::Added(widgets.clone()), start));
        assert!(!exclusions.on_crd(&WatchEvent::Added(gadgets.clone()), start));
        assert!(!exclusions.on_crd(&WatchEvent::Deleted(widgets.clone()), start));
        assert!(exclusions.is_excluded("a.io", "v1", later));
        assert!(exclusions.on_crd(&WatchEvent::Deleted(gadgets), later));
        assert!(exclusions.on_crd(&WatchEvent::Added(widgets.clone()), later));
        assert!(exclusions.is_excluded("a.io", "v1", later + GRACE));
        // The same again, and what says nothing about objects.
        assert!(!exclusions.on_crd(&WatchEvent::Modified(widgets), later));
        let failure = WatchEvent::Error(crate::WatchError::default());
        assert!(!exclusions.on_crd(&failure, later));
    }

    proptest! {
        /// However it came about, what is declared now is left out, and after the
        /// grace nothing else is.
        #[test]
        fn events_and_lists_agree(
            events in prop::collection::vec((0..4_usize, 0..3_usize, prop::collection::vec(any::<bool>(), 3)), 0..30),
        ) {
            let now = Instant::now();
            let groups = ["a.io", "b.io", "c.io"];
            let mut exclusions = SharedGroupVersionTracker::new();
            let mut there: HashMap<usize, CustomResourceDefinition> = HashMap::new();
            for (name, group, served) in events {
                let versions: Vec<_> = ["v1", "v2", "v3"].into_iter().zip(served.iter().copied()).collect();
                let object = crd(&name.to_string(), groups[group], &versions);
                if served.contains(&true) {
                    exclusions.on_crd(&WatchEvent::Modified(object.clone()), now);
                    there.insert(name, object);
                } else {
                    exclusions.on_crd(&WatchEvent::Deleted(object), now);
                    there.remove(&name);
                }
            }
            let all: Vec<_> = there.into_values().collect();
            let mut listed = SharedGroupVersionTracker::new();
            listed.set_crds(&all, now);
            prop_assert!(!exclusions.set_crds(&all, now));
            for group in groups {
                for version in ["v1", "v2", "v3"] {
                    let expected = all.iter().any(|crd| {
                        crd.group_versions().contains(&(group.into(), version.into()))
                    });
                    prop_assert_eq!(listed.is_excluded(group, version, now), expected);
                    prop_assert!(!expected || exclusions.is_excluded(group, version, now));
                    prop_assert_eq!(exclusions.is_excluded(group, version, now + GRACE), expected);
                }
            }
        }
    }
}
