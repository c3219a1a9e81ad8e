//! Fields that only one server has survive writes through the bridge of another (`--guard-fields`).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Config;
use skewbridge_gateway::field_guard::FieldGuard;
use skewbridge_k8s_api::protobuf::{self, Writer};
use skewbridge_testkit::{RecordedRequest, Reply, Response, TEST_TIMEOUT, eventually};

use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::balancer::Fixture;
use crate::support::admin_client;
use crate::support::cluster::{ClusterFixture, PeerServer, SHARED, SHARED_PATH, send_request};
use crate::support::exhaustion::BUFFERED_BYTES_METRIC;
use crate::support::fake_apiserver::DiscoveryFormat;
use crate::support::pki::start;

const B: &str = "apiserver-b";
pub(crate) const OBJECT_PATH: &str = "/apis/apps/v1/namespaces/a/deployments/d";

/// `alt` and `new` exclude each other, as members of a union do. `new` needs `old`.
pub(crate) const OLD_FIELDS: &[&str] = &["old", "alt"];
pub(crate) const NEW_FIELDS: &[&str] = &["old", "alt", "new"];

/// The object in etcd. The newer server has the field `spec.new`, the older one does not.
pub(crate) type Stored = Arc<Mutex<Value>>;

pub(crate) fn object(spec: &Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "d", "resourceVersion": "7", "managedFields": [
            {"manager": "m", "fieldsV1": {"f:spec": {"f:new": {}, "f:old": {}}}}]},
        "spec": spec})
}

/// An object whose managers have not set the field that only the newer server has.
fn harmless() -> Value {
    let mut object = object(&json!({"old": "x"}));
    object["metadata"]["managedFields"] =
        json!([{"manager": "m", "fieldsV1": {"f:spec": {"f:old": {}}}}]);
    object
}

fn schemas(fields: &[&str]) -> Value {
    let fields: serde_json::Map<_, _> = (fields.iter())
        .map(|name| ((*name).to_owned(), json!({"type": "string"})))
        .collect();
    json!({"components": {"schemas": {
        "io.k8s.api.apps.v1.Deployment": {
            "properties": {"spec": {"$ref": "#/components/schemas/Spec"}},
            "x-kubernetes-group-version-kind":
                [{"group": "apps", "version": "v1", "kind": "Deployment"}]},
        "Spec": {"properties": fields}}}})
}

