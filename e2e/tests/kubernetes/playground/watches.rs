//! `kubectl get -w`: a row for each change.

use skewbridge_e2e::{RunningKubectl, normalize};

use super::fixture::{Entry, Target};

/// The changes during a watch, and standard input: a row each.
const CHANGES: &[(&str, &str)] = &[
    ("create configmap second --from-literal=a=1", ""),
    (r#"patch configmap second -p {"data":{"b":"2"}}"#, ""),
    ("label configmap first x=y", ""),
    ("delete configmap second", ""),
    ("create configmap third", ""),
];

pub(super) async fn run_scenario(target: &Target<'_>) -> Vec<Entry> {
    let namespace = target.namespace("watched");
    let mut entries = Vec::new();
    let create = format!("create namespace {namespace}");
    entries.push(target.step(&namespace, &create, "").await);
    let first = "create configmap first";
    entries.push(target.step(&namespace, first, "").await);
    let commands = [
        &["get", "configmaps", "-w"][..],
        &["get", "configmaps", "-w", "--output-watch-events"],
        &["get", "configmaps", "-w", "-o", "name"],
    ];
    entries.extend(watch_changes(target, &namespace, &commands, 1, CHANGES).await);
    entries
}

/// The output of these watch commands for `existing` objects and for changes.
pub(super) async fn watch_changes(
    target: &Target<'_>,
    namespace: &str,
    commands: &[&[&str]],
    existing: usize,
    changes: &[(&str, &str)],
) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut watches = Vec::new();
    for words in commands {
        let mut command = target.command(namespace);
        watches.push((
            words,
            RunningKubectl::start(command.args(*words)),
            Vec::new(),
        ));
    }
    // All watches have started: an earlier change would add a row.
    for (words, watch, rows) in &mut watches {
        let headers = usize::from(!words.contains(&"name"));
        for _ in 0..headers + existing {
            rows.push(watch.line().await);
        }
    }
    for (words, stdin) in changes {
        entries.push(target.step(namespace, words, stdin).await);
        for (_, watch, rows) in &mut watches {
            rows.push(watch.line().await);
        }
    }
    for (words, watch, rows) in watches {
        watch.end().await;
        entries.push(Entry::from_text(
            namespace,
            &words.join(" "),
            &normalize(&rows.join("\n")),
        ));
    }
    entries
}
