//! Makes a write conditional on the stored object that it was compared with, in every encoding whose
//! metadata the bridge can change.

use bytes::Bytes;
use http::HeaderValue;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use skewbridge_k8s_api::protobuf::{DecodeError, Field, Fields, Writer};
use skewbridge_k8s_api::request_info::Verb;

use super::body_fields::media_type;
use super::{Write, invalid_object};
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

/// Field numbers of `preconditions` in `DeleteOptions`, and of `resourceVersion` in it.
const PRECONDITIONS: u8 = 2;
const PRECONDITION_VERSION: u8 = 2;

/// What makes a write conditional on the object that it was compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Precondition {
    /// The bridge has added this resource version.
    Added(String),
    /// The client has sent one, or its body cannot have one.
    Own,
}

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

/// The body of a write that is conditional on the version of the stored object, and its media type if that is
/// another one. `None` if the write has a precondition of its own, or cannot have one.
pub(super) fn conditional_write(
    write: &Write<'_>,
    version: &str,
) -> Option<(Bytes, Option<HeaderValue>)> {
    let media_type = media_type(&write.head.headers);
    let body = match (write.info.verb, media_type.as_str()) {
        (Verb::Patch, "application/json-patch+json") => {
            let mut patch = serde_json::from_slice(write.body).ok()?;
            append_version(&mut patch, version).then(|| Bytes::from(patch.to_string()))
        }
        // An update, also of a subresource such as `scale`, and a patch with the structure of the object.
        (Verb::Update | Verb::Patch, _) => conditional_body(write.body, version),
        // Options in the query do not count if there is a body.
        (Verb::Delete, _) if write.body.is_empty() => {
            let has_options = write.head.uri.query().is_some_and(|it| !it.is_empty());
            let options = json!({"apiVersion": "v1", "kind": "DeleteOptions",
                "preconditions": {"resourceVersion": version}});
            let json = HeaderValue::from_static("application/json");
            let options = Bytes::from(options.to_string());
            return (!has_options).then_some((options, Some(json)));
        }
        (Verb::Delete, _) => conditional_options(write.body, version),
        _ => None,
    };
    body.map(|body| (body, None))
}

/// The resource version of a stored object, as JSON.
pub(super) fn version_of(stored: &[u8]) -> Result<Option<String>, ProxyError> {
    let stored: Result<StoredObject, _> = serde_json::from_slice(stored);
    let stored = stored.map_err(|error| invalid_object(&error))?;
    Ok(stored.metadata.resource_version)
}

