//! `--config`: a file with the flags of `serve`, strictly parsed.
//!
//! The file has the form of Kubernetes' component configurations: `apiVersion`, `kind`, and one
//! key for each flag. Values are parsed by the parsers of the flags, so that a flag and its key
//! cannot differ.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

use super::flag_definitions::{Arity, FlagDefinition};
use crate::flag_values::Parsed;
use crate::similar_names::similar_names;

pub(crate) const API_VERSION: &str = "skewbridge.io/v1alpha1";
pub(crate) const KIND: &str = "BridgeConfiguration";

/// The flags that a file sets.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct BridgeConfiguration {
    pub(crate) settings: Vec<Setting>,
}

/// A flag and its values.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) flag: String,
    pub(crate) values: Vec<String>,
}

/// Parses the content of a file, or reports all of its errors.
pub(crate) fn parse(
    text: &str,
    definitions: &[FlagDefinition],
) -> Result<BridgeConfiguration, Vec<String>> {
    // `on` and `off` are values of flags, and booleans only in YAML 1.1.
    let options = serde_saphyr::options! { strict_booleans: true };
    let Document(entries) = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| vec![error.without_snippet().to_string()])?;
    let mut problems = Vec::new();
    let mut configuration = BridgeConfiguration::default();
    for (name, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let found = entries.iter().find(|(key, _)| key == name);
        match found.map(|(_, value)| value) {
            Some(Value::Scalar(found)) if found == expected => {}
            Some(Value::Scalar(found)) => {
                problems.push(format!(
                    "{name} {found:?} is not supported; write {expected}"
                ));
            }
            _ => problems.push(format!("has no {name}; write {name}: {expected}")),
        }
    }
    let settings = (entries.into_iter()).filter(|(key, _)| key != "apiVersion" && key != "kind");
    for (key, value) in settings {
        match setting(&key, value, definitions) {
            Ok(setting) => configuration.settings.push(setting),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() {
        Ok(configuration)
    } else {
        Err(problems)
    }
}

fn setting(key: &str, value: Value, definitions: &[FlagDefinition]) -> Parsed<Setting> {
    let definition = (definitions.iter())
        .find(|it| it.key == key)
        .ok_or_else(|| unknown(key, definitions))?;
    let values = match (value, definition.arity) {
        (Value::Null, _) => return Err(format!("{key} has no value; set one or omit the key")),
        (Value::Scalar(value), _) => vec![value],
        (Value::Map(gates), Arity::List) if key == "featureGates" => (gates.into_iter())
            .map(|(gate, value)| format!("{gate}={value}"))
            .collect(),
        (Value::Map(_), _) => {
            return Err(format!("{key} is a map; write {}", expected(definition)));
        }
        (Value::List(_), Arity::One) => {
            return Err(format!("{key} is a list; write {}", expected(definition)));
        }
        (Value::List(values), Arity::JoinedList) => vec![values.join(",")],
        // As `--flag=` on a command line: an empty list, which is not the default.
        (Value::List(values), Arity::List) if values.is_empty() => vec![String::new()],
        (Value::List(values), Arity::List) => values,
    };
    Ok(Setting {
        flag: definition.name.clone(),
        values,
    })
}

fn expected(definition: &FlagDefinition) -> &'static str {
    match definition.arity {
        Arity::One => "one value",
        Arity::List | Arity::JoinedList => "a list of values",
    }
}

fn unknown(key: &str, definitions: &[FlagDefinition]) -> String {
    // A flag name, which is what administrators copy.
    let name = key.trim_start_matches('-');
    if let Some(flag) = definitions.iter().find(|it| it.name == name) {
        return format!("{key} is not a key; write {}", flag.key);
    }
    let keys = definitions.iter().map(|it| it.key.as_str());
    match similar_names(key, keys).as_slice() {
        [] => format!(
            "{key} is not a key; the keys are the flags of skewbridge serve --help, written like \
             tlsCertFile"
        ),
        similar => format!("{key} is not a key; similar keys: {}", similar.join(", ")),
    }
}

/// The keys and values of a file, in its order. serde-saphyr refuses duplicate keys.
#[derive(Debug)]
struct Document(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(DocumentVisitor).map(Self)
    }
}

/// Reads a map in the order of the file.
struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Vec<(String, Value)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(entries)
    }
}

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Null,
    Scalar(String),
    List(Vec<String>),
    Map(Vec<(String, String)>),
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

/// Keeps scalars as text, for the parser of the flag.
struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(item) = items.next_element::<Value>()? {
            values.push(scalar(item)?);
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, Value>()? {
            entries.push((key, scalar(value)?));
        }
        Ok(Value::Map(entries))
    }
}

