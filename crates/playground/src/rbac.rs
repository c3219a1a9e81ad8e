//! Who may do what: rules, to whom they are given, and kube-apiserver's words for
//! those who have none.

pub mod stored;

use std::fmt;

use skewbridge_k8s_api::identity::User;
use skewbridge_k8s_api::request_info::{Kind, RequestInfo};
use skewbridge_k8s_api::status::Status;

use crate::status::{GroupResource, forbidden, quoted};

/// What somebody may do. `*` stands for all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// `get`, `list`, ...
    pub verbs: Vec<&'static str>,
    /// Empty for the core group.
    pub groups: Vec<&'static str>,
    /// `pods`, `pods/log`, `*/scale`
    pub resources: Vec<&'static str>,
    /// `/healthz`, `/api/*`
    pub paths: Vec<&'static str>,
}

/// Rules, and who has them where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Who has them.
    pub subject: Subject,
    /// Where they are good.
    pub place: Place,
    /// What may be done.
    pub rules: Vec<Rule>,
}

/// Who is given rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A user of this name.
    User(String),
    /// All users of this group.
    Group(String),
}

/// Where rules are good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In all namespaces, and outside of them.
    Cluster,
    /// In this one.
    Namespace(String),
}

/// What is asked for, as far as rights go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed<'a> {
    /// Something of the API.
    Resource {
        /// `get`, `list`, ...
        verb: &'a str,
        /// Empty for the core group.
        group: &'a str,
        /// In the plural.
        resource: &'a str,
        /// Empty for the object itself.
        subresource: &'a str,
        /// Empty for what is in none, or in all.
        namespace: &'a str,
        /// Empty for all.
        name: &'a str,
    },
    /// Something else.
    Path {
        /// The method in lower case.
        verb: &'a str,
        /// `/metrics`
        path: &'a str,
    },
}

/// Says who may do what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Authorizer {
    grants: Vec<Grant>,
}

/// The user of the playground who may only look, and only here.
pub const VISITOR: &str = "visitor";
/// Where the visitor may look.
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
const PUBLIC: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

impl Authorizer {
    /// With these grants and no others.
    pub fn new(grants: Vec<Grant>) -> Self {
        Self { grants }
    }

    /// Only `system:masters`, who may do all whatever roles there are: what a server has
    /// beside the objects of its store ([`stored`]).
    pub fn masters() -> Self {
        Self::new(vec![Grant {
            subject: Subject::Group("system:masters".to_owned()),
            place: Place::Cluster,
            rules: vec![Rule {
                verbs: vec!["*"],
                groups: vec!["*"],
                resources: vec!["*"],
                paths: vec!["*"],
            }],
        }])
    }

    /// The playground's: `system:masters` may do all, the visitor look at a
    /// namespace, everybody with a name read discovery and ask about themselves.
    pub fn playground() -> Self {
        let group = |name: &str| Subject::Group(name.to_owned());
        let everything = Rule {
            verbs: vec!["*"],
            groups: vec!["*"],
            resources: vec!["*"],
            paths: vec!["*"],
        };
        let read = |paths: &[&'static str]| Rule {
            verbs: vec!["get"],
            paths: paths.to_vec(),
            ..Rule::default()
        };
        let about_oneself = |group, resources: &[&'static str]| Rule {
            verbs: vec!["create"],
            groups: vec![group],
            resources: resources.to_vec(),
            ..Rule::default()
        };
        let look = |group, resources: &[&'static str]| Rule {
            verbs: vec!["get", "list", "watch"],
            groups: vec![group],
            resources: resources.to_vec(),
            ..Rule::default()
        };
        let visit = [
            look(
                "",
                &[
                    "configmaps",
                    "events",
                    "pods",
                    "pods/log",
                    "pods/status",
                    "services",
                ],
            ),
            look(
                "apps",
                &["deployments", "replicasets", "statefulsets", "daemonsets"],
            ),
        ];
        let reviews = [
            about_oneself(
                "authorization.k8s.io",
                &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
            ),
            about_oneself("authentication.k8s.io", &["selfsubjectreviews"]),
            read(&DISCOVERY),
        ];
        let grant = |subject, place, rules| Grant {
            subject,
            place,
            rules,
        };
        Self::new(vec![
            grant(group("system:masters"), Place::Cluster, vec![everything]),
            grant(
                group("system:authenticated"),
                Place::Cluster,
                reviews.to_vec(),
            ),
            grant(
                group("system:unauthenticated"),
                Place::Cluster,
                vec![read(&PUBLIC)],
            ),
            grant(
                Subject::User(VISITOR.to_owned()),
                Place::Namespace(VISITORS_NAMESPACE.to_owned()),
                visit.to_vec(),
            ),
        ])
    }

