//! A node with one running pod, whose kubelet is the stand-in of `e2e/node`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::binaries;
use crate::control_plane::ControlPlane;
use crate::http_client::{HttpClient, Protocol, Request};
use crate::ports::free_address;
use crate::process::Process;

/// Something that answers for a pod's containers. It ends when it is dropped.
pub struct Node {
    /// Where the processes of the pod run. What is in its `bin` goes before the programs
    /// of this host.
    pub directory: PathBuf,
    /// The stand-in for a kubelet.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    name: String,
    words: Vec<String>,
}

/// What a pod has to run.
#[derive(Debug, Clone, Copy)]
pub enum Programs<'a> {
    /// Those of this host.
    All,
    /// These of them alone.
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
    /// Starts a node, and shows it and its pod to the servers.
    pub async fn start_node(&self) -> Node {
        let node = self.start_kubelet().await;
        self.show_node(node.address).await;
        node
    }

    /// Starts another node of this name, with a pod as the first has it, in a namespace that
    /// is called as the node.
    pub async fn start_another_node(&self, name: &str, programs: Programs<'_>) -> Node {
        let node = self.start_kubelet_of(name, programs).await;
        self.show_pod(name, name, node.address).await;
        node
    }

    /// Starts a node of which nobody knows yet.
    pub async fn start_kubelet(&self) -> Node {
        self.start_kubelet_of("node", Programs::All).await
    }

    async fn start_kubelet_of(&self, name: &str, programs: Programs<'_>) -> Node {
        let address = free_address();
        let directory = self.pki.file(name);
        std::fs::create_dir(&directory).expect("a directory for a node");
        let file = |name: &str| self.pki.file(name).display().to_string();
        let words = vec![
            format!("PATH={}", self.path_of(name, programs)),
            binaries::node().display().to_string(),
            format!("--listen={address}"),
            format!("--tls-cert-file={}", file("node.crt")),
            format!("--tls-private-key-file={}", file("node.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--scratch={}", directory.display()),
        ];
        let process = self.run_node(name, &words);
        self.answers("the node", address, "/healthz").await;
        Node {
            directory,
            process,
            address,
            name: name.to_owned(),
            words,
        }
    }

    /// Starts a node again that has ended.
    pub async fn restart_node(&self, node: &mut Node) {
        node.process = self.run_node(&node.name, &node.words);
        let address = node.address;
        self.answers("the node", address, "/healthz").await;
    }

    /// Where the processes of a pod find their programs.
    fn path_of(&self, name: &str, programs: Programs<'_>) -> String {
        let Programs::Only(programs) = programs else {
            let own = self.pki.file(name).join("bin");
            let path = std::env::var("PATH").unwrap_or_default();
            return format!("{}:{path}", own.display());
        };
        let own = self.pki.file(&format!("{name}-bin"));
        std::fs::create_dir(&own).expect("a directory for programs");
        for program in programs {
            let places = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(program));
            let found = places.iter().find(|place| place.exists());
            let found = found.unwrap_or_else(|| panic!("this host has no {program}"));
            std::os::unix::fs::symlink(found, own.join(program)).expect("a link");
        }
        own.display().to_string()
    }

    fn run_node(&self, name: &str, words: &[String]) -> Process {
        Process::start(name, name, Path::new("env"), words, self.pki.path())
    }

    /// Says what a kubelet and a scheduler would have said of a node with this
    /// kubelet, and of its pod.
    pub async fn show_node(&self, kubelet: SocketAddr) {
        self.show_pod("node", Node::NAMESPACE, kubelet).await;
    }

    async fn show_pod(&self, node: &str, namespace: &str, kubelet: SocketAddr) {
        let object = json!({"metadata": {"name": namespace}});
        self.write("POST", "/api/v1/namespaces", &object).await;
        let object = json!({
            "metadata": {"name": node},
            "status": {
                "addresses": [{"type": "InternalIP", "address": kubelet.ip()}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port()}},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        self.write("POST", "/api/v1/nodes", &object).await;
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let pod = json!({
            "metadata": {"name": Node::POD},
            "spec": {
                "nodeName": node,
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
        let mut raw = HttpClient::new(self.client("admin"), server, Protocol::H1);
        let response = raw.send(&request).await.expect("an answer");
        assert!(
            matches!(response.status, 200 | 201),
            "{method} {target}: {}",
            response.text()
        );
    }
}
