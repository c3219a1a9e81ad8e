//! Whether an object has fields.

use serde_json::Value;

use crate::path::{FieldPath, Step};

/// Whether an object has a field that matches one of the patterns. `null` counts as missing.
pub fn has_any(object: &Value, patterns: &[FieldPath]) -> bool {
    patterns.iter().any(|pattern| has(object, pattern.steps()))
}

fn has(value: &Value, steps: &[Step]) -> bool {
    let Some((step, rest)) = steps.split_first() else {
        return !value.is_null();
    };
    match step {
        Step::Field(name) => value.get(&**name).is_some_and(|below| has(below, rest)),
        Step::Value => {
            let values = value
                .as_object()
                .into_iter()
                .flat_map(|object| object.values());
            values.into_iter().any(|below| has(below, rest))
        }
        Step::Item => {
            let items = value.as_array().into_iter().flatten();
            items.into_iter().any(|below| has(below, rest))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_is_found_in_objects_lists_and_maps() {
        let (field, item, value) = (
            |name: &str| Step::Field(name.into()),
            Step::Item,
            Step::Value,
        );
        let patterns = [
            (vec![field("a")], json!({"a": false}), true),
            (vec![field("a")], json!({"a": null}), false),
            (vec![field("a")], json!({"b": 1}), false),
            (vec![field("a")], json!([1]), false),
            (vec![field("a"), field("b")], json!({"a": {"b": ""}}), true),
            (vec![field("a"), field("b")], json!({"a": 1}), false),
            (
                vec![field("a"), item.clone(), field("b")],
                json!({"a": [{}, {"b": 1}]}),
                true,
            ),
            (
                vec![field("a"), item.clone(), field("b")],
                json!({"a": [{}, {"c": 1}]}),
                false,
            ),
            (
                vec![field("a"), value.clone(), field("b")],
                json!({"a": {"x": {"b": 1}}}),
                true,
            ),
            (
                vec![field("a"), value, field("b")],
                json!({"a": {"b": 1}}),
                false,
            ),
        ];
        for (steps, object, expected) in patterns {
            let pattern = FieldPath(steps);
            assert_eq!(
                has_any(&object, std::slice::from_ref(&pattern)),
                expected,
                "{pattern} {object}"
            );
        }
        assert!(!has_any(&json!({"a": 1}), &[]));
    }
}
