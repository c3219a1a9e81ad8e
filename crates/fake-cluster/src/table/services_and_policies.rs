//! Columns and cells of services, claims, autoscalers and policies.

use serde_json::{Value, json};

use super::age;
use super::fields::{list, number, pairs, text_or};
use crate::catalogue::Release;
use crate::object::{Object, texts};
use crate::status::GroupResource;
use crate::time::Time;

const NONE: &str = "<none>";
const UNSET: &str = "<unset>";

/// How many names are shown before the rest is only counted.
const MAX_NAMES: usize = 3;

/// The columns that are always shown, and those for `-o wide`.
pub(super) fn columns(
    resource: &GroupResource,
) -> Option<(&'static [&'static str], &'static [&'static str])> {
    Some(
        match (resource.group.as_str(), resource.resource.as_str()) {
            ("", "serviceaccounts") => (&["Name", "Secrets", "Age"], &[]),
            ("", "endpoints") => (&["Name", "Endpoints", "Age"], &[]),
            ("", "persistentvolumeclaims") => (
                &[
                    "Name",
                    "Status",
                    "Volume",
                    "Capacity",
                    "Access Modes",
                    "StorageClass",
                    "VolumeAttributesClass",
                    "Age",
                ],
                &["VolumeMode"],
            ),
            ("discovery.k8s.io", "endpointslices") => {
                (&["Name", "AddressType", "Ports", "Endpoints", "Age"], &[])
            }
            ("networking.k8s.io", "networkpolicies") => (&["Name", "Pod-Selector", "Age"], &[]),
            ("autoscaling", "horizontalpodautoscalers") => (
                &[
                    "Name",
                    "Reference",
                    "Targets",
                    "MinPods",
                    "MaxPods",
                    "Replicas",
                    "Age",
                ],
                &[],
            ),
            ("admissionregistration.k8s.io", "mutatingadmissionpolicies") => {
                (&["Name", "Mutations", "ParamKind", "Age"], &[])
            }
            ("admissionregistration.k8s.io", "validatingadmissionpolicies") => {
                (&["Name", "Validations", "ParamKind", "Age"], &[])
            }
            (
                "admissionregistration.k8s.io",
                "mutatingwebhookconfigurations" | "validatingwebhookconfigurations",
            ) => (&["Name", "Webhooks", "Age"], &[]),
            ("resource.k8s.io", "resourceclaims") => (&["Name", "State", "Age"], &[]),
            ("resource.k8s.io", "deviceclasses" | "resourceclaimtemplates") => {
                (&["Name", "Age"], &[])
            }
            ("node.k8s.io", "runtimeclasses") => (&["Name", "Handler", "Age"], &[]),
            _ => return None,
        },
    )
}

/// The cells, one for each column.
pub(super) fn cells(
    release: Release,
    resource: &GroupResource,
    object: &Object,
    now: Time,
) -> Vec<Value> {
    let since = Value::from(age(object.creation_timestamp(), now));
    let name = Value::from(object.name());
    let count = |path: &[&str]| Value::from(list(object, path).count());
    match resource.resource.as_str() {
        "serviceaccounts" => vec![name, count(&["secrets"]), since],
        "endpoints" => vec![name, addresses(object).into(), since],
        "persistentvolumeclaims" => claim(object, name, since),
        "endpointslices" => vec![
            name,
            object.text(&["addressType"]).into(),
            ports(object).into(),
            endpoints(object).into(),
            since,
        ],
        "networkpolicies" => {
            let labels = object.at(&["spec", "podSelector", "matchLabels"]);
            vec![name, pairs(labels).into(), since]
        }
        "horizontalpodautoscalers" => scaler(release, object, name, since),
        "mutatingadmissionpolicies" => vec![
            name,
            count(&["spec", "mutations"]),
            parameters(object).into(),
            since,
        ],
        "validatingadmissionpolicies" => vec![
            name,
            count(&["spec", "validations"]),
            parameters(object).into(),
            since,
        ],
        "resourceclaims" => vec![name, state(object).into(), since],
        "deviceclasses" | "resourceclaimtemplates" => vec![name, since],
        "runtimeclasses" => vec![name, object.text(&["handler"]).into(), since],
        _ => vec![name, count(&["webhooks"]), since],
    }
}

/// The first names, and the number of the others.
fn first_names(all: &[String], without: &str) -> String {
    let first = all.iter().take(MAX_NAMES).cloned();
    let first = first.collect::<Vec<_>>().join(",");
    match all.len() {
        0 => without.to_owned(),
        1..=MAX_NAMES => first,
        count => format!("{first} + {} more...", count - MAX_NAMES),
    }
}

/// Each address with each port of its subset.
fn addresses(object: &Object) -> String {
    let mut all = Vec::new();
    for subset in list(object, &["subsets"]) {
        let items = |field: &str| subset[field].as_array().into_iter().flatten();
        let addresses = || items("addresses").filter_map(|it| it["ip"].as_str());
        if items("ports").next().is_none() {
            all.extend(addresses().map(str::to_owned));
        }
        for port in items("ports") {
            all.extend(addresses().map(|address| {
                if address.contains(':') {
                    format!("[{address}]:{}", port["port"])
                } else {
                    format!("{address}:{}", port["port"])
                }
            }));
        }
    }
    first_names(&all, NONE)
}

fn ports(object: &Object) -> String {
    let ports = list(object, &["ports"]).map(|it| match (it["port"].as_i64(), &it["name"]) {
        (Some(number), _) => number.to_string(),
        (None, name) => name.as_str().unwrap_or("*").to_owned(),
    });
    first_names(&ports.collect::<Vec<_>>(), UNSET)
}