/// A server that has these fields of the spec, over the same etcd as the others.
pub(crate) fn serve(recorded: &RecordedRequest, fields: &[&str], stored: &Stored) -> Option<Reply> {
    if recorded.path() == "/openapi/v3/apis/apps/v1" {
        return Some(Reply::json(schemas(fields).to_string()));
    }
    if recorded.path() != OBJECT_PATH {
        return None;
    }
    let mut stored = stored.lock().unwrap();
    let known = |mut object: Value| {
        let spec = object["spec"].as_object_mut().unwrap();
        spec.retain(|name, _| fields.contains(&name.as_str()));
        object
    };
    let is_dry_run = recorded.query().is_some_and(|it| it.contains("dryRun=All"));
    let result = match recorded.method.as_str() {
        "PUT" => {
            let mut result = known(serde_json::from_slice(&recorded.body).unwrap());
            let metadata = result["metadata"].as_object_mut().unwrap();
            let version = &stored["metadata"]["resourceVersion"];
            let expected = metadata.entry("resourceVersion").or_insert(version.clone());
            if expected != version {
                return Some(status(409, "the object has been modified"));
            }
            let spec = &result["spec"];
            let excluded = !spec["alt"].is_null() || spec["old"].is_null();
            if !spec["new"].is_null() && excluded {
                return Some(status(422, "spec.new: Forbidden"));
            }
            if spec["new"].is_null() && spec["old"] == "needs new" {
                return Some(status(422, "spec.new: Required"));
            }
            result
        }
        "PATCH" => {
            let patch: Value = serde_json::from_slice(&recorded.body).unwrap_or_default();
            let expected = &patch["metadata"]["resourceVersion"];
            if !expected.is_null() && *expected != stored["metadata"]["resourceVersion"] {
                return Some(status(409, "the object has been modified"));
            }
            let mut result = known(stored.clone());
            result["spec"]["old"] = json!("patched");
            result
        }
        _ => return Some(Reply::json(known(stored.clone()).to_string())),
    };
    if !is_dry_run {
        *stored = result.clone();
    }
    Some(Reply::json(result.to_string()))
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

/// The local server has version 1.34.4, the peer 1.36.4.
async fn mixed_cluster(guard: FieldGuard) -> MixedCluster {
    mixed_cluster_with(guard, |_| ()).await
}

async fn mixed_cluster_with(guard: FieldGuard, change: impl FnOnce(&mut Config)) -> MixedCluster {
    let fixture = ClusterFixture::new(&[]).await;
    let version = ("v1.34.4", DiscoveryFormat::V2);
    fixture.local.set_version(version.0, version.1);
    let stored = Stored::new(Mutex::new(object(&json!({"old": "x", "new": "y"}))));
    let etcd = stored.clone();
    (fixture.local).set_hook(move |recorded| serve(recorded, OLD_FIELDS, &etcd));
    let b = fixture.peer(B, &[SHARED]).await;
    let etcd = stored.clone();
    (b.apiserver).set_hook(move |recorded| serve(recorded, NEW_FIELDS, &etcd));
    let mut config = fixture.config();
    config.peers.guards.fields = guard;
    change(&mut config);
    let bridge = fixture.start_with(&config).await;
    eventually("the fields of both servers", TEST_TIMEOUT, async || {
        let scrape = admin_client::scrape(bridge.admin_address()).await;
        guard == FieldGuard::Off
            || (scrape.value("skewbridge_fields_known", &[]) == Some(1.0)
                && scrape.value("skewbridge_field_differences", &[]) == Some(1.0))
    })
    .await;
    MixedCluster {
        fixture,
        b,
        bridge,
        stored,
    }
}

impl MixedCluster {
    async fn send(&self, method: &str, path: &str, body: &Value) -> Response {
        self.send_as("application/json", method, path, body).await
    }

    async fn send_as(
        &self,
        content_type: &str,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Response {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let headers = [
            ("content-type", content_type),
            (
                "user-agent",
                "controller/v1.34.4 (linux/amd64) kubernetes/abc",
            ),
        ];
        let client = self.fixture.alice();
        send_request(&client, &self.bridge, method, path, &headers, body).await
    }

    /// Changes the object after each dry run of an update, before the update.
    fn change_before_updates(&self, times: u32) {
        let (etcd, changes) = (self.stored.clone(), AtomicU32::new(0));
        self.b.apiserver.set_hook(move |recorded| {
            let is_update = recorded.method == "PUT" && recorded.query().is_none();
            if is_update && changes.load(Ordering::Relaxed) < times {
                let changes = changes.fetch_add(1, Ordering::Relaxed) + 1;
                let mut stored = etcd.lock().unwrap();
                let version = &mut stored["metadata"]["resourceVersion"];
                let next = version.as_str().unwrap().parse::<u32>().unwrap() + 1;
                *version = json!(next.to_string());
                stored["spec"]["new"] = json!(format!("change {changes}"));
            }
            serve(recorded, NEW_FIELDS, &etcd)
        });
    }

    fn spec(&self) -> Value {
        self.stored.lock().unwrap()["spec"].clone()
    }
}

fn body(response: &Response) -> Value {
    serde_json::from_slice(&response.body).unwrap()
}

#[tokio::test]
async fn without_the_guard_the_older_server_erases_the_field() {
    let cluster = mixed_cluster(FieldGuard::Off).await;
    let answer = cluster.send("PATCH", OBJECT_PATH, &json!({})).await;
    assert_eq!(answer.status, 200);
    assert_eq!(cluster.spec(), json!({"old": "patched"}));
}

#[tokio::test]
async fn writes_and_reads_of_one_object_go_to_the_server_with_every_field() {
    let cluster = mixed_cluster(FieldGuard::Writes).await;
    let answer = cluster.send("PATCH", OBJECT_PATH, &json!({})).await;
    assert_eq!(answer.status, 200);
    assert_eq!(cluster.spec(), json!({"old": "patched", "new": "y"}));
    let read = cluster.send("GET", OBJECT_PATH, &Value::Null).await;
    assert_eq!(body(&read)["spec"]["new"], "y");
    assert!(cluster.fixture.local.client_requests().is_empty());
    // A list may be stale: it is answered locally.
    let list = cluster.send("GET", SHARED_PATH, &Value::Null).await;
    assert_eq!(list.status, 200);
    assert_eq!(cluster.fixture.local.client_requests().len(), 1);
}

#[tokio::test]
async fn with_all_lists_go_to_the_server_with_every_field() {
    let cluster = mixed_cluster(FieldGuard::All).await;
    let list = cluster.send("GET", SHARED_PATH, &Value::Null).await;
    assert_eq!(list.status, 200);
    assert!(cluster.fixture.local.client_requests().is_empty());
}

/// The cache of a controller, which its updates are based on, has the field.
#[tokio::test]
async fn with_all_watches_go_to_the_server_with_every_field() {
    for (guard, expected) in [
        (FieldGuard::Writes, json!({"old": "x"})),
        (FieldGuard::All, json!({"old": "x", "new": "y"})),
    ] {
        let cluster = mixed_cluster(guard).await;
        for (server, fields) in [
            (&cluster.fixture.local, OLD_FIELDS),
            (&cluster.b.apiserver, NEW_FIELDS),
        ] {
            let etcd = cluster.stored.clone();
            server.set_hook(move |recorded| {
                let is_watch = recorded.query().is_some_and(|it| it.contains("watch=true"));
                if recorded.path() != SHARED_PATH || !is_watch {
                    return serve(recorded, fields, &etcd);
                }
                let mut object = etcd.lock().unwrap().clone();
                let spec = object["spec"].as_object_mut().unwrap();
                spec.retain(|name, _| fields.contains(&name.as_str()));
                let event = json!({"type": "ADDED", "object": object});
                Some(Reply::json(format!("{event}\n")))
            });
        }
        let path = format!("{SHARED_PATH}?watch=true&allowWatchBookmarks=true");
        let watched = cluster.send("GET", &path, &Value::Null).await;
        assert_eq!(watched.status, 200, "{}", watched.text());
        assert_eq!(body(&watched)["object"]["spec"], expected, "{guard:?}");
    }
}

#[tokio::test]
async fn an_update_whose_base_lacks_a_field_keeps_the_field() {
    let cluster = mixed_cluster(FieldGuard::Writes).await;
    let stale = object(&json!({"old": "z"}));
    let answer = cluster.send("PUT", OBJECT_PATH, &stale).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let warning = answer.header("warning").unwrap_or_default();
    assert!(warning.contains("were kept"), "{warning}");
    assert_eq!(cluster.spec(), json!({"old": "z", "new": "y"}));
    // The update is written once: a read and a dry run come before it.
    let requests = cluster.b.client_requests();
    let is_write = |it: &&RecordedRequest| it.method == "PUT" && it.query().is_none();
    let written: Vec<_> = requests.iter().filter(is_write).collect();
    assert_eq!(written.len(), 1);
    let length = written[0].body.len().to_string();
    assert_eq!(written[0].header("content-length"), Some(&*length));
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[0].all("x-remote-user"), ["alice"]);
    // An update with the field is sent as it is.
    let complete = object(&json!({"old": "a", "new": "b"}));
    let answer = cluster.send("PUT", OBJECT_PATH, &complete).await;
    assert_eq!(answer.header("warning"), None);
    assert_eq!(cluster.spec(), json!({"old": "a", "new": "b"}));
    let requests = cluster.b.client_requests();
    assert_eq!(
        requests.last().unwrap().body,
        complete.to_string().as_bytes()
    );
    // Without the field in the stored object, an update needs no dry run.
    *cluster.stored.lock().unwrap() = object(&json!({"old": "x"}));
    let before = cluster.b.client_requests().len();
    let answer = cluster.send("PUT", OBJECT_PATH, &stale).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(cluster.b.client_requests().len(), before + 2);
    assert_eq!(cluster.spec(), json!({"old": "z"}));
}

#[tokio::test]
async fn an_update_of_a_user_who_cannot_read_the_object_is_checked_too() {
    let cluster = mixed_cluster(FieldGuard::Writes).await;
    let etcd = cluster.stored.clone();
    cluster.b.apiserver.set_hook(move |recorded| {
        let is_alice = recorded.all("x-remote-user") == ["alice"];
        if recorded.path() == OBJECT_PATH && recorded.method == "GET" && is_alice {
            return Some(Reply::new(403));
        }
        serve(recorded, NEW_FIELDS, &etcd)
    });
    let answer = cluster
        .send("PUT", OBJECT_PATH, &object(&json!({"old": "z"})))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(cluster.spec(), json!({"old": "z", "new": "y"}));
}

#[tokio::test]
async fn without_a_server_with_every_field_only_objects_without_such_fields_are_written() {
    let cluster = mixed_cluster(FieldGuard::Writes).await;
    cluster.b.shut_down().await;
    only_objects_without_such_fields_are_written(&cluster).await;
}

#[tokio::test]
async fn the_same_holds_while_the_bridge_of_the_newer_server_cannot_reach_it() {
    let cluster = mixed_cluster(FieldGuard::Writes).await;
    let not_processed = || Reply::new(503).header("x-skewbridge-not-processed", "true");
    (cluster.b.apiserver).set_hook(move |_| Some(not_processed()));
    only_objects_without_such_fields_are_written(&cluster).await;
}

async fn only_objects_without_such_fields_are_written(cluster: &MixedCluster) {
    eventually("the peer is not used", TEST_TIMEOUT, async || {
        let answer = cluster.send("PATCH", OBJECT_PATH, &json!({})).await;
        assert_eq!(answer.status, 503, "{}", answer.text());
        answer.text().contains("would erase them")
    })
    .await;
    assert_eq!(cluster.spec(), json!({"old": "x", "new": "y"}));
    *cluster.stored.lock().unwrap() = harmless();
    let answer = cluster.send("PATCH", OBJECT_PATH, &json!({})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let warning = answer.header("warning").unwrap_or_default();
    assert!(warning.contains("has all fields of this kind"), "{warning}");
    assert_eq!(cluster.spec(), json!({"old": "patched"}));
}

/// The table in docs/peers.md ("Cost").
#[tokio::test]
async fn a_guarded_write_costs_a_known_number_of_requests() {
    let (json, merge) = ("application/json", "application/merge-patch+json");
    let strategic = "application/strategic-merge-patch+json";
    let cluster = mixed_cluster(FieldGuard::Writes).await;
    let (with_field, without) = (json!({"old": "x", "new": "y"}), json!({"old": "x"}));
    // The write, the spec of the stored object, and the requests that the server with every field gets.
    let rows = [
        ("POST", json, SHARED_PATH, &without, 1),
        ("PUT", json, OBJECT_PATH, &without, 2),
        ("PUT", json, OBJECT_PATH, &with_field, 3),
        // `field_guard_patches` has patches that replace objects or lists.
        ("PATCH", merge, OBJECT_PATH, &without, 1),
        ("PATCH", merge, OBJECT_PATH, &with_field, 1),
        ("PATCH", strategic, OBJECT_PATH, &with_field, 1),
        ("DELETE", json, OBJECT_PATH, &with_field, 1),
    ];
    for (method, content_type, path, stored, expected) in rows {
        *cluster.stored.lock().unwrap() = object(stored);
        let before = cluster.b.client_requests().len();
        let update = object(&json!({"old": "z"}));
        let answer = cluster.send_as(content_type, method, path, &update).await;
        let described = format!("{method} {content_type} {stored} {}", answer.text());
        assert_eq!(answer.status, 200, "{described}");
        let sent = cluster.b.client_requests().len() - before;
        assert_eq!(sent, expected, "{described}");
    }
    assert!(cluster.fixture.local.client_requests().is_empty());
}

/// Another bridge still reaches the newer server.
#[tokio::test]
async fn a_field_that_is_set_after_the_check_is_not_erased_by_a_server_that_lacks_it() {
    let merge = "application/merge-patch+json";
    let strategic = "application/strategic-merge-patch+json";
    let named = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"old": "z"}});
    let with_version = object(&json!({"old": "z"}));
    let rows = [
        ("PUT", "application/json", &named, 503),
        ("PUT", "application/json", &with_version, 409),
        ("PATCH", merge, &named, 503),
        ("PATCH", strategic, &named, 503),
        ("PATCH", merge, &with_version, 409),
    ];
    let cluster = mixed_cluster(FieldGuard::Writes).await;
    cluster.b.shut_down().await;
    *cluster.stored.lock().unwrap() = harmless();
    eventually("the peer is not used", TEST_TIMEOUT, async || {
        cluster.send("PATCH", OBJECT_PATH, &json!({})).await.status == 200
    })
    .await;
    for (method, content_type, sent, expected) in rows {
        *cluster.stored.lock().unwrap() = harmless();
        let (etcd, writes) = (cluster.stored.clone(), AtomicU32::new(0));
        (cluster.fixture.local).set_hook(move |recorded| {
            let is_write = recorded.path() == OBJECT_PATH && recorded.method != "GET";
            if is_write && writes.fetch_add(1, Ordering::Relaxed) == 0 {
                let mut with_field = object(&json!({"old": "x", "new": "y"}));
                with_field["metadata"]["resourceVersion"] = json!("8");
                *etcd.lock().unwrap() = with_field;
            }
            serve(recorded, OLD_FIELDS, &etcd)
        });
        let answer = cluster
            .send_as(content_type, method, OBJECT_PATH, sent)
            .await;
        let described = format!("{method} {content_type} {}", answer.text());
        assert_eq!(answer.status, expected, "{described}");
        assert_eq!(cluster.spec()["new"], "y", "{described}");
        // Without such a change the write succeeds.
        *cluster.stored.lock().unwrap() = harmless();
        let answer = cluster
            .send_as(content_type, method, OBJECT_PATH, sent)
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

/// Clients of the control plane send protobuf.
#[tokio::test]
async fn an_update_in_protobuf_gets_the_version_of_the_checked_object() {
    let cluster = mixed_cluster(FieldGuard::Writes).await;
    *cluster.stored.lock().unwrap() = harmless();
    cluster.b.apiserver.set_hook({
        let etcd = cluster.stored.clone();
        move |recorded| match recorded.method.as_str() {
            "PUT" => Some(Reply::json("{}")),
            _ => serve(recorded, NEW_FIELDS, &etcd),
        }
    });
    let object = |metadata: Writer| {
        let object = Writer::default().message(1, metadata);
        protobuf::envelope("apps/v1", "Deployment", object)
    };
    let named = || Writer::default().text(1, "d");
    for (sent, expected) in [
        (named(), named().text(6, "7")),
        (named().text(6, "6"), named().text(6, "6")),
    ] {
        let headers = [("content-type", "application/vnd.kubernetes.protobuf")];
        let client = cluster.fixture.alice();
        let body = object(sent);
        let answer = send_request(&client, &cluster.bridge, "PUT", OBJECT_PATH, &headers, body);
        assert_eq!(answer.await.status, 200);
        let written = cluster.b.client_requests().pop().unwrap();
        assert_eq!(written.body, object(expected));
        if let Some(length) = written.header("content-length") {
            assert_eq!(length, written.body.len().to_string());
        }
    }
}

/// Updates in flight at a server that does not answer.
#[tokio::test]
async fn the_bodies_of_guarded_updates_count_towards_the_buffer_budget() {
    const VALUE_BYTES: usize = 600 * 1024;
    const UPDATES: usize = 4;
    let value = "z".repeat(VALUE_BYTES);
    // The body of the client, and its completed copy if the stored object has the field.
    let rows = [
        (object(&json!({"old": "x", "new": "y"})), 2),
        (object(&json!({"old": "x"})), 1),
    ];
    for (stored, bodies) in rows {
        // The check of an update also takes the result of a dry run, if it is completed.
        let budget = (UPDATES + 1) * bodies * VALUE_BYTES - VALUE_BYTES / 2;
        let cluster = mixed_cluster_with(FieldGuard::Writes, |config| {
            config.limits.max_buffered_bytes = budget;
        })
        .await;
        *cluster.stored.lock().unwrap() = stored;
        let (etcd, never) = (cluster.stored.clone(), Arc::new(Notify::new()));
        cluster.b.apiserver.set_hook(move |recorded| {
            if recorded.method == "PUT" && recorded.query().is_none() {
                return Some(Reply::new(200).after(&never));
            }
            serve(recorded, NEW_FIELDS, &etcd)
        });
        let buffered = async || {
            let scrape = admin_client::scrape(cluster.bridge.admin_address()).await;
            scrape.value(BUFFERED_BYTES_METRIC, &[]).unwrap()
        };
        let update = object(&json!({"old": value})).to_string();
        let mut updates = JoinSet::new();
        for update_number in 1..=UPDATES {
            let client = cluster.fixture.alice();
            let (address, update) = (cluster.bridge.address(), update.clone());
            updates.spawn(async move {
                let mut client = client.http1(address).await.unwrap();
                let head = format!(
                    "PUT {OBJECT_PATH} HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\n\
                     Content-Length: {}\r\n\r\n",
                    update.len()
                );
                client.send(&(head + &update)).await.unwrap();
                client.read_response().await
            });
            let expected = u32::try_from(update_number * bodies * VALUE_BYTES).unwrap();
            eventually("the bodies are counted", TEST_TIMEOUT, async || {
                if let Some(answered) = updates.try_join_next() {
                    panic!("update {update_number} is answered: {answered:?}");
                }
                let requests = cluster.b.client_requests();
                let is_update = |it: &&RecordedRequest| it.method == "PUT" && it.query().is_none();
                requests.iter().filter(is_update).count() == update_number
                    && buffered().await >= f64::from(expected)
            })
            .await;
        }
        // Another one does not fit: its object or its dry run exceeds the budget.
        let more = object(&json!({"old": "z".repeat(VALUE_BYTES)}));
        let answer = cluster.send("PUT", OBJECT_PATH, &more).await;
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(answer.text().contains("too many"), "{}", answer.text());
        updates.abort_all();
        while updates.join_next().await.is_some() {}
        eventually("no bytes are buffered", TEST_TIMEOUT, async || {
            buffered().await < 1.0
        })
        .await;
    }
}

/// Without the rule every retry of the client would get 422, for a field that it has replaced on purpose.
#[tokio::test]
async fn a_field_that_the_update_replaces_by_an_alternative_is_not_kept() {
    let cluster = mixed_cluster(FieldGuard::Writes).await;
    let replaced = object(&json!({"old": "x", "alt": "z"}));
    let answer = cluster.send("PUT", OBJECT_PATH, &replaced).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("warning"), None);
    assert_eq!(cluster.spec(), json!({"old": "x", "alt": "z"}));
}

