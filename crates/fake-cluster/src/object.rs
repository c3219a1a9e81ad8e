//! An API object: JSON, with accessors for common metadata.

use serde_json::{Map, Value, json};
use skewbridge_k8s_api::status::Status;

use crate::time::Time;

/// An object. Always a JSON object, with `metadata` in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Object(Value);

/// An owner reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerReference<'a> {
    /// Of the owner.
    pub kind: &'a str,
    /// Of the owner.
    pub name: &'a str,
    /// Of the owner.
    pub uid: &'a str,
}

/// The size of a value as JSON, in bytes.
pub(crate) fn json_size(value: &Value) -> usize {
    let mut counted = ByteCounter(0);
    // Neither counting nor serialising a value fails.
    let _ = serde_json::to_writer(&mut counted, value);
    counted.0
}

/// Counts written bytes.
struct ByteCounter(usize);

impl std::io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Letters of generated names: no vowels, so no words, and no letters that look alike.
const SUFFIX_LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
const MAX_GENERATED_BYTES: usize = 63;

impl Object {
    /// Parses an object.
    pub fn parse(bytes: &[u8]) -> Result<Self, Status> {
        let value = serde_json::from_slice(bytes).map_err(|error| {
            Status::bad_request(format!("the object provided is unrecognized: {error}"))
        })?;
        Self::new(value)
    }

    /// From a JSON object.
    pub fn new(mut value: Value) -> Result<Self, Status> {
        let Some(fields) = value.as_object_mut() else {
            return Err(Status::bad_request(
                "the object provided is unrecognized: it is not a JSON object",
            ));
        };
        match fields.get("metadata") {
            Some(Value::Object(_)) => {}
            None | Some(Value::Null) => {
                fields.insert("metadata".to_owned(), Value::Object(Map::new()));
            }
            Some(_) => {
                return Err(Status::bad_request(
                    "the object provided is unrecognized: metadata is not an object",
                ));
            }
        }
        Ok(Self(value))
    }

    /// The JSON.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// The JSON.
    pub fn into_value(self) -> Value {
        self.0
    }

    /// Its size as JSON, in bytes.
    pub fn size(&self) -> usize {
        json_size(&self.0)
    }

    /// Its fields.
    pub fn fields(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.as_object().into_iter().flatten()
    }

    /// The value at a path of field names.
    pub fn at(&self, path: &[&str]) -> Option<&Value> {
        path.iter().try_fold(&self.0, |value, name| value.get(name))
    }

    /// Text at a path, empty where there is none.
    pub fn text(&self, path: &[&str]) -> &str {
        self.at(path).and_then(Value::as_str).unwrap_or_default()
    }

    /// Sets the value at a path, and creates missing parents.
    pub fn set(&mut self, path: &[&str], value: impl Into<Value>) {
        let Some((last, above)) = path.split_last() else {
            return;
        };
        let mut at = &mut self.0;
        for name in above {
            if !at.is_object() {
                *at = json!({});
            }
            at = &mut at[*name];
        }
        if !at.is_object() {
            *at = json!({});
        }
        at[*last] = value.into();
    }

    /// Removes the value at a path.
    pub fn remove(&mut self, path: &[&str]) -> Option<Value> {
        let (last, above) = path.split_last()?;
        let mut at = &mut self.0;
        for name in above {
            at = at.get_mut(name)?;
        }
        at.as_object_mut()?.remove(*last)
    }

    /// Copies the value at a path from another object, or removes it.
    pub fn take_from(&mut self, other: &Self, path: &[&str]) {
        match other.at(path) {
            Some(value) => self.set(path, value.clone()),
            None => drop(self.remove(path)),
        }
    }

    /// `apps/v1`
    pub fn api_version(&self) -> &str {
        self.text(&["apiVersion"])
    }

    /// `Deployment`
    pub fn kind(&self) -> &str {
        self.text(&["kind"])
    }

    /// Empty if it has none yet.
    pub fn name(&self) -> &str {
        self.text(&["metadata", "name"])
    }

    /// The prefix of a generated name.
    pub fn generate_name(&self) -> &str {
        self.text(&["metadata", "generateName"])
    }

    /// Empty for a cluster-scoped object.
    pub fn namespace(&self) -> &str {
        self.text(&["metadata", "namespace"])
    }

    /// Empty if it was never stored.
    pub fn uid(&self) -> &str {
        self.text(&["metadata", "uid"])
    }

    /// Its resource version; empty if there is none.
    pub fn resource_version(&self) -> &str {
        self.text(&["metadata", "resourceVersion"])
    }

    /// Incremented when the spec changes.
    pub fn generation(&self) -> Option<i64> {
        self.at(&["metadata", "generation"])?.as_i64()
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.at(&["metadata", "labels", key])?.as_str()
    }

    /// Finalizers that must be removed before it is deleted.
    pub fn finalizers(&self) -> Vec<&str> {
        texts(self.at(&["metadata", "finalizers"]))
    }

    /// When it was created.
    pub fn creation_timestamp(&self) -> Option<Time> {
        Time::parse(self.text(&["metadata", "creationTimestamp"]))
    }

    /// When its deletion was requested.
    pub fn deletion_timestamp(&self) -> Option<Time> {
        Time::parse(self.text(&["metadata", "deletionTimestamp"]))
    }

