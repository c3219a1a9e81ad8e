//! The fields that differ between two states of an object.

use serde_json::{Map, Value};

use super::fields::{Element, FieldSet};
use crate::list_types::{ListKind, list_kind};

/// The changed fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Fields that did not exist.
    pub added: FieldSet,
    /// Fields that had another value.
    pub modified: FieldSet,
    /// Fields that no longer exist.
    pub removed: FieldSet,
}

/// Maps that exist even when they are empty: the manager that creates one owns it.
const MAPS: [&str; 9] = [
    "annotations",
    "binaryData",
    "data",
    "labels",
    "limits",
    "matchLabels",
    "nodeSelector",
    "requests",
    "stringData",
];

impl Comparison {
    /// Compares an object before and after.
    pub fn of(before: &Value, after: &Value) -> Self {
        let all = compare(Some(before), Some(after), &mut Vec::new());
        Self {
            added: all.added.without_server_owned(),
            modified: all.modified.without_server_owned(),
            removed: all.removed.without_server_owned(),
        }
    }

    /// Fields with a new value.
    pub fn changed(&self) -> FieldSet {
        self.added.union(&self.modified)
    }

    fn put(&mut self, element: &Element, below: Self) {
        self.added.put(element.clone(), below.added);
        self.modified.put(element.clone(), below.modified);
        self.removed.put(element.clone(), below.removed);
    }
}

fn compare<'a>(
    before: Option<&'a Value>,
    after: Option<&'a Value>,
    names: &mut Vec<&'a str>,
) -> Comparison {
    let mut all = Comparison::default();
    match (before, after) {
        (None, None) => {}
        (None, Some(after)) => all.added = all_fields(after, names),
        (Some(before), None) => all.removed = all_fields(before, names),
        (Some(before), Some(after)) if before == after => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            for name in union_of_names(before, after) {
                names.push(name);
                let below = compare(value(before, name), value(after, name), names);
                names.pop();
                all.put(&Element::Field(name.clone()), below);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after)))
            if list_kind(names) != ListKind::Atomic =>
        {
            let kind = list_kind(names);
            let item = |list: &'a [Value], element: &Element| {
                let mut items = list.iter();
                items.find(|it| Element::of_item(it, kind).as_ref() == Some(element))
            };
            let elements = before
                .iter()
                .chain(after)
                .filter_map(|it| Element::of_item(it, kind));
            let mut elements: Vec<_> = elements.collect();
            elements.sort();
            elements.dedup();
            for element in elements {
                let (before, after) = (item(before, &element), item(after, &element));
                let mut below = compare(before, after, names);
                match (before, after) {
                    (None, _) => below.added.mark(),
                    (_, None) => below.removed.mark(),
                    _ => {}
                }
                all.put(&element, below);
            }
        }
        _ => all.modified.mark(),
    }
    all
}

/// Null is the same as no value.
fn value<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

fn union_of_names<'a>(
    before: &'a Map<String, Value>,
    after: &'a Map<String, Value>,
) -> impl Iterator<Item = &'a String> {
    let new = after.keys().filter(|name| !before.contains_key(*name));
    before.keys().chain(new)
}

fn all_fields<'a>(value: &'a Value, names: &mut Vec<&'a str>) -> FieldSet {
    // A stored list may have items with the same key: then the list counts as one field.
    let mut set = FieldSet::of(value, names).unwrap_or_else(|_| {
        let mut set = FieldSet::default();
        set.mark();
        set
    });
    mark_maps(&mut set, names.last().copied().unwrap_or_default());
    set
}

fn mark_maps(set: &mut FieldSet, name: &str) {
    if MAPS.contains(&name) {
        set.mark();
        return;
    }
    let below: Vec<_> = set
        .below()
        .map(|(element, set)| (element.clone(), set.clone()))
        .collect();
    for (element, mut below) in below {
        let name = match &element {
            Element::Field(name) => name.clone(),
            Element::Key(_) | Element::Item(_) => String::new(),
        };
        mark_maps(&mut below, &name);
        set.put(element, below);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_are_listed_field_by_field() {
        let before = json!({
            "metadata": {"resourceVersion": "1", "labels": {"a": "1"}},
            "spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b"}], "tolerations": [1]},
        });
        let after = json!({
            "metadata": {"resourceVersion": "2", "labels": {"a": "1", "b": "2"}},
            "spec": {"containers": [{"name": "a", "image": "2"}, {"name": "c"}], "tolerations": [2]},
            "data": {"x": "1"},
        });
        let all = Comparison::of(&before, &after);
        let container = |name: &str, rest: &str| format!(".spec.containers[name=\"{name}\"]{rest}");
        assert_eq!(
            all.added.paths(),
            [
                ".data",
                ".data.x",
                ".metadata.labels.b",
                &container("c", ""),
                &container("c", ".name")
            ]
        );
        assert_eq!(
            all.modified.paths(),
            [".spec.tolerations", &container("a", ".image")]
        );
        assert_eq!(
            all.removed.paths(),
            [container("b", ""), container("b", ".name")]
        );
        let nothing = Comparison::of(&after, &after);
        assert_eq!(nothing, Comparison::default());
    }
}
