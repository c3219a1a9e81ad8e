//! A node with one running pod, whose kubelet is the stand-in of `e2e/node`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::binaries;
use crate::plane::Plane;
use crate::ports::free_address;
use crate::process::Process;
use crate::raw::{Protocol, Raw, Request};

/// Something that answers for a pod's containers. It ends when it is dropped.
pub struct Node {
    /// Where the processes of the pod run. What is in its `bin` goes before the programs
    /// of this host.
    pub directory: PathBuf,
    /// The stand-in for a kubelet.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    arguments: Vec<String>,
}

impl Node {
    /// The namespace of its pod.
    pub const NAMESPACE: &str = "streams";
    /// Its pod, with one container.
    pub const POD: &str = "pod";
    /// The container of the pod.
    pub const CONTAINER: &str = "container";
}

impl Plane {
    /// Starts a node, and shows it and its pod to the servers.
    pub async fn start_node(&self) -> Node {
        let node = self.start_kubelet().await;
        self.show_node(node.address).await;
        node
    }

    /// Starts a node of which nobody knows yet.
    pub async fn start_kubelet(&self) -> Node {
        let address = free_address();
        let directory = self.pki.file("node");
        std::fs::create_dir(&directory).expect("a directory for a node");
        let file = |name: &str| self.pki.file(name).display().to_string();
        let arguments = vec![
            format!("--listen={address}"),
            format!("--tls-cert-file={}", file("node.crt")),
            format!("--tls-private-key-file={}", file("node.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--scratch={}", directory.display()),
        ];
        let process = self.run_node(&arguments);
        self.answers("the node", address, "/healthz").await;
        Node {
            directory,
            process,
            address,
            arguments,
        }
    }

    /// Starts a node again that has ended.
    pub async fn restart_node(&self, node: &mut Node) {
        node.process = self.run_node(&node.arguments);
        let address = node.address;
        self.answers("the node", address, "/healthz").await;
    }

    fn run_node(&self, arguments: &[String]) -> Process {
        // What is in `bin` of its directory goes before the programs of this host.
        let own = self.pki.file("node").join("bin");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut words = vec![format!("PATH={}:{path}", own.display())];
        words.push(binaries::node().display().to_string());
        words.extend_from_slice(arguments);
        let program = Path::new("env");
        Process::start("node", "node", program, &words, self.pki.path())
    }

    /// Says what a kubelet and a scheduler would have said of a node with this
    /// kubelet, and of its pod.
    pub async fn show_node(&self, kubelet: SocketAddr) {
        let namespace = json!({"metadata": {"name": Node::NAMESPACE}});
        self.write("POST", "/api/v1/namespaces", &namespace).await;
        let node = json!({
            "metadata": {"name": "node"},
            "status": {
                "addresses": [{"type": "InternalIP", "address": kubelet.ip()}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port()}},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        self.write("POST", "/api/v1/nodes", &node).await;
        let pods = format!("/api/v1/namespaces/{}/pods", Node::NAMESPACE);
        let pod = json!({
            "metadata": {"name": Node::POD},
            "spec": {
                "nodeName": "node",
                "containers": [{"name": Node::CONTAINER, "image": "none", "stdin": true}],
            },
        });
        self.write("POST", &pods, &pod).await;
        let status = json!({
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{
                    "name": Node::CONTAINER,
                    "image": "none",
                    "imageID": "none",
                    "ready": true,
                    "restartCount": 0,
                    "state": {"running": {}},
                }],
            },
        });
        let pod_status = format!("{pods}/{}/status", Node::POD);
        self.write("PATCH", &pod_status, &status).await;
    }

    /// Asks the first server for a change, straight.
    ///
    /// # Panics
    ///
    /// When it refuses.
    pub async fn write(&self, method: &str, target: &str, object: &Value) {
        let media = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::new(method, target).body(media, &object.to_string());
        let server = self.servers[0].address;
        let mut raw = Raw::new(self.client("admin"), server, Protocol::H1);
        let response = raw.send(&request).await.expect("an answer");
        assert!(
            matches!(response.status, 200 | 201),
            "{method} {target}: {}",
            response.text()
        );
    }
}
