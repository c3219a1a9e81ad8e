//! Commands of kubeadm, kubectl and etcdctl.

use skewbridge_released_apis::Minor;

use super::{Check, Phase, Step};
use crate::facts::Facts;

/// Where kubeadm keeps the patch of a node with a bridge.
const PATCHES: &str = "--patches=/etc/kubernetes/patches";

/// The images of the control plane.
pub(super) const IMAGES: &str = "kubectl -n kube-system get pods -l tier=control-plane \
                                 -o custom-columns=POD:.metadata.name,IMAGE:.spec.containers[0].image";

/// A copy of what etcd stores: the only complete way back.
pub(super) fn snapshot(facts: &Facts) -> Step {
    let step = Step::new(Phase::Before, "Save a snapshot of etcd")
        .note("On a control plane node. It is the only way back that loses no field and no object.")
        .commands([
            "ETCDCTL_API=3 etcdctl --endpoints=https://127.0.0.1:2379 \
             --cacert=/etc/kubernetes/pki/etcd/ca.crt --cert=/etc/kubernetes/pki/etcd/server.crt \
             --key=/etc/kubernetes/pki/etcd/server.key snapshot save /var/lib/etcd-before-upgrade.db"
                .to_owned(),
        ]);
    if facts.servers.iter().any(|it| it.bridge.is_some()) {
        return step.checks([check_bridges()]);
    }
    step
}

pub(super) fn check_bridges() -> Check {
    Check::new("skewbridge check", "no ✗")
}

/// The part of `kubeadm upgrade` that changes the control plane of a node. The first node of a
/// version gets another command than the others.
pub(super) fn upgrade_server(version: &str, is_first: bool, has_bridge: bool) -> Vec<String> {
    let patches = if has_bridge {
        format!(" {PATCHES}")
    } else {
        String::new()
    };
    let upgrade = if is_first {
        format!("kubeadm upgrade apply v{version}{patches}")
    } else {
        format!("kubeadm upgrade node{patches}")
    };
    vec![
        "# on its node; with another installer than kubeadm, its own commands".to_owned(),
        install("kubeadm", version),
        upgrade,
    ]
}

/// Installs Debian packages of Kubernetes.
fn install(packages: &str, version: &str) -> String {
    let packages = versioned(packages, version);
    format!("apt-get update && apt-get install -y --allow-change-held-packages {packages}")
}

/// Replaces Debian packages of Kubernetes by older ones.
fn downgrade(packages: &str, version: &str) -> String {
    let packages = versioned(packages, version);
    format!(
        "apt-get update && apt-get install -y --allow-downgrades --allow-change-held-packages {packages}"
    )
}

fn versioned(packages: &str, version: &str) -> String {
    let packages = packages.split(' ');
    let packages: Vec<_> = packages.map(|it| format!("{it}='{version}-*'")).collect();
    packages.join(" ")
}

/// Restores manifests of a minor version that kubeadm has saved when it upgraded a node.
pub(super) fn restore(minor: Minor, manifests: &[&str]) -> Vec<String> {
    let mut commands = vec![
        format!("# on its node: kubeadm keeps the manifests of {minor} from before its upgrade"),
        format!(
            "backup=$(dirname \"$(grep -l ':v{minor}\\.' \
             /etc/kubernetes/tmp/kubeadm-backup-manifests-*/kube-apiserver.yaml | tail -n 1)\")"
        ),
    ];
    for manifest in manifests {
        commands.push(format!(
            "cp \"$backup/{manifest}\" /etc/kubernetes/manifests/"
        ));
    }
    commands
}

/// Upgrades the kubelet of a Node.
pub(super) fn upgrade_kubelet(version: &str) -> Vec<String> {
    of_node([
        install("kubeadm", version),
        "# on a worker node only: a control plane node has had it with its kube-apiserver, and without \
         --patches it would give the port of a bridge to kube-apiserver"
            .to_owned(),
        "test -e /etc/kubernetes/manifests/kube-apiserver.yaml || kubeadm upgrade node".to_owned(),
        "# on the Node".to_owned(),
        install("kubelet kubectl", version),
    ])
}

/// Replaces the kubelet of a Node by an older one.
pub(super) fn return_kubelet(version: &str) -> Vec<String> {
    of_node([downgrade("kubelet kubectl", version)])
}

/// Commands on a Node without Pods, before its kubelet starts again.
fn of_node(commands: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut all = vec![
        "# for each Node, with NODE as its name, the control plane nodes first".to_owned(),
        "kubectl drain NODE --ignore-daemonsets".to_owned(),
        "# on the Node".to_owned(),
    ];
    all.extend(commands);
    all.push("systemctl daemon-reload && systemctl restart kubelet".to_owned());
    all.push("# where kubectl was used before".to_owned());
    all.push("kubectl uncordon NODE".to_owned());
    all
}

/// Changes the image of kube-proxy to a version. Its repository stays. `rollout undo` would return to the
/// revision before, which may be another change than the upgrade.
pub(super) fn set_kube_proxy_image(version: &str) -> Vec<String> {
    vec![
        "image=$(kubectl -n kube-system get daemonset kube-proxy \
         -o jsonpath='{.spec.template.spec.containers[0].image}')"
            .to_owned(),
        "image=${image%@*}".to_owned(),
        format!(
            "kubectl -n kube-system set image daemonset/kube-proxy kube-proxy=\"${{image%:*}}:v{version}\""
        ),
    ]
}

/// Replaces kubeadm by an older one, and changes the version that `kubeadm join` installs.
pub(super) fn return_kubeadm(version: &str) -> Vec<String> {
    vec![
        "# on each control plane node that was upgraded".to_owned(),
        downgrade("kubeadm", version),
        "# on one of them".to_owned(),
        format!(
            "kubectl -n kube-system get configmap kubeadm-config -o yaml | \
             sed 's/kubernetesVersion: v.*/kubernetesVersion: v{version}/' | kubectl replace -f -"
        ),
    ]
}
