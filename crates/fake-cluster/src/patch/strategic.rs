//! Strategic merge patch: a merge patch that merges lists by key, with directives for deletion
//! and order.

use serde_json::{Map, Value};

use crate::list_types::{ListKind, list_kind};

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// The patched target. The error is for the client.
pub fn apply(target: &Value, patch: &Value) -> Result<Value, String> {
    let (Value::Object(target), Value::Object(patch)) = (target, patch) else {
        return Ok(patch.clone());
    };
    merge_fields(target.clone(), patch, &mut Vec::new()).map(Value::Object)
}

fn merge_fields<'a>(
    mut target: Map<String, Value>,
    patch: &'a Map<String, Value>,
    names: &mut Vec<&'a str>,
) -> Result<Map<String, Value>, String> {
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        None if !patch.contains_key(DIRECTIVE) => {}
        Some("merge") => {}
        Some("replace") => return Ok(plain_fields(patch)),
        Some("delete") => return Ok(Map::new()),
        _ => {
            let (word, whole) = (go_value(&patch[DIRECTIVE]), go_fields(patch));
            return Err(format!("unknown patch type: {word} in map: {whole}"));
        }
    }
    if let Some(kept) = patch.get(RETAIN) {
        let kept = kept
            .as_array()
            .ok_or("invalid patch format of retainKeys")?;
        target.retain(|name, _| kept.iter().any(|it| it == name));
    }
    for (name, gone) in patch {
        if let Some(field) = name.strip_prefix(DELETE_FROM) {
            let gone = gone
                .as_array()
                .ok_or("invalid patch format of primitive list")?;
            if let Some(Value::Array(items)) = target.get_mut(field) {
                items.retain(|item| !gone.contains(item));
            }
        }
    }
    for (name, change) in patch.iter().filter(|(name, _)| !name.starts_with('$')) {
        names.push(name);
        let merged = match (target.remove(name), change) {
            (_, Value::Null) => None,
            (Some(Value::Object(before)), Value::Object(change)) => {
                Some(Value::Object(merge_fields(before, change, names)?))
            }
            (Some(Value::Array(before)), Value::Array(change)) => {
                let order = patch.get(&format!("{ORDER}{name}"));
                Some(Value::Array(merge_items(&before, change, order, names)?))
            }
            (None, Value::Array(change)) => {
                Some(Value::Array(merge_items(&[], change, None, names)?))
            }
            (_, change) => plain(change),
        };
        names.pop();
        if let Some(merged) = merged {
            target.insert(name.clone(), merged);
        }
    }
    // An order directive for a list that is not changed otherwise.
    for (name, order) in patch {
        if let Some(field) = name.strip_prefix(ORDER)
            && !patch.contains_key(field)
        {
            names.push(field);
            if let Some(Value::Array(items)) = target.get_mut(field) {
                let before = items.clone();
                *items =
                    sort_by_client_order(std::mem::take(items), order, &before, key_of(names))?;
            }
            names.pop();
        }
    }
    Ok(target)
}

fn merge_items<'a>(
    before: &[Value],
    patch: &'a [Value],
    order: Option<&Value>,
    names: &mut Vec<&'a str>,
) -> Result<Vec<Value>, String> {
    let merged = match list_kind(names) {
        ListKind::Atomic => return Ok(patch.iter().filter_map(plain).collect()),
        ListKind::Set => {
            let mut merged = before.to_vec();
            for item in patch {
                if !merged.contains(item) {
                    merged.push(item.clone());
                }
            }
            merged
        }
        ListKind::Keyed(keys) => merge_keyed(before.to_vec(), patch, keys[0], names)?,
    };
    match order {
        Some(order) => {
            // Kubernetes merges in place, so new items count as the server's where others were
            // deleted. The same is done here.
            let places = before.len().min(merged.len());
            let server = merged[..places].to_vec();
            sort_by_client_order(merged, order, &server, key_of(names))
        }
        // Without a directive, the order is that of the patch.
        None => sort_by_client_order(merged, &Value::Array(patch.to_vec()), before, key_of(names)),
    }
}

