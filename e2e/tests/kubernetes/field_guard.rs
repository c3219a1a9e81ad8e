//! A field that only the new server has survives every kind of write through the bridge of the old
//! one. Directly through the old server it is erased.

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, Protocol, Request, ServerSpec, User, Via, minors_of_one_plane,
    old_and_new_versions,
};
use skewbridge_testkit::{TEST_TIMEOUT, eventually};

use crate::peer_pair::{NEW, OLD, PEER_DISCOVERY_TIMEOUT};

const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";

const DRIVER: &str = "vault";

/// 1.36 has it, and 1.34 does not.
const NEW_FIELD: &str = "serviceAccountTokenInSecrets";

/// An object with a field that only the new server has. `e2e/client-go/update_from_cache.go` has the same
/// names.
struct Guarded {
    /// The path of the collection.
    collection: &'static str,
    resource: &'static str,
    name: &'static str,
    object: Value,
    /// A merge patch of the status.
    status: Option<Value>,
    /// The JSON pointer of the field, and its value.
    field: (&'static str, Value),
    /// The spec of a server-side apply.
    applied_spec: Value,
    /// The subresource of the field, and the JSON pointer of an object or list above it, which patches
    /// replace.
    replaced: (&'static str, &'static str),
}

/// A patch with what the old server shows.
#[derive(Debug)]
struct Patch {
    /// Of the media type.
    kind: &'static str,
    body: Value,
    /// It replaces an object or a list that has the field.
    replaces: bool,
}

impl Guarded {
    fn driver() -> Self {
        Self {
            collection: DRIVERS,
            resource: "csidrivers",
            name: DRIVER,
            object: json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
                "metadata": {"name": DRIVER},
                "spec": {NEW_FIELD: true, "tokenRequests": [{"audience": "vault"}]},
            }),
            status: None,
            field: ("/spec/serviceAccountTokenInSecrets", json!(true)),
            applied_spec: json!({}),
            replaced: ("", "/spec"),
        }
    }

    /// 1.29 has the field behind a feature gate that 1.28 does not have.
    fn claim() -> Self {
        let requests = json!({"requests": {"storage": "1Gi"}});
        Self {
            collection: "/api/v1/namespaces/default/persistentvolumeclaims",
            resource: "persistentvolumeclaims",
            name: "data",
            object: json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "volumeAttributesClassName": "gold",
                    "resources": requests},
            }),
            status: None,
            field: ("/spec/volumeAttributesClassName", json!("gold")),
            applied_spec: json!({"accessModes": ["ReadWriteOnce"], "resources": requests}),
            replaced: ("", "/spec"),
        }
    }

    /// 1.37 has the field, and 1.36 does not.
    fn autoscaler() -> Self {
        let spec = json!({
            "maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        });
        Self {
            collection: "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
            resource: "horizontalpodautoscalers",
            name: "web",
            object: json!({
                "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "web"}, "spec": spec,
            }),
            status: Some(json!({"status": {"desiredReplicas": 0, "conditions": [
                {"type": "AbleToScale", "status": "True", "observedGeneration": 7}]}})),
            field: ("/status/conditions/0/observedGeneration", json!(7)),
            applied_spec: spec,
            replaced: ("/status", "/status/conditions"),
        }
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection, self.name)
    }

    /// Creates the object at the new server, after the object of an earlier step is deleted.
    async fn create(&self, plane: &ControlPlane) {
        self.delete(plane).await;
        let mut direct = plane.http_client(NEW, Via::Server, Protocol::H2);
        let body = self.object.to_string();
        let create = Request::new("POST", self.collection).body("application/json", &body);
        let created = direct.send(&create).await.unwrap();
        let text = String::from_utf8_lossy(&created.body).into_owned();
        assert_eq!(created.status, 201, "{text}");
        if let Some(status) = &self.status {
            let patch = Request::new("PATCH", &format!("{}/status", self.path()))
                .body("application/merge-patch+json", &status.to_string());
            let patched = direct.send(&patch).await.unwrap();
            let text = String::from_utf8_lossy(&patched.body).into_owned();
            assert_eq!(patched.status, 200, "{text}");
        }
        assert!(self.has_field(plane).await, "the new server has the field");
    }

    async fn delete(&self, plane: &ControlPlane) {
        let mut direct = plane.http_client(NEW, Via::Server, Protocol::H2);
        let remove = r#"{"metadata":{"finalizers":null}}"#;
        let remove =
            Request::new("PATCH", &self.path()).body("application/merge-patch+json", remove);
        direct.send(&remove).await.unwrap();
        let delete = Request::new("DELETE", &self.path());
        direct.send(&delete).await.unwrap();
    }

    /// Whether the field is in etcd: the new server shows everything.
    async fn has_field(&self, plane: &ControlPlane) -> bool {
        let mut direct = plane.http_client(NEW, Via::Server, Protocol::H2);
        let response = direct.send(&Request::get(&self.path())).await.unwrap();
        let stored: Value = serde_json::from_slice(&response.body).unwrap();
        let (pointer, value) = &self.field;
        stored.pointer(pointer) == Some(value)
    }

    async fn apply(&self, plane: &ControlPlane, via: Via) {
        let applied = json!({
            "apiVersion": self.object["apiVersion"], "kind": self.object["kind"],
            "metadata": {"name": self.name, "labels": {"applied": "yes"}},
            "spec": self.applied_spec,
        });
        let file = plane.file("apply.json", &applied.to_string());
        let words = ["apply", "--server-side", "--force-conflicts", "-f", &file];
        kubectl(plane, via, &words).await;
    }

    async fn get_and_replace(&self, plane: &ControlPlane, via: Via) {
        let words = ["get", self.resource, self.name, "-ojson"];
        let read = kubectl(plane, via, &words).await;
        let mut object: Value = serde_json::from_str(&read).unwrap();
        object["metadata"]["labels"]["replaced"] = json!("yes");
        let file = plane.file("replace.json", &object.to_string());
        kubectl(plane, via, &["replace", "-f", &file]).await;
    }

    /// Patches that contain what the old server shows: an object, or a list.
    async fn patches(&self, plane: &ControlPlane) -> Vec<Patch> {
        let mut old = plane.http_client(OLD, Via::Server, Protocol::H2);
        let shown = old.send(&Request::get(&self.path())).await.unwrap();
        let shown: Value = serde_json::from_slice(&shown.body).unwrap();
        let pointer = self.replaced.1;
        let value = shown.pointer(pointer).unwrap().clone();
        let nested = |value: &Value| {
            let names: Vec<_> = pointer.split('/').skip(1).collect();
            let names = names.into_iter().rev();
            let mut patch = names.fold(value.clone(), |below, name| json!({name: below}));
            patch["metadata"] = json!({"annotations": {"patched": "yes"}});
            patch
        };
        let mut with_directive = value.clone();
        match &mut with_directive {
            Value::Array(items) => items.insert(0, json!({"$patch": "replace"})),
            object => object["$patch"] = json!("replace"),
        }
        let operations = json!([
            {"op": "replace", "path": pointer, "value": value},
            {"op": "add", "path": "/metadata/annotations", "value": {"patched": "yes"}},
        ]);
        let patch = |kind, body, replaces| Patch {
            kind,
            body,
            replaces,
        };
        vec![
            patch("json", operations, true),
            patch("strategic-merge", nested(&with_directive), true),
            // Lists of the objects in these tests are merged by a strategic merge patch.
            patch("strategic-merge", nested(&value), false),
            patch("merge", nested(&value), value.is_array()),
        ]
    }

    /// Sends a patch to the old server, directly or through its bridge.
    async fn patch(&self, plane: &ControlPlane, via: Via, patch: &Patch) {
        let target = format!("{}{}", self.path(), self.replaced.0);
        let kind = format!("application/{}-patch+json", patch.kind);
        let request = Request::new("PATCH", &target).body(&kind, &patch.body.to_string());
        let mut client = plane.http_client(OLD, via, Protocol::H2);
        let response = client.send(&request).await.unwrap();
        assert_eq!(response.status, 200, "{patch:?} {}", response.text());
        let is_warned = (response.headers.iter()).any(|(name, value)| {
            name.eq_ignore_ascii_case("warning") && value.contains("were kept")
        });
        assert_eq!(is_warned, via == Via::Bridge && patch.replaces, "{patch:?}");
    }

    /// The update loop of a controller, with a cache that is filled through the same server.
    async fn update_from_cache(&self, plane: &ControlPlane, via: Via) -> Value {
        let resource = format!("--resource={}", self.resource);
        let words = [&*resource, "update-from-cache"];
        let output = plane
            .client_go(OLD, via, User::Admin, "default", &words)
            .await;
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        serde_json::from_str(&output.stdout).unwrap()
    }

    /// Every kind of write of the object through the old server erases the field, and through its bridge
    /// keeps it.
    async fn survives_every_write(&self, plane: &ControlPlane, guard: &str) {
        let annotate = ["annotate", self.resource, self.name, "a=b", "--overwrite"];
        let label = ["label", self.resource, self.name, "c=d", "--overwrite"];
        for via in [Via::Server, Via::Bridge] {
            let survives = via == Via::Bridge;
            let check = async |step: &str| {
                let is_kept = self.has_field(plane).await;
                let what = format!("{} {step} {via:?} {guard}", self.resource);
                assert_eq!(is_kept, survives, "{what}");
            };
            for words in [&annotate[..], &label] {
                self.create(plane).await;
                kubectl(plane, via, words).await;
                check(words[0]).await;
            }
            self.create(plane).await;
            self.apply(plane, via).await;
            check("apply").await;

            self.create(plane).await;
            self.get_and_replace(plane, via).await;
            check("replace").await;

            self.create(plane).await;
            let updated = self.update_from_cache(plane, via).await;
            assert_eq!(updated["Labels"]["updated-by"], "controller");
            check("controller").await;
            // The controller updates from a cache that the old server filled; the bridge adds the
            // field to the update.
            assert_eq!(updated["Conflicts"], 0, "{updated}");

            self.create(plane).await;
            for patch in self.patches(plane).await {
                self.create(plane).await;
                self.patch(plane, via, &patch).await;
                check(&format!("{patch:?}")).await;
            }

            // Only the spec can be set by a create.
            if self.status.is_none() {
                self.delete(plane).await;
                let file = plane.file("create.json", &self.object.to_string());
                // The old server rejects a field that it does not have, unless the client turns that off.
                let validation = if survives { "strict" } else { "false" };
                let validation = format!("--validate={validation}");
                kubectl(plane, via, &["create", &validation, "-f", &file]).await;
                check("create").await;
            }
        }
    }
}

