//! The cells of a row.

use serde_json::{Map, Value, json};

use super::fields::{list, number, pairs, text_or};
use super::{age, pod, services_and_policies, workloads};
use crate::catalogue::Release;
use crate::object::{Object, texts};
use crate::status::GroupResource;
use crate::time::Time;

const NONE: &str = "<none>";

/// The cells of an object, one for each column, also those for `-o wide`.
pub(super) fn cells(
    release: Release,
    resource: &GroupResource,
    object: &Object,
    now: Time,
) -> Vec<Value> {
    let name = || Value::from(object.name());
    let since = || Value::from(age(object.creation_timestamp(), now));
    match (resource.group.as_str(), resource.resource.as_str()) {
        ("", "pods") => pod::cells(object, now),
        ("", "namespaces") => vec![name(), object.text(&["status", "phase"]).into(), since()],
        ("", "nodes") => node(release, object, now),
        ("", "services") => service(object, now),
        ("", "configmaps") => {
            let count = count(object, "data") + count(object, "binaryData");
            vec![name(), count.into(), since()]
        }
        ("", "secrets") => {
            let kind = text_or(object.text(&["type"]), "Opaque");
            vec![name(), kind.into(), count(object, "data").into(), since()]
        }
        ("apps", "deployments") => deployment(object, now),
        ("coordination.k8s.io", "leases") => {
            vec![
                name(),
                object.text(&["spec", "holderIdentity"]).into(),
                since(),
            ]
        }
        ("" | "events.k8s.io", "events") => event(object, now),
        _ if workloads::columns(resource).is_some() => workloads::cells(resource, object, now),
        _ if services_and_policies::columns(resource).is_some() => {
            services_and_policies::cells(release, resource, object, now)
        }
        _ => vec![
            name(),
            object.text(&["metadata", "creationTimestamp"]).into(),
        ],
    }
}

fn count(object: &Object, field: &str) -> usize {
    object
        .at(&[field])
        .and_then(Value::as_object)
        .map_or(0, Map::len)
}

