//! `skewbridge skew --fields`: which fields of built-in kinds servers know.

mod collect;
mod fetch;
pub(super) mod json;
mod report;
pub(super) mod table;

pub(super) use collect::collect;
pub(super) use report::FieldReport;
