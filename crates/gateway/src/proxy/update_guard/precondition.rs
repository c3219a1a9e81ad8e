//! Makes a write conditional on the stored object that it was compared with, in every encoding whose
//! metadata the bridge can change.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use skewbridge_k8s_api::protobuf::{DecodeError, Field, Fields, Writer};

use super::invalid_object;
use crate::proxy::error::ProxyError;

/// The start of an object in protobuf.
const PROTOBUF_MAGIC: &[u8] = b"k8s\0";

/// Field numbers of `runtime.Unknown`: the object, and its encoding if it is not plain.
const UNKNOWN_RAW: u8 = 2;
const UNKNOWN_CONTENT_ENCODING: u64 = 3;

/// The number of `metadata` in every object.
const METADATA: u8 = 1;

/// The number of `resourceVersion` in `ObjectMeta`.
const RESOURCE_VERSION: u8 = 6;

/// The part of a stored object that is needed here. The rest is not kept in memory.
#[derive(Deserialize)]
struct StoredObject {
    metadata: StoredMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredMetadata {
    resource_version: Option<String>,
}

/// The resource version of a stored object, as JSON.
pub(super) fn version_of(stored: &[u8]) -> Result<Option<String>, ProxyError> {
    let stored: Result<StoredObject, _> = serde_json::from_slice(stored);
    let stored = stored.map_err(|error| invalid_object(&error))?;
    Ok(stored.metadata.resource_version)
}

/// The body of a write with the resource version of the stored object. `None` if the body has a
/// precondition of its own, or its encoding is another one.
pub(super) fn conditional_body(body: &[u8], version: &str) -> Option<Bytes> {
    if body.starts_with(PROTOBUF_MAGIC) {
        let conditional = conditional_protobuf(body, version);
        return conditional.ok().flatten().map(Bytes::from);
    }
    let mut body = serde_json::from_slice(body).ok()?;
    if !insert_version(&mut body, version) {
        return None;
    }
    Some(Bytes::from(body.to_string()))
}

/// Makes a merge patch or an update conditional on the stored object that it was compared with. `false`
/// if it has a precondition of its own.
pub(super) fn add_precondition(patch: &mut Value, stored: &Value) -> bool {
    let version = stored["metadata"]["resourceVersion"].as_str();
    version.is_some_and(|version| insert_version(patch, version))
}

fn insert_version(body: &mut Value, version: &str) -> bool {
    let Some(patch) = body.as_object_mut() else {
        return false;
    };
    let metadata = patch.entry("metadata").or_insert_with(|| json!({}));
    let Some(metadata) = metadata.as_object_mut() else {
        return false;
    };
    if names_version(metadata) {
        return false;
    }
    metadata.insert("resourceVersion".to_owned(), version.into());
    true
}

fn names_version(metadata: &Map<String, Value>) -> bool {
    let version = metadata.get("resourceVersion").and_then(Value::as_str);
    version.is_some_and(|version| !version.is_empty())
}

/// The same object with a resource version; `None` if it has one.
fn conditional_protobuf(body: &[u8], version: &str) -> Result<Option<Vec<u8>>, DecodeError> {
    let envelope = body.strip_prefix(PROTOBUF_MAGIC).ok_or(DecodeError)?;
    let is_encoded = |field: &Field<'_>| match field {
        Field::Bytes(UNKNOWN_CONTENT_ENCODING, encoding) => !encoding.is_empty(),
        _ => false,
    };
    for field in Fields::of(envelope) {
        if is_encoded(&field?) {
            return Ok(None);
        }
    }
    let metadata = |metadata: &[u8]| {
        for field in Fields::of(metadata) {
            if let Field::Bytes(number, version) = field?
                && number == u64::from(RESOURCE_VERSION)
                && !version.is_empty()
            {
                return Ok(None);
            }
        }
        // The last value of a field counts.
        let version = Writer::default().text(RESOURCE_VERSION, version);
        Ok(Some([metadata, &version.finish()].concat()))
    };
    let object = |object: &[u8]| with_field(object, METADATA, metadata);
    let conditional = with_field(envelope, UNKNOWN_RAW, object)?;
    Ok(conditional.map(|envelope| [PROTOBUF_MAGIC, &envelope].concat()))
}

