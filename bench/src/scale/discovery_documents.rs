//! Discovery documents of servers that do not exist.

use serde_json::{Value, json};

/// Resources of a group, about as many as the CRDs of a project have.
pub(super) const RESOURCES_PER_GROUP: u32 = 10;

/// The group that only one of the peers serves.
pub(super) fn own_group(peer: u32) -> String {
    format!("peer-{peer}.scale.bench")
}

/// `/api`: what bridges and benchmarks request.
pub(super) fn core() -> Value {
    let version = json!({"version": "v1", "freshness": "Current", "resources": [
        resource("configmaps", &[]), resource("namespaces", &[]), resource("pods", &["exec"])]});
    list(&[json!({"metadata": {"name": ""}, "versions": [version]})])
}

/// `/apis` with this many resources, some groups with names of their own, and the versions that
/// each group has.
pub(super) fn groups(resources: u32, own: Option<&str>, versions: &[&str]) -> Value {
    let count = resources.div_ceil(RESOURCES_PER_GROUP);
    let mut groups: Vec<Value> = (0..count)
        .map(|number| {
            let first = number * RESOURCES_PER_GROUP;
            let end = resources.min(first + RESOURCES_PER_GROUP);
            let names: Vec<_> = (first..end).map(|it| format!("resource-{it}")).collect();
            group(&format!("group-{number}.scale.bench"), versions, &names)
        })
        .collect();
    groups.push(group(
        "coordination.k8s.io",
        &["v1"],
        &["leases".to_owned()],
    ));
    groups.extend(own.map(|name| group(name, &["v1"], &["things".to_owned()])));
    list(&groups)
}

fn group(name: &str, versions: &[&str], resources: &[String]) -> Value {
    let versions: Vec<_> = (versions.iter())
        .map(|version| {
            let resources: Vec<_> = resources.iter().map(|name| resource(name, &[])).collect();
            json!({"version": version, "freshness": "Current", "resources": resources})
        })
        .collect();
    json!({"metadata": {"name": name}, "versions": versions})
}

fn resource(name: &str, subresources: &[&str]) -> Value {
    let verbs = [
        "create", "delete", "get", "list", "patch", "update", "watch",
    ];
    let kind = json!({"group": "", "version": "", "kind": format!("Kind-{name}")});
    let subresources: Vec<_> = (subresources.iter())
        .map(|name| json!({"subresource": name, "verbs": ["create", "get"], "responseKind": kind}))
        .collect();
    json!({"resource": name, "scope": "Namespaced", "singularResource": name, "verbs": verbs,
        "responseKind": kind, "subresources": subresources})
}

fn list(items: &[Value]) -> Value {
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {}, "items": items})
}

#[cfg(test)]
mod tests {
    use skewbridge_discovery::Document;

    use super::*;

    #[test]
    fn documents_have_the_requested_number_of_resources() {
        for count in [1, 10, 95, 5_000] {
            let own = own_group(7);
            let text = groups(count, Some(&own), &["v1"]).to_string();
            let document = Document::parse(text.as_bytes()).unwrap();
            let resources: usize = document.versions().map(|(_, it)| it.resources.len()).sum();
            // With Leases, and the group of the peer.
            assert_eq!(resources, count as usize + 2);
            assert!(document.version(&own, "v1").is_some());
        }
        let core = Document::parse(core().to_string().as_bytes()).unwrap();
        assert!(core.version("", "v1").is_some());
    }
}