    /// Its owners.
    pub fn owner_references(&self) -> Vec<OwnerReference<'_>> {
        let list = self.at(&["metadata", "ownerReferences"]);
        let owners = list.and_then(Value::as_array).into_iter().flatten();
        owners
            .map(|owner| OwnerReference {
                kind: owner["kind"].as_str().unwrap_or_default(),
                name: owner["name"].as_str().unwrap_or_default(),
                uid: owner["uid"].as_str().unwrap_or_default(),
            })
            .collect()
    }

    /// The owners of fields.
    pub fn managed_fields(&self) -> &[Value] {
        let list = self.at(&["metadata", "managedFields"]);
        list.and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// Generates a name, if it has none but a prefix.
    pub fn generate_missing_name(&mut self, entropy: &mut dyn FnMut() -> u64) {
        if !self.name().is_empty() || self.generate_name().is_empty() {
            return;
        }
        let mut name = self.generate_name().to_owned();
        let mut longest = MAX_GENERATED_BYTES - SUFFIX_LENGTH;
        while !name.is_char_boundary(longest.min(name.len())) {
            longest -= 1;
        }
        name.truncate(longest);
        let mut bits = entropy();
        for _ in 0..SUFFIX_LENGTH {
            let letters = SUFFIX_LETTERS.len() as u64;
            // Less than 27.
            #[allow(clippy::cast_possible_truncation)]
            name.push(char::from(SUFFIX_LETTERS[(bits % letters) as usize]));
            bits /= letters;
        }
        self.set(&["metadata", "name"], name);
    }
}

/// The strings of a list.
pub fn texts(list: Option<&Value>) -> Vec<&str> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).collect()
}

/// A uid: 122 random bits in the format of RFC 9562, version 4.
pub fn generate_uid(entropy: &mut dyn FnMut() -> u64) -> String {
    let (high, low) = (entropy(), entropy());
    let (high, low) = (high & !0xf000 | 0x4000, low & (u64::MAX >> 2) | 1 << 63);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff,
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Object {
        Object::new(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "web",
                "namespace": "shop",
                "uid": "u",
                "resourceVersion": "7",
                "generation": 2,
                "labels": {"app": "web"},
                "finalizers": ["a", "b"],
                "deletionTimestamp": "2026-11-15T20:59:59Z",
                "ownerReferences": [{"kind": "ReplicaSet", "name": "web-1", "uid": "o"}],
                "managedFields": [{"manager": "kubectl"}],
            },
            "spec": {"nodeName": "n1"},
        }))
        .unwrap()
    }

    #[test]
    fn metadata_accessors_read_the_json() {
        let object = sample();
        assert_eq!((object.api_version(), object.kind()), ("v1", "Pod"));
        assert_eq!(
            (object.name(), object.namespace(), object.uid()),
            ("web", "shop", "u")
        );
        assert_eq!(
            (object.resource_version(), object.generation()),
            ("7", Some(2))
        );
        assert_eq!(object.label("app"), Some("web"));
        assert_eq!(object.finalizers(), ["a", "b"]);
        assert!(object.deletion_timestamp().is_some() && object.creation_timestamp().is_none());
        assert_eq!(object.owner_references()[0].name, "web-1");
        assert_eq!(object.managed_fields().len(), 1);
        assert_eq!(object.text(&["spec", "nodeName"]), "n1");
    }

    #[test]
    fn values_are_set_and_removed_at_paths() {
        let mut object = sample();
        object.set(&["status", "phase"], "Running");
        assert_eq!(object.text(&["status", "phase"]), "Running");
        assert_eq!(object.remove(&["status", "phase"]), Some("Running".into()));
        assert_eq!(object.remove(&["none", "phase"]), None);
        let other = Object::new(json!({"spec": {"nodeName": "n2"}})).unwrap();
        object.take_from(&other, &["spec", "nodeName"]);
        object.take_from(&other, &["metadata", "uid"]);
        assert_eq!(
            (object.text(&["spec", "nodeName"]), object.uid()),
            ("n2", "")
        );
    }

    #[test]
    fn json_that_is_not_an_object_is_refused() {
        for text in ["", "7", "[]", r#"{"metadata": 7}"#] {
            assert_eq!(
                Object::parse(text.as_bytes()).unwrap_err().code,
                400,
                "{text}"
            );
        }
        assert_eq!(Object::parse(br#"{"metadata": null}"#).unwrap().name(), "");
    }

    proptest! {
        #[test]
        fn generated_names_have_the_prefix_and_a_maximum_length(
            prefix in "[a-z][a-zé-]{0,80}", entropy in any::<u64>(),
        ) {
            let mut object = Object::new(json!({"metadata": {"generateName": prefix}})).unwrap();
            object.generate_missing_name(&mut || entropy);
            let name = object.name();
            let kept = name.len() - SUFFIX_LENGTH;
            prop_assert!(name.len() <= MAX_GENERATED_BYTES && prefix.starts_with(&name[..kept]));
            prop_assert!(name[kept..].bytes().all(|it| SUFFIX_LETTERS.contains(&it)));
        }

        #[test]
        fn uids_have_the_format_of_rfc_9562(high in any::<u64>(), low in any::<u64>()) {
            let mut words = [high, low].into_iter();
            let uid = generate_uid(&mut || words.next().unwrap());
            prop_assert_eq!(uid.len(), 36);
            prop_assert_eq!(uid.as_bytes()[14], b'4');
            prop_assert!(b"89ab".contains(&uid.as_bytes()[19]));
        }
    }
}
