//! Defaulting: the values that kube-apiserver fills in for fields that are not set.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::conversion;
use crate::object::Object;
use crate::status::{FieldError, FieldErrorKind, GroupResource};

/// Default target of an autoscaler, in percent of the request.
const DEFAULT_CPU_UTILIZATION: u8 = 80;

/// Fills in missing fields.
pub fn fill(resource: &GroupResource, object: &mut Object) {
    let mut value = object.value().clone();
    remove_unset_times(&mut value);
    let spec = &mut value["spec"];
    match (resource.group.as_str(), resource.resource.as_str()) {
        ("", "pods") => {
            pod_spec(spec);
            set_default(spec, "enableServiceLinks", json!(true));
            set_default(spec, "preemptionPolicy", json!("PreemptLowerPriority"));
            set_default(spec, "priority", json!(0));
            set_default(spec, "tolerations", json!([]));
            add_default_tolerations(spec);
        }
        ("", "services") => service(spec),
        ("", "secrets") => secret(&mut value),
        ("apps", kind) => workload(kind, spec),
        ("", "persistentvolumeclaims") => set_default(spec, "volumeMode", json!("Filesystem")),
        ("autoscaling", "horizontalpodautoscalers") => autoscaler(&mut value),
        ("batch", "jobs") => {
            set_default(spec, "completions", json!(1));
            set_default(spec, "parallelism", json!(1));
            set_default(spec, "backoffLimit", json!(6));
            set_default(spec, "completionMode", json!("NonIndexed"));
            set_default(spec, "suspend", json!(false));
            pod_spec(&mut spec["template"]["spec"]);
        }
        ("batch", "cronjobs") => cron_job(spec),
        _ => {}
    }
    // Indexing has created it.
    if let Some(fields) = value.as_object_mut()
        && fields.get("spec").is_some_and(Value::is_null)
    {
        fields.remove("spec");
    }
    // Defaulting keeps it a valid object.
    if let Ok(filled) = Object::new(value) {
        *object = filled;
    }
}

/// Go serialises unset times as null, also in templates.
fn remove_unset_times(value: &mut Value) {
    for at in [
        "/spec/template/metadata",
        "/spec/jobTemplate/metadata",
        "/spec/jobTemplate/spec/template/metadata",
    ] {
        let metadata = value.pointer_mut(at).and_then(Value::as_object_mut);
        if let Some(metadata) = metadata
            && metadata
                .get("creationTimestamp")
                .is_some_and(Value::is_null)
        {
            metadata.remove("creationTimestamp");
        }
    }
}

/// In any version: the default metric is CPU utilization.
fn autoscaler(value: &mut Value) {
    let noted = conversion::has_noted_metrics(&value["metadata"]["annotations"]);
    let is_v1 = value["apiVersion"] == "autoscaling/v1";
    let spec = &mut value["spec"];
    set_default(spec, "minReplicas", json!(1));
    if is_v1 && !noted {
        set_default(
            spec,
            "targetCPUUtilizationPercentage",
            json!(DEFAULT_CPU_UTILIZATION),
        );
    } else if !is_v1 {
        // An empty list is the same as none.
        if spec["metrics"].as_array().is_some_and(Vec::is_empty) {
            spec["metrics"] = Value::Null;
        }
        let target = json!({"type": "Utilization", "averageUtilization": DEFAULT_CPU_UTILIZATION});
        let resource = json!({"name": "cpu", "target": target});
        set_default(
            spec,
            "metrics",
            json!([{"type": "Resource", "resource": resource}]),
        );
    }
}

/// The default tolerations: a pod stays for five minutes on an unhealthy node.
fn add_default_tolerations(spec: &mut Value) {
    let Some(tolerations) = spec.get_mut("tolerations").and_then(Value::as_array_mut) else {
        return;
    };
    for key in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ] {
        let is_tolerated = |it: &Value| it["key"] == key || it["key"].is_null();
        if !tolerations.iter().any(is_tolerated) {
            tolerations.push(json!({
                "effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": 300,
            }));
        }
    }
}