/// Makes a body with this version.
type Body<'a> = &'a dyn Fn(&str) -> Value;

/// The bridge adds these preconditions to writes that go to a server without all fields.
#[tokio::test]
async fn every_server_compares_the_version_in_a_write() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let plane = ControlPlane::start(&[old, new].map(|it| ServerSpec::of(&it))).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = format!("{maps}/map");
    let applied = format!("{map}?fieldManager=test&force=true");
    let metadata = |version: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "map", "resourceVersion": version}})
    };
    let operations = |version: &str| json!([{"op": "add", "path": "/metadata/resourceVersion", "value": version}]);
    let options = |version: &str| {
        json!({"apiVersion": "v1", "kind": "DeleteOptions",
            "preconditions": {"resourceVersion": version}})
    };
    let rows: [(_, _, _, Body<'_>); 6] = [
        ("PUT", &map, "application/json", &metadata),
        ("PATCH", &map, "application/json-patch+json", &operations),
        ("PATCH", &map, "application/merge-patch+json", &metadata),
        (
            "PATCH",
            &map,
            "application/strategic-merge-patch+json",
            &metadata,
        ),
        ("PATCH", &applied, "application/apply-patch+yaml", &metadata),
        ("DELETE", &map, "application/json", &options),
    ];
    for server in [OLD, NEW] {
        let mut direct = plane.http_client(server, Via::Server, Protocol::H2);
        let mut create = metadata("");
        create["metadata"]["resourceVersion"].take();
        let create = Request::new("POST", maps).body("application/json", &create.to_string());
        assert_eq!(direct.send(&create).await.unwrap().status, 201);
        for (method, path, kind, body) in rows {
            let stored = direct.send(&Request::get(&map)).await.unwrap();
            let stored: Value = serde_json::from_slice(&stored.body).unwrap();
            let current = stored["metadata"]["resourceVersion"].as_str().unwrap();
            for (version, expected) in [("1", 409), (current, 200)] {
                let request = Request::new(method, path).body(kind, &body(version).to_string());
                let answer = direct.send(&request).await.unwrap();
                let text = String::from_utf8_lossy(&answer.body).into_owned();
                assert_eq!(answer.status, expected, "{server} {method} {kind} {text}");
            }
        }
    }
}

