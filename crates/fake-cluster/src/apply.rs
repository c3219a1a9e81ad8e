//! Server-side apply in its simple form: each field manager sends the fields that it manages,
//! and conflicts between managers are reported.
//!
//! Lists are merged by their keys. Ownership is kept for the version in which it was written:
//! fields that versions name differently are not translated.

pub mod compare;
pub mod fields;
pub mod managers;

use serde_json::{Map, Value};
use skewbridge_k8s_api::status::{Cause, Details, Status};

use crate::list_types::{ListKind, list_kind};
use crate::object::Object;
use crate::status::{FieldError, invalid};
use crate::time::Time;
use compare::Comparison;
use fields::{Element, FieldSet};
use managers::{Manager, Managers};

/// A field manager and its write.
#[derive(Debug, Clone, Copy)]
pub struct FieldManager<'a> {
    /// `fieldManager`
    pub manager: &'a str,
    /// The version of the request.
    pub api_version: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// The time of the write.
    pub now: Time,
}

/// How conflicts with other managers are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conflicts {
    /// The write is refused.
    Refuse,
    /// The manager takes over the fields.
    Force,
}

/// The merged object, with its `managedFields`. `live` is `None` if the object does not exist
/// yet.
pub fn apply(
    live: Option<&Object>,
    applied: &Object,
    writer: &FieldManager<'_>,
    conflicts: Conflicts,
) -> Result<Object, Status> {
    if writer.manager.is_empty() {
        let why = "is required for apply patch";
        let error = FieldError::required("fieldManager", why);
        return Err(invalid("meta.k8s.io", "PatchOptions", "", &[error]));
    }
    if !applied.managed_fields().is_empty() {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    let wanted = FieldSet::of_object(applied.value()).map_err(|error| {
        // Not an API error, so 500 without a reason.
        let message = format!(
            "failed to create typed patch object ({}/{}; {}, Kind={}): {error}",
            applied.namespace(),
            applied.name(),
            long_version(applied.api_version()),
            applied.kind()
        );
        Status::new(500, "", message)
    })?;
    let nothing = Value::Object(Map::new());
    let before = live.map_or(&nothing, Object::value);
    let mut managers = live.map(Managers::of).unwrap_or_default();
    let mut after = merge(Some(before), applied.value(), &mut Vec::new());

    let changed = Comparison::of(before, &after).changed();
    let disputed = managers.disputed(writer, &changed);
    if !disputed.is_empty() && conflicts == Conflicts::Refuse {
        return Err(refusal(&disputed));
    }
    for (manager, fields) in &disputed {
        managers.release(manager, fields);
    }
    let wanted_before = managers.applied_by(writer);
    let others = managers.owned_by_others(writer);
    let no_longer_applied = wanted_before.difference(&wanted);
    prune(
        &mut after,
        &no_longer_applied,
        Some(&others.union(&wanted)),
        &mut Vec::new(),
    );
    let removed = Comparison::of(before, &after).removed;
    managers.remove_fields(&removed);
    managers.set_applied(writer, wanted);
    let mut object = Object::new(after)?;
    managers.write(&mut object);
    Ok(object)
}

/// Updates `managedFields` after a create, an update or a patch: the writer owns all changed
/// fields. `after` is the object as it will be stored.
pub fn note_update(before: Option<&Object>, after: &mut Object, writer: &FieldManager<'_>) {
    let nothing = Value::Object(Map::new());
    let changes = Comparison::of(before.map_or(&nothing, Object::value), after.value());
    // An empty list resets all ownership.
    let reset = after
        .at(&["metadata", "managedFields"])
        .and_then(Value::as_array)
        .is_some_and(|list| {
            list.iter()
                .all(|it| it.as_object().is_some_and(Map::is_empty))
        });
    let mut managers = match before {
        Some(before) if !reset => Managers::of(before),
        _ => Managers::default(),
    };
    managers.note(writer, &changes);
    managers.write(after);
}

/// A group-version in Go's format: `/v1` for the core group.
pub(crate) fn long_version(api_version: &str) -> String {
    if api_version.contains('/') {
        api_version.to_owned()
    } else {
        format!("/{api_version}")
    }
}

/// The applied fields, merged into the live ones.
fn merge<'a>(before: Option<&'a Value>, wanted: &'a Value, names: &mut Vec<&'a str>) -> Value {
    match (before, wanted) {
        (before, Value::Object(wanted)) => {
            let mut merged = match before {
                Some(Value::Object(fields)) => fields.clone(),
                _ => Map::new(),
            };
            for (name, wanted) in wanted.iter().filter(|(_, wanted)| !wanted.is_null()) {
                names.push(name);
                let value = merge(before.and_then(|it| it.get(name)), wanted, names);
                names.pop();
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Some(Value::Array(before)), Value::Array(wanted)) => {
            let kind = list_kind(names);
            if kind == ListKind::Atomic {
                return Value::Array(wanted.clone());
            }
            Value::Array(merge_items(before, wanted, kind, names))
        }
        (_, wanted) => wanted.clone(),
    }
}

/// In the order of the applied items; other items keep their place relative to those in both
/// lists, where possible.
fn merge_items<'a>(
    before: &'a [Value],
    wanted: &'a [Value],
    kind: ListKind,
    names: &mut Vec<&'a str>,
) -> Vec<Value> {
    let element = |item: &Value| Element::of_item(item, kind);
    let find =
        |list: &'a [Value], item: &Value| list.iter().find(|it| element(it) == element(item));
    let mut merged = Vec::new();
    let mut left = before.iter().peekable();
    for (place, item) in wanted.iter().enumerate() {
        let mut to_come = wanted[place..].iter();
        let next_shared = to_come.find(|it| find(before, it).is_some());
        while let Some(own) = left.peek() {
            let is_shared = find(wanted, own).is_some();
            let is_it = element(own) == element(item);
            // The item is added when the applied items reach it.
            if is_shared && !is_it && next_shared.is_none_or(|it| element(it) == element(own)) {
                break;
            }
            let own = left.next();
            if is_it {
                break;
            }
            if !is_shared {
                merged.extend(own.cloned());
            }
        }
        merged.push(match find(before, item) {
            Some(there) => merge(Some(there), item, names),
            None => item.clone(),
        });
    }
    merged.extend(left.filter(|own| find(wanted, own).is_none()).cloned());
    merged
}

