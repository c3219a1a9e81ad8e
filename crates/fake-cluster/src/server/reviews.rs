//! Reviews, which are answered when they are created: access, rules, the own user, tokens.

use http::StatusCode;
use serde_json::{Value, json};
use skewbridge_k8s_api::identity::User;
use skewbridge_k8s_api::status::Status;

use super::api_request::{ApiRequest, ApiTarget};
use super::responses::{self, ApiResponse};
use crate::object::texts;
use crate::rbac::{Attributes, is_master, roles};

/// Whether a resource is a review.
pub(super) fn is_review(group: &str, resource: &str) -> bool {
    matches!(
        (group, resource),
        ("authorization.k8s.io", _)
            | (
                "authentication.k8s.io",
                "tokenreviews" | "selfsubjectreviews"
            )
    )
}

/// Answers a review.
pub(super) fn create(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
) -> Result<ApiResponse, Status> {
    let mut review = request.object(target)?.object.into_value();
    let spec = review["spec"].clone();
    let status = match target.served.resource.resource.as_str() {
        "selfsubjectaccessreviews" => access(request, request.user, &spec),
        "subjectaccessreviews" | "localsubjectaccessreviews" => {
            access(request, &user_of(&spec), &spec)
        }
        "selfsubjectrulesreviews" => rules(request, &spec)?,
        "selfsubjectreviews" => json!({"userInfo": user_info(request.user)}),
        "tokenreviews" => token(request, &spec),
        _ => return Err(crate::status::method_not_allowed()),
    };
    review["status"] = status;
    Ok(responses::json(StatusCode::CREATED, &review))
}

fn access(request: &ApiRequest<'_>, user: &User, spec: &Value) -> Value {
    let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
    let about = &spec["resourceAttributes"];
    let allowed = if about.is_object() {
        let fields = [
            "verb",
            "group",
            "resource",
            "subresource",
            "namespace",
            "name",
        ];
        let [verb, group, resource, subresource, namespace, name] =
            fields.map(|field| text(&about[field]));
        request.server.allows(
            user,
            Attributes::Resource {
                verb: &verb,
                group: &group,
                resource: &resource,
                subresource: &subresource,
                namespace: &namespace,
                name: &name,
            },
        )
    } else {
        let about = &spec["nonResourceAttributes"];
        let (verb, path) = (text(&about["verb"]), text(&about["path"]));
        let attributes = Attributes::Path {
            verb: &verb,
            path: &path,
        };
        request.server.allows(user, attributes)
    };
    let mut status = json!({"allowed": allowed});
    if allowed && is_master(user) {
        status["reason"] = "RBAC: allowed by ClusterRoleBinding \"cluster-admin\" of ClusterRole \
                            \"cluster-admin\" to Group \"system:masters\""
            .into();
    }
    status
}

fn rules(request: &ApiRequest<'_>, spec: &Value) -> Result<Value, Status> {
    let namespace = spec["namespace"].as_str().unwrap_or_default();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let mut resources = Vec::new();
    let mut paths = Vec::new();
    if is_master(request.user) {
        resources.push(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        paths.push(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
    }
    let stored = &request.server.store;
    for rule in stored.read(|store| roles::rules(store, request.user, namespace)) {
        if rule["resources"].is_array() {
            resources.push(rule);
        } else {
            paths.push(rule);
        }
    }
    Ok(json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false}))
}

fn token(request: &ApiRequest<'_>, spec: &Value) -> Value {
    let token = spec["token"].as_str().unwrap_or_default();
    match request.server.authenticator.of_token(token) {
        Some(user) => json!({"authenticated": true, "user": user_info(&user)}),
        None => json!({
            "user": {},
            "error": "[invalid bearer token]",
        }),
    }
}

fn user_of(spec: &Value) -> User {
    let list = |name: &str| texts(spec.get(name)).into_iter().map(str::to_owned);
    User {
        name: spec["user"].as_str().unwrap_or_default().to_owned(),
        uid: spec["uid"].as_str().unwrap_or_default().to_owned(),
        groups: list("groups").chain(list("group")).collect(),
        extra: std::collections::BTreeMap::new(),
    }
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.as_str().into();
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}
