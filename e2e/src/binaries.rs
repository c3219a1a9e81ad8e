//! The programs that `cargo xtask e2e` has built.

use std::path::PathBuf;

/// A directory with `etcd`, `node`, `client-go`, `websocket`, `spdystream`, `helm`, an
/// environment `python`, `kube-apiserver-VERSION`, `kubectl-VERSION` and, of the newest
/// version, `kube-controller-manager-VERSION`; with `--all`, `k9s`.
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

pub(crate) fn kubectl(version: &str) -> PathBuf {
    from(BINARIES).join(format!("kubectl-{version}"))
}

pub(crate) fn bridge() -> PathBuf {
    from(BRIDGE)
}

fn from(variable: &str) -> PathBuf {
    match std::env::var_os(variable) {
        Some(path) => path.into(),
        None => panic!("{variable} is not set: run these tests by `cargo xtask e2e`"),
    }
}