fn node(release: Release, object: &Object, now: Time) -> Vec<Value> {
    let ready = list(object, &["status", "conditions"]).find(|it| it["type"] == "Ready");
    let mut status = match ready.map(|it| it["status"] == "True") {
        Some(true) => "Ready".to_owned(),
        Some(false) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if object.at(&["spec", "unschedulable"]) == Some(&Value::Bool(true)) {
        status.push_str(",SchedulingDisabled");
    }
    let labels = object
        .at(&["metadata", "labels"])
        .and_then(Value::as_object);
    let labels = labels.into_iter().flatten();
    let roles = labels.filter_map(|(key, value)| match key.as_str() {
        "kubernetes.io/role" => value.as_str(),
        key => key.strip_prefix("node-role.kubernetes.io/"),
    });
    let mut roles: Vec<_> = roles.filter(|role| !role.is_empty()).collect();
    roles.sort_unstable();
    roles.dedup();
    let info = |field: &str| object.text(&["status", "nodeInfo", field]);
    let address = |kind: &str| {
        let mut addresses = list(object, &["status", "addresses"]);
        let found = addresses.find(|it| it["type"] == kind);
        found.and_then(|it| it["address"].as_str()).unwrap_or(NONE)
    };
    let mut kernel = text_or(info("kernelVersion"), "<unknown>").to_owned();
    if release >= Release::V1_36 && !info("architecture").is_empty() {
        kernel = format!("{kernel} ({})", info("architecture"));
    }
    vec![
        object.name().into(),
        status.into(),
        text_or(&roles.join(","), NONE).into(),
        age(object.creation_timestamp(), now).into(),
        info("kubeletVersion").into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        text_or(info("osImage"), "<unknown>").into(),
        kernel.into(),
        text_or(info("containerRuntimeVersion"), "<unknown>").into(),
    ]
}

fn service(object: &Object, now: Time) -> Vec<Value> {
    let kind = text_or(object.text(&["spec", "type"]), "ClusterIP");
    let ports = list(object, &["spec", "ports"]).map(|port| {
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        match port["nodePort"].as_i64() {
            Some(node) if node > 0 => format!("{}:{node}/{protocol}", port["port"]),
            _ => format!("{}/{protocol}", port["port"]),
        }
    });
    let ports = ports.collect::<Vec<_>>().join(",");
    vec![
        object.name().into(),
        kind.into(),
        text_or(object.text(&["spec", "clusterIP"]), NONE).into(),
        external_address(object, kind).into(),
        text_or(&ports, NONE).into(),
        age(object.creation_timestamp(), now).into(),
        pairs(object.at(&["spec", "selector"])).into(),
    ]
}

fn external_address(object: &Object, kind: &str) -> String {
    let mut addresses = Vec::new();
    if kind == "ExternalName" {
        return object.text(&["spec", "externalName"]).to_owned();
    }
    if kind == "LoadBalancer" {
        let given = list(object, &["status", "loadBalancer", "ingress"]);
        addresses.extend(given.filter_map(|it| it["ip"].as_str().or(it["hostname"].as_str())));
    }
    addresses.extend(texts(object.at(&["spec", "externalIPs"])));
    match (addresses.is_empty(), kind) {
        (false, _) => addresses.join(","),
        (true, "LoadBalancer") => "<pending>".to_owned(),
        (true, _) => NONE.to_owned(),
    }
}

fn deployment(object: &Object, now: Time) -> Vec<Value> {
    let status = |field: &str| number(object, &["status", field]);
    // The default is one replica.
    let wanted = object
        .at(&["spec", "replicas"])
        .and_then(Value::as_i64)
        .unwrap_or(1);
    let containers = || list(object, &["spec", "template", "spec", "containers"]);
    let all = |field: &str| {
        let texts = containers().map(|it| it[field].as_str().unwrap_or_default());
        texts.collect::<Vec<_>>().join(",")
    };
    vec![
        object.name().into(),
        format!("{}/{wanted}", status("readyReplicas")).into(),
        status("updatedReplicas").into(),
        status("availableReplicas").into(),
        age(object.creation_timestamp(), now).into(),
        all("name").into(),
        all("image").into(),
        pairs(object.at(&["spec", "selector", "matchLabels"])).into(),
    ]
}

fn event(object: &Object, now: Time) -> Vec<Value> {
    let text = |path: &[&str], instead: &[&str]| {
        text_or(object.text(path), object.text(instead)).to_owned()
    };
    let moment = |path: &[&str]| Time::parse(object.text(path));
    let first = moment(&["firstTimestamp"])
        .or_else(|| moment(&["deprecatedFirstTimestamp"]))
        .or_else(|| moment(&["eventTime"]));
    let last = moment(&["series", "lastObservedTime"])
        .or_else(|| moment(&["lastTimestamp"]))
        .or_else(|| moment(&["deprecatedLastTimestamp"]))
        .or(first);
    let count = [
        number(object, &["series", "count"]),
        number(object, &["count"]),
    ];
    let count = count.into_iter().find(|it| *it > 0).unwrap_or(1);
    // events.k8s.io has other names for these fields.
    let about = |field: &str| text(&["involvedObject", field], &["regarding", field]);
    let mut target = about("kind").to_lowercase();
    if !about("name").is_empty() {
        target = format!("{target}/{}", about("name"));
    }
    let component = text(&["source", "component"], &["reportingComponent"]);
    let component = text_or(&component, object.text(&["reportingController"])).to_owned();
    let instance = text(&["source", "host"], &["reportingInstance"]);
    let source = match instance.as_str() {
        "" => component,
        instance => format!("{component}, {instance}"),
    };
    let message = text(&["message"], &["note"]);
    vec![
        age(last, now).into(),
        object.text(&["type"]).into(),
        object.text(&["reason"]).into(),
        target.into(),
        about("fieldPath").into(),
        source.into(),
        message.trim().into(),
        age(first, now).into(),
        json!(count),
        object.name().into(),
    ]
}