/// A list that a strategic merge patch replaces, too, as the kubelet patches it.
#[tokio::test]
async fn a_field_of_a_list_that_patches_replace_is_kept() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let gates = ["ImageVolume", "ImageVolumeWithDigest"];
    let new = gates
        .iter()
        .fold(ServerSpec::of(&new), |server, gate| server.gate(gate, true));
    let old = ServerSpec::of(&old).gate("ImageVolume", true);
    let plane = start_servers([old, new], "writes").await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "models"},
        "spec": {"automountServiceAccountToken": false,
            "containers": [{"name": "web", "image": "web",
                "volumeMounts": [{"name": "model", "mountPath": "/model"}]}],
            "volumes": [{"name": "model", "image": {"reference": "model:1"}}]},
    });
    let mut direct = plane.http_client(NEW, Via::Server, Protocol::H2);
    let create = Request::new("POST", pods).body("application/json", &pod.to_string());
    eventually("the pod is created", TEST_TIMEOUT, async || {
        // It needs the service account of its namespace.
        direct.send(&create).await.unwrap().status == 201
    })
    .await;
    let statuses = |restarts: u32, volume_status: bool| {
        let mut mount = json!({"name": "model", "mountPath": "/model"});
        if volume_status {
            mount["volumeStatus"] = json!({"image": {"imageRef": "model@sha256:0"}});
        }
        json!({"status": {"containerStatuses": [{"name": "web", "image": "web", "imageID": "",
            "ready": false, "restartCount": restarts, "volumeMounts": [mount]}]}})
    };
    let path = format!("{pods}/models/status");
    let patch_request =
        |kind: &str, body: &Value| Request::new("PATCH", &path).body(kind, &body.to_string());
    let strategic = "application/strategic-merge-patch+json";
    let operations = |body: &Value| {
        json!([{"op": "replace", "path": "/status/containerStatuses",
            "value": body["status"]["containerStatuses"]}])
    };
    for via in [Via::Server, Via::Bridge] {
        for kind in [
            strategic,
            "application/merge-patch+json",
            "application/json-patch+json",
        ] {
            let seen = direct
                .send(&patch_request(strategic, &statuses(0, true)))
                .await;
            let seen = seen.unwrap();
            let text = String::from_utf8_lossy(&seen.body).into_owned();
            assert!(
                text.contains("model@sha256:0"),
                "the new server has the field: {text}"
            );
            let mut body = statuses(1, false);
            if kind == "application/json-patch+json" {
                body = operations(&body);
            }
            let mut client = plane.http_client(OLD, via, Protocol::H2);
            let response = client.send(&patch_request(kind, &body)).await.unwrap();
            assert_eq!(response.status, 200, "{kind} {via:?} {}", response.text());
            let stored = direct.send(&Request::get(&path)).await.unwrap();
            let stored: Value = serde_json::from_slice(&stored.body).unwrap();
            let status = &stored["status"]["containerStatuses"][0];
            assert_eq!(status["restartCount"], 1, "{kind} {via:?}");
            let image = &status["volumeMounts"][0]["volumeStatus"]["image"]["imageRef"];
            let is_kept = *image == json!("model@sha256:0");
            assert_eq!(is_kept, via == Via::Bridge, "{kind} {via:?} {stored}");
        }
    }
}

