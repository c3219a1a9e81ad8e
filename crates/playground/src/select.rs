//! Which objects a client means.

pub mod fields;
pub mod labels;

use skewbridge_k8s_api::status::Status;

use crate::object::Object;

pub use fields::FieldSelector;
pub use labels::LabelSelector;

/// Objects by their labels and by some of their fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// `labelSelector`
    pub labels: LabelSelector,
    /// `fieldSelector`
    pub fields: FieldSelector,
}

impl Selection {
    /// Reads both, as they stand in a query, for objects of a kind.
    pub fn parse(labels: &str, fields: &str, group: &str, kind: &str) -> Result<Self, Status> {
        Ok(Self {
            labels: LabelSelector::parse(labels).map_err(Status::bad_request)?,
            fields: FieldSelector::parse(fields, group, kind).map_err(Status::bad_request)?,
        })
    }

    /// Whether it means an object.
    pub fn matches(&self, object: &Object) -> bool {
        self.labels.matches(|key| object.label(key)) && self.fields.matches(object)
    }

    /// Whether it means all objects.
    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }
}
