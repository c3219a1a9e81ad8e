//! Fields of objects as cells show them.

use serde_json::Value;

use crate::object::Object;

const NONE: &str = "<none>";

/// The text, or another one if it is empty.
pub(super) fn text_or<'a>(text: &'a str, instead: &'a str) -> &'a str {
    if text.is_empty() { instead } else { text }
}

/// The items of a list; none if the object has no such field.
pub(super) fn list<'a>(object: &'a Object, path: &[&str]) -> impl Iterator<Item = &'a Value> {
    object
        .at(path)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// A number; 0 if the object has no such field.
pub(super) fn number(object: &Object, path: &[&str]) -> i64 {
    object.at(path).and_then(Value::as_i64).unwrap_or_default()
}

/// `a=1,b=2`
pub(super) fn pairs(labels: Option<&Value>) -> String {
    let labels = labels.and_then(Value::as_object).into_iter().flatten();
    let pairs = labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    text_or(&pairs.collect::<Vec<_>>().join(","), NONE).to_owned()
}
