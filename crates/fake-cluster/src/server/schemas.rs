//! Schemas of types: fields from the table of [`protobuf`], descriptions from a hand-written
//! table. Kinds that are in neither have only the common fields.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::catalogue::{Release, Served};
use crate::protobuf::{self, Cardinality, Field};

static TEXT: &str = include_str!("../../data/schemas.txt");

/// Descriptions of types and fields, by package and name: `core Pod`, and `core Pod spec`.
static DESCRIPTIONS: LazyLock<HashMap<String, &'static str>> = LazyLock::new(|| read(TEXT));

/// The metadata of every object.
const OBJECT_META: &str = "meta.v1.ObjectMeta";

/// The version of OpenAPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    V2,
    V3,
}

/// The schemas of kinds and of the types that they refer to, by reference name.
pub(super) fn schemas<'a>(
    served: impl Iterator<Item = Served<'a>>,
    release: Release,
    dialect: Dialect,
) -> Map<String, Value> {
    let mut writer = Writer {
        release,
        dialect,
        left: vec![OBJECT_META.to_owned()],
    };
    let mut schemas = Map::new();
    for served in served {
        if served.kind().is_empty() {
            continue;
        }
        let message = protobuf::message_name(&served.api_version(), served.kind());
        let mut schema = match protobuf::fields(&message) {
            Some(fields) => writer.message(&message, fields),
            None => writer.common_fields(&served),
        };
        let properties = &mut schema["properties"];
        properties["apiVersion"] =
            text("The API group and version of the object, such as apps/v1.");
        properties["kind"] = text("The kind of the object, such as Pod.");
        schema["x-kubernetes-group-version-kind"] = json!([gvk(&served)]);
        schemas.insert(kind_name(&served), schema);
    }
    while let Some(message) = writer.left.pop() {
        let name = full_name(&message);
        if schemas.contains_key(&name) {
            continue;
        }
        let schema = match (scalar(&message, dialect), protobuf::fields(&message)) {
            (Some(scalar), _) => scalar,
            (None, Some(fields)) => writer.message(&message, fields),
            (None, None) => continue,
        };
        schemas.insert(name, schema);
    }
    schemas
}

/// The name of the schema of a kind.
pub(super) fn kind_name(served: &Served<'_>) -> String {
    full_name(&protobuf::message_name(
        &served.api_version(),
        served.kind(),
    ))
}

/// The `x-kubernetes-group-version-kind` of a kind.
pub(super) fn gvk(served: &Served<'_>) -> Value {
    json!({"group": served.group, "version": served.version, "kind": served.kind()})
}

/// Writes schemas, and collects the types that they refer to.
struct Writer {
    release: Release,
    dialect: Dialect,
    /// Types that are referred to.
    left: Vec<String>,
}

impl Writer {
    fn message(&mut self, message: &str, fields: &[Field]) -> Value {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        self.fields(message, message, fields, &mut properties, &mut required);
        let mut schema = json!({"type": "object", "properties": properties});
        describe(&mut schema, description(message, None));
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        schema
    }

    /// The fields of a message, including those of inlined messages; `whole` selects the
    /// descriptions.
    fn fields(
        &mut self,
        whole: &str,
        message: &str,
        fields: &[Field],
        properties: &mut Map<String, Value>,
        required: &mut Vec<&'static str>,
    ) {
        let release = self.release;
        for field in fields.iter().filter(|it| it.releases.contains(release)) {
            if field.is_inline() {
                let inner = protobuf::resolved(message, field.kind);
                let fields = protobuf::fields(&inner).unwrap_or_default();
                self.fields(whole, &inner, fields, properties, required);
                continue;
            }
            let about = description(whole, Some(field.name));
            let kind = self.kind(message, field.kind);
            let schema = match field.shape {
                Cardinality::One => self.with_description(kind, about),
                Cardinality::List => described(json!({"type": "array", "items": kind}), about),
                Cardinality::Map => {
                    let map = json!({"type": "object", "additionalProperties": kind});
                    described(map, about)
                }
            };
            properties.insert(field.name.to_owned(), schema);
            if field.required.is_some_and(|it| it.contains(release)) {
                required.push(field.name);
            }
        }
    }

    /// The schema of a type, or a reference to it.
    fn kind(&mut self, within: &str, kind: &str) -> Value {
        let name = match kind {
            "string" => return json!({"type": "string"}),
            "bool" => return json!({"type": "boolean"}),
            "int32" | "int64" => return json!({"type": "integer", "format": kind}),
            "bytes" => return json!({"type": "string", "format": "byte"}),
            "time" | "microtime" => return json!({"type": "string", "format": "date-time"}),
            "quantity" | "intstr" | "raw" | "rawfields" => kind.to_owned(),
            kind => protobuf::resolved(within, kind),
        };
        let is_list = protobuf::fields(&name).is_some_and(protobuf::is_list);
        if is_list {
            return json!({"type": "array", "items": {"type": "string"}});
        }
        let place = self.reference_path(&name);
        self.left.push(name);
        json!({"$ref": place})
    }

    fn reference_path(&self, name: &str) -> String {
        let name = full_name(name);
        match self.dialect {
            Dialect::V2 => format!("#/definitions/{name}"),
            Dialect::V3 => format!("#/components/schemas/{name}"),
        }
    }

    /// Siblings of a reference are ignored, so version 3 wraps it.
    fn with_description(&self, schema: Value, about: Option<&str>) -> Value {
        if schema.get("$ref").is_some() && self.dialect == Dialect::V3 {
            return described(json!({"allOf": [schema]}), about);
        }
        described(schema, about)
    }

