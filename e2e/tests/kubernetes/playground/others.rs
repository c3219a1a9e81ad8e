//! Kubectls of other releases than the server's: what people do from day to day, from a
//! new namespace to its end. What they do with pods is told beside `pods`.

use tokio::join;

use super::Other;
use super::fixture::At::{self, Everywhere, Servers};
use super::fixture::{Entry, Site};
use super::objects::{CHANGED, CONFIG, ONE, TWO};
use super::watches;

/// What those who watch see, a row each.
const CHANGES: &[(&str, &str)] = &[
    ("apply -f -", CHANGED),
    ("edit configmap a", ""),
    ("apply --server-side -f -", ONE),
];

/// What follows, in order: by whom, words, and what is typed.
const STEPS: &[(At, &str, &str)] = &[
    (Everywhere, "get configmap a -o yaml", ""),
    (
        Everywhere,
        "apply --server-side --field-manager=other -f -",
        TWO,
    ),
    (Everywhere, "explain configmaps", ""),
    (Everywhere, "auth whoami", ""),
    (Everywhere, "auth can-i create pods --as=nobody", ""),
    // A bridge answers these for all servers: see `tour`.
    (Servers, "get mutatingadmissionpolicies", ""),
    (Servers, "api-resources", ""),
];

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
    told.push(site.step(ns, "apply -f -", CONFIG).await);
    let watch: &[&str] = &["get", "configmaps", "-w"];
    told.extend(watches::watched(site, ns, &[watch], 1, CHANGES).await);
    for (at, words, stdin) in STEPS {
        told.push(site.step_at(*at, ns, words, stdin).await);
    }
    told.push(site.step(ns, &format!("delete ns {ns}"), "").await);
    told
}
