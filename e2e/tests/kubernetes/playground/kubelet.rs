//! What schedulers and kubelets say of pods, said to real servers as the playground's node
//! says it: the same pod in the same state.

use serde_json::{Value, json};
use skewbridge_testkit::eventually;

use super::site::{BOUND, Site, run};
use super::{Beside, Place};

/// What the playground's node is called.
const NODE: &str = "playground";

/// Shows real servers the node of the playground, with the stand-in for its kubelet.
pub(super) async fn show_node(beside: &Beside) {
    let site = beside.site(0, Place::Server);
    let mut node = object(&site, "default", &format!("node/{NODE}")).await;
    let kubelet = beside.kubelet.address;
    node["metadata"] = json!({"name": NODE, "labels": node["metadata"]["labels"]});
    node["status"]["daemonEndpoints"] = json!({"kubeletEndpoint": {"Port": kubelet.port()}});
    beside.plane.write("POST", "/api/v1/nodes", &node).await;
}

/// An object of a site.
pub(super) async fn object(site: &Site<'_>, namespace: &str, name: &str) -> Value {
    let words = ["get", name, "-o", "json"];
    let output = run(site.command(namespace), &words, "").await;
    assert_eq!(output.code, Some(0), "{output:?}");
    serde_json::from_str(&output.stdout).unwrap()
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

    /// Waits until the playground's pod runs, and says the same of the real one. Gives
    /// the address of the pod.
    pub(super) async fn runs(&self, word: &str, pod: &str) -> String {
        let namespace = self.server.namespace(word);
        let name = format!("pod/{pod}");
        let mut running = Value::Null;
        eventually("the playground's pod runs", BOUND, async || {
            running = object(self.server, &namespace, &name).await;
            running["status"]["phase"] == "Running"
        })
        .await;
        let namespace = self.real.namespace(word);
        let at = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
        let binding = json!({
            "metadata": {"name": pod},
            "target": {"kind": "Node", "name": NODE},
        });
        let plane = &self.beside.plane;
        plane
            .write("POST", &format!("{at}/binding"), &binding)
            .await;
        let status = json!({"status": running["status"]});
        plane.write("PATCH", &format!("{at}/status"), &status).await;
        running["status"]["podIP"].as_str().unwrap().to_owned()
    }
}
