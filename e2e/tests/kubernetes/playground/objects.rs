//! Objects, written and read with all kubectl commands.

use super::fixture::Targets::{self, All, Servers};
use super::fixture::{Entry, Target};

pub(super) const CONFIG: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {x: one}}\n\
                      data: {one: '1'}\n";
pub(super) const CHANGED: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {x: one}}\n\
                       data: {one: '2', two: '2'}\n";
const DEPLOYMENT: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  \
                          selector: {matchLabels: {app: d}}\n  template:\n    metadata: {labels: \
                          {app: d}}\n    spec: {containers: [{name: c, image: i:1}]}\n";
const BROKEN: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: A_B}\n";
const STALE: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, resourceVersion: '1'}\n";
pub(super) const ONE: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\ndata: {one: '1'}\n";
pub(super) const TWO: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\ndata: {one: '2'}\n";

/// The steps in a namespace, in order: targets, arguments, and standard input.
const STEPS: &[(Targets, &str, &str)] = &[
    (All, "apply -f -", CONFIG),
    (Servers, "apply -f -", CONFIG),
    (All, "apply -f -", CHANGED),
    (Servers, "diff -f -", CHANGED),
    (Servers, "apply -f - --dry-run=server", CONFIG),
    (Servers, "get configmap a -o jsonpath={.data}", ""),
    (All, "get configmap -l x=one -o name", ""),
    (
        Servers,
        "get configmap -l x!=one -o name --field-selector=metadata.name=a",
        "",
    ),
    (All, r#"patch configmap a -p {"data":{"three":"3"}}"#, ""),
    (
        All,
        r#"patch configmap a --type=merge -p {"data":{"one":null}}"#,
        "",
    ),
    (
        Servers,
        r#"patch configmap a --type=json -p [{"op":"test","path":"/data/three","value":"4"}]"#,
        "",
    ),
    (
        All,
        r#"patch configmap a --type=json -p [{"op":"remove","path":"/data/three"}]"#,
        "",
    ),
    (All, "label configmap a z=1", ""),
    (All, "annotate configmap a note=hello", ""),
    (
        Servers,
        "get configmap a -o jsonpath={.metadata.labels}{.data}",
        "",
    ),
    (All, "edit configmap a", ""),
    (All, "get configmap a -o yaml", ""),
    (Servers, "create configmap a", ""),
    (All, "explain configmap.metadata.name", ""),
    (Servers, "explain configmaps", ""),
    (Servers, "explain configmaps --recursive", ""),
    (Servers, "explain pods --recursive", ""),
    (Servers, "explain deployments --recursive", ""),
    (Servers, "explain cronjobs.spec", ""),
    (Servers, "explain pods.spec.nope", ""),
    (Servers, "explain nopes", ""),
    (All, "auth whoami", ""),
    (All, "auth can-i list nopes", ""),
    (All, "auth can-i create pods", ""),
    (All, "auth can-i create pods --as=nobody", ""),
    (Servers, "auth can-i --list --as=nobody", ""),
    (Servers, "get --raw /healthz", ""),
    (Servers, "get --raw /nope", ""),
    (Servers, "create namespace default", ""),
    (Servers, "rollout status deployment/nope", ""),
    (Servers, "get configmap -o name --chunk-size=1", ""),
    (
        Servers,
        "wait configmap/a --for=jsonpath={.data.two}=zwei --timeout=20s",
        "",
    ),
    (Servers, "replace -f -", STALE),
    (All, "get configmap nope", ""),
    (Servers, "delete configmap nope", ""),
    (All, "get nopes", ""),
    (Servers, "create -f -", BROKEN),
    (
        Servers,
        "create configmap b --from-literal=k=v --dry-run=server -o name",
        "",
    ),
    (All, "apply --server-side -f -", ONE),
    (All, "apply --server-side --field-manager=other -f -", TWO),
    (
        All,
        "apply --server-side --field-manager=other --force-conflicts -f -",
        TWO,
    ),
    (Servers, "get configmap s -o yaml --show-managed-fields", ""),
    // A bridge responds to these for all servers.
    (Servers, "get mutatingadmissionpolicies", ""),
    (Servers, "api-resources -o wide", ""),
    (Servers, "api-resources --namespaced=false -o name", ""),
    (Servers, "api-versions", ""),
    (All, "delete configmap a s", ""),
    (Servers, "get configmaps -o name", ""),
    (All, "apply -f -", DEPLOYMENT),
    (All, "scale deployment d --replicas=3", ""),
    (Servers, "set image deployment/d c=i:2", ""),
    (Servers, "get deployment d -o yaml", ""),
    (Servers, "delete deployment d", ""),
    (Servers, "delete namespace kube-system", ""),
];

pub(super) async fn run_scenario(target: &Target<'_>) -> Vec<Entry> {
    let namespace = target.namespace("shop");
    let create = format!("create namespace {namespace}");
    let mut entries = vec![target.step(&namespace, &create, "").await];
    for (at, words, stdin) in STEPS {
        entries.push(target.step_for(*at, &namespace, words, stdin).await);
    }
    entries
}
