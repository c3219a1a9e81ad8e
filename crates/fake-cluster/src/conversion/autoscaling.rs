//! `autoscaling/v1`, which has one metric: CPU utilization. As in kube-apiserver, all others are
//! in annotations, with the field names of the alpha API.

use serde_json::{Map, Value, json};

pub(super) const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// Kinds of metrics, and the field of each.
const KINDS: [(&str, &str); 5] = [
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
    ("Pods", "pods"),
    ("Object", "object"),
    ("External", "external"),
];

/// Target values of the spec, or current values of the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MetricSide {
    Target,
    Current,
}

impl MetricSide {
    /// The field name in `v2`.
    fn field(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Current => "current",
        }
    }
}

/// From `v2`.
pub(super) fn to_v1(value: &mut Value) {
    let mut notes = Map::new();
    if let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) {
        let metrics = take_list(spec, "metrics");
        let busy = metrics.iter().find_map(|it| cpu(it, MetricSide::Target));
        let others = metrics
            .iter()
            .filter(|it| cpu(it, MetricSide::Target).is_none());
        let others: Vec<_> = others.map(|it| simple(it, MetricSide::Target)).collect();
        if let Some(busy) = busy {
            spec.insert("targetCPUUtilizationPercentage".to_owned(), busy);
        }
        set_annotation(&mut notes, METRICS, &others.into());
        if let Some(behavior) = spec.remove("behavior") {
            set_annotation(&mut notes, BEHAVIOR, &with_keys(behavior, upper_case));
        }
    }
    if let Some(status) = value.get_mut("status").and_then(Value::as_object_mut) {
        let metrics = take_list(status, "currentMetrics");
        if let Some(busy) = metrics.iter().find_map(|it| cpu(it, MetricSide::Current)) {
            status.insert("currentCPUUtilizationPercentage".to_owned(), busy);
        }
        let all: Vec<_> = metrics
            .iter()
            .map(|it| simple(it, MetricSide::Current))
            .collect();
        set_annotation(&mut notes, CURRENT, &all.into());
        set_annotation(
            &mut notes,
            CONDITIONS,
            &take_list(status, "conditions").into(),
        );
    }
    if notes.is_empty() {
        return;
    }
    let annotations = &mut value["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.extend(notes);
    }
}

/// To `v2`.
pub(super) fn from_v1(value: &mut Value) {
    let mut notes = take_annotations(value);
    let mut list = |name: &str| take_list(&mut notes, name);
    let (metrics, current, conditions) = (list(METRICS), list(CURRENT), list(CONDITIONS));
    if let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) {
        let busy = spec.remove("targetCPUUtilizationPercentage");
        let busy = busy.filter(Value::is_number).map(|percent| {
            json!({"type": "Resource", "resource": {
                "name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent},
            }})
        });
        let others = metrics.iter().map(|it| to_v2(it, MetricSide::Target));
        put(spec, "metrics", others.chain(busy).collect());
        if let Some(behavior) = notes.remove(BEHAVIOR) {
            spec.insert("behavior".to_owned(), with_keys(behavior, lower_case));
        }
    }
    if let Some(status) = value.get_mut("status").and_then(Value::as_object_mut) {
        let busy = status.remove("currentCPUUtilizationPercentage");
        let busy = busy.filter(|it| it.is_number() && current.is_empty());
        let busy = busy.map(|percent| {
            json!({"type": "Resource", "resource": {
                "name": "cpu", "current": {"averageUtilization": percent},
            }})
        });
        let all = current.iter().map(|it| to_v2(it, MetricSide::Current));
        put(
            status,
            "currentMetrics",
            busy.into_iter().chain(all).collect(),
        );
        put(status, "conditions", conditions);
    }
}

/// Removes and parses the annotations with metrics.
fn take_annotations(value: &mut Value) -> Map<String, Value> {
    let mut notes = Map::new();
    let metadata = value.get_mut("metadata").and_then(Value::as_object_mut);
    let Some(metadata) = metadata else {
        return notes;
    };
    let all = metadata.get_mut("annotations");
    let Some(all) = all.and_then(Value::as_object_mut) else {
        return notes;
    };
    for name in [METRICS, CURRENT, CONDITIONS, BEHAVIOR] {
        // Invalid annotations are dropped, as by kube-apiserver.
        let text = all.remove(name);
        let text = text.as_ref().and_then(Value::as_str).unwrap_or_default();
        if let Ok(read) = serde_json::from_str(text) {
            notes.insert(name.to_owned(), read);
        }
    }
    if all.is_empty() {
        metadata.remove("annotations");
    }
    notes
}

