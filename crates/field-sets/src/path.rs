//! Paths of fields: `spec.containers[].resources.claims[].request`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::error::{Error, MAX_NAME_BYTES};

/// A step from a value to one below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// To a field of an object.
    Field(Arc<str>),
    /// To any item of a list: `[]`.
    Item,
    /// To any value of a map: `{}`.
    Value,
}

impl Step {
    /// A step to a field, if a path can contain its name.
    pub(crate) fn field(name: &str) -> Result<Self, Error> {
        let is_valid = !name.is_empty()
            && name.len() <= MAX_NAME_BYTES
            && !name.contains(|letter: char| {
                matches!(letter, '.' | '[' | ']' | '{' | '}') || letter.is_control()
            });
        if is_valid {
            Ok(Self::Field(name.into()))
        } else {
            Err(Error::field_name(name))
        }
    }
}

/// The path of a field below an object, for any item of a list and any value of a map.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(pub(crate) Vec<Step>);

impl FieldPath {
    /// The steps from the object to the field.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.0.iter().enumerate() {
            match step {
                Step::Field(name) if number > 0 => write!(f, ".{name}")?,
                Step::Field(name) => f.write_str(name)?,
                Step::Item => f.write_str("[]")?,
                Step::Value => f.write_str("{}")?,
            }
        }
        Ok(())
    }
}

impl Serialize for FieldPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for FieldPath {
    type Err = Error;

    /// Parses what [`fmt::Display`] writes.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut steps = Vec::new();
        for part in text.split('.') {
            let name = part.find(['[', '{']).map_or(part, |end| &part[..end]);
            steps.push(Step::field(name)?);
            let mut rest = &part[name.len()..];
            while !rest.is_empty() {
                let (step, after) = match (rest.strip_prefix("[]"), rest.strip_prefix("{}")) {
                    (Some(after), _) => (Step::Item, after),
                    (_, Some(after)) => (Step::Value, after),
                    _ => return Err(Error::field_name(part)),
                };
                steps.push(step);
                rest = after;
            }
        }
        Ok(Self(steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_parsed_as_it_is_written() {
        for text in [
            "spec",
            "spec.serviceAccountTokenInSecrets",
            "spec.containers[].resources.claims[].request",
            "spec.nodeSelector{}",
            "status.capacity{}[].x-kubernetes-map",
            "a[][]{}",
        ] {
            let path: FieldPath = text.parse().unwrap();
            assert_eq!(path.to_string(), text);
        }
        for text in ["", ".", "a.", "a..b", "[]", "a[", "a[]b", "a{}}", "a\n"] {
            assert!(text.parse::<FieldPath>().is_err(), "{text:?}");
        }
    }
}
