//! JSON patches (RFC 6902) that erase fields: what a patch leaves of an object, and the operations that
//! restore the fields.
//!
//! kube-apiserver decides whether a patch is valid. Here it is applied leniently: `test` always succeeds, and
//! whatever a kube-apiserver may accept is accepted.

use serde_json::{Value, json};

use crate::path::FieldPath;
use crate::restore::{Alternatives, Written, search};

/// Operations of a patch that is completed. kube-apiserver accepts 10,000; each can move a whole list.
pub const MAX_OPERATIONS: usize = 1_000;

/// Bytes that operations may copy: the limit of kube-apiserver.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// The value of a field that the patch has removed or set to `null`. Objects from a server have no such
/// value, and none is sent.
const REMOVED: &str = "\0removed";

/// The effect of a patch cannot be determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the JSON patch cannot be applied to the object")]
pub struct NotApplicable;

/// Appends operations to a JSON patch of `before` that restore the fields which match `patterns` and which
/// the patch erases. Fields that it removes by their own path or by that of their container stay removed.
/// Returns the paths of the restored fields.
pub fn restore_after_json_patch(
    before: &Value,
    patch: &mut Value,
    patterns: &[FieldPath],
    alternatives: Alternatives,
) -> Result<Vec<String>, NotApplicable> {
    let operations = patch.as_array_mut().ok_or(NotApplicable)?;
    if operations.len() > MAX_OPERATIONS {
        return Err(NotApplicable);
    }
    let mut document = Document {
        root: before.clone(),
        copied_bytes: 0,
    };
    for operation in &*operations {
        document.apply(operation).ok_or(NotApplicable)?;
    }
    let mut after = document.root;
    let search = search(
        before,
        &mut after,
        patterns,
        (Written::Object, alternatives),
    );
    for pointer in &search.added {
        let value = after.pointer(pointer).cloned();
        let value = value.unwrap_or_default();
        operations.push(json!({"op": "add", "path": pointer, "value": value}));
    }
    Ok(search.found)
}

/// The pointers to the values that the operations of a patch write.
pub(crate) fn targets(patch: &Value) -> impl Iterator<Item = Vec<String>> {
    let operations = patch.as_array().into_iter().flatten();
    operations.filter_map(|operation| {
        let writes = matches!(
            operation["op"].as_str()?,
            "add" | "replace" | "move" | "copy"
        );
        let pointer = operation["path"].as_str().filter(|_| writes)?;
        Some(tokens(pointer).collect())
    })
}

/// The parts of a pointer. As at kube-apiserver, what precedes the first slash does not count.
fn tokens(pointer: &str) -> impl Iterator<Item = String> {
    let tokens = pointer.split('/').skip(1);
    tokens.map(|it| it.replace("~1", "/").replace("~0", "~"))
}

struct Document {
    root: Value,
    copied_bytes: usize,
}

impl Document {
    fn apply(&mut self, operation: &Value) -> Option<()> {
        let path = operation["path"].as_str()?;
        let from = || operation["from"].as_str();
        let value = || operation["value"].clone();
        match operation["op"].as_str()? {
            "test" => Some(()),
            "add" => self.add(path, value()),
            "replace" => self.replace(path, value()),
            "remove" => self.remove(path).map(|_| ()),
            "move" => {
                let value = self.remove(from()?)?;
                self.add(path, value)
            }
            "copy" => {
                let value = self.get(from()?)?.clone();
                self.copied_bytes += value.to_string().len();
                if self.copied_bytes > MAX_COPIED_BYTES {
                    return None;
                }
                self.add(path, value)
            }
            _ => None,
        }
    }

    /// The value that contains the one at a pointer, and the last part of the pointer.
    fn container(&mut self, pointer: &str) -> Option<(&mut Value, String)> {
        let mut tokens: Vec<_> = tokens(pointer).collect();
        let last = tokens.pop()?;
        let mut value = &mut self.root;
        for token in tokens {
            value = child(value, &token)?;
        }
        Some((value, last))
    }

    fn get(&mut self, pointer: &str) -> Option<&Value> {
        let (container, last) = self.container(pointer)?;
        child(container, &last).map(|it| &*it)
    }

    fn add(&mut self, pointer: &str, value: Value) -> Option<()> {
        if pointer.is_empty() {
            self.root = value;
            return Some(());
        }
        let (container, last) = self.container(pointer)?;
        match container {
            Value::Object(object) => {
                object.insert(last, or_removed(value));
            }
            Value::Array(items) if last == "-" => items.push(value),
            Value::Array(items) => {
                let place = place(&last, items.len() + 1)?;
                items.insert(place, value);
            }
            _ => return None,
        }
        Some(())
    }

    fn replace(&mut self, pointer: &str, value: Value) -> Option<()> {
        if pointer.is_empty() {
            self.root = value;
            return Some(());
        }
        let (container, last) = self.container(pointer)?;
        match container {
            Value::Object(object) => {
                object.insert(last, or_removed(value));
            }
            Value::Array(items) => {
                let place = place(&last, items.len())?;
                items[place] = value;
            }
            _ => return None,
        }
        Some(())
    }

    fn remove(&mut self, pointer: &str) -> Option<Value> {
        let (container, last) = self.container(pointer)?;
        match container {
            Value::Object(object) => {
                let value = object.get_mut(&last).filter(|it| **it != *REMOVED)?;
                Some(std::mem::replace(value, REMOVED.into()))
            }
            Value::Array(items) => {
                let place = place(&last, items.len())?;
                Some(items.remove(place))
            }
            _ => None,
        }
    }
}

/// `null` removes a field.
fn or_removed(value: Value) -> Value {
    if value.is_null() {
        REMOVED.into()
    } else {
        value
    }
}

fn child<'a>(value: &'a mut Value, token: &str) -> Option<&'a mut Value> {
    match value {
        Value::Object(object) => object.get_mut(token).filter(|it| **it != *REMOVED),
        Value::Array(items) => {
            let place = place(token, items.len())?;
            items.get_mut(place)
        }
        _ => None,
    }
}

/// An index of a list of this length. kube-apiserver counts negative ones from the end.
fn place(token: &str, length: usize) -> Option<usize> {
    let index: i64 = token.parse().ok()?;
    let place = if index < 0 {
        length.checked_sub(usize::try_from(index.unsigned_abs()).ok()?)?
    } else {
        usize::try_from(index).ok()?
    };
    (place < length).then_some(place)
}
