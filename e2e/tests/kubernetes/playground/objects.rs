//! Objects, written and read in every way that kubectl has.

use super::fixture::At::{self, Everywhere, Servers};
use super::fixture::{Entry, Site};

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

/// What is done in a namespace, in order: by whom, words, and what is typed.
const STEPS: &[(At, &str, &str)] = &[
    (Everywhere, "apply -f -", CONFIG),
    (Servers, "apply -f -", CONFIG),
    (Everywhere, "apply -f -", CHANGED),
    (Servers, "diff -f -", CHANGED),
    (Servers, "apply -f - --dry-run=server", CONFIG),
    (Servers, "get configmap a -o jsonpath={.data}", ""),
    (Everywhere, "get configmap -l x=one -o name", ""),
    (
        Servers,
        "get configmap -l x!=one -o name --field-selector=metadata.name=a",
        "",
    ),
    (
        Everywhere,
        r#"patch configmap a -p {"data":{"three":"3"}}"#,
        "",
    ),
    (
        Everywhere,
        r#"patch configmap a --type=merge -p {"data":{"one":null}}"#,
        "",
    ),
    (
        Servers,
        r#"patch configmap a --type=json -p [{"op":"test","path":"/data/three","value":"4"}]"#,
        "",
    ),
    (
        Everywhere,
        r#"patch configmap a --type=json -p [{"op":"remove","path":"/data/three"}]"#,
        "",
    ),
    (Everywhere, "label configmap a z=1", ""),
    (Everywhere, "annotate configmap a note=hello", ""),
    (
        Servers,
        "get configmap a -o jsonpath={.metadata.labels}{.data}",
        "",
    ),
    (Everywhere, "edit configmap a", ""),
    (Everywhere, "get configmap a -o yaml", ""),
    (Servers, "create configmap a", ""),
    (Everywhere, "explain configmap.metadata.name", ""),
    (Servers, "explain configmaps", ""),
    (Servers, "explain configmaps --recursive", ""),
    (Servers, "explain pods --recursive", ""),
    (Servers, "explain deployments --recursive", ""),
    (Servers, "explain cronjobs.spec", ""),
    (Servers, "explain pods.spec.nope", ""),
    (Servers, "explain nopes", ""),
    (Everywhere, "auth whoami", ""),
    (Everywhere, "auth can-i list nopes", ""),
    (Everywhere, "auth can-i create pods", ""),
    (Everywhere, "auth can-i create pods --as=nobody", ""),
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
    (Everywhere, "get configmap nope", ""),
    (Servers, "delete configmap nope", ""),
    (Everywhere, "get nopes", ""),
    (Servers, "create -f -", BROKEN),
    (
        Servers,
        "create configmap b --from-literal=k=v --dry-run=server -o name",
        "",
    ),
    (Everywhere, "apply --server-side -f -", ONE),
    (
        Everywhere,
        "apply --server-side --field-manager=other -f -",
        TWO,
    ),
    (
        Everywhere,
        "apply --server-side --field-manager=other --force-conflicts -f -",
        TWO,
    ),
    (Servers, "get configmap s -o yaml --show-managed-fields", ""),
    // A bridge answers these for all servers.
    (Servers, "get mutatingadmissionpolicies", ""),
    (Servers, "api-resources -o wide", ""),
    (Servers, "api-resources --namespaced=false -o name", ""),
    (Servers, "api-versions", ""),
    (Everywhere, "delete configmap a s", ""),
    (Servers, "get configmaps -o name", ""),
    (Everywhere, "apply -f -", DEPLOYMENT),
    (Everywhere, "scale deployment d --replicas=3", ""),
    (Servers, "set image deployment/d c=i:2", ""),
    (Servers, "get deployment d -o yaml", ""),
    (Servers, "delete deployment d", ""),
    (Servers, "delete namespace kube-system", ""),
];

pub(super) async fn tell(site: &Site<'_>) -> Vec<Entry> {
    let namespace = site.namespace("shop");
    let create = format!("create namespace {namespace}");
    let mut told = vec![site.step(&namespace, &create, "").await];
    for (at, words, stdin) in STEPS {
        told.push(site.step_at(*at, &namespace, words, stdin).await);
    }
    told
}
