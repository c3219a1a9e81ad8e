//! Authorization by roles and bindings in the store (`rbac.authorization.k8s.io`).

use serde_json::{Value, json};
use skewbridge_k8s_api::identity::User;
use skewbridge_k8s_api::status::Status;

use super::Attributes;
use crate::object::{Object, texts};
use crate::resource_strategy::{Definition, Scope, StatusPart};
use crate::status::GroupResource;
use crate::store::{DryRun, Store, WriteContext};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Whether a binding grants a user a role that allows a request.
pub fn allows(store: &Store, user: &User, attributes: Attributes<'_>) -> bool {
    rules(store, user, attributes.namespace())
        .iter()
        .any(|rule| rule_allows(rule, attributes))
}

/// All rules of a user in a namespace, or for cluster-scoped resources (empty).
pub fn rules(store: &Store, user: &User, namespace: &str) -> Vec<Value> {
    let mut rules = Vec::new();
    for (key, binding) in store.all() {
        if key.resource.group != GROUP {
            continue;
        }
        let is_here = match key.resource.resource.as_str() {
            "clusterrolebindings" => true,
            "rolebindings" => !namespace.is_empty() && key.namespace == namespace,
            _ => false,
        };
        if is_here && is_bound(binding, &key.namespace, user) {
            rules.extend(role_rules(store, binding, &key.namespace));
        }
    }
    rules
}

fn is_bound(binding: &Object, namespace: &str, user: &User) -> bool {
    let subjects = binding.at(&["subjects"]).and_then(Value::as_array);
    subjects.into_iter().flatten().any(|subject| {
        let name = subject["name"].as_str().unwrap_or_default();
        match subject["kind"].as_str() {
            Some("User") => user.name == name,
            Some("Group") => user.groups.iter().any(|it| it == name),
            Some("ServiceAccount") => {
                let its = subject["namespace"].as_str().unwrap_or(namespace);
                user.name == format!("system:serviceaccount:{its}:{name}")
            }
            _ => false,
        }
    })
}

fn role_rules(store: &Store, binding: &Object, namespace: &str) -> Vec<Value> {
    let name = binding.text(&["roleRef", "name"]);
    let (resource, namespace) = match binding.text(&["roleRef", "kind"]) {
        "Role" => ("roles", namespace),
        "ClusterRole" => ("clusterroles", ""),
        _ => return Vec::new(),
    };
    let role = store.get(&definition(resource), namespace, name).ok();
    let rules = role.and_then(|role| role.at(&["rules"]).and_then(Value::as_array).cloned());
    rules.unwrap_or_default()
}

fn rule_allows(rule: &Value, attributes: Attributes<'_>) -> bool {
    let has = |field: &str, word: &str| {
        let list = texts(rule.get(field));
        list.iter().any(|it| *it == "*" || *it == word)
    };
    match attributes {
        Attributes::Path { verb, path } => {
            let patterns = texts(rule.get("nonResourceURLs"));
            has("verbs", verb)
                && patterns
                    .iter()
                    .any(|pattern| match pattern.strip_suffix('*') {
                        Some(prefix) => path.starts_with(prefix),
                        None => path == *pattern,
                    })
        }
        Attributes::Resource {
            verb,
            group,
            resource,
            subresource,
            name,
            ..
        } => {
            let whole = match subresource {
                "" => resource.to_owned(),
                subresource => format!("{resource}/{subresource}"),
            };
            let of_any = format!("*/{subresource}");
            let names = texts(rule.get("resourceNames"));
            let is_meant =
                has("resources", &whole) || (!subresource.is_empty() && has("resources", &of_any));
            has("verbs", verb)
                && has("apiGroups", group)
                && is_meant
                && (names.is_empty() || (!name.is_empty() && names.contains(&name)))
        }
    }
}