fn endpoints(object: &Object) -> String {
    let all = list(object, &["endpoints"]).flat_map(|it| texts(it.get("addresses")));
    first_names(&all.map(str::to_owned).collect::<Vec<_>>(), UNSET)
}

fn claim(object: &Object, name: Value, since: Value) -> Vec<Value> {
    let phase = match object.deletion_timestamp() {
        Some(_) => "Terminating",
        None => object.text(&["status", "phase"]),
    };
    let volume = object.text(&["spec", "volumeName"]);
    let (mut capacity, mut modes) = ("", String::new());
    if !volume.is_empty() {
        capacity = text_or(object.text(&["status", "capacity", "storage"]), "0");
        let given = texts(object.at(&["status", "accessModes"]));
        let short = given.iter().map(|it| match *it {
            "ReadWriteOnce" => "RWO",
            "ReadOnlyMany" => "ROX",
            "ReadWriteMany" => "RWX",
            "ReadWriteOncePod" => "RWOP",
            other => other,
        });
        modes = short.collect::<Vec<_>>().join(",");
    }
    let spec = |field: &str, instead| Value::from(text_or(object.text(&["spec", field]), instead));
    vec![
        name,
        phase.into(),
        volume.into(),
        capacity.into(),
        modes.into(),
        spec("storageClassName", ""),
        spec("volumeAttributesClassName", UNSET),
        since,
        spec("volumeMode", UNSET),
    ]
}

/// Only whether there are targets: there are no metrics here.
fn scaler(release: Release, object: &Object, name: Value, since: Value) -> Vec<Value> {
    let target = |field: &str| object.text(&["spec", "scaleTargetRef", field]);
    let least = object.at(&["spec", "minReplicas"]).and_then(Value::as_i64);
    let metrics = list(object, &["spec", "metrics"]).map(|it| {
        let of = match it["resource"]["name"].as_str() {
            Some(name) if release >= Release::V1_34 => format!("{name}: "),
            _ => String::new(),
        };
        let wanted = &it["resource"]["target"];
        match (
            &wanted["averageValue"],
            wanted["averageUtilization"].as_i64(),
        ) {
            (Value::String(value), _) => format!("{of}<unknown>/{value}"),
            (_, Some(percent)) => format!("{of}<unknown>/{percent}%"),
            _ => format!("{of}<unknown>/<auto>"),
        }
    });
    let metrics = metrics.collect::<Vec<_>>().join(", ");
    vec![
        name,
        format!("{}/{}", target("kind"), target("name")).into(),
        text_or(&metrics, NONE).into(),
        least.map_or_else(|| json!(UNSET), |least| json!(least.to_string())),
        number(object, &["spec", "maxReplicas"]).into(),
        number(object, &["status", "currentReplicas"]).into(),
        since,
    ]
}

fn parameters(object: &Object) -> String {
    let of = |field: &str| object.text(&["spec", "paramKind", field]);
    match of("kind") {
        "" => UNSET.to_owned(),
        kind => format!("{}/{kind}", of("apiVersion")),
    }
}

fn state(object: &Object) -> String {
    let mut words = Vec::new();
    let is_going = object.deletion_timestamp().is_some();
    if is_going {
        words.push("deleted");
    }
    match object.at(&["status", "allocation"]) {
        None if is_going => {}
        None => words.push("pending"),
        Some(_) => {
            words.push("allocated");
            if list(object, &["status", "reservedFor"]).next().is_some() {
                words.push("reserved");
            }
        }
    }
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_that_kubectl_prints() {
        let rows = [
            (
                "",
                "endpoints",
                json!({"subsets": [{
                    "addresses": [{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}],
                    "ports": [{"port": 80}, {"port": 81}],
                }]}),
                json!("192.0.2.1:80,[2001:db8::1]:80,192.0.2.1:81 + 1 more..."),
            ),
            (
                "discovery.k8s.io",
                "endpointslices",
                json!({"addressType": "IPv4", "ports": [{"name": "a"}, {}]}),
                json!("IPv4"),
            ),
            (
                "networking.k8s.io",
                "networkpolicies",
                json!({"spec": {"podSelector": {}}}),
                json!("<none>"),
            ),
            (
                "resource.k8s.io",
                "resourceclaims",
                json!({"status": {"allocation": {}, "reservedFor": [{}]}}),
                json!("allocated,reserved"),
            ),
            (
                "",
                "persistentvolumeclaims",
                json!({"status": {"phase": "Pending"}}),
                json!("Pending"),
            ),
            (
                "autoscaling",
                "horizontalpodautoscalers",
                json!({"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}}}),
                json!("Deployment/d"),
            ),
            (
                "admissionregistration.k8s.io",
                "mutatingadmissionpolicies",
                json!({"spec": {"mutations": [{}]}}),
                json!(1),
            ),
            ("", "serviceaccounts", json!({}), json!(0)),
        ];
        for (group, resource, mut object, second) in rows {
            object["metadata"] = json!({"name": "it"});
            let resource = GroupResource::new(group, resource);
            let (always, wide) = columns(&resource).unwrap();
            let object = Object::new(object).unwrap();
            let cells = cells(Release::V1_36, &resource, &object, Time::from_unix(0));
            assert_eq!(cells.len(), always.len() + wide.len(), "{resource}");
            assert_eq!(cells[..2], [json!("it"), second], "{resource}");
        }
    }
}
