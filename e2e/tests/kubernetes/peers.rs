//! Servers of different versions form one cluster through their bridges: an API that any of
//! them serves is served by all (KEP-4020). The feature is off in the servers themselves.

use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, RunningKubectl, ServerSpec, User,
    VersionSpecificApi, Via, control_planes, is_since, newest, oldest,
};
use skewbridge_peer_directory::Identity;
use skewbridge_testkit::eventually;

/// From the last readiness to the time when all servers know each other.
const PEER_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

fn peers(versions: &[String]) -> Vec<ServerSpec> {
    let servers = versions.iter().map(|version| {
        // This controller would add finalizers to objects that are to be deleted immediately.
        ServerSpec::of(version)
            .peer()
            .flag("--disable-admission-plugins=StorageObjectInUseProtection")
    });
    servers.collect()
}

/// The control planes with different versions.
fn mixed_control_planes() -> Vec<Vec<String>> {
    let mut control_planes = control_planes();
    control_planes.retain(|versions| newest(versions) != oldest(versions));
    control_planes
}

/// The version-specific APIs that only some servers of this control plane serve.
async fn partially_served_apis(plane: &ControlPlane) -> Vec<VersionSpecificApi> {
    for special in VersionSpecificApi::ALL {
        for (number, server) in plane.servers.iter().enumerate() {
            let expected = if special.is_served_by(&server.version) {
                200
            } else {
                404
            };
            let status = plane.status(number, Via::Server, special.path).await;
            assert_eq!(status, expected, "{} {}", special.path, server.version);
        }
    }
    let mut partially_served_apis = VersionSpecificApi::ALL.to_vec();
    partially_served_apis.retain(|special| {
        let serving = serving(plane, special).len();
        serving > 0 && serving < plane.servers.len()
    });
    partially_served_apis
}

/// The servers that serve it.
fn serving(plane: &ControlPlane, special: &VersionSpecificApi) -> Vec<usize> {
    let servers = plane.servers.iter().enumerate();
    let serving = servers.filter(|(_, server)| special.is_served_by(&server.version));
    serving.map(|(number, _)| number).collect()
}

#[tokio::test]
async fn an_api_of_one_server_is_served_by_all() {
    for versions in mixed_control_planes() {
        println!("plane {versions:?}");
        let plane = ControlPlane::start(&peers(&versions)).await;
        let partially_served_apis = partially_served_apis(&plane).await;
        assert!(
            !partially_served_apis.is_empty(),
            "the versions serve the same APIs"
        );
        for special in &partially_served_apis {
            for server in 0..versions.len() {
                let what = format!("{} through the bridge of {server}", special.path);
                eventually(&what, PEER_DISCOVERY_TIMEOUT, async || {
                    plane.status(server, Via::Bridge, special.path).await == 200
                })
                .await;
                objects_are_created_watched_and_deleted(&plane, server, special).await;
            }
        }
        if is_since(oldest(&versions), 34) && is_since(newest(&versions), 36) {
            a_subresource_of_only_one_server_is_found(&plane).await;
        }
        an_unknown_api_is_not_found(&plane).await;
        a_forged_hop_changes_nothing(&plane, &partially_served_apis).await;
        for server in 0..versions.len() {
            rerouted_requests_are_counted(&plane, server).await;
            debug_peers_lists_the_others(&plane, server, &partially_served_apis).await;
        }
    }
}

