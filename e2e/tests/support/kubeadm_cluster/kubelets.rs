//! What kubelets report of nodes without containers: Nodes with heartbeats, mirror Pods of static pods,
//! and Pods of `DaemonSet`s, which run as soon as they are scheduled.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_e2e::{Machine, RunningPods};

use crate::kubeadm_cluster::client::{Client, Request};
use crate::kubeadm_cluster::{Cluster, Node};

/// Where the nodes' way of installing packages leaves the version of kubelet.
pub(crate) const INSTALLED: &str = "/run/packages/kubelet";

/// What `systemctl restart kubelet` leaves.
const RESTARTED: &str = "/run/units/restarted-kubelet";

/// How often each node is looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// Heartbeats are sent with each of this many rounds. The node controller waits 50 s for one.
const ROUNDS_PER_HEARTBEAT: usize = 8;

const MANIFESTS: &str = "/etc/kubernetes/manifests";

/// What kubelet writes to mirror Pods.
const HASH: &str = "kubernetes.io/config.hash";
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Until it is dropped.
pub(crate) struct Kubelets {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Kubelet {
    client: Client,
    machine: Arc<Machine>,
    running: RunningPods,
    version: String,
}

impl Kubelets {
    /// Starts those of all nodes, with a package of this version.
    pub(crate) fn start(cluster: &Cluster, client: &Client, version: &str) -> Self {
        let kubelet = |node: &Node| Kubelet {
            client: client.clone(),
            machine: node.machine.clone(),
            running: node.agent.pods(),
            version: version.to_owned(),
        };
        let mut kubelets: Vec<_> = cluster.nodes.iter().map(kubelet).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            for round in 0.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                for kubelet in &mut kubelets {
                    let has_restarted = kubelet.restart();
                    if has_restarted || round % ROUNDS_PER_HEARTBEAT == 0 {
                        kubelet.report_node();
                    }
                    kubelet.report_pods();
                }
                thread::sleep(INTERVAL);
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Kubelet {
    /// Runs the installed version if it was restarted.
    fn restart(&mut self) -> bool {
        let has_restarted = std::fs::remove_file(self.machine.path(RESTARTED)).is_ok();
        if has_restarted && let Some(version) = self.machine.read(INSTALLED) {
            version.trim().clone_into(&mut self.version);
        }
        has_restarted
    }

    fn report_node(&self) {
        let Machine { name, address, .. } = &*self.machine;
        let path = format!("/api/v1/nodes/{name}");
        if !self.client.send(&Request::get(&*path)).is_success() {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
                "node-role.kubernetes.io/control-plane": "",
            }}});
            self.client.send(&Request::post("/api/v1/nodes", &node));
        }
        let now = now();
        let status = json!({"status": {
            "addresses": [
                {"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name},
            ],
            "capacity": {"cpu": "2", "memory": "4Gi", "pods": "110"},
            "allocatable": {"cpu": "2", "memory": "4Gi", "pods": "110"},
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }],
            "nodeInfo": {
                "kubeletVersion": format!("v{}", self.version), "operatingSystem": "linux",
            },
        }});
        let request = Request::merge_patch(format!("{path}/status"), &status);
        self.client.send(&request);
    }

    /// What fails is repeated in the next round.
    fn report_pods(&self) {
        let name = &self.machine.name;
        let list = format!("/api/v1/pods?fieldSelector=spec.nodeName={name}");
        let list = self.client.send(&Request::get(list));
        let Ok(list) = serde_json::from_str::<Value>(&list.body) else {
            return;
        };
        let Some(pods) = list["items"].as_array() else {
            return;
        };
        let mut missing = self.static_pods();
        for pod in pods {
            let own_path = path_of(pod);
            let hash = &pod["metadata"]["annotations"][HASH];
            let position = missing
                .iter()
                .position(|it| it["metadata"]["annotations"][HASH] == *hash);
            let mirrored = position.map(|it| missing.remove(it));
            let is_going = !pod["metadata"]["deletionTimestamp"].is_null();
            if is_going || (hash.is_string() && mirrored.is_none()) {
                let delete = format!("{own_path}?gracePeriodSeconds=0");
                self.client.send(&Request::new("DELETE", delete));
                continue;
            }
            let restarts = mirrored.and_then(|it| self.restarts(&it));
            let status = self.status(pod, hash.is_null(), restarts);
            if !is_in(&status, &pod["status"]) {
                let status = json!({ "status": status });
                let patch = Request::merge_patch(format!("{own_path}/status"), &status);
                self.client.send(&patch);
            }
        }
        for pod in missing {
            let pods = "/api/v1/namespaces/kube-system/pods";
            self.client.send(&Request::post(pods, &pod));
        }
    }

    /// The mirror Pods of the manifests.
    fn static_pods(&self) -> Vec<Value> {
        let files = std::fs::read_dir(self.machine.path(MANIFESTS));
        let files = files.into_iter().flatten().flatten();
        let texts = files.filter_map(|it| std::fs::read_to_string(it.path()).ok());
        texts.filter_map(|it| self.mirror(&it)).collect()
    }

    fn mirror(&self, manifest: &str) -> Option<Value> {
        let mut pod = serde_saphyr::from_str::<Value>(manifest).ok()?;
        let name = pod["metadata"]["name"].as_str()?;
        let name = format!("{name}-{}", self.machine.name);
        let mut hasher = DefaultHasher::new();
        manifest.hash(&mut hasher);
        let hash = format!("{:x}", hasher.finish());
        let metadata = &mut pod["metadata"];
        metadata["name"] = json!(name);
        for annotation in [HASH, MIRROR] {
            metadata["annotations"][annotation] = json!(hash);
        }
        pod["spec"]["nodeName"] = json!(self.machine.name);
        pod["spec"]["tolerations"] = json!([{"effect": "NoExecute", "operator": "Exists"}]);
        pod.as_object_mut()?.remove("status");
        Some(pod)
    }

    /// None for a program that does not run.
    fn restarts(&self, mirror: &Value) -> Option<u32> {
        let name = mirror["metadata"]["name"].as_str()?;
        let program = name.strip_suffix(&format!("-{}", self.machine.name))?;
        self.running.lock().unwrap().get(program).copied()
    }

    fn status(&self, pod: &Value, runs_at_once: bool, restarts: Option<u32>) -> Value {
        let is_running = runs_at_once || restarts.is_some();
        let state = if is_running {
            json!({"running": {}})
        } else {
            json!({"waiting": {"reason": "CrashLoopBackOff"}})
        };
        let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
        let containers = containers.map(|container| {
            json!({
                "name": container["name"], "image": container["image"], "imageID": "",
                "ready": is_running, "restartCount": restarts.unwrap_or_default(), "state": state,
            })
        });
        let containers: Vec<_> = containers.collect();
        let ready = if is_running { "True" } else { "False" };
        let conditions = ["Ready", "ContainersReady"];
        let conditions = conditions.map(|it| json!({"type": it, "status": ready}));
        json!({
            "phase": "Running", "hostIP": self.machine.address, "podIP": self.machine.address,
            "conditions": conditions, "containerStatuses": containers,
        })
    }
}

