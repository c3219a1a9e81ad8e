//! Sets of fields in the format of `managedFields` (`FieldsV1`).

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use crate::list_types::{ListKind, key_value, list_kind};

/// An element of a field path. Values are JSON text, which is ordered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// `f:spec`
    Field(String),
    /// `k:{"name":"web"}`: an item of a list by its keys.
    Key(String),
    /// `v:"x"`: an item of a set.
    Item(String),
}

/// Fields of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// Whether this field itself is in the set, and not only fields below it.
    included: bool,
    below: BTreeMap<Element, FieldSet>,
}

/// Metadata that only the server writes and that no manager owns.
const SERVER_OWNED: [&str; 9] = [
    "name",
    "namespace",
    "creationTimestamp",
    "deletionTimestamp",
    "selfLink",
    "uid",
    "generation",
    "managedFields",
    "resourceVersion",
];

impl FieldSet {
    /// All fields of an object that a manager can own. An error names a list whose items have
    /// the same key.
    pub fn of_object(object: &Value) -> Result<Self, String> {
        let mut set = Self::of(object, &mut Vec::new())?;
        set.included = false;
        Ok(set.without_server_owned())
    }

    /// All fields of a value below this path. An empty object is a field; a keyed list is not,
    /// only its items are.
    pub(super) fn of<'a>(value: &'a Value, names: &mut Vec<&'a str>) -> Result<Self, String> {
        let mut set = Self::default();
        match value {
            Value::Object(fields) => {
                for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
                    names.push(name);
                    let below = Self::of(value, names)?;
                    names.pop();
                    set.put(Element::Field(name.clone()), below);
                }
                set.included = fields.is_empty();
            }
            Value::Array(items) => {
                let kind = list_kind(names);
                if kind == ListKind::Atomic {
                    set.included = true;
                    return Ok(set);
                }
                for item in items {
                    let element = Element::of_item(item, kind)
                        .ok_or_else(|| format!(".{}: element without its keys", names.join(".")))?;
                    let mut below = match kind {
                        ListKind::Keyed(_) => Self::of(item, names)?,
                        _ => Self::default(),
                    };
                    below.included = true;
                    if let Some(twice) = set.below.insert(element.clone(), below) {
                        drop(twice);
                        return Err(format!(
                            ".{}: duplicate entries for key {element}",
                            names.join(".")
                        ));
                    }
                }
            }
            _ => set.included = true,
        }
        Ok(set)
    }

    pub(super) fn without_server_owned(mut self) -> Self {
        for name in ["apiVersion", "kind"] {
            self.below.remove(&Element::Field(name.to_owned()));
        }
        let metadata = Element::Field("metadata".to_owned());
        if let Some(set) = self.below.get_mut(&metadata) {
            set.included = false;
            for name in SERVER_OWNED {
                set.below.remove(&Element::Field(name.to_owned()));
            }
            if set.below.is_empty() {
                self.below.remove(&metadata);
            }
        }
        self
    }

    /// Parses `fieldsV1`. Unknown entries are ignored.
    pub fn parse(value: &Value) -> Self {
        Self {
            included: false,
            ..Self::read(value)
        }
    }

    fn read(value: &Value) -> Self {
        let Some(fields) = value.as_object() else {
            return Self::default();
        };
        let below = fields
            .iter()
            .filter_map(|(name, value)| Some((Element::parse(name)?, Self::read(value))));
        Self {
            included: fields.is_empty() || fields.contains_key("."),
            below: below.collect(),
        }
    }

    /// Encodes as `fieldsV1`.
    pub fn write(&self) -> Value {
        let mut fields = Map::new();
        if self.included && !self.below.is_empty() {
            fields.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (element, set) in &self.below {
            fields.insert(element.name(), set.write());
        }
        Value::Object(fields)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        !self.included && self.below.values().all(Self::is_empty)
    }

    /// Whether the field itself is in the set.
    pub fn is_included(&self) -> bool {
        self.included
    }

    /// The fields below.
    pub fn below(&self) -> impl Iterator<Item = (&Element, &Self)> {
        self.below.iter()
    }

    /// The fields below an element.
    pub fn get(&self, element: &Element) -> Option<&Self> {
        self.below.get(element)
    }

    pub(super) fn mark(&mut self) {
        self.included = true;
    }

    pub(super) fn put(&mut self, element: Element, set: Self) {
        if !set.is_empty() {
            self.below.insert(element, set);
        }
    }

    /// The union of both sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.included |= other.included;
        for (element, set) in &other.below {
            let merged = match all.below.get(element) {
                Some(own) => own.union(set),
                None => set.clone(),
            };
            all.below.insert(element.clone(), merged);
        }
        all
    }

    /// The intersection of both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut both = Self {
            included: self.included && other.included,
            below: BTreeMap::new(),
        };
        for (element, set) in &self.below {
            if let Some(others) = other.below.get(element) {
                both.put(element.clone(), set.intersection(others));
            }
        }
        both
    }

    /// The fields that are not in the other set.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut rest = Self {
            included: self.included && !other.included,
            below: BTreeMap::new(),
        };
        for (element, set) in &self.below {
            let left = match other.below.get(element) {
                Some(others) => set.difference(others),
                None => set.clone(),
            };
            rest.put(element.clone(), left);
        }
        rest
    }

    /// The paths of all fields, in kube-apiserver's format.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect("", &mut paths);
        paths
    }

    /// At each level first the fields of that level, then those below.
    fn collect(&self, path: &str, paths: &mut Vec<String>) {
        let included = self.below.iter().filter(|(_, set)| set.included);
        paths.extend(included.map(|(element, _)| format!("{path}{element}")));
        for (element, set) in &self.below {
            set.collect(&format!("{path}{element}"), paths);
        }
    }
}