/// The quality-of-service class of a pod.
pub(crate) fn quality_of_service(spec: &Value) -> &'static str {
    let containers = spec["containers"].as_array().into_iter().flatten();
    let resources: Vec<&Value> = containers.map(|it| &it["resources"]).collect();
    let has = |it: &Value, field: &str| it[field].as_object().is_some_and(|it| !it.is_empty());
    let is_guaranteed = |it: &&Value| {
        let limits = &it["limits"];
        ["cpu", "memory"].iter().all(|of| limits[of].is_string())
            && (!has(it, "requests") || it["requests"] == *limits)
    };
    if !resources
        .iter()
        .any(|it| has(it, "limits") || has(it, "requests"))
    {
        "BestEffort"
    } else if resources.iter().all(is_guaranteed) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Validation errors of an object with defaults; for a few kinds only.
pub fn errors(resource: &GroupResource, object: &Object) -> Vec<FieldError> {
    let at: &[&str] = match (resource.group.as_str(), resource.resource.as_str()) {
        ("", "pods") => &["spec"],
        ("", "services") => return service_errors(object),
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
        | ("batch", "jobs") => &["spec", "template", "spec"],
        _ => return Vec::new(),
    };
    let place = at.join(".");
    let mut errors = Vec::new();
    if resource.group == "apps" {
        errors.extend(selector_errors(object));
    }
    let containers = object.at(at).and_then(|spec| spec["containers"].as_array());
    let containers = containers.map_or(&[][..], Vec::as_slice);
    if containers.is_empty() {
        errors.push(FieldError::required(format!("{place}.containers"), ""));
    }
    for (index, container) in containers.iter().enumerate() {
        for field in ["name", "image"] {
            if container[field].as_str().unwrap_or_default().is_empty() {
                let field = format!("{place}.containers[{index}].{field}");
                errors.push(FieldError::required(field, ""));
            }
        }
    }
    errors
}

fn service_errors(object: &Object) -> Vec<FieldError> {
    let ports = object.at(&["spec", "ports"]).and_then(Value::as_array);
    let needs_none = object.text(&["spec", "type"]) == "ExternalName"
        || object.text(&["spec", "clusterIP"]) == "None";
    if needs_none || ports.is_some_and(|it| !it.is_empty()) {
        return Vec::new();
    }
    vec![FieldError::required("spec.ports", "")]
}

/// The selector of a workload must match the labels of its template.
fn selector_errors(object: &Object) -> Vec<FieldError> {
    let wanted = object.at(&["spec", "selector", "matchLabels"]);
    let expressions = object.at(&["spec", "selector", "matchExpressions"]);
    let labels = object.at(&["spec", "template", "metadata", "labels"]);
    let mut errors = Vec::new();
    if wanted.is_none() && expressions.is_none() {
        errors.push(FieldError::required("spec.selector", ""));
    }
    let wanted = wanted.and_then(Value::as_object);
    let is_made =
        |(key, value): (&String, &Value)| labels.and_then(|it| it.get(key)) == Some(value);
    if !wanted.is_some_and(|it| it.iter().all(is_made)) && expressions.is_none() {
        let labels = labels.map_or_else(|| "null".to_owned(), Value::to_string);
        errors.push(FieldError {
            field: "spec.template.metadata.labels".to_owned(),
            fault: FieldErrorKind::InvalidJson(
                labels,
                "`selector` does not match template `labels`".to_owned(),
            ),
        });
    }
    errors
}

/// Sets a field that is missing; does nothing if the parent is missing.
fn set_default(value: &mut Value, name: &str, default: Value) {
    if let Some(fields) = value.as_object_mut() {
        let value_in_place = fields.entry(name).or_insert(Value::Null);
        if value_in_place.is_null() {
            *value_in_place = default;
        }
    }
}

fn items<'a>(value: &'a mut Value, name: &str) -> impl Iterator<Item = &'a mut Value> {
    let list = value.get_mut(name).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

fn pod_spec(spec: &mut Value) {
    set_default(spec, "restartPolicy", json!("Always"));
    set_default(spec, "terminationGracePeriodSeconds", json!(30));
    set_default(spec, "dnsPolicy", json!("ClusterFirst"));
    set_default(spec, "securityContext", json!({}));
    set_default(spec, "schedulerName", json!("default-scheduler"));
    for list in ["containers", "initContainers"] {
        for container in items(spec, list) {
            let image = container["image"].as_str().unwrap_or_default();
            let policy = match image.rsplit('/').next().and_then(|it| it.split_once(':')) {
                _ if image.contains('@') => "IfNotPresent",
                Some((_, tag)) if tag != "latest" => "IfNotPresent",
                _ => "Always",
            };
            set_default(container, "imagePullPolicy", json!(policy));
            set_default(container, "resources", json!({}));
            set_default(
                container,
                "terminationMessagePath",
                json!("/dev/termination-log"),
            );
            set_default(container, "terminationMessagePolicy", json!("File"));
            for port in items(container, "ports") {
                set_default(port, "protocol", json!("TCP"));
            }
            for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
                if let Some(probe) = container.get_mut(name) {
                    set_default(probe, "timeoutSeconds", json!(1));
                    set_default(probe, "periodSeconds", json!(10));
                    set_default(probe, "successThreshold", json!(1));
                    set_default(probe, "failureThreshold", json!(3));
                }
            }
        }
    }
}

