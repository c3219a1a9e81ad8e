//! Objects as kubectl prints them: a `Table` of `meta.k8s.io/v1`, with kube-apiserver's columns
//! for common resources, and the default columns for others.

mod cells;
mod fields;
mod pod;
mod services_and_policies;
mod workloads;

use serde_json::{Value, json};

use crate::catalogue::Release;
use crate::object::Object;
use crate::status::GroupResource;
use crate::time::{Time, human_duration};

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// kubectl writes it in capitals.
    pub name: &'static str,
    /// The type of its cells.
    pub kind: &'static str,
    /// When it is shown.
    pub shown: Visibility,
}

/// When a column is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// Always.
    Always,
    /// By `-o wide`.
    Wide,
}

/// The object in each row (`includeObject`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Include {
    /// The cells alone.
    None,
    /// The object's metadata.
    #[default]
    Metadata,
    /// All of it.
    Object,
}

/// Metadata of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListMeta {
    /// The version of the list, or of the single object.
    pub resource_version: String,
    /// The continue token; may be empty.
    pub continue_token: String,
    /// The number of remaining objects, if known.
    pub remaining: Option<usize>,
}

/// A table of objects of a resource, in the format of a release. Ages are relative to `now`.
pub fn table<'a>(
    release: Release,
    resource: &GroupResource,
    objects: impl IntoIterator<Item = &'a Object>,
    meta: &ListMeta,
    include: Include,
    now: Time,
) -> Value {
    let columns = columns(resource);
    let is_shown = |column: &Column| has_column(release, resource, column.name);
    let rows = objects.into_iter().map(|object| {
        let cells = columns
            .iter()
            .zip(cells::cells(release, resource, object, now));
        let cells = cells
            .filter(|(column, _)| is_shown(column))
            .map(|(_, it)| it);
        let mut row = json!({"cells": cells.collect::<Vec<_>>()});
        match include {
            Include::None => {}
            Include::Object => row["object"] = object.value().clone(),
            Include::Metadata => {
                row["object"] = json!({
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": object.value()["metadata"],
                });
            }
        }
        row
    });
    let rows: Vec<Value> = rows.collect();
    let mut metadata = json!({"resourceVersion": meta.resource_version});
    if !meta.continue_token.is_empty() {
        metadata["continue"] = meta.continue_token.clone().into();
    }
    if let Some(remaining) = meta.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    let columns = columns.iter().copied().filter(is_shown);
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns.map(Column::to_json).collect::<Vec<_>>(),
        "rows": rows,
    })
}

/// Whether a release has a column of [`columns`].
fn has_column(release: Release, resource: &GroupResource, column: &str) -> bool {
    match (resource.resource.as_str(), column) {
        ("jobs", "Status")
        | ("cronjobs", "Timezone")
        | ("persistentvolumeclaims", "VolumeAttributesClass")
        | ("priorityclasses", "PreemptionPolicy") => release >= Release::V1_34,
        ("serviceaccounts", "Secrets") => release < Release::V1_36,
        _ => true,
    }
}

/// The columns of a resource, in any release.
pub fn columns(resource: &GroupResource) -> Vec<Column> {
    let (always, wide): (&[_], &[_]) = match (resource.group.as_str(), resource.resource.as_str()) {
        ("", "pods") => (
            &["Name", "Ready", "Status", "Restarts", "Age"],
            &["IP", "Node", "Nominated Node", "Readiness Gates"],
        ),
        ("", "namespaces") => (&["Name", "Status", "Age"], &[]),
        ("", "nodes") => (
            &["Name", "Status", "Roles", "Age", "Version"],
            &[
                "Internal-IP",
                "External-IP",
                "OS-Image",
                "Kernel-Version",
                "Container-Runtime",
            ],
        ),
        ("", "services") => (
            &[
                "Name",
                "Type",
                "Cluster-IP",
                "External-IP",
                "Port(s)",
                "Age",
            ],
            &["Selector"],
        ),
        ("", "configmaps") => (&["Name", "Data", "Age"], &[]),
        ("", "secrets") => (&["Name", "Type", "Data", "Age"], &[]),
        ("apps", "deployments") => (
            &["Name", "Ready", "Up-to-date", "Available", "Age"],
            &["Containers", "Images", "Selector"],
        ),
        ("coordination.k8s.io", "leases") => (&["Name", "Holder", "Age"], &[]),
        ("" | "events.k8s.io", "events") => return event_columns(),
        _ => workloads::columns(resource)
            .or_else(|| services_and_policies::columns(resource))
            .unwrap_or((&["Name", "Created At"], &[])),
    };
    let column = |shown| {
        move |name: &&'static str| Column {
            name,
            kind: "string",
            shown,
        }
    };
    let always = always.iter().map(column(Visibility::Always));
    always
        .chain(wide.iter().map(column(Visibility::Wide)))
        .collect()
}

/// Columns of `-o wide` are between the others.
fn event_columns() -> Vec<Column> {
    use Visibility::{Always, Wide};
    let rows = [
        ("Last Seen", Always),
        ("Type", Always),
        ("Reason", Always),
        ("Object", Always),
        ("Subobject", Wide),
        ("Source", Wide),
        ("Message", Always),
        ("First Seen", Wide),
        ("Count", Wide),
        ("Name", Wide),
    ];
    let column = |(name, shown)| Column {
        name,
        kind: "string",
        shown,
    };
    rows.map(column).to_vec()
}

impl Column {
    fn to_json(self) -> Value {
        json!({
            "name": self.name,
            "type": self.kind,
            "format": if self.name == "Name" { "name" } else { "" },
            "description": "",
            "priority": i32::from(self.shown == Visibility::Wide),
        })
    }
}

/// The age, or `<unknown>`.
fn age(time: Option<Time>, now: Time) -> String {
    time.map_or_else(
        || "<unknown>".to_owned(),
        |time| human_duration(now.seconds_since(time)),
    )
}

#[cfg(test)]
mod tests;