    /// Whether somebody may do something.
    pub fn allows(&self, user: &User, deed: Deed<'_>) -> bool {
        self.rules(user, deed.namespace())
            .any(|rule| rule.allows(deed))
    }

    /// What somebody may do in a namespace, or outside of them (an empty one).
    pub fn rules<'a>(
        &'a self,
        user: &'a User,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Rule> {
        let grants = self.grants.iter().filter(move |grant| {
            let is_meant = match &grant.subject {
                Subject::User(name) => user.name == *name,
                Subject::Group(name) => user.groups.contains(name),
            };
            let is_there = match &grant.place {
                Place::Cluster => true,
                Place::Namespace(name) => !namespace.is_empty() && name == namespace,
            };
            is_meant && is_there
        });
        grants.flat_map(|grant| &grant.rules)
    }

    /// 403 for those who may not, in kube-apiserver's words.
    pub fn authorize(&self, user: &User, deed: Deed<'_>) -> Result<(), Status> {
        if self.allows(user, deed) {
            return Ok(());
        }
        Err(deed.refused(user))
    }
}

impl Deed<'_> {
    /// 403 for somebody who may not do it.
    pub fn refused(self, user: &User) -> Status {
        let deed = self;
        let why = format!("User {} cannot {deed}", quoted(&user.name));
        // It could be shown by a browser.
        let why = why
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        match deed {
            Deed::Resource {
                group,
                resource,
                name,
                ..
            } => forbidden(&GroupResource::new(group, resource), name, why),
            Deed::Path { .. } => forbidden(&GroupResource::default(), "", why),
        }
    }
}

impl<'a> Deed<'a> {
    /// What a request asks for.
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

impl fmt::Display for Deed<'_> {
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

impl Rule {
    fn allows(&self, deed: Deed<'_>) -> bool {
        let has = |list: &[&str], word: &str| list.iter().any(|it| *it == "*" || *it == word);
        match deed {
            Deed::Path { verb, path } => {
                let matches = |pattern: &&str| match pattern.strip_suffix('*') {
                    Some(prefix) => path.starts_with(prefix),
                    None => path == *pattern,
                };
                has(&self.verbs, verb) && self.paths.iter().any(matches)
            }
            Deed::Resource {
                verb,
                group,
                resource,
                subresource,
                ..
            } => {
                let matches = |pattern: &&str| match (pattern.split_once('/'), subresource) {
                    (None, "") => *pattern == "*" || *pattern == resource,
                    (None, _) => *pattern == "*",
                    (Some(_), "") => false,
                    (Some((of, pattern)), subresource) => {
                        (of == "*" || of == resource) && pattern == subresource
                    }
                };
                has(&self.verbs, verb)
                    && has(&self.groups, group)
                    && self.resources.iter().any(matches)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use skewbridge_k8s_api::request_info::DecodedPath;

    use super::*;

    fn user(name: &str, groups: &[&str]) -> User {
        User {
            name: name.to_owned(),
            groups: groups.iter().map(|it| (*it).to_owned()).collect(),
            ..User::default()
        }
    }

    fn asks(user: &User, method: &Method, path: &str) -> Result<(), String> {
        let path = DecodedPath::new(path).unwrap();
        let request = RequestInfo::parse(method, &path, None);
        let answer = Authorizer::playground().authorize(user, Deed::of(&request));
        answer.map_err(|status| {
            assert_eq!((status.code, status.reason), (403, "Forbidden"));
            status.message
        })
    }

    #[test]
    fn who_may_do_what() {
        let admin = user("admin", &["system:masters", "system:authenticated"]);
        let visitor = user(VISITOR, &["system:authenticated"]);
        let nobody = user("system:anonymous", &["system:unauthenticated"]);
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
            let may = [&admin, &visitor, &nobody].map(|user| asks(user, method, path).is_ok());
            assert_eq!(may, expected, "{method} {path}");
        }
    }

    #[test]
    fn those_who_may_not_are_told_in_kube_apiservers_words() {
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
            assert_eq!(asks(user, method, path), Err(expected.to_owned()));
        }
    }

    #[test]
    fn subresources_are_given_by_themselves() {
        let rule = Rule {
            verbs: vec!["get"],
            groups: vec![""],
            resources: vec!["*/scale", "pods"],
            paths: Vec::new(),
        };
        let may = |resource: &'static str, subresource: &'static str| {
            rule.allows(Deed::Resource {
                verb: "get",
                group: "",
                resource,
                subresource,
                namespace: "",
                name: "",
            })
        };
        assert!(may("pods", "") && may("x", "scale") && !may("x", "") && !may("pods", "log"));
    }
}
