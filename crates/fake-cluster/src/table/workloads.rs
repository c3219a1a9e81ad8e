//! Columns and cells of workloads other than deployments, and of rarely listed resources.

use serde_json::{Value, json};

use super::age;
use super::fields::{list, number, pairs, text_or};
use crate::object::Object;
use crate::status::GroupResource;
use crate::time::{Time, human_duration};

const NONE: &str = "<none>";

/// The columns that are always shown, and those for `-o wide`.
pub(super) fn columns(
    resource: &GroupResource,
) -> Option<(&'static [&'static str], &'static [&'static str])> {
    const WORKLOAD: &[&str] = &["Containers", "Images", "Selector"];
    Some(
        match (resource.group.as_str(), resource.resource.as_str()) {
            ("apps", "replicasets") => (&["Name", "Desired", "Current", "Ready", "Age"], WORKLOAD),
            ("apps", "statefulsets") => (&["Name", "Ready", "Age"], &["Containers", "Images"]),
            ("apps", "daemonsets") => (
                &[
                    "Name",
                    "Desired",
                    "Current",
                    "Ready",
                    "Up-to-date",
                    "Available",
                    "Node Selector",
                    "Age",
                ],
                WORKLOAD,
            ),
            ("batch", "jobs") => (
                &["Name", "Status", "Completions", "Duration", "Age"],
                WORKLOAD,
            ),
            ("batch", "cronjobs") => (
                &[
                    "Name",
                    "Schedule",
                    "Timezone",
                    "Suspend",
                    "Active",
                    "Last Schedule",
                    "Age",
                ],
                WORKLOAD,
            ),
            ("networking.k8s.io", "ingresses") => {
                (&["Name", "Class", "Hosts", "Address", "Ports", "Age"], &[])
            }
            ("policy", "poddisruptionbudgets") => (
                &[
                    "Name",
                    "Min Available",
                    "Max Unavailable",
                    "Allowed Disruptions",
                    "Age",
                ],
                &[],
            ),
            ("rbac.authorization.k8s.io", "roles" | "clusterroles") => {
                (&["Name", "Created At"], &[])
            }
            ("rbac.authorization.k8s.io", _) => (
                &["Name", "Role", "Age"],
                &["Users", "Groups", "ServiceAccounts"],
            ),
            ("scheduling.k8s.io", "priorityclasses") => (
                &["Name", "Value", "Global-Default", "Age", "PreemptionPolicy"],
                &[],
            ),
            _ => return None,
        },
    )
}

/// The cells, one for each column.
pub(super) fn cells(resource: &GroupResource, object: &Object, now: Time) -> Vec<Value> {
    let since: Value = age(object.creation_timestamp(), now).into();
    let name: Value = object.name().into();
    let status = |field: &str| json!(number(object, &["status", field]));
    let wanted = || {
        let replicas = object.at(&["spec", "replicas"]).and_then(Value::as_i64);
        replicas.unwrap_or(1)
    };
    let mut cells = match (resource.group.as_str(), resource.resource.as_str()) {
        ("apps", "replicasets") => vec![
            name,
            wanted().into(),
            status("replicas"),
            status("readyReplicas"),
            since,
        ],
        ("apps", "statefulsets") => {
            let ready = format!("{}/{}", status("readyReplicas"), wanted());
            vec![name, ready.into(), since]
        }
        ("apps", "daemonsets") => vec![
            name,
            status("desiredNumberScheduled"),
            status("currentNumberScheduled"),
            status("numberReady"),
            status("updatedNumberScheduled"),
            status("numberAvailable"),
            pairs(object.at(&["spec", "template", "spec", "nodeSelector"])).into(),
            since,
        ],
        ("batch", "jobs") => job(object, now),
        ("batch", "cronjobs") => {
            let last = Time::parse(object.text(&["status", "lastScheduleTime"]));
            let suspend = object.at(&["spec", "suspend"]) == Some(&json!(true));
            vec![
                name,
                object.text(&["spec", "schedule"]).into(),
                text_or(object.text(&["spec", "timeZone"]), NONE).into(),
                if suspend { "True" } else { "False" }.into(),
                list(object, &["status", "active"]).count().into(),
                last.map_or_else(|| NONE.into(), |last| age(Some(last), now).into()),
                since,
            ]
        }
        ("networking.k8s.io", _) => ingress(object, since),
        ("policy", _) => {
            let text = |field: &str| match object.at(&["spec", field]) {
                Some(Value::String(text)) => text.clone(),
                Some(Value::Number(number)) => number.to_string(),
                _ => "N/A".to_owned(),
            };
            vec![
                name,
                text("minAvailable").into(),
                text("maxUnavailable").into(),
                status("disruptionsAllowed"),
                since,
            ]
        }
        ("rbac.authorization.k8s.io", "roles" | "clusterroles") => {
            vec![name, object.text(&["metadata", "creationTimestamp"]).into()]
        }
        ("rbac.authorization.k8s.io", _) => binding(object, since),
        _ => {
            let default = object.at(&["globalDefault"]) == Some(&json!(true));
            let policy = object.text(&["preemptionPolicy"]);
            vec![
                name,
                number(object, &["value"]).into(),
                default.into(),
                since,
                text_or(policy, "PreemptLowerPriority").into(),
            ]
        }
    };
    match (resource.group.as_str(), resource.resource.as_str()) {
        ("apps", "statefulsets") => cells.extend(containers(object, &["spec"]).into_iter().take(2)),
        ("batch", "cronjobs") => {
            cells.extend(containers(object, &["spec", "jobTemplate", "spec"]));
        }
        ("apps" | "batch", _) => cells.extend(containers(object, &["spec"])),
        _ => {}
    }
    cells
}

