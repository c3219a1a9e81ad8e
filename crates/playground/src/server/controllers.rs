//! What controllers do in a real cluster, as far as a plain one needs it: namespaces that
//! are to end are emptied, and what depends on something that is gone ends too.
//!
//! Every server has them ready, and those of one work: when it goes, another one's take
//! over.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use skewbridge_k8s_api::status::Status;
use tokio::time::timeout;

use super::shared::SharedStore;
use crate::namespaces;
use crate::object::Object;
use crate::store::{Effect, Key, Occasion, Preconditions, Store};
use crate::strategy::{Definition, Part, Scope, StatusPart};

/// Looked at again although nobody has written: a finalizer may have been in the way.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Works whenever something was written, until it is dropped.
pub(super) async fn run(store: SharedStore) {
    let _leading = store.lead().await;
    let mut bell = store.bell();
    loop {
        bell.mark_unchanged();
        for work in [namespaces::settle, collect_garbage] {
            if let Err(status) = store.write(Effect::Lasting, work) {
                tracing::warn!(problem = %status.message, "a controller could not do its work");
            }
        }
        // Late is the same as a ring.
        let _ = timeout(LOOK_AGAIN, bell.changed()).await;
    }
}

/// Lets those stay that depend on what ends.
pub(super) fn orphan(
    store: &mut Store,
    owner: &str,
    occasion: &mut Occasion<'_>,
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
        store.update(&of, namespace, name, object, Part::Main, occasion)?;
    }
    Ok(())
}

/// Ends what depends on nothing that is still there. What goes wrong with one object keeps
/// none of the others; the first of it is told.
fn collect_garbage(store: &mut Store, occasion: &mut Occasion<'_>) -> Result<(), Status> {
    let has_owners = |object: &Object| !object.owner_references().is_empty();
    if !store.all().any(|(_, object)| has_owners(object)) {
        return Ok(());
    }
    let there: BTreeSet<String> = store.all().map(|(_, it)| it.uid().to_owned()).collect();
    let is_garbage = |object: &Object| {
        let owners = object.owner_references();
        !owners.is_empty()
            && object.deletion_timestamp().is_none()
            && !owners.iter().any(|owner| there.contains(owner.uid))
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
        let deleted = store.delete_within(&of, &key.namespace, &key.name, grace, &any, occasion);
        collected = collected.and(deleted.map(drop));
    }
    collected
}

/// Enough to write what is there already.
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
    use crate::sample::{config_maps, now, object};

    #[test]
    fn a_pod_that_has_lost_its_owner_gets_its_time() {
        let mut store = Store::default();
        let pods = crate::sample::definition("", "v1", "pods");
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
