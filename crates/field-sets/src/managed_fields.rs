//! Which fields `metadata.managedFields` names. A server that does not have a field does not show
//! it, and still shows the entry of the manager that has set it.

use serde_json::{Map, Value};

use crate::path::{FieldPath, Step};

/// Whether `metadata.managedFields` names fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mention {
    /// It names none of them.
    Absent,
    /// It names a container without its fields, as it does for atomic lists and objects. A field
    /// may be in it.
    Possible,
    /// It names one of them.
    Named,
}

/// Whether a `metadata.managedFields` list names a field that matches one of the patterns.
pub fn mentions(managed_fields: &Value, patterns: &[FieldPath]) -> Mention {
    let entries = managed_fields.as_array().map(Vec::as_slice);
    let sets = entries.unwrap_or_default().iter();
    let sets = sets.filter_map(|entry| entry.get("fieldsV1")?.as_object());
    let found = sets.flat_map(|set| patterns.iter().map(|pattern| find(set, pattern.steps())));
    // Without entries (of an object whose list was cleared) the object may have any field.
    found.max().unwrap_or(match patterns {
        [] => Mention::Absent,
        _ => Mention::Possible,
    })
}

/// Searches below a member that is no leaf.
fn find(set: &Map<String, Value>, steps: &[Step]) -> Mention {
    let Some((step, rest)) = steps.split_first() else {
        return Mention::Named;
    };
    match step {
        Step::Field(name) => {
            let member = set.get(&format!("f:{name}"));
            member.map_or(Mention::Absent, |below| descend(below, rest))
        }
        Step::Value => best(set, &["f:"], rest),
        // By key, by value (of a set), or by index.
        Step::Item => best(set, &["k:", "v:", "i:"], rest),
    }
}

fn best(set: &Map<String, Value>, prefixes: &[&str], rest: &[Step]) -> Mention {
    let members = set.iter();
    let members = members.filter(|(name, _)| prefixes.iter().any(|it| name.starts_with(it)));
    let found = members.map(|(_, below)| descend(below, rest));
    found.max().unwrap_or(Mention::Absent)
}

fn descend(below: &Value, rest: &[Step]) -> Mention {
    if rest.is_empty() {
        return Mention::Named;
    }
    match below.as_object() {
        // `{}` is a leaf: the manager owns all that is below.
        Some(below) if !below.is_empty() => find(below, rest),
        _ => Mention::Possible,
    }
}
