//! The owners of the fields of an object: its `managedFields`.

use std::fmt;

use serde_json::{Value, json};

use super::FieldManager;
use super::compare::Comparison;
use super::fields::FieldSet;
use crate::object::Object;
use crate::status::quoted;
use crate::time::Time;

/// An owner of fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manager {
    name: String,
    operation: Operation,
    api_version: String,
    subresource: String,
    time: Option<Time>,
}

/// The operation by which a manager owns fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // the names of the variants describe them
pub enum Operation {
    Apply,
    Update,
}

/// All owners of fields of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Managers(Vec<(Manager, FieldSet)>);

impl Manager {
    /// A manager that applies is the same in every version.
    fn matches(&self, writer: &FieldManager<'_>, operation: Operation) -> bool {
        self.name == writer.manager
            && self.operation == operation
            && self.subresource == writer.subresource
            && (operation == Operation::Apply || self.api_version == writer.api_version)
    }

    fn of(writer: &FieldManager<'_>, operation: Operation) -> Self {
        Self {
            name: writer.manager.to_owned(),
            operation,
            api_version: writer.api_version.to_owned(),
            subresource: writer.subresource.to_owned(),
            time: Some(writer.now),
        }
    }
}

/// As in conflict messages: `"kubectl" using v1 at 2026-11-15T20:59:59Z`.
impl fmt::Display for Manager {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&quoted(&self.name))?;
        if !self.subresource.is_empty() {
            write!(out, " with subresource {}", quoted(&self.subresource))?;
        }
        if self.operation == Operation::Update {
            write!(out, " using {}", self.api_version)?;
            if let Some(time) = self.time {
                write!(out, " at {time}")?;
            }
        }
        Ok(())
    }
}

impl Managers {
    /// The managers of an object.
    pub fn of(object: &Object) -> Self {
        let entries = object.managed_fields().iter().filter_map(|entry| {
            let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
            let manager = Manager {
                name: text("manager"),
                operation: match entry["operation"].as_str()? {
                    "Apply" => Operation::Apply,
                    "Update" => Operation::Update,
                    _ => return None,
                },
                api_version: text("apiVersion"),
                subresource: text("subresource"),
                time: Time::parse(&text("time")),
            };
            Some((manager, FieldSet::parse(&entry["fieldsV1"])))
        });
        Self(entries.collect())
    }

    /// Writes `managedFields` of an object.
    pub fn write(&self, object: &mut Object) {
        let owning = self.0.iter().filter(|(_, fields)| !fields.is_empty());
        let mut owning: Vec<_> = owning.collect();
        owning.sort_by_key(|(it, _)| (it.operation, it.time, it.name.clone()));
        let entries = owning.into_iter().map(|(manager, fields)| {
            let mut entry = json!({
                "manager": manager.name,
                "operation": match manager.operation {
                    Operation::Apply => "Apply",
                    Operation::Update => "Update",
                },
                "apiVersion": manager.api_version,
                "fieldsType": "FieldsV1",
                "fieldsV1": fields.write(),
            });
            if let Some(time) = manager.time {
                entry["time"] = time.to_string().into();
            }
            if !manager.subresource.is_empty() {
                entry["subresource"] = manager.subresource.clone().into();
            }
            entry
        });
        let entries: Vec<Value> = entries.collect();
        if entries.is_empty() {
            object.remove(&["metadata", "managedFields"]);
        } else {
            object.set(&["metadata", "managedFields"], entries);
        }
    }

    /// The changed fields that other managers own.
    pub(super) fn disputed(
        &self,
        writer: &FieldManager<'_>,
        changed: &FieldSet,
    ) -> Vec<(Manager, FieldSet)> {
        let others = self
            .0
            .iter()
            .filter(|(it, _)| !it.matches(writer, Operation::Apply));
        let disputed = others.map(|(it, fields)| (it.clone(), fields.intersection(changed)));
        let mut disputed: Vec<_> = disputed.filter(|(_, fields)| !fields.is_empty()).collect();
        disputed.sort_by_key(|(it, _)| it.name.clone());
        disputed
    }

    /// Removes fields from a manager.
    pub(super) fn release(&mut self, manager: &Manager, fields: &FieldSet) {
        for (it, own) in &mut self.0 {
            if it == manager {
                *own = own.difference(fields);
            }
        }
    }

    /// Removes fields from all managers.
    pub(super) fn remove_fields(&mut self, removed: &FieldSet) {
        for (_, own) in &mut self.0 {
            *own = own.difference(removed);
        }
    }

    pub(super) fn applied_by(&self, writer: &FieldManager<'_>) -> FieldSet {
        let mut all = self.0.iter();
        let found = all.find(|(it, _)| it.matches(writer, Operation::Apply));
        found.map(|(_, fields)| fields.clone()).unwrap_or_default()
    }

    pub(super) fn owned_by_others(&self, writer: &FieldManager<'_>) -> FieldSet {
        let others = self
            .0
            .iter()
            .filter(|(it, _)| !it.matches(writer, Operation::Apply));
        others.fold(FieldSet::default(), |all, (_, fields)| all.union(fields))
    }

    /// The time is that of the last change of the applied fields.
    pub(super) fn set_applied(&mut self, writer: &FieldManager<'_>, wanted: FieldSet) {
        let position = self
            .0
            .iter_mut()
            .find(|(it, _)| it.matches(writer, Operation::Apply));
        match position {
            Some((manager, fields)) => {
                if *fields != wanted || manager.api_version != writer.api_version {
                    *manager = Manager::of(writer, Operation::Apply);
                    *fields = wanted;
                }
            }
            None => self.0.push((Manager::of(writer, Operation::Apply), wanted)),
        }
    }

    /// The writer becomes the only owner of the changed fields.
    pub(super) fn note(&mut self, writer: &FieldManager<'_>, changes: &Comparison) {
        let new = changes.changed();
        let lost = changes.modified.union(&changes.removed);
        for (manager, own) in &mut self.0 {
            if !manager.matches(writer, Operation::Update) {
                *own = own.difference(&lost);
            }
        }
        self.remove_fields(&changes.removed);
        if new.is_empty() {
            return;
        }
        let position = self
            .0
            .iter_mut()
            .find(|(it, _)| it.matches(writer, Operation::Update));
        match position {
            Some((manager, own)) => {
                manager.time = Some(writer.now);
                *own = own.union(&new);
            }
            None => self.0.push((Manager::of(writer, Operation::Update), new)),
        }
    }
}