/// Removes fields that are no longer applied, unless another manager owns them.
fn prune<'a>(
    value: &mut Value,
    given_up: &'a FieldSet,
    kept: Option<&FieldSet>,
    names: &mut Vec<&'a str>,
) {
    for (element, given_up) in given_up.below() {
        let kept = kept.and_then(|kept| kept.get(element));
        let unwanted = given_up.is_included() && kept.is_none_or(FieldSet::is_empty);
        match (&mut *value, element) {
            (Value::Object(fields), Element::Field(name)) => {
                if unwanted {
                    fields.remove(name);
                } else if let Some(below) = fields.get_mut(name) {
                    names.push(name);
                    prune(below, given_up, kept, names);
                    names.pop();
                    let emptied = is_empty(below) && kept.is_none_or(FieldSet::is_empty);
                    if emptied {
                        fields.remove(name);
                    }
                }
            }
            (Value::Array(items), element) => {
                let kind = list_kind(names);
                let same = |it: &Value| Element::of_item(it, kind).as_ref() == Some(element);
                if unwanted {
                    items.retain(|item| !same(item));
                } else if let Some(item) = items.iter_mut().find(|it| same(it)) {
                    prune(item, given_up, kept, names);
                }
            }
            _ => {}
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// 409, with kube-apiserver's message.
fn refusal(disputed: &[(Manager, FieldSet)]) -> Status {
    let mut causes = Vec::new();
    let mut lines = Vec::new();
    for (manager, fields) in disputed {
        lines.push(format!("conflicts with {manager}:"));
        for path in fields.paths() {
            lines.push(format!("- {path}"));
            causes.push(Cause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {manager}"),
                field: path,
            });
        }
    }
    let message = match &causes[..] {
        [one] => format!(
            "Apply failed with 1 conflict: {}: {}",
            one.message, one.field
        ),
        several => {
            let count = several.len();
            format!("Apply failed with {count} conflicts: {}", lines.join("\n"))
        }
    };
    Status::new(409, "Conflict", message).with_details(Details {
        causes,
        ..Details::default()
    })
}

#[cfg(test)]
mod tests;
