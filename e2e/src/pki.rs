//! The certificates of a cluster, in the layout of kubeadm.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rcgen::KeyPair;
use skewbridge_testkit::{Ca, Leaf, ScratchDir};

/// The certificate files of a cluster.
pub(crate) struct Pki {
    pub(crate) dir: ScratchDir,
    pub(crate) ca: Ca,
    pub(crate) front_proxy_ca: Ca,
}

/// The names of every kube-apiserver and bridge.
const SERVER_NAMES: [&str; 5] = [
    "localhost",
    "127.0.0.1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
];

/// Users with a certificate: name, groups.
const USERS: [(&str, &[&str]); 2] = [("admin", &["system:masters"]), ("alice", &["dev", "ops"])];

impl Pki {
    pub(crate) fn new() -> Self {
        let dir = ScratchDir::new();
        let ca = Ca::new("kubernetes");
        let front_proxy_ca = Ca::new("front-proxy-ca");
        let serving = ca.server(&SERVER_NAMES);
        dir.write("ca.crt", ca.pem());
        dir.write("front-proxy-ca.crt", front_proxy_ca.pem());
        write_pair(&dir, "apiserver", &serving);
        write_pair(&dir, "node", &ca.server(&["localhost", "127.0.0.1"]));
        write_pair(
            &dir,
            "apiserver-kubelet-client",
            &ca.client("kube-apiserver-kubelet-client", &["system:masters"]),
        );
        write_pair(
            &dir,
            "front-proxy-client",
            &front_proxy_ca.client("front-proxy-client", &[]),
        );
        for (name, groups) in USERS {
            write_pair(&dir, name, &ca.client(name, groups));
        }
        let account = KeyPair::generate().expect("a key pair");
        dir.write("sa.key", account.serialize_pem());
        dir.write("sa.pub", account.public_key_pem());
        // kube-apiserver's static tokens: token, name, UID, groups.
        dir.write("tokens.csv", "bob-token,bob,1001,\"qa,readers\"\n");
        Self {
            dir,
            ca,
            front_proxy_ca,
        }
    }

    /// The files of a serving certificate for a host and its address, and its key.
    pub(crate) fn serving_certificate(&self, host: &str, ip: IpAddr) -> [PathBuf; 2] {
        let ip = ip.to_string();
        let names = [&SERVER_NAMES[..], &[host, &ip]].concat();
        write_pair(&self.dir, host, &self.ca.server(&names));
        ["crt", "key"].map(|suffix| self.file(&format!("{host}.{suffix}")))
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn write_pair(dir: &ScratchDir, name: &str, leaf: &Leaf) {
    dir.write(&format!("{name}.crt"), &leaf.cert_pem);
    dir.write(&format!("{name}.key"), &leaf.key_pem);
}