fn scalar<E: serde::de::Error>(value: Value) -> Result<String, E> {
    match value {
        Value::Scalar(text) => Ok(text),
        Value::Null => Err(E::custom("an item of a list or map has no value")),
        Value::List(_) | Value::Map(_) => Err(E::custom("lists and maps are not nested here")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::flag_definitions;
    use super::*;

    const HEAD: &str = "apiVersion: skewbridge.io/v1alpha1\nkind: BridgeConfiguration\n";

    fn settings(text: &str) -> Result<Vec<(String, Vec<String>)>, Vec<String>> {
        let parsed = parse(&format!("{HEAD}{text}"), &flag_definitions::all())?;
        let settings = parsed.settings.into_iter();
        Ok(settings.map(|it| (it.flag, it.values)).collect())
    }

    #[test]
    fn values_reach_their_flags_as_text() {
        let rows: [(&str, &str, &[&str]); 16] = [
            ("securePort: 6443", "secure-port", &["6443"]),
            ("securePort: \"6443\"", "secure-port", &["6443"]),
            ("v: 2", "v", &["2"]),
            ("goawayChance: 0.001", "goaway-chance", &["0.001"]),
            ("bindAddress: 10.0.0.11", "bind-address", &["10.0.0.11"]),
            ("bindAddress: '::'", "bind-address", &["::"]),
            ("guardAdmission: on", "guard-admission", &["on"]),
            ("guardAdmission: off", "guard-admission", &["off"]),
            ("guardComponents: off", "guard-components", &["off"]),
            ("idleTimeout: 1m30s", "idle-timeout", &["1m30s"]),
            ("maxBufferedBytes: 256Mi", "max-buffered-bytes", &["256Mi"]),
            (
                "upstream: https://127.0.0.1:6443",
                "upstream",
                &["https://127.0.0.1:6443"],
            ),
            (
                "upstream:\n- https://10.0.0.11:6443\n- https://10.0.0.12:6443",
                "upstream",
                &["https://10.0.0.11:6443", "https://10.0.0.12:6443"],
            ),
            ("bridgeGroups: []", "bridge-groups", &[""]),
            (
                "peerRegistry: [etcd, endpoints]",
                "peer-registry",
                &["etcd,endpoints"],
            ),
            (
                "featureGates:\n  CompleteDiscovery: false\n  PortForwardWebsockets: true",
                "feature-gates",
                &["CompleteDiscovery=false", "PortForwardWebsockets=true"],
            ),
        ];
        for (text, flag, values) in rows {
            let expected = vec![(
                flag.to_owned(),
                values.iter().map(ToString::to_string).collect(),
            )];
            assert_eq!(settings(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn every_error_names_the_key_and_what_to_write() {
        let rows = [
            (
                "guardFeilds: all",
                "guardFeilds is not a key; similar keys: guardFields",
            ),
            (
                "tls-cert-file: a",
                "tls-cert-file is not a key; write tlsCertFile",
            ),
            (
                "--secure-port: 1",
                "--secure-port is not a key; write securePort",
            ),
            (
                "config: a",
                "config is not a key; the keys are the flags of skewbridge serve",
            ),
            ("dryRun: true", "dryRun is not a key"),
            (
                "securePort:",
                "securePort has no value; set one or omit the key",
            ),
            ("securePort: [1]", "securePort is a list; write one value"),
            ("securePort: {a: 1}", "securePort is a map; write one value"),
            (
                "upstream: {a: 1}",
                "upstream is a map; write a list of values",
            ),
            ("upstream: [[a]]", "not nested"),
            ("upstream: [~]", "has no value"),
        ];
        for (text, expected) in rows {
            let problems = settings(text).expect_err(text);
            assert!(
                problems.join("\n").contains(expected),
                "{text}: {problems:?}"
            );
        }
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        let text = "apiVersion: v1\nsecurePort: [1]\nguardFeilds: all\n";
        let problems = parse(text, &flag_definitions::all()).expect_err(text);
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert!(problems[0].contains("apiVersion \"v1\" is not supported"));
        assert!(problems[1].contains("has no kind; write kind: BridgeConfiguration"));
    }

    #[test]
    fn duplicate_keys_and_other_documents_are_errors() {
        for text in ["v: 1\nv: 2", "v: 1\n---\nv: 2", "- a", "v: [1"] {
            assert!(settings(text).is_err(), "{text}");
        }
        assert!(parse("just text", &flag_definitions::all()).is_err());
    }
}
