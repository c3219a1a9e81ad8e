//! Servers of different versions are one cluster through their bridges: what any
//! of them serves is served by all (KEP-4020). The feature is off in the servers
//! themselves.

use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_e2e::{
    Plane, Protocol, Raw, Request, Server, Special, Staying, User, Via, is_since, newest, oldest,
    planes,
};
use skewbridge_peer_directory::Identity;
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
    for special in Special::ALL {
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
    let mut shared = Special::ALL.to_vec();
    shared.retain(|special| {
        let serving = serving(plane, special).len();
        serving > 0 && serving < plane.servers.len()
    });
    shared
}

/// The servers that serve it.
fn serving(plane: &Plane, special: &Special) -> Vec<usize> {
    let servers = plane.servers.iter().enumerate();
    let serving = servers.filter(|(_, server)| special.is_served_by(&server.version));
    serving.map(|(number, _)| number).collect()
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
        for server in 0..versions.len() {
            what_was_rerouted_is_counted(&plane, server).await;
            the_others_are_told_of(&plane, server, &shared).await;
        }
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
    let (mut written, mut version) = (Value::Null, Value::Null);
    for event in ["ADDED", "MODIFIED", "DELETED"] {
        let seen = loop {
            let seen: Value = serde_json::from_str(&watch.line().await).unwrap();
            let object = &seen["object"];
            let now = &object["metadata"]["resourceVersion"];
            assert_ne!(std::mem::replace(&mut version, now.clone()), *now, "{seen}");
            // Servers judge some kinds, and each writes that into their status.
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

async fn what_was_rerouted_is_counted(plane: &Plane, server: usize) {
    let metrics = plane.admin(server, "/metrics").await;
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

fn identity(plane: &Plane, server: usize) -> String {
    Identity::of_hostname(&plane.servers[server].host).to_string()
}

/// `/debug/peers` of the bridge of a server.
async fn the_others_are_told_of(plane: &Plane, server: usize, shared: &[Special]) {
    let view = async || -> Value {
        serde_json::from_str(&plane.admin(server, "/debug/peers").await).unwrap()
    };
    // That the server keeps it is seen when it renews it.
    eventually("who keeps the Lease is known", FOUND, async || {
        view().await["local"]["leaseKeptBy"] == "kube-apiserver"
    })
    .await;
    let view = view().await;
    assert!(view["waitingFor"].is_null(), "{view:#}");
    let peers = view["peers"].as_array().unwrap();
    assert_eq!(peers.len(), plane.servers.len() - 1, "{view:#}");
    for (number, running) in plane.servers.iter().enumerate() {
        let told = if number == server {
            &view["local"]
        } else {
            let told = peers.iter();
            let mut told = told.filter(|it| it["identity"] == identity(plane, number));
            let told = told.next().expect("each server by its identity");
            for yes in ["published", "alive", "healthy"] {
                assert_eq!(told[yes], true, "{yes}: {told:#}");
            }
            assert!(told["secondsSinceSync"].is_u64(), "{told:#}");
            assert_eq!(told["requestsUnderWay"], 0, "{told:#}");
            told
        };
        assert_eq!(told["identity"], identity(plane, number), "{told:#}");
        assert_eq!(told["version"], running.version, "{told:#}");
        assert_eq!(told["address"], running.bridge.to_string(), "{told:#}");
        assert!(told["problem"].is_null(), "{told:#}");
        let alone = told["servesAlone"].as_array().unwrap();
        for special in shared {
            let expected = serving(plane, special) == [number];
            let line = special.line();
            assert_eq!(alone.contains(&json!(line)), expected, "{line}: {told:#}");
        }
    }
}
