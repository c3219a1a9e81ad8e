use super::*;
use crate::test_fixtures::{NOW, object};

fn cells(group: &str, resource: &str, fields: Value) -> Vec<Value> {
    let mut object = object("web", fields);
    object.set(&["metadata", "creationTimestamp"], "2026-11-15T20:54:54Z");
    let resource = GroupResource::new(group, resource);
    let now = Time::from_unix(NOW);
    let cells = super::cells::cells(Release::V1_36, &resource, &object, now);
    assert_eq!(cells.len(), columns(&resource).len(), "{resource}");
    cells
}

#[test]
#[allow(clippy::too_many_lines)] // a table
fn rows_are_those_that_kubectl_prints() {
    let rows = [
        (
            "",
            "namespaces",
            json!({"status": {"phase": "Active"}}),
            json!(["web", "Active", "5m5s"]),
        ),
        (
            "",
            "configmaps",
            json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": ""}}),
            json!(["web", 3, "5m5s"]),
        ),
        (
            "",
            "secrets",
            json!({"type": "x/y", "data": {"a": ""}}),
            json!(["web", "x/y", 1, "5m5s"]),
        ),
        (
            "coordination.k8s.io",
            "leases",
            json!({"spec": {"holderIdentity": "me"}}),
            json!(["web", "me", "5m5s"]),
        ),
        (
            "",
            "limitranges",
            json!({}),
            json!(["web", "2026-11-15T20:54:54Z"]),
        ),
        (
            "apps",
            "deployments",
            json!({
                "spec": {
                    "replicas": 3,
                    "selector": {"matchLabels": {"app": "web"}},
                    "template": {"spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}]}},
                },
                "status": {"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 1},
            }),
            json!(["web", "2/3", 3, 1, "5m5s", "a,b", "i,j", "app=web"]),
        ),
        (
            "",
            "services",
            json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}}),
            json!([
                "web",
                "NodePort",
                "10.0.0.1",
                "<none>",
                "80:30080/TCP,53/UDP",
                "5m5s",
                "<none>"
            ]),
        ),
        (
            "",
            "services",
            json!({"spec": {"type": "LoadBalancer"}}),
            json!([
                "web",
                "LoadBalancer",
                "<none>",
                "<pending>",
                "<none>",
                "5m5s",
                "<none>"
            ]),
        ),
        (
            "",
            "nodes",
            json!({
                "metadata": {"labels": {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/control-plane": ""}},
                "spec": {"unschedulable": true},
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "nodeInfo": {"kubeletVersion": "v1.34.4", "kernelVersion": "6.1", "architecture": "amd64"},
                    "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                },
            }),
            json!([
                "web",
                "Ready,SchedulingDisabled",
                "control-plane,worker",
                "5m5s",
                "v1.34.4",
                "127.0.0.1",
                "<none>",
                "<unknown>",
                "6.1 (amd64)",
                "<unknown>",
            ]),
        ),
        (
            "",
            "events",
            json!({
                "type": "Normal",
                "reason": "Started",
                "message": " done ",
                "firstTimestamp": "2026-11-15T20:58:59Z",
                "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec"},
                "source": {"component": "kubelet", "host": "n1"},
            }),
            json!([
                "60s",
                "Normal",
                "Started",
                "pod/p",
                "spec",
                "kubelet, n1",
                "done",
                "60s",
                1,
                "web"
            ]),
        ),
    ];
    for (group, resource, fields, expected) in rows {
        assert_eq!(
            json!(cells(group, resource, fields)),
            expected,
            "{resource}"
        );
    }
}

