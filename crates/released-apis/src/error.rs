//! Errors of this crate.

/// A data file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not JSON of the expected structure.
    #[error("the data of a release: {0}")]
    Json(#[from] serde_json::Error),
    /// Its fields are not valid.
    #[error("the fields of a release: {0}")]
    Fields(#[from] skewbridge_field_sets::Error),
    /// Its version is invalid.
    #[error("{0:?} is not the version of a release")]
    Version(String),
}
