//! Counts objects, and finds fields in them.

use std::collections::BTreeMap;

use serde_json::Value;
use skewbridge_field_sets::has_any;
use skewbridge_released_apis::ApiName;
use skewbridge_upgrade_check::Fact;
use skewbridge_upgrade_check::facts::{FieldsInUse, ObjectCount};
use skewbridge_upgrade_check::fields::LostFields;

use super::client::{Extent, Parts};
use super::readers::Readers;

/// The objects that a finding names.
const MAX_EXAMPLES: usize = 3;

/// The field managers that a finding names; the objects of further ones are counted under
/// [`OTHER_MANAGERS`].
const MAX_MANAGERS: usize = 100;

const OTHER_MANAGERS: &str = "others";

/// Programs of Kubernetes write in a version that their own release serves, and change with it. So
/// they are no clients that have to be changed first.
const MANAGERS_OF_KUBERNETES: [&str; 6] = [
    "api-priority-and-fairness-config-consumer-v1",
    "api-priority-and-fairness-config-producer-v1",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
];

/// Counts the objects of an API, and those that were written in its version. They are listed in the
/// first of the other versions that a server serves, if any does.
pub(super) async fn count(
    readers: &Readers,
    api: &ApiName,
    others: &[ApiName],
) -> Fact<ObjectCount> {
    let version = api.group_version();
    let fold = |writers: &mut Writers, object: &Value| count_writers(writers, &version, object);
    for other in others {
        let listed = readers.list_if_served(other, None, Parts::Metadata, fold);
        if let Some(listed) = listed.await? {
            return Ok(counted(listed));
        }
    }
    let listed = readers.list(api, Parts::Metadata, fold).await?;
    Ok(counted(listed))
}

/// By the field manager that wrote in a version.
type Writers = BTreeMap<String, u64>;

fn count_writers(writers: &mut Writers, version: &str, object: &Value) {
    let entries = object["metadata"]["managedFields"].as_array();
    let entries = entries.map(Vec::as_slice).unwrap_or_default();
    let of_version = entries.iter().filter(|it| it["apiVersion"] == version);
    let is_current = |entry: &&Value| !entries.iter().any(|it| replaces(it, entry));
    let managers = of_version
        .filter(is_current)
        .filter_map(|it| it["manager"].as_str());
    let managers = managers.filter(|it| !MANAGERS_OF_KUBERNETES.contains(it));
    for manager in managers {
        let is_known = writers.contains_key(manager) || writers.len() < MAX_MANAGERS;
        let manager = if is_known { manager } else { OTHER_MANAGERS };
        *writers.entry(manager.to_owned()).or_default() += 1;
    }
}

/// Whether the manager of an entry has written the same part of the object later in another version.
/// The older entry stays until all of its fields are written again.
fn replaces(later: &Value, entry: &Value) -> bool {
    let is_same = |key: &str| later[key] == entry[key];
    // RFC 3339 in UTC, in seconds: texts are ordered as times.
    let times = (later["time"].as_str(), entry["time"].as_str());
    is_same("manager")
        && is_same("subresource")
        && !is_same("apiVersion")
        && matches!(times, (Some(later), Some(earlier)) if later > earlier)
}

fn counted((written_in_version, extent): (Writers, Extent)) -> ObjectCount {
    ObjectCount {
        objects: extent.read.saturating_add(extent.remaining),
        written_in_version,
        at_least: extent.has_more && extent.remaining == 0,
    }
}

/// The objects of a resource that have fields which would be lost; `None` without any.
pub(super) async fn fields_in_use(
    readers: &Readers,
    lost: &LostFields,
) -> Fact<Option<FieldsInUse>> {
    let listed = readers
        .list(&lost.api, Parts::Everything, |found: &mut Found, object| {
            found.add(lost, object);
        })
        .await?;
    Ok(used(lost, listed))
}

/// What was found in the objects so far.
#[derive(Default)]
struct Found {
    /// The objects that have each of the fields, in their order.
    objects: Vec<u64>,
    examples: Vec<String>,
}

impl Found {
    fn add(&mut self, lost: &LostFields, object: &Value) {
        self.objects.resize(lost.fields.len(), 0);
        let mut is_found = false;
        for (field, objects) in lost.fields.iter().zip(&mut self.objects) {
            if has_any(object, std::slice::from_ref(field)) {
                *objects += 1;
                is_found = true;
            }
        }
        if is_found && self.examples.len() < MAX_EXAMPLES {
            self.examples.push(name(object));
        }
    }
}