fn take_list(fields: &mut Map<String, Value>, name: &str) -> Vec<Value> {
    match fields.remove(name) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

fn put(fields: &mut Map<String, Value>, name: &str, items: Vec<Value>) {
    if !items.is_empty() {
        fields.insert(name.to_owned(), items.into());
    }
}

/// Writes an annotation, unless the list is empty.
fn set_annotation(notes: &mut Map<String, Value>, name: &str, value: &Value) {
    if *value != json!([]) {
        notes.insert(name.to_owned(), value.to_string().into());
    }
}

/// The CPU utilization, for which `v1` has a field.
fn cpu(metric: &Value, of: MetricSide) -> Option<Value> {
    let resource = metric.get("resource")?;
    let is_cpu = metric["type"] == "Resource" && resource["name"] == "cpu";
    let percent = &resource[of.field()]["averageUtilization"];
    (is_cpu && percent.is_number()).then(|| percent.clone())
}

/// The field names of `v2`, and those in an annotation, by the kind of the metric.
fn names(kind: &str, of: MetricSide) -> &'static [(&'static str, &'static str)] {
    match (kind, of) {
        ("resource" | "containerResource", MetricSide::Target) => &[
            ("averageUtilization", "targetAverageUtilization"),
            ("averageValue", "targetAverageValue"),
        ],
        ("resource" | "containerResource", MetricSide::Current) => &[
            ("averageUtilization", "currentAverageUtilization"),
            ("averageValue", "currentAverageValue"),
        ],
        ("pods", MetricSide::Target) => &[("averageValue", "targetAverageValue")],
        ("pods", MetricSide::Current) => &[("averageValue", "currentAverageValue")],
        ("object", MetricSide::Target) => {
            &[("value", "targetValue"), ("averageValue", "averageValue")]
        }
        ("object", MetricSide::Current) => {
            &[("value", "currentValue"), ("averageValue", "averageValue")]
        }
        ("external", MetricSide::Target) => &[
            ("value", "targetValue"),
            ("averageValue", "targetAverageValue"),
        ],
        ("external", MetricSide::Current) => &[
            ("value", "currentValue"),
            ("averageValue", "currentAverageValue"),
        ],
        _ => &[],
    }
}

/// The field of a metric's selector in an annotation.
fn selector(kind: &str) -> &'static str {
    if kind == "external" {
        "metricSelector"
    } else {
        "selector"
    }
}

fn kind_of(metric: &Value) -> Option<(&'static str, &Value)> {
    let (_, field) = KINDS
        .into_iter()
        .find(|(kind, _)| metric["type"] == *kind)?;
    Some((field, metric.get(field)?))
}

/// A metric of `v2` as in an annotation.
fn simple(metric: &Value, of: MetricSide) -> Value {
    let Some((kind, source)) = kind_of(metric) else {
        return json!({"type": metric["type"]});
    };
    let mut out = Map::new();
    for (name, value) in source.as_object().into_iter().flatten() {
        match name.as_str() {
            "metric" => {
                out.insert("metricName".to_owned(), value["name"].clone());
                if let Some(selecting) = value.get("selector") {
                    out.insert(selector(kind).to_owned(), selecting.clone());
                }
            }
            "describedObject" => drop(out.insert("target".to_owned(), value.clone())),
            name if name == of.field() => {
                for (modern, simple) in names(kind, of) {
                    if let Some(value) = value.get(modern) {
                        out.insert((*simple).to_owned(), value.clone());
                    }
                }
            }
            name => drop(out.insert(name.to_owned(), value.clone())),
        }
    }
    json!({"type": metric["type"], kind: out})
}

/// A metric of an annotation, converted to `v2`.
fn to_v2(metric: &Value, of: MetricSide) -> Value {
    let Some((kind, source)) = kind_of(metric) else {
        return json!({"type": metric["type"]});
    };
    let mut out = Map::new();
    let mut values = Map::new();
    let mut named = Map::new();
    for (name, value) in source.as_object().into_iter().flatten() {
        let number = names(kind, of).iter().find(|(_, simple)| simple == name);
        if let Some((modern, _)) = number {
            values.insert((*modern).to_owned(), value.clone());
        } else if name == "metricName" {
            named.insert("name".to_owned(), value.clone());
        } else if name == selector(kind) {
            named.insert("selector".to_owned(), value.clone());
        } else if name == "target" {
            out.insert("describedObject".to_owned(), value.clone());
        } else {
            out.insert(name.clone(), value.clone());
        }
    }
    if of == MetricSide::Target {
        let how = ["averageUtilization", "averageValue", "value"];
        let how = how.into_iter().find(|it| values.contains_key(*it));
        let how = match how {
            Some("averageUtilization") => "Utilization",
            Some("averageValue") => "AverageValue",
            _ => "Value",
        };
        values.insert("type".to_owned(), how.into());
    }
    if !named.is_empty() {
        out.insert("metric".to_owned(), named.into());
    }
    out.insert(of.field().to_owned(), values.into());
    json!({"type": metric["type"], kind: out})
}

