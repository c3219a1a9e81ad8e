//! The command of the README that protects a cluster, run as it is written: with the files of a
//! kubeadm node in another directory, and as a dry run.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test helpers panic on failure

use std::process::Command;

use skewbridge_testkit::{Ca, ScratchDir};

const README: &str = include_str!("../../../README.md");

/// The block with the command.
fn command() -> String {
    let (before, after) = README.split_once("\nskewbridge serve \\\n").unwrap();
    let start = before.rsplit("```sh\n").next().unwrap();
    let rest = after.split("```").next().unwrap();
    format!("{start}\nskewbridge serve \\\n{rest}")
}

/// The files that kubeadm makes, with its names.
fn kubeadm_files(dir: &ScratchDir) {
    let [cluster, front_proxy, etcd] = ["kubernetes", "front-proxy", "etcd"].map(Ca::new);
    std::fs::create_dir(dir.path().join("etcd")).unwrap();
    for (name, ca) in [
        ("ca.crt", &cluster),
        ("front-proxy-ca.crt", &front_proxy),
        ("etcd/ca.crt", &etcd),
    ] {
        dir.write(name, ca.pem());
    }
    let names = ["kubernetes", "kubernetes.default.svc", "10.0.0.11"];
    for (name, leaf) in [
        ("apiserver", cluster.server(&names)),
        (
            "front-proxy-client",
            front_proxy.client("front-proxy-client", &[]),
        ),
        (
            "apiserver-etcd-client",
            etcd.client("kube-apiserver-etcd-client", &[]),
        ),
    ] {
        dir.write(&format!("{name}.crt"), &leaf.cert_pem);
        dir.write(&format!("{name}.key"), &leaf.key_pem);
    }
}

#[test]
fn the_command_that_protects_is_complete_on_a_kubeadm_node() {
    let dir = ScratchDir::new();
    kubeadm_files(&dir);
    let here = dir.path().display();
    let command = command();
    let moved = command.replace("pki=/etc/kubernetes/pki", &format!("pki={here}"));
    let moved = moved.replace("/var/lib/skewbridge", &format!("{here}/state"));
    assert_ne!(moved, command);
    let script = format!("skewbridge() {{ \"$PROGRAM\" \"$@\" --dry-run; }}\n{moved}");
    let output = Command::new("sh")
        .args(["-euc", &script])
        .env("PROGRAM", env!("CARGO_BIN_EXE_skewbridge"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let config = String::from_utf8_lossy(&output.stdout);
    // With these the bridge is not local-only.
    for key in [
        "peerCaFile:",
        "etcdServers:",
        "proxyClientCertFile:",
        "requestheaderClientCaFile:",
    ] {
        let is_set = |line: &str| line.starts_with(key) && !line.ends_with("# default");
        assert!(config.lines().any(is_set), "{key}\n{config}");
    }
    assert_eq!(stderr, "");
}
