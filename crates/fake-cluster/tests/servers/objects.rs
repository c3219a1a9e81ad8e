//! Creating, reading, changing and deleting objects.

use http::Method;
use serde_json::{Value, json};
use skewbridge_k8s_api::protobuf::{Writer, envelope};
use skewbridge_testkit::eventually;

use crate::cluster_fixture::Cluster;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TEST_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

fn config_map(name: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"app": name}},
        "data": {"key": value},
    })
}

#[tokio::test]
async fn a_write_at_one_server_is_visible_at_all() {
    let cluster = Cluster::start().await;
    let old = cluster.admin(&cluster.old).await;
    let made = old.post(MAPS, &config_map("web", "1")).await;
    assert_eq!(made.code, 201, "{made:?}");
    assert_eq!(made.body["kind"], "ConfigMap");
    assert_eq!(
        made.body["metadata"]["managedFields"][0]["manager"],
        "tester"
    );
    for server in cluster.servers() {
        let client = cluster.admin(server).await;
        let found = client.get(&format!("{MAPS}/web")).await;
        assert_eq!(found.code, 200);
        assert_eq!(found.body, made.body);
        let listed = client.get(MAPS).await;
        assert_eq!(listed.body["kind"], "ConfigMapList");
        assert_eq!(listed.body["items"].as_array().unwrap().len(), 1);
        let again = client.post(MAPS, &config_map("web", "2")).await;
        assert_eq!(again.code, 409);
        assert_eq!(again.body["message"], r#"configmaps "web" already exists"#);
    }
}

#[tokio::test]
async fn an_object_of_an_unserved_version_is_404() {
    let cluster = Cluster::start().await;
    let (old, new) = (
        cluster.admin(&cluster.old).await,
        cluster.admin(&cluster.new).await,
    );
    let policies = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
    let made = new
        .post(policies, &json!({"metadata": {"name": "p"}, "spec": {}}))
        .await;
    assert_eq!(made.code, 201, "{made:?}");
    let missing = old.get(&format!("{policies}/p")).await;
    assert_eq!(missing.code, 404);
    let words = "the server could not find the requested resource";
    assert_eq!(missing.body["message"], words);
    // An unknown version has a different message.
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    assert_eq!(old.get(claims).await.body, "404 page not found\n");
    assert_eq!(new.get(claims).await.code, 200);
    let unknown = new.get("/api/v1/namespaces/default/gizmos").await;
    assert_eq!(unknown.body["message"], words);
}

#[tokio::test]
async fn conflicting_writes_are_refused() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.new).await;
    let other = cluster.admin(&cluster.old).await;
    let mut object = client.post(MAPS, &config_map("web", "1")).await.body;
    let path = format!("{MAPS}/web");
    let mut concurrent = object.clone();
    concurrent["data"]["key"] = "2".into();
    assert_eq!(other.put(&path, &concurrent).await.code, 200);
    object["data"]["key"] = "3".into();
    let refused = client.put(&path, &object).await;
    assert_eq!(
        (refused.code, &refused.body["reason"]),
        (409, &json!("Conflict"))
    );
    // A dry run changes nothing.
    let before = client.get(&path).await.body;
    let mut next = before.clone();
    next["data"]["key"] = "4".into();
    let tried = client.put(&format!("{path}?dryRun=All"), &next).await;
    assert_eq!(tried.body["data"]["key"], "4");
    assert_eq!(client.get(&path).await.body, before);
    let wrong = client.delete(&format!("{path}?dryRun=maybe")).await;
    assert_eq!(wrong.code, 422, "{wrong:?}");
    // Preconditions and finalizers.
    let options = json!({"preconditions": {"uid": "another"}});
    let refused = client.json(Method::DELETE, &path, &options).await;
    assert_eq!(refused.code, 409);
    next["metadata"]["finalizers"] = json!(["example.com/hold"]);
    assert_eq!(client.put(&path, &next).await.code, 200);
    let pending = client.delete(&path).await;
    assert_eq!(pending.code, 200);
    assert!(pending.body["metadata"]["deletionTimestamp"].is_string());
    let freed = json!([{"op": "remove", "path": "/metadata/finalizers"}]);
    let freed = client
        .patch(&path, "application/json-patch+json", &freed)
        .await;
    assert_eq!(freed.code, 200, "{freed:?}");
    assert_eq!(client.get(&path).await.code, 404);
}

