//! A `MutatingAdmissionPolicy`, which only 1.36 enforces, changes the objects that are created through
//! the bridge of 1.34.

mod validating;

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ServerSpec, Via, minors_of_one_plane,
    old_and_new_versions,
};
use skewbridge_testkit::{ScratchDir, TEST_TIMEOUT, eventually};

use crate::peer_pair::{NEW, OLD, PEER_DISCOVERY_TIMEOUT, debug_peers};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// How often each rule is tested: the bridge has to apply it to every request.
const REPETITIONS: usize = 20;

/// A policy that adds this label to new Deployments.
fn policy(name: &str, label: &str) -> String {
    let expression =
        format!("[JSONPatch{{op: \"add\", path: \"/metadata/labels/{label}\", value: \"yes\"}}]");
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["deployments"],
            }]},
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
        },
    })
    .to_string()
}

fn binding(name: &str) -> String {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": name},
    })
    .to_string()
}

fn deployment(name: &str) -> String {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "none.example.com/web"}]},
            },
        },
    })
    .to_string()
}

/// Clients of both bridges and of a server (the new one), and the number of objects that they have created.
struct Clients {
    old: HttpClient,
    new: HttpClient,
    direct: HttpClient,
    created: usize,
}

impl Clients {
    fn new(plane: &ControlPlane) -> Self {
        Self {
            old: plane.http_client(OLD, Via::Bridge, Protocol::H2),
            new: plane.http_client(NEW, Via::Bridge, Protocol::H2),
            direct: plane.http_client(NEW, Via::Server, Protocol::H2),
            created: 0,
        }
    }

    /// Creates a Deployment with a new name through the bridge of the old server. Returns the status
    /// and the object.
    async fn deploy(&mut self) -> (u16, Value) {
        self.created += 1;
        let body = deployment(&format!("web-{}", self.created));
        send(&mut self.old, "POST", DEPLOYMENTS, &body).await
    }

    /// Creates a `ConfigMap`, which no policy matches.
    async fn create_config_map(&mut self) -> (u16, Value) {
        self.created += 1;
        let object = json!({"metadata": {"name": format!("unmatched-{}", self.created)}});
        send(&mut self.old, "POST", CONFIG_MAPS, &object.to_string()).await
    }

    /// Waits until the server of `direct` itself enforces a policy: its own informer has a delay.
    async fn wait_until_active(&mut self, label: &str) {
        let path = format!("{DEPLOYMENTS}?dryRun=All");
        eventually("the policy is active", TEST_TIMEOUT, async || {
            let (status, object) =
                send(&mut self.direct, "POST", &path, &deployment("probe")).await;
            status == 201 && object["metadata"]["labels"][label] == "yes"
        })
        .await;
    }
}

async fn send(client: &mut HttpClient, method: &str, path: &str, body: &str) -> (u16, Value) {
    let request = Request::new(method, path).body("application/json", body);
    let response = client.send(&request).await.unwrap();
    let object = serde_json::from_slice(&response.body).unwrap_or_default();
    (response.status, object)
}

/// The number of create requests in the audit log of a server.
fn create_count(plane: &ControlPlane, server: usize, resource: &str) -> usize {
    let log = std::fs::read_to_string(&plane.servers[server].audit_log).unwrap();
    let lines = log.lines();
    let entries = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let creates = entries.filter(|entry| {
        entry["stage"] == "ResponseComplete"
            && entry["verb"] == "create"
            && entry["objectRef"]["resource"] == resource
            && entry["responseStatus"]["code"] == 201
    });
    creates.count()
}

/// Checks the number of create requests. kube-apiserver writes the last event after it has sent the response.
async fn assert_creates(plane: &ControlPlane, server: usize, resource: &str, expected: usize) {
    let what = format!("{expected} create requests for {resource} in the audit log of {server}");
    eventually(&what, TEST_TIMEOUT, async || {
        create_count(plane, server, resource) >= expected
    })
    .await;
    assert_eq!(create_count(plane, server, resource), expected);
}

async fn placed(plane: &ControlPlane) -> u64 {
    let metrics = plane.metrics(plane.servers[OLD].admin).await;
    metrics.sum("skewbridge_placed_requests_total", &["rule=\"admission\""])
}

/// Creates a policy and its binding through one of the bridges.
async fn create_policy(client: &mut HttpClient, name: &str) {
    for (path, body) in [(POLICIES, policy(name, name)), (BINDINGS, binding(name))] {
        let (status, object) = send(client, "POST", path, &body).await;
        assert_eq!(status, 201, "{object}");
    }
}

/// Each Deployment gets all these labels.
async fn assert_enforced(clients: &mut Clients, labels: &[&str]) {
    for _ in 0..REPETITIONS {
        let (status, object) = clients.deploy().await;
        assert_eq!(status, 201, "{object}");
        for label in labels {
            assert_eq!(object["metadata"]["labels"][label], "yes", "{object}");
        }
    }
}

/// The new server is down: writes that a policy matches get 503 with the reason, and
/// others succeed.
async fn assert_refused(clients: &mut Clients) {
    for _ in 0..REPETITIONS {
        let (status, object) = clients.deploy().await;
        assert_eq!(status, 503, "{object}");
        let message = object["message"].as_str().unwrap();
        assert!(message.contains("mutatingadmissionpolicies"), "{message}");
        let (status, object) = clients.create_config_map().await;
        assert_eq!(status, 201, "{object}");
    }
}

/// Starts both servers; the bridge of the old one stores policies and served records in `state`.
async fn start_control_plane(old: &str, new: &str, state: &ScratchDir) -> ControlPlane {
    start_servers(ServerSpec::of(old), ServerSpec::of(new), state).await
}