#[test]
fn the_status_column_of_a_pod_is_that_of_kubectl() {
    let running = json!({"name": "c", "ready": true, "restartCount": 0, "state": {"running": {}}});
    let done = |code: i64| {
        let reason = if code == 0 { "Completed" } else { "Error" };
        json!({"name": "d", "restartCount": 0, "state": {"terminated": {"exitCode": code, "reason": reason}}})
    };
    let waiting = json!({
        "name": "c",
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"finishedAt": "2026-11-15T20:59:29Z"}},
    });
    let rows = [
        (json!({"phase": "Pending"}), "0/2", "Pending", "0"),
        (
            json!({"phase": "Running", "containerStatuses": [running, running]}),
            "2/2",
            "Running",
            "0",
        ),
        (
            json!({"phase": "Running", "containerStatuses": [waiting, running]}),
            "1/2",
            "CrashLoopBackOff",
            "3 (30s ago)",
        ),
        (
            json!({"phase": "Succeeded", "containerStatuses": [done(0), done(0)]}),
            "0/2",
            "Completed",
            "0",
        ),
        (
            json!({"phase": "Running", "containerStatuses": [done(0), done(1)]}),
            "0/2",
            "Error",
            "0",
        ),
        (
            json!({"phase": "Running", "containerStatuses": [done(0), running]}),
            "1/2",
            "NotReady",
            "0",
        ),
        (
            json!({"phase": "Running", "containerStatuses": [done(0), running], "conditions": [{"type": "Ready", "status": "True"}]}),
            "1/2",
            "Running",
            "0",
        ),
        (
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "restartCount": 0, "state": {"running": {}}}]}),
            "0/2",
            "Init:0/1",
            "0",
        ),
        (
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "restartCount": 1, "state": {"terminated": {"exitCode": 2}}}]}),
            "0/2",
            "Init:ExitCode:2",
            "1",
        ),
        (
            json!({"phase": "Failed", "reason": "Evicted"}),
            "0/2",
            "Evicted",
            "0",
        ),
    ];
    for (status, ready, word, restarts) in rows {
        let fields = json!({
            "spec": {"containers": [{}, {}], "initContainers": [{"name": "i"}], "nodeName": "n1"},
            "status": status,
        });
        let cells = cells("", "pods", fields);
        let expected = json!([
            "web", ready, word, restarts, "5m5s", "<none>", "n1", "<none>", "<none>"
        ]);
        assert_eq!(json!(cells), expected, "{status}");
    }
    let ending = json!({"metadata": {"deletionTimestamp": "2026-11-15T20:59:29Z"}, "status": {"phase": "Running"}});
    assert_eq!(cells("", "pods", ending)[2], "Terminating");
}

#[test]
fn a_table_has_columns_rows_and_list_metadata() {
    let resource = GroupResource::new("resource.k8s.io", "deviceclasses");
    let one = object("web", json!({"spec": {}}));
    let meta = ListMeta {
        resource_version: "7".to_owned(),
        continue_token: "t".to_owned(),
        remaining: Some(2),
    };
    let now = Time::from_unix(NOW);
    let make = |include| table(Release::V1_36, &resource, [&one], &meta, include, now);
    assert_eq!(
        make(Include::Metadata),
        json!({
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": "7", "continue": "t", "remainingItemCount": 2},
            "columnDefinitions": [
                {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
                {"name": "Age", "type": "string", "format": "", "description": "", "priority": 0},
            ],
            "rows": [{
                "cells": ["web", "<unknown>"],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"name": "web"},
                },
            }],
        })
    );
    assert_eq!(make(Include::None)["rows"][0].get("object"), None);
    assert_eq!(
        make(Include::Object)["rows"][0]["object"]["spec"],
        json!({})
    );
}

#[test]
fn columns_are_those_of_the_release() {
    let rows = [
        ("batch", "jobs", "Status", [false, true, true]),
        ("batch", "cronjobs", "Timezone", [false, true, true]),
        ("", "serviceaccounts", "Secrets", [true, true, false]),
        ("", "pods", "Status", [true, true, true]),
    ];
    for (group, resource, column, expected) in rows {
        let resource = GroupResource::new(group, resource);
        let one = object("web", json!({}));
        let got = Release::ALL.map(|release| {
            let meta = ListMeta::default();
            let now = Time::from_unix(NOW);
            let table = table(release, &resource, [&one], &meta, Include::None, now);
            let columns = table["columnDefinitions"].as_array().unwrap();
            let cells = table["rows"][0]["cells"].as_array().unwrap();
            assert_eq!(columns.len(), cells.len());
            columns.iter().any(|it| it["name"] == column)
        });
        assert_eq!(got, expected, "{resource} {column}");
    }
}
