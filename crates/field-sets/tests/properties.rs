//! Properties of extraction, comparison and restored fields.

#![allow(clippy::unwrap_used)] // test helpers panic on failure

#[path = "support/documents.rs"]
mod documents;

use std::collections::BTreeSet;

use documents::{discovery, document, paths, schema, server};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use skewbridge_field_sets::{
    Alternatives, ComparedServer, FieldPath, FieldSkew, ServerFields, ServerFieldsBuilder, Step,
    Written, restore, restore_after_json_patch,
};

/// Every field has one type, as in Go: `l` is a list, `m` a map.
fn path() -> impl Strategy<Value = String> {
    let part = proptest::sample::select(&["a", "b", "l[]", "m{}"]);
    vec(part, 1..4).prop_map(|parts| parts.join("."))
}

fn path_set() -> impl Strategy<Value = Vec<String>> {
    vec(path(), 0..6)
}

fn pointer() -> impl Strategy<Value = String> {
    let part = proptest::sample::select(&["a", "b", "l", "m", "0", "1", "-1", "-", "x"]);
    vec(part, 0..4).prop_map(|parts| parts.iter().flat_map(|it| ["/", *it]).collect())
}

fn fields(paths: &[String]) -> ServerFields {
    server(schema(
        &paths.iter().map(String::as_str).collect::<Vec<_>>(),
    ))
}

fn compare(servers: &[(u16, ServerFields)]) -> FieldSkew {
    let servers: Vec<_> = servers
        .iter()
        .map(|(minor, fields)| ComparedServer {
            version: format!("v1.{minor}.0").parse().ok(),
            fields,
        })
        .collect();
    FieldSkew::compare(&servers, |_, _| false).unwrap()
}

/// An object that has a value for each path.
fn object(paths: &[FieldPath]) -> Value {
    fn set(at: &mut Value, steps: &[Step]) {
        let Some((step, rest)) = steps.split_first() else {
            return;
        };
        if at.is_null() || at.is_number() {
            *at = match step {
                Step::Item => json!([]),
                _ => json!({}),
            };
        }
        let below = match (at, step) {
            (Value::Object(map), Step::Field(name)) => map.entry(&**name).or_insert(json!(1)),
            (Value::Object(map), Step::Value) => map.entry("any").or_insert(json!(1)),
            (Value::Array(items), Step::Item) => {
                if items.is_empty() {
                    items.push(json!(1));
                }
                &mut items[0]
            }
            _ => return,
        };
        set(below, rest);
    }
    let mut object = json!({});
    for path in paths {
        set(&mut object, path.steps());
    }
    object
}

/// The object as a server with these fields decodes it.
fn decoded(value: &Value, known: &BTreeSet<FieldPath>, at: &str) -> Value {
    let is_known = |path: &str| path.parse().is_ok_and(|path| known.contains(&path));
    match value {
        Value::Object(map) => {
            let entry = format!("{at}{{}}");
            let below = map.iter().filter_map(|(name, value)| {
                let field = match at {
                    "" => name.clone(),
                    at => format!("{at}.{name}"),
                };
                let path = [&field, &entry].into_iter().find(|it| is_known(it))?;
                Some((name.clone(), decoded(value, known, path)))
            });
            Value::Object(below.collect())
        }
        Value::Array(items) => {
            let path = format!("{at}[]");
            items.iter().map(|it| decoded(it, known, &path)).collect()
        }
        other => other.clone(),
    }
}

