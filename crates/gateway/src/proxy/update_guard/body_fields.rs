//! Whether the body of a write has a field that its server would drop without an error.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde_json::Value;
use skewbridge_field_sets::{FieldPath, Step, has_any};
use skewbridge_k8s_api::cbor;

/// Whether a body has one of the given fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyFields {
    /// It has none of them.
    Absent,
    /// It has one of them, or may have one.
    Present,
    /// Its encoding does not name fields.
    Unreadable,
}

impl BodyFields {
    /// Searches a body for fields. A body that cannot be parsed has none: the server rejects it.
    pub(super) fn of(headers: &HeaderMap, body: &[u8], fields: &[FieldPath]) -> Self {
        if body.is_empty() || fields.is_empty() {
            return Self::Absent;
        }
        let is_encoded = headers
            .get(CONTENT_ENCODING)
            .is_some_and(|it| !it.as_bytes().eq_ignore_ascii_case(b"identity"));
        if is_encoded {
            return Self::Unreadable;
        }
        match media_type(headers).as_str() {
            // kube-apiserver takes a body without a type for JSON.
            ""
            | "application/json"
            | "application/merge-patch+json"
            | "application/strategic-merge-patch+json" => {
                Self::of_object(serde_json::from_slice(body).ok().as_ref(), fields)
            }
            // Operations with paths. Written again, its strings have no escapes.
            "application/json-patch+json" => match serde_json::from_slice::<Value>(body) {
                Ok(patch) => Self::of_text(&patch.to_string(), fields),
                Err(_) => Self::Absent,
            },
            // kubectl and client-go send JSON, which is YAML.
            "application/yaml" | "application/apply-patch+yaml" => {
                match serde_json::from_slice(body) {
                    Ok(object) => Self::of_object(Some(&object), fields),
                    Err(_) => Self::of_text(&String::from_utf8_lossy(body), fields),
                }
            }
            "application/cbor" | "application/apply-patch+cbor" => {
                Self::of_object(cbor::read(body).ok().as_ref(), fields)
            }
            _ => Self::Unreadable,
        }
    }

    fn of_object(object: Option<&Value>, fields: &[FieldPath]) -> Self {
        match object {
            Some(object) if has_any(object, fields) => Self::Present,
            _ => Self::Absent,
        }
    }

    /// By the name of the field alone.
    fn of_text(text: &str, fields: &[FieldPath]) -> Self {
        let is_named = |field: &FieldPath| {
            let mut names = field.steps().iter().rev().filter_map(|step| match step {
                Step::Field(name) => Some(&**name),
                Step::Item | Step::Value => None,
            });
            names.next().is_none_or(|name| has_word(text, name))
        };
        if fields.iter().any(is_named) {
            Self::Present
        } else {
            Self::Absent
        }
    }
}

fn has_word(text: &str, word: &str) -> bool {
    let is_end = |letter: Option<char>| !letter.is_some_and(char::is_alphanumeric);
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        is_end(before.chars().next_back()) && is_end(after.chars().next())
    })
}

/// The media type without parameters, in lower case.
pub(super) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
    let value = value.and_then(|it| it.split(';').next()).unwrap_or("");
    value.trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::BodyFields::{Absent, Present, Unreadable};
    use super::*;

    #[test]
    fn a_field_is_found_in_every_encoding_that_names_it() {
        let fields: Vec<FieldPath> = ["spec.new", "spec.volumes[].other"]
            .map(|it| it.parse().unwrap())
            .to_vec();
        let json = |text: &str| text.as_bytes().to_vec();
        let rows = [
            (
                "application/json",
                json(r#"{"spec":{"new":false}}"#),
                Present,
            ),
            ("", json(r#"{"spec":{"new":1}}"#), Present),
            (
                "application/json; charset=utf-8",
                json(r#"{"spec":{"new":1}}"#),
                Present,
            ),
            (
                "application/json",
                json(r#"{"spec":{"ne\u0077":1}}"#),
                Present,
            ),
            ("application/json", json(r#"{"spec":{"new":null}}"#), Absent),
            (
                "application/json",
                json(r#"{"spec":{"old":1},"new":1}"#),
                Absent,
            ),
            (
                "application/json",
                json(r#"{"spec":{"volumes":[{},{"other":1}]}}"#),
                Present,
            ),
            ("application/json", json(r#"{"spec":{"#), Absent),
            ("application/json", Vec::new(), Absent),
            (
                "application/merge-patch+json",
                json(r#"{"spec":{"new":1}}"#),
                Present,
            ),
            (
                "application/strategic-merge-patch+json",
                json(r#"{"spec":{"new":1}}"#),
                Present,
            ),
            (
                "application/json-patch+json",
                json(r#"[{"op":"add","path":"/spec/new","value":1}]"#),
                Present,
            ),
            (
                "application/json-patch+json",
                json(r#"[{"op":"add","path":"/spec","value":{"\u006eew":1}}]"#),
                Present,
            ),
            (
                "application/json-patch+json",
                json(r#"[{"op":"add","path":"/spec/newer","value":1}]"#),
                Absent,
            ),
            (
                "application/apply-patch+yaml",
                json(r#"{"spec":{"new":1}}"#),
                Present,
            ),
            (
                "application/apply-patch+yaml",
                json("spec:\n  new: 1\n"),
                Present,
            ),
            ("application/yaml", json("spec:\n  old: 1\n"), Absent),
            (
                "application/cbor",
                cbor::write(&json!({"spec": {"new": 1}})),
                Present,
            ),
            (
                "application/cbor",
                cbor::write(&json!({"spec": {"old": 1}})),
                Absent,
            ),
            (
                "application/vnd.kubernetes.protobuf",
                json("k8s\0"),
                Unreadable,
            ),
        ];
        for (content_type, body, expected) in rows {
            let mut headers = HeaderMap::new();
            if !content_type.is_empty() {
                headers.insert(CONTENT_TYPE, content_type.parse().unwrap());
            }
            let text = String::from_utf8_lossy(&body);
            let got = BodyFields::of(&headers, &body, &fields);
            assert_eq!(got, expected, "{content_type} {text}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, "gzip".parse().unwrap());
        assert_eq!(BodyFields::of(&headers, b"x", &fields), Unreadable);
        assert_eq!(BodyFields::of(&headers, b"x", &[]), Absent);
    }
}
