//! The requested form of objects: full, as a table, or metadata only.

use http::HeaderMap;
use skewbridge_k8s_api::content_negotiation::{Format, MediaRange, sorted_accept};
use skewbridge_k8s_api::status::Status;

use crate::status::not_acceptable;

/// The form of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Full objects.
    Objects,
    /// `as=Table`
    Table,
    /// `as=PartialObjectMetadata` or its list.
    Metadata,
}

/// Formats of responses: JSON, which is YAML as well (YAML 1.2, 1.3).
const OFFERS: [Format; 2] = [Format::Json, Format::Yaml];

impl Form {
    /// The first supported form, in kube-apiserver's order; 406 if there is none.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Status> {
        let Some(ranges) = sorted_accept(headers) else {
            return Ok(Self::Objects);
        };
        let found = ranges.iter().find_map(Self::of_range);
        found.ok_or_else(|| not_acceptable(&["application/json", "application/yaml"]))
    }

    fn of_range(range: &MediaRange<'_>) -> Option<Self> {
        if range.has_unsupported_parameters() || !OFFERS.iter().any(|it| range.includes(*it)) {
            return None;
        }
        if !range.is_transformed() {
            return Some(Self::Objects);
        }
        let is_meta = range.parameter("g") == Some("meta.k8s.io")
            && matches!(range.parameter("v"), Some("v1" | "v1beta1"));
        match (is_meta, range.parameter("as")) {
            (true, Some("Table")) => Some(Self::Table),
            (true, Some("PartialObjectMetadata" | "PartialObjectMetadataList")) => {
                Some(Self::Metadata)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::ACCEPT;

    use super::*;

    #[test]
    fn the_first_supported_form_is_chosen() {
        let rows = [
            ("", Ok(Form::Objects)),
            ("application/json", Ok(Form::Objects)),
            ("*/*", Ok(Form::Objects)),
            ("application/yaml", Ok(Form::Objects)),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                Ok(Form::Table),
            ),
            (
                "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,\
                 application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                Ok(Form::Table),
            ),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                Ok(Form::Objects),
            ),
            (
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                Ok(Form::Metadata),
            ),
            ("application/json;as=Chart;g=meta.k8s.io;v=v1", Err(406)),
            ("application/vnd.kubernetes.protobuf", Err(406)),
        ];
        for (accept, expected) in rows {
            let mut headers = HeaderMap::new();
            if !accept.is_empty() {
                headers.insert(ACCEPT, HeaderValue::from_static(accept));
            }
            let form = Form::of(&headers).map_err(|status| status.code);
            assert_eq!(form, expected, "{accept}");
        }
    }
}
