//! Servers of different versions are one cluster through their bridges: what any
//! of them serves is served by all (KEP-4020). The feature is off in the servers
//! themselves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_e2e::{
    Plane, Protocol, Raw, Request, Server, Special, Staying, User, Via, is_since, newest, oldest,
    planes,
};
use skewbridge_testkit::eventually;

/// From the last readiness to when everybody knows everybody.
const FOUND: Duration = Duration::from_secs(30);

fn peers(versions: &[String]) -> Vec<Server> {
    let servers = versions.iter().map(|version| {
        // It would put finalizers on what is to be deleted at once.
        Server::of(version)
            .peer()
            .flag("--disable-admission-plugins=StorageObjectInUseProtection")
    });
    servers.collect()
}

/// The planes that have something to share: 1.28 alone is no cluster.
fn mixed_planes() -> Vec<Vec<String>> {
    let mut planes = planes();
    planes.retain(|versions| newest(versions) != oldest(versions));
    planes
}

/// Which of the special APIs only some servers of this plane serve.
async fn shared(plane: &Plane) -> Vec<Special> {
    let mut shared = Vec::new();
    for special in Special::ALL {
        let mut serving = 0;
        for server in 0..plane.servers.len() {
            serving += usize::from(plane.status(server, Via::Server, special.path).await == 200);
        }
        if serving > 0 && serving < plane.servers.len() {
            shared.push(special);
        }
    }
    shared
}

#[tokio::test]
async fn what_one_server_serves_is_served_by_all() {
    for versions in mixed_planes() {
        println!("plane {versions:?}");
        let plane = Plane::start(&peers(&versions)).await;
        let shared = shared(&plane).await;
        assert!(!shared.is_empty(), "the versions differ by nothing");
        for special in &shared {
            for server in 0..versions.len() {
                let what = format!("{} through the bridge of {server}", special.path);
                eventually(&what, FOUND, async || {
                    plane.status(server, Via::Bridge, special.path).await == 200
                })
                .await;
                objects_live_and_die(&plane, server, special).await;
            }
        }
        if is_since(oldest(&versions), 34) && is_since(newest(&versions), 36) {
            a_subresource_that_only_one_has_is_found(&plane).await;
        }
        nobodys_api_is_not_found(&plane).await;
        a_forged_hop_changes_nothing(&plane, &shared).await;
        what_was_rerouted_is_counted(&plane).await;
    }
}

/// kubectl lists, creates, watches, patches and deletes.
async fn objects_live_and_die(plane: &Plane, server: usize, special: &Special) {
    let name = format!("thing-{server}");
    let kubectl = async |words: &[&str]| {
        let output = plane.kubectl(server, Via::Bridge, User::Admin, words).await;
        assert_eq!(output.code, Some(0), "{words:?}: {}", output.stderr);
        output.stdout
    };
    let kind = special.kubectl;
    kubectl(&["get", kind]).await;

    // From a version on, so that nothing is missed however long it takes to start.
    let list: Value =
        serde_json::from_str(&kubectl(&["get", "--raw", special.path]).await).unwrap();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{}?watch=true&resourceVersion={version}", special.path);
    let mut command = plane.kubectl_command(server, Via::Bridge, User::Admin);
    let mut watch = Staying::start(command.args(["get", "--raw", &path]));

    let manifest = special.object(&name);
    let file = plane.file(&format!("{name}.json"), &manifest);
    // Validation is by OpenAPI, which is the local server's.
    kubectl(&["create", "--validate=false", "-f", &file]).await;
    let label = r#"{"metadata":{"labels":{"patched":"true"}}}"#;
    kubectl(&["patch", kind, &name, "--type=merge", "-p", label]).await;
    let labels = [
        "get",
        kind,
        &name,
        "-o",
        "jsonpath={.metadata.labels.patched}",
    ];
    assert_eq!(kubectl(&labels).await, "true");
    kubectl(&["delete", kind, &name]).await;
    for event in ["ADDED", "MODIFIED", "DELETED"] {
        let seen: Value = serde_json::from_str(&watch.line().await).unwrap();
        assert_eq!(seen["type"], event, "{seen}");
        assert_eq!(seen["object"]["metadata"]["name"], *name, "{seen}");
    }
    let path = format!("{}/{name}", special.path);
    assert_eq!(plane.status(server, Via::Bridge, &path).await, 404);
}

