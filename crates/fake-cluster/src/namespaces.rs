//! Namespaces: admission, and their deletion. In a real cluster a controller does the latter;
//! here [`finalize_terminating`] is called regularly.

use serde_json::{Value, json};
use skewbridge_k8s_api::status::{Cause, Status};

use crate::object::{Object, texts};
use crate::resource_strategy::{Definition, Part, Scope, StatusPart};
use crate::status::{GroupResource, forbidden, not_found};
use crate::store::{Preconditions, Store, WriteContext};

/// The namespaces of every cluster.
pub const INITIAL: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// Namespaces that cannot be deleted.
const PROTECTED: [&str; 3] = ["default", "kube-public", "kube-system"];

/// The finalizer that is removed when a namespace is empty.
const FINALIZER: &str = "kubernetes";

/// The definition of the resource.
pub fn definition() -> Definition {
    Definition {
        resource: GroupResource::new("", "namespaces"),
        kind: "Namespace".to_owned(),
        scope: Scope::Cluster,
        status: StatusPart::Separate,
    }
}

/// Creates the initial namespaces that are missing.
pub fn create_initial(store: &mut Store, context: &mut WriteContext<'_>) -> Result<(), Status> {
    for name in INITIAL {
        if store.get(&definition(), "", name).is_err() {
            let object = Object::new(json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name},
            }))?;
            store.create(&definition(), "", object, context)?;
        }
    }
    Ok(())
}

