//! Patches, server-side apply, and scale.

use serde_json::{Value, json};

use crate::cluster_fixture::Cluster;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "web:1"}]},
            },
        },
    })
}

#[tokio::test]
async fn every_patch_type_is_supported() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.new).await;
    assert_eq!(client.post(DEPLOYMENTS, &deployment()).await.code, 201);
    let path = format!("{DEPLOYMENTS}/web");
    let strategic = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "side", "image": "side:1"},
    ]}}}});
    let form = "application/strategic-merge-patch+json";
    let response = client.patch(&path, form, &strategic).await.body;
    let containers = response["spec"]["template"]["spec"]["containers"]
        .as_array()
        .unwrap();
    assert_eq!(containers.len(), 2, "{response}");
    assert_eq!(response["metadata"]["generation"], 2);
    let json_patch = json!([
        {"op": "test", "path": "/apiVersion", "value": "apps/v1"},
        {"op": "replace", "path": "/spec/replicas", "value": 3},
    ]);
    let response = client
        .patch(&path, "application/json-patch+json", &json_patch)
        .await;
    assert_eq!(response.body["spec"]["replicas"], 3, "{response:?}");
    let merge =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "one", "image": "i"}]}}}});
    let response = client
        .patch(&path, "application/merge-patch+json", &merge)
        .await
        .body;
    let containers = response["spec"]["template"]["spec"]["containers"].as_array();
    assert_eq!(containers.unwrap().len(), 1);
    let unknown = client.patch(&path, "application/json", &merge).await;
    assert_eq!(unknown.code, 415);
    let version = &response["metadata"]["resourceVersion"];
    let stale = json!({"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 9}});
    let refused = client
        .patch(&path, "application/merge-patch+json", &stale)
        .await;
    assert_eq!(refused.code, 409);
    // A patch that changes nothing is no write.
    let same = client
        .patch(&path, "application/merge-patch+json", &json!({}))
        .await;
    assert_eq!(&same.body["metadata"]["resourceVersion"], version);
}

#[tokio::test]
async fn server_side_apply_tracks_ownership() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.new).await;
    let form = "application/apply-patch+yaml";
    let path = format!("{MAPS}/settings");
    let object = |value: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "settings"}, "data": {"colour": value},
        })
    };
    let anonymous = client.patch(&path, form, &object("red")).await;
    assert_eq!(anonymous.code, 422, "{anonymous:?}");
    let one = format!("{path}?fieldManager=one");
    let made = client.patch(&one, form, &object("red")).await;
    assert_eq!(made.code, 201, "{made:?}");
    let again = client.patch(&one, form, &object("red")).await;
    assert_eq!(again.code, 200);
    assert_eq!(
        again.body["metadata"]["resourceVersion"],
        made.body["metadata"]["resourceVersion"]
    );
    let two = format!("{path}?fieldManager=two");
    let refused = client.patch(&two, form, &object("blue")).await;
    assert_eq!(refused.code, 409);
    assert_eq!(
        refused.body["message"],
        "Apply failed with 1 conflict: conflict with \"one\": .data.colour"
    );
    let forced = client
        .patch(&format!("{two}&force=true"), form, &object("blue"))
        .await;
    assert_eq!(forced.body["data"]["colour"], "blue");
    let wrong = client
        .patch(
            &format!("{path}?force=true"),
            "application/merge-patch+json",
            &json!({}),
        )
        .await;
    assert_eq!(wrong.code, 422);
}

#[tokio::test]
async fn a_deployment_is_scaled_beside_the_rest() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.old).await;
    client.post(DEPLOYMENTS, &deployment()).await;
    let path = format!("{DEPLOYMENTS}/web/scale");
    let mut scale = client.get(&path).await.body;
    assert_eq!(
        (&scale["kind"], &scale["spec"]["replicas"]),
        (&json!("Scale"), &json!(1))
    );
    assert_eq!(scale["status"]["selector"], "app=web");
    scale["spec"]["replicas"] = 4.into();
    assert_eq!(client.put(&path, &scale).await.body["spec"]["replicas"], 4);
    assert_eq!(client.put(&path, &scale).await.code, 409);
    let form = "application/merge-patch+json";
    let response = client
        .patch(&path, form, &json!({"spec": {"replicas": 2}}))
        .await;
    assert_eq!(response.body["spec"]["replicas"], 2);
    let deployment = client.get(&format!("{DEPLOYMENTS}/web")).await.body;
    assert_eq!(deployment["spec"]["replicas"], 2);
    let wrong = client
        .patch(&path, form, &json!({"spec": {"replicas": -1}}))
        .await;
    assert_eq!(wrong.code, 422);
}
