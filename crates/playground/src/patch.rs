//! Changes that a client describes instead of sending the whole object.

pub mod json;
pub mod merge;
pub mod strategic;

use serde_json::Value;
use skewbridge_k8s_api::status::{Details, Status};

use crate::object::Object;
use crate::status::unsupported_media_type;
use json::Operation;

/// A description of a change.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    /// Step by step (RFC 6902).
    Json(Vec<Operation>),
    /// By an example (RFC 7386).
    Merge(Value),
    /// By an example, and lists by their keys.
    Strategic(Value),
}

/// What a patch is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // their names say it
pub enum PatchKind {
    Json,
    Merge,
    Strategic,
    /// Server-side apply, which is not a [`Patch`].
    Apply,
}

impl PatchKind {
    const MEDIA_TYPES: [(&str, Self); 4] = [
        ("application/json-patch+json", Self::Json),
        ("application/merge-patch+json", Self::Merge),
        ("application/strategic-merge-patch+json", Self::Strategic),
        ("application/apply-patch+yaml", Self::Apply),
    ];

    /// Of a body of this media type; 415 for another one.
    pub fn of_content_type(text: &str) -> Result<Self, Status> {
        let media = text.split(';').next().unwrap_or_default().trim();
        let mut known = Self::MEDIA_TYPES.into_iter();
        let found = known.find(|(name, _)| name.eq_ignore_ascii_case(media));
        found
            .map(|(_, kind)| kind)
            .ok_or_else(|| unsupported_media_type(&Self::MEDIA_TYPES.map(|(name, _)| name)))
    }
}

impl Patch {
    /// Reads one. An applied object is read as an object.
    pub fn parse(kind: PatchKind, bytes: &[u8]) -> Result<Self, Status> {
        let unreadable = |error: serde_json::Error| {
            Status::bad_request(format!("error decoding patch: {error}"))
        };
        if kind == PatchKind::Json {
            let operations: Vec<Operation> = serde_json::from_slice(bytes).map_err(unreadable)?;
            return json::check_length(operations.len()).map(|()| Self::Json(operations));
        }
        let value: Value = serde_json::from_slice(bytes).map_err(unreadable)?;
        if !value.is_object() {
            return Err(Status::bad_request(
                "error decoding patch: a patch has to be a JSON object",
            ));
        }
        Ok(match kind {
            PatchKind::Strategic => Self::Strategic(value),
            _ => Self::Merge(value),
        })
    }

    /// The object as it is to be.
    pub fn apply(&self, object: &Object) -> Result<Object, Status> {
        let value = object.value();
        let patched = match self {
            Self::Json(operations) => json::apply(value, operations).map_err(|_| rejected())?,
            Self::Merge(patch) => merge::apply(value, patch),
            Self::Strategic(patch) => {
                strategic::apply(value, patch).map_err(Status::bad_request)?
            }
        };
        Object::new(patched)
    }
}

/// 422, in kube-apiserver's words, which keep the reason to themselves.
fn rejected() -> Status {
    let message = "the server rejected our request due to an error in our request";
    Status::new(422, "Invalid", message).with_details(Details::default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_is_read_by_its_media_type() {
        let rows = [
            ("application/json-patch+json", PatchKind::Json, "[]", "{}"),
            (
                "application/merge-patch+json; charset=utf-8",
                PatchKind::Merge,
                "{}",
                "[]",
            ),
            (
                "application/strategic-merge-patch+json",
                PatchKind::Strategic,
                "{}",
                "7",
            ),
        ];
        for (media, kind, good, bad) in rows {
            assert_eq!(PatchKind::of_content_type(media), Ok(kind));
            assert!(Patch::parse(kind, good.as_bytes()).is_ok());
            assert_eq!(Patch::parse(kind, bad.as_bytes()).unwrap_err().code, 400);
        }
        assert_eq!(
            PatchKind::of_content_type("application/json")
                .unwrap_err()
                .message,
            "the body of the request was in an unknown format - accepted media types include: \
             application/json-patch+json, application/merge-patch+json, \
             application/strategic-merge-patch+json, application/apply-patch+yaml"
        );
    }

    #[test]
    fn a_step_that_cannot_be_taken_refuses_the_whole() {
        let object = Object::new(json!({"data": {"x": "1"}})).unwrap();
        let text = br#"[{"op": "test", "path": "/data/x", "value": "2"}]"#;
        let patch = Patch::parse(PatchKind::Json, text).unwrap();
        let refusal = patch.apply(&object).unwrap_err();
        assert_eq!(refusal.code, 422);
        assert_eq!(
            refusal.message,
            "the server rejected our request due to an error in our request"
        );
    }
}
