//! The fields of an existing pod that can be changed: few, because its containers already run.

use serde_json::Value;

use crate::defaults;
use crate::object::Object;
use crate::status::{FieldError, FieldErrorKind, GroupResource};

/// kube-apiserver's message, without the diff of Go structures that follows it.
const FORBIDDEN_UPDATE: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
                    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
                    `spec.tolerations` (only additions to existing tolerations),\
                    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                    previously negative)";

/// Lists of containers.
const LISTS: [&str; 2] = ["containers", "initContainers"];

/// Restricts a write to a subresource of a pod to the fields of that subresource.
pub fn restrict_to_subresource(subresource: &str, before: &Object, next: &mut Object) {
    match subresource {
        "ephemeralcontainers" => {
            let path = ["spec", "ephemeralContainers"];
            let added = next.at(&path).cloned();
            next.take_from(before, &["spec"]);
            if let Some(added) = added {
                next.set(&path, added);
            }
        }
        "resize" => {
            let wanted = next.at(&["spec"]).cloned().unwrap_or_default();
            next.take_from(before, &["spec"]);
            let mut spec = next.at(&["spec"]).cloned().unwrap_or_default();
            for list in LISTS {
                let containers = spec.get_mut(list).and_then(Value::as_array_mut);
                for container in containers.into_iter().flatten() {
                    let same = named(&wanted, list, &container["name"]);
                    if let Some(resources) = same.and_then(|it| it.get("resources")) {
                        container["resources"] = resources.clone();
                    }
                }
            }
            next.set(&["spec"], spec);
        }
        _ => {}
    }
}

/// The errors of an update of a pod whose defaults are filled in.
pub fn errors(before: &Object, next: &Object) -> Vec<FieldError> {
    // The stored pod may lack some defaults.
    let mut filled = before.clone();
    defaults::fill(&GroupResource::new("", "pods"), &mut filled);
    let (old, new) = (&filled.value()["spec"], &next.value()["spec"]);
    for list in LISTS {
        if count(&old[list]) != count(&new[list]) {
            let why = "pod updates may not add or remove containers";
            return vec![FieldError::forbidden(format!("spec.{list}"), why)];
        }
    }
    let mut errors = Vec::new();
    errors.extend(deadline(old, new));
    if !tolerations(old).all(|one| tolerations(new).any(|other| is_as_tolerant(one, other))) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden("spec.tolerations", why));
    }
    for (place, gate) in gates(new).enumerate() {
        if !gates(old).any(|it| it == gate) {
            let gate = gate.as_str().unwrap_or_default();
            let field = format!("spec.schedulingGates[{place}].name");
            let why = format!("only deletion is allowed, but found new scheduling gate '{gate}'");
            errors.push(FieldError::forbidden(field, why));
        }
    }
    if allowed(old, new) != *old {
        errors.push(FieldError::forbidden("spec", FORBIDDEN_UPDATE));
    }
    errors
}

fn count(list: &Value) -> usize {
    list.as_array().map_or(0, Vec::len)
}

fn named<'a>(spec: &'a Value, list: &str, name: &Value) -> Option<&'a Value> {
    let mut all = spec[list].as_array()?.iter();
    all.find(|it| it["name"] == *name)
}

fn tolerations(spec: &Value) -> impl Iterator<Item = &Value> {
    spec["tolerations"].as_array().into_iter().flatten()
}

/// Whether they differ only in the time.
fn is_as_tolerant(one: &Value, other: &Value) -> bool {
    let fields = ["key", "operator", "value", "effect"];
    fields.iter().all(|field| one[field] == other[field])
}

fn gates(spec: &Value) -> impl Iterator<Item = &Value> {
    let gates = spec["schedulingGates"].as_array().into_iter().flatten();
    gates.map(|it| &it["name"])
}

/// The deadline can be set and shortened.
fn deadline(old: &Value, new: &Value) -> Option<FieldError> {
    let seconds = |spec: &Value| spec["activeDeadlineSeconds"].as_i64();
    let (value, why) = match (seconds(old), seconds(new)) {
        (_, Some(new)) if i32::try_from(new).is_err() || new < 0 => (
            new.to_string(),
            "must be between 0 and 2147483647, inclusive",
        ),
        (Some(old), Some(new)) if old < new => (
            new.to_string(),
            "must be less than or equal to previous value",
        ),
        (Some(_), None) => (
            "null".to_owned(),
            "must not update from a positive integer to nil value",
        ),
        _ => return None,
    };
    Some(FieldError {
        field: "spec.activeDeadlineSeconds".to_owned(),
        fault: FieldErrorKind::InvalidJson(value, why.to_owned()),
    })
}

/// The new pod with mutable fields reset: equal to the old one if nothing else changed.
fn allowed(old: &Value, new: &Value) -> Value {
    let mut rest = new.clone();
    for list in LISTS {
        let containers = rest.get_mut(list).and_then(Value::as_array_mut);
        let containers = containers.into_iter().flatten();
        let before = old[list].as_array().into_iter().flatten();
        for (container, before) in containers.zip(before) {
            restore(container, before, "image");
        }
    }
    restore(&mut rest, old, "activeDeadlineSeconds");
    restore(&mut rest, old, "tolerations");
    restore(&mut rest, old, "schedulingGates");
    let grace = "terminationGracePeriodSeconds";
    if old[grace].as_i64() < Some(0) && new[grace] == 1 {
        restore(&mut rest, old, grace);
    }
    // Scheduling constraints of a gated pod can be changed.
    if gates(old).next().is_some() {
        restore(&mut rest, old, "nodeSelector");
        restore(&mut rest, old, "affinity");
    }
    for list in LISTS {
        restore_absence(&mut rest, old, list);
    }
    rest
}