#[tokio::test]
async fn an_update_that_is_invalid_with_a_kept_field_is_rejected_with_a_remedy() {
    let cluster = mixed_cluster(FieldGuard::Writes).await;
    let answer = cluster.send("PUT", OBJECT_PATH, &object(&json!({}))).await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    for expected in ["spec.new: Forbidden", "(spec.new)", "with a patch"] {
        assert!(answer.text().contains(expected), "{}", answer.text());
    }
    assert_eq!(cluster.spec(), json!({"old": "x", "new": "y"}));
}

#[tokio::test]
async fn an_update_that_is_only_valid_with_a_field_that_its_client_does_not_see_is_completed() {
    let cluster = mixed_cluster(FieldGuard::Writes).await;
    let stale = object(&json!({"old": "needs new"}));
    let answer = cluster.send("PUT", OBJECT_PATH, &stale).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let expected = json!({"old": "needs new", "new": "y"});
    assert_eq!(cluster.spec(), expected);
    // Without the field in the stored object the update is invalid.
    *cluster.stored.lock().unwrap() = object(&json!({"old": "x"}));
    let answer = cluster.send("PUT", OBJECT_PATH, &stale).await;
    assert_eq!(answer.status, 422, "{}", answer.text());
}

#[tokio::test]
async fn an_unconditional_update_that_is_completed_is_repeated_after_a_conflict() {
    let cluster = mixed_cluster(FieldGuard::Writes).await;
    let mut unconditional = object(&json!({"old": "z"}));
    unconditional["metadata"] = json!({"name": "d"});
    cluster.change_before_updates(2);
    let answer = cluster.send("PUT", OBJECT_PATH, &unconditional).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(cluster.spec(), json!({"old": "z", "new": "change 2"}));
    // A client sets the field for the first time between the check and the update.
    *cluster.stored.lock().unwrap() = object(&json!({"old": "x"}));
    cluster.change_before_updates(1);
    let answer = cluster.send("PUT", OBJECT_PATH, &unconditional).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(cluster.spec(), json!({"old": "z", "new": "change 1"}));
    // The object changes all the time: the client retries later, and no value is lost.
    cluster.change_before_updates(u32::MAX);
    let answer = cluster.send("PUT", OBJECT_PATH, &unconditional).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert!(answer.text().contains("5 attempts"), "{}", answer.text());
    assert_eq!(cluster.spec()["new"], "change 5");
}

