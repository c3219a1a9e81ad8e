//! Reports the state of pods to real servers like a scheduler and a kubelet, as the
//! playground's node reports it: the same pod in the same state.

use serde_json::{Value, json};
use skewbridge_e2e::{Protocol, Request, Via};
use skewbridge_testkit::eventually;

use super::fixture::{COMMAND_TIMEOUT, Target, run};
use super::{PlaygroundAndReal, TargetKind};

/// The name of the playground's node.
const NODE: &str = "playground";

/// Registers the node of the playground at the real servers, with a fake kubelet.
pub(super) async fn register_node(both: &PlaygroundAndReal) {
    let target = both.target(0, TargetKind::Server);
    let mut node = object(&target, "default", &format!("node/{NODE}")).await;
    let kubelet = both.kubelet.address;
    node["metadata"] = json!({"name": NODE, "labels": node["metadata"]["labels"]});
    node["status"]["daemonEndpoints"] = json!({"kubeletEndpoint": {"Port": kubelet.port()}});
    both.plane.send_object("POST", "/api/v1/nodes", &node).await;
}

/// An object of a target.
pub(super) async fn object(target: &Target<'_>, namespace: &str, name: &str) -> Value {
    let words = ["get", name, "-o", "json"];
    let output = run(target.command(namespace), &words, "").await;
    assert_eq!(output.code, Some(0), "{output:?}");
    serde_json::from_str(&output.stdout).unwrap()
}

fn path(namespace: &str, pod: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{pod}")
}

/// Keeps a pod of a real server in the state of one of the playground.
pub(super) struct Kubelet<'a> {
    both: &'a PlaygroundAndReal,
    real: &'a Target<'a>,
    server: &'a Target<'a>,
}

impl<'a> Kubelet<'a> {
    pub(super) fn new(
        both: &'a PlaygroundAndReal,
        real: &'a Target<'a>,
        server: &'a Target<'a>,
    ) -> Self {
        Self { both, real, server }
    }

    /// Waits until the playground's pod runs, and reports the same for the real one.
    pub(super) async fn wait_until_running(&self, word: &str, pod: &str) {
        let namespace = self.server.namespace(word);
        let wait = format!("wait --for=condition=Ready pod/{pod} --timeout=100s");
        let ready = self.server.output(&namespace, &wait, "").await;
        assert_eq!(ready.code, Some(0), "{ready:?}");
        let running = object(self.server, &namespace, &format!("pod/{pod}")).await;
        let namespace = self.real.namespace(word);
        self.bind(&namespace, pod).await;
        let plane = &self.both.plane;
        let at = path(&namespace, pod);
        let status = json!({"status": running["status"]});
        plane
            .send_object("PATCH", &format!("{at}/status"), &status)
            .await;
    }

    /// Binds a pod of a real server to the node, like a scheduler.
    pub(super) async fn bind(&self, namespace: &str, pod: &str) {
        let binding = json!({
            "metadata": {"name": pod},
            "target": {"kind": "Node", "name": NODE},
        });
        let at = format!("{}/binding", path(namespace, pod));
        self.both.plane.send_object("POST", &at, &binding).await;
    }

    /// Waits until a pod of a real server is to terminate, and reports that it has.
    pub(super) async fn terminate(&self, namespace: &str, pod: &str) {
        let plane = &self.both.plane;
        let at = path(namespace, pod);
        let mut raw = plane.http_client(0, Via::Server, Protocol::H2);
        eventually("the pod is terminating", COMMAND_TIMEOUT, async || {
            let answer = raw.send(&Request::get(&at)).await.unwrap();
            let pod: Value = serde_json::from_slice(&answer.body).unwrap();
            pod["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
        let now = json!({"gracePeriodSeconds": 0});
        plane.send_object("DELETE", &at, &now).await;
    }
}