/// kubectl lists, creates, watches, patches and deletes.
async fn objects_are_created_watched_and_deleted(
    plane: &ControlPlane,
    server: usize,
    special: &VersionSpecificApi,
) {
    let name = format!("thing-{server}");
    let kubectl = async |words: &[&str]| {
        let output = plane.kubectl(server, Via::Bridge, User::Admin, words).await;
        assert_eq!(output.code, Some(0), "{words:?}: {}", output.stderr);
        output.stdout
    };
    let kind = special.kubectl;
    kubectl(&["get", kind]).await;

    // From a resource version on, so that nothing is missed however long the start takes.
    let list: Value =
        serde_json::from_str(&kubectl(&["get", "--raw", special.path]).await).unwrap();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{}?watch=true&resourceVersion={version}", special.path);
    let mut command = plane.kubectl_command(server, Via::Bridge, User::Admin);
    let mut watch = RunningKubectl::start(command.args(["get", "--raw", &path]));

    let manifest = special.object(&name);
    let file = plane.file(&format!("{name}.json"), &manifest);
    // Validation uses OpenAPI of the local server.
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
    let (mut written, mut version) = (Value::Null, Value::Null);
    for event in ["ADDED", "MODIFIED", "DELETED"] {
        let seen = loop {
            let seen: Value = serde_json::from_str(&watch.line().await).unwrap();
            let object = &seen["object"];
            let now = &object["metadata"]["resourceVersion"];
            assert_ne!(std::mem::replace(&mut version, now.clone()), *now, "{seen}");
            // Servers validate some kinds, and each writes the result into their status.
            let now = json!([object["metadata"]["labels"], object["spec"]]);
            let same = std::mem::replace(&mut written, now) == written;
            if seen["type"] != "MODIFIED" || !same {
                break seen;
            }
        };
        assert_eq!(seen["type"], event, "{seen}");
        assert_eq!(seen["object"]["metadata"]["name"], *name, "{seen}");
        let patched = &seen["object"]["metadata"]["labels"]["patched"];
        assert_eq!(*patched == "true", event != "ADDED", "{seen}");
    }
    let path = format!("{}/{name}", special.path);
    assert_eq!(plane.status(server, Via::Bridge, &path).await, 404);
}

/// Both 1.34 and 1.36 serve these rules, but only 1.36 serves their status. Kubernetes
/// advertises it on both, and responds 404 on the older.
async fn a_subresource_of_only_one_server_is_found(plane: &ControlPlane) {
    let path = "/apis/resource.k8s.io/v1alpha3/devicetaintrules";
    for server in 0..plane.servers.len() {
        assert_eq!(plane.status(server, Via::Server, path).await, 200);
    }
    let manifest = VersionSpecificApi::TAINT_RULES.object("rule");
    let manifest = manifest.replace("v1beta2", "v1alpha3");
    let request = Request::new("POST", path).body("application/json", &manifest);
    let created = bridge(plane, 0).send(&request).await.unwrap();
    assert_eq!(created.status, 201, "{}", created.text());

    let status_path = format!("{path}/rule/status");
    let mut serving = Vec::new();
    for server in 0..plane.servers.len() {
        serving.push(plane.status(server, Via::Server, &status_path).await == 200);
    }
    assert!(serving.contains(&true) && serving.contains(&false));
    for server in 0..plane.servers.len() {
        let mut client = bridge(plane, server);
        let read = client.send(&Request::get(&status_path)).await.unwrap();
        assert_eq!(read.status, 200, "{server}: {}", read.text());
        let new_status = json!({"status": {"conditions": [{"type": "Evicted", "status": "True",
            "reason": format!("By{server}"), "message": "",
            "lastTransitionTime": "2026-11-15T12:00:00Z"}]}});
        let request = Request::new("PATCH", &status_path)
            .body("application/merge-patch+json", &new_status.to_string());
        let patched = client.send(&request).await.unwrap();
        assert_eq!(patched.status, 200, "{server}: {}", patched.text());
        let patched: Value = serde_json::from_slice(&patched.body).unwrap();
        let reason = &patched["status"]["conditions"][0]["reason"];
        assert_eq!(*reason, format!("By{server}"), "{patched}");
    }
    let deleted = Request::new("DELETE", &format!("{path}/rule"));
    let deleted = bridge(plane, 0).send(&deleted).await.unwrap();
    assert_eq!(deleted.status, 200, "{}", deleted.text());
}