proptest! {
    #[test]
    fn the_order_of_servers_does_not_matter(
        servers in vec((30_u16..33, path_set()), 1..5),
        shuffled in vec(any::<proptest::sample::Index>(), 5),
    ) {
        let servers: Vec<_> = servers.into_iter().map(|(minor, it)| (minor, fields(&it))).collect();
        let mut order: Vec<usize> = (0..servers.len()).collect();
        for (at, index) in shuffled.iter().enumerate().take(order.len()) {
            let other = index.index(order.len());
            order.swap(at, other);
        }
        let one = compare(&servers);
        let other = compare(&order.iter().map(|it| servers[*it].clone()).collect::<Vec<_>>());
        let (one, other) = (one.difference("apps", "widgets"), other.difference("apps", "widgets"));
        prop_assert_eq!(one.is_some(), other.is_some());
        if let (Some(one), Some(other)) = (one, other) {
            prop_assert_eq!(one.unknown(), other.unknown());
            prop_assert_eq!(one.is_ambiguous(), other.is_ambiguous());
            let mut most: Vec<_> = other.knows_most().iter().map(|it| order[*it]).collect();
            most.sort_unstable();
            prop_assert_eq!(one.knows_most(), most);
            for (place, server) in order.iter().enumerate() {
                prop_assert_eq!(one.lacking(*server), other.lacking(place));
            }
        }
    }

    #[test]
    fn a_server_lacks_a_path_or_has_it(servers in vec(path_set(), 1..4)) {
        let servers: Vec<_> = servers.iter().map(|it| (30, fields(it))).collect();
        let skew = compare(&servers);
        let all: BTreeSet<String> = servers.iter().flat_map(|it| paths(&it.1)).collect();
        for (number, (_, known)) in servers.iter().enumerate() {
            let set = known.kind("apps", "Widget").unwrap();
            let difference = skew.difference("apps", "widgets");
            let lacking = difference.map_or(&[][..], |it| it.lacking(number));
            for path in &all {
                let path: FieldPath = path.parse().unwrap();
                let mut lacking = lacking.iter();
                let lacks = lacking.any(|it| path.steps().starts_with(it.steps()));
                prop_assert_eq!(lacks, !set.contains(&path));
            }
        }
    }

    #[test]
    fn versions_are_united_in_any_order(versions in vec(path_set(), 1..4), by in 0_usize..4) {
        let names = ["v1", "v2", "v3"];
        let build = |order: &[usize]| {
            let mut builder = ServerFieldsBuilder::new(&discovery(&names[..versions.len()]));
            for number in order {
                let paths: Vec<_> = versions[*number].iter().map(String::as_str).collect();
                let document = document(names[*number], schema(&paths), &[]);
                builder.add("apps", names[*number], &document).unwrap();
            }
            builder.build().unwrap()
        };
        let mut order: Vec<usize> = (0..versions.len()).collect();
        let one = build(&order);
        order.rotate_left(by % versions.len());
        let other = build(&order);
        prop_assert_eq!(one.to_json(), other.to_json());
        let all: Vec<_> = versions.concat();
        prop_assert_eq!(&one, &fields(&all));
        prop_assert_eq!(ServerFields::from_json(&one.to_json()).unwrap(), one);
    }

    #[test]
    fn what_a_server_does_not_decode_is_reported(paths in path_set(), kept in vec(any::<bool>(), 6)) {
        let all = fields(&paths);
        let less: Vec<_> = paths.iter().zip(kept).filter(|it| it.1).map(|it| it.0.clone()).collect();
        let less = fields(&less);
        let known = |fields: &ServerFields| fields.kind("apps", "Widget").unwrap().paths();
        let before = object(&known(&all));
        let after = decoded(&before, &known(&less).into_iter().collect(), "");
        let skew = compare(&[(30, all), (31, less)]);
        let unknown = skew.difference("apps", "widgets").map_or(&[][..], |it| it.unknown());
        // A field that a server drops is never treated as removed by the client.
        for alternatives in [Alternatives::Keep, Alternatives::LeaveOut] {
            let restore = |after: &mut Value| {
                restore(&before, after, unknown, Written::Object, alternatives)
            };
            prop_assert!(restore(&mut before.clone()).is_empty());
            // The object has one value for each of them.
            let mut restored = after.clone();
            let found = restore(&mut restored);
            prop_assert_eq!(&restored, &before);
            prop_assert_eq!(found.len(), unknown.len(), "{:?} {:?}", found, unknown);
            prop_assert_eq!(found.is_empty(), before == after);
        }
    }

    #[test]
    fn a_patch_with_what_a_server_decodes_erases_nothing(
        paths in path_set(), kept in vec(any::<bool>(), 6), at in path(),
    ) {
        let all = fields(&paths);
        let less: Vec<_> = paths.iter().zip(kept).filter(|it| it.1).map(|it| it.0.clone()).collect();
        let less = fields(&less);
        let known = |fields: &ServerFields| fields.kind("apps", "Widget").unwrap().paths();
        let before = object(&known(&all));
        let after = decoded(&before, &known(&less).into_iter().collect(), "");
        let skew = compare(&[(30, all), (31, less)]);
        let unknown = skew.difference("apps", "widgets").map_or(&[][..], |it| it.unknown());
        // As a JSON patch of a value above the fields.
        let pointer = at.split('.').next().unwrap().trim_end_matches(['[', ']', '{', '}']);
        let pointer = format!("/{pointer}");
        if let Some(value) = after.pointer(&pointer) {
            let mut patch = json!([{"op": "replace", "path": pointer, "value": value}]);
            restore_after_json_patch(&before, &mut patch, unknown, Alternatives::Keep).unwrap();
            let mut result = before.clone();
            for operation in patch.as_array().unwrap() {
                let path = operation["path"].as_str().unwrap();
                let (container, name) = path.rsplit_once('/').unwrap();
                let container = result.pointer_mut(container).unwrap();
                container[name] = operation["value"].clone();
            }
            prop_assert_eq!(result, before.clone());
        }
        // As a strategic merge patch that replaces the whole object.
        let mut patch = after;
        patch["$patch"] = json!("replace");
        let written = Written::StrategicMergePatch;
        restore(&before, &mut patch, unknown, written, Alternatives::Keep);
        patch.as_object_mut().unwrap().remove("$patch");
        prop_assert_eq!(patch, before);
    }

    #[test]
    fn any_json_patch_is_read_without_a_panic(
        operations in vec((0_usize..6, pointer(), pointer(), 0_usize..4), 0..6),
    ) {
        let kinds = ["add", "remove", "replace", "move", "copy", "test"];
        let values = [json!(null), json!({"a": 1}), json!([{"a": 1}]), json!(1)];
        let operations = operations.into_iter().map(|(kind, path, from, value)| {
            json!({"op": kinds[kind], "path": path, "from": from, "value": values[value]})
        });
        let mut patch = Value::Array(operations.collect());
        let before = json!({"a": {"a": 1, "b": [{"a": 1}]}, "l": [{"a": 1}, {"b": 2}], "m": {"x": {"a": 1}}});
        let patterns: Vec<FieldPath> = ["a.b[].a", "l[].a", "m{}.a", "a.a"].map(|it| it.parse().unwrap()).into();
        let restore = |patch: &mut Value| {
            restore_after_json_patch(&before, patch, &patterns, Alternatives::Keep)
        };
        // A completed patch applies, and is complete.
        if restore(&mut patch).is_ok() {
            prop_assert_eq!(restore(&mut patch), Ok(Vec::new()));
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..200)) {
        let mut builder = ServerFieldsBuilder::new(&discovery(&["v1"]));
        let _ = builder.add("apps", "v1", &bytes);
        let _ = ServerFields::from_json(&bytes);
    }
}
