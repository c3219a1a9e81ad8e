//! The controllers that a playground needs: deletion of namespaces, and garbage collection of
//! dependents.
//!
//! Every server runs them, and those of one server are active. When it ends, those of another
//! take over.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use skewbridge_k8s_api::status::Status;
use tokio::time::timeout;

use super::shared_store::SharedStore;
use crate::namespaces;
use crate::object::Object;
use crate::resource_strategy::{Definition, Part, Scope, StatusPart};
use crate::store::{DryRun, Key, Preconditions, Store, WriteContext};

/// Resync interval without writes: a finalizer may have been removed.
const RESYNC_INTERVAL: Duration = Duration::from_secs(5);

/// Runs after every write, until it is dropped.
pub(super) async fn run(store: SharedStore) {
    let _leading = store.lock_leadership().await;
    let mut changed = store.changed();
    loop {
        changed.mark_unchanged();
        for work in [namespaces::finalize_terminating, collect_garbage] {
            if let Err(status) = store.write(DryRun::Off, work) {
                tracing::warn!(problem = %status.message, "a controller could not do its work");
            }
        }
        // After the timeout the controllers run as after a write.
        let _ = timeout(RESYNC_INTERVAL, changed.changed()).await;
    }
}

/// Removes owner references of dependents, which stay.
pub(super) fn orphan(
    store: &mut Store,
    owner: &str,
    context: &mut WriteContext<'_>,
) -> Result<(), Status> {
    let dependents: Vec<(Key, Object)> = store
        .all()
        .filter(|(_, object)| object.owner_references().iter().any(|it| it.uid == owner))
        .map(|(key, object)| (key.clone(), Object::clone(object)))
        .collect();
    for (key, mut object) in dependents {
        let references = object.at(&["metadata", "ownerReferences"]);
        let references = references.and_then(Value::as_array).into_iter().flatten();
        let others: Vec<Value> = references
            .filter(|it| it["uid"] != owner)
            .cloned()
            .collect();
        object.set(&["metadata", "ownerReferences"], others);
        let (of, namespace, name) = (definition(&key), &key.namespace, &key.name);
        store.update(&of, namespace, name, object, Part::Main, context)?;
    }
    Ok(())
}

/// Deletes objects whose owners no longer exist. An error with one object does not stop the
/// others; the first one is returned.
fn collect_garbage(store: &mut Store, context: &mut WriteContext<'_>) -> Result<(), Status> {
    let has_owners = |object: &Object| !object.owner_references().is_empty();
    if !store.all().any(|(_, object)| has_owners(object)) {
        return Ok(());
    }
    let existing_uids: BTreeSet<String> = store.all().map(|(_, it)| it.uid().to_owned()).collect();
    let is_garbage = |object: &Object| {
        let owners = object.owner_references();
        !owners.is_empty()
            && object.deletion_timestamp().is_none()
            && !owners.iter().any(|owner| existing_uids.contains(owner.uid))
    };
    let garbage: Vec<_> = store
        .all()
        .filter(|(_, object)| is_garbage(object))
        .map(|(key, object)| (key.clone(), object.clone()))
        .collect();
    let mut collected = Ok(());
    for (key, object) in garbage {
        let (of, any) = (definition(&key), Preconditions::default());
        let grace = of.grace(&object, None);
        let deleted = store.delete_within(&of, &key.namespace, &key.name, grace, &any, context);
        collected = collected.and(deleted.map(drop));
    }
    collected
}

/// Enough to write existing objects.
fn definition(key: &Key) -> Definition {
    Definition {
        kind: key.resource.resource.clone(),
        resource: key.resource.clone(),
        scope: if key.namespace.is_empty() {
            Scope::Cluster
        } else {
            Scope::Namespaced
        },
        status: StatusPart::Separate,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::test_fixtures::{config_maps, now, object};

    #[test]
    fn an_orphaned_pod_gets_its_grace_period() {
        let mut store = Store::default();
        let pods = crate::test_fixtures::definition("", "v1", "pods");
        let owner = object("owner", json!({}));
        let owner = now(|it| store.create(&config_maps(), "shop", owner, it)).unwrap();
        let references = json!([{"kind": "ConfigMap", "name": "owner", "uid": owner.uid()}]);
        let fields = json!({
            "metadata": {"ownerReferences": references},
            "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 7},
        });
        now(|it| store.create(&pods, "shop", object("web", fields), it)).unwrap();
        now(|it| collect_garbage(&mut store, it)).unwrap();
        let pod = store.get(&pods, "shop", "web").unwrap();
        assert_eq!(pod.deletion_timestamp(), None);
        let any = Preconditions::default();
        now(|it| store.delete(&config_maps(), "shop", "owner", &any, it)).unwrap();
        for _ in 0..2 {
            now(|it| collect_garbage(&mut store, it)).unwrap();
            let pod = store.get(&pods, "shop", "web").unwrap();
            assert_eq!(pod.value()["metadata"]["deletionGracePeriodSeconds"], 7);
        }
    }
}
