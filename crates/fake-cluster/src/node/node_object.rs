//! The node as an object of the API.

use serde_json::{Value, json};
use skewbridge_k8s_api::status::Status;

use crate::catalogue::Release;
use crate::object::Object;
use crate::time::Time;

/// Its name.
pub(super) const NODE_NAME: &str = "playground";

/// A kubelet's default maximum of pods; each is one process or more.
pub(super) const MAX_PODS: usize = 110;

/// The Node object.
pub(super) fn node(now: Time) -> Result<Object, Status> {
    let capacity = json!({
        "cpu": std::thread::available_parallelism().map_or(1, usize::from).to_string(),
        "memory": "4Gi",
        "ephemeral-storage": "10Gi",
        "pods": MAX_PODS.to_string(),
    });
    let (os, arch) = (std::env::consts::OS, go_arch());
    Object::new(json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": NODE_NAME,
            "labels": {
                "kubernetes.io/hostname": NODE_NAME,
                "kubernetes.io/os": os,
                "kubernetes.io/arch": arch,
            },
        },
        "spec": {},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": NODE_NAME},
            ],
            "conditions": conditions(now),
            "nodeInfo": {
                "architecture": arch,
                "operatingSystem": os,
                "osImage": "processes of this machine",
                "kernelVersion": kernel(),
                "containerRuntimeVersion": concat!("skewbridge://", env!("CARGO_PKG_VERSION")),
                "kubeletVersion": Release::V1_28.git_version(),
                "kubeProxyVersion": "",
                "machineID": "",
                "systemUUID": "",
                "bootID": "",
            },
        },
    }))
}

fn conditions(now: Time) -> Value {
    let rows = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("Ready", "True", "KubeletReady"),
    ];
    let conditions = rows.map(|(kind, status, reason)| {
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": "the playground's node runs pods as processes",
            "lastHeartbeatTime": now.to_string(),
            "lastTransitionTime": now.to_string(),
        })
    });
    conditions.to_vec().into()
}

fn kernel() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// Go's name of the architecture.
fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
