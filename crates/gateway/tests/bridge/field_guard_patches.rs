//! Patches that replace objects and lists, with fields in them that only one server has.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use skewbridge_gateway::Handle;
use skewbridge_gateway::field_guard::FieldGuard;
use skewbridge_testkit::{RecordedRequest, Reply, Response, TEST_TIMEOUT, eventually};

use crate::field_guard::wait_until_fields_are_known;
use crate::support::cluster::{ClusterFixture, PeerServer, SHARED, send_request};
use crate::support::fake_apiserver::DiscoveryFormat;

const OBJECT_PATH: &str = "/apis/apps/v1/namespaces/a/deployments/d";

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// A field with this name is known to the newer server only, in every object.
const NEW: &str = "new";

/// An operation that this server understands and the bridge does not.
const OWN_INDEX: &str = "/spec/items/{'name':'a'}";

/// The object in etcd.
type Stored = Arc<Mutex<Value>>;

/// The stored object: `items` are merged by name in a strategic merge patch, and `atomic` is replaced.
fn stored() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "d", "resourceVersion": "7", "managedFields": [
            {"manager": "m", "fieldsV1": {"f:spec": {"f:new": {}}}}]},
        "spec": {"old": "x", "new": "y",
            "sub": {"old": "x", "new": "y"},
            "items": [{"name": "a", "old": "x", "new": "y"}, {"name": "b", "old": "x"}],
            "atomic": [{"old": "x", "new": "y"}]}})
}

/// The stored object without the field, which its managers have not set.
fn harmless() -> Value {
    let mut object = without_new(&stored());
    object["metadata"]["managedFields"] =
        json!([{"manager": "m", "fieldsV1": {"f:spec": {"f:old": {}}}}]);
    object
}

fn without_new(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let fields = object.iter().filter(|(name, _)| *name != NEW);
            let fields = fields.map(|(name, value)| (name.clone(), without_new(value)));
            Value::Object(fields.collect())
        }
        Value::Array(items) => items.iter().map(without_new).collect(),
        other => other.clone(),
    }
}

fn schemas(has_new: bool) -> Value {
    let reference = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let item = json!({"old": {}, "new": {}, "name": {}});
    let spec = json!({"old": {}, "new": {}, "alt": {}, "sub": reference("Item"),
        "items": {"items": reference("Item")}, "atomic": {"items": reference("Item")}});
    let schemas = json!({"components": {"schemas": {
        "io.k8s.api.apps.v1.Deployment": {
            "properties": {"spec": reference("Spec")},
            "x-kubernetes-group-version-kind":
                [{"group": "apps", "version": "v1", "kind": "Deployment"}]},
        "Spec": {"properties": spec}, "Item": {"properties": item}}}});
    if has_new {
        schemas
    } else {
        without_new(&schemas)
    }
}

/// A server over the same etcd as the others.
fn serve(recorded: &RecordedRequest, has_new: bool, stored: &Stored) -> Option<Reply> {
    if recorded.path() == "/openapi/v3/apis/apps/v1" {
        return Some(Reply::json(schemas(has_new).to_string()));
    }
    if recorded.path() != OBJECT_PATH {
        return None;
    }
    let known = |object: &Value| {
        if has_new {
            object.clone()
        } else {
            without_new(object)
        }
    };
    let mut stored = stored.lock().unwrap();
    let mut result = known(&stored);
    if recorded.method == "GET" {
        return Some(Reply::json(result.to_string()));
    }
    let version = stored["metadata"]["resourceVersion"].clone();
    let body = serde_json::from_slice(&recorded.body).unwrap_or_default();
    match (recorded.method.as_str(), recorded.header("content-type")) {
        ("PATCH", Some(JSON)) => {
            for operation in body_operations(&body) {
                if let Err(message) = apply_operation(&mut result, operation) {
                    return Some(status(422, message));
                }
            }
        }
        ("PATCH", content_type) => merge(&mut result, &body, content_type == Some(STRATEGIC)),
        ("DELETE", _) => {
            let expected = &body["preconditions"]["resourceVersion"];
            if !expected.is_null() && *expected != version {
                return Some(status(409, "the object has been modified"));
            }
            // It has a finalizer.
            result["metadata"]["deletionTimestamp"] = json!("now");
        }
        _ => {}
    }
    if result["metadata"]["resourceVersion"] != version {
        return Some(status(409, "the object has been modified"));
    }
    if result["metadata"]["labels"]["owned"] == "by another manager" {
        return Some(status(409, "conflict with another manager"));
    }
    let result = known(&result);
    if result["spec"]["alt"] == "z" && !result["spec"][NEW].is_null() {
        return Some(status(422, "spec.new: Forbidden"));
    }
    if !recorded.query().is_some_and(|it| it.contains("dryRun=All")) {
        *stored = result.clone();
    }
    Some(Reply::json(result.to_string()))
}