fn merge_keyed<'a>(
    before: Vec<Value>,
    patch: &'a [Value],
    key: &str,
    names: &mut Vec<&'a str>,
) -> Result<Vec<Value>, String> {
    let directive = |item: &Value| {
        item.get(DIRECTIVE)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    // The directive applies to the whole list, whatever other fields its item has.
    let is_replacement = |item: &&Value| directive(item).as_deref() == Some("replace");
    if patch.iter().any(|item| is_replacement(&item)) {
        let rest = patch.iter().filter(|item| !is_replacement(item));
        return Ok(rest.filter_map(plain).collect());
    }
    let mut merged = before;
    for item in patch {
        let Value::Object(change) = item else {
            return Err("invalid patch format of a list of objects".to_owned());
        };
        let Some(value) = item.get(key) else {
            let item = go_value(item);
            return Err(format!(
                "map: {item} does not contain declared merge key: {key}"
            ));
        };
        if directive(item).as_deref() == Some("delete") {
            merged.retain(|it| it.get(key) != Some(value));
            continue;
        }
        let existing = merged.iter_mut().find(|it| it.get(key) == Some(value));
        match existing {
            Some(existing) => {
                let fields = existing.as_object().cloned().unwrap_or_default();
                *existing = Value::Object(merge_fields(fields, change, names)?);
            }
            None => merged.extend(plain(item)),
        }
    }
    Ok(merged)
}

fn key_of(names: &[&str]) -> Option<&'static str> {
    match list_kind(names) {
        ListKind::Keyed(keys) => Some(keys[0]),
        ListKind::Atomic | ListKind::Set => None,
    }
}

/// Items of the client in its order; an item that only the server has stays before the items
/// that it preceded.
fn sort_by_client_order(
    items: Vec<Value>,
    order: &Value,
    before: &[Value],
    key: Option<&str>,
) -> Result<Vec<Value>, String> {
    let order = order
        .as_array()
        .ok_or("invalid patch format of setElementOrder list")?;
    let name = |item: &Value| match key {
        Some(key) => item.get(key).cloned().unwrap_or_default(),
        None => item.clone(),
    };
    let place = |list: &[Value], item: &Value| list.iter().position(|it| name(it) == name(item));
    let (mut known, others): (Vec<_>, Vec<_>) = items
        .into_iter()
        .partition(|item| place(order, item).is_some());
    known.sort_by_key(|item| place(order, item));
    let (mut known, mut others) = (known.into_iter().peekable(), others.into_iter().peekable());
    let mut sorted = Vec::new();
    while let (Some(one), Some(other)) = (known.peek(), others.peek()) {
        let other_first = match (place(before, other), place(before, one)) {
            (Some(other), Some(one)) => other < one,
            _ => false,
        };
        sorted.extend(if other_first {
            others.next()
        } else {
            known.next()
        });
    }
    sorted.extend(known);
    sorted.extend(others);
    Ok(sorted)
}

/// The patch without directives, for a target that does not exist.
fn plain(patch: &Value) -> Option<Value> {
    match patch {
        Value::Null => None,
        Value::Object(fields) if fields.get(DIRECTIVE).is_some_and(|it| it == "delete") => None,
        Value::Object(fields) => Some(Value::Object(plain_fields(fields))),
        Value::Array(items) => {
            let directs = |item: &Value| item.get(DIRECTIVE).is_some_and(|it| it == "replace");
            let items = items.iter().filter(|item| !directs(item));
            Some(Value::Array(items.filter_map(plain).collect()))
        }
        other => Some(other.clone()),
    }
}

fn plain_fields(patch: &Map<String, Value>) -> Map<String, Value> {
    let fields = patch.iter().filter(|(name, _)| !is_directive(name));
    fields
        .filter_map(|(name, value)| Some((name.clone(), plain(value)?)))
        .collect()
}

/// A value in Go's `%v` format.
fn go_value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Object(fields) => go_fields(fields),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(go_value).collect();
            format!("[{}]", items.join(" "))
        }
        other => other.to_string(),
    }
}

fn go_fields(fields: &Map<String, Value>) -> String {
    let fields = fields.iter();
    let fields: Vec<_> = fields
        .map(|(name, value)| format!("{name}:{}", go_value(value)))
        .collect();
    format!("map[{}]", fields.join(" "))
}

fn is_directive(name: &str) -> bool {
    name == DIRECTIVE || name == RETAIN || name.starts_with(DELETE_FROM) || name.starts_with(ORDER)
}

#[cfg(test)]
mod tests;
