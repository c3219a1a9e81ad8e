//! `kubectl get -w`: a row for each change.

use skewbridge_e2e::{RunningKubectl, normalize};

use super::fixture::{Entry, Site};

/// What is done while somebody watches, and what is typed: a row each.
const CHANGES: &[(&str, &str)] = &[
    ("create configmap second --from-literal=a=1", ""),
    (r#"patch configmap second -p {"data":{"b":"2"}}"#, ""),
    ("label configmap first x=y", ""),
    ("delete configmap second", ""),
    ("create configmap third", ""),
];

pub(super) async fn tell(site: &Site<'_>) -> Vec<Entry> {
    let namespace = site.namespace("watched");
    let mut told = Vec::new();
    let create = format!("create namespace {namespace}");
    told.push(site.step(&namespace, &create, "").await);
    let first = "create configmap first";
    told.push(site.step(&namespace, first, "").await);
    let commands = [
        &["get", "configmaps", "-w"][..],
        &["get", "configmaps", "-w", "--output-watch-events"],
        &["get", "configmaps", "-w", "-o", "name"],
    ];
    told.extend(watched(site, &namespace, &commands, 1, CHANGES).await);
    told
}

/// What these commands show of what is `there`, and then of changes.
pub(super) async fn watched(
    site: &Site<'_>,
    namespace: &str,
    commands: &[&[&str]],
    there: usize,
    changes: &[(&str, &str)],
) -> Vec<Entry> {
    let mut told = Vec::new();
    let mut watches = Vec::new();
    for words in commands {
        let mut command = site.command(namespace);
        watches.push((
            words,
            RunningKubectl::start(command.args(*words)),
            Vec::new(),
        ));
    }
    // All of them have begun: a change that came before would be another row.
    for (words, watch, rows) in &mut watches {
        let headers = usize::from(!words.contains(&"name"));
        for _ in 0..headers + there {
            rows.push(watch.line().await);
        }
    }
    for (words, stdin) in changes {
        told.push(site.step(namespace, words, stdin).await);
        for (_, watch, rows) in &mut watches {
            rows.push(watch.line().await);
        }
    }
    for (words, watch, rows) in watches {
        watch.end().await;
        told.push(Entry::seen(
            namespace,
            &words.join(" "),
            &normalize(&rows.join("\n")),
        ));
    }
    told
}
