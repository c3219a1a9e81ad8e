//! JSON patch (RFC 6902).

use serde::Deserialize;
use serde_json::Value;
use skewbridge_k8s_api::status::Status;

use crate::object::json_size;

/// kube-apiserver's limit: a short patch may be expensive to apply.
const MAX_OPERATIONS: usize = 10_000;

/// The limit of all `copy` operations, as JSON: kube-apiserver's. Otherwise a few copies of
/// copies could fill the memory.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// Maximum depth of the result: that of the parser.
const MAX_DEPTH: usize = 128;

/// A step.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
#[allow(missing_docs)] // RFC 6902, 4
pub enum Operation {
    Add {
        path: String,
        #[serde(deserialize_with = "present")]
        value: Value,
    },
    Remove {
        path: String,
    },
    Replace {
        path: String,
        #[serde(deserialize_with = "present")]
        value: Value,
    },
    Move {
        from: String,
        path: String,
    },
    Copy {
        from: String,
        path: String,
    },
    Test {
        path: String,
        #[serde(deserialize_with = "present")]
        value: Value,
    },
}

/// `null` is a value; nothing is not.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    Value::deserialize(deserializer)
}

/// The target after all operations; an error if one fails.
pub fn apply(target: &Value, operations: &[Operation]) -> Result<Value, String> {
    let mut value = target.clone();
    let mut copied = 0;
    // An upper bound: the depth is computed only when the bound exceeds the limit.
    let mut deep = depth(&value);
    for operation in operations {
        operation.take(&mut value, &mut copied)?;
        deep = operation.depth_after(deep);
        if deep > MAX_DEPTH {
            deep = depth(&value);
            if deep > MAX_DEPTH {
                return Err(format!("the value is more than {MAX_DEPTH} levels deep"));
            }
        }
    }
    Ok(value)
}

pub(super) fn check_length(operations: usize) -> Result<(), Status> {
    if operations <= MAX_OPERATIONS {
        return Ok(());
    }
    let message = format!(
        "Request entity too large: The allowed maximum operations in a JSON patch is \
         {MAX_OPERATIONS}, got {operations}"
    );
    Err(Status::new(413, "RequestEntityTooLarge", message))
}

impl Operation {
    /// An upper bound of the depth after this operation.
    fn depth_after(&self, deep: usize) -> usize {
        let levels = |path: &str| path.matches('/').count();
        match self {
            Self::Add { path, value } | Self::Replace { path, value } => {
                deep.max(levels(path) + depth(value))
            }
            Self::Move { path, .. } | Self::Copy { path, .. } => deep + levels(path),
            Self::Remove { .. } | Self::Test { .. } => deep,
        }
    }

    fn take(&self, target: &mut Value, copied: &mut usize) -> Result<(), String> {
        match self {
            Self::Add { path, value } => add(target, path, value.clone()),
            Self::Remove { path } => remove(target, path).map(drop),
            Self::Replace { path, value } => {
                let place = find(target, path).ok_or_else(|| missing("replace", path))?;
                *place = value.clone();
                Ok(())
            }
            Self::Move { from, path } => {
                let inside = path.strip_prefix(from.as_str());
                if inside.is_some_and(|rest| rest.starts_with('/')) {
                    return Err(format!("move operation: {path} lies inside of {from}"));
                }
                let value = remove(target, from)?;
                add(target, path, value)
            }
            Self::Copy { from, path } => {
                let value = find(target, from).ok_or_else(|| missing("copy", from))?;
                *copied = copied.saturating_add(json_size(value));
                if *copied > MAX_COPIED_BYTES {
                    return Err(format!(
                        "unable to complete the copy, the accumulated size increase of copy is \
                         {copied}, exceeding the limit {MAX_COPIED_BYTES}"
                    ));
                }
                let value = value.clone();
                add(target, path, value)
            }
            Self::Test { path, value } => {
                // `null` matches a missing value.
                let found = find(target, path);
                match found {
                    Some(found) if json_eq(found, value) => Ok(()),
                    _ => Err(format!("testing value {path} failed: test failed")),
                }
            }
        }
    }
}

/// The depth of a value. Not recursive, because a value that is too deep would overflow the
/// stack.
fn depth(value: &Value) -> usize {
    let mut deepest = 0;
    let mut open = vec![(value, 1)];
    while let Some((value, level)) = open.pop() {
        deepest = deepest.max(level);
        match value {
            Value::Array(items) => open.extend(items.iter().map(|it| (it, level + 1))),
            Value::Object(fields) => open.extend(fields.values().map(|it| (it, level + 1))),
            _ => {}
        }
    }
    deepest
}

fn missing(operation: &str, path: &str) -> String {
    format!("{operation} operation does not apply: doc is missing path: {path}: missing value")
}

/// RFC 6901; `None` without a leading slash.
fn tokens(path: &str) -> Option<Vec<String>> {
    if path.is_empty() {
        return Some(Vec::new());
    }
    let tokens = path.strip_prefix('/')?.split('/');
    Some(
        tokens
            .map(|it| it.replace("~1", "/").replace("~0", "~"))
            .collect(),
    )
}