/// The body of a write with the resource version of the stored object. `None` if the body has a
/// precondition of its own, or its encoding is another one.
fn conditional_body(body: &[u8], version: &str) -> Option<Bytes> {
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

/// The resource version of a stored object.
pub(super) fn version_in(stored: &Value) -> Option<String> {
    let version = stored["metadata"]["resourceVersion"].as_str();
    version.map(str::to_owned)
}

/// Makes a patch or an update with the structure of the object conditional on the stored object that it was
/// compared with.
pub(super) fn add_precondition(body: &mut Value, stored: &Value) -> Precondition {
    precondition(body, stored, insert_version)
}

/// Makes a JSON patch conditional on the stored object that it was compared with.
pub(super) fn append_precondition(patch: &mut Value, stored: &Value) -> Precondition {
    precondition(patch, stored, append_version)
}

fn precondition(
    body: &mut Value,
    stored: &Value,
    insert: impl Fn(&mut Value, &str) -> bool,
) -> Precondition {
    match version_in(stored) {
        Some(version) if insert(body, &version) => Precondition::Added(version),
        _ => Precondition::Own,
    }
}

/// Appends an operation to a JSON patch that sets the resource version, which the server then compares.
/// `false` if the patch sets it itself.
fn append_version(patch: &mut Value, version: &str) -> bool {
    const POINTER: &str = "/metadata/resourceVersion";
    let Some(operations) = patch.as_array_mut() else {
        return false;
    };
    let sets_version = |operation: &Value| {
        let below = match operation["path"].as_str().unwrap_or_default() {
            POINTER => "",
            "/metadata" => "/resourceVersion",
            "" => POINTER,
            _ => return false,
        };
        let value = operation["value"].pointer(below);
        let is_version = value
            .and_then(Value::as_str)
            .is_some_and(|it| !it.is_empty());
        match operation["op"].as_str() {
            Some("add" | "replace") => is_version,
            Some("move" | "copy") => true,
            _ => false,
        }
    };
    if operations.iter().any(sets_version) {
        return false;
    }
    operations.push(json!({"op": "add", "path": POINTER, "value": version}));
    true
}

/// Options of a deletion that is conditional on a resource version. `None` if they have such a precondition.
fn conditional_options(options: &[u8], version: &str) -> Option<Bytes> {
    if options.starts_with(PROTOBUF_MAGIC) {
        let conditional = in_envelope(options, |options| {
            for field in Fields::of(options) {
                if let Field::Bytes(number, preconditions) = field?
                    && number == u64::from(PRECONDITIONS)
                    && has_text(preconditions, PRECONDITION_VERSION)?
                {
                    return Ok(None);
                }
            }
            // Messages of the same field are merged.
            let version = Writer::default().text(PRECONDITION_VERSION, version);
            let preconditions = Writer::default().message(PRECONDITIONS, version);
            Ok(Some([options, &preconditions.finish()].concat()))
        });
        return conditional.ok().flatten().map(Bytes::from);
    }
    let mut options = serde_json::from_slice::<Value>(options).ok()?;
    let preconditions = options.as_object_mut()?.entry("preconditions");
    let preconditions = preconditions.or_insert_with(|| json!({})).as_object_mut()?;
    if names_version(preconditions) {
        return None;
    }
    preconditions.insert("resourceVersion".to_owned(), version.into());
    Some(Bytes::from(options.to_string()))
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
    let metadata = |metadata: &[u8]| {
        if has_text(metadata, RESOURCE_VERSION)? {
            return Ok(None);
        }
        // The last value of a field counts.
        let version = Writer::default().text(RESOURCE_VERSION, version);
        Ok(Some([metadata, &version.finish()].concat()))
    };
    in_envelope(body, |object| with_field(object, METADATA, metadata))
}

/// Whether a message has a text that is not empty.
fn has_text(message: &[u8], number: u8) -> Result<bool, DecodeError> {
    let mut has_text = false;
    for field in Fields::of(message) {
        if let Field::Bytes(found, text) = field?
            && found == u64::from(number)
        {
            has_text = !text.is_empty();
        }
    }
    Ok(has_text)
}

/// An envelope with another object in it; `None` if that is to stay as it is, or its encoding is not plain.
fn in_envelope(
    body: &[u8],
    object: impl Fn(&[u8]) -> Result<Option<Vec<u8>>, DecodeError>,
) -> Result<Option<Vec<u8>>, DecodeError> {
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
    let conditional = with_field(envelope, UNKNOWN_RAW, object)?;
    Ok(conditional.map(|envelope| [PROTOBUF_MAGIC, &envelope].concat()))
}

/// The object in an envelope; `None` if its encoding is not plain.
pub(super) fn object_in_envelope(body: &[u8]) -> Option<&[u8]> {
    let envelope = body.strip_prefix(PROTOBUF_MAGIC)?;
    let mut object = None;
    for field in Fields::of(envelope) {
        match field.ok()? {
            Field::Bytes(UNKNOWN_CONTENT_ENCODING, encoding) if !encoding.is_empty() => {
                return None;
            }
            Field::Bytes(number, raw) if number == u64::from(UNKNOWN_RAW) => object = Some(raw),
            _ => {}
        }
    }
    object
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
            let precondition = add_precondition(&mut patch, &stored);
            assert_eq!(precondition != Precondition::Own, is_conditional);
            assert_eq!(patch, expected);
            let conditional = conditional_body(body.as_bytes(), "7");
            let conditional = conditional.map(|it| serde_json::from_slice::<Value>(&it).unwrap());
            assert_eq!(conditional, is_conditional.then_some(expected));
        }
    }

    #[test]
    fn a_json_patch_sets_the_version_unless_its_client_does() {
        let rows = [
            (json!([]), true),
            (
                json!([{"op": "replace", "path": "/spec", "value": {}}]),
                true,
            ),
            (
                json!([{"op": "test", "path": "/metadata/resourceVersion", "value": "6"}]),
                true,
            ),
            (
                json!([{"op": "add", "path": "/metadata", "value": {"name": "a"}}]),
                true,
            ),
            (
                json!([{"op": "remove", "path": "/metadata/resourceVersion"}]),
                true,
            ),
            (
                json!([{"op": "replace", "path": "/metadata/resourceVersion", "value": ""}]),
                true,
            ),
            (
                json!([{"op": "replace", "path": "/metadata/resourceVersion", "value": "6"}]),
                false,
            ),
            (
                json!([{"op": "add", "path": "/metadata", "value": {"resourceVersion": "6"}}]),
                false,
            ),
            (
                json!([{"op": "replace", "path": "", "value": {"metadata": {"resourceVersion": "6"}}}]),
                false,
            ),
            (
                json!([{"op": "copy", "path": "/metadata", "from": "/spec"}]),
                false,
            ),
            (json!({}), false),
        ];
        for (patch, expected) in rows {
            let mut conditional = patch.clone();
            assert_eq!(append_version(&mut conditional, "7"), expected, "{patch}");
            let last = json!({"op": "add", "path": "/metadata/resourceVersion", "value": "7"});
            let is_last = conditional.as_array().and_then(|it| it.last()) == Some(&last);
            assert_eq!(is_last, expected, "{patch}");
            assert_eq!(conditional == patch, !expected, "{patch}");
        }
    }

    #[test]
    fn options_of_a_deletion_get_the_version_unless_they_have_one() {
        let rows = [
            (
                json!({}),
                Some(json!({"preconditions": {"resourceVersion": "7"}})),
            ),
            (
                json!({"propagationPolicy": "Orphan", "preconditions": {"uid": "u"}}),
                Some(json!({"propagationPolicy": "Orphan",
                    "preconditions": {"uid": "u", "resourceVersion": "7"}})),
            ),
            (json!({"preconditions": {"resourceVersion": "6"}}), None),
            (json!([]), None),
            (json!({"preconditions": null}), None),
        ];
        for (options, expected) in rows {
            let conditional = conditional_options(options.to_string().as_bytes(), "7");
            let conditional = conditional.map(|it| serde_json::from_slice::<Value>(&it).unwrap());
            assert_eq!(conditional, expected, "{options}");
        }
        let envelope = |options: Writer| envelope("v1", "DeleteOptions", options);
        let options = || Writer::default().number(1, 30);
        let version = |version: &str| Writer::default().text(2, version);
        let uid = || Writer::default().text(1, "u");
        for (sent, expected) in [
            (options(), Some(options().message(2, version("7")))),
            (
                options().message(2, uid()),
                Some(options().message(2, uid()).message(2, version("7"))),
            ),
            (options().message(2, version("6")), None),
        ] {
            let conditional = conditional_options(&envelope(sent), "7");
            assert_eq!(conditional.as_deref(), expected.map(envelope).as_deref());
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
