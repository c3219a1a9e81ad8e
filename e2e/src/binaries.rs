//! The programs that `cargo xtask e2e` has built.

use std::path::PathBuf;

/// A directory with `etcd`, `node`, `client-go`, `websocket`, `spdystream`, `helm`, an
/// environment `python`, npm packages `axe`, `kube-apiserver-VERSION`, `kubectl-VERSION` and, of the newest version and
/// those of mixed control planes, `kube-controller-manager-VERSION`, `kube-scheduler-VERSION` and
/// `kubeadm-VERSION`; with `--all`, `k9s`.
const BINARIES: &str = "SKEWBRIDGE_E2E_BINARIES";
/// The bridge itself.
const BRIDGE: &str = "SKEWBRIDGE_E2E_BRIDGE";

pub(crate) fn etcd() -> PathBuf {
    from(BINARIES).join("etcd")
}

pub(crate) fn node() -> PathBuf {
    from(BINARIES).join("node")
}

pub(crate) fn client_go() -> PathBuf {
    from(BINARIES).join("client-go")
}

/// Only built with `--all`.
pub(crate) fn k9s() -> PathBuf {
    from(BINARIES).join("k9s")
}

pub(crate) fn helm() -> PathBuf {
    from(BINARIES).join("helm")
}

/// A Python environment with the official client.
pub(crate) fn python() -> PathBuf {
    from(BINARIES).join("python/bin/python")
}

/// An example of the client library.
pub(crate) fn example(name: &str) -> PathBuf {
    bridge().with_file_name("examples").join(name)
}

/// A directory with the npm package axe-core.
pub(crate) fn axe() -> PathBuf {
    from(BINARIES).join("axe")
}

pub(crate) fn websocket() -> PathBuf {
    from(BINARIES).join("websocket")
}

pub(crate) fn spdystream() -> PathBuf {
    from(BINARIES).join("spdystream")
}

pub(crate) fn kube_apiserver(version: &str) -> PathBuf {
    from(BINARIES).join(format!("kube-apiserver-{version}"))
}

pub(crate) fn kube_controller_manager(version: &str) -> PathBuf {
    from(BINARIES).join(format!("kube-controller-manager-{version}"))
}

/// A program of a control plane node: etcd, or one of Kubernetes of this version.
pub fn of_control_plane(program: &str, version: &str) -> PathBuf {
    match program {
        "etcd" => etcd(),
        program => from(BINARIES).join(format!("{program}-{version}")),
    }
}

pub(crate) fn kubectl(version: &str) -> PathBuf {
    from(BINARIES).join(format!("kubectl-{version}"))
}

/// The bridge itself.
pub fn bridge() -> PathBuf {
    from(BRIDGE)
}

fn from(variable: &str) -> PathBuf {
    match std::env::var_os(variable) {
        Some(path) => path.into(),
        None => panic!("{variable} is not set: run these tests by `cargo xtask e2e`"),
    }
}
