//! The same object, as each release shows it.

use serde_json::{Value, json};

use crate::cluster_fixture::Cluster;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const DAEMONS: &str = "/apis/apps/v1/namespaces/default/daemonsets";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn workload(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "i:1"}]},
            },
        },
    })
}

#[tokio::test]
async fn an_object_of_an_old_server_can_be_written_back() {
    let cluster = Cluster::start().await;
    let old = cluster.admin(&cluster.old).await;
    let new = cluster.admin(&cluster.new).await;
    let made = new.post(DEPLOYMENTS, &workload("d")).await;
    assert_eq!(made.code, 201, "{made:?}");
    let at = format!("{DEPLOYMENTS}/d");
    let time = "/spec/template/metadata/creationTimestamp";
    let response = old.get(&at).await.body;
    assert_eq!(response.pointer(time), Some(&Value::Null));
    assert_eq!(
        old.get(DEPLOYMENTS).await.body["items"][0].pointer(time),
        Some(&Value::Null)
    );
    let again = old.put(&at, &response).await;
    assert_eq!(again.code, 200, "{again:?}");
    let response = new.get(&at).await.body;
    assert_eq!(response.pointer(time), None);
    assert_eq!(response["metadata"]["generation"], 1);
}

#[tokio::test]
async fn binding_a_pod_does_not_change_its_generation() {
    let cluster = Cluster::start().await;
    let old = cluster.admin(&cluster.old).await;
    let new = cluster.admin(&cluster.new).await;
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    assert_eq!(old.post(PODS, &pod).await.code, 201);
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let bound = new.post(&format!("{PODS}/p/binding"), &binding).await;
    assert_eq!(bound.code, 201, "{bound:?}");
    let at = format!("{PODS}/p");
    let response = new.get(&at).await.body;
    assert_eq!(response["spec"]["nodeName"], "n");
    assert_eq!(response["metadata"]["generation"], 1);
    assert!(old.get(&at).await.body["metadata"]["generation"].is_null());
    let mut watch = old.watch(&format!("{PODS}?watch=true")).await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["object"]["metadata"]["name"], "p");
    assert!(event["object"]["metadata"]["generation"].is_null());
}

#[tokio::test]
async fn the_templates_of_daemon_sets_are_counted() {
    let cluster = Cluster::start().await;
    let new = cluster.admin(&cluster.new).await;
    let made = new.post(DAEMONS, &workload("d")).await.body;
    let count = |object: &Value| {
        object["metadata"]["annotations"]["deprecated.daemonset.template.generation"].clone()
    };
    assert_eq!(count(&made), "1");
    assert_eq!(made["status"]["numberReady"], 0);
    let mut next = made.clone();
    next["spec"]["minReadySeconds"] = 5.into();
    let next = new.put(&format!("{DAEMONS}/d"), &next).await.body;
    assert_eq!(count(&next), "1");
    let mut changed = next.clone();
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "i:2".into();
    let changed = new.put(&format!("{DAEMONS}/d"), &changed).await.body;
    assert_eq!(count(&changed), "2");
    assert_eq!(changed["metadata"]["generation"], 3);
}