/// Creates the initial roles and bindings that are missing.
pub fn create_initial(store: &mut Store, context: &mut WriteContext<'_>) -> Result<(), Status> {
    let rights = |verbs: &[&str], groups: &[&str], resources: &[&str]| json!({"verbs": verbs, "apiGroups": groups, "resources": resources});
    let paths = |paths: &[&str]| json!({"verbs": ["get"], "nonResourceURLs": paths});
    let everything = [
        rights(&["*"], &["*"], &["*"]),
        json!({"verbs": ["*"], "nonResourceURLs": ["*"]}),
    ];
    let look = ["get", "list", "watch"];
    let write = ["create", "delete", "deletecollection", "patch", "update"];
    let core = [
        "configmaps",
        "endpoints",
        "events",
        "persistentvolumeclaims",
        "pods",
        "pods/log",
        "pods/status",
        "replicationcontrollers",
        "serviceaccounts",
        "services",
    ];
    let others = [
        "apps",
        "autoscaling",
        "batch",
        "networking.k8s.io",
        "policy",
    ];
    let view = [rights(&look, &[""], &core), rights(&look, &others, &["*"])];
    let mut edit = view.to_vec();
    edit.push(rights(&look, &[""], &["secrets"]));
    let streams = ["pods/attach", "pods/exec", "pods/portforward", "secrets"];
    edit.push(rights(&write, &[""], &[&core[..], &streams[..]].concat()));
    edit.push(rights(
        &["get"],
        &[""],
        &["pods/attach", "pods/exec", "pods/portforward"],
    ));
    edit.push(rights(&write, &others, &["*"]));
    let mut admin = edit.clone();
    let all_verbs = [&look[..], &write[..]].concat();
    admin.push(rights(&all_verbs, &[GROUP], &["roles", "rolebindings"]));
    let reviews = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"];
    let basic = [
        rights(&["create"], &["authorization.k8s.io"], &reviews),
        rights(
            &["create"],
            &["authentication.k8s.io"],
            &["selfsubjectreviews"],
        ),
    ];
    let discovery = [paths(&super::DISCOVERY)];
    let public = [paths(&super::PUBLIC)];
    let known = "system:authenticated";
    let rows: [(&str, &[Value], &[&str]); 7] = [
        ("cluster-admin", &everything, &["system:masters"]),
        ("admin", &admin, &[]),
        ("edit", &edit, &[]),
        ("view", &view, &[]),
        ("system:basic-user", &basic, &[known]),
        ("system:discovery", &discovery, &[known]),
        (
            "system:public-info-viewer",
            &public,
            &[known, "system:unauthenticated"],
        ),
    ];
    for (name, rules, groups) in rows {
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
            "rules": rules,
        });
        create(store, "clusterroles", "", role, context)?;
        if !groups.is_empty() {
            let subjects: Vec<_> = groups.iter().map(|name| subject("Group", name)).collect();
            let binding = binding("ClusterRoleBinding", name, name, &subjects);
            create(store, "clusterrolebindings", "", binding, context)?;
        }
    }
    let visitors = binding(
        "RoleBinding",
        "visitors",
        "view",
        &[subject("User", super::VISITOR)],
    );
    create(
        store,
        "rolebindings",
        super::VISITORS_NAMESPACE,
        visitors,
        context,
    )
}

fn subject(kind: &str, name: &str) -> Value {
    json!({"apiGroup": GROUP, "kind": kind, "name": name})
}

fn binding(kind: &str, name: &str, role: &str, subjects: &[Value]) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
        "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": subjects,
    })
}

fn create(
    store: &mut Store,
    resource: &str,
    namespace: &str,
    object: Value,
    context: &mut WriteContext<'_>,
) -> Result<(), Status> {
    let object = Object::new(object)?;
    let definition = definition(resource);
    if store.get(&definition, namespace, object.name()).is_ok() {
        return Ok(());
    }
    debug_assert_eq!(context.dry_run, DryRun::Off);
    store
        .create(&definition, namespace, object, context)
        .map(drop)
}

