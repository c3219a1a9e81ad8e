//! Label and field selectors.

pub mod fields;
pub mod labels;

use skewbridge_k8s_api::status::Status;

use crate::object::Object;

pub use fields::FieldSelector;
pub use labels::LabelSelector;

/// A selection of objects by labels and fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// `labelSelector`
    pub labels: LabelSelector,
    /// `fieldSelector`
    pub fields: FieldSelector,
}

impl Selection {
    /// Parses both selectors of a query, for objects of a kind.
    pub fn parse(labels: &str, fields: &str, group: &str, kind: &str) -> Result<Self, Status> {
        Ok(Self {
            labels: LabelSelector::parse(labels).map_err(Status::bad_request)?,
            fields: FieldSelector::parse(fields, group, kind).map_err(Status::bad_request)?,
        })
    }

    /// Whether it matches an object.
    pub fn matches(&self, object: &Object) -> bool {
        self.labels.matches(|key| object.label(key)) && self.fields.matches(object)
    }

    /// Whether it matches all objects.
    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }
}
