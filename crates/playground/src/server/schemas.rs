//! What is told of types: a small table that was written by hand, and for all others what
//! every object has.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::catalogue::Served;

static TEXT: &str = include_str!("../../data/schemas.txt");

/// The types of the table, by package and name.
static TYPES: LazyLock<Vec<Type>> = LazyLock::new(|| read(TEXT));

#[derive(Debug, PartialEq, Eq)]
struct Type {
    package: &'static str,
    name: &'static str,
    about: &'static str,
    fields: Vec<Field>,
}

#[derive(Debug, PartialEq, Eq)]
struct Field {
    name: &'static str,
    kind: &'static str,
    about: &'static str,
    required: bool,
}

/// Which version of OpenAPI is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    V2,
    V3,
}

/// The schemas of kinds, and of what they are made of, by the names that refer to them.
pub(super) fn schemas<'a>(
    served: impl Iterator<Item = Served<'a>>,
    dialect: Dialect,
) -> Map<String, Value> {
    let mut schemas = Map::new();
    let mut wanted = BTreeSet::from(["ObjectMeta"]);
    for served in served {
        let (kind, package) = (served.kind(), package_of(served.group));
        if kind.is_empty() {
            continue;
        }
        let known = TYPES
            .iter()
            .find(|it| it.package == package && it.name == kind);
        let mut schema = known.map_or_else(|| anything(&served), |it| it.schema(dialect));
        if let Some(known) = known {
            wanted.extend(known.parts());
        }
        let properties = &mut schema["properties"];
        properties["apiVersion"] =
            text("The group and the version in which the object is written, such as apps/v1.");
        properties["kind"] = text("What the object is, such as Pod.");
        properties["metadata"] = reference("ObjectMeta", dialect, "What every object has.");
        schema["x-kubernetes-group-version-kind"] = json!([gvk(&served)]);
        schemas.insert(kind_name(&served), schema);
    }
    let mut left: Vec<_> = wanted.iter().copied().collect();
    while let Some(name) = left.pop() {
        let Some(found) = TYPES.iter().find(|it| it.name == name) else {
            continue;
        };
        for part in found.parts() {
            if wanted.insert(part) {
                left.push(part);
            }
        }
        schemas.insert(found.full_name(), found.schema(dialect));
    }
    schemas
}

/// The name of the schema of a kind.
pub(super) fn kind_name(served: &Served<'_>) -> String {
    let package = package_of(served.group);
    format!("io.k8s.api.{package}.{}.{}", served.version, served.kind())
}

/// A kind as OpenAPI marks it.
pub(super) fn gvk(served: &Served<'_>) -> Value {
    json!({"group": served.group, "version": served.version, "kind": served.kind()})
}

/// `rbac` of `rbac.authorization.k8s.io`
fn package_of(group: &str) -> &str {
    match group.split('.').next() {
        None | Some("") => "core",
        Some(first) => first,
    }
}

