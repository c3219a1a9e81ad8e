//! Namespaces that are deleted with their contents.

use skewbridge_testkit::eventually;
use tokio::join;

use super::fixture::Targets::Servers;
use super::fixture::{COMMAND_TIMEOUT, Entry, Target};
use super::kubelet::Kubelet;

/// Blocks the deletion of the namespace until its finalizer is removed.
const WITH_FINALIZER: &str = "apiVersion: v1\nkind: ConfigMap\n\
                    metadata: {name: held, finalizers: [example.com/hold]}\n";

/// It is bound to a node, and has to terminate before the namespace is deleted.
const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  \
                   terminationGracePeriodSeconds: 1\n  containers: [{name: c, image: none, \
                   command: [sleep, '1000']}]\n";

/// With the fake kubelet for the node of a real server.
pub(super) async fn run_scenario(target: &Target<'_>, kubelet: Option<&Kubelet<'_>>) -> Vec<Entry> {
    let namespace = target.namespace("gone");
    let ns = namespace.as_str();
    let mut entries = vec![target.step(ns, &format!("create namespace {ns}"), "").await];
    entries.push(target.step(ns, "apply -f -", WITH_FINALIZER).await);
    entries.push(target.step(ns, "create secret generic x", "").await);
    entries.push(target.step(ns, "apply -f -", POD).await);
    if let Some(kubelet) = kubelet {
        kubelet.bind(ns, "p").await;
    }
    let delete = format!("delete namespace {ns}");
    let get = format!("get namespace {ns}");
    let late = "create configmap late";
    let release = r#"patch configmap held --type=merge -p {"metadata":{"finalizers":null}}"#;
    let node = async {
        if let Some(kubelet) = kubelet {
            kubelet.terminate(ns, "p").await;
        }
    };
    let (deleted, (), meanwhile) = join!(target.step(ns, &delete, ""), node, async {
        eventually("the namespace is deleted", COMMAND_TIMEOUT, async || {
            let shown = target.output(ns, &get, "").await;
            shown.stdout.contains("Terminating")
        })
        .await;
        vec![
            target.step(ns, &get, "").await,
            target.step_for(Servers, ns, late, "").await,
            target.step(ns, release, "").await,
        ]
    });
    entries.extend(meanwhile);
    // It has waited until everything was deleted.
    entries.push(deleted);
    entries.push(target.step(ns, &get, "").await);
    entries.push(target.step(ns, "get configmaps,secrets,pods", "").await);
    entries.push(target.step_for(Servers, ns, late, "").await);
    entries
}