/// In the annotation, the behaviour has the names of Go's structures.
fn with_keys(value: Value, rename: fn(char) -> char) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| {
                let mut letters = name.chars();
                let first = letters.next().map(rename);
                let name = first.into_iter().chain(letters).collect();
                (name, with_keys(value, rename))
            });
            Value::Object(fields.collect())
        }
        Value::Array(items) => items.into_iter().map(|it| with_keys(it, rename)).collect(),
        other => other,
    }
}

fn upper_case(letter: char) -> char {
    letter.to_ascii_uppercase()
}

fn lower_case(letter: char) -> char {
    letter.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_metric_is_a_field_in_v1() {
        let v1 = json!({"metadata": {"name": "web"}, "spec": {
            "maxReplicas": 5, "scaleTargetRef": {"kind": "Deployment", "name": "web"},
            "targetCPUUtilizationPercentage": 80,
        }});
        let v2 = json!({"metadata": {"name": "web"}, "spec": {
            "maxReplicas": 5, "scaleTargetRef": {"kind": "Deployment", "name": "web"},
            "metrics": [{"type": "Resource", "resource": {
                "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80},
            }}],
        }});
        let mut converted = v1.clone();
        from_v1(&mut converted);
        assert_eq!(converted, v2);
        to_v1(&mut converted);
        assert_eq!(converted, v1);
    }

    #[test]
    fn other_metrics_round_trip_through_annotations() {
        let labels = json!({"matchLabels": {"a": "b"}});
        let target = json!({"kind": "Ingress", "name": "main"});
        let v2 = json!({
            "metadata": {"name": "web", "annotations": {"mine": "too"}},
            "spec": {
                "maxReplicas": 5,
                "metrics": [
                    {"type": "Resource", "resource": {
                        "name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"},
                    }},
                    {"type": "ContainerResource", "containerResource": {
                        "name": "cpu", "container": "c",
                        "target": {"type": "Utilization", "averageUtilization": 7},
                    }},
                    {"type": "Pods", "pods": {
                        "metric": {"name": "hits", "selector": labels},
                        "target": {"type": "AverageValue", "averageValue": "1k"},
                    }},
                    {"type": "Object", "object": {
                        "metric": {"name": "hits"}, "describedObject": target,
                        "target": {"type": "Value", "value": "10k"},
                    }},
                    {"type": "External", "external": {
                        "metric": {"name": "queue", "selector": labels},
                        "target": {"type": "AverageValue", "averageValue": "30"},
                    }},
                    {"type": "Resource", "resource": {
                        "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 8},
                    }},
                ],
                "behavior": {"scaleDown": {
                    "stabilizationWindowSeconds": 300, "policies": [
                        {"type": "Percent", "value": 100, "periodSeconds": 15},
                    ],
                }},
            },
            "status": {
                "currentReplicas": 1,
                "currentMetrics": [{"type": "Resource", "resource": {
                    "name": "cpu", "current": {"averageUtilization": 9, "averageValue": "5m"},
                }}],
                "conditions": [{"type": "AbleToScale", "status": "True"}],
            },
        });
        let mut seen = v2.clone();
        to_v1(&mut seen);
        assert_eq!(
            seen["spec"],
            json!({"maxReplicas": 5, "targetCPUUtilizationPercentage": 8})
        );
        assert_eq!(
            seen["status"],
            json!({"currentReplicas": 1, "currentCPUUtilizationPercentage": 9})
        );
        let noted = |name: &str| -> Value {
            let text = seen["metadata"]["annotations"][name].as_str().unwrap();
            serde_json::from_str(text).unwrap()
        };
        let metrics = noted(METRICS);
        assert_eq!(
            metrics[0],
            json!({"type": "Resource", "resource": {
                "name": "memory", "targetAverageValue": "1Gi",
            }})
        );
        assert_eq!(
            metrics[3],
            json!({"type": "Object", "object": {
                "metricName": "hits", "target": target, "targetValue": "10k",
            }})
        );
        assert_eq!(
            noted(CURRENT)[0]["resource"],
            json!({"name": "cpu", "currentAverageUtilization": 9, "currentAverageValue": "5m"})
        );
        assert_eq!(
            noted(BEHAVIOR)["ScaleDown"]["Policies"][0]["PeriodSeconds"],
            15
        );
        from_v1(&mut seen);
        assert_eq!(seen, v2);
    }
}