/// Both 1.34 and 1.36 serve these rules, but only 1.36 their status. Kubernetes
/// advertises it on both, and does not find it on the older.
async fn a_subresource_that_only_one_has_is_found(plane: &Plane) {
    let path = "/apis/resource.k8s.io/v1alpha3/devicetaintrules";
    for server in 0..plane.servers.len() {
        assert_eq!(plane.status(server, Via::Server, path).await, 200);
    }
    let manifest = Special::TAINT_RULES.object("told");
    let manifest = manifest.replace("v1beta2", "v1alpha3");
    let request = Request::new("POST", path).body("application/json", &manifest);
    let created = bridge(plane, 0).send(&request).await.unwrap();
    assert_eq!(created.status, 201, "{}", created.text());

    let of_status = format!("{path}/told/status");
    let mut serving = Vec::new();
    for server in 0..plane.servers.len() {
        serving.push(plane.status(server, Via::Server, &of_status).await == 200);
    }
    assert!(serving.contains(&true) && serving.contains(&false));
    for server in 0..plane.servers.len() {
        let mut client = bridge(plane, server);
        let read = client.send(&Request::get(&of_status)).await.unwrap();
        assert_eq!(read.status, 200, "{server}: {}", read.text());
        let told = json!({"status": {"conditions": [{"type": "Told", "status": "True",
            "reason": format!("By{server}"), "message": "",
            "lastTransitionTime": "2026-11-15T12:00:00Z"}]}});
        let request = Request::new("PATCH", &of_status)
            .body("application/merge-patch+json", &told.to_string());
        let patched = client.send(&request).await.unwrap();
        assert_eq!(patched.status, 200, "{server}: {}", patched.text());
        let patched: Value = serde_json::from_slice(&patched.body).unwrap();
        let reason = &patched["status"]["conditions"][0]["reason"];
        assert_eq!(*reason, format!("By{server}"), "{patched}");
    }
    let deleted = Request::new("DELETE", &format!("{path}/told"));
    let deleted = bridge(plane, 0).send(&deleted).await.unwrap();
    assert_eq!(deleted.status, 200, "{}", deleted.text());
}

fn bridge(plane: &Plane, server: usize) -> Raw {
    plane.raw(server, Via::Bridge, Protocol::H2)
}

/// What nobody serves is not found, as ever; and it is the server that says so.
async fn nobodys_api_is_not_found(plane: &Plane) {
    let path = "/apis/none.example.com/v1/nothings";
    for server in 0..plane.servers.len() {
        let response = bridge(plane, server)
            .send(&Request::get(path))
            .await
            .unwrap();
        assert_eq!(response.status, 404);
        assert!(response.header("audit-id").is_some(), "{response:?}");
    }
}

/// Kubernetes believes anybody that a request has hopped, and says 404.
async fn a_forged_hop_changes_nothing(plane: &Plane, shared: &[Special]) {
    for special in shared {
        for server in 0..plane.servers.len() {
            for name in [
                "x-kubernetes-peer-proxied",
                "X-Kubernetes-APIServer-Rerouted",
            ] {
                let request = Request::get(special.path).header(name, "true");
                let response = bridge(plane, server).send(&request).await.unwrap();
                assert_eq!(response.status, 200, "{} {server}", special.path);
                let mut names: Vec<_> = response.headers.iter().map(|it| &it.0).collect();
                let all = names.len();
                names.sort();
                names.dedup();
                assert_eq!(names.len(), all, "each header once: {:?}", response.headers);
            }
        }
    }
}

async fn what_was_rerouted_is_counted(plane: &Plane) {
    for server in 0..plane.servers.len() {
        let metrics = plane.admin(server, "/metrics").await;
        for name in [
            "apiserver_rerouted_request_total{",
            "kubernetes_apiserver_rerouted_request_total{",
            "skewbridge_rerouted_requests_total{",
            "skewbridge_peer_discovery_age_seconds{",
        ] {
            assert!(metrics.contains(name), "{name} in {metrics}");
        }
        let peers: Value =
            serde_json::from_str(&plane.admin(server, "/debug/peers").await).unwrap();
        let list = peers["peers"].as_array().unwrap();
        assert_eq!(list.len(), plane.servers.len() - 1, "{peers:#}");
        for peer in list {
            assert!(peer["healthy"].as_bool().unwrap(), "{peers:#}");
            assert!(peer["address"].is_string(), "{peers:#}");
        }
    }
}
