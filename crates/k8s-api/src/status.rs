//! `metav1.Status`, the error response of the API, in the three formats that clients read.

use bytes::Bytes;
use serde::Serialize;

use crate::cbor;
use crate::content_negotiation::Format;
use crate::protobuf::{Writer, envelope};

/// A failure status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason; empty where Kubernetes defines none.
    pub reason: &'static str,
    /// The human-readable message.
    pub message: String,
    /// Seconds after which the client may retry.
    pub retry_after_seconds: Option<u32>,
    /// The object concerned, if there is one.
    pub details: Option<Box<Details>>,
}

/// The object that a failure concerns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Details {
    /// The name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The API group of the resource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The resource, or the kind where an object is invalid.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The individual causes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
}

/// One cause of a failure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// The machine-readable reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The human-readable message.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The path of the field in the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

impl Status {
    /// Creates a status from a code and its reason.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            retry_after_seconds: None,
            details: None,
        }
    }

    /// Adds details about the object concerned.
    #[must_use]
    pub fn with_details(self, details: Details) -> Self {
        Self {
            details: Some(Box::new(details)),
            ..self
        }
    }

    /// 400: the request is invalid.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401, with kube-apiserver's message.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403: the caller lacks permission.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(403, "Forbidden", message)
    }

    /// 404: there is no such object or path.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(404, "NotFound", message)
    }

    /// 405: the method is not supported.
    pub fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(405, "MethodNotAllowed", message)
    }

    /// 408: the client did not send its request in time.
    pub fn client_timeout(message: impl Into<String>) -> Self {
        Self::new(408, "", message)
    }

    /// 414: the request target is too long.
    pub fn uri_too_long(message: impl Into<String>) -> Self {
        Self::new(414, "", message)
    }

    /// 431: the headers are too many or too large.
    pub fn header_fields_too_large(message: impl Into<String>) -> Self {
        Self::new(431, "", message)
    }

    /// 500: an internal error of the bridge.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", message)
    }

    /// 502: the upstream closed the connection early. Clients must not retry automatically:
    /// the request may have been executed.
    pub fn bad_gateway(message: impl Into<String>) -> Self {
        Self::new(502, "InternalError", message)
    }

    /// 503: the upstream is unreachable, the request was not executed, the client may retry.
    pub fn service_unavailable(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self {
            retry_after_seconds: Some(retry_after_seconds),
            ..Self::new(503, "ServiceUnavailable", message)
        }
    }

    /// 503: another server is unreachable and the request may have been executed: without
    /// `retryAfterSeconds`.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    /// 504: the upstream timed out. The request may have been executed.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(504, "Timeout", message)
    }

    /// 508: the request has already passed this bridge.
    pub fn loop_detected(message: impl Into<String>) -> Self {
        Self::new(508, "", message)
    }

    /// Encodes the status.
    pub fn encode(&self, format: Format) -> Bytes {
        match format {
            // JSON is a subset of YAML (YAML 1.2, 1.3).
            Format::Json | Format::Yaml => self.json(),
            Format::Protobuf => self.protobuf(),
            Format::Cbor => self.cbor(),
        }
    }

    /// Exactly as kube-apiserver encodes it, with the trailing newline.
    fn json(&self) -> Bytes {
        // A plain structure with string keys cannot fail to serialise.
        let mut bytes = serde_json::to_vec(&self.document()).unwrap_or_default();
        bytes.push(b'\n');
        bytes.into()
    }

    fn protobuf(&self) -> Bytes {
        // metadata (1) is written although it is empty, as in Go.
        let mut status = Writer::default()
            .text(1, "")
            .text(2, "Failure")
            .text(3, &self.message)
            .text(4, self.reason);
        let mut details = self.details.as_ref().map(|it| it.protobuf());
        if let Some(seconds) = self.retry_after_seconds {
            details = Some(details.unwrap_or_default().number(5, seconds.into()));
        }
        if let Some(details) = details {
            status = status.message(5, details);
        }
        envelope("v1", "Status", status.number(6, self.code.into())).into()
    }

    fn cbor(&self) -> Bytes {
        // A plain structure with string keys cannot fail to serialise.
        let value = serde_json::to_value(self.document()).unwrap_or_default();
        cbor::write(&value).into()
    }

    fn document(&self) -> Json<'_> {
        Json {
            kind: "Status",
            api_version: "v1",
            metadata: Empty {},
            status: "Failure",
            message: &self.message,
            reason: self.reason,
            details: self.json_details(),
            code: self.code,
        }
    }

    fn json_details(&self) -> Option<JsonDetails<'_>> {
        let details = self.details.as_deref();
        (details.is_some() || self.retry_after_seconds.is_some()).then_some(JsonDetails {
            details,
            retry_after_seconds: self.retry_after_seconds,
        })
    }
}

/// Field numbers from apimachinery's `generated.proto`.
impl Details {
    fn protobuf(&self) -> Writer {
        Writer::default()
            .text(1, &self.name)
            .text(2, &self.group)
            .text(3, &self.kind)
            .messages(4, &self.causes, |cause| {
                Writer::default()
                    .text(1, &cause.reason)
                    .text(2, &cause.message)
                    .text(3, &cause.field)
            })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Json<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    status: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<JsonDetails<'a>>,
    code: u16,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonDetails<'a> {
    #[serde(flatten)]
    details: Option<&'a Details>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u32>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn sample() -> Status {
        Status::service_unavailable("kube-apiserver \"a\" is away", 300)
    }