fn restore(rest: &mut Value, old: &Value, field: &str) {
    let Some(fields) = rest.as_object_mut() else {
        return;
    };
    match old.get(field) {
        Some(value) => drop(fields.insert(field.to_owned(), value.clone())),
        None => drop(fields.remove(field)),
    }
}

/// No list and an empty one are the same.
fn restore_absence(rest: &mut Value, old: &Value, field: &str) {
    if count(&rest[field]) == 0 && count(&old[field]) == 0 {
        restore(rest, old, field);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Object {
        let mut pod = json!({"metadata": {"name": "web"}, "spec": {
            "nodeName": "n",
            "containers": [{"name": "a", "image": "i", "command": ["x"]}],
            "tolerations": [{"key": "t", "operator": "Exists"}],
            "activeDeadlineSeconds": 10,
            "terminationGracePeriodSeconds": -1,
        }});
        change(&mut pod["spec"]);
        let mut pod = Object::new(pod).unwrap();
        defaults::fill(&GroupResource::new("", "pods"), &mut pod);
        pod
    }

    fn messages(before: &Object, next: &Object) -> String {
        let errors = errors(before, next).into_iter();
        errors
            .map(|it| it.to_string())
            .collect::<Vec<_>>()
            .join("; ")
    }

    #[test]
    fn few_fields_can_be_changed() {
        type Change = fn(&mut Value);
        let only = format!("spec: Forbidden: {FORBIDDEN_UPDATE}");
        let rows: [(Change, &str); 16] = [
            (|_| {}, ""),
            (|spec| spec["containers"][0]["image"] = "j".into(), ""),
            (|spec| spec["activeDeadlineSeconds"] = 9.into(), ""),
            (
                |spec| spec["activeDeadlineSeconds"] = 11.into(),
                "spec.activeDeadlineSeconds: Invalid value: 11: must be less than or equal to \
                 previous value",
            ),
            (
                |spec| spec["activeDeadlineSeconds"] = Value::Null,
                "spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive \
                 integer to nil value",
            ),
            (
                |spec| {
                    spec["tolerations"] = json!([{"key": "t", "operator": "Exists"}, {"key": "u"}]);
                },
                "",
            ),
            (
                |spec| {
                    spec["tolerations"] =
                        json!([{"key": "t", "operator": "Exists", "tolerationSeconds": 1}]);
                },
                "",
            ),
            (
                |spec| spec["tolerations"] = json!([]),
                "spec.tolerations: Forbidden: existing toleration can not be modified except its \
                 tolerationSeconds",
            ),
            (|spec| spec["terminationGracePeriodSeconds"] = 1.into(), ""),
            (
                |spec| spec["terminationGracePeriodSeconds"] = 2.into(),
                &only,
            ),
            (
                |spec| spec["containers"][0]["command"] = json!(["y"]),
                &only,
            ),
            (|spec| spec["containers"][0]["name"] = "b".into(), &only),
            (|spec| spec["nodeName"] = "m".into(), &only),
            (|spec| spec["restartPolicy"] = "Never".into(), &only),
            (
                |spec| {
                    let all = spec["containers"].as_array_mut().unwrap();
                    all.push(json!({"name": "b", "image": "i"}));
                },
                "spec.containers: Forbidden: pod updates may not add or remove containers",
            ),
            (
                |spec| spec["schedulingGates"] = json!([{"name": "g"}]),
                "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new \
                 scheduling gate 'g'",
            ),
        ];
        for (change, expected) in rows {
            let next = pod(change);
            assert_eq!(messages(&pod(|_| {}), &next), expected, "{next:?}");
        }
    }

    #[test]
    fn scheduling_of_a_gated_pod_can_be_changed() {
        let gated = pod(|spec| spec["schedulingGates"] = json!([{"name": "g"}]));
        let next = pod(|spec| spec["nodeSelector"] = json!({"disk": "ssd"}));
        assert_eq!(messages(&gated, &next), "");
        assert_ne!(messages(&pod(|_| {}), &next), "");
    }

    #[test]
    fn a_pod_without_defaults_can_be_updated_with_them() {
        let bare = json!({"metadata": {"name": "web"}, "spec": {
            "containers": [{"name": "a", "image": "i"}],
        }});
        let bare = Object::new(bare).unwrap();
        let mut next = bare.clone();
        defaults::fill(&GroupResource::new("", "pods"), &mut next);
        assert_eq!(messages(&bare, &next), "");
    }

    #[test]
    fn subresources_change_only_their_fields() {
        let before = pod(|_| {});
        let mut next = pod(|spec| {
            spec["nodeName"] = "m".into();
            spec["ephemeralContainers"] = json!([{"name": "debug"}]);
            spec["containers"][0]["resources"] = json!({"limits": {"cpu": "1"}});
        });
        let mut resized = next.clone();
        restrict_to_subresource("ephemeralcontainers", &before, &mut next);
        let expected = pod(|spec| spec["ephemeralContainers"] = json!([{"name": "debug"}]));
        assert_eq!(next, expected);
        restrict_to_subresource("resize", &before, &mut resized);
        let expected = pod(|spec| {
            spec["containers"][0]["resources"] = json!({"limits": {"cpu": "1"}});
        });
        assert_eq!(resized, expected);
    }
}
