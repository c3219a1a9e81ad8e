//! Authorization: request attributes, and kube-apiserver's message if they are not allowed.

pub mod roles;

use std::fmt;

use skewbridge_k8s_api::identity::User;
use skewbridge_k8s_api::request_info::{Kind, RequestInfo};
use skewbridge_k8s_api::status::Status;

use crate::status::{GroupResource, forbidden, quoted};

/// The attributes of a request that authorization depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attributes<'a> {
    /// A resource request.
    Resource {
        /// `get`, `list`, ...
        verb: &'a str,
        /// Empty for the core group.
        group: &'a str,
        /// In the plural.
        resource: &'a str,
        /// Empty for the object itself.
        subresource: &'a str,
        /// Empty for cluster-scoped resources, or for all namespaces.
        namespace: &'a str,
        /// Empty for a collection.
        name: &'a str,
    },
    /// A non-resource request.
    Path {
        /// The method in lower case.
        verb: &'a str,
        /// `/metrics`
        path: &'a str,
    },
}

/// The read-only user of the playground, in one namespace.
pub const VISITOR: &str = "visitor";
/// The namespace that the visitor can read.
pub const VISITORS_NAMESPACE: &str = "default";

const DISCOVERY: [&str; 11] = [
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/healthz",
    "/livez",
    "/openapi",
    "/openapi/*",
    "/readyz",
    "/version",
    "/version/",
];
const MASTERS: &str = "system:masters";
const PUBLIC: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

/// Whether a user may do everything, whatever roles there are in the store ([`roles`]).
pub fn is_master(user: &User) -> bool {
    user.groups.iter().any(|group| group == MASTERS)
}

impl Attributes<'_> {
    /// 403 for a user without permission.
    pub fn refused(self, user: &User) -> Status {
        let attributes = self;
        let why = format!("User {} cannot {attributes}", quoted(&user.name));
        // Escaped for browsers.
        let why = why
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        match attributes {
            Attributes::Resource {
                group,
                resource,
                name,
                ..
            } => forbidden(&GroupResource::new(group, resource), name, why),
            Attributes::Path { .. } => forbidden(&GroupResource::default(), "", why),
        }
    }
}

impl<'a> Attributes<'a> {
    /// The attributes of a request.
    pub fn of(request: &'a RequestInfo<'_>) -> Self {
        let verb = request.verb.as_str();
        match request.kind {
            Kind::Resource => Self::Resource {
                verb,
                group: request.group,
                resource: request.resource,
                subresource: request.subresource,
                namespace: request.namespace,
                name: &request.name,
            },
            Kind::NonResource => Self::Path {
                verb,
                path: request.path,
            },
        }
    }

    fn namespace(self) -> &'a str {
        match self {
            Self::Resource { namespace, .. } => namespace,
            Self::Path { .. } => "",
        }
    }
}

impl fmt::Display for Attributes<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Path { verb, path } => write!(out, "{verb} path {}", quoted(path)),
            Self::Resource {
                verb,
                group,
                resource,
                subresource,
                namespace,
                ..
            } => {
                let what = match subresource {
                    "" => resource.to_owned(),
                    subresource => format!("{resource}/{subresource}"),
                };
                let (what, group) = (quoted(&what), quoted(group));
                write!(out, "{verb} resource {what} in API group {group} ")?;
                match namespace {
                    "" => out.write_str("at the cluster scope"),
                    namespace => write!(out, "in the namespace {}", quoted(namespace)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use skewbridge_k8s_api::request_info::DecodedPath;

    use super::*;
    use crate::store::Store;
    use crate::test_fixtures::now;

    fn user(name: &str, groups: &[&str]) -> User {
        User {
            name: name.to_owned(),
            groups: groups.iter().map(|it| (*it).to_owned()).collect(),
            ..User::default()
        }
    }

    /// With the roles and bindings that every playground begins with.
    fn store() -> Store {
        let mut store = Store::default();
        now(|context| roles::create_initial(&mut store, context)).unwrap();
        store
    }

    fn authorize_request(user: &User, method: &Method, path: &str) -> Result<(), String> {
        let path = DecodedPath::new(path).unwrap();
        let request = RequestInfo::parse(method, &path, None);
        let attributes = Attributes::of(&request);
        if is_master(user) || roles::allows(&store(), user, attributes) {
            return Ok(());
        }
        let status = attributes.refused(user);
        assert_eq!((status.code, status.reason), (403, "Forbidden"));
        Err(status.message)
    }

    #[test]
    fn users_have_the_expected_permissions() {
        let admin = user("admin", &["system:masters", "system:authenticated"]);
        let visitor = user(VISITOR, &["system:authenticated"]);
        let anonymous = user("system:anonymous", &["system:unauthenticated"]);
        let (get, post, delete) = (Method::GET, Method::POST, Method::DELETE);
        let rows = [
            (
                &delete,
                "/api/v1/namespaces/default/pods/web",
                [true, false, false],
            ),
            (
                &get,
                "/api/v1/namespaces/default/pods/web",
                [true, true, false],
            ),
            (&get, "/api/v1/namespaces/default/pods", [true, true, false]),
            (
                &get,
                "/api/v1/namespaces/default/pods/web/log",
                [true, true, false],
            ),
            (
                &get,
                "/api/v1/namespaces/default/pods/web/exec",
                [true, false, false],
            ),
            (
                &get,
                "/api/v1/namespaces/default/secrets",
                [true, false, false],
            ),
            (
                &get,
                "/api/v1/namespaces/kube-system/pods",
                [true, false, false],
            ),
            (&get, "/api/v1/pods", [true, false, false]),
            (
                &get,
                "/apis/apps/v1/namespaces/default/deployments",
                [true, true, false],
            ),
            (&get, "/apis", [true, true, false]),
            (&get, "/apis/apps/v1", [true, true, false]),
            (&get, "/version", [true, true, true]),
            (&get, "/metrics", [true, false, false]),
            (
                &post,
                "/apis/authentication.k8s.io/v1/selfsubjectreviews",
                [true, true, false],
            ),
        ];
        for (method, path, expected) in rows {
            let may = [&admin, &visitor, &anonymous]
                .map(|user| authorize_request(user, method, path).is_ok());
            assert_eq!(may, expected, "{method} {path}");
        }
    }

    #[test]
    fn refusals_have_kube_apiservers_message() {
        let visitor = user(VISITOR, &["system:authenticated"]);
        let odd = user("<a>", &[]);
        let (get, delete) = (Method::GET, Method::DELETE);
        let rows = [
            (
                &visitor,
                &get,
                "/api/v1/namespaces/kube-system/pods",
                "pods is forbidden: User \"visitor\" cannot list resource \"pods\" in API group \
                 \"\" in the namespace \"kube-system\"",
            ),
            (
                &visitor,
                &delete,
                "/apis/apps/v1/namespaces/default/deployments/web",
                "deployments.apps \"web\" is forbidden: User \"visitor\" cannot delete resource \
                 \"deployments\" in API group \"apps\" in the namespace \"default\"",
            ),
            (
                &visitor,
                &get,
                "/api/v1/nodes/n1/status",
                "nodes \"n1\" is forbidden: User \"visitor\" cannot get resource \"nodes/status\" \
                 in API group \"\" at the cluster scope",
            ),
            (
                &odd,
                &get,
                "/metrics",
                "forbidden: User \"&lt;a&gt;\" cannot get path \"/metrics\"",
            ),
        ];
        for (user, method, path, expected) in rows {
            assert_eq!(
                authorize_request(user, method, path),
                Err(expected.to_owned())
            );
        }
    }
}