fn workload(kind: &str, spec: &mut Value) {
    let rolling = |values: Value| json!({"type": "RollingUpdate", "rollingUpdate": values});
    match kind {
        "deployments" => {
            set_default(spec, "replicas", json!(1));
            let values = json!({"maxUnavailable": "25%", "maxSurge": "25%"});
            set_default(spec, "strategy", rolling(values.clone()));
            if spec["strategy"] == json!({}) {
                spec["strategy"] = rolling(values);
            }
            set_default(spec, "revisionHistoryLimit", json!(10));
            set_default(spec, "progressDeadlineSeconds", json!(600));
        }
        "replicasets" => set_default(spec, "replicas", json!(1)),
        "statefulsets" => {
            let retain = json!({"whenDeleted": "Retain", "whenScaled": "Retain"});
            set_default(spec, "persistentVolumeClaimRetentionPolicy", retain);
            set_default(spec, "replicas", json!(1));
            set_default(spec, "podManagementPolicy", json!("OrderedReady"));
            set_default(spec, "updateStrategy", rolling(json!({"partition": 0})));
            set_default(spec, "revisionHistoryLimit", json!(10));
        }
        "daemonsets" => {
            let values = json!({"maxUnavailable": 1, "maxSurge": 0});
            set_default(spec, "updateStrategy", rolling(values));
            set_default(spec, "revisionHistoryLimit", json!(10));
        }
        _ => return,
    }
    if let Some(template) = spec.get_mut("template").and_then(|it| it.get_mut("spec")) {
        pod_spec(template);
    }
}

fn cron_job(spec: &mut Value) {
    set_default(spec, "concurrencyPolicy", json!("Allow"));
    set_default(spec, "successfulJobsHistoryLimit", json!(3));
    set_default(spec, "failedJobsHistoryLimit", json!(1));
    set_default(spec, "suspend", json!(false));
    let Some(template) = spec.get_mut("jobTemplate") else {
        return;
    };
    set_default(template, "metadata", json!({}));
    if let Some(template) = template["spec"].get_mut("template") {
        set_default(template, "metadata", json!({}));
        pod_spec(&mut template["spec"]);
    }
}

fn service(spec: &mut Value) {
    set_default(spec, "type", json!("ClusterIP"));
    set_default(spec, "sessionAffinity", json!("None"));
    if spec["type"] != "ExternalName" {
        set_default(spec, "internalTrafficPolicy", json!("Cluster"));
        set_default(spec, "ipFamilies", json!(["IPv4"]));
        set_default(spec, "ipFamilyPolicy", json!("SingleStack"));
        if let Some(address) = spec["clusterIP"].as_str().filter(|it| !it.is_empty()) {
            let addresses = json!([address]);
            set_default(spec, "clusterIPs", addresses);
        }
    }
    for port in items(spec, "ports") {
        set_default(port, "protocol", json!("TCP"));
        let number = port["port"].clone();
        // The form in which protobuf clients encode no value.
        if port["targetPort"] == json!(0) {
            port["targetPort"] = Value::Null;
        }
        set_default(port, "targetPort", number);
    }
}

