//! Alerts about policies that only a newer server enforces, and about lost streams.

use serde_json::json;
use skewbridge_e2e::{
    ControlPlane, HttpClient, Node, Prometheus, Protocol, Request, RunningKubectl, ServerSpec,
    User, Via, old_and_new_versions,
};
use skewbridge_testkit::eventually;

use super::alerts::{fires, request_until, silent};
use super::{ALERT_TIMEOUT, RBAC, apply, config, fast_rules};
use crate::peer_pair::{NEW, OLD, debug_peers};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The rule of the manifest that lets a bridge read policies.
const POLICY_RULE: &str = r#"- apiGroups: ["admissionregistration.k8s.io"]
  resources: ["*"]
  verbs: ["list", "watch"]
"#;

/// More than the alert tolerates in 15 minutes.
const STREAMS: usize = 6;

/// An old and a new server. The user of the bridge of the old one may not read policies.
async fn start_servers(old: &str, new: &str) -> ControlPlane {
    let servers = [
        // With the field guard all writes would go to the new server.
        (ServerSpec::of(old).peer().bridge_flag("--guard-fields=off"))
            .bridge_flag("--bridge-user=skewbridge"),
        ServerSpec::of(new).peer(),
    ];
    let mut plane = ControlPlane::prepare(&servers);
    for server in [OLD, NEW] {
        plane.start_server(server);
    }
    for server in [OLD, NEW] {
        let address = plane.servers[server].address;
        plane.wait_for_ready("a kube-apiserver", address).await;
    }
    assert!(RBAC.contains(POLICY_RULE));
    apply(&plane, "rbac.yaml", &RBAC.replace(POLICY_RULE, "")).await;
    for server in [OLD, NEW] {
        plane.start_bridge(server);
    }
    plane.wait_until_ready().await;
    plane
}

async fn watch(plane: &ControlPlane) -> Prometheus {
    let target = plane.servers[OLD].admin;
    let job = format!("- job_name: skewbridge\n  static_configs: [{{targets: ['{target}']}}]\n");
    let rules = fast_rules(plane).await;
    plane.start_prometheus(&config(&rules, "1s", &job)).await
}

async fn wait_for_value(prometheus: &Prometheus, series: &str, value: f64) {
    eventually(&format!("{series} is {value}"), ALERT_TIMEOUT, async || {
        prometheus.value(series).await == Some(value)
    })
    .await;
}

/// Sessions that the server ends all at once, by its own end. kube-apiserver reports the loss of a
/// node as a normal end.
async fn lose_streams(plane: &mut ControlPlane, prometheus: &Prometheus) {
    let _node = plane.start_node().await;
    let mut sessions = Vec::new();
    for _ in 0..STREAMS {
        let mut command = plane.kubectl_command(OLD, Via::Bridge, User::Admin);
        command.args(["--namespace", Node::NAMESPACE, "exec", Node::POD, "--"]);
        command.args(["sh", "-c", "echo started; exec sleep 300"]);
        let mut session = RunningKubectl::start(&mut command);
        assert_eq!(session.line().await, "started");
        sessions.push(session);
    }
    let lost = "sum(skewbridge_streams_total{result=\"disconnected\"})";
    wait_for_value(prometheus, lost, 0.0).await;
    let admin = plane.servers[OLD].admin;
    silent(prometheus, admin, "SkewbridgeStreamsCut").await;
    plane.stop_server(OLD, "KILL");
    fires(prometheus, admin, "SkewbridgeStreamsCut").await;
}

async fn create(client: &mut HttpClient, path: &str, object: &serde_json::Value) {
    let request = Request::new("POST", path).body("application/json", &object.to_string());
    let response = client.send(&request).await.unwrap();
    assert_eq!(response.status, 201, "{}", response.text());
}

/// A policy that matches the creation of `ConfigMap`s.
async fn create_policy(plane: &ControlPlane) {
    let mut client = plane.http_client(OLD, Via::Bridge, Protocol::H1);
    let name = "label";
    let expression = r#"[JSONPatch{op: "add", path: "/metadata/labels/label", value: "yes"}]"#;
    let policy = json!({
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["configmaps"],
            }]},
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
        },
    });
    create(&mut client, POLICIES, &policy).await;
    let binding = json!({"metadata": {"name": name}, "spec": {"policyName": name}});
    create(&mut client, BINDINGS, &binding).await;
    eventually("the policy is known", ALERT_TIMEOUT, async || {
        debug_peers(plane, OLD).await["policies"][0]["objects"] == 1
    })
    .await;
}

#[tokio::test]
async fn unknown_policies_refused_writes_and_lost_streams_fire_alerts() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let mut plane = start_servers(&old, &new).await;
    let prometheus = watch(&plane).await;
    let admin = plane.servers[OLD].admin;
    fires(&prometheus, admin, "SkewbridgePoliciesUnknown").await;
    // The remedy that the alert names.
    apply(&plane, "rbac.yaml", RBAC).await;
    wait_for_value(&prometheus, "skewbridge_unknown_policy_kinds", 0.0).await;
    eventually("the alert ends", ALERT_TIMEOUT, async || {
        let firing = prometheus.firing().await;
        !firing.iter().any(|it| it == "SkewbridgePoliciesUnknown")
    })
    .await;

    create_policy(&plane).await;
    plane.stop_server(NEW, "KILL");
    let mut client = plane.http_client(OLD, Via::Bridge, Protocol::H1);
    let object = json!({"metadata": {"generateName": "refused-"}}).to_string();
    let write = Request::new("POST", CONFIG_MAPS).body("application/json", &object);
    let alert = "SkewbridgeWritesRefused";
    request_until(&mut client, &write, (&prometheus, admin), alert).await;
    let refused = client.send(&write).await.unwrap();
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.text().contains("mutatingadmissionpolicies"));

    lose_streams(&mut plane, &prometheus).await;
}