#[tokio::test]
async fn an_update_with_a_precondition_gets_its_conflict() {
    let cluster = mixed_cluster(FieldGuard::Writes).await;
    cluster.change_before_updates(1);
    let stale = object(&json!({"old": "z"}));
    let answer = cluster.send("PUT", OBJECT_PATH, &stale).await;
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert!(answer.text().contains("modified"), "{}", answer.text());
    assert_eq!(cluster.spec(), json!({"old": "x", "new": "change 1"}));
}

#[tokio::test]
async fn a_field_that_no_available_server_has_is_not_dropped_from_a_request() {
    let cluster = mixed_cluster(FieldGuard::Writes).await;
    let harmless = harmless();
    cluster.b.shut_down().await;
    let create = async |spec: &Value| cluster.send("POST", SHARED_PATH, &object(spec)).await;
    eventually("the peer is not used", TEST_TIMEOUT, async || {
        create(&json!({"old": "x"})).await.status == 200
    })
    .await;
    let rows = [
        ("POST", SHARED_PATH, json!({"old": "x"}), 200),
        ("POST", SHARED_PATH, json!({"old": "x", "new": "y"}), 503),
        ("PUT", OBJECT_PATH, json!({"old": "x"}), 200),
        ("PUT", OBJECT_PATH, json!({"new": "y"}), 503),
        ("PATCH", OBJECT_PATH, json!({"new": false}), 503),
        ("PATCH", OBJECT_PATH, json!({"old": "x"}), 200),
    ];
    for (method, path, spec, expected) in rows {
        *cluster.stored.lock().unwrap() = harmless.clone();
        let answer = cluster.send(method, path, &object(&spec)).await;
        assert_eq!(answer.status, expected, "{method} {spec} {}", answer.text());
        if expected == 503 {
            assert_eq!(answer.header("retry-after"), Some("1"));
            assert!(
                answer.text().contains("would drop them"),
                "{}",
                answer.text()
            );
            assert!(answer.text().contains("spec.new"), "{}", answer.text());
        }
    }
}