/// `stringData` is merged into `data`, and removed.
fn secret(value: &mut Value) {
    set_default(value, "type", json!("Opaque"));
    let Some(fields) = value.as_object_mut() else {
        return;
    };
    if let Some(Value::Object(texts)) = fields.remove("stringData") {
        let data = fields.entry("data").or_insert_with(|| json!({}));
        if data.is_null() {
            *data = Value::Object(Map::new());
        }
        for (name, text) in texts {
            data[name] = STANDARD.encode(text.as_str().unwrap_or_default()).into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(group: &str, resource: &str, value: Value) -> Value {
        let mut object = Object::new(value).unwrap();
        fill(&GroupResource::new(group, resource), &mut object);
        let once = object.clone();
        fill(&GroupResource::new(group, resource), &mut object);
        assert_eq!(object, once);
        object.into_value()
    }

    #[test]
    fn defaults_are_filled_in() {
        let pod = filled(
            "",
            "pods",
            json!({"spec": {"containers": [
                {"name": "a", "image": "x", "ports": [{"containerPort": 1}]},
                {"name": "b", "image": "host:5000/x:1", "imagePullPolicy": "Never"},
                {"name": "c", "image": "host:5000/x"},
            ]}}),
        );
        let policy = |index: usize| pod["spec"]["containers"][index]["imagePullPolicy"].clone();
        assert_eq!(
            [policy(0), policy(1), policy(2)],
            ["Always", "Never", "Always"]
        );
        assert_eq!(pod["spec"]["containers"][0]["ports"][0]["protocol"], "TCP");
        assert_eq!(pod["spec"]["restartPolicy"], "Always");
        let deployment = filled(
            "apps",
            "deployments",
            json!({"spec": {
                "replicas": 0, "template": {"spec": {"containers": []}},
            }}),
        );
        assert_eq!(deployment["spec"]["replicas"], 0);
        assert_eq!(
            deployment["spec"]["template"]["spec"]["dnsPolicy"],
            "ClusterFirst"
        );
        let service = filled("", "services", json!({"spec": {"ports": [{"port": 80}]}}));
        assert_eq!(service["spec"]["ports"][0]["targetPort"], 80);
        let secret = filled("", "secrets", json!({"stringData": {"a": "b"}}));
        assert_eq!(
            (&secret["data"]["a"], &secret["type"]),
            (&json!("Yg=="), &json!("Opaque"))
        );
        assert!(secret.get("stringData").is_none());
        let headless = json!({"spec": {"clusterIP": "None"}});
        let headless = filled("", "services", headless);
        assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
        let often = filled(
            "batch",
            "cronjobs",
            json!({"spec": {"jobTemplate": {
                "metadata": {"creationTimestamp": null},
                "spec": {"template": {"spec": {"containers": []}}},
            }}}),
        );
        let template = &often["spec"]["jobTemplate"];
        assert_eq!(template["metadata"], json!({}));
        let pod = &template["spec"]["template"]["spec"];
        assert_eq!(pod["schedulerName"], "default-scheduler");
        assert_eq!(often["spec"]["failedJobsHistoryLimit"], 1);
        for spec in [json!({}), json!({"metrics": null}), json!({"metrics": []})] {
            let scaler = json!({"apiVersion": "autoscaling/v2", "spec": spec});
            let scaler = filled("autoscaling", "horizontalpodautoscalers", scaler);
            assert_eq!(scaler["spec"]["metrics"][0]["resource"]["name"], "cpu");
        }
        let claim = filled("", "persistentvolumeclaims", json!({"spec": {}}));
        assert_eq!(claim["spec"]["volumeMode"], "Filesystem");
        let map = json!({"metadata": {}, "data": {}});
        assert_eq!(filled("", "configmaps", map.clone()), map);
    }

    #[test]
    fn the_qos_class_depends_on_requests_and_limits() {
        let class = |resources: Value| {
            quality_of_service(&json!({"containers": [{"resources": resources}]}))
        };
        let limits = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(class(json!({})), "BestEffort");
        assert_eq!(class(json!({"requests": {"cpu": "1"}})), "Burstable");
        assert_eq!(class(json!({"limits": {"cpu": "1"}})), "Burstable");
        assert_eq!(class(json!({"limits": limits})), "Guaranteed");
        let less = json!({"cpu": "1", "memory": "1Mi"});
        assert_eq!(
            class(json!({"limits": limits, "requests": less})),
            "Burstable"
        );
    }

    #[test]
    fn containers_must_be_complete() {
        let pods = GroupResource::new("", "pods");
        let errors = |value: Value| -> Vec<String> {
            let object = Object::new(value).unwrap();
            errors(&pods, &object)
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        assert_eq!(errors(json!({})), ["spec.containers: Required value"]);
        assert_eq!(
            errors(json!({"spec": {"containers": [{"name": "a"}]}})),
            ["spec.containers[0].image: Required value"]
        );
        let good = json!({"spec": {"containers": [{"name": "a", "image": "i"}]}});
        assert!(errors(good).is_empty());
    }
}