async fn start(old: &str, new: &str, guard: &str) -> ControlPlane {
    start_servers([old, new].map(ServerSpec::of), guard).await
}

/// An old and a new server, with bridges that know the fields of both.
async fn start_servers(servers: [ServerSpec; 2], guard: &str) -> ControlPlane {
    let flag = format!("--guard-fields={guard}");
    let servers = servers.map(|it| it.peer().bridge_flag(&flag));
    let plane = ControlPlane::start(&servers).await;
    for bridge in [OLD, NEW] {
        eventually(
            "the fields of both servers",
            PEER_DISCOVERY_TIMEOUT,
            async || {
                let metrics = plane.admin_page(bridge, "/metrics").await;
                let value = |name: &str| {
                    let mut lines = metrics.lines().filter_map(|line| line.split_once(' '));
                    lines
                        .find(|(found, _)| *found == name)
                        .map(|(_, value)| value.to_owned())
                };
                value("skewbridge_fields_known").as_deref() == Some("1")
                    && value("skewbridge_field_differences").is_some_and(|it| it != "0")
            },
        )
        .await;
    }
    plane
}

/// Runs kubectl against the old server, directly or through its bridge.
async fn kubectl(plane: &ControlPlane, via: Via, words: &[&str]) -> String {
    let output = plane.kubectl(OLD, via, User::Admin, words).await;
    assert_eq!(output.code, Some(0), "{words:?}: {}", output.stderr);
    output.stdout
}

