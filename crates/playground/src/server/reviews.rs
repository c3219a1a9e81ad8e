//! Questions that are asked by creating an object: may I, what may I, who am I, whose
//! token is this.

use http::StatusCode;
use serde_json::{Value, json};
use skewbridge_k8s_api::identity::User;
use skewbridge_k8s_api::status::Status;

use super::answers::{self, Reply};
use super::ask::{Ask, Subject};
use crate::object::texts;
use crate::rbac::{Deed, Rule, stored};

/// Whether a resource is such a question.
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

/// Answers one.
pub(super) fn create(ask: &Ask<'_>, subject: &Subject<'_>) -> Result<Reply, Status> {
    let mut review = ask.object(subject)?.object.into_value();
    let spec = review["spec"].clone();
    let status = match subject.served.resource.resource.as_str() {
        "selfsubjectaccessreviews" => access(ask, ask.user, &spec),
        "subjectaccessreviews" | "localsubjectaccessreviews" => access(ask, &user_of(&spec), &spec),
        "selfsubjectrulesreviews" => rules(ask, &spec)?,
        "selfsubjectreviews" => json!({"userInfo": user_info(ask.user)}),
        "tokenreviews" => token(ask, &spec),
        _ => return Err(crate::status::method_not_allowed()),
    };
    review["status"] = status;
    Ok(answers::json(StatusCode::CREATED, &review))
}

fn access(ask: &Ask<'_>, user: &User, spec: &Value) -> Value {
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
        ask.server.allows(
            user,
            Deed::Resource {
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
        let deed = Deed::Path {
            verb: &verb,
            path: &path,
        };
        ask.server.allows(user, deed)
    };
    let mut status = json!({"allowed": allowed});
    if allowed && user.groups.iter().any(|it| it == "system:masters") {
        status["reason"] = "RBAC: allowed by ClusterRoleBinding \"cluster-admin\" of ClusterRole \
                            \"cluster-admin\" to Group \"system:masters\""
            .into();
    }
    status
}

fn rules(ask: &Ask<'_>, spec: &Value) -> Result<Value, Status> {
    let namespace = spec["namespace"].as_str().unwrap_or_default();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let of_paths = |rule: &Rule| json!({"verbs": rule.verbs, "nonResourceURLs": rule.paths});
    let of_resources = |rule: &Rule| json!({"verbs": rule.verbs, "apiGroups": rule.groups, "resources": rule.resources});
    let mut resources = Vec::new();
    let mut paths = Vec::new();
    for rule in ask.server.authorizer.rules(ask.user, namespace) {
        if !rule.resources.is_empty() {
            resources.push(of_resources(rule));
        }
        if !rule.paths.is_empty() {
            paths.push(of_paths(rule));
        }
    }
    let stored = &ask.server.store;
    for rule in stored.read(|store| stored::rules(store, ask.user, namespace)) {
        if rule["resources"].is_array() {
            resources.push(rule);
        } else {
            paths.push(rule);
        }
    }
    Ok(json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false}))
}

fn token(ask: &Ask<'_>, spec: &Value) -> Value {
    let token = spec["token"].as_str().unwrap_or_default();
    match ask.server.authenticator.of_token(token) {
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
