//! Kubectls of other releases than the server's: what people do from day to day, from a
//! new namespace to its end. What they do with pods is told beside `pods`.

use tokio::join;

use super::Other;
use super::objects::{CHANGED, CONFIG, ONE, TWO};
use super::site::At::{self, Everywhere, Servers};
use super::site::{Entry, Site};
use super::watches;

/// In order: by whom, words, and what is typed.
const STEPS: &[(At, &str, &str)] = &[
    (Everywhere, "apply -f -", CONFIG),
    (Everywhere, "apply -f -", CHANGED),
    (Everywhere, "edit configmap a", ""),
    (
        Everywhere,
        r#"patch configmap a -p {"data":{"three":"3"}}"#,
        "",
    ),
    (Everywhere, "get configmap a -o yaml", ""),
    (Everywhere, "apply --server-side -f -", ONE),
    (
        Everywhere,
        "apply --server-side --field-manager=other -f -",
        TWO,
    ),
    (Everywhere, "get configmaps", ""),
    (Everywhere, "explain configmaps", ""),
    (Everywhere, "auth whoami", ""),
    (Everywhere, "auth can-i create pods", ""),
    (Everywhere, "auth can-i create pods --as=nobody", ""),
    // A bridge answers these for all servers: see `tour`.
    (Servers, "get mutatingadmissionpolicies", ""),
    (Servers, "api-resources", ""),
];

/// Whom those who watch see, besides what the steps have left.
const CHANGES: &[&str] = &["create configmap seen", "delete configmap seen"];

/// What the steps have left.
const LEFT: usize = 2;

pub(super) async fn differences(others: &[Other<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    for other in others {
        let word = other.word("daily");
        let [real, server, bridge] = &other.sites;
        let (expected, straight, bridged) =
            join!(tell(real, &word), tell(server, &word), tell(bridge, &word));
        found.extend(other.compare([&expected, &straight, &bridged]));
    }
    found
}

async fn tell(site: &Site<'_>, word: &str) -> Vec<Entry> {
    let namespace = site.namespace(word);
    let ns = namespace.as_str();
    let mut told = vec![site.step(ns, &format!("create namespace {ns}"), "").await];
    for (at, words, stdin) in STEPS {
        told.push(site.step_at(*at, ns, words, stdin).await);
    }
    let watch: &[&str] = &["get", "configmaps", "-w"];
    told.extend(watches::watched(site, ns, &[watch], LEFT, CHANGES).await);
    told.push(site.step(ns, &format!("delete ns {ns}"), "").await);
    told.push(site.step(ns, &format!("get ns {ns}"), "").await);
    told
}