fn definition(resource: &str) -> Definition {
    let (kind, scope) = match resource {
        "roles" => ("Role", Scope::Namespaced),
        "rolebindings" => ("RoleBinding", Scope::Namespaced),
        "clusterroles" => ("ClusterRole", Scope::Cluster),
        _ => ("ClusterRoleBinding", Scope::Cluster),
    };
    Definition {
        resource: GroupResource::new(GROUP, resource),
        kind: kind.to_owned(),
        scope,
        status: StatusPart::Together,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;

    fn store() -> Store {
        let mut store = Store::default();
        let mut context = WriteContext {
            now: Time::from_unix(0),
            entropy: &mut || 7,
            dry_run: DryRun::Off,
        };
        create_initial(&mut store, &mut context).unwrap();
        // A second call changes nothing.
        let version = store.version();
        create_initial(&mut store, &mut context).unwrap();
        assert_eq!(store.version(), version);
        let role = json!({"metadata": {"name": "one"}, "rules": [
            {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"],
             "resourceNames": ["mine"]},
        ]});
        create(&mut store, "roles", "shop", role, &mut context).unwrap();
        let bound = json!({
            "metadata": {"name": "one"},
            "roleRef": {"kind": "Role", "name": "one"},
            "subjects": [{"kind": "ServiceAccount", "name": "web"}],
        });
        create(&mut store, "rolebindings", "shop", bound, &mut context).unwrap();
        store
    }

    fn user(name: &str, groups: &[&str]) -> User {
        User {
            name: name.to_owned(),
            groups: groups.iter().map(|it| (*it).to_owned()).collect(),
            ..User::default()
        }
    }

    #[test]
    fn subresources_need_their_own_rule() {
        let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["*/scale", "pods"]});
        let may = |resource: &'static str, subresource: &'static str| {
            let attributes = Attributes::Resource {
                verb: "get",
                group: "",
                resource,
                subresource,
                namespace: "",
                name: "",
            };
            rule_allows(&rule, attributes)
        };
        assert!(may("pods", "") && may("x", "scale") && !may("x", "") && !may("pods", "log"));
    }

    #[test]
    fn bindings_grant_the_rules_of_roles() {
        let store = store();
        let attributes = |verb, resource, subresource, namespace, name| Attributes::Resource {
            verb,
            group: "",
            resource,
            subresource,
            namespace,
            name,
        };
        let admin = user("a", &["system:masters"]);
        let visitor = user(super::super::VISITOR, &["system:authenticated"]);
        let web = user("system:serviceaccount:shop:web", &[]);
        let rows = [
            (&admin, attributes("delete", "nodes", "", "", "n"), true),
            (
                &visitor,
                attributes("get", "pods", "log", "default", "p"),
                true,
            ),
            (
                &visitor,
                attributes("get", "pods", "exec", "default", "p"),
                false,
            ),
            (
                &visitor,
                attributes("get", "secrets", "", "default", "s"),
                false,
            ),
            (&visitor, attributes("list", "pods", "", "shop", ""), false),
            (&visitor, attributes("list", "pods", "", "", ""), false),
            (&web, attributes("get", "secrets", "", "shop", "mine"), true),
            (
                &web,
                attributes("get", "secrets", "", "shop", "other"),
                false,
            ),
            (
                &web,
                attributes("get", "secrets", "", "default", "mine"),
                false,
            ),
        ];
        for (user, attributes, expected) in rows {
            assert_eq!(
                allows(&store, user, attributes),
                expected,
                "{} {attributes}",
                user.name
            );
        }
        let path = |path| Attributes::Path { verb: "get", path };
        let anonymous = user("system:anonymous", &["system:unauthenticated"]);
        assert!(allows(&store, &anonymous, path("/version")));
        assert!(!allows(&store, &anonymous, path("/apis/apps")));
        assert!(allows(&store, &visitor, path("/apis/apps")));
        assert_eq!(rules(&store, &web, "shop").len(), 1);
    }
}
