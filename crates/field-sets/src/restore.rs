//! Restores fields of an object that a write would erase.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value};

use crate::path::{FieldPath, Step};

/// Restored paths that are reported of one object: enough to name the cause.
pub const MAX_REPORTED_PATHS: usize = 100;

/// Fields that identify an item of a list, the most specific one first. Lists of Kubernetes that
/// are merged by key use these, alone or with others.
const KEYS: [&str; 9] = [
    "name",
    "key",
    "uid",
    "ip",
    "type",
    "mountPath",
    "devicePath",
    "containerPort",
    "topologyKey",
];

/// What the body of a write is, and so what it replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The whole object, as an update has it: what is missing in it is removed.
    Object,
    /// A JSON merge patch (RFC 7396), which replaces lists: a field that is missing in an object stays,
    /// and `null` removes it.
    MergePatch,
}

/// Whether a field is restored if its container has gained another field. Of the members of a union an
/// object has one, and which fields form a union cannot be determined from an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alternatives {
    /// Such a field is restored.
    Keep,
    /// Such a field counts as replaced by the other one. Used only after the server has rejected the
    /// write with the field.
    LeaveOut,
}

/// Copies the fields of `before` that match `patterns` and are missing in `after` to it. Returns
/// their paths, at most [`MAX_REPORTED_PATHS`].
///
/// A field counts as erased if its container is still there: a server that does not have a field
/// removes it and leaves what it has. Where the container is gone as well, the client has removed
/// it, unless it contained nothing else: then the server has removed it as empty. With
/// [`FieldDifference::unknown`](crate::FieldDifference::unknown) as patterns, a container that not
/// every server has is a pattern itself.
///
/// Items of lists correspond to each other by a field such as `name`, if it identifies all items of
/// both lists; otherwise an item corresponds to one that is equal apart from the field, or else has
/// the same place in a list of the same length. An item or a value of a map that is gone counts as
/// removed by the client.
pub fn restore(
    before: &Value,
    after: &mut Value,
    patterns: &[FieldPath],
    written: Written,
    alternatives: Alternatives,
) -> Vec<String> {
    let mut search = Search {
        found: Vec::new(),
        path: String::new(),
        alternatives,
    };
    for pattern in patterns {
        search.visit(before, after, pattern.steps(), written);
    }
    search.found
}

struct Search {
    found: Vec<String>,
    path: String,
    alternatives: Alternatives,
}

impl Search {
    /// Compares a container that both objects have.
    fn visit(&mut self, before: &Value, after: &mut Value, steps: &[Step], written: Written) {
        let Some((step, rest)) = steps.split_first() else {
            return;
        };
        match (step, before, after) {
            (Step::Field(name), Value::Object(before), Value::Object(after)) => {
                let Some(value) = before.get(&**name).filter(|value| !value.is_null()) else {
                    return;
                };
                let separator = if self.path.is_empty() { "" } else { "." };
                let label = format!("{separator}{name}");
                let is_replaced =
                    self.alternatives == Alternatives::LeaveOut && has_gained(before, after);
                self.below(&label, |search| {
                    search.field((name, value), after, rest, (written, is_replaced));
                });
            }
            (Step::Value, Value::Object(before), Value::Object(after)) => {
                for (name, value) in before {
                    if let Some(below) = after.get_mut(name) {
                        self.below(&format!("{{{name}}}"), |search| {
                            search.visit(value, below, rest, written);
                        });
                    }
                }
            }
            (Step::Item, Value::Array(before), Value::Array(after)) => {
                for (place, counterpart, label) in counterparts(before, after, rest) {
                    self.below(&label, |search| {
                        let (item, after) = (&before[place], &mut after[counterpart]);
                        search.visit(item, after, rest, Written::Object);
                    });
                }
            }
            _ => {}
        }
    }

    /// A field that `before` has. If it is missing in `after`, `is_replaced` says that another field
    /// has taken its place.
    fn field(
        &mut self,
        (name, value): (&str, &Value),
        after: &mut Map<String, Value>,
        rest: &[Step],
        (written, is_replaced): (Written, bool),
    ) {
        match after.get_mut(name) {
            Some(below) if !below.is_null() => self.visit(value, below, rest, written),
            // A merge patch keeps what is missing in it, and removes what is null.
            _ if written == Written::MergePatch || is_replaced => {}
            _ if contains_only(value, rest) => {
                after.insert(name.to_owned(), value.clone());
                let path = rest_of(&self.path, rest);
                if self.found.len() < MAX_REPORTED_PATHS && !self.found.contains(&path) {
                    self.found.push(path);
                }
            }
            _ => {}
        }
    }