/// Clients of the control plane send protobuf, which has numbers in the place of names.
#[tokio::test]
async fn a_field_in_protobuf_that_its_server_drops_is_found_by_a_dry_run() {
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    let cluster = mixed_cluster(FieldGuard::Writes).await;
    cluster.b.shut_down().await;
    let etcd = cluster.stored.clone();
    cluster.fixture.local.set_hook(move |recorded| {
        // The older server does not know field 43.
        let is_protobuf = recorded.header("content-type") == Some(PROTOBUF);
        if is_protobuf && recorded.path() == SHARED_PATH {
            let known = protobuf_object(Writer::default().text(1, "x").number(2, 1));
            return Some(Reply::new(201).header("content-type", PROTOBUF).body(known));
        }
        serve(recorded, OLD_FIELDS, &etcd)
    });
    *cluster.stored.lock().unwrap() = harmless();
    eventually("the peer is not used", TEST_TIMEOUT, async || {
        cluster.send("PATCH", OBJECT_PATH, &json!({})).await.status == 200
    })
    .await;
    let old = || Writer::default().text(1, "x");
    let (controller, component) = (
        "controller/v0.0.0 (linux/amd64)",
        "kube-controller-manager/v1.34.4 (linux/amd64) kubernetes/abc",
    );
    // The body, the client, the status, and the requests that the older server gets.
    let rows = [
        (protobuf_object(old()), controller, 201, 2),
        (protobuf_object(old().number(43, 1)), controller, 503, 1),
        // A component that is not newer than the server does not know the field.
        (protobuf_object(old()), component, 201, 1),
        // Not an object.
        (b"k8s\0".to_vec(), controller, 201, 1),
    ];
    for (body, agent, status, requests) in rows {
        let before = cluster.fixture.local.client_requests().len();
        let headers = [("content-type", PROTOBUF), ("user-agent", agent)];
        let client = cluster.fixture.alice();
        let sent = send_request(
            &client,
            &cluster.bridge,
            "POST",
            SHARED_PATH,
            &headers,
            body,
        );
        let answer = sent.await;
        assert_eq!(answer.status, status, "{agent} {}", answer.text());
        let sent = cluster.fixture.local.client_requests().len() - before;
        assert_eq!(sent, requests, "{agent}");
        if status == 503 {
            assert!(
                answer.text().contains("would drop them"),
                "{}",
                answer.text()
            );
        } else {
            let warning = answer.header("warning").unwrap_or_default();
            assert!(warning.starts_with("299 "), "{warning}");
        }
    }
}