impl Element {
    /// The path element of a list item, if it has its keys.
    pub fn of_item(item: &Value, kind: ListKind) -> Option<Self> {
        match kind {
            ListKind::Atomic => None,
            ListKind::Set => Some(Self::Item(item.to_string())),
            ListKind::Keyed(keys) => {
                let keys = keys
                    .iter()
                    .map(|key| Some(((*key).to_owned(), key_value(item, key)?)));
                let keys: Option<Map<_, _>> = keys.collect();
                Some(Self::Key(Value::Object(keys?).to_string()))
            }
        }
    }

    fn parse(name: &str) -> Option<Self> {
        // Normalised, so that spaces and order do not matter.
        let json = |text: &str| {
            serde_json::from_str::<Value>(text)
                .ok()
                .map(|it| it.to_string())
        };
        match name.split_at_checked(2)? {
            ("f:", name) => Some(Self::Field(name.to_owned())),
            ("k:", text) => Some(Self::Key(json(text)?)),
            ("v:", text) => Some(Self::Item(json(text)?)),
            _ => None,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(text) => format!("k:{text}"),
            Self::Item(text) => format!("v:{text}"),
        }
    }
}

/// `.spec`, `[name="web"]`, `[="x"]`
impl fmt::Display for Element {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(out, ".{name}"),
            Self::Item(text) => write!(out, "[={text}]"),
            Self::Key(text) => {
                let keys: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
                let keys: Vec<_> = keys
                    .iter()
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect();
                write!(out, "[{}]", keys.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_encoded_as_by_kube_apiserver() {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web", "labels": {"app": "web"}, "finalizers": ["a"]},
            "spec": {
                "containers": [{"name": "c", "args": ["x"], "ports": [{"containerPort": 80}]}],
                "nodeSelector": {},
            },
        });
        let set = FieldSet::of_object(&object).unwrap();
        let expected = json!({
            "f:metadata": {"f:finalizers": {"v:\"a\"": {}}, "f:labels": {"f:app": {}}},
            "f:spec": {
                "f:containers": {"k:{\"name\":\"c\"}": {
                    ".": {},
                    "f:args": {},
                    "f:name": {},
                    "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {
                        ".": {}, "f:containerPort": {},
                    }},
                }},
                "f:nodeSelector": {},
            },
        });
        assert_eq!(set.write(), expected);
        assert_eq!(FieldSet::parse(&expected), set);
        assert!(
            set.paths()
                .contains(&".spec.containers[name=\"c\"].args".to_owned())
        );
        assert!(
            set.paths()
                .contains(&".metadata.finalizers[=\"a\"]".to_owned())
        );
    }

    #[test]
    fn items_must_have_different_keys() {
        let twice = json!({"spec": {"containers": [{"name": "a"}, {"name": "a"}]}});
        assert_eq!(
            FieldSet::of_object(&twice),
            Err(".spec.containers: duplicate entries for key [name=\"a\"]".to_owned())
        );
        assert!(FieldSet::of_object(&json!({"spec": {"containers": [{}]}})).is_err());
    }

    fn set() -> impl Strategy<Value = FieldSet> {
        let paths = proptest::collection::vec(proptest::collection::vec("[a-c]", 1..4), 0..6);
        paths.prop_map(|paths| {
            paths.iter().fold(FieldSet::default(), |all, path| {
                let leaf = FieldSet {
                    included: true,
                    below: BTreeMap::new(),
                };
                let one = path.iter().rev().fold(leaf, |set, name| {
                    let mut above = FieldSet::default();
                    above.put(Element::Field(name.clone()), set);
                    above
                });
                all.union(&one)
            })
        })
    }

    proptest! {
        #[test]
        fn set_operations_are_consistent(one in set(), other in set()) {
            let both = one.intersection(&other);
            let rest = one.difference(&other);
            prop_assert_eq!(both.union(&rest), one.clone());
            prop_assert!(rest.intersection(&other).is_empty());
            prop_assert_eq!(one.union(&other), other.union(&one));
            prop_assert!(one.difference(&one).is_empty());
        }

        #[test]
        fn encoded_values_are_decoded_unchanged(one in set()) {
            prop_assert_eq!(FieldSet::parse(&one.write()), one);
        }
    }
}
