//! Restores fields of an object that a write would erase.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value};

use crate::path::{FieldPath, Step};

/// Restored paths that are reported of one object: enough to name the cause.
pub const MAX_REPORTED_PATHS: usize = 100;

/// Fields that identify an item of a list, the most specific one first. Lists of Kubernetes that
/// are merged by key use these, alone or with others.
const KEYS: [&str; 10] = [
    "name",
    "key",
    "uid",
    "ip",
    "type",
    "mountPath",
    "devicePath",
    "containerPort",
    "topologyKey",
    "port",
];

/// The directive of a strategic merge patch that names the fields of an object that stay.
const RETAIN_KEYS: &str = "$retainKeys";

/// What the body of a write is, and so what it replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The whole object, as an update has it: what is missing in it is removed.
    Object,
    /// A JSON merge patch (RFC 7396), which replaces lists: a field that is missing in an object stays,
    /// and `null` removes it.
    MergePatch,
    /// A strategic merge patch. It merges lists or replaces them; which of both depends on the types of
    /// the server, so the items of all lists get the fields that are missing in them. `$patch: replace`
    /// replaces an object or a list, and `$retainKeys` names the fields of an object that stay.
    StrategicMergePatch,
    /// What a strategic merge patch replaces, or may replace: a field that is missing is removed, and so
    /// is one that is `null`.
    ReplacedByPatch,
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
/// removed by the client, and so does what a patch removes by name.
pub fn restore(
    before: &Value,
    after: &mut Value,
    patterns: &[FieldPath],
    written: Written,
    alternatives: Alternatives,
) -> Vec<String> {
    search(before, after, patterns, (written, alternatives)).found
}

/// Restores fields, and says where.
pub(crate) fn search(
    before: &Value,
    after: &mut Value,
    patterns: &[FieldPath],
    (written, alternatives): (Written, Alternatives),
) -> Search {
    let mut search = Search {
        found: Vec::new(),
        added: Vec::new(),
        path: String::new(),
        pointer: String::new(),
        alternatives,
    };
    for pattern in patterns {
        search.visit(before, after, pattern.steps(), written);
    }
    search
}

/// A comparison of two objects.
pub(crate) struct Search {
    /// The paths of restored fields.
    pub(crate) found: Vec<String>,
    /// The JSON pointers of the values that were added.
    pub(crate) added: Vec<String>,
    path: String,
    pointer: String,
    alternatives: Alternatives,
}