fn protobuf_object(spec: Writer) -> Vec<u8> {
    let metadata = Writer::default().text(1, "d");
    let object = Writer::default().message(1, metadata).message(2, spec);
    protobuf::envelope("apps/v1", "Deployment", object)
}

pub(crate) async fn wait_until_fields_are_known(bridge: &Handle) {
    eventually("the fields of all servers", TEST_TIMEOUT, async || {
        let scrape = admin_client::scrape(bridge.admin_address()).await;
        scrape.value("skewbridge_fields_known", &[]) == Some(1.0)
            && scrape.value("skewbridge_field_differences", &[]) == Some(1.0)
    })
    .await;
}

/// A restart with `--state-dir` while the only newer one of several values of `--upstream` is down, and
/// with the flags in another order.
#[tokio::test]
async fn a_balancer_with_a_state_dir_keeps_fields_over_a_restart() {
    let fixture = Fixture::new().await;
    let stored = Stored::new(Mutex::new(object(&json!({"old": "x", "new": "y"}))));
    for (index, (version, fields)) in [
        ("v1.34.4", OLD_FIELDS),
        ("v1.34.4", OLD_FIELDS),
        ("v1.36.4", NEW_FIELDS),
    ]
    .into_iter()
    .enumerate()
    {
        let etcd = stored.clone();
        let server = &fixture.servers[index];
        server.set_version(version, DiscoveryFormat::V2);
        server.set_hook(move |recorded| {
            let is_openapi = recorded.path().starts_with("/openapi/v3");
            let reply = serve(recorded, fields, &etcd);
            reply.or_else(|| is_openapi.then(|| Reply::new(404)))
        });
    }
    let state = fixture.pki.path().join("state");
    let with_state = |order| {
        let mut config = fixture.config_in_order(order);
        config.peers.state_dir = Some(state.clone());
        config.peers.guards.fields = FieldGuard::Writes;
        config
    };
    let bridge = start(&with_state([0, 1, 2]));
    fixture.wait_for_readiness(&bridge, [true; 3]).await;
    wait_until_fields_are_known(&bridge).await;
    let newest = state.join("served").join(fixture.address(2).to_string());
    let fields = state.join("fields");
    eventually("the state is stored", TEST_TIMEOUT, async || {
        let sets = std::fs::read_dir(&fields).into_iter().flatten().flatten();
        let is_set = |it: &std::fs::DirEntry| it.path().extension().is_some_and(|it| it == "json");
        newest.exists() && sets.filter(is_set).count() == 2
    })
    .await;
    drop(bridge);
    fixture.servers[2].server.stop_listening().await;
    fixture.servers[2].server.kill_connections().await;

    let bridge = start(&with_state([2, 0, 1]));
    fixture
        .wait_for_readiness(&bridge, [false, true, true])
        .await;
    // Each backend refuses writes until it has read the APIs of its server, and then because of the
    // stored fields. In between, no write is let through.
    let alice = fixture.pki.user("alice", &["dev"]);
    let headers = [("content-type", "application/json")];
    let mut refused_by_guard = 0;
    eventually("the guard refuses writes", TEST_TIMEOUT, async || {
        let sent = send_request(&alice, &bridge, "PATCH", OBJECT_PATH, &headers, "{}");
        let answer = sent.await;
        assert_eq!(answer.status, 503, "{}", answer.text());
        if answer.text().contains("would erase them") {
            refused_by_guard += 1;
        } else {
            assert!(
                answer.text().contains("has just started"),
                "{}",
                answer.text()
            );
            refused_by_guard = 0;
        }
        refused_by_guard == 8
    })
    .await;
    assert_eq!(
        stored.lock().unwrap()["spec"],
        json!({"old": "x", "new": "y"})
    );
}