#[tokio::test]
async fn lists_have_pages_and_selectors() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.middle).await;
    for name in ["a", "b", "c", "d", "e"] {
        assert_eq!(client.post(MAPS, &config_map(name, "1")).await.code, 201);
    }
    let names = |response: &Value| -> Vec<String> {
        let items = response["items"].as_array().unwrap().iter();
        items
            .map(|it| it["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let first = client.get(&format!("{MAPS}?limit=2")).await.body;
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    // Objects that are created meanwhile are not on later pages.
    assert_eq!(client.post(MAPS, &config_map("bb", "1")).await.code, 201);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let rest = client
        .get(&format!("{MAPS}?limit=9&continue={token}"))
        .await
        .body;
    assert_eq!(names(&rest), ["c", "d", "e"]);
    assert_eq!(
        rest["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    let selected = client
        .get(&format!("{MAPS}?labelSelector=app+in+(a,e)"))
        .await
        .body;
    assert_eq!(names(&selected), ["a", "e"]);
    let selected = client
        .get(&format!("{MAPS}?fieldSelector=metadata.name%3Dc"))
        .await
        .body;
    assert_eq!(names(&selected), ["c"]);
    let everywhere = client.get("/api/v1/configmaps").await.body;
    assert_eq!(everywhere["items"].as_array().unwrap().len(), 6);
    let expired = client
        .delete(&format!("{MAPS}?labelSelector=app!%3Da"))
        .await;
    assert_eq!(
        (
            expired.code,
            expired.body["items"].as_array().unwrap().len()
        ),
        (200, 5)
    );
    assert_eq!(names(&client.get(MAPS).await.body), ["a"]);
    let wrong = client.get(&format!("{MAPS}?limit=many")).await;
    assert_eq!(wrong.code, 400);
}

#[tokio::test]
async fn tables_are_served() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.old).await;
    client.post(MAPS, &config_map("web", "1")).await;
    let accept = [(
        "accept",
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
    )];
    let table = client
        .send_request(Method::GET, MAPS, &accept, "")
        .await
        .body;
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["rows"][0]["cells"][0], "web");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let protobuf = [("accept", "application/vnd.kubernetes.protobuf")];
    assert_eq!(
        client
            .send_request(Method::GET, MAPS, &protobuf, "")
            .await
            .code,
        406
    );
    let media = [("content-type", "application/cbor")];
    assert_eq!(
        client
            .send_request(Method::POST, MAPS, &media, "k8s")
            .await
            .code,
        415
    );
}

#[tokio::test]
async fn objects_are_accepted_in_yaml_and_protobuf() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.new).await;
    let media = [("content-type", "application/yaml")];
    let yaml = "metadata:\n  name: yaml\ndata:\n  key: value\n";
    let made = client.send_request(Method::POST, MAPS, &media, yaml).await;
    assert_eq!(
        (made.code, &made.body["data"]["key"]),
        (201, &json!("value"))
    );
    let metadata = Writer::default().text(1, "protobuf");
    let data = Writer::default().text(1, "key").text(2, "value");
    let object = Writer::default().message(1, metadata).message(2, data);
    let bytes = envelope("v1", "ConfigMap", object);
    let media = [("content-type", "application/vnd.kubernetes.protobuf")];
    let made = client.send_request(Method::POST, MAPS, &media, bytes).await;
    assert_eq!(made.code, 201, "{made:?}");
    assert_eq!(made.body["data"]["key"], "value");
}

#[tokio::test]
async fn unknown_fields_are_refused_or_cause_warnings() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.new).await;
    let mut object = config_map("web", "1");
    object["dat"] = json!({});
    let refused = client
        .post(&format!("{MAPS}?fieldValidation=Strict"), &object)
        .await;
    assert_eq!(refused.code, 400);
    assert_eq!(
        refused.body["message"],
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: \
         unknown field \"dat\""
    );
    let request = http::Request::post(format!("https://localhost{MAPS}"));
    let request = request.body(()).unwrap();
    let made = client.0.request(request, object.to_string()).await.unwrap();
    assert_eq!(made.status, 201);
    assert_eq!(
        made.header("warning"),
        Some(r#"299 - "unknown field \"dat\"""#)
    );
    let stored = client.get(&format!("{MAPS}/web")).await.body;
    assert!(stored.get("dat").is_none());
    let wrong = client
        .post(MAPS, &json!({"metadata": {"name": "x"}, "data": {"a": 1}}))
        .await;
    assert_eq!(wrong.code, 400);
}