/// Whether an object can be created in a namespace.
pub fn admit_creation(
    store: &Store,
    of: &Definition,
    namespace: &str,
    name: &str,
) -> Result<(), Status> {
    if of.scope == Scope::Cluster {
        return Ok(());
    }
    let found = store.get(&definition(), "", namespace);
    let found = found.map_err(|_| not_found(&definition().resource, namespace))?;
    if found.text(&["status", "phase"]) != "Terminating" {
        return Ok(());
    }
    let why = format!(
        "unable to create new content in namespace {namespace} because it is being terminated"
    );
    let mut refusal = forbidden(&of.resource, name, why);
    if let Some(details) = &mut refusal.details {
        details.causes.push(Cause {
            reason: "NamespaceTerminating".to_owned(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".to_owned(),
        });
    }
    Err(refusal)
}

/// Whether an object can be deleted: all but protected namespaces.
pub fn admit_deletion(of: &Definition, name: &str) -> Result<(), Status> {
    if of.is_namespaces() && PROTECTED.contains(&name) {
        return Err(forbidden(
            &of.resource,
            name,
            "this namespace may not be deleted",
        ));
    }
    Ok(())
}

/// Deletes the content of terminating namespaces, and removes those that are empty. An error
/// with one object does not stop the others; the first one is returned.
pub fn finalize_terminating(
    store: &mut Store,
    context: &mut WriteContext<'_>,
) -> Result<(), Status> {
    let mut settled = Ok(());
    for name in terminating(store) {
        let emptied = delete_content(store, &name, context);
        let finalize = finalize(store, &name, context);
        settled = settled.and(emptied).and(finalize);
    }
    settled
}

fn delete_content(
    store: &mut Store,
    name: &str,
    context: &mut WriteContext<'_>,
) -> Result<(), Status> {
    let objects = store.in_namespace(name);
    let objects: Vec<_> = objects.map(|(key, it)| (key.clone(), it.clone())).collect();
    let mut emptied = Ok(());
    for (key, object) in objects {
        let of = Definition {
            kind: key.resource.resource.clone(),
            resource: key.resource,
            scope: Scope::Namespaced,
            status: StatusPart::Separate,
        };
        let (grace, any) = (of.grace(&object, None), Preconditions::default());
        let deleted = store.delete_within(&of, name, &key.name, grace, &any, context);
        emptied = emptied.and(deleted.map(drop));
    }
    emptied
}

/// Removes an empty namespace, or records why it is not empty.
fn finalize(store: &mut Store, name: &str, context: &mut WriteContext<'_>) -> Result<(), Status> {
    let found = store.get(&definition(), "", name)?;
    let mut next = Object::clone(&found);
    let part = if store.in_namespace(name).next().is_some() {
        let conditions = conditions(store, name, &found, &context.now.to_string());
        next.set(&["status", "conditions"], conditions);
        Part::Status
    } else {
        let mut finalizers = texts(found.at(&["spec", "finalizers"]));
        finalizers.retain(|it| *it != FINALIZER);
        next.set(&["spec", "finalizers"], json!(finalizers));
        Part::Finalize
    };
    let updated = store.update(&definition(), "", name, next, part, context);
    updated.map(drop)
}

fn terminating(store: &Store) -> Vec<String> {
    let namespaces = store.in_namespace("");
    let namespaces = namespaces.filter(|(key, _)| key.resource == definition().resource);
    namespaces
        .filter(|(_, object)| object.deletion_timestamp().is_some())
        .map(|(key, _)| key.name.clone())
        .collect()
}

/// Why a namespace still exists, as `kubectl describe` shows it.
fn conditions(store: &Store, name: &str, namespace: &Object, now: &str) -> Vec<Value> {
    let (resources, finalizers) = remaining(store, name);
    let rows = [
        (
            "NamespaceDeletionDiscoveryFailure",
            "ResourcesDiscovered",
            "All resources successfully discovered".to_owned(),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed".to_owned(),
        ),
        (
            "NamespaceDeletionContentFailure",
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization".to_owned(),
        ),
        (
            "NamespaceContentRemaining",
            "SomeResourcesRemain",
            format!("Some resources are remaining: {resources}"),
        ),
        (
            "NamespaceFinalizersRemaining",
            "SomeFinalizersRemain",
            format!("Some content in the namespace has finalizers remaining: {finalizers}"),
        ),
    ];
    let old = namespace
        .at(&["status", "conditions"])
        .and_then(Value::as_array);
    let condition = |(kind, reason, message): (&str, &str, String)| {
        let status = if kind.ends_with("Remaining") {
            "True"
        } else {
            "False"
        };
        let mut before = old.into_iter().flatten();
        let before = before.find(|it| it["type"] == kind && it["status"] == status);
        let since = before.map_or_else(|| now.into(), |it| it["lastTransitionTime"].clone());
        json!({
            "type": kind,
            "status": status,
            "lastTransitionTime": since,
            "reason": reason,
            "message": message,
        })
    };
    rows.into_iter().map(condition).collect()
}

/// The remaining objects by resource, and their finalizers.
fn remaining(store: &Store, name: &str) -> (String, String) {
    let mut resources = std::collections::BTreeMap::<String, usize>::new();
    let mut finalizers = std::collections::BTreeMap::<String, usize>::new();
    for (key, object) in store.in_namespace(name) {
        // With a dot, even without a group.
        let resource = format!("{}.{}", key.resource.resource, key.resource.group);
        *resources.entry(resource).or_default() += 1;
        for finalizer in object.finalizers() {
            *finalizers.entry(finalizer.to_owned()).or_default() += 1;
        }
    }
    let listed = |counts: std::collections::BTreeMap<String, usize>, word: &str| {
        let texts: Vec<_> = counts
            .iter()
            .map(|(name, count)| format!("{name} {word} {count} resource instances"))
            .collect();
        texts.join(", ")
    };
    (listed(resources, "has"), listed(finalizers, "in"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Deletion;
    use crate::test_fixtures::{config_maps, now, object};

    fn cluster() -> Store {
        let mut store = Store::default();
        now(|it| create_initial(&mut store, it)).unwrap();
        store
    }

    fn create(store: &mut Store, namespace: &str, name: &str, fields: Value) {
        admit_creation(store, &config_maps(), namespace, name).unwrap();
        let object = object(name, fields);
        now(|it| store.create(&config_maps(), namespace, object, it)).unwrap();
    }

    fn delete(store: &mut Store, name: &str) -> Deletion {
        let none = Preconditions::default();
        now(|it| store.delete(&definition(), "", name, &none, it)).unwrap()
    }

    #[test]
    fn a_cluster_starts_with_its_namespaces() {
        let mut store = cluster();
        let found = store.get(&definition(), "", "default").unwrap();
        assert_eq!(found.value()["spec"], json!({"finalizers": ["kubernetes"]}));
        assert_eq!(found.value()["status"], json!({"phase": "Active"}));
        assert_eq!(found.label("kubernetes.io/metadata.name"), Some("default"));
        let version = store.version();
        now(|it| create_initial(&mut store, it)).unwrap();
        assert_eq!(store.version(), version);
    }

    #[test]
    fn nothing_is_created_in_missing_or_terminating_namespaces() {
        let mut store = cluster();
        let admit = |store: &Store, namespace| {
            admit_creation(store, &config_maps(), namespace, "web").map_err(|it| it.message)
        };
        assert_eq!(admit(&store, "default"), Ok(()));
        assert_eq!(
            admit(&store, "shop"),
            Err("namespaces \"shop\" not found".to_owned())
        );
        assert_eq!(admit_creation(&store, &definition(), "", "shop"), Ok(()));
        create(
            &mut store,
            "kube-node-lease",
            "held",
            json!({"metadata": {"finalizers": ["a"]}}),
        );
        delete(&mut store, "kube-node-lease");
        let refusal = admit_creation(&store, &config_maps(), "kube-node-lease", "web").unwrap_err();
        assert_eq!(
            refusal.message,
            "configmaps \"web\" is forbidden: unable to create new content in namespace \
             kube-node-lease because it is being terminated"
        );
        assert_eq!(
            refusal.details.unwrap().causes[0].reason,
            "NamespaceTerminating"
        );
    }

    #[test]
    fn protected_namespaces_cannot_be_deleted() {
        for name in PROTECTED {
            let expected =
                format!("namespaces \"{name}\" is forbidden: this namespace may not be deleted");
            assert_eq!(
                admit_deletion(&definition(), name).unwrap_err().message,
                expected
            );
        }
        assert_eq!(admit_deletion(&definition(), "shop"), Ok(()));
        assert_eq!(admit_deletion(&config_maps(), "default"), Ok(()));
    }

    #[test]
    fn a_namespace_is_removed_when_it_is_empty() {
        let mut store = cluster();
        let shop = object("shop", json!({}));
        now(|it| store.create(&definition(), "", shop, it)).unwrap();
        create(&mut store, "shop", "plain", json!({}));
        create(
            &mut store,
            "shop",
            "held",
            json!({"metadata": {"finalizers": ["x/a"]}}),
        );
        create(&mut store, "default", "other", json!({}));
        let Deletion::Pending(waiting) = delete(&mut store, "shop") else {
            panic!("gone at once");
        };
        assert_eq!(waiting.text(&["status", "phase"]), "Terminating");
        now(|it| finalize_terminating(&mut store, it)).unwrap();
        let found = store.get(&definition(), "", "shop").unwrap();
        let conditions = found.at(&["status", "conditions"]).unwrap();
        assert_eq!(
            conditions[3]["message"],
            "Some resources are remaining: configmaps. has 1 resource instances"
        );
        assert_eq!(
            conditions[4]["message"],
            "Some content in the namespace has finalizers remaining: x/a in 1 resource instances"
        );
        // Without changes nothing is written.
        let version = store.version();
        now(|it| finalize_terminating(&mut store, it)).unwrap();
        assert_eq!(store.version(), version);
        let mut held = Object::clone(&store.get(&config_maps(), "shop", "held").unwrap());
        held.remove(&["metadata", "finalizers"]);
        now(|it| store.update(&config_maps(), "shop", "held", held, Part::Main, it)).unwrap();
        now(|it| finalize_terminating(&mut store, it)).unwrap();
        assert_eq!(store.get(&definition(), "", "shop").unwrap_err().code, 404);
        assert!(store.get(&config_maps(), "default", "other").is_ok());
    }

    #[test]
    fn pods_of_a_terminating_namespace_get_their_grace_period() {
        let mut store = cluster();
        let pods = crate::test_fixtures::definition("", "v1", "pods");
        let shop = object("shop", json!({}));
        now(|it| store.create(&definition(), "", shop, it)).unwrap();
        for (name, node) in [("waits", ""), ("runs", "n")] {
            let spec = json!({"nodeName": node, "terminationGracePeriodSeconds": 7});
            let pod = object(name, json!({"spec": spec}));
            now(|it| store.create(&pods, "shop", pod, it)).unwrap();
        }
        delete(&mut store, "shop");
        for _ in 0..2 {
            now(|it| finalize_terminating(&mut store, it)).unwrap();
            assert_eq!(store.get(&pods, "shop", "waits").unwrap_err().code, 404);
            let pod = store.get(&pods, "shop", "runs").unwrap();
            assert_eq!(pod.value()["metadata"]["deletionGracePeriodSeconds"], 7);
            assert!(store.get(&definition(), "", "shop").is_ok());
        }
        // As the node does when the processes have ended.
        let any = Preconditions::default();
        now(|it| store.delete(&pods, "shop", "runs", &any, it)).unwrap();
        now(|it| finalize_terminating(&mut store, it)).unwrap();
        assert_eq!(store.get(&definition(), "", "shop").unwrap_err().code, 404);
    }

    #[test]
    fn finalizers_of_a_namespace_are_changed_by_finalize_alone() {
        let mut store = cluster();
        let mut write = |part, fields: Value| {
            let object = object("default", fields);
            let next = now(|it| store.update(&definition(), "", "default", object, part, it));
            next.unwrap().value()["spec"].clone()
        };
        let none = json!({"spec": {"finalizers": []}});
        assert_eq!(
            write(Part::Main, none.clone()),
            json!({"finalizers": ["kubernetes"]})
        );
        assert_eq!(write(Part::Finalize, none), json!({"finalizers": []}));
    }
}