/// Neither signs nor leading zeros (RFC 6901, 4).
fn array_index(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|byte| byte.is_ascii_digit());
    let plain = token == "0" || !token.starts_with('0');
    (digits && plain).then(|| token.parse().ok()).flatten()
}

fn find<'a>(target: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    walk(target, &tokens(path)?)
}

fn walk<'a>(target: &'a mut Value, tokens: &[String]) -> Option<&'a mut Value> {
    tokens.iter().try_fold(target, |value, token| match value {
        Value::Object(fields) => fields.get_mut(token),
        Value::Array(items) => items.get_mut(array_index(token)?),
        _ => None,
    })
}

fn add(target: &mut Value, path: &str, value: Value) -> Result<(), String> {
    let tokens = tokens(path).ok_or_else(|| missing("add", path))?;
    let Some((last, above)) = tokens.split_last() else {
        *target = value;
        return Ok(());
    };
    match walk(target, above) {
        Some(Value::Object(fields)) => {
            fields.insert(last.clone(), value);
            Ok(())
        }
        Some(Value::Array(items)) => {
            let end = items.len();
            let at = if last == "-" {
                Some(end)
            } else {
                array_index(last)
            };
            match at.filter(|at| *at <= end) {
                Some(at) => {
                    items.insert(at, value);
                    Ok(())
                }
                None => Err(format!(
                    "add operation does not apply: invalid index {path}"
                )),
            }
        }
        _ => Err(missing("add", path)),
    }
}

fn remove(target: &mut Value, path: &str) -> Result<Value, String> {
    let tokens = tokens(path).ok_or_else(|| missing("remove", path))?;
    let Some((last, above)) = tokens.split_last() else {
        return Ok(target.take());
    };
    let removed = match walk(target, above) {
        Some(Value::Object(fields)) => fields.remove(last),
        Some(Value::Array(items)) => {
            let at = array_index(last).filter(|at| *at < items.len());
            at.map(|at| items.remove(at))
        }
        _ => None,
    };
    removed.ok_or_else(|| missing("remove", path))
}