    #[test]
    fn json_is_encoded_as_by_kube_apiserver() {
        let expected = concat!(
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
            r#""message":"kube-apiserver \"a\" is away","reason":"ServiceUnavailable","#,
            r#""details":{"retryAfterSeconds":300},"code":503}"#,
            "\n"
        );
        assert_eq!(sample().encode(Format::Json), expected);
    }

    #[test]
    fn details_are_encoded_in_every_format() {
        let cause = Cause {
            reason: "FieldValueRequired".to_owned(),
            message: "Required value".to_owned(),
            field: "spec".to_owned(),
        };
        let status = Status::new(422, "Invalid", "no").with_details(Details {
            name: "web".to_owned(),
            group: "apps".to_owned(),
            kind: "Deployment".to_owned(),
            causes: vec![cause],
        });
        let expected = concat!(
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
            r#""message":"no","reason":"Invalid","details":{"name":"web","group":"apps","#,
            r#""kind":"Deployment","causes":[{"reason":"FieldValueRequired","#,
            r#""message":"Required value","field":"spec"}]},"code":422}"#,
            "\n"
        );
        assert_eq!(status.encode(Format::Json), expected);
        let encoded = status.encode(Format::Protobuf);
        let unknown = fields(encoded.strip_prefix(b"k8s\0").unwrap());
        let details = fields(&fields(&unknown[&2])[&5]);
        assert_eq!(
            (&details[&1][..], &details[&2][..]),
            (&b"web"[..], &b"apps"[..])
        );
        assert_eq!(details[&3], b"Deployment");
        assert_eq!(fields(&details[&4])[&3], b"spec");
    }

    #[test]
    fn a_status_without_a_reason_omits_the_field() {
        let json = Status::header_fields_too_large("x").encode(Format::Json);
        assert!(!String::from_utf8(json.to_vec()).unwrap().contains("reason"));
    }

    /// The fields of a protobuf message: bytes, or an integer as decimal text.
    fn fields(mut bytes: &[u8]) -> BTreeMap<u8, Vec<u8>> {
        fn take_varint(bytes: &mut &[u8]) -> usize {
            let (mut value, mut shift) = (0, 0);
            loop {
                let byte = bytes[0];
                *bytes = &bytes[1..];
                value |= usize::from(byte & 0x7f) << shift;
                shift += 7;
                if byte & 0x80 == 0 {
                    return value;
                }
            }
        }
        let mut fields = BTreeMap::new();
        while !bytes.is_empty() {
            let key = take_varint(&mut bytes);
            let value = take_varint(&mut bytes);
            let number = u8::try_from(key >> 3).unwrap();
            if key & 7 == 2 {
                fields.insert(number, bytes[..value].to_vec());
                bytes = &bytes[value..];
            } else {
                fields.insert(number, value.to_string().into_bytes());
            }
        }
        fields
    }

    #[test]
    fn protobuf_wraps_the_status_in_runtime_unknown() {
        let message = "x".repeat(200);
        let encoded = Status::service_unavailable(message.clone(), 300).encode(Format::Protobuf);
        let unknown = fields(encoded.strip_prefix(b"k8s\0").unwrap());
        let type_meta = fields(&unknown[&1]);
        assert_eq!(
            (&type_meta[&1][..], &type_meta[&2][..]),
            (&b"v1"[..], &b"Status"[..])
        );
        let status = fields(&unknown[&2]);
        assert_eq!(status[&2], b"Failure");
        assert_eq!(status[&3], message.as_bytes());
        assert_eq!(status[&4], b"ServiceUnavailable");
        assert_eq!(fields(&status[&5])[&5], b"300");
        assert_eq!(status[&6], b"503");
    }

    /// A CBOR item in diagnostic notation, and the remaining bytes.
    fn diagnose(bytes: &[u8]) -> (String, &[u8]) {
        let (major, short) = (bytes[0] >> 5, usize::from(bytes[0] & 31));
        let (value, mut rest) = match short {
            24 => (usize::from(bytes[1]), &bytes[2..]),
            25 => (
                usize::from(bytes[1]) << 8 | usize::from(bytes[2]),
                &bytes[3..],
            ),
            _ => (short, &bytes[1..]),
        };
        match major {
            0 => (value.to_string(), rest),
            2 => {
                let text = String::from_utf8(rest[..value].to_vec()).unwrap();
                (format!("'{text}'"), &rest[value..])
            }
            5 => {
                let mut pairs = Vec::new();
                for _ in 0..value {
                    let (key, after) = diagnose(rest);
                    let (item, after) = diagnose(after);
                    pairs.push(format!("{key}: {item}"));
                    rest = after;
                }
                (format!("{{{}}}", pairs.join(", ")), rest)
            }
            6 => {
                let (item, rest) = diagnose(rest);
                (format!("{value}({item})"), rest)
            }
            _ => panic!("major type {major}"),
        }
    }

    #[test]
    fn cbor_is_a_self_described_map_of_byte_strings() {
        let encoded = sample().encode(Format::Cbor);
        let (text, rest) = diagnose(&encoded);
        assert!(rest.is_empty());
        assert_eq!(
            text,
            "55799({'code': 503, 'kind': 'Status', 'reason': 'ServiceUnavailable', \
             'status': 'Failure', 'details': {'retryAfterSeconds': 300}, \
             'message': 'kube-apiserver \"a\" is away', 'metadata': {}, 'apiVersion': 'v1'})"
        );
        let encoded = Status::loop_detected("x").encode(Format::Cbor);
        let (text, rest) = diagnose(&encoded);
        assert!(rest.is_empty() && !text.contains("reason"), "{text}");
    }
}
