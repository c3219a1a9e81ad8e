//! Field selectors: `metadata.name=web,status.phase!=Running`, by those fields that
//! kube-apiserver has for a kind.

use serde_json::Value;

use crate::object::Object;
use crate::status::quoted;

/// Requirements on fields, all of which must match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<Term>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    field: String,
    comparison: Comparison,
    value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Same,
    Different,
}

impl FieldSelector {
    /// Parses a selector for objects of a kind. The error is kube-apiserver's message.
    pub fn parse(text: &str, group: &str, kind: &str) -> Result<Self, String> {
        let mut parts = split(text);
        parts.sort_unstable();
        let mut terms = Vec::new();
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let term = Term::parse(part)?;
            let term = term
                .ok_or_else(|| format!("invalid selector: '{text}'; can't understand '{part}'"))?;
            terms.push(term);
        }
        for term in &mut terms {
            term.field = known(group, kind, &term.field)?;
        }
        Ok(Self(terms))
    }

    /// Whether it matches an object.
    pub fn matches(&self, object: &Object) -> bool {
        self.0.iter().all(|term| {
            let same = value(object, &term.field) == term.value;
            same == (term.comparison == Comparison::Same)
        })
    }

    /// Whether it matches all objects.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// The name that it requires, if it does.
    pub fn name(&self) -> Option<&str> {
        let mut terms = self.0.iter();
        let term =
            terms.find(|it| it.field == "metadata.name" && it.comparison == Comparison::Same)?;
        Some(&term.value)
    }
}

impl Term {
    /// `None` without an operator.
    fn parse(text: &str) -> Result<Option<Self>, String> {
        let operators = [
            ("!=", Comparison::Different),
            ("==", Comparison::Same),
            ("=", Comparison::Same),
        ];
        // The first occurrence of any operator.
        for (at, _) in text.char_indices() {
            for (operator, comparison) in operators {
                if let Some(value) = text[at..].strip_prefix(operator) {
                    return Ok(Some(Self {
                        field: text[..at].to_owned(),
                        comparison,
                        value: unescape(value)?,
                    }));
                }
            }
        }
        Ok(None)
    }
}

/// Splits at commas that are not escaped.
fn split(text: &str) -> Vec<&str> {
    let mut escaped = false;
    text.split(|character| {
        let separates = character == ',' && !escaped;
        escaped = character == '\\' && !escaped;
        separates
    })
    .collect()
}

fn unescape(value: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(escaped @ ('\\' | ',' | '=')) => plain.push(escaped),
                other => {
                    let sequence: String = ['\\'].into_iter().chain(other).collect();
                    return Err(format!(
                        "invalid field selector: invalid escape sequence: {sequence}"
                    ));
                }
            },
            // Go prints the code point.
            ',' | '=' => {
                return Err(format!(
                    "invalid field selector: unescaped character in value: {}",
                    u32::from(character)
                ));
            }
            _ => plain.push(character),
        }
    }
    Ok(plain)
}

/// The stored field, if objects of this kind can be selected by it.
fn known(group: &str, kind: &str, field: &str) -> Result<String, String> {
    let further: &[&str] = match (group, kind) {
        ("", "Pod") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "spec.host",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ("", "Node") => &["spec.unschedulable"],
        ("", "Namespace") => &["status.phase"],
        ("", "Secret") => &["type"],
        ("", "Service") => &["spec.clusterIP", "spec.type"],
        ("", "ReplicationController") => &["status.replicas"],
        ("events.k8s.io", "Event") => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        ("", "Event") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("batch", "Job") => &["status.successful"],
        ("certificates.k8s.io", "CertificateSigningRequest") => &["spec.signerName"],
        _ => &[],
    };
    let in_no_namespace = matches!((group, kind), ("", "Node" | "Namespace"));
    match field {
        "spec.host" if further.contains(&field) => Ok("spec.nodeName".to_owned()),
        "metadata.namespace" if in_no_namespace => {
            Err(format!("field label not supported: {field}"))
        }
        "metadata.name" | "metadata.namespace" => Ok(field.to_owned()),
        // The stored form has other names for these fields.
        "reportingController" if further.contains(&field) => Ok("reportingComponent".to_owned()),
        _ if further.contains(&field) && field.starts_with("regarding.") => {
            Ok(field.replacen("regarding", "involvedObject", 1))
        }
        _ if further.contains(&field) => Ok(field.to_owned()),
        _ if further.is_empty() => Err(format!(
            "{} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            quoted(field)
        )),
        _ => Err(format!("field label not supported: {field}")),
    }
}

