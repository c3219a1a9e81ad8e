//! One object in all versions in which it is served.

use serde_json::{Value, json};

use crate::cluster_fixture::Cluster;

#[tokio::test]
async fn one_autoscaler_is_read_in_all_versions() {
    let cluster = Cluster::start().await;
    let old = cluster.admin(&cluster.old).await;
    let new = cluster.admin(&cluster.new).await;
    let path = |version: &str| {
        format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers")
    };
    let mut watch = new.watch(&format!("{}?watch=1", path("v1"))).await;
    let reference = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let made = json!({
        "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web"},
        "spec": {"scaleTargetRef": reference, "maxReplicas": 3, "targetCPUUtilizationPercentage": 70},
    });
    let made = old.post(&path("v1"), &made).await;
    assert_eq!(made.code, 201, "{made:?}");
    assert_eq!(made.body["spec"]["targetCPUUtilizationPercentage"], 70);
    let one = format!("{}/web", path("v2"));
    let mut seen = new.get(&one).await.body;
    let metric = |name: &str, target: Value| json!({"type": "Resource", "resource": {"name": name, "target": target}});
    let busy = metric(
        "cpu",
        json!({"type": "Utilization", "averageUtilization": 70}),
    );
    assert_eq!(seen["spec"]["metrics"], json!([busy]));
    assert_eq!(seen["spec"]["targetCPUUtilizationPercentage"], Value::Null);
    let memory = metric(
        "memory",
        json!({"type": "AverageValue", "averageValue": "1Gi"}),
    );
    seen["spec"]["metrics"] = json!([busy, memory]);
    assert_eq!(new.put(&one, &seen).await.code, 200);
    // A client of the older version changes its fields, and loses no others.
    let form = "application/merge-patch+json";
    let set_release = json!({"spec": {"maxReplicas": 4, "targetCPUUtilizationPercentage": 80}});
    let changed = old
        .patch(&format!("{}/web", path("v1")), form, &set_release)
        .await;
    assert_eq!(changed.code, 200, "{changed:?}");
    let seen = new.get(&one).await.body;
    let busy = metric(
        "cpu",
        json!({"type": "Utilization", "averageUtilization": 80}),
    );
    assert_eq!(seen["spec"]["metrics"], json!([memory, busy]));
    assert_eq!(seen["spec"]["maxReplicas"], 4);
    assert_eq!(seen["metadata"]["annotations"], Value::Null);
    let listed = old.get(&path("v1")).await.body;
    assert_eq!(
        listed["items"][0]["spec"]["targetCPUUtilizationPercentage"],
        80
    );
    for percent in [70, 70, 80] {
        let event = watch.next().await.unwrap();
        assert_eq!(event["object"]["apiVersion"], "autoscaling/v1");
        let spec = &event["object"]["spec"];
        assert_eq!(spec["targetCPUUtilizationPercentage"], percent);
    }
}

#[tokio::test]
async fn the_status_of_an_autoscaler_is_written_in_all_versions() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.old).await;
    let all = |version: &str| {
        format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers")
    };
    let one = |version: &str, rest: &str| format!("{}/web{rest}", all(version));
    let made = json!({
        "metadata": {"name": "web"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 3},
    });
    let mut made = client.post(&all("v2"), &made).await.body;
    let measured = |percent: u32| json!([{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": percent}}}]);
    let condition = json!({"type": "AbleToScale", "status": "True"});
    made["status"] = json!({
        "currentReplicas": 1, "desiredReplicas": 2, "currentMetrics": measured(90),
        "conditions": [condition],
    });
    assert_eq!(client.put(&one("v2", "/status"), &made).await.code, 200);
    let mut seen = client.get(&one("v1", "")).await.body;
    assert_eq!(seen["status"]["currentCPUUtilizationPercentage"], 90);
    let notes = seen["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(notes.len(), 2, "{seen:#}");
    // Fields that the older version does not have stay in the spec.
    seen["metadata"]["annotations"] = Value::Null;
    seen["spec"]["maxReplicas"] = json!(4);
    let changed = client.put(&one("v1", ""), &seen).await;
    assert_eq!(changed.code, 200, "{changed:?}");
    let kept = client.get(&one("v2", "")).await.body;
    assert_eq!(kept["status"], made["status"]);
    assert_eq!(kept["spec"]["maxReplicas"], 4);
    // Fields that it does not set in the status are removed.
    let mut seen = client.get(&one("v1", "")).await.body;
    let notes = json!({"autoscaling.alpha.kubernetes.io/conditions": "[]"});
    seen["metadata"]["annotations"] = notes;
    seen["spec"]["maxReplicas"] = json!(5);
    seen["status"]["currentReplicas"] = json!(2);
    seen["status"]["currentCPUUtilizationPercentage"] = json!(40);
    let changed = client.put(&one("v1", "/status"), &seen).await;
    assert_eq!(changed.code, 200, "{changed:?}");
    let seen = client.get(&one("v2", "")).await.body;
    let status = json!({
        "currentReplicas": 2, "desiredReplicas": 2, "currentMetrics": measured(40),
    });
    assert_eq!(seen["status"], status);
    assert_eq!(seen["spec"]["maxReplicas"], 4);
    assert_eq!(seen["metadata"]["annotations"], Value::Null);
}

#[tokio::test]
async fn one_event_is_read_in_both_groups() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.middle).await;
    let core = "/api/v1/namespaces/default/events";
    let later = "/apis/events.k8s.io/v1/namespaces/default/events";
    let mut watch = client.watch(&format!("{later}?watch=1")).await;
    let event = json!({
        "metadata": {"name": "e"}, "reason": "Testing", "message": "hello", "type": "Normal",
        "involvedObject": {"kind": "Pod", "name": "web", "namespace": "default"},
    });
    assert_eq!(client.post(core, &event).await.code, 201);
    let selected = format!("{later}?fieldSelector=regarding.name%3Dweb");
    let seen = client.get(&selected).await.body["items"][0].clone();
    assert_eq!(
        (&seen["note"], &seen["message"]),
        (&json!("hello"), &Value::Null)
    );
    assert_eq!(seen["regarding"]["name"], "web");
    let next_event_name = watch.next().await.unwrap();
    assert_eq!(next_event_name["object"]["apiVersion"], "events.k8s.io/v1");
    assert_eq!(next_event_name["object"]["note"], "hello");
    let again = client
        .post(later, &json!({"metadata": {"name": "e"}}))
        .await;
    assert_eq!(again.code, 409, "{again:?}");
    // The response has the group of the request.
    assert_eq!(
        again.body["message"],
        "events.events.k8s.io \"e\" already exists"
    );
    assert_eq!(client.delete(&format!("{later}/e")).await.code, 200);
    assert_eq!(client.get(&format!("{core}/e")).await.code, 404);
}