fn body_operations(body: &Value) -> impl Iterator<Item = &Value> {
    body.as_array().into_iter().flatten()
}

fn apply_operation(object: &mut Value, operation: &Value) -> Result<(), &'static str> {
    let path = operation["path"].as_str().unwrap();
    let path = if path == OWN_INDEX {
        "/spec/items/0"
    } else {
        path
    };
    let (container, name) = path.rsplit_once('/').unwrap();
    let container = object.pointer_mut(container).ok_or("missing path")?;
    match (operation["op"].as_str().unwrap(), container) {
        ("test", container) if container[name] == operation["value"] => {}
        ("test", _) => return Err("test failed"),
        ("remove", Value::Object(object)) => {
            object.remove(name);
        }
        ("remove", Value::Array(items)) => {
            items.remove(name.parse().unwrap());
        }
        (_, Value::Object(object)) => {
            object.insert(name.to_owned(), operation["value"].clone());
        }
        ("add", Value::Array(items)) if name == "-" => items.push(operation["value"].clone()),
        ("replace", Value::Array(items)) => {
            items[name.parse::<usize>().unwrap()] = operation["value"].clone();
        }
        _ => return Err("missing path"),
    }
    Ok(())
}

/// A JSON merge patch, or a strategic one.
fn merge(object: &mut Value, patch: &Value, is_strategic: bool) {
    let Some(changes) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if is_strategic && changes.get("$patch") == Some(&json!("replace")) {
        *object = json!({});
    }
    if !object.is_object() {
        *object = json!({});
    }
    let target = object.as_object_mut().unwrap();
    if let Some(keys) = changes.get("$retainKeys").filter(|_| is_strategic) {
        target.retain(|name, _| keys.as_array().unwrap().contains(&json!(name)));
    }
    for (name, value) in changes.iter().filter(|(name, _)| !name.starts_with('$')) {
        let is_deleted = value["$patch"] == "delete";
        if value.is_null() || (is_strategic && is_deleted) {
            target.remove(name);
        } else if let (Some(Value::Array(items)), Value::Array(changed), true) =
            (target.get_mut(name), value, is_strategic && name == "items")
        {
            if changed.iter().any(|it| it["$patch"] == "replace") {
                items.clear();
            }
            for change in changed.iter().filter(|it| !it["name"].is_null()) {
                match items.iter_mut().find(|it| it["name"] == change["name"]) {
                    Some(item) => merge(item, change, is_strategic),
                    None => items.push(change.clone()),
                }
            }
        } else {
            merge(
                target.entry(name).or_insert(json!(null)),
                value,
                is_strategic,
            );
        }
    }
}

fn status(code: u16, message: &str) -> Reply {
    let status = json!({"kind": "Status", "code": code, "message": message});
    Reply::new(code)
        .header("content-type", "application/json")
        .body(status.to_string())
}

struct MixedCluster {
    fixture: ClusterFixture,
    b: PeerServer,
    bridge: Handle,
    stored: Stored,
}

impl MixedCluster {
    /// The local server has version 1.34.4, the peer 1.36.4.
    async fn start() -> Self {
        let fixture = ClusterFixture::new(&[]).await;
        fixture.local.set_version("v1.34.4", DiscoveryFormat::V2);
        let stored = Stored::new(Mutex::new(stored()));
        let etcd = stored.clone();
        (fixture.local).set_hook(move |recorded| serve(recorded, false, &etcd));
        let b = fixture.peer("apiserver-b", &[SHARED]).await;
        let etcd = stored.clone();
        (b.apiserver).set_hook(move |recorded| serve(recorded, true, &etcd));
        let mut config = fixture.config();
        config.peers.guards.fields = FieldGuard::Writes;
        let bridge = fixture.start_with(&config).await;
        wait_until_fields_are_known(&bridge).await;
        Self {
            fixture,
            b,
            bridge,
            stored,
        }
    }

