//! Namespaces that are deleted with what is in them.

use skewbridge_testkit::eventually;
use tokio::join;

use super::fixture::At::Servers;
use super::fixture::{COMMAND_TIMEOUT, Entry, Site};
use super::kubelet::Kubelet;

/// Keeps the namespace until it lets go.
const HELD: &str = "apiVersion: v1\nkind: ConfigMap\n\
                    metadata: {name: held, finalizers: [example.com/hold]}\n";

/// It belongs to a node, and has to end before the namespace does.
const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  \
                   terminationGracePeriodSeconds: 1\n  containers: [{name: c, image: none, \
                   command: [sleep, '1000']}]\n";

/// With who speaks for the node of a real server.
pub(super) async fn tell(site: &Site<'_>, kubelet: Option<&Kubelet<'_>>) -> Vec<Entry> {
    let namespace = site.namespace("gone");
    let ns = namespace.as_str();
    let mut told = vec![site.step(ns, &format!("create namespace {ns}"), "").await];
    told.push(site.step(ns, "apply -f -", HELD).await);
    told.push(site.step(ns, "create secret generic x", "").await);
    told.push(site.step(ns, "apply -f -", POD).await);
    if let Some(kubelet) = kubelet {
        kubelet.bind(ns, "p").await;
    }
    let delete = format!("delete namespace {ns}");
    let get = format!("get namespace {ns}");
    let late = "create configmap late";
    let release = r#"patch configmap held --type=merge -p {"metadata":{"finalizers":null}}"#;
    let node = async {
        if let Some(kubelet) = kubelet {
            kubelet.end(ns, "p").await;
        }
    };
    let (deleted, (), meanwhile) = join!(site.step(ns, &delete, ""), node, async {
        eventually("the namespace ends", COMMAND_TIMEOUT, async || {
            let shown = site.output(ns, &get, "").await;
            shown.stdout.contains("Terminating")
        })
        .await;
        vec![
            site.step(ns, &get, "").await,
            site.step_at(Servers, ns, late, "").await,
            site.step(ns, release, "").await,
        ]
    });
    told.extend(meanwhile);
    // It has waited until all of it was gone.
    told.push(deleted);
    told.push(site.step(ns, &get, "").await);
    told.push(site.step(ns, "get configmaps,secrets,pods", "").await);
    told.push(site.step_at(Servers, ns, late, "").await);
    told
}
