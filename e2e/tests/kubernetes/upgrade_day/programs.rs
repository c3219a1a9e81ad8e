//! What the commands of the page need beyond static pods and units: packages, and the parts of kubeadm
//! and etcdctl that depend on containers.

use std::fs;

use skewbridge_e2e::of_control_plane;

use crate::kubeadm_cluster::Node;

/// Installs packages as links to programs that were built. A lower version needs the flag that
/// apt-get needs.
const APT_GET: &str = r#"#!/bin/sh
set -eu
[ "$*" != update ] || exit 0
may_lower=
for word in "$@"; do
  case "$word" in
    install|-y|--allow-change-held-packages) ;;
    --allow-downgrades) may_lower=yes ;;
    kubeadm=*-\*|kubelet=*-\*|kubectl=*-\*)
      name=${word%%=*}
      version=${word#*=}
      version=${version%-\*}
      installed=/run/packages/$name
      newest=$(printf '%s\n' "$version" "$(cat "$installed")" | sort -V | tail -n 1)
      if [ "$newest" != "$version" ] && [ -z "$may_lower" ]; then
        echo "$name: $version is lower than the installed version" >&2; exit 100
      fi
      echo "$version" >"$installed"
      if [ "$name" = kubectl ]; then
        [ -x "PROGRAMS/kubectl-$version" ]
        ln -sf "PROGRAMS/kubectl-$version" /usr/local/bin/kubectl
      fi ;;
    *) echo "apt-get $*: the test does not know $word" >&2; exit 100 ;;
  esac
done
"#;

/// kubeadm of the installed package, except for what needs containers or kubelet: `upgrade`, which
/// also refuses to skip a minor version, and images.
///
/// `upgrade` does what kubeadm does with a control plane node, in its order: component by component it
/// renews the certificates, keeps the manifest in the backup, writes that of the new version with the
/// patches, and waits for the mirror Pod and for kube-apiserver. `apply` writes the configuration of
/// the cluster. The last node upgrades kube-proxy.
const KUBEADM: &str = r#"#!/bin/sh
set -eu
version=$(cat /run/packages/kubeadm)
real=PROGRAMS/kubeadm-$version
export KUBECONFIG=/etc/kubernetes/admin.conf

wait_for() {
  tries=0
  until eval "$1"; do
    tries=$((tries + 1))
    [ "$tries" -lt 120 ] || { echo "timeout: $1" >&2; exit 1; }
    sleep 1
  done
}

component() {
  phase=$1 pod=$2; shift 2
  for certificate in "$@"; do "$real" certs renew "$certificate" --config="$config"; done
  cp "/etc/kubernetes/manifests/$pod.yaml" "$backup/"
  "$real" init phase control-plane "$phase" --config="$config"
  wait_for "kubectl -n kube-system get pod $pod-$(hostname) \
    -o 'jsonpath={.spec.containers[0].image} {.status.containerStatuses[0].ready}' 2>&1 |
    grep -q ':v$version true'"
}

upgrade() {
  config=/etc/kubeadm/upgrade.yaml
  sed "s,^kind: InitConfiguration\$,&\npatches: {directory: $1}," "/etc/kubeadm/v$version.yaml" >"$config"
  [ -d "$1" ]
  backup=/etc/kubernetes/tmp/kubeadm-backup-manifests-$(date +%Y-%m-%d-%H-%M-%S)
  mkdir -p -m 0700 "$backup"
  component apiserver kube-apiserver \
    apiserver apiserver-kubelet-client front-proxy-client apiserver-etcd-client
  wait_for "curl -skf -o /dev/null https://127.0.0.1:6443/readyz"
  component controller-manager kube-controller-manager controller-manager.conf
  component scheduler kube-scheduler scheduler.conf
  "$real" certs renew admin.conf --config="$config"
}

upgrade_addons() {
  servers=$(kubectl -n kube-system get pods -l component=kube-apiserver \
    -o 'jsonpath={range .items[*]}{.spec.containers[0].image}{"\n"}{end}')
  if ! echo "$servers" | grep -qv ":v$version\$"; then
    "$real" init phase addon kube-proxy --config="$config"
  fi
}

case "$*" in
  "config images pull --kubernetes-version="*)
    exec "$real" config images list "$4" ;;
  "upgrade plan v$version") ;;
  "upgrade apply v$version --yes --patches="*)
    upgrade "${5#*=}"
    "$real" init phase upload-config kubeadm --config="$config"
    upgrade_addons ;;
  "upgrade node --patches="*)
    kubectl -n kube-system get configmap kubeadm-config -o yaml | grep -q "kubernetesVersion: v$version\$"
    upgrade "${3#*=}"
    upgrade_addons ;;
  "upgrade "*|"config images "*)
    echo "kubeadm $*: the test does not know this command of kubeadm $version" >&2; exit 1 ;;
  *) exec "$real" "$@" ;;
esac
"#;

/// A snapshot by etcd's own gateway: only etcd itself is built.
const ETCDCTL: &str = r#"#!/bin/sh
set -eu
case "$*" in
  "--endpoints="*" --cacert="*" --cert="*" --key="*" snapshot save /"*) ;;
  *) echo "etcdctl $*: the test does not know this command" >&2; exit 1 ;;
esac
curl -sf --cacert "${2#*=}" --cert "${3#*=}" --key "${4#*=}" -d '{}' \
  "${1#*=}/v3/maintenance/snapshot" |
  sed -n 's/.*"blob":"\([^"]*\)".*/\1/p' |
  while read -r part; do echo "$part" | base64 -d; done >"$7"
[ -s "$7" ]
"#;

/// Installs the programs on a node that kubeadm of the old version has made.
pub(super) fn install(node: &Node, [old, new]: [&str; 2]) {
    let programs = of_control_plane("kubeadm", old);
    let programs = programs.parent().unwrap().display().to_string();
    let machine = &node.machine;
    machine.shell("mkdir -p /run/packages && rm /usr/local/bin/kubeadm");
    for (name, script) in [
        ("apt-get", APT_GET),
        ("kubeadm", KUBEADM),
        ("etcdctl", ETCDCTL),
    ] {
        let file = format!("/usr/local/bin/{name}");
        fs::write(machine.path(&file), script.replace("PROGRAMS", &programs)).unwrap();
        machine.shell(&format!("chmod +x {file}"));
    }
    for package in ["kubeadm", "kubelet", "kubectl"] {
        fs::write(machine.path(&format!("/run/packages/{package}")), old).unwrap();
    }
    node.write_config(&format!("/etc/kubeadm/v{new}.yaml"), new);
}