#[tokio::test]
async fn defaults_are_filled_in() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.old).await;
    let services = "/api/v1/namespaces/default/services";
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    let made = client.post(services, &service).await.body;
    let address = made["spec"]["clusterIP"].as_str().unwrap();
    assert!(address.starts_with("10.97."), "{made}");
    // An update without the address keeps it.
    let again = client.put(&format!("{services}/web"), &service).await.body;
    assert_eq!(again["spec"]["clusterIP"], address);
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}});
    let made = client.post(secrets, &secret).await.body;
    assert_eq!(
        (&made["data"]["a"], &made["type"]),
        (&json!("Yg=="), &json!("Opaque"))
    );
    let pods = "/api/v1/namespaces/default/pods";
    let refused = client
        .post(pods, &json!({"metadata": {"name": "p"}, "spec": {}}))
        .await;
    assert_eq!(
        refused.body["message"],
        "Pod \"p\" is invalid: spec.containers: Required value"
    );
}

#[tokio::test]
async fn names_are_generated_and_validated() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.old).await;
    let made = client
        .post(MAPS, &json!({"metadata": {"generateName": "web-"}}))
        .await;
    assert_eq!(made.code, 201);
    let name = made.body["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("web-") && name.len() == 9, "{name}");
    let wrong = client.post(MAPS, &config_map("Not_A_Name", "1")).await;
    assert_eq!(
        (wrong.code, &wrong.body["reason"]),
        (422, &json!("Invalid"))
    );
    let nowhere = client
        .post(
            "/api/v1/namespaces/nowhere/configmaps",
            &config_map("web", "1"),
        )
        .await;
    assert_eq!(nowhere.body["message"], r#"namespaces "nowhere" not found"#);
    let other_kind = client
        .post(MAPS, &json!({"kind": "Secret", "apiVersion": "v1"}))
        .await;
    assert_eq!(other_kind.code, 400);
    let too_much = "x".repeat(3 * 1024 * 1024 + 1);
    let refused = client.post(MAPS, &config_map("large", &too_much)).await;
    assert_eq!(refused.code, 413, "{refused:?}");
}

#[tokio::test]
async fn a_namespace_is_deleted_with_its_content() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.new).await;
    let made = client
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}}))
        .await;
    assert_eq!(made.body["status"]["phase"], "Active");
    let inside = "/api/v1/namespaces/shop/configmaps";
    client.post(inside, &config_map("plain", "1")).await;
    let mut held = config_map("held", "1");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    client.post(inside, &held).await;
    let ending = client.delete("/api/v1/namespaces/shop").await;
    assert_eq!(ending.body["status"]["phase"], "Terminating");
    let late = client.post(inside, &config_map("late", "1")).await;
    assert_eq!(late.code, 403);
    eventually(
        "objects without finalizers are deleted",
        TEST_TIMEOUT,
        async || client.get(&format!("{inside}/plain")).await.code == 404,
    )
    .await;
    assert_eq!(client.get("/api/v1/namespaces/shop").await.code, 200);
    let freed = json!({"metadata": {"finalizers": null}});
    let path = format!("{inside}/held");
    let freed = client
        .patch(&path, "application/merge-patch+json", &freed)
        .await;
    assert_eq!(freed.code, 200);
    eventually("the namespace is gone", TEST_TIMEOUT, async || {
        client.get("/api/v1/namespaces/shop").await.code == 404
    })
    .await;
    let immortal = client.delete("/api/v1/namespaces/default").await;
    assert_eq!(immortal.code, 403);
}

#[tokio::test]
async fn pods_on_a_node_get_their_grace_period() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.new).await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({
        "metadata": {"name": "web"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
    });
    let made = client.post(pods, &pod).await;
    assert_eq!(made.body["status"]["phase"], "Pending");
    let path = format!("{pods}/web");
    let ending = client.delete(&format!("{path}?gracePeriodSeconds=7")).await;
    assert_eq!(ending.body["metadata"]["deletionGracePeriodSeconds"], 7);
    assert_eq!(client.get(&path).await.code, 200);
    // A status update does not end it.
    let status = json!({"status": {"phase": "Running"}});
    let form = "application/merge-patch+json";
    let response = client.patch(&format!("{path}/status"), form, &status).await;
    assert_eq!(response.body["status"]["phase"], "Running");
    let deleted = client.delete(&format!("{path}?gracePeriodSeconds=0")).await;
    assert_eq!((deleted.code, &deleted.body["kind"]), (200, &json!("Pod")));
    assert_eq!(client.get(&path).await.code, 404);
}