    fn below(&mut self, label: &str, visit: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        self.path.push_str(label);
        visit(self);
        self.path.truncate(length);
    }
}

/// Whether `after` has a field that `before` lacks.
fn has_gained(before: &Map<String, Value>, after: &Map<String, Value>) -> bool {
    let has = |object: &Map<String, Value>, name| object.get(name).is_some_and(|it| !it.is_null());
    (after.keys()).any(|name| has(after, name) && !has(before, name))
}

/// Whether a value consists of the field at the end of these steps, and of nothing else.
fn contains_only(value: &Value, steps: &[Step]) -> bool {
    let Some((step, rest)) = steps.split_first() else {
        return true;
    };
    match (step, value) {
        (Step::Field(name), Value::Object(object)) => {
            let mut members = object.iter().filter(|(_, value)| !value.is_null());
            let only = members.next().filter(|(found, _)| *found == &**name);
            members.next().is_none() && only.is_some_and(|(_, value)| contains_only(value, rest))
        }
        _ => false,
    }
}

/// The path of the field at the end of these steps.
fn rest_of(path: &str, steps: &[Step]) -> String {
    let mut path = path.to_owned();
    for step in steps {
        if let Step::Field(name) = step {
            path.push('.');
            path.push_str(name);
        }
    }
    path
}

/// The places of items in `before` and of their counterparts in `after`, and their labels.
fn counterparts(before: &[Value], after: &[Value], steps: &[Step]) -> Vec<(usize, usize, String)> {
    let key = KEYS
        .into_iter()
        .find(|key| identifies(before, key) && identifies(after, key));
    let mut places = HashMap::new();
    let identity = |item: &Value| match key {
        Some(key) => item.get(key).map(Value::to_string),
        None => Some(without(item, steps).to_string()),
    };
    for (place, item) in after.iter().enumerate() {
        let equal: &mut VecDeque<usize> = places.entry(identity(item)).or_default();
        equal.push_back(place);
    }
    let mut found = Vec::new();
    for (place, item) in before.iter().enumerate() {
        let counterpart = places
            .get_mut(&identity(item))
            .and_then(VecDeque::pop_front);
        let counterpart = match counterpart {
            Some(counterpart) => Some(counterpart),
            None => (key.is_none() && before.len() == after.len()).then_some(place),
        };
        let label = match (key, key.and_then(|key| item.get(key))) {
            (Some(key), Some(Value::String(value))) => format!("[{key}={value}]"),
            (Some(key), Some(value)) => format!("[{key}={value}]"),
            _ => format!("[{place}]"),
        };
        found.extend(counterpart.map(|counterpart| (place, counterpart, label)));
    }
    found
}

/// An item without the field at the end of these steps.
fn without(item: &Value, steps: &[Step]) -> Value {
    let mut item = item.clone();
    remove(&mut item, steps);
    item
}

fn remove(value: &mut Value, steps: &[Step]) {
    match (steps.split_first(), value) {
        (Some((Step::Field(name), [])), Value::Object(object)) => {
            object.remove(&**name);
        }
        (Some((Step::Field(name), rest)), Value::Object(object)) => {
            if let Some(below) = object.get_mut(&**name) {
                remove(below, rest);
            }
        }
        (Some((Step::Value, rest)), Value::Object(object)) => {
            for below in object.values_mut() {
                remove(below, rest);
            }
        }
        (Some((Step::Item, rest)), Value::Array(items)) => {
            for below in items {
                remove(below, rest);
            }
        }
        _ => {}
    }
}

fn identifies(items: &[Value], key: &str) -> bool {
    let mut values = HashSet::new();
    items.iter().all(|item| match item.get(key) {
        Some(Value::String(value)) => values.insert(value.clone()),
        Some(Value::Number(value)) => values.insert(value.to_string()),
        _ => false,
    })
}