fn bridge(plane: &ControlPlane, server: usize) -> HttpClient {
    plane.http_client(server, Via::Bridge, Protocol::H2)
}

/// An API that no server serves is not found, and the response is that of the server.
async fn an_unknown_api_is_not_found(plane: &ControlPlane) {
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

/// Kubernetes accepts this header from any client, and responds 404.
async fn a_forged_hop_changes_nothing(
    plane: &ControlPlane,
    partially_served_apis: &[VersionSpecificApi],
) {
    for special in partially_served_apis {
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

async fn rerouted_requests_are_counted(plane: &ControlPlane, server: usize) {
    let metrics = plane.admin_page(server, "/metrics").await;
    let others = (0..plane.servers.len()).filter(|other| *other != server);
    let peers = others.map(|other| format!("peer=\"{}\"", identity(plane, other)));
    let peers: Vec<_> = peers.collect();
    let of_some_peer = |name: &str| {
        let mut samples = metrics.lines().filter(|line| line.starts_with(name));
        samples.any(|line| peers.iter().any(|peer| line.contains(peer)))
    };
    for name in [
        "skewbridge_rerouted_requests_total{",
        "skewbridge_peer_discovery_age_seconds{",
        "skewbridge_peer_request_duration_seconds_count{",
    ] {
        assert!(of_some_peer(name), "{name} in {metrics}");
    }
    for name in [
        "apiserver_rerouted_request_total{",
        "kubernetes_apiserver_rerouted_request_total{",
        "# TYPE apiserver_peer_proxy_errors counter",
        "apiserver_peer_discovery_sync_errors_total{type=\"fetch_discovery\"}",
        "apiserver_peer_discovery_sync_errors_total{type=\"lease_list\"}",
    ] {
        assert!(metrics.contains(name), "{name} in {metrics}");
    }
}

fn identity(plane: &ControlPlane, server: usize) -> String {
    Identity::of_hostname(&plane.servers[server].host).to_string()
}

/// `/debug/peers` of the bridge of a server.
async fn debug_peers_lists_the_others(
    plane: &ControlPlane,
    server: usize,
    partially_served_apis: &[VersionSpecificApi],
) {
    let view = async || -> Value {
        serde_json::from_str(&plane.admin_page(server, "/debug/peers").await).unwrap()
    };
    // A renewal shows that the server keeps the Lease itself.
    eventually(
        "the writer of the Lease is known",
        PEER_DISCOVERY_TIMEOUT,
        async || view().await["local"]["leaseKeptBy"] == "kube-apiserver",
    )
    .await;
    let view = view().await;
    assert!(view["waitingFor"].is_null(), "{view:#}");
    let peers = view["peers"].as_array().unwrap();
    assert_eq!(peers.len(), plane.servers.len() - 1, "{view:#}");
    for (number, running) in plane.servers.iter().enumerate() {
        let entry = if number == server {
            &view["local"]
        } else {
            let entry = peers.iter();
            let mut entry = entry.filter(|it| it["identity"] == identity(plane, number));
            let entry = entry.next().expect("each server by its identity");
            for yes in ["published", "alive", "healthy"] {
                assert_eq!(entry[yes], true, "{yes}: {entry:#}");
            }
            assert!(entry["secondsSinceSync"].is_u64(), "{entry:#}");
            assert_eq!(entry["requestsUnderWay"], 0, "{entry:#}");
            entry
        };
        assert_eq!(entry["identity"], identity(plane, number), "{entry:#}");
        assert_eq!(entry["version"], running.version, "{entry:#}");
        assert_eq!(entry["address"], running.bridge.to_string(), "{entry:#}");
        assert!(entry["problem"].is_null(), "{entry:#}");
        let alone = entry["servesAlone"].as_array().unwrap();
        for special in partially_served_apis {
            let expected = serving(plane, special) == [number];
            let line = special.line();
            assert_eq!(alone.contains(&json!(line)), expected, "{line}: {entry:#}");
        }
    }
}
