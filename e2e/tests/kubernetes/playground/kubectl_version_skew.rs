//! Kubectls of other releases than the server's: everyday commands from a new namespace to
//! its deletion. Their pod commands are in `pods`.

use tokio::join;

use super::OtherKubectl;
use super::fixture::Targets::{self, All, Servers};
use super::fixture::{Entry, Target};
use super::objects::{CHANGED, CONFIG, ONE, TWO};
use super::watches;

/// The changes that watches see, a row each.
const CHANGES: &[(&str, &str)] = &[
    ("apply -f -", CHANGED),
    ("edit configmap a", ""),
    ("apply --server-side -f -", ONE),
];

/// The following steps, in order: targets, arguments, and standard input.
const STEPS: &[(Targets, &str, &str)] = &[
    (All, "get configmap a -o yaml", ""),
    (All, "apply --server-side --field-manager=other -f -", TWO),
    (All, "explain configmaps", ""),
    (All, "auth whoami", ""),
    (All, "auth can-i create pods --as=nobody", ""),
    // A bridge responds to these for all servers: see `tour`.
    (Servers, "get mutatingadmissionpolicies", ""),
    (Servers, "api-resources", ""),
];

pub(super) async fn differences(others: &[OtherKubectl<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    for other in others {
        let word = other.word("daily");
        let [real, server, bridge] = &other.sites;
        let (expected, direct, bridged) = join!(
            run_scenario(real, &word),
            run_scenario(server, &word),
            run_scenario(bridge, &word)
        );
        found.extend(other.compare([&expected, &direct, &bridged]));
    }
    found
}

async fn run_scenario(target: &Target<'_>, word: &str) -> Vec<Entry> {
    let namespace = target.namespace(word);
    let ns = namespace.as_str();
    let mut entries = vec![target.step(ns, &format!("create namespace {ns}"), "").await];
    entries.push(target.step(ns, "apply -f -", CONFIG).await);
    let watch: &[&str] = &["get", "configmaps", "-w"];
    entries.extend(watches::watch_changes(target, ns, &[watch], 1, CHANGES).await);
    for (at, words, stdin) in STEPS {
        entries.push(target.step_for(*at, ns, words, stdin).await);
    }
    entries.push(target.step(ns, &format!("delete ns {ns}"), "").await);
    entries
}