    /// The common fields of any kind.
    fn common_fields(&mut self, served: &Served<'_>) -> Value {
        let metadata = json!({"$ref": self.reference_path(OBJECT_META)});
        let mut properties = json!({
            "metadata": self.with_description(metadata, Some("Metadata of the object.")),
            "spec": {"type": "object", "description": "Desired state of the object."},
        });
        if served.has_status() {
            properties["status"] =
                json!({"type": "object", "description": "Observed state of the object."});
        }
        json!({
            "type": "object",
            "description": format!("{} of {}.", served.kind(), served.api_version()),
            "properties": properties,
            "x-kubernetes-preserve-unknown-fields": true,
        })
    }
}

/// The schemas of named scalars.
fn scalar(name: &str, dialect: Dialect) -> Option<Value> {
    // Version 2 has no `oneOf`.
    let either = |kind: &str| match dialect {
        Dialect::V2 => json!({"type": "string"}),
        Dialect::V3 => json!({"oneOf": [{"type": "string"}, {"type": kind}]}),
    };
    Some(match name {
        "quantity" => either("number"),
        "intstr" => {
            let mut schema = either("integer");
            schema["format"] = "int-or-string".into();
            schema
        }
        "raw" | "rawfields" => json!({"type": "object"}),
        _ => return None,
    })
}

/// The OpenAPI name of a message or a named scalar.
fn full_name(message: &str) -> String {
    const MACHINERY: &str = "io.k8s.apimachinery.pkg";
    match message {
        "quantity" => format!("{MACHINERY}.api.resource.Quantity"),
        "intstr" => format!("{MACHINERY}.util.intstr.IntOrString"),
        "raw" => format!("{MACHINERY}.runtime.RawExtension"),
        "rawfields" => format!("{MACHINERY}.apis.meta.v1.FieldsV1"),
        message if message.starts_with("meta.") => format!("{MACHINERY}.apis.{message}"),
        message => format!("io.k8s.api.{message}"),
    }
}

fn text(about: &str) -> Value {
    json!({"type": "string", "description": about})
}

fn described(mut schema: Value, about: Option<&str>) -> Value {
    describe(&mut schema, about);
    schema
}

fn describe(schema: &mut Value, about: Option<&str>) {
    if let Some(about) = about {
        schema["description"] = about.into();
    }
}

/// The description of a message, or of its field.
fn description(message: &str, field: Option<&str>) -> Option<&'static str> {
    let package = message.split('.').next()?;
    let name = message.rsplit('.').next()?;
    let key = match field {
        Some(field) => format!("{package} {name} {field}"),
        None => format!("{package} {name}"),
    };
    DESCRIPTIONS.get(&key).copied()
}

/// Parses the descriptions. Invalid lines are ignored; a test shows that there are none.
fn read(text: &'static str) -> HashMap<String, &'static str> {
    let mut words = HashMap::new();
    let mut last = "";
    for line in text.lines() {
        let Some((name, about)) = line.split_once(": ").filter(|_| !line.starts_with('#')) else {
            continue;
        };
        if let Some(field) = name.strip_prefix("  ") {
            words.insert(format!("{last} {field}"), about);
        } else {
            last = name;
            words.insert(name.to_owned(), about);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;

    fn of(release: Release) -> Map<String, Value> {
        let catalogue = Catalogue::new(release).unwrap();
        schemas(catalogue.preferred(), release, Dialect::V3)
    }

    #[test]
    fn every_description_belongs_to_a_schema() {
        let lines = TEXT
            .lines()
            .filter(|it| !it.is_empty() && !it.starts_with('#'));
        assert_eq!(DESCRIPTIONS.len(), lines.count());
        let schemas = of(Release::V1_36);
        let find_schema = |package: &str, name: &str| {
            let suffix = format!(".{name}");
            let part = format!(".{package}.");
            let mut schemas = schemas.iter();
            schemas
                .find_map(|(key, it)| (key.ends_with(&suffix) && key.contains(&part)).then_some(it))
        };
        for (key, about) in DESCRIPTIONS.iter() {
            let parts: Vec<_> = key.split(' ').collect();
            let Some(schema) = find_schema(parts[0], parts[1]) else {
                panic!("{key}");
            };
            let schema = match parts.get(2) {
                Some(field) => &schema["properties"][field],
                None => schema,
            };
            assert_eq!(schema["description"], *about, "{key}");
        }
    }

    #[test]
    fn every_reference_has_a_schema() {
        for release in Release::ALL {
            let schemas = of(release);
            let text = Value::Object(schemas.clone()).to_string();
            let mut places = text.split("#/components/schemas/").skip(1);
            assert!(places.all(|it| {
                let name = it.split('"').next().unwrap_or_default();
                schemas.contains_key(name)
            }));
            assert!(schemas.contains_key("io.k8s.api.core.v1.Pod"));
        }
    }

    #[test]
    fn fields_are_those_of_the_release() {
        let [old, _, new] = Release::ALL.map(of);
        let spec = "io.k8s.api.core.v1.PodSpec";
        assert!(old[spec]["properties"]["resources"].is_null());
        assert!(new[spec]["properties"]["resources"].is_object());
        assert_eq!(new[spec]["required"], json!(["containers"]));
        let stateful = "io.k8s.api.apps.v1.StatefulSetSpec";
        let required = |of: &Map<String, Value>| of[stateful]["required"].to_string();
        assert!(required(&old).contains("serviceName"));
        assert!(!required(&new).contains("serviceName"));
        // Fields of inlined messages.
        let volume = &new["io.k8s.api.core.v1.Volume"]["properties"];
        assert!(volume["emptyDir"].is_object() && volume["volumeSource"].is_null());
    }
}
