//! Decodes objects that clients send in protobuf to JSON: kubectl and client-go of 1.34 and
//! later do so for known types. Responses are JSON, which they accept as well.

use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use skewbridge_k8s_api::protobuf::{self as wire, Field as Wire, Fields};

use crate::time::Time;
use crate::version_range::VersionRange;

static TEXT: &str = include_str!("../data/protobuf.txt");

/// The messages by their names: `core.v1.Pod`.
static MESSAGES: LazyLock<HashMap<&'static str, Vec<Field>>> = LazyLock::new(|| read(TEXT));

/// Maximum nesting of messages: more than any object has.
const MAX_DEPTH: usize = 64;

/// The prefix of every object in protobuf.
const MAGIC: &[u8] = b"k8s\0";

/// A field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field {
    number: u64,
    pub(crate) name: &'static str,
    presence: Presence,
    pub(crate) shape: Cardinality,
    pub(crate) kind: &'static str,
    /// The releases that have it.
    pub(crate) releases: VersionRange,
    /// The releases in which it is required.
    pub(crate) required: Option<VersionRange>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Always,
    /// Left out when it is empty.
    UnlessEmpty,
    /// Its fields are inlined into those of the message; a list replaces the message.
    Inline,
}

/// The cardinality of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cardinality {
    One,
    List,
    Map,
}

/// Why an object cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It is not a Kubernetes object in protobuf.
    #[error("the body is not an object in protobuf")]
    Malformed,
    /// Its type is unknown.
    #[error("{0} is not supported in protobuf")]
    Unknown(String),
}

impl From<wire::DecodeError> for DecodeError {
    fn from(_: wire::DecodeError) -> Self {
        Self::Malformed
    }
}

/// Decodes an object.
pub fn decode(bytes: &[u8]) -> Result<Value, DecodeError> {
    let envelope = bytes.strip_prefix(MAGIC).ok_or(DecodeError::Malformed)?;
    let (mut type_meta, mut raw): (&[u8], &[u8]) = (&[], &[]);
    for field in Fields::of(envelope) {
        match field? {
            Wire::Bytes(1, bytes) => type_meta = bytes,
            Wire::Bytes(2, bytes) => raw = bytes,
            _ => {}
        }
    }
    let (mut api_version, mut kind) = (String::new(), String::new());
    for field in Fields::of(type_meta) {
        match field? {
            Wire::Bytes(1, bytes) => api_version = text(bytes)?,
            Wire::Bytes(2, bytes) => kind = text(bytes)?,
            _ => {}
        }
    }
    let name = message_name(&api_version, &kind);
    // Some messages are bare lists and not objects.
    let Value::Object(mut object) = message(&name, raw, 0)? else {
        return Err(DecodeError::Malformed);
    };
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

/// The fields of a message, if it is known.
pub(crate) fn fields(message: &str) -> Option<&'static [Field]> {
    MESSAGES.get(message).map(Vec::as_slice)
}

/// The full message name of a field's kind.
pub(crate) fn resolved(within: &str, kind: &str) -> String {
    if kind.contains('.') {
        return kind.to_owned();
    }
    let package = within.rsplit_once('.').map_or("", |(package, _)| package);
    format!("{package}.{kind}")
}

/// Whether a message is a list that is a type of its own.
pub(crate) fn is_list(fields: &[Field]) -> bool {
    matches!(fields, [only] if (only.presence, only.shape) == (Presence::Inline, Cardinality::List))
}

