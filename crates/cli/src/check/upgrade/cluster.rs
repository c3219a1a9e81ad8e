//! Reads what all servers share: Nodes, custom resource definitions, migrations.

use serde::Deserialize;
use serde_json::Value;
use skewbridge_k8s_api::version::Version;
use skewbridge_released_apis::ApiName;
use skewbridge_upgrade_check::Fact;
use skewbridge_upgrade_check::facts::{Component, Migration, StoredVersions};

use super::client::Parts;
use super::readers::{Readers, complete};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

const MIGRATION_GROUP: &str = "storagemigration.k8s.io";

/// The versions in which `StorageVersionMigration` is served, newest first.
const MIGRATION_VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];

pub(super) fn version(text: &str) -> Fact<Version> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a version"))
}

pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    let value = object.pointer(pointer).and_then(Value::as_str);
    value.unwrap_or_default()
}

/// The kubelets of all Nodes.
pub(super) async fn kubelets(readers: &Readers) -> Fact<Vec<Component>> {
    let kubelet = |node: &Value| Component {
        name: "kubelet".to_owned(),
        instance: text(node, "/metadata/name").to_owned(),
        version: version(text(node, "/status/nodeInfo/kubeletVersion")),
    };
    let add = |found: &mut Vec<_>, node: &Value| found.push(kubelet(node));
    readers.all("/api/v1/nodes", add).await
}

/// Custom resource definitions with several stored versions, or with one that is not served; and
/// why others could not be read.
pub(super) async fn stored_versions(readers: &Readers) -> Fact<Vec<Fact<StoredVersions>>> {
    let add = |found: &mut Vec<_>, definition: &Value| found.extend(stored(definition).transpose());
    readers.all(DEFINITIONS, add).await
}

/// `None` if all objects are stored in one version that is served.
fn stored(definition: &Value) -> Fact<Option<StoredVersions>> {
    #[derive(Deserialize)]
    struct DefinitionVersion {
        name: String,
        served: bool,
        storage: bool,
    }
    let name = text(definition, "/metadata/name");
    let unreadable = |what: &str| format!("{name}: {what}");
    let versions = definition.pointer("/spec/versions").cloned();
    let versions: Vec<DefinitionVersion> = serde_json::from_value(versions.unwrap_or_default())
        .map_err(|error| unreadable(&format!("spec.versions: {error}")))?;
    let stored = definition.pointer("/status/storedVersions").cloned();
    let stored: Vec<String> = serde_json::from_value(stored.unwrap_or_default())
        .map_err(|error| unreadable(&format!("status.storedVersions: {error}")))?;
    if stored.is_empty() {
        return Err(unreadable("status.storedVersions is empty"));
    }
    let served = versions.iter().filter(|it| it.served);
    let served: Vec<_> = served.map(|it| it.name.clone()).collect();
    let storage = versions.into_iter().find(|it| it.storage);
    let storage = storage.ok_or_else(|| unreadable("spec.versions has no storage version"))?;
    let is_settled = stored.len() == 1 && served.contains(&stored[0]);
    Ok((!is_settled).then(|| StoredVersions {
        definition: name.to_owned(),
        stored,
        storage: storage.name,
        served,
    }))
}

/// The `StorageVersionMigration` objects that have not succeeded; none where no server serves the
/// API.
pub(super) async fn migrations(readers: &Readers) -> Fact<Vec<Migration>> {
    for version in MIGRATION_VERSIONS {
        let api = ApiName {
            group: MIGRATION_GROUP.to_owned(),
            version: version.to_owned(),
            resource: "storageversionmigrations".to_owned(),
        };
        let add = |found: &mut Vec<_>, object: &Value| found.extend(migration(object));
        let listed = readers
            .list_if_served(&api, None, Parts::Everything, add)
            .await?;
        if let Some((found, extent)) = listed {
            return complete(&api.qualified(), found, extent);
        }
    }
    Ok(Vec::new())
}

fn migration(object: &Value) -> Option<Migration> {
    let conditions = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let has = |kind: &str| {
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|it| it["type"] == kind && it["status"] == "True")
    };
    let resource = match (
        text(object, "/spec/resource/resource"),
        text(object, "/spec/resource/group"),
    ) {
        (resource, "") => resource.to_owned(),
        (resource, group) => format!("{resource}.{group}"),
    };
    (!has("Succeeded")).then(|| Migration {
        name: text(object, "/metadata/name").to_owned(),
        resource,
        failed: has("Failed"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn definitions_with_one_stored_version_that_is_served_are_left_out() {
        let definition = |stored: &[&str], served: &[&str]| {
            let versions: Vec<_> = ["v1", "v2"]
                .iter()
                .map(|name| {
                    json!({"name": name, "served": served.contains(name), "storage": *name == "v2"})
                })
                .collect();
            json!({
                "metadata": {"name": "widgets.example.com"},
                "spec": {"versions": versions},
                "status": {"storedVersions": stored},
            })
        };
        let settled = self::stored(&definition(&["v2"], &["v1", "v2"]));
        assert_eq!(settled, Ok(None));
        let found = |stored, served| self::stored(&definition(stored, served)).unwrap().unwrap();
        let several = found(&["v1", "v2"], &["v1", "v2"]);
        assert_eq!(several.storage, "v2");
        let unserved = found(&["v1"], &["v2"]);
        assert_eq!(
            (unserved.stored, unserved.served),
            (vec!["v1".to_owned()], vec!["v2".to_owned()])
        );
    }

    #[test]
    fn definitions_that_cannot_be_read_are_reported() {
        let complete = json!({
            "metadata": {"name": "widgets.example.com"},
            "spec": {"versions": [{"name": "v1", "served": true, "storage": true}]},
            "status": {"storedVersions": ["v1"]},
        });
        assert_eq!(stored(&complete), Ok(None));
        for (pointer, value, why) in [
            ("/spec/versions", json!([{"name": "v1"}]), "spec.versions: "),
            ("/spec/versions", json!(null), "spec.versions: "),
            (
                "/spec/versions/0/storage",
                json!(false),
                "spec.versions has no",
            ),
            (
                "/status/storedVersions",
                json!(null),
                "status.storedVersions: ",
            ),
            (
                "/status/storedVersions",
                json!([1]),
                "status.storedVersions: ",
            ),
            (
                "/status/storedVersions",
                json!([]),
                "status.storedVersions is empty",
            ),
        ] {
            let mut definition = complete.clone();
            *definition.pointer_mut(pointer).unwrap() = value;
            let found = stored(&definition).unwrap_err();
            let expected = format!("widgets.example.com: {why}");
            assert!(found.starts_with(&expected), "{found}");
        }
    }

    #[test]
    fn migrations_that_succeeded_are_left_out() {
        let object = |conditions: Value| {
            json!({
                "metadata": {"name": "m"},
                "spec": {"resource": {"group": "apps", "resource": "deployments"}},
                "status": {"conditions": conditions},
            })
        };
        let state = |kind: &str| {
            let found = self::migration(&object(json!([{"type": kind, "status": "True"}])));
            found.map(|it| it.failed)
        };
        assert_eq!(state("Succeeded"), None);
        assert_eq!(state("Failed"), Some(true));
        assert_eq!(state("Running"), Some(false));
    }
}