    async fn send(&self, method: &str, content_type: &str, body: &str) -> Response {
        let client = self.fixture.alice();
        let headers = [("content-type", content_type)];
        let headers = if body.is_empty() { &[][..] } else { &headers };
        let body = body.to_owned();
        send_request(&client, &self.bridge, method, OBJECT_PATH, headers, body).await
    }

    async fn patch(&self, content_type: &str, patch: &Value) -> Response {
        self.send("PATCH", content_type, &patch.to_string()).await
    }

    fn store(&self, object: Value) {
        *self.stored.lock().unwrap() = object;
    }

    fn spec(&self) -> Value {
        self.stored.lock().unwrap()["spec"].clone()
    }
}

/// A server to which another client writes the field before the first write of a test.
fn serve_after_other_client(
    has_new: bool,
    stored_object: &Stored,
) -> impl Fn(&RecordedRequest) -> Option<Reply> + use<> {
    let (etcd, writes) = (stored_object.clone(), AtomicU32::new(0));
    move |recorded| {
        let is_dry_run = recorded.query().is_some_and(|it| it.contains("dryRun"));
        let is_write = recorded.path() == OBJECT_PATH && recorded.method != "GET";
        if is_write && !is_dry_run && writes.fetch_add(1, Ordering::Relaxed) == 0 {
            let mut with_field = stored();
            with_field["metadata"]["resourceVersion"] = json!("8");
            *etcd.lock().unwrap() = with_field;
        }
        serve(recorded, has_new, &etcd)
    }
}

fn replace(path: &str, value: &Value) -> Value {
    json!({"op": "replace", "path": path, "value": value})
}

/// What a client of the older server has read, and changed.
fn stale_spec() -> Value {
    let mut spec = without_new(&stored()["spec"]);
    spec["old"] = json!("z");
    spec
}

#[tokio::test]
async fn a_patch_that_replaces_objects_or_lists_keeps_their_fields() {
    let cluster = MixedCluster::start().await;
    let spec = stale_spec();
    let (sub, items, atomic) = (&spec["sub"], &spec["items"], &spec["atomic"]);
    let with_directive = |value: &Value| {
        let mut value = value.clone();
        value["$patch"] = json!("replace");
        value
    };
    let mut replaced_items = items.clone();
    replaced_items
        .as_array_mut()
        .unwrap()
        .insert(0, json!({"$patch": "replace"}));
    // The patch, and the requests that the server with every field gets for it.
    let rows = [
        (JSON, json!([replace("/spec", &spec)]), 2),
        (JSON, json!([replace("/spec/sub", sub)]), 2),
        (JSON, json!([replace("/spec/items", items)]), 2),
        (JSON, json!([replace("/spec/items/0", &items[0])]), 2),
        (
            JSON,
            json!([{"op": "remove", "path": "/spec"}, {"op": "add", "path": "/spec", "value": spec}]),
            2,
        ),
        (MERGE, json!({"spec": {"items": items}}), 2),
        (MERGE, json!({"spec": spec}), 2),
        (STRATEGIC, json!({"spec": with_directive(&spec)}), 3),
        (
            STRATEGIC,
            with_directive(&json!({"apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": "d", "resourceVersion": "7"}, "spec": spec})),
            3,
        ),
        (STRATEGIC, json!({"spec": {"sub": with_directive(sub)}}), 3),
        (
            STRATEGIC,
            json!({"spec": {"sub": {"$retainKeys": ["old"], "old": "z"}}}),
            3,
        ),
        (STRATEGIC, json!({"spec": {"items": replaced_items}}), 3),
        (STRATEGIC, json!({"spec": {"atomic": atomic}}), 3),
    ];
    for (content_type, patch, expected) in rows {
        cluster.store(stored());
        let before = cluster.b.client_requests().len();
        let answer = cluster.patch(content_type, &patch).await;
        assert_eq!(answer.status, 200, "{patch} {}", answer.text());
        let warning = answer.header("warning").unwrap_or_default();
        assert!(warning.contains("were kept"), "{patch} {warning}");
        let mut kept = cluster.spec();
        assert!(
            ["x", "z"].contains(&kept["old"].as_str().unwrap()),
            "{patch} {kept}"
        );
        kept["old"] = json!("x");
        if patch["spec"]["sub"].is_object() {
            kept["sub"]["old"] = json!("x");
        }
        assert_eq!(kept, stored()["spec"], "{patch}");
        assert_eq!(
            cluster.b.client_requests().len() - before,
            expected,
            "{patch}"
        );
    }
    assert!(cluster.fixture.local.client_requests().is_empty());
}