/// `core.v1.Pod`, `rbac.v1.Role`
pub(crate) fn message_name(api_version: &str, kind: &str) -> String {
    // Delete options have the version of the deleted object.
    if kind == "DeleteOptions" {
        return "meta.v1.DeleteOptions".to_owned();
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
    let package = group.split('.').next().unwrap_or_default();
    format!("{package}.{version}.{kind}")
}

fn message(name: &str, bytes: &[u8], depth: usize) -> Result<Value, DecodeError> {
    if depth > MAX_DEPTH {
        return Err(DecodeError::Malformed);
    }
    let Some((name, fields)) = MESSAGES.get_key_value(name) else {
        return Err(DecodeError::Unknown(name.to_owned()));
    };
    let mut object = Map::new();
    for wire in Fields::of(bytes) {
        let wire = wire?;
        let (Wire::Bytes(number, _) | Wire::Number(number, _)) = wire else {
            continue;
        };
        // Unknown fields of later versions are ignored.
        let Some(field) = fields.iter().find(|it| it.number == number) else {
            continue;
        };
        match field.shape {
            Cardinality::One => {
                let value = field.value(name, &wire, depth)?;
                match (field.presence, value) {
                    (_, None) => {}
                    (Presence::Inline, Some(Value::Object(inner))) => object.extend(inner),
                    (Presence::UnlessEmpty, Some(value)) if is_empty(&value) => {}
                    (_, Some(value)) => drop(object.insert(field.name.to_owned(), value)),
                }
            }
            Cardinality::List => {
                let value = field.value(name, &wire, depth)?.unwrap_or(Value::Null);
                let list = object.entry(field.name).or_insert_with(|| json!([]));
                if let Some(list) = list.as_array_mut() {
                    list.push(value);
                }
            }
            Cardinality::Map => {
                let (key, value) = field.entry(name, &wire, depth)?;
                let map = object.entry(field.name).or_insert_with(|| json!({}));
                map[key] = value;
            }
        }
    }
    if is_list(fields) {
        return Ok(object.remove("items").unwrap_or_else(|| json!([])));
    }
    Ok(Value::Object(object))
}

fn is_empty(value: &Value) -> bool {
    matches!(value, Value::String(text) if text.is_empty())
        || *value == json!(0)
        || *value == json!(false)
}

impl Field {
    /// Whether its fields are inlined in JSON.
    pub(crate) fn is_inline(&self) -> bool {
        self.presence == Presence::Inline
    }

    /// A value of the field; `None` for an unset time.
    fn value(
        &self,
        within: &str,
        wire: &Wire<'_>,
        depth: usize,
    ) -> Result<Option<Value>, DecodeError> {
        let bytes = match wire {
            Wire::Bytes(_, bytes) => *bytes,
            Wire::Number(_, number) => {
                return Ok(Some(match self.kind {
                    "bool" => (*number != 0).into(),
                    // Negative ones are written in 64 bits too.
                    _ => (*number).into(),
                }));
            }
            Wire::Other(_) => return Err(DecodeError::Malformed),
        };
        Ok(Some(match self.kind {
            "string" => text(bytes)?.into(),
            "bytes" => STANDARD.encode(bytes).into(),
            "quantity" => first_text(bytes)?.into(),
            "raw" | "rawfields" => {
                let json = first_bytes(bytes)?;
                serde_json::from_slice(json).map_err(|_| DecodeError::Malformed)?
            }
            "time" | "microtime" => return time(bytes, self.kind == "microtime"),
            "intstr" => int_or_string(bytes)?,
            kind => message(&resolved(within, kind), bytes, depth + 1)?,
        }))
    }

    /// An entry of a map.
    fn entry(
        &self,
        within: &str,
        wire: &Wire<'_>,
        depth: usize,
    ) -> Result<(String, Value), DecodeError> {
        let Wire::Bytes(_, bytes) = wire else {
            return Err(DecodeError::Malformed);
        };
        let (mut key, mut value) = (String::new(), None);
        for part in Fields::of(bytes) {
            match part? {
                Wire::Bytes(1, bytes) => key = text(bytes)?,
                part @ (Wire::Bytes(2, _) | Wire::Number(2, _)) => {
                    value = self.value(within, &part, depth)?;
                }
                _ => {}
            }
        }
        Ok((key, value.unwrap_or_else(|| "".into())))
    }
}

fn text(bytes: &[u8]) -> Result<String, DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::Malformed)?;
    Ok(text.to_owned())
}

fn first_bytes(message: &[u8]) -> Result<&[u8], DecodeError> {
    for field in Fields::of(message) {
        if let Wire::Bytes(1, bytes) = field? {
            return Ok(bytes);
        }
    }
    Ok(b"null")
}

fn first_text(message: &[u8]) -> Result<String, DecodeError> {
    text(first_bytes(message)?)
}