async fn start_servers(old: ServerSpec, new: ServerSpec, state: &ScratchDir) -> ControlPlane {
    let state_dir = format!("--state-dir={}", state.path().display());
    let servers = [
        // With the field guard all writes of deployments would go to the new server.
        (old.peer().bridge_flag(&state_dir)).bridge_flag("--guard-fields=off"),
        new.peer(),
    ];
    let plane = ControlPlane::start(&servers).await;
    eventually(
        "the bridges know each other",
        PEER_DISCOVERY_TIMEOUT,
        async || {
            let page = plane.admin_page(OLD, "/readyz?verbose").await;
            let peers = debug_peers(&plane, OLD).await;
            page.contains("peers ok: 1 of 1 reachable") && peers["policies"].is_null()
        },
    )
    .await;
    plane
}

async fn restart_old_bridge(plane: &mut ControlPlane) {
    plane.stop_bridge(OLD, "KILL");
    plane.start_bridge(OLD);
    let address = plane.servers[OLD].bridge;
    plane.wait_for_ready("the old bridge", address).await;
    eventually("policies are known", PEER_DISCOVERY_TIMEOUT, async || {
        debug_peers(plane, OLD).await["policies"][0]["objects"] == 2
    })
    .await;
}

#[tokio::test]
async fn a_policy_of_the_new_server_changes_objects_created_through_the_old_bridge() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let state = ScratchDir::new();
    let mut plane = start_control_plane(&old, &new, &state).await;
    let mut clients = Clients::new(&plane);
    // Without a policy writes go to the old server.
    let (status, object) = clients.deploy().await;
    assert_eq!(status, 201, "{object}");
    assert_creates(&plane, OLD, "deployments", 1).await;
    assert_eq!(placed(&plane).await, 0);

    create_policy(&mut clients.old, "first").await;
    // The bridge routes by the policy before the new server enforces it.
    let (status, object) = clients.deploy().await;
    assert_eq!(status, 201, "{object}");
    assert_eq!(placed(&plane).await, 1);
    clients.wait_until_active("first").await;
    assert_enforced(&mut clients, &["first"]).await;
    let body = deployment("through-the-new-bridge");
    let (status, object) = send(&mut clients.new, "POST", DEPLOYMENTS, &body).await;
    assert_eq!(status, 201, "{object}");
    assert_eq!(object["metadata"]["labels"]["first"], "yes");

    create_policy(&mut clients.new, "second").await;
    clients.wait_until_active("second").await;
    assert_enforced(&mut clients, &["first", "second"]).await;
    assert_creates(&plane, OLD, "deployments", 1).await;
    // A write that no policy matches goes to the local server.
    let before = create_count(&plane, OLD, "configmaps");
    assert_eq!(clients.create_config_map().await.0, 201);
    assert_creates(&plane, OLD, "configmaps", before + 1).await;

    plane.stop_server(NEW, "KILL");
    assert_refused(&mut clients).await;
    restart_old_bridge(&mut plane).await;
    clients = Clients {
        created: clients.created,
        ..Clients::new(&plane)
    };
    assert_refused(&mut clients).await;
    let metrics = plane.metrics(plane.servers[OLD].admin).await;
    let refused = metrics.sum("skewbridge_unmet_placements_total", &["rule=\"admission\""]);
    assert!(refused >= REPETITIONS as u64, "{refused}");
    assert_eq!(metrics.sum("skewbridge_guarded_policies", &[]), 2);

    plane.start_server(NEW);
    eventually(
        "matching writes are accepted",
        PEER_DISCOVERY_TIMEOUT * 2,
        async || {
            let (status, object) = clients.deploy().await;
            let is_mutated = object["metadata"]["labels"]["first"] == "yes";
            assert!(status != 201 || is_mutated, "{object}");
            status == 201
        },
    )
    .await;
    assert_enforced(&mut clients, &["first", "second"]).await;
    assert_creates(&plane, OLD, "deployments", 1).await;

    // After the policies are deleted, writes go to the local server again immediately.
    for name in ["first", "second"] {
        for collection in [BINDINGS, POLICIES] {
            let path = format!("{collection}/{name}");
            let (status, object) = send(&mut clients.old, "DELETE", &path, "{}").await;
            assert_eq!(status, 200, "{object}");
        }
    }
    let before = placed(&plane).await;
    assert_enforced(&mut clients, &[]).await;
    assert_eq!(placed(&plane).await, before);
    assert_creates(&plane, OLD, "deployments", 1 + REPETITIONS).await;
}

/// 1.36 and 1.37 serve the same kinds of policies, so no write is placed by them (`--all`).
#[tokio::test]
async fn nothing_is_placed_by_policies_that_both_servers_enforce() {
    let Some([old, new]) = minors_of_one_plane([36, 37]) else {
        return;
    };
    let state = ScratchDir::new();
    let plane = start_control_plane(&old, &new, &state).await;
    let mut clients = Clients::new(&plane);
    create_policy(&mut clients.old, "first").await;
    clients.wait_until_active("first").await;
    clients.direct = plane.http_client(OLD, Via::Server, Protocol::H2);
    clients.wait_until_active("first").await;
    assert_enforced(&mut clients, &["first"]).await;
    assert_eq!(placed(&plane).await, 0);
    assert_creates(&plane, OLD, "deployments", REPETITIONS).await;
    let metrics = plane.metrics(plane.servers[OLD].admin).await;
    assert_eq!(metrics.sum("skewbridge_guarded_policies", &[]), 0);
}