/// Numbers are compared by value (RFC 6902, 4.6).
fn json_eq(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || (one.is_f64() || other.is_f64()) && one.as_f64() == other.as_f64()
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .zip(other)
                    .all(|(one, other)| json_eq(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(name, one)| other.get(name).is_some_and(|it| json_eq(one, it)))
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn patched(target: &Value, patch: Value) -> Result<Value, String> {
        let operations: Vec<Operation> =
            serde_json::from_value(patch).map_err(|error| error.to_string())?;
        apply(target, &operations)
    }

    #[test]
    fn a_patch_has_a_maximum_number_of_operations() {
        assert_eq!(check_length(10_000), Ok(()));
        let refused = check_length(10_001).unwrap_err();
        assert_eq!(
            (refused.code, refused.reason),
            (413, "RequestEntityTooLarge")
        );
        assert_eq!(
            refused.message,
            "Request entity too large: The allowed maximum operations in a JSON patch is 10000, \
             got 10001"
        );
    }

    #[test]
    fn repeated_copies_are_limited() {
        let target = json!({"data": {"a": "x".repeat(1024)}});
        let copy = json!({"op": "copy", "from": "/data", "path": "/data/b"});
        let times = |count| patched(&target, Value::Array(vec![copy.clone(); count]));
        assert_eq!(times(3).unwrap()["data"]["b"]["b"]["b"], target["data"]);
        // Each copies the whole document.
        let refused = times(100).unwrap_err();
        assert!(refused.contains("exceeding the limit 3145728"), "{refused}");
        let flat = json!({"op": "copy", "from": "/data/a", "path": "/data/b"});
        let flat = |count| patched(&target, Value::Array(vec![flat.clone(); count]));
        assert!(flat(3000).is_ok());
        assert!(flat(4000).is_err());
    }

    #[test]
    fn the_depth_of_a_result_is_limited() {
        let target = json!({"a": {}, "b": {}});
        let deeper = [
            json!({"op": "move", "from": "/a", "path": "/b/c"}),
            json!({"op": "move", "from": "/b", "path": "/a"}),
            json!({"op": "add", "path": "/b", "value": {}}),
        ];
        let times = |count: usize| {
            let steps = deeper.iter().cycle().take(3 * count).cloned();
            patched(&target, steps.collect())
        };
        assert_eq!(depth(&times(100).unwrap()), 102);
        assert!(times(3333).unwrap_err().contains("levels deep"));
        let wide = json!({"op": "add", "path": "/b/c/-", "value": [1]});
        let wide = std::iter::once(json!({"op": "add", "path": "/b/c", "value": []}))
            .chain(vec![wide; 1000]);
        assert!(patched(&target, wide.collect()).is_ok());
    }

    /// RFC 6902, Appendix A. `None` is an error.
    #[test]
    fn the_examples_of_rfc_6902_are_reproduced() {
        let rows = [
            (
                json!({"foo":"bar"}),
                json!([{"op":"add","path":"/baz","value":"qux"}]),
                Some(json!({"baz":"qux","foo":"bar"})),
            ),
            (
                json!({"foo":["bar","baz"]}),
                json!([{"op":"add","path":"/foo/1","value":"qux"}]),
                Some(json!({"foo":["bar","qux","baz"]})),
            ),
            (
                json!({"baz":"qux","foo":"bar"}),
                json!([{"op":"remove","path":"/baz"}]),
                Some(json!({"foo":"bar"})),
            ),
            (
                json!({"foo":["bar","qux","baz"]}),
                json!([{"op":"remove","path":"/foo/1"}]),
                Some(json!({"foo":["bar","baz"]})),
            ),
            (
                json!({"baz":"qux","foo":"bar"}),
                json!([{"op":"replace","path":"/baz","value":"boo"}]),
                Some(json!({"baz":"boo","foo":"bar"})),
            ),
            (
                json!({"foo":{"bar":"baz","waldo":"fred"},"qux":{"corge":"grault"}}),
                json!([{"op":"move","from":"/foo/waldo","path":"/qux/thud"}]),
                Some(json!({"foo":{"bar":"baz"},"qux":{"corge":"grault","thud":"fred"}})),
            ),
            (
                json!({"foo":["all","grass","cows","eat"]}),
                json!([{"op":"move","from":"/foo/1","path":"/foo/3"}]),
                Some(json!({"foo":["all","cows","eat","grass"]})),
            ),
            (
                json!({"baz":"qux","foo":["a",2,"c"]}),
                json!([{"op":"test","path":"/baz","value":"qux"},{"op":"test","path":"/foo/1","value":2}]),
                Some(json!({"baz":"qux","foo":["a",2,"c"]})),
            ),
            (
                json!({"baz":"qux"}),
                json!([{"op":"test","path":"/baz","value":"bar"}]),
                None,
            ),
            (
                json!({"foo":"bar"}),
                json!([{"op":"add","path":"/child","value":{"grandchild":{}}}]),
                Some(json!({"foo":"bar","child":{"grandchild":{}}})),
            ),
            (
                json!({"foo":"bar"}),
                json!([{"op":"add","path":"/baz","value":"qux","xyz":123}]),
                Some(json!({"foo":"bar","baz":"qux"})),
            ),
            (
                json!({"foo":"bar"}),
                json!([{"op":"add","path":"/baz/bat","value":"qux"}]),
                None,
            ),
            (
                json!({"/":9,"~1":10}),
                json!([{"op":"test","path":"/~01","value":10}]),
                Some(json!({"/":9,"~1":10})),
            ),
            (
                json!({"/":9,"~1":10}),
                json!([{"op":"test","path":"/~01","value":"10"}]),
                None,
            ),
            (
                json!({"foo":["bar"]}),
                json!([{"op":"add","path":"/foo/-","value":["abc","def"]}]),
                Some(json!({"foo":["bar",["abc","def"]]})),
            ),
        ];
        for (target, patch, expected) in rows {
            assert_eq!(
                patched(&target, patch.clone()).ok(),
                expected,
                "{target} {patch}"
            );
        }
    }

    #[test]
    fn invalid_operations_are_errors() {
        let target = json!({"a": {"b": 1}, "list": [1, 2]});
        for patch in [
            json!([{"op": "remove", "path": "/none"}]),
            json!([{"op": "replace", "path": "/none", "value": 1}]),
            json!([{"op": "add", "path": "/list/3", "value": 1}]),
            json!([{"op": "add", "path": "/list/01", "value": 1}]),
            json!([{"op": "remove", "path": "/list/2"}]),
            json!([{"op": "remove", "path": "/list/-"}]),
            json!([{"op": "move", "from": "/a", "path": "/a/b"}]),
            json!([{"op": "copy", "from": "/none", "path": "/a"}]),
            json!([{"op": "add", "path": "a", "value": 1}]),
            json!([{"op": "add", "path": "/a"}]),
            json!([{"op": "other", "path": "/a"}]),
            json!([{"op": "test", "path": "/none", "value": null}]),
        ] {
            assert!(patched(&target, patch.clone()).is_err(), "{patch}");
        }
        assert!(check_length(10_000).is_ok() && check_length(10_001).is_err());
        assert_eq!(
            patched(&json!(1), json!([{"op": "test", "path": "", "value": 1.0}])),
            Ok(json!(1))
        );
        assert_eq!(
            patched(
                &json!({}),
                json!([{"op": "add", "path": "/a", "value": null}])
            ),
            Ok(json!({"a": null}))
        );
    }

    proptest! {
        #[test]
        fn an_added_value_is_found_and_can_be_removed(key in "[a-z~/]{0,6}", number in any::<i32>()) {
            let target = json!({"other": 1});
            let path = format!("/{}", key.replace('~', "~0").replace('/', "~1"));
            prop_assume!(key != "other");
            let patch = json!([
                {"op": "add", "path": path, "value": number},
                {"op": "test", "path": path, "value": number},
            ]);
            let mut with = patched(&target, patch).unwrap();
            prop_assert_eq!(&with[&*key], &json!(number));
            prop_assert_eq!(remove(&mut with, &path), Ok(json!(number)));
            prop_assert_eq!(with, target);
        }
    }
}
