//! Servers of different versions are one cluster through their bridges: what any
//! of them serves is served by all (KEP-4020). The feature is off in the servers
//! themselves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use serde_json::Value;
use skewbridge_e2e::{
    Plane, Protocol, Raw, Request, Server, Staying, User, Via, newest, oldest, planes,
};
use skewbridge_testkit::eventually;

/// From the last readiness to when everybody knows everybody.
const FOUND: Duration = Duration::from_secs(30);

/// An API that only some servers of a plane have.
struct Special {
    /// As kubectl takes it: resource, version and group.
    kubectl: &'static str,
    path: &'static str,
    /// A manifest, `NAME` to be replaced.
    manifest: &'static str,
}

/// Only 1.36 serves this version of it.
const POLICIES: Special = Special {
    kubectl: "mutatingadmissionpolicies.v1.admissionregistration.k8s.io",
    path: "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    manifest: r#"{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicy",
        "metadata":{"name":"NAME"},
        "spec":{"failurePolicy":"Ignore","reinvocationPolicy":"Never",
          "matchConstraints":{"resourceRules":[{"apiGroups":["none.example.com"],
            "apiVersions":["v1"],"operations":["CREATE"],"resources":["nothings"]}]},
          "mutations":[{"patchType":"JSONPatch","jsonPatch":
            {"expression":"[JSONPatch{op: \"test\", path: \"/kind\", value: \"None\"}]"}}]}}"#,
};

/// Only 1.36 serves this version of it.
const TAINT_RULES: Special = Special {
    kubectl: "devicetaintrules.v1beta2.resource.k8s.io",
    path: "/apis/resource.k8s.io/v1beta2/devicetaintrules",
    manifest: r#"{"apiVersion":"resource.k8s.io/v1beta2","kind":"DeviceTaintRule",
        "metadata":{"name":"NAME"},
        "spec":{"deviceSelector":{"driver":"none.example.com"},
          "taint":{"key":"example.com/none","effect":"NoSchedule"}}}"#,
};

/// Only 1.34, and 1.29 beside 1.28, serve this version of it.
const ATTRIBUTES_CLASSES: Special = Special {
    kubectl: "volumeattributesclasses.v1alpha1.storage.k8s.io",
    path: "/apis/storage.k8s.io/v1alpha1/volumeattributesclasses",
    manifest: r#"{"apiVersion":"storage.k8s.io/v1alpha1","kind":"VolumeAttributesClass",
        "metadata":{"name":"NAME"},"driverName":"none.example.com","parameters":{"a":"b"}}"#,
};

/// Only 1.28, beside 1.29, serves this version of it.
const FLOW_SCHEMAS: Special = Special {
    kubectl: "flowschemas.v1beta2.flowcontrol.apiserver.k8s.io",
    path: "/apis/flowcontrol.apiserver.k8s.io/v1beta2/flowschemas",
    manifest: r#"{"apiVersion":"flowcontrol.apiserver.k8s.io/v1beta2","kind":"FlowSchema",
        "metadata":{"name":"NAME"},
        "spec":{"priorityLevelConfiguration":{"name":"exempt"}}}"#,
};

const ALL: [Special; 4] = [POLICIES, TAINT_RULES, ATTRIBUTES_CLASSES, FLOW_SCHEMAS];

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

async fn status(plane: &Plane, server: usize, via: Via, path: &str) -> u16 {
    let address = plane.servers[server].at(via);
    let mut client = Raw::new(plane.client("admin"), address, Protocol::H2);
    match client.send(&Request::get(path)).await {
        Ok(response) => response.status,
        Err(_) => 0,
    }
}

/// Which of the special APIs only some servers of this plane serve.
async fn shared(plane: &Plane) -> Vec<Special> {
    let mut shared = Vec::new();
    for special in ALL {
        let mut serving = 0;
        for server in 0..plane.servers.len() {
            serving += usize::from(status(plane, server, Via::Server, special.path).await == 200);
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
        assert!(shared.len() > 1, "the versions differ by too little");
        for special in &shared {
            for server in 0..versions.len() {
                let what = format!("{} through the bridge of {server}", special.path);
                eventually(&what, FOUND, async || {
                    status(&plane, server, Via::Bridge, special.path).await == 200
                })
                .await;
                objects_live_and_die(&plane, server, special).await;
            }
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

    let manifest = special.manifest.replace("NAME", &name);
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
    assert_eq!(status(plane, server, Via::Bridge, &path).await, 404);
}

fn bridge(plane: &Plane, server: usize) -> Raw {
    let address = plane.servers[server].at(Via::Bridge);
    Raw::new(plane.client("admin"), address, Protocol::H2)
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
