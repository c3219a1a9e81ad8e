//! Errors of extraction, and bounds that protect from hostile documents.

/// `/openapi/v3/api/v1`, the longest document, has 2 MiB.
pub const MAX_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;

/// Nesting of schemas and references. A path of Kubernetes 1.36 has at most 16 steps, each of
/// which takes up to three of them.
pub const MAX_DEPTH: usize = 64;

/// Schemas that are visited in one document. Kubernetes 1.36 needs fewer than
/// 10,000 for its longest one; more are needed only where schemas are recursive.
pub const MAX_SCHEMA_VISITS: usize = 500_000;

/// Paths of one kind. `Pod` has 1,600 in Kubernetes 1.36.
pub const MAX_PATHS_PER_KIND: u64 = 65_536;

/// Kinds of one server. Kubernetes 1.36 has 71.
pub const MAX_KINDS: usize = 1_024;

/// Distinct nodes of one server. Kubernetes 1.36 has 564.
pub const MAX_NODES: usize = 65_536;

/// A name of a field. The longest one of Kubernetes 1.36 has 48 bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// How much of a name an error quotes.
const MAX_QUOTED_CHARS: usize = 80;

/// Why there are no field sets.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The document is truncated, or no OpenAPI.
    #[error("the OpenAPI document cannot be parsed: {0}")]
    Json(#[from] serde_json::Error),
    /// The document exceeds a bound.
    #[error("the document exceeds the bound {bound} ({limit})")]
    Bound {
        /// The name of the constant.
        bound: &'static str,
        /// Its value.
        limit: u64,
    },
    /// A field has a name that a path cannot contain.
    #[error("{0:?} is not a field name")]
    FieldName(String),
    /// A cached file has another structure.
    #[error("the cached field sets are not valid: {0}")]
    Cache(&'static str),
}

impl Error {
    pub(crate) fn bound(bound: &'static str, limit: usize) -> Self {
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        Self::Bound { bound, limit }
    }

    pub(crate) fn field_name(name: &str) -> Self {
        Self::FieldName(name.chars().take(MAX_QUOTED_CHARS).collect())
    }
}
