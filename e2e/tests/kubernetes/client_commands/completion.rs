//! Completion: the candidates of skewbridge, as a program and as a kubectl plugin, are those of
//! kubectl.

use std::collections::BTreeSet;

use skewbridge_e2e::{ControlPlane, Node, User, Via};
use tokio::process::Command;

use super::run;

/// Objects of which only names matter here.
const OBJECTS: &str = r#"{"kind": "List", "apiVersion": "v1", "items": [
    {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "shop"}, "spec": {
        "selector": {"matchLabels": {"app": "shop"}}, "template": {"metadata": {"labels": {"app": "shop"}},
        "spec": {"containers": [{"name": "a", "image": "none"}]}}}},
    {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "till"}, "spec": {"ports": [{"port": 80}]}}
]}"#;

/// The command lines of which the last word is completed.
const LINES: [&[&str]; 17] = [
    &["exec", "-n", Node::NAMESPACE, ""],
    &["exec", "-n", Node::NAMESPACE, "po"],
    &["exec", "-n", Node::NAMESPACE, "deployments/"],
    &["exec", "-n", Node::NAMESPACE, "svc/t"],
    &["exec", "-n", Node::NAMESPACE, "nothing"],
    &["exec", "-n", Node::NAMESPACE, Node::POD, ""],
    &["exec", "-n", Node::NAMESPACE, Node::POD, "-c", ""],
    &["exec", "-n", Node::NAMESPACE, Node::POD, "--container=c"],
    &["attach", "-n", Node::NAMESPACE, "d"],
    &["port-forward", "-n", Node::NAMESPACE, ""],
    &["exec", "--namespace", ""],
    &["exec", "--namespace=kube"],
    &["exec", "--context", ""],
    &["exec", "--cluster", ""],
    &["exec", "--user", ""],
    &["cp", "-n", Node::NAMESPACE, ""],
    &["cp", "streams/"],
];

pub(super) async fn offers_what_kubectl_offers(plane: &ControlPlane, server: usize) {
    let kubectl = || plane.kubectl_with_plugin(server, Via::Server, User::Admin);
    let mut apply = kubectl();
    apply.args(["apply", "-n", Node::NAMESPACE, "-f", "-"]);
    let output = run(apply, OBJECTS).await;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    for words in LINES {
        let mut of_kubectl = kubectl();
        of_kubectl.arg("__complete").args(words);
        let expected = candidates(of_kubectl).await;
        for via in [Via::Server, Via::Bridge] {
            let mut ours = plane.skewbridge_command(server, via, User::Admin);
            ours.arg("__complete").args(words);
            assert_eq!(candidates(ours).await, expected, "{words:?} {via:?}");
        }
        let mut plugin = kubectl();
        plugin.args(["__complete", "skewbridge"]).args(words);
        assert_eq!(
            candidates(plugin).await,
            expected,
            "kubectl skewbridge {words:?}"
        );
    }
}

/// The candidates without descriptions, and without `--flag=` before a value: kubectl's scripts put
/// it there.
async fn candidates(command: Command) -> BTreeSet<String> {
    let output = run(command, "").await;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let lines = output
        .stdout
        .lines()
        .take_while(|line| !line.starts_with(':'));
    let words = lines.map(|line| line.split('\t').next().unwrap());
    let words = words.map(|word| match word.split_once('=') {
        Some((flag, value)) if flag.starts_with("--") => value.to_owned(),
        _ => word.to_owned(),
    });
    words.collect()
}