/// Names, images and selector of a workload.
fn containers(object: &Object, spec: &[&str]) -> Vec<Value> {
    let all = |field: &str| {
        let path = [spec, &["template", "spec", "containers"]].concat();
        let containers = list(object, &path);
        let texts = containers.map(|it| it[field].as_str().unwrap_or_default());
        Value::from(texts.collect::<Vec<_>>().join(","))
    };
    let selector = [spec, &["selector", "matchLabels"]].concat();
    vec![
        all("name"),
        all("image"),
        pairs(object.at(&selector)).into(),
    ]
}

fn job(object: &Object, now: Time) -> Vec<Value> {
    let is = |kind: &str| {
        let mut conditions = list(object, &["status", "conditions"]);
        conditions.any(|it| it["type"] == kind && it["status"] == "True")
    };
    let state = match () {
        () if is("Complete") => "Complete",
        () if is("Failed") => "Failed",
        () if object.deletion_timestamp().is_some() => "Terminating",
        () if is("Suspended") => "Suspended",
        () => "Running",
    };
    let start = Time::parse(object.text(&["status", "startTime"]));
    let end = Time::parse(object.text(&["status", "completionTime"])).unwrap_or(now);
    let duration = start.map(|start| human_duration(end.seconds_since(start)));
    let wanted = object.at(&["spec", "completions"]).and_then(Value::as_i64);
    let done = number(object, &["status", "succeeded"]);
    vec![
        object.name().into(),
        state.into(),
        format!("{done}/{}", wanted.unwrap_or(1)).into(),
        duration.unwrap_or_default().into(),
        age(object.creation_timestamp(), now).into(),
    ]
}

fn ingress(object: &Object, since: Value) -> Vec<Value> {
    let hosts: Vec<_> = list(object, &["spec", "rules"])
        .filter_map(|it| it["host"].as_str())
        .collect();
    let addresses: Vec<_> = list(object, &["status", "loadBalancer", "ingress"])
        .filter_map(|it| it["ip"].as_str().or(it["hostname"].as_str()))
        .collect();
    let has_tls = list(object, &["spec", "tls"]).next().is_some();
    vec![
        object.name().into(),
        text_or(object.text(&["spec", "ingressClassName"]), NONE).into(),
        text_or(&hosts.join(","), "*").into(),
        addresses.join(",").into(),
        if has_tls { "80, 443" } else { "80" }.into(),
        since,
    ]
}

fn binding(object: &Object, since: Value) -> Vec<Value> {
    let role = |field: &str| object.text(&["roleRef", field]);
    let named = |kind: &str| {
        let subjects = list(object, &["subjects"]).filter(|it| it["kind"] == kind);
        let names = subjects.map(|it| {
            let name = it["name"].as_str().unwrap_or_default();
            match it["namespace"].as_str() {
                Some(namespace) => format!("{namespace}/{name}"),
                None => name.to_owned(),
            }
        });
        Value::from(names.collect::<Vec<_>>().join(", "))
    };
    vec![
        object.name().into(),
        format!("{}/{}", role("kind"), role("name")).into(),
        since,
        named("User"),
        named("Group"),
        named("ServiceAccount"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_a_cell() {
        let rows = [
            ("apps", "replicasets"),
            ("apps", "statefulsets"),
            ("apps", "daemonsets"),
            ("batch", "jobs"),
            ("batch", "cronjobs"),
            ("networking.k8s.io", "ingresses"),
            ("policy", "poddisruptionbudgets"),
            ("rbac.authorization.k8s.io", "roles"),
            ("rbac.authorization.k8s.io", "clusterrolebindings"),
            ("scheduling.k8s.io", "priorityclasses"),
        ];
        let object = Object::new(json!({"metadata": {"name": "it"}})).unwrap();
        for (group, resource) in rows {
            let resource = GroupResource::new(group, resource);
            let (always, wide) = columns(&resource).unwrap();
            let cells = cells(&resource, &object, Time::from_unix(0));
            assert_eq!(cells.len(), always.len() + wide.len(), "{resource}");
            assert_eq!(cells[0], "it");
        }
    }

    #[test]
    fn a_job_shows_its_completions() {
        let object = Object::new(json!({
            "metadata": {"name": "j"},
            "spec": {"completions": 2},
            "status": {
                "startTime": "2026-11-15T20:59:00Z",
                "succeeded": 1,
                "conditions": [{"type": "Failed", "status": "True"}],
            },
        }));
        let now = Time::parse("2026-11-15T20:59:30Z").unwrap();
        let cells = job(&object.unwrap(), now);
        assert_eq!(cells[1..4], [json!("Failed"), json!("1/2"), json!("30s")]);
    }
}