fn value(object: &Object, field: &str) -> String {
    let path: Vec<&str> = match field {
        "source" => vec!["source", "component"],
        "status.successful" => vec!["status", "succeeded"],
        _ => field.split('.').collect(),
    };
    let found = match (field, object.at(&path)) {
        // events.k8s.io has other names for these fields.
        ("reportingComponent", None) => object.at(&["reportingController"]),
        (field, None) if field.starts_with("involvedObject.") => object.at(&["regarding", path[1]]),
        (_, found) => found,
    };
    match found {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(true)) => "true".to_owned(),
        Some(Value::Number(number)) => number.to_string(),
        _ if matches!(field, "spec.unschedulable" | "spec.hostNetwork") => "false".to_owned(),
        _ if matches!(field, "status.successful" | "status.replicas") => "0".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_selected_by_the_fields_of_their_kind() {
        let pod = Object::new(json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Running"},
        }))
        .unwrap();
        let event = Object::new(json!({
            "metadata": {"name": "e"},
            "involvedObject": {"kind": "Pod", "name": "a,b"},
            "source": {"component": "kubelet"},
        }))
        .unwrap();
        let later = Object::new(json!({"regarding": {"kind": "Pod"}})).unwrap();
        let rows = [
            ("Pod", &pod, "", true),
            ("Pod", &pod, "metadata.name=web", true),
            (
                "Pod",
                &pod,
                "metadata.name==web,metadata.namespace!=other",
                true,
            ),
            ("Pod", &pod, "status.phase!=Running", false),
            ("Pod", &pod, "spec.nodeName=n1,", true),
            ("Pod", &pod, "spec.host=n1", true),
            ("Pod", &pod, "spec.hostNetwork=false", true),
            ("Pod", &pod, "spec.schedulerName=", true),
            (
                "Event",
                &event,
                "involvedObject.kind=Pod,source=kubelet",
                true,
            ),
            ("Event", &event, r"involvedObject.name=a\,b", true),
            ("Event", &later, "involvedObject.kind=Pod", true),
            ("Node", &pod, "spec.unschedulable=false", true),
        ];
        for (kind, object, selector, expected) in rows {
            let fields = FieldSelector::parse(selector, "", kind).unwrap();
            assert_eq!(fields.matches(object), expected, "{selector}");
            assert_eq!(fields.is_everything(), selector.is_empty());
        }
        let named = FieldSelector::parse("metadata.name=web", "", "Pod").unwrap();
        assert_eq!(named.name(), Some("web"));
    }

    #[test]
    fn malformed_selectors_have_kube_apiservers_message() {
        let rows = [
            (
                "Pod",
                "web",
                "invalid selector: 'web'; can't understand 'web'",
            ),
            (
                "Pod",
                "spec.color=red",
                "field label not supported: spec.color",
            ),
            (
                "ConfigMap",
                "data.x=1",
                "\"data.x\" is not a known field selector: only \"metadata.name\", \
                 \"metadata.namespace\"",
            ),
            (
                "Node",
                "metadata.namespace=x",
                "field label not supported: metadata.namespace",
            ),
            (
                "Pod",
                r"metadata.name=a\b",
                r"invalid field selector: invalid escape sequence: \b",
            ),
            (
                "Pod",
                r"metadata.name=a\",
                r"invalid field selector: invalid escape sequence: \",
            ),
            (
                "Pod",
                "metadata.name=a=b",
                "invalid field selector: unescaped character in value: 61",
            ),
        ];
        for (kind, selector, expected) in rows {
            assert_eq!(
                FieldSelector::parse(selector, "", kind),
                Err(expected.to_owned())
            );
        }
    }

    proptest! {
        #[test]
        fn every_name_can_be_selected(name in "[a-z,=\\\\]{1,12}") {
            let escaped: String = (name.chars())
                .flat_map(|it| if it.is_ascii_lowercase() { vec![it] } else { vec!['\\', it] })
                .collect();
            let fields = FieldSelector::parse(&format!("metadata.name={escaped}"), "", "Pod");
            let fields = fields.unwrap();
            prop_assert_eq!(fields.name(), Some(&*name));
        }
    }
}