/// Seconds and nanoseconds; an empty message is an unset time.
fn time(message: &[u8], micro: bool) -> Result<Option<Value>, DecodeError> {
    let (mut seconds, mut nanos) = (None, 0);
    for field in Fields::of(message) {
        match field? {
            Wire::Number(1, number) => seconds = Some(number),
            Wire::Number(2, number) => nanos = number,
            _ => {}
        }
    }
    let written = seconds.map(|seconds| {
        let moment = Time::from_unix(seconds).to_string();
        if !micro {
            return moment;
        }
        let whole = moment.trim_end_matches('Z');
        format!("{whole}.{:06}Z", nanos.clamp(0, 999_999_999) / 1000)
    });
    Ok(written.map(Value::from))
}

fn int_or_string(message: &[u8]) -> Result<Value, DecodeError> {
    let (mut is_text, mut number, mut name) = (false, 0, String::new());
    for field in Fields::of(message) {
        match field? {
            Wire::Number(1, kind) => is_text = kind == 1,
            Wire::Number(2, value) => number = value,
            Wire::Bytes(3, bytes) => name = text(bytes)?,
            _ => {}
        }
    }
    Ok(if is_text { name.into() } else { number.into() })
}

/// Parses the table. Invalid lines are ignored; a test shows that there are none.
fn read(text: &'static str) -> HashMap<&'static str, Vec<Field>> {
    let mut messages: HashMap<_, Vec<Field>> = HashMap::new();
    let mut last = "";
    for line in text.lines() {
        let words: Vec<&'static str> = line.split_whitespace().collect();
        match words[..] {
            [number, name, kind, ref marks @ ..] if line.starts_with(' ') => {
                let Ok(number) = number.parse() else { continue };
                let (presence, name) = match name.split_at(1) {
                    ("~", name) => (Presence::UnlessEmpty, name),
                    ("=", name) => (Presence::Inline, name),
                    _ => (Presence::Always, name),
                };
                let (shape, kind) = match kind.split_at(2) {
                    ("[]", kind) => (Cardinality::List, kind),
                    ("{}", kind) => (Cardinality::Map, kind),
                    _ => (Cardinality::One, kind),
                };
                messages.entry(last).or_default().push(Field {
                    number,
                    name,
                    presence,
                    shape,
                    kind,
                    releases: marks
                        .iter()
                        .find_map(|it| VersionRange::parse(it))
                        .unwrap_or_default(),
                    required: marks
                        .iter()
                        .find_map(|it| VersionRange::parse(it.strip_prefix('!')?)),
                });
            }
            [name] if !name.starts_with('#') => {
                last = name;
                messages.entry(last).or_default();
            }
            _ => {}
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use skewbridge_k8s_api::protobuf::{Writer, envelope};

    use super::*;

    const SCALARS: [&str; 11] = [
        "string",
        "bytes",
        "bool",
        "int32",
        "int64",
        "time",
        "microtime",
        "quantity",
        "intstr",
        "raw",
        "rawfields",
    ];

    #[test]
    fn the_table_is_complete_and_consistent() {
        let lines = TEXT.lines().filter(|it| it.starts_with(' '));
        let fields: usize = MESSAGES.values().map(Vec::len).sum();
        assert_eq!(fields, lines.count());
        for (name, fields) in MESSAGES.iter() {
            for field in fields.iter().filter(|it| !SCALARS.contains(&it.kind)) {
                let kind = resolved(name, field.kind);
                assert!(MESSAGES.contains_key(&*kind), "{name}: {kind}");
            }
        }
    }

    #[test]
    fn objects_are_decoded_to_the_json_that_go_writes() {
        let metadata = Writer::default()
            .text(1, "web")
            .text(2, "")
            .message(8, Writer::default())
            .message(11, Writer::default().text(1, "app").text(2, "web"));
        let container = Writer::default()
            .text(1, "c")
            .text(2, "")
            .texts(3, &["sleep".to_owned(), "1".to_owned()]);
        let volume = Writer::default().text(1, "v").message(
            2,
            Writer::default().message(2, Writer::default().text(1, "Memory")),
        );
        let pod_spec = Writer::default().message(1, volume).message(2, container);
        let template = Writer::default().message(2, pod_spec);
        let strategy = Writer::default().message(
            2,
            Writer::default().message(1, Writer::default().number(1, 1).text(3, "25%")),
        );
        let spec = Writer::default()
            .number(1, 0)
            .message(3, template)
            .message(4, strategy)
            .number(5, 0)
            .number(77, 7);
        let object = Writer::default().message(1, metadata).message(2, spec);
        let read = decode(&envelope("apps/v1", "Deployment", object)).unwrap();
        assert_eq!(
            read,
            json!({
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "web", "labels": {"app": "web"}},
                "spec": {
                    "replicas": 0,
                    "template": {"spec": {
                        "containers": [{"name": "c", "command": ["sleep", "1"]}],
                        "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}],
                    }},
                    "strategy": {"rollingUpdate": {"maxUnavailable": "25%"}},
                },
            })
        );
    }

    #[test]
    fn times_and_bytes_are_decoded() {
        let spec = Writer::default().text(1, "me").message(
            4,
            Writer::default()
                .number(1, 1_794_776_399)
                .number(2, 1_500_000),
        );
        let lease = Writer::default().message(2, spec);
        let read = decode(&envelope("coordination.k8s.io/v1", "Lease", lease)).unwrap();
        assert_eq!(read["spec"]["renewTime"], "2026-11-15T20:59:59.001500Z");
        let data = Writer::default().text(1, "key").bytes(2, b"abc");
        let secret = Writer::default().message(2, data);
        let read = decode(&envelope("v1", "Secret", secret)).unwrap();
        assert_eq!(read["data"]["key"], "YWJj");
        let options = Writer::default().number(1, 0);
        let read = decode(&envelope("apps/v1", "DeleteOptions", options)).unwrap();
        assert_eq!(read["gracePeriodSeconds"], 0);
    }

    #[test]
    fn unknown_types_are_named_in_the_error() {
        let gizmo = envelope("example.com/v1", "Gizmo", Writer::default());
        let refused = decode(&gizmo).unwrap_err();
        assert_eq!(refused, DecodeError::Unknown("example.v1.Gizmo".to_owned()));
        assert_eq!(decode(b"{}"), Err(DecodeError::Malformed));
    }

    #[test]
    fn a_list_is_bare_only_where_it_is_a_type_of_its_own() {
        let file = Writer::default().text(1, "labels");
        let downward = Writer::default().message(1, file);
        let source = Writer::default().message(2, downward);
        let projected = Writer::default().message(1, source);
        let volume = Writer::default()
            .text(1, "v")
            .message(2, Writer::default().message(26, projected));
        let pod = Writer::default().message(2, Writer::default().message(1, volume));
        let read = decode(&envelope("v1", "Pod", pod)).unwrap();
        assert_eq!(
            read["spec"]["volumes"][0]["projected"]["sources"],
            json!([{"downwardAPI": {"items": [{"path": "labels"}]}}])
        );
        let values = Writer::default().text(1, "b");
        let extra = Writer::default().text(1, "a").message(2, values);
        let spec = Writer::default().message(5, extra);
        let review = Writer::default().message(2, spec);
        let api_version = "authorization.k8s.io/v1";
        let read = decode(&envelope(api_version, "SubjectAccessReview", review)).unwrap();
        assert_eq!(read["spec"]["extra"], json!({"a": ["b"]}));
    }

    #[test]
    fn a_message_that_is_not_an_object_is_malformed() {
        for api_version in [
            "authentication.k8s.io/v1",
            "authorization.k8s.io/v1",
            "certificates.k8s.io/v1",
        ] {
            let list = envelope(api_version, "ExtraValue", Writer::default().text(1, "a"));
            assert_eq!(decode(&list), Err(DecodeError::Malformed));
        }
    }

    proptest! {
        #[test]
        fn no_input_makes_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut object = b"k8s\0".to_vec();
            object.extend(&bytes);
            let _ = decode(&object);
            let _ = message("core.v1.Pod", &bytes, 0);
        }
    }
}