fn used(lost: &LostFields, (found, extent): (Found, Extent)) -> Option<FieldsInUse> {
    let fields = lost.fields.iter().cloned().zip(found.objects);
    let fields: Vec<_> = fields.filter(|(_, objects)| *objects > 0).collect();
    (!fields.is_empty()).then(|| FieldsInUse {
        group: lost.api.group.clone(),
        resource: lost.api.resource.clone(),
        fields,
        examples: found.examples,
        at_least: extent.has_more,
    })
}

fn name(object: &Value) -> String {
    let metadata = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    match (metadata("namespace"), metadata("name")) {
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skewbridge_field_sets::FieldPath;

    use super::*;

    fn api() -> ApiName {
        ApiName {
            group: "storage.k8s.io".to_owned(),
            version: "v1alpha1".to_owned(),
            resource: "things".to_owned(),
        }
    }

    #[test]
    fn objects_are_counted_by_who_wrote_them_in_the_version() {
        let object = |manager: &str, version: &str| {
            json!({"metadata": {"managedFields": [
                {"manager": manager, "apiVersion": version},
            ]}})
        };
        let objects = [
            object("kubectl-create", "storage.k8s.io/v1alpha1"),
            object("kubectl-create", "storage.k8s.io/v1alpha1"),
            object("argocd", "storage.k8s.io/v1"),
            object("kube-apiserver", "storage.k8s.io/v1alpha1"),
        ];
        let mut writers = Writers::new();
        for object in &objects {
            count_writers(&mut writers, &api().group_version(), object);
        }
        let mut extent = Extent {
            read: 4,
            ..Extent::default()
        };
        let count = counted((writers.clone(), extent));
        assert_eq!((count.objects, count.at_least), (4, false));
        assert_eq!(
            count.written_in_version,
            [("kubectl-create".to_owned(), 2)].into_iter().collect()
        );
        (extent.has_more, extent.remaining) = (true, 6);
        assert_eq!(counted((writers.clone(), extent)).objects, 10);
        extent.remaining = 0;
        assert!(counted((writers, extent)).at_least);
    }

    #[test]
    fn a_manager_that_has_written_later_in_another_version_has_changed() {
        let entry = |manager: &str, version: &str, subresource: &str, second: u8| {
            json!({"manager": manager, "apiVersion": format!("storage.k8s.io/{version}"),
                "subresource": subresource, "time": format!("2026-11-19T15:00:{second:02}Z")})
        };
        let old = || entry("ours", "v1alpha1", "", 5);
        let rows = [
            (vec![old()], 1),
            (vec![old(), entry("ours", "v1", "", 6)], 0),
            (vec![entry("ours", "v1", "", 6), old()], 0),
            // Before, at the same time, in the same version, of another part, by another manager.
            (vec![old(), entry("ours", "v1", "", 4)], 1),
            (vec![old(), entry("ours", "v1", "", 5)], 1),
            (vec![old(), entry("ours", "v1alpha1", "", 6)], 2),
            (vec![old(), entry("ours", "v1", "status", 6)], 1),
            (vec![old(), entry("theirs", "v1", "", 6)], 1),
        ];
        for (entries, expected) in rows {
            let object = json!({"metadata": {"managedFields": entries}});
            let mut writers = Writers::new();
            count_writers(&mut writers, &api().group_version(), &object);
            let found = writers.get("ours").copied().unwrap_or_default();
            assert_eq!(found, expected, "{entries:?}");
        }
    }

    #[test]
    fn names_of_field_managers_are_bounded() {
        let mut writers = Writers::new();
        for number in 0..MAX_MANAGERS + 7 {
            let object = json!({"metadata": {"managedFields": [
                {"manager": format!("m-{number}"), "apiVersion": "v1"},
            ]}});
            count_writers(&mut writers, "v1", &object);
        }
        assert_eq!(writers.len(), MAX_MANAGERS + 1);
        assert_eq!(writers[OTHER_MANAGERS], 7);
    }

    #[test]
    fn fields_in_use_are_counted_with_examples() {
        let field = |name: &str| -> FieldPath { format!("spec.{name}").parse().unwrap() };
        let lost = LostFields {
            api: api(),
            fields: vec![field("a"), field("b")],
        };
        let object = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
        let objects = [
            object("one", json!({"a": 1})),
            object("two", json!({"a": null})),
            json!({"metadata": {"name": "three", "namespace": "n"}, "spec": {"a": false}}),
        ];
        let mut found = Found::default();
        for object in &objects {
            found.add(&lost, object);
        }
        let found = used(&lost, (found, Extent::default())).unwrap();
        assert_eq!(found.fields, [(field("a"), 2)]);
        assert_eq!(found.examples, ["one", "n/three"]);
        let none = (Found::default(), Extent::default());
        assert_eq!(used(&lost, none), None);
    }
}
