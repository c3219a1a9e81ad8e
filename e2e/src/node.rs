//! A node with one running pod, whose kubelet is the fake in `e2e/node`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::binaries;
use crate::control_plane::ControlPlane;
use crate::http_client::{HttpClient, Protocol, Request};
use crate::ports::free_address;
use crate::process::Process;

/// A fake kubelet for the containers of a pod. It stops when it is dropped.
pub struct Node {
    /// The working directory of the pod's processes. Its `bin` precedes the programs of
    /// this host.
    pub directory: PathBuf,
    /// The process of the fake kubelet.
    pub process: Process,
    /// The address it listens on.
    pub address: SocketAddr,
    name: String,
    arguments: Vec<String>,
}

/// The programs that a pod can run.
#[derive(Debug, Clone, Copy)]
pub enum Programs<'a> {
    /// All programs of this host.
    All,
    /// Only these programs.
    Only(&'a [&'a str]),
}

impl Node {
    /// The namespace of its pod.
    pub const NAMESPACE: &str = "streams";
    /// Its pod, with one container.
    pub const POD: &str = "pod";
    /// The container of the pod.
    pub const CONTAINER: &str = "container";
}

impl ControlPlane {
    /// Starts a node, and creates its Node and Pod objects.
    pub async fn start_node(&self) -> Node {
        let node = self.start_kubelet().await;
        self.register_node(node.address).await;
        node
    }

    /// Starts another node with this name and the same pod, in a namespace with the name of
    /// the node.
    pub async fn start_another_node(&self, name: &str, programs: Programs<'_>) -> Node {
        let node = self.start_kubelet_of(name, programs).await;
        self.register_pod(name, name, node.address).await;
        node
    }

    /// Starts a node without creating objects for it.
    pub async fn start_kubelet(&self) -> Node {
        self.start_kubelet_of("node", Programs::All).await
    }

    async fn start_kubelet_of(&self, name: &str, programs: Programs<'_>) -> Node {
        let address = free_address();
        let directory = self.pki.file(name);
        std::fs::create_dir(&directory).expect("a directory for a node");
        let file = |name: &str| self.pki.file(name).display().to_string();
        let arguments = vec![
            format!("PATH={}", self.path_of(name, programs)),
            binaries::node().display().to_string(),
            format!("--listen={address}"),
            format!("--tls-cert-file={}", file("node.crt")),
            format!("--tls-private-key-file={}", file("node.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--scratch={}", directory.display()),
        ];
        let process = self.run_node(name, &arguments);
        self.wait_for_ok("the node", address, "/healthz").await;
        Node {
            directory,
            process,
            address,
            name: name.to_owned(),
            arguments,
        }
    }

    /// Starts a stopped node again.
    pub async fn restart_node(&self, node: &mut Node) {
        node.process = self.run_node(&node.name, &node.arguments);
        let address = node.address;
        self.wait_for_ok("the node", address, "/healthz").await;
    }

    /// The `PATH` of a pod's processes.
    fn path_of(&self, name: &str, programs: Programs<'_>) -> String {
        let Programs::Only(programs) = programs else {
            let bin = self.pki.file(name).join("bin");
            let path = std::env::var("PATH").unwrap_or_default();
            return format!("{}:{path}", bin.display());
        };
        let bin = self.pki.file(&format!("{name}-bin"));
        std::fs::create_dir(&bin).expect("a directory for programs");
        for program in programs {
            let candidates = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(program));
            let found = candidates.iter().find(|place| place.exists());
            let found = found.unwrap_or_else(|| panic!("this host has no {program}"));
            std::os::unix::fs::symlink(found, bin.join(program)).expect("a link");
        }
        bin.display().to_string()
    }

    fn run_node(&self, name: &str, arguments: &[String]) -> Process {
        Process::start(name, name, Path::new("env"), arguments, self.pki.path())
    }

    /// Creates the objects that a kubelet and a scheduler would create for a node with this
    /// kubelet, and for its pod.
    pub async fn register_node(&self, kubelet: SocketAddr) {
        self.register_pod("node", Node::NAMESPACE, kubelet).await;
    }

    async fn register_pod(&self, node: &str, namespace: &str, kubelet: SocketAddr) {
        let object = json!({"metadata": {"name": namespace}});
        self.send_object("POST", "/api/v1/namespaces", &object)
            .await;
        let object = json!({
            "metadata": {"name": node},
            "status": {
                "addresses": [{"type": "InternalIP", "address": kubelet.ip()}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port()}},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        self.send_object("POST", "/api/v1/nodes", &object).await;
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let pod = json!({
            "metadata": {"name": Node::POD},
            "spec": {
                "nodeName": node,
                "containers": [{"name": Node::CONTAINER, "image": "none", "stdin": true}],
            },
        });
        self.send_object("POST", &pods, &pod).await;
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
        self.send_object("PATCH", &pod_status, &status).await;
    }

    /// Sends a change to the first server, directly.
    ///
    /// # Panics
    ///
    /// When the server rejects it.
    pub async fn send_object(&self, method: &str, target: &str, object: &Value) {
        let media = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::new(method, target).body(media, &object.to_string());
        let server = self.servers[0].address;
        let mut client = HttpClient::new(self.client("admin"), server, Protocol::H1);
        let response = client.send(&request).await.expect("a response");
        assert!(
            matches!(response.status, 200 | 201),
            "{method} {target}: {}",
            response.text()
        );
    }
}