/// A message in which the content of a field is replaced; `None` if the field is to stay as it is, or does
/// not occur exactly once.
fn with_field(
    message: &[u8],
    number: u8,
    replace: impl Fn(&[u8]) -> Result<Option<Vec<u8>>, DecodeError>,
) -> Result<Option<Vec<u8>>, DecodeError> {
    let (mut written, mut replaced) = (Vec::with_capacity(message.len()), 0);
    for field in Fields::of(message).with_raw() {
        match field? {
            (Field::Bytes(found, content), _) if found == u64::from(number) => {
                let Some(content) = replace(content)? else {
                    return Ok(None);
                };
                replaced += 1;
                written.append(&mut Writer::default().bytes(number, &content).finish());
            }
            (_, raw) => written.extend_from_slice(raw),
        }
    }
    Ok((replaced == 1).then_some(written))
}

#[cfg(test)]
mod tests {
    use skewbridge_k8s_api::protobuf::envelope;

    use super::*;

    /// A `ConfigMap` with the fields of its metadata.
    fn config_map(metadata: Writer) -> Vec<u8> {
        let data = Writer::default().text(1, "key").text(2, "value");
        let object = Writer::default().message(1, metadata).message(2, data);
        envelope("v1", "ConfigMap", object)
    }

    #[test]
    fn a_merge_patch_gets_the_version_of_the_object_as_its_precondition() {
        let stored = json!({"metadata": {"resourceVersion": "7"}});
        let rows = [
            (
                json!({"spec": {}}),
                true,
                json!({"spec": {}, "metadata": {"resourceVersion": "7"}}),
            ),
            (
                json!({"metadata": {"labels": {}}}),
                true,
                json!({"metadata": {"labels": {}, "resourceVersion": "7"}}),
            ),
            (
                json!({"metadata": {"resourceVersion": "6"}}),
                false,
                json!({"metadata": {"resourceVersion": "6"}}),
            ),
            (json!({"metadata": null}), false, json!({"metadata": null})),
            (json!(1), false, json!(1)),
        ];
        for (mut patch, is_conditional, expected) in rows {
            let body = patch.to_string();
            assert_eq!(add_precondition(&mut patch, &stored), is_conditional);
            assert_eq!(patch, expected);
            let conditional = conditional_body(body.as_bytes(), "7");
            let conditional = conditional.map(|it| serde_json::from_slice::<Value>(&it).unwrap());
            assert_eq!(conditional, is_conditional.then_some(expected));
        }
    }

    #[test]
    fn an_object_in_protobuf_gets_it_too() {
        let meta = |version: &str| Writer::default().text(1, "name").text(6, version);
        let without = Writer::default().text(1, "name");
        let conditional = |body: Vec<u8>| conditional_body(&body, "7");
        let expected = config_map(without.text(6, "7"));
        let got = conditional(config_map(Writer::default().text(1, "name")));
        assert_eq!(got.as_deref(), Some(&*expected));
        // kube-apiserver's clients encode an empty version; the last value of a field counts.
        let expected = config_map(meta("").text(6, "7"));
        assert_eq!(
            conditional(config_map(meta(""))).as_deref(),
            Some(&*expected)
        );
        // It has a precondition.
        assert_eq!(conditional(config_map(meta("6"))), None);
    }

    #[test]
    fn the_version_of_a_stored_object_is_read() {
        let version = |stored: &str| version_of(stored.as_bytes()).ok().flatten();
        let stored = r#"{"metadata":{"name":"a","resourceVersion":"7"},"spec":{}}"#;
        assert_eq!(version(stored).as_deref(), Some("7"));
        assert_eq!(version(r#"{"metadata":{}}"#), None);
        assert!(version_of(b"{").is_err());
    }

    #[test]
    fn a_body_that_is_no_such_object_is_sent_as_it_is() {
        let whole = config_map(Writer::default().text(1, "name"));
        // The envelope ends with two empty fields, which may be missing.
        for cut in 0..whole.len() - 4 {
            assert_eq!(conditional_body(&whole[..cut], "7"), None, "{cut}");
        }
        let compressed = Writer::default().bytes(2, b"\n\0").text(3, "gzip");
        let compressed = [PROTOBUF_MAGIC, &compressed.finish()].concat();
        let without_metadata = envelope("v1", "ConfigMap", Writer::default().text(2, "a"));
        for body in [compressed, without_metadata, b"kind: ConfigMap".to_vec()] {
            assert_eq!(conditional_body(&body, "7"), None, "{body:?}");
        }
    }
}
