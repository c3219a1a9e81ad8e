//! Whether the user of the bridge has the permissions that a configuration needs.

use serde::Deserialize;
use serde_json::{Value, json};
use skewbridge_gateway::config::{Config, UpstreamServer};
use skewbridge_gateway::peer_config::disabled_by_flags;

use super::upstream_request::{own_user, send_as};
use crate::check::finding::{Finding, Remedy, Section};
use crate::check::{http, parallel};
use crate::manifest;

const SECTION: Section = Section::Upstream;

/// A permission that the bridge's user needs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RequiredPermission {
    attributes: Value,
    /// For messages.
    text: String,
}

/// Sends a `SelfSubjectAccessReview` for each permission that this configuration needs.
pub(super) async fn check(config: &Config, server: &UpstreamServer, url: &str) -> Vec<Finding> {
    const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    if disabled_by_flags(config).is_some() {
        // Without peers the bridge only probes its server.
        return Vec::new();
    }
    let user = own_user(config);
    let name = format!("{} has its rights at {url}", user.name);
    let (balanced, follows) = (
        config.upstream.is_balanced(),
        config.upstream.endpoints.is_some(),
    );
    let is_used = |it: &RequiredPermission| {
        if it.text.contains("endpointslices") {
            config.peers.reads_endpoints() || follows
        } else {
            // A balancer has no identity Lease, and its peers are its values of --upstream.
            !balanced || !it.text.contains("leases")
        }
    };
    let needed = required_permissions(manifest::RBAC)
        .into_iter()
        .filter(is_used);
    let needed: Vec<_> = needed.collect();
    let probes = needed
        .iter()
        .map(|permission| -> parallel::Probe<'_, Result<bool, String>> {
            let review = json!({"apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview", "spec": permission.attributes});
            let request = http::post(REVIEWS, review.to_string());
            let user = &user;
            Box::pin(async move {
                let answer = send_as(config, server, user, request).await?;
                let review = answer.json(REVIEWS)?;
                Ok(review["status"]["allowed"].as_bool() == Some(true))
            })
        });
    let results = parallel::all(probes.collect()).await;
    let mut missing = Vec::new();
    for (permission, result) in needed.iter().zip(results) {
        match result {
            Err(why) => return vec![Finding::not_known(SECTION, name, why)],
            Ok(true) => {}
            Ok(false) => missing.push(permission.text.as_str()),
        }
    }
    if missing.is_empty() {
        return vec![Finding::ok(SECTION, name)];
    }
    let message = format!("it may not {}", missing.join(", "));
    vec![Finding::failure(SECTION, name, message, remedy(config))]
}

/// The permissions in a manifest of `Role` and `ClusterRole` objects.
fn required_permissions(manifest: &str) -> Vec<RequiredPermission> {
    #[derive(Deserialize)]
    struct Object {
        #[serde(default)]
        metadata: Metadata,
        #[serde(default)]
        rules: Vec<Rule>,
    }
    #[derive(Deserialize, Default)]
    struct Metadata {
        #[serde(default)]
        namespace: Option<String>,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Rule {
        api_groups: Vec<String>,
        resources: Vec<String>,
        resource_names: Vec<String>,
        #[serde(rename = "nonResourceURLs")]
        non_resource_urls: Vec<String>,
        verbs: Vec<String>,
    }
    let mut permissions = Vec::new();
    for document in manifest.split("\n---\n") {
        let Ok(Object { metadata, rules }) = serde_saphyr::from_str::<Object>(document) else {
            continue;
        };
        for rule in rules {
            for verb in &rule.verbs {
                for path in &rule.non_resource_urls {
                    permissions.push(RequiredPermission {
                        attributes: json!({"nonResourceAttributes": {"path": path, "verb": verb}}),
                        text: format!("{verb} {path}"),
                    });
                }
                for resource in &rule.resources {
                    let group = rule.api_groups.first().map_or("", String::as_str);
                    let mut attributes =
                        json!({"group": group, "resource": resource, "verb": verb});
                    if let Some(namespace) = &metadata.namespace {
                        attributes["namespace"] = json!(namespace);
                    }
                    if let Some(name) = rule.resource_names.first() {
                        attributes["name"] = json!(name);
                    }
                    let place = metadata.namespace.as_ref();
                    let place = place.map_or_else(String::new, |it| format!(" in {it}"));
                    let resource = match (resource.as_str(), group) {
                        ("*", group) => format!("all of {group}"),
                        (resource, _) => resource.to_owned(),
                    };
                    permissions.push(RequiredPermission {
                        attributes: json!({"resourceAttributes": attributes}),
                        text: format!("{verb} {resource}{place}"),
                    });
                }
            }
        }
    }
    permissions
}

/// What grants the permissions: the manifest, or `--bridge-user` if it is for another user.
pub(super) fn remedy(config: &Config) -> Remedy {
    let user = &config.upstream.bridge_user.name;
    if user == "skewbridge" {
        Remedy::command(
            "skewbridge manifest rbac | kubectl apply -f -",
            "apply the rights of the bridge's user",
        )
    } else {
        Remedy::flag(
            "--bridge-user",
            format!(
                "give {user} the rights that `skewbridge manifest rbac` prints, or set \
                 --bridge-user=skewbridge and apply them"
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_permissions_are_those_of_the_manifest() {
        let permissions = required_permissions(manifest::RBAC);
        let texts: Vec<_> = permissions.iter().map(|it| &*it.text).collect();
        for text in [
            "get /metrics",
            "watch apiservices",
            "list all of admissionregistration.k8s.io",
            "patch leases in kube-system",
            "get configmaps in kube-system",
            "watch endpointslices in default",
        ] {
            assert!(texts.contains(&text), "{text}: {texts:?}");
        }
        let lease = permissions
            .iter()
            .find(|it| it.text == "patch leases in kube-system");
        assert_eq!(
            lease.unwrap().attributes,
            json!({"resourceAttributes": {"group": "coordination.k8s.io", "resource": "leases",
                "verb": "patch", "namespace": "kube-system"}})
        );
        let map = permissions
            .iter()
            .find(|it| it.text == "get configmaps in kube-system");
        let name = &map.unwrap().attributes["resourceAttributes"]["name"];
        assert_eq!(name, "extension-apiserver-authentication");
    }
}
