//! `kubectl get -w`: a row for each change.

use skewbridge_e2e::{Staying, steady};

use super::site::{Entry, Site};

/// What is done while somebody watches, and how many rows are there then, with the
/// header and what was there before.
const CHANGES: [(&str, usize); 5] = [
    ("create configmap second --from-literal=a=1", 3),
    (r#"patch configmap second -p {"data":{"b":"2"}}"#, 4),
    ("label configmap first x=y", 5),
    ("delete configmap second", 6),
    ("create configmap third", 7),
];

pub(super) async fn tell(site: &Site<'_>) -> Vec<Entry> {
    let namespace = site.namespace("watched");
    let mut told = Vec::new();
    let create = format!("create namespace {namespace}");
    told.push(site.step(&namespace, &create, "").await);
    let first = "create configmap first";
    told.push(site.step(&namespace, first, "").await);
    let mut watches = Vec::new();
    for words in [
        &["get", "configmaps", "-w"][..],
        &["get", "configmaps", "-w", "--output-watch-events"],
        &["get", "configmaps", "-w", "-o", "name"],
    ] {
        let mut command = site.command(&namespace);
        watches.push((words, Staying::start(command.args(words)), Vec::new()));
    }
    // All of them have begun: a change that came before would be another row.
    for (words, watch, rows) in &mut watches {
        let there = if words.contains(&"name") { 1 } else { 2 };
        for _ in 0..there {
            rows.push(watch.line().await);
        }
    }
    for (words, count) in CHANGES {
        told.push(site.step(&namespace, words, "").await);
        for (words, watch, rows) in &mut watches {
            let headers = usize::from(words.contains(&"name"));
            while rows.len() + headers < count {
                rows.push(watch.line().await);
            }
        }
    }
    for (words, watch, rows) in watches {
        watch.end().await;
        told.push(Entry::seen(
            &namespace,
            &words.join(" "),
            &steady(&rows.join("\n")),
        ));
    }
    told
}