fn path_of(pod: &Value) -> String {
    let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
    format!(
        "/api/v1/namespaces/{}/pods/{}",
        text("namespace"),
        text("name")
    )
}

/// Whether a document has all values of another one. Servers add fields.
fn is_in(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(_)) => {
            part.iter().all(|(key, it)| is_in(it, &whole[key]))
        }
        (Value::Array(part), Value::Array(whole)) => {
            let mut pairs = part.iter().zip(whole);
            part.len() == whole.len() && pairs.all(|(part, whole)| is_in(part, whole))
        }
        _ => part == whole,
    }
}

fn now() -> String {
    let date = Command::new("date").args(["-u", "+%FT%TZ"]).output();
    let date = date.expect("the time").stdout;
    String::from_utf8_lossy(&date).trim().to_owned()
}

#[test]
fn a_part_is_compared_without_what_servers_add() {
    let whole = json!({"phase": "Running", "list": [{"a": 1, "time": null}], "state": {"running": {"startedAt": null}}});
    for (part, expected) in [
        (json!({"phase": "Running", "state": {"running": {}}}), true),
        (json!({"list": [{"a": 1}]}), true),
        (json!({"list": [{"a": 2}]}), false),
        (json!({"list": []}), false),
        (json!({"phase": "Pending"}), false),
    ] {
        assert_eq!(is_in(&part, &whole), expected, "{part}");
    }
}
