//! Checks that an object has only fields of its kind, as the decoder of a real server does.
//! Kinds that are not in the table of [`crate::protobuf`] may have any fields.

use serde_json::Value;

use crate::protobuf::{self, Cardinality, Field};

/// A field that has a value of another type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeMismatch(pub String);

/// Removes unknown fields, and returns their paths.
pub fn prune(
    api_version: &str,
    kind: &str,
    object: &mut Value,
) -> Result<Vec<String>, TypeMismatch> {
    let name = protobuf::message_name(api_version, kind);
    let mut unknown = Vec::new();
    if let Some(fields) = protobuf::fields(&name) {
        let mut walk = Checker {
            unknown: &mut unknown,
        };
        walk.object(&name, fields, object, "")?;
    }
    Ok(unknown)
}

struct Checker<'a> {
    unknown: &'a mut Vec<String>,
}

impl Checker<'_> {
    fn object(
        &mut self,
        message: &str,
        fields: &[Field],
        object: &mut Value,
        path: &str,
    ) -> Result<(), TypeMismatch> {
        let at = |name: &str| match path {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        };
        let is_root = path.is_empty();
        let Some(map) = object.as_object_mut() else {
            return Ok(());
        };
        let mut strange = Vec::new();
        for (name, value) in map.iter_mut() {
            if is_root && matches!(name.as_str(), "apiVersion" | "kind") {
                continue;
            }
            let Some((message, field)) = find(message, fields, name) else {
                strange.push(name.clone());
                continue;
            };
            self.field(&message, field, value, &at(name))?;
        }
        for name in strange {
            map.remove(&name);
            self.unknown.push(at(&name));
        }
        Ok(())
    }

    fn field(
        &mut self,
        message: &str,
        field: &Field,
        value: &mut Value,
        path: &str,
    ) -> Result<(), TypeMismatch> {
        let wrong = |value: &Value, expected: String| {
            let short = message.rsplit('.').next().unwrap_or_default();
            TypeMismatch(format!(
                "json: cannot unmarshal {} into Go struct field {short}.{path} of type {expected}",
                json_type(value)
            ))
        };
        match (field.shape, value) {
            (_, Value::Null) => Ok(()),
            (Cardinality::One, value) => self.check_value(message, field, value, path, &wrong),
            (Cardinality::List, Value::Array(items)) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.check_value(message, field, item, &format!("{path}[{index}]"), &wrong)?;
                }
                Ok(())
            }
            (Cardinality::Map, Value::Object(entries)) => {
                for (key, item) in entries.iter_mut() {
                    self.check_value(message, field, item, &format!("{path}.{key}"), &wrong)?;
                }
                Ok(())
            }
            (Cardinality::List, value) => Err(wrong(value, format!("[]{}", go_type(field.kind)))),
            (Cardinality::Map, value) => {
                let expected = format!("map[string]{}", go_type(field.kind));
                Err(wrong(value, expected))
            }
        }
    }

    fn check_value(
        &mut self,
        message: &str,
        field: &Field,
        value: &mut Value,
        path: &str,
        wrong: &dyn Fn(&Value, String) -> TypeMismatch,
    ) -> Result<(), TypeMismatch> {
        let fits = match field.kind {
            "string" | "bytes" | "time" | "microtime" => value.is_string(),
            "bool" => value.is_boolean(),
            "int32" | "int64" => value.is_i64() || value.is_u64(),
            "quantity" | "intstr" => value.is_string() || value.is_number(),
            "raw" | "rawfields" => true,
            kind => {
                let name = protobuf::resolved(message, kind);
                let Some(fields) = protobuf::fields(&name) else {
                    return Ok(());
                };
                if protobuf::is_list(fields) {
                    value.is_array()
                } else if value.is_object() {
                    return self.object(&name, fields, value, path);
                } else {
                    false
                }
            }
        };
        if fits || value.is_null() {
            Ok(())
        } else {
            Err(wrong(value, go_type(field.kind)))
        }
    }
}

/// A field by its name, including those of inlined messages.
fn find<'a>(message: &str, fields: &'a [Field], name: &str) -> Option<(String, &'a Field)> {
    fields.iter().find_map(|field| {
        if !field.is_inline() {
            return (field.name == name).then(|| (message.to_owned(), field));
        }
        let inner = protobuf::resolved(message, field.kind);
        find(&inner, protobuf::fields(&inner)?, name)
    })
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// `int32`, `v1.Container`
fn go_type(kind: &str) -> String {
    match kind {
        "time" => "v1.Time".to_owned(),
        "microtime" => "v1.MicroTime".to_owned(),
        "bytes" => "[]uint8".to_owned(),
        kind if kind.starts_with(|it: char| it.is_ascii_lowercase()) && !kind.contains('.') => {
            kind.to_owned()
        }
        kind => format!("v1.{}", kind.rsplit('.').next().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_are_removed_and_reported() {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "extra": 1, "labels": {"any": "thing"}},
            "spec": {
                "containers": [{"name": "c", "imagee": "x", "livenessProbe": {"exec": {}}}],
                "volumes": [{"name": "v", "emptyDir": {}}],
                "nodeSelector": {"a": "b"},
            },
            "stats": {},
        });
        let unknown = prune("v1", "Pod", &mut pod).unwrap();
        assert_eq!(
            unknown,
            ["metadata.extra", "spec.containers[0].imagee", "stats"]
        );
        assert_eq!(
            pod,
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "web", "labels": {"any": "thing"}},
                "spec": {
                    "containers": [{"name": "c", "livenessProbe": {"exec": {}}}],
                    "volumes": [{"name": "v", "emptyDir": {}}],
                    "nodeSelector": {"a": "b"},
                },
            })
        );
    }

    #[test]
    fn values_must_have_the_type_of_their_field() {
        let rows = [
            (
                "v1",
                "ConfigMap",
                json!({"data": {"a": 1}}),
                "json: cannot unmarshal number into Go struct field ConfigMap.data of type \
                 string",
            ),
            (
                "apps/v1",
                "Deployment",
                json!({"spec": {"replicas": "two"}}),
                "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas \
                 of type int32",
            ),
            (
                "v1",
                "Pod",
                json!({"spec": {"containers": {}}}),
                "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of \
                 type []v1.Container",
            ),
        ];
        for (api_version, kind, mut object, expected) in rows {
            let wrong = prune(api_version, kind, &mut object).unwrap_err();
            assert_eq!(wrong.0, expected);
        }
        for (api_version, kind, mut object) in [
            (
                "v1",
                "Service",
                json!({"spec": {"ports": [{"port": 1, "targetPort": "http"}]}}),
            ),
            ("v1", "ConfigMap", json!({"data": null})),
            ("example.com/v1", "Gizmo", json!({"anything": [1, {}]})),
            (
                "authorization.k8s.io/v1",
                "SubjectAccessReview",
                json!({"spec": {"extra": {"a": ["b"]}}}),
            ),
            (
                "v1",
                "Pod",
                json!({"spec": {"volumes": [{"projected": {"sources": [
                    {"downwardAPI": {"items": [{"path": "labels"}]}},
                ]}}]}}),
            ),
        ] {
            let before = object.clone();
            assert_eq!(prune(api_version, kind, &mut object), Ok(vec![]));
            assert_eq!(object, before);
        }
    }
}