#[tokio::test]
async fn dependents_are_garbage_collected() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.old).await;
    for (policy, stays) in [("Background", false), ("Orphan", true)] {
        let owner = client.post(MAPS, &config_map("owner", "1")).await.body;
        let mut child = config_map("child", "1");
        child["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
            "uid": owner["metadata"]["uid"],
        }]);
        assert_eq!(client.post(MAPS, &child).await.code, 201);
        let response = client
            .delete(&format!("{MAPS}/owner?propagationPolicy={policy}"))
            .await;
        assert_eq!(response.body["status"], "Success");
        if stays {
            let child = client.get(&format!("{MAPS}/child")).await.body;
            assert_eq!(child["metadata"]["ownerReferences"], json!([]), "{child}");
        } else {
            eventually("the dependent is gone", TEST_TIMEOUT, async || {
                client.get(&format!("{MAPS}/child")).await.code == 404
            })
            .await;
        }
    }
}

#[tokio::test]
async fn few_fields_of_a_pod_can_be_changed() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.new).await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "web"}, "spec": {
        "containers": [{"name": "c", "image": "i", "command": ["x"]}],
    }});
    client.post(pods, &pod).await;
    let path = format!("{pods}/web");
    let form = "application/strategic-merge-patch+json";
    let image = json!({"spec": {"containers": [{"name": "c", "image": "j"}]}});
    assert_eq!(client.patch(&path, form, &image).await.code, 200);
    let command = json!({"spec": {"containers": [{"name": "c", "command": ["y"]}]}});
    let refused = client.patch(&path, form, &command).await;
    assert_eq!(refused.code, 422);
    assert_eq!(refused.body["reason"], "Invalid");
    assert_eq!(
        refused.body["message"],
        "Pod \"web\" is invalid: spec: Forbidden: pod updates may not change fields other than \
         `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
         `spec.tolerations` (only additions to existing tolerations),\
         `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously \
         negative)"
    );
    let applied = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "c", "image": "j", "command": ["y"]}]},
    });
    let apply = format!("{path}?fieldManager=me&force=true");
    let refused = client
        .patch(&apply, "application/apply-patch+yaml", &applied)
        .await;
    assert_eq!(refused.code, 422, "{refused:?}");
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(client.patch(&path, form, &label).await.code, 200);
    let node = json!({"metadata": {"name": "web"}, "target": {"name": "n"}});
    let bound = client.post(&format!("{path}/binding"), &node).await;
    assert_eq!(bound.code, 201, "{bound:?}");
    let debug = json!({"spec": {
        "nodeName": "other",
        "ephemeralContainers": [{"name": "debug", "image": "busybox"}],
    }});
    let response = client
        .patch(&format!("{path}/ephemeralcontainers"), form, &debug)
        .await;
    assert_eq!(response.code, 200, "{response:?}");
    assert_eq!(
        response.body["spec"]["ephemeralContainers"][0]["name"],
        "debug"
    );
    assert_eq!(response.body["spec"]["nodeName"], "n");
}

#[tokio::test]
async fn large_objects_are_refused() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.new).await;
    let path = "/apis/apps/v1/namespaces/default/controllerrevisions";
    let large = |bytes| json!({"metadata": {"name": "large"}, "revision": 1, "data": {"a": "x".repeat(bytes)}});
    let refused = client.post(path, &large(1_600_000)).await;
    assert_eq!(
        (refused.code, &refused.body["message"]),
        (500, &json!("etcdserver: request is too large"))
    );
    assert_eq!(client.post(path, &large(1_000_000)).await.code, 201);
    let copies: Vec<Value> = (0..8)
        .map(|number| json!({"op": "copy", "from": "/data/a", "path": format!("/data/b{number}")}))
        .collect();
    let form = "application/json-patch+json";
    let path = format!("{path}/large");
    let refused = client.patch(&path, form, &Value::Array(copies)).await;
    assert_eq!(refused.code, 422, "{refused:?}");
}