/// What can be said of any kind.
fn anything(served: &Served<'_>) -> Value {
    let mut properties = json!({
        "spec": {"type": "object", "description": "What is wanted of it."},
    });
    if served.has_status() {
        properties["status"] = json!({"type": "object", "description": "What has become of it."});
    }
    json!({
        "type": "object",
        "description": format!("{} of {}.", served.kind(), served.api_version()),
        "properties": properties,
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

impl Type {
    fn full_name(&self) -> String {
        full_name(self.package, self.name)
    }

    /// The types of the table that its fields have.
    fn parts(&self) -> impl Iterator<Item = &'static str> {
        let kinds = self
            .fields
            .iter()
            .map(|it| it.kind.trim_start_matches("[]"));
        kinds.filter(|kind| kind.starts_with(|it: char| it.is_ascii_uppercase()))
    }

    fn schema(&self, dialect: Dialect) -> Value {
        let properties: Map<String, Value> = (self.fields.iter())
            .map(|field| (field.name.to_owned(), field.schema(dialect)))
            .collect();
        let mut schema = json!({
            "type": "object",
            "description": self.about,
            "properties": properties,
        });
        let required: Vec<_> = (self.fields.iter())
            .filter(|it| it.required)
            .map(|it| it.name)
            .collect();
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        schema
    }
}

impl Field {
    fn schema(&self, dialect: Dialect) -> Value {
        let mut schema = match self.kind.strip_prefix("[]") {
            Some(kind) => json!({"type": "array", "items": type_schema(kind, dialect)}),
            None => type_schema(self.kind, dialect),
        };
        if schema.get("$ref").is_some() {
            return reference(self.kind, dialect, self.about);
        }
        schema["description"] = self.about.into();
        schema
    }
}

fn type_schema(kind: &str, dialect: Dialect) -> Value {
    match kind {
        "string" | "boolean" | "object" | "number" => json!({"type": kind}),
        "integer" => json!({"type": "integer", "format": "int32"}),
        "time" => json!({"type": "string", "format": "date-time"}),
        "quantity" => json!({"type": "string"}),
        "intstr" => json!({"format": "int-or-string", "type": "string"}),
        "map" => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        "bytes" => json!({
            "type": "object",
            "additionalProperties": {"type": "string", "format": "byte"},
        }),
        name => json!({"$ref": place(name, dialect)}),
    }
}

/// What stands beside a reference is not read, so in version 3 it is wrapped.
fn reference(name: &str, dialect: Dialect, about: &str) -> Value {
    let place = place(name, dialect);
    match dialect {
        Dialect::V2 => json!({"$ref": place, "description": about}),
        Dialect::V3 => json!({"allOf": [{"$ref": place}], "description": about, "default": {}}),
    }
}

fn place(name: &str, dialect: Dialect) -> String {
    let found = TYPES.iter().find(|it| it.name == name);
    let name = found.map(Type::full_name).unwrap_or_default();
    match dialect {
        Dialect::V2 => format!("#/definitions/{name}"),
        Dialect::V3 => format!("#/components/schemas/{name}"),
    }
}

fn full_name(package: &str, name: &str) -> String {
    match package {
        "meta" => format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}"),
        package => format!("io.k8s.api.{package}.v1.{name}"),
    }
}

fn text(about: &str) -> Value {
    json!({"type": "string", "description": about})
}

/// Reads the table. What cannot be read is left out; that there is nothing such, a test
/// shows.
fn read(text: &'static str) -> Vec<Type> {
    let mut types: Vec<Type> = Vec::new();
    for line in text.lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some(((left, right), about)) = line
            .split_once(": ")
            .and_then(|(words, about)| Some((words.trim().split_once(' ')?, about)))
        else {
            continue;
        };
        if line.starts_with(' ') {
            let Some(last) = types.last_mut() else {
                continue;
            };
            last.fields.push(Field {
                name: left.trim_end_matches('!'),
                kind: right,
                about,
                required: left.ends_with('!'),
            });
        } else {
            types.push(Type {
                package: left,
                name: right,
                about,
                fields: Vec::new(),
            });
        }
    }
    types
}

/// How many types there are of each name: one, or a reference would be ambiguous.
#[cfg(test)]
fn counts() -> std::collections::BTreeMap<&'static str, usize> {
    let mut counts = std::collections::BTreeMap::new();
    for found in TYPES.iter() {
        *counts.entry(found.name).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Catalogue, Release};

    #[test]
    fn the_table_is_read_whole_and_refers_to_itself() {
        let lines = TEXT
            .lines()
            .filter(|it| !it.is_empty() && !it.starts_with('#'));
        let fields: usize = TYPES.iter().map(|it| it.fields.len()).sum();
        assert_eq!(TYPES.len() + fields, lines.count());
        assert!(counts().values().all(|count| *count == 1), "{:?}", counts());
        for found in TYPES.iter() {
            for part in found.parts() {
                assert!(TYPES.iter().any(|it| it.name == part), "{part}");
            }
        }
    }

    #[test]
    fn whatever_is_referred_to_is_there() {
        for release in Release::ALL {
            let catalogue = Catalogue::new(release).unwrap();
            let schemas = schemas(catalogue.preferred(), Dialect::V3);
            let text = Value::Object(schemas.clone()).to_string();
            let mut places = text.split("#/components/schemas/").skip(1);
            assert!(places.all(|it| {
                let name = it.split('"').next().unwrap_or_default();
                schemas.contains_key(name)
            }));
            assert!(schemas.contains_key("io.k8s.api.core.v1.Pod"));
        }
    }
}