#[tokio::test]
async fn the_old_server_erases_the_field_and_its_bridge_keeps_it() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    for guard in ["writes", "all"] {
        let plane = start(&old, &new, guard).await;
        Guarded::driver().survives_every_write(&plane, guard).await;
    }
}

/// Older versions, on control planes that have them (`--all`).
#[tokio::test]
async fn a_field_of_1_29_survives_beside_1_28() {
    let Some([old, new]) = minors_of_one_plane([28, 29]) else {
        return;
    };
    for guard in ["writes", "all"] {
        let new = ServerSpec::of(&new).gate("VolumeAttributesClass", true);
        let plane = start_servers([ServerSpec::of(&old), new], guard).await;
        Guarded::claim().survives_every_write(&plane, guard).await;
    }
}

/// Newer versions, on control planes that have them (`--all`).
#[tokio::test]
async fn a_field_of_1_37_survives_beside_1_36() {
    let Some([old, new]) = minors_of_one_plane([36, 37]) else {
        return;
    };
    for guard in ["writes", "all"] {
        let plane = start(&old, &new, guard).await;
        Guarded::autoscaler()
            .survives_every_write(&plane, guard)
            .await;
    }
}

#[tokio::test]
async fn without_the_new_server_only_objects_without_new_fields_are_written() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let mut plane = start(&old, &new, "writes").await;
    let driver = Guarded::driver();
    driver.create(&plane).await;
    kubectl(&plane, Via::Bridge, &["create", "configmap", "before"]).await;
    let plain = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "plain"},
        "spec": {"attachRequired": false},
    });
    let file = plane.file("plain.json", &plain.to_string());
    kubectl(&plane, Via::Bridge, &["create", "-f", &file]).await;
    plane.stop_server(NEW, "KILL");

    let mut bridged = plane.http_client(OLD, Via::Bridge, Protocol::H2);
    let mut patch = async |name: &str| {
        let patch = Request::new("PATCH", &format!("{DRIVERS}/{name}")).body(
            "application/merge-patch+json",
            r#"{"metadata":{"labels":{"a":"b"}}}"#,
        );
        let response = bridged.send(&patch).await.unwrap();
        let text = String::from_utf8_lossy(&response.body).into_owned();
        let is_warned = (response.headers.iter())
            .any(|(name, value)| name.eq_ignore_ascii_case("warning") && value.contains("fields"));
        (response.status, is_warned, text)
    };
    // Until the bridge has detected that the new server is down, it does not send writes to the old one.
    eventually(
        "the old server writes what it can",
        TEST_TIMEOUT,
        async || {
            let (status, is_warned, text) = patch("plain").await;
            assert!(matches!(status, 200 | 503), "{status} {text}");
            status == 200 && is_warned
        },
    )
    .await;
    let (status, _, text) = patch(DRIVER).await;
    assert_eq!(status, 503, "{text}");
    assert!(
        text.contains(NEW_FIELD) || text.contains("would erase them"),
        "{text}"
    );
    plane.start_server(NEW);
    eventually("the new server is used again", TEST_TIMEOUT, async || {
        patch(DRIVER).await.0 == 200
    })
    .await;
    assert!(driver.has_field(&plane).await);
}
