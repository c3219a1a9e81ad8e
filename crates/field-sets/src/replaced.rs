//! Which fields a patch may erase without naming them.

use serde_json::Value;

use crate::json_patch;
use crate::path::{FieldPath, Step};
use crate::restore::{Written, directive, retained_keys};

/// The patterns of fields that a JSON merge patch or a strategic merge patch may erase: it has a list that
/// contains the field, or a directive at an object that contains it. All other fields stay, unless the
/// patch names them.
pub fn erasable_by_merge(
    patch: &Value,
    patterns: &[FieldPath],
    written: Written,
) -> Vec<FieldPath> {
    let has_directives = written == Written::StrategicMergePatch;
    let may_erase = |pattern: &&FieldPath| replaces(patch, pattern.steps(), has_directives);
    patterns.iter().filter(may_erase).cloned().collect()
}

/// The patterns of fields that a JSON patch may erase: one of its operations writes a value that contains
/// the field.
pub fn erasable_by_json_patch(patch: &Value, patterns: &[FieldPath]) -> Vec<FieldPath> {
    let targets: Vec<_> = json_patch::targets(patch).collect();
    let may_erase = |pattern: &&FieldPath| {
        let mut targets = targets.iter();
        targets.any(|tokens| contains_pattern(tokens, pattern.steps()))
    };
    patterns.iter().filter(may_erase).cloned().collect()
}

/// Whether a patch replaces a value above the field at the end of these steps.
fn replaces(patch: &Value, steps: &[Step], has_directives: bool) -> bool {
    let Some((step, rest)) = steps.split_first() else {
        return false;
    };
    match (step, patch) {
        (Step::Item, Value::Array(_)) => true,
        (Step::Field(_) | Step::Value, Value::Object(object)) => {
            if has_directives
                && (directive(object) == Some("replace") || retained_keys(object).is_some())
            {
                return true;
            }
            if let Step::Field(name) = step {
                let below = object.get(&**name);
                below.is_some_and(|below| replaces(below, rest, has_directives))
            } else {
                let mut below = object.values();
                below.any(|below| replaces(below, rest, has_directives))
            }
        }
        _ => false,
    }
}

/// Whether a pointer leads to a value above the field at the end of these steps.
fn contains_pattern(tokens: &[String], steps: &[Step]) -> bool {
    let mut pairs = tokens.iter().zip(steps);
    tokens.len() < steps.len()
        && pairs.all(|(token, step)| match step {
            Step::Field(name) => **name == **token,
            Step::Item | Step::Value => true,
        })
}
