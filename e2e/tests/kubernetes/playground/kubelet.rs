//! What schedulers and kubelets say of pods, said to real servers as the playground's node
//! says it: the same pod in the same state.

use serde_json::{Value, json};
use skewbridge_e2e::{Protocol, Request, Via};
use skewbridge_testkit::eventually;

use super::fixture::{COMMAND_TIMEOUT, Site, run};
use super::{Beside, Place};

/// What the playground's node is called.
const NODE: &str = "playground";

/// Shows real servers the node of the playground, with the stand-in for its kubelet.
pub(super) async fn register_node(beside: &Beside) {
    let site = beside.site(0, Place::Server);
    let mut node = object(&site, "default", &format!("node/{NODE}")).await;
    let kubelet = beside.kubelet.address;
    node["metadata"] = json!({"name": NODE, "labels": node["metadata"]["labels"]});
    node["status"]["daemonEndpoints"] = json!({"kubeletEndpoint": {"Port": kubelet.port()}});
    beside
        .plane
        .send_object("POST", "/api/v1/nodes", &node)
        .await;
}

/// An object of a site.
pub(super) async fn object(site: &Site<'_>, namespace: &str, name: &str) -> Value {
    let words = ["get", name, "-o", "json"];
    let output = run(site.command(namespace), &words, "").await;
    assert_eq!(output.code, Some(0), "{output:?}");
    serde_json::from_str(&output.stdout).unwrap()
}

fn path(namespace: &str, pod: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{pod}")
}

/// Keeps a pod of a real server in the state of one of the playground.
pub(super) struct Kubelet<'a> {
    beside: &'a Beside,
    real: &'a Site<'a>,
    server: &'a Site<'a>,
}

impl<'a> Kubelet<'a> {
    pub(super) fn new(beside: &'a Beside, real: &'a Site<'a>, server: &'a Site<'a>) -> Self {
        Self {
            beside,
            real,
            server,
        }
    }

    /// Waits until the playground's pod runs, and says the same of the real one.
    pub(super) async fn runs(&self, word: &str, pod: &str) {
        let namespace = self.server.namespace(word);
        let wait = format!("wait --for=condition=Ready pod/{pod} --timeout=100s");
        let ready = self.server.output(&namespace, &wait, "").await;
        assert_eq!(ready.code, Some(0), "{ready:?}");
        let running = object(self.server, &namespace, &format!("pod/{pod}")).await;
        let namespace = self.real.namespace(word);
        self.bind(&namespace, pod).await;
        let plane = &self.beside.plane;
        let at = path(&namespace, pod);
        let status = json!({"status": running["status"]});
        plane
            .send_object("PATCH", &format!("{at}/status"), &status)
            .await;
    }

    /// Gives a pod of a real server to the node, as a scheduler does.
    pub(super) async fn bind(&self, namespace: &str, pod: &str) {
        let binding = json!({
            "metadata": {"name": pod},
            "target": {"kind": "Node", "name": NODE},
        });
        let at = format!("{}/binding", path(namespace, pod));
        self.beside.plane.send_object("POST", &at, &binding).await;
    }

    /// Waits until a pod of a real server is to end, and says that it has.
    pub(super) async fn end(&self, namespace: &str, pod: &str) {
        let plane = &self.beside.plane;
        let at = path(namespace, pod);
        let mut raw = plane.http_client(0, Via::Server, Protocol::H2);
        eventually("the pod is to end", COMMAND_TIMEOUT, async || {
            let answer = raw.send(&Request::get(&at)).await.unwrap();
            let pod: Value = serde_json::from_slice(&answer.body).unwrap();
            pod["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
        let now = json!({"gracePeriodSeconds": 0});
        plane.send_object("DELETE", &at, &now).await;
    }
}
