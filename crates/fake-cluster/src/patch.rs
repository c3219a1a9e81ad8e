//! Patches.

pub mod json;
pub mod merge;
pub mod strategic;

use serde_json::Value;
use skewbridge_k8s_api::status::{Details, Status};

use crate::object::Object;
use crate::status::unsupported_media_type;
use json::Operation;

/// A patch.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    /// JSON patch (RFC 6902).
    Json(Vec<Operation>),
    /// JSON merge patch (RFC 7386).
    Merge(Value),
    /// Strategic merge patch.
    Strategic(Value),
}

/// The format of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names of the variants describe them
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

    /// By media type; 415 for an unknown one.
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
    /// Parses a patch. An applied object is parsed as an object.
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

    /// The patched object.
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

/// 422, with kube-apiserver's message, which does not include the reason.
fn rejected() -> Status {
    let message = "the server rejected our request due to an error in our request";
    Status::new(422, "Invalid", message).with_details(Details::default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_is_parsed_by_its_media_type() {
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
    fn a_failed_operation_rejects_the_whole_patch() {
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
