//! Conversion between the versions of an object. The store has one form of it; other versions
//! are converted when they are read and when they are written.
//!
//! In the three releases, three kinds differ in more than their version: autoscalers, events
//! (which are served by two groups) and the priority levels of flow control. All others have the
//! same fields in all of their versions.

mod autoscaling;

use serde_json::{Map, Value};

use crate::object::Object;
use crate::status::GroupResource;

/// A kind with different fields in its versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Difference {
    /// `autoscaling/v1`; stored as `v2`.
    Autoscaler,
    /// `events.k8s.io/v1`; stored as `v1`.
    Event,
    /// `flowcontrol.apiserver.k8s.io/v1beta2`; stored as the later versions.
    PriorityLevel,
}

impl Difference {
    fn of(api_version: &str, kind: &str) -> Option<Self> {
        Some(match (api_version, kind) {
            ("autoscaling/v1", "HorizontalPodAutoscaler") => Self::Autoscaler,
            ("events.k8s.io/v1", "Event") => Self::Event,
            ("flowcontrol.apiserver.k8s.io/v1beta2", "PriorityLevelConfiguration") => {
                Self::PriorityLevel
            }
            _ => return None,
        })
    }
}

/// The resource under which objects are stored: events of both groups are the same.
pub fn storage_resource(resource: &GroupResource) -> GroupResource {
    if (resource.group.as_str(), resource.resource.as_str()) == ("events.k8s.io", "events") {
        return GroupResource::new("", "events");
    }
    resource.clone()
}

/// Whether annotations of an autoscaler hold metrics that `v1` has no fields for.
pub(crate) fn has_noted_metrics(annotations: &Value) -> bool {
    annotations.get(autoscaling::METRICS).is_some()
}

/// A stored object, converted to a version.
pub fn from_storage(object: &Object, api_version: &str, kind: &str) -> Object {
    let mut versioned = object.clone();
    match Difference::of(api_version, kind) {
        Some(Difference::Autoscaler) => versioned = converted(versioned, autoscaling::to_v1),
        Some(Difference::Event) => {
            versioned = converted(versioned, |it| rename(it, &EVENT, Direction::ToVersion));
        }
        Some(Difference::PriorityLevel) => {
            versioned = converted(versioned, |it| rename_shares(it, Direction::ToVersion));
        }
        None => {}
    }
    versioned.set(&["apiVersion"], api_version);
    versioned.set(&["kind"], kind);
    versioned
}

/// An object of any version, converted for the store.
pub fn to_storage(object: Object) -> Object {
    let Some(difference) = Difference::of(object.api_version(), object.kind()) else {
        return object;
    };
    let (mut kept, api_version) = match difference {
        Difference::Autoscaler => (converted(object, autoscaling::from_v1), "autoscaling/v2"),
        Difference::Event => (
            converted(object, |it| rename(it, &EVENT, Direction::ToStorage)),
            "v1",
        ),
        Difference::PriorityLevel => (
            converted(object, |it| rename_shares(it, Direction::ToStorage)),
            "flowcontrol.apiserver.k8s.io/v1",
        ),
    };
    kept.set(&["apiVersion"], api_version);
    kept
}

fn converted(object: Object, make: impl FnOnce(&mut Value)) -> Object {
    let unchanged = object.clone();
    let mut value = object.into_value();
    make(&mut value);
    // The conversion keeps it a valid object.
    Object::new(value).unwrap_or(unchanged)
}

/// The direction of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToVersion,
    ToStorage,
}

/// Field names of events: stored, and in `events.k8s.io`.
const EVENT: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

fn rename(value: &mut Value, names: &[(&str, &str)], towards: Direction) {
    let Some(fields) = value.as_object_mut() else {
        return;
    };
    for (kept, shown) in names {
        let (from, to) = match towards {
            Direction::ToVersion => (*kept, *shown),
            Direction::ToStorage => (*shown, *kept),
        };
        move_field(fields, from, to);
    }
}

fn rename_shares(value: &mut Value, towards: Direction) {
    let names = [("nominalConcurrencyShares", "assuredConcurrencyShares")];
    if let Some(limited) = value.pointer_mut("/spec/limited") {
        rename(limited, &names, towards);
    }
}

fn move_field(fields: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = fields.remove(from) {
        fields.insert(to.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::catalogue::{Catalogue, Release};

    #[test]
    fn an_event_is_the_same_in_both_groups() {
        let written = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
            "regarding": {"kind": "Pod", "name": "web"}, "note": "hello", "reason": "Testing",
            "reportingController": "tester", "deprecatedCount": 2, "type": "Normal",
            "eventTime": "2026-01-01T00:00:00.000000Z",
        });
        let kept = to_storage(Object::new(written.clone()).unwrap());
        assert_eq!(
            kept.value(),
            &json!({
                "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
                "involvedObject": {"kind": "Pod", "name": "web"}, "message": "hello",
                "reason": "Testing", "reportingComponent": "tester", "count": 2,
                "type": "Normal", "eventTime": "2026-01-01T00:00:00.000000Z",
            })
        );
        assert_eq!(from_storage(&kept, "v1", "Event"), kept);
        assert_eq!(
            from_storage(&kept, "events.k8s.io/v1", "Event").value(),
            &written
        );
    }

    #[test]
    fn shares_of_a_priority_level_have_two_names() {
        let level = |version: &str, field: &str| {
            let kind = "PriorityLevelConfiguration";
            let version = format!("flowcontrol.apiserver.k8s.io/{version}");
            Object::new(json!({
                "apiVersion": version, "kind": kind, "metadata": {"name": "l"},
                "spec": {"type": "Limited", "limited": {field: 5, "lendablePercent": 1}},
            }))
            .unwrap()
        };
        let (old, new) = ("assuredConcurrencyShares", "nominalConcurrencyShares");
        assert_eq!(to_storage(level("v1beta2", old)), level("v1", new));
        assert_eq!(to_storage(level("v1", new)), level("v1", new));
        for (version, field) in [("v1beta2", old), ("v1beta3", new), ("v1", new)] {
            let api_version = format!("flowcontrol.apiserver.k8s.io/{version}");
            let seen = from_storage(
                &level("v1", new),
                &api_version,
                "PriorityLevelConfiguration",
            );
            assert_eq!(seen, level(version, field));
        }
    }

    /// A further version of another kind needs a check whether its fields are the same.
    #[test]
    fn all_resources_with_several_versions_are_known() {
        let mut several = std::collections::BTreeMap::<String, Vec<String>>::new();
        for release in Release::ALL {
            let catalogue = Catalogue::new(release).unwrap();
            let versions = catalogue.versions();
            let all = versions.flat_map(|(group, version)| catalogue.in_version(group, version));
            for served in all {
                let versions = several
                    .entry(served.group_resource().to_string())
                    .or_default();
                if !versions.iter().any(|it| it == served.version) {
                    versions.push(served.version.to_owned());
                }
            }
        }
        several.retain(|_, versions| versions.len() > 1);
        let several: Vec<_> = several.into_iter().collect();
        let expected = [
            (
                "flowschemas.flowcontrol.apiserver.k8s.io",
                &["v1beta3", "v1beta2", "v1"][..],
            ),
            ("horizontalpodautoscalers.autoscaling", &["v2", "v1"]),
            (
                "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io",
                &["v1beta3", "v1beta2", "v1"],
            ),
        ];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(name, versions)| {
                let versions = versions.iter().map(|it| (*it).to_owned());
                (name.to_owned(), versions.collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(several, expected);
    }
}