#[tokio::test]
async fn a_patch_that_erases_nothing_is_not_changed() {
    let cluster = MixedCluster::start().await;
    let remove = |path: &str| json!({"op": "remove", "path": path});
    // The patch, where the result differs from the stored object, and the number of requests.
    let rows = [
        (JSON, json!([remove("/spec/new")]), Some("/spec/new"), 1),
        (JSON, json!([remove("/spec/sub")]), Some("/spec/sub"), 1),
        (
            JSON,
            json!([remove("/spec/items/0/new")]),
            Some("/spec/items/0/new"),
            1,
        ),
        (
            JSON,
            json!([replace("/metadata/labels", &json!({"a": "b"}))]),
            None,
            1,
        ),
        (JSON, json!([replace("/spec/old", &json!("x"))]), None, 1),
        (
            JSON,
            json!([replace("/spec/sub", &json!({"old": "x", "new": "y"}))]),
            None,
            2,
        ),
        (MERGE, json!({"spec": {"new": null}}), Some("/spec/new"), 1),
        (MERGE, json!({"metadata": {"labels": {"a": "b"}}}), None, 1),
        (
            MERGE,
            json!({"spec": {"items": stored()["spec"]["items"]}}),
            None,
            2,
        ),
        (
            STRATEGIC,
            json!({"spec": {"sub": {"$patch": "delete"}}}),
            Some("/spec/sub"),
            1,
        ),
        (
            STRATEGIC,
            json!({"spec": {"old": "x", "sub": {"old": "x"}}}),
            None,
            1,
        ),
        // These lists are merged.
        (
            STRATEGIC,
            json!({"spec": {"items": [{"name": "a", "old": "x"}]}}),
            None,
            3,
        ),
        (
            STRATEGIC,
            json!({"spec": {"items": [{"name": "a", "new": null}, {"name": "b", "old": "x"}]}}),
            Some("/spec/items/0/new"),
            3,
        ),
    ];
    for (content_type, patch, removed, expected) in rows {
        cluster.store(stored());
        let before = cluster.b.client_requests().len();
        let answer = cluster.patch(content_type, &patch).await;
        assert_eq!(answer.status, 200, "{patch} {}", answer.text());
        assert_eq!(answer.header("warning"), None, "{patch}");
        let mut left = stored();
        if let Some((container, name)) = removed.and_then(|it| it.rsplit_once('/')) {
            let container = left.pointer_mut(container).unwrap();
            container.as_object_mut().unwrap().remove(name);
        }
        assert_eq!(cluster.spec(), left["spec"], "{patch}");
        assert_eq!(
            cluster.b.client_requests().len() - before,
            expected,
            "{patch}"
        );
    }
}

/// The server applies the patch in a way that the bridge does not know.
#[tokio::test]
async fn a_patch_that_erases_a_field_and_cannot_be_completed_is_rejected() {
    let cluster = MixedCluster::start().await;
    let patch = json!([replace(OWN_INDEX, &json!({"name": "a"}))]);
    let answer = cluster.patch(JSON, &patch).await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    for expected in ["spec.items[name=a].new", "does not name them"] {
        assert!(answer.text().contains(expected), "{}", answer.text());
    }
    assert_eq!(cluster.spec(), stored()["spec"]);
    // It may be sent if it erases nothing.
    let harmless = json!([replace(OWN_INDEX, &json!({"name": "a", "new": "z"}))]);
    let answer = cluster.patch(JSON, &harmless).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(cluster.spec()["items"][0], json!({"name": "a", "new": "z"}));
}

