//! What a patch can erase without naming it.

use http::HeaderMap;
use serde_json::Value;
use skewbridge_field_sets::{FieldPath, Written, erasable_by_json_patch, erasable_by_merge};

use super::body_fields::media_type;

/// The kinds of patches that replace objects or lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PatchKind {
    /// RFC 6902.
    Json,
    /// RFC 7396.
    Merge,
    Strategic,
}

impl PatchKind {
    /// The kind of a patch, by its media type; `None` for server-side apply, which removes a field only if
    /// its manager has applied it before.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        match media_type(headers).as_str() {
            "application/json-patch+json" => Some(Self::Json),
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            _ => None,
        }
    }

    /// The fields that a patch can erase without naming them: all of them if it cannot be read.
    pub(super) fn erasable(self, body: &[u8], fields: &[FieldPath]) -> Vec<FieldPath> {
        match serde_json::from_slice::<Value>(body) {
            Ok(patch) => match self {
                Self::Json => erasable_by_json_patch(&patch, fields),
                Self::Merge => erasable_by_merge(&patch, fields, Written::MergePatch),
                Self::Strategic => erasable_by_merge(&patch, fields, Written::StrategicMergePatch),
            },
            Err(_) => fields.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_TYPE;

    use super::*;

    #[test]
    fn a_patch_that_replaces_no_container_of_a_field_is_not_checked() {
        let fields: Vec<FieldPath> = ["spec.new", "spec.l[].new"]
            .map(|it| it.parse().unwrap())
            .to_vec();
        let rows = [
            (
                "json-patch",
                r#"[{"op":"replace","path":"/spec","value":{}}]"#,
                2,
            ),
            (
                "json-patch",
                r#"[{"op":"replace","path":"/spec/old","value":1}]"#,
                0,
            ),
            ("json-patch", r#"[{"op":"remove","path":"/spec/new"}]"#, 0),
            ("json-patch", "[", 2),
            ("merge-patch", r#"{"spec":{"l":[]}}"#, 1),
            ("merge-patch", r#"{"spec":{"old":1,"new":null}}"#, 0),
            ("merge-patch", r#"{"spec":{"$patch":"replace"}}"#, 0),
            (
                "strategic-merge-patch",
                r#"{"spec":{"$patch":"replace"}}"#,
                2,
            ),
            ("strategic-merge-patch", r#"{"metadata":{"labels":{}}}"#, 0),
        ];
        for (kind, body, expected) in rows {
            let mut headers = HeaderMap::new();
            let media_type = format!("application/{kind}+json; charset=utf-8");
            headers.insert(CONTENT_TYPE, media_type.parse().unwrap());
            let kind = PatchKind::of(&headers).unwrap();
            let erasable = kind.erasable(body.as_bytes(), &fields);
            assert_eq!(erasable.len(), expected, "{kind:?} {body}");
        }
        for other in ["", "application/json", "application/apply-patch+yaml"] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, other.parse().unwrap())]);
            assert_eq!(PatchKind::of(&headers), None, "{other}");
        }
    }
}
