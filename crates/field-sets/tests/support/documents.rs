//! Small discovery and OpenAPI documents.

#![allow(dead_code)] // not every test program uses all of it

use serde_json::{Value, json};
use skewbridge_discovery::Document;
use skewbridge_discovery::document::Group;
use skewbridge_field_sets::{Error, ServerFields, ServerFieldsBuilder};

/// The group of `widgets`, with these versions.
pub(crate) fn discovery(versions: &[&str]) -> Vec<Group> {
    let version = |version: &&str| {
        json!({"version": version, "resources": [{
            "resource": "widgets",
            "responseKind": {"group": "", "version": "", "kind": "Widget"},
            "subresources": [{"subresource": "scale", "responseKind": {"kind": "Scale"}}],
        }]})
    };
    let versions: Vec<_> = versions.iter().map(version).collect();
    let document = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "items": [{"metadata": {"name": "apps"}, "versions": versions}],
    });
    Document::parse(document.to_string().as_bytes())
        .unwrap()
        .items
}

/// The name of the schema of `Widget` in this version.
pub(crate) fn widget(version: &str) -> String {
    format!("io.k8s.api.apps.{version}.Widget")
}

/// A document with this schema of `Widget`, and others that it refers to.
pub(crate) fn document(version: &str, mut schema: Value, others: &[(&str, Value)]) -> Vec<u8> {
    schema["x-kubernetes-group-version-kind"] =
        json!([{"group": "apps", "version": version, "kind": "Widget"}]);
    let mut schemas = json!({ widget(version): schema });
    for (name, schema) in others {
        schemas[name] = schema.clone();
    }
    let document = json!({"openapi": "3.0.0", "components": {"schemas": schemas}});
    document.to_string().into_bytes()
}

/// A server with one version of `Widget`.
pub(crate) fn server(schema: Value) -> ServerFields {
    extract(schema, &[]).unwrap()
}

pub(crate) fn extract(schema: Value, others: &[(&str, Value)]) -> Result<ServerFields, Error> {
    let mut builder = ServerFieldsBuilder::new(&discovery(&["v1"]));
    builder.add("apps", "v1", &document("v1", schema, others))?;
    builder.build()
}

/// A schema with exactly these fields and those above them: `spec.items[].name`.
pub(crate) fn schema(paths: &[&str]) -> Value {
    let mut root = json!({});
    for path in paths {
        let mut at = &mut root;
        for part in path.split('.') {
            let name = part.find(['[', '{']).map_or(part, |end| &part[..end]);
            at = &mut at["properties"][name];
            if at.is_null() {
                *at = json!({});
            }
            let mut rest = &part[name.len()..];
            while rest.len() >= 2 {
                let below = if rest.starts_with("[]") {
                    "items"
                } else {
                    "additionalProperties"
                };
                at = &mut at[below];
                if at.is_null() {
                    *at = json!({});
                }
                rest = &rest[2..];
            }
        }
    }
    root
}

pub(crate) fn paths(fields: &ServerFields) -> Vec<String> {
    let set = fields.kind("apps", "Widget").unwrap();
    set.paths().iter().map(ToString::to_string).collect()
}