#[tokio::test]
async fn a_patch_that_its_server_rejects_gets_the_response_of_the_server() {
    let cluster = MixedCluster::start().await;
    let test = json!({"op": "test", "path": "/spec/old", "value": "other"});
    let rows = [
        (
            JSON,
            json!([test, replace("/spec", &stale_spec())]),
            "test failed",
        ),
        (JSON, json!([replace("/spec/none/sub", &json!({}))]), ""),
        (
            JSON,
            json!([
                replace("/spec/items/9/sub", &json!({})),
                replace("/spec", &stale_spec())
            ]),
            "missing path",
        ),
    ];
    for (content_type, patch, expected) in rows {
        let answer = cluster.patch(content_type, &patch).await;
        assert_eq!(answer.status, 422, "{patch} {}", answer.text());
        assert!(
            answer.text().contains(expected),
            "{patch} {}",
            answer.text()
        );
        assert_eq!(cluster.spec(), stored()["spec"]);
    }
    // A field whose place another one takes is left out.
    let mut spec = stale_spec();
    spec["alt"] = json!("z");
    for (content_type, patch) in [
        (JSON, json!([replace("/spec", &spec)])),
        (
            STRATEGIC,
            json!({"spec": {"$retainKeys": ["old", "alt", "sub", "items", "atomic"], "alt": "z"}}),
        ),
    ] {
        cluster.store(stored());
        let answer = cluster.patch(content_type, &patch).await;
        assert_eq!(answer.status, 200, "{patch} {}", answer.text());
        let spec = cluster.spec();
        assert_eq!(
            (&spec["alt"], &spec[NEW]),
            (&json!("z"), &json!(null)),
            "{patch}"
        );
        assert_eq!(spec["sub"][NEW], "y", "{patch}");
    }
}

#[tokio::test]
async fn a_field_that_is_set_after_the_check_of_a_patch_is_kept() {
    let cluster = MixedCluster::start().await;
    let spec = stale_spec();
    for (content_type, patch) in [
        (JSON, json!([replace("/spec", &spec)])),
        (MERGE, json!({"spec": spec})),
        (STRATEGIC, json!({"spec": {"atomic": spec["atomic"]}})),
    ] {
        cluster.store(harmless());
        let hook = serve_after_other_client(true, &cluster.stored);
        cluster.b.apiserver.set_hook(hook);
        let answer = cluster.patch(content_type, &patch).await;
        assert_eq!(answer.status, 200, "{patch} {}", answer.text());
        let mut kept = cluster.spec();
        kept["old"] = json!("x");
        assert_eq!(kept, stored()["spec"], "{patch}");
    }
}

/// The older server is the only one that is available, and another bridge still reaches the newer one.
#[tokio::test]
async fn a_field_that_is_set_after_the_check_is_not_erased_by_a_patch_or_a_deletion() {
    let cluster = MixedCluster::start().await;
    cluster.b.shut_down().await;
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let operations = json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]);
    let rows = [
        ("PATCH", JSON, operations.to_string()),
        ("PATCH", STRATEGIC, label.to_string()),
        ("PATCH", APPLY, label.to_string()),
        ("DELETE", "", String::new()),
        (
            "DELETE",
            "application/json",
            json!({"propagationPolicy": "Orphan"}).to_string(),
        ),
    ];
    cluster.store(harmless());
    eventually("the peer is not used", TEST_TIMEOUT, async || {
        cluster.patch(STRATEGIC, &label).await.status == 200
    })
    .await;
    for (method, content_type, body) in rows {
        cluster.store(harmless());
        let hook = serve_after_other_client(false, &cluster.stored);
        cluster.fixture.local.set_hook(hook);
        let answer = cluster.send(method, content_type, &body).await;
        let described = format!("{method} {content_type} {}", answer.text());
        assert_eq!(answer.status, 503, "{described}");
        assert!(answer.text().contains("would erase them"), "{described}");
        assert_eq!(cluster.spec(), stored()["spec"], "{described}");
        // Without such a change the write succeeds.
        cluster.store(harmless());
        let answer = cluster.send(method, content_type, &body).await;
        assert_eq!(answer.status, 200, "{described}");
    }
    // A conflict for another reason is that of the client.
    cluster.store(harmless());
    let before = cluster.fixture.local.client_requests().len();
    let owned = json!({"metadata": {"labels": {"owned": "by another manager"}}});
    let answer = cluster.patch(APPLY, &owned).await;
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert!(
        answer.text().contains("another manager"),
        "{}",
        answer.text()
    );
    // A read, the write, and a read that shows that the object has not changed.
    assert_eq!(cluster.fixture.local.client_requests().len() - before, 3);
}