impl Search {
    /// Compares a container that both objects have.
    fn visit(&mut self, before: &Value, after: &mut Value, steps: &[Step], written: Written) {
        let Some((step, rest)) = steps.split_first() else {
            return;
        };
        let Some(written) = written.of(after) else {
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
                self.below(&label, name, |search| {
                    search.field((name, value), after, rest, (written, is_replaced));
                });
            }
            (Step::Value, Value::Object(before), Value::Object(after)) => {
                for (name, value) in before {
                    if let Some(below) = after.get_mut(name) {
                        self.below(&format!("{{{name}}}"), name, |search| {
                            search.visit(value, below, rest, written);
                        });
                    }
                }
            }
            (Step::Item, Value::Array(before), Value::Array(after)) => {
                for (place, counterpart, label) in counterparts(before, after, rest) {
                    self.below(&label, &counterpart.to_string(), |search| {
                        let (item, after) = (&before[place], &mut after[counterpart]);
                        search.visit(item, after, rest, written.of_items());
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
        let retained = retained_keys(after).filter(|_| written.has_directives());
        let is_retained = |keys: &[Value]| keys.iter().any(|it| it.as_str() == Some(name));
        let is_removed = match after.get_mut(name) {
            Some(below) if !below.is_null() => {
                self.visit(value, below, rest, written);
                return;
            }
            // A patch names what it removes.
            Some(_) => written == Written::Object,
            None => match retained {
                Some(keys) => !is_retained(&keys),
                None => matches!(written, Written::Object | Written::ReplacedByPatch),
            },
        };
        if !is_removed || is_replaced || !contains_only(value, rest) {
            return;
        }
        match retained_keys_mut(after).filter(|_| written.has_directives()) {
            Some(keys) => keys.push(name.into()),
            None => {
                after.insert(name.to_owned(), value.clone());
            }
        }
        let path = rest_of(&self.path, rest);
        if self.found.len() < MAX_REPORTED_PATHS && !self.found.contains(&path) {
            self.found.push(path);
        }
        self.added.push(self.pointer.clone());
    }

    fn below(&mut self, label: &str, token: &str, visit: impl FnOnce(&mut Self)) {
        let (length, pointer_length) = (self.path.len(), self.pointer.len());
        self.path.push_str(label);
        self.pointer.push('/');
        let token = token.replace('~', "~0").replace('/', "~1");
        self.pointer.push_str(&token);
        visit(self);
        self.path.truncate(length);
        self.pointer.truncate(pointer_length);
    }
}

impl Written {
    fn has_directives(self) -> bool {
        matches!(self, Self::StrategicMergePatch | Self::ReplacedByPatch)
    }

    /// How this object or list is written, by the directives in it; `None` if it is deleted.
    fn of(self, value: &Value) -> Option<Self> {
        if !self.has_directives() {
            return Some(self);
        }
        let is_replaced = match value {
            Value::Object(object) => match directive(object) {
                Some("delete") => return None,
                directive => directive == Some("replace"),
            },
            Value::Array(items) => items.iter().any(replaces_list),
            _ => false,
        };
        Some(if is_replaced {
            Self::ReplacedByPatch
        } else {
            self
        })
    }

    /// How the items of a list are written.
    fn of_items(self) -> Self {
        match self {
            Self::Object | Self::MergePatch => Self::Object,
            Self::StrategicMergePatch | Self::ReplacedByPatch => Self::ReplacedByPatch,
        }
    }
}

/// The value of `$patch` in an object of a strategic merge patch.
pub(crate) fn directive(object: &Map<String, Value>) -> Option<&str> {
    object.get("$patch").and_then(Value::as_str)
}

/// Whether an item of a list is the directive by which the other items replace the list.
fn replaces_list(item: &Value) -> bool {
    item.as_object().and_then(directive) == Some("replace")
}

/// The fields that stay in an object of a strategic merge patch, if it says so.
pub(crate) fn retained_keys(object: &Map<String, Value>) -> Option<Vec<Value>> {
    object.get(RETAIN_KEYS)?.as_array().cloned()
}

fn retained_keys_mut(object: &mut Map<String, Value>) -> Option<&mut Vec<Value>> {
    object.get_mut(RETAIN_KEYS)?.as_array_mut()
}

/// A copy of `before` without what a strategic merge patch removes by name: its effect is then compared with
/// what the patch leaves.
pub fn without_removed(before: &Value, patch: &Value, patterns: &[FieldPath]) -> Value {
    let mut left = before.clone();
    for pattern in patterns {
        remove_named(&mut left, patch, pattern.steps());
    }
    left
}

fn remove_named(before: &mut Value, patch: &Value, steps: &[Step]) {
    let Some((step, rest)) = steps.split_first() else {
        return;
    };
    let is_removal = |patch: &Value| match patch {
        Value::Null => true,
        Value::Object(object) => directive(object) == Some("delete"),
        _ => false,
    };
    match (step, before, patch) {
        (Step::Field(name), Value::Object(before), Value::Object(patch)) => {
            match patch.get(&**name) {
                Some(below) if is_removal(below) => {
                    before.remove(&**name);
                }
                Some(below) => {
                    if let Some(before) = before.get_mut(&**name) {
                        remove_named(before, below, rest);
                    }
                }
                None => {}
            }
        }
        (Step::Value, Value::Object(before), Value::Object(patch)) => {
            for (name, below) in patch {
                match before.get_mut(name) {
                    Some(_) if is_removal(below) => {
                        before.remove(name);
                    }
                    Some(before) => remove_named(before, below, rest),
                    None => {}
                }
            }
        }
        (Step::Item, Value::Array(before), Value::Array(patch)) => {
            for (place, counterpart, _) in counterparts(before, patch, rest) {
                match &patch[counterpart] {
                    below if is_removal(below) => before[place] = Value::Null,
                    below => remove_named(&mut before[place], below, rest),
                }
            }
        }
        _ => {}
    }
}

/// Whether `after` has a field that `before` lacks.
fn has_gained(before: &Map<String, Value>, after: &Map<String, Value>) -> bool {
    let has = |object: &Map<String, Value>, name| object.get(name).is_some_and(|it| !it.is_null());
    // A directive of a patch is no field.
    let mut names = after.keys().filter(|name| !name.starts_with('$'));
    names.any(|name| has(after, name) && !has(before, name))
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
    let items = after.iter().enumerate();
    for (place, item) in items.filter(|(_, item)| !replaces_list(item)) {
        let equal: &mut VecDeque<usize> = places.entry(identity(item)).or_default();
        equal.push_back(place);
    }
    let places_after: Vec<usize> = (0..after.len())
        .filter(|place| !replaces_list(&after[*place]))
        .collect();
    let by_place = key.is_none() && before.len() == places_after.len();
    let mut found = Vec::new();
    for (place, item) in before.iter().enumerate() {
        let counterpart = places
            .get_mut(&identity(item))
            .and_then(VecDeque::pop_front);
        let counterpart = match counterpart {
            Some(counterpart) => Some(counterpart),
            None => by_place.then(|| places_after[place]),
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
    let mut items = items.iter().filter(|item| !replaces_list(item));
    items.all(|item| match item.get(key) {
        Some(Value::String(value)) => values.insert(value.clone()),
        Some(Value::Number(value)) => values.insert(value.to_string()),
        _ => false,
    })
}
