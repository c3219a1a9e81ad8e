//! Admission policies in force, for the placement rule `admission`.
//!
//! A server that does not serve a kind of admission policy does not enforce its objects: a write
//! that such a server accepts is neither validated nor mutated by them.

mod policy_kinds;
mod policy_object;

use std::fmt;

use serde::{Deserialize, Serialize};
use skewbridge_k8s_api::request_info::{Kind, RequestInfo, Verb};
use skewbridge_peer_directory::ServedApis;

pub(crate) use self::policy_kinds::{PolicyVersion, is_policy_kind, newest_versions};
pub(crate) use self::policy_object::{PolicyObject, union};

/// The API group of admission policies.
pub const ADMISSION_GROUP: &str = "admissionregistration.k8s.io";

/// `--guard-admission`: whether writes only go to servers that enforce the policies in force.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AdmissionGuard {
    /// They may go to any server.
    Off,
    /// They only go to such servers.
    #[default]
    On,
}

/// The admission policies that exist and that not all servers enforce.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AdmissionPolicies {
    /// Kinds of policies that have objects.
    pub kinds: Vec<PolicyKind>,
}

/// A kind of policy that has objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyKind {
    /// The resource, such as `mutatingadmissionpolicies`.
    pub resource: String,
    /// The newest version in which any server serves it. A server that does not serve this version
    /// may not be able to read the objects.
    pub version: String,
    /// The number of objects; `None` if they cannot be read.
    pub objects: Option<usize>,
    /// What the objects match.
    pub matches: PolicyMatches,
}

/// The requests that the objects of one kind can match.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PolicyMatches {
    /// The objects are not known, or their fields are not.
    AnyWrite,
    /// One of these rules matches.
    Rules(Vec<MatchRule>),
}

/// A resource rule of a policy (`spec.matchConstraints.resourceRules`). `*` matches everything.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MatchRule {
    /// Such as `CREATE`.
    pub operations: Vec<String>,
    /// Such as `pods`, `pods/exec`, `pods/*`, `*` or `*/*`.
    pub resources: Vec<String>,
}

impl AdmissionPolicies {
    /// The kinds of policies that a request can match.
    pub fn matching(&self, request: &RequestInfo<'_>) -> impl Iterator<Item = &PolicyKind> {
        let is_exempt = self.kinds.is_empty() || !is_admitted(request);
        let kinds = if is_exempt { &[] } else { &*self.kinds };
        kinds.iter().filter(|kind| kind.matches.contain(request))
    }

    /// The same as text.
    pub fn describe_matching(&self, request: &RequestInfo<'_>) -> String {
        let kinds: Vec<_> = self.matching(request).map(ToString::to_string).collect();
        kinds.join(", ")
    }
}

/// The kind in error messages and reports: without the names of objects, because any client may read
/// an error message.
impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        match self.objects {
            Some(_) => Ok(()),
            None => f.write_str(" (which cannot be read, so they may match every write)"),
        }
    }
}

impl PolicyKind {
    /// Whether a server that serves these APIs enforces the objects of this kind.
    pub fn is_enforced_by(&self, served: &ServedApis) -> bool {
        let index = &served.index;
        index.serves_resource(ADMISSION_GROUP, &self.version, &self.resource)
    }
}

impl PolicyMatches {
    fn contain(&self, request: &RequestInfo<'_>) -> bool {
        match self {
            Self::AnyWrite => true,
            Self::Rules(rules) => rules.iter().any(|rule| rule.matches(request)),
        }
    }
}

impl MatchRule {
    /// Groups and versions do not count: by default a policy also matches the same resource in other
    /// groups and versions (`matchPolicy: Equivalent`).
    fn matches(&self, request: &RequestInfo<'_>) -> bool {
        let has_operation = self
            .operations
            .iter()
            .any(|operation| operation == "*" || operations(request).contains(&operation.as_str()));
        let has_resource = self.resources.iter().any(|it| {
            let (resource, subresource) = it.split_once('/').unwrap_or((it, ""));
            (resource == "*" || resource == request.resource)
                && (subresource == "*" || subresource == request.subresource)
        });
        has_operation && has_resource
    }
}

/// The operations that a request can cause. An update or a server-side apply may create an object.
fn operations(request: &RequestInfo<'_>) -> &'static [&'static str] {
    if is_connect(request) {
        return &["CONNECT"];
    }
    match request.verb {
        Verb::Create => &["CREATE"],
        Verb::Update | Verb::Patch => &["CREATE", "UPDATE"],
        Verb::Delete | Verb::DeleteCollection => &["DELETE"],
        _ => &[],
    }
}

fn is_connect(request: &RequestInfo<'_>) -> bool {
    matches!(
        request.subresource,
        "attach" | "exec" | "portforward" | "proxy"
    )
}

/// Whether admission policies are evaluated for a request. kube-apiserver exempts policies
/// themselves and reviews of authentication and authorization.
pub(crate) fn is_admitted(request: &RequestInfo<'_>) -> bool {
    let is_exempt = match request.group {
        "authentication.k8s.io" | "authorization.k8s.io" => true,
        ADMISSION_GROUP => !request.resource.ends_with("webhookconfigurations"),
        _ => false,
    };
    request.kind == Kind::Resource && !is_exempt && !operations(request).is_empty()
}

#[cfg(test)]
mod tests {
    use http::Method;
    use skewbridge_k8s_api::request_info::DecodedPath;

    use super::*;

    fn matches(rule: (&str, &str), method: &str, path: &str) -> bool {
        let split = |text: &str| text.split(',').map(str::to_owned).collect();
        let policies = AdmissionPolicies {
            kinds: vec![PolicyKind {
                resource: "mutatingadmissionpolicies".to_owned(),
                version: "v1".to_owned(),
                objects: Some(1),
                matches: PolicyMatches::Rules(vec![MatchRule {
                    operations: split(rule.0),
                    resources: split(rule.1),
                }]),
            }],
        };
        let path = DecodedPath::new(path).unwrap();
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = RequestInfo::parse(&method, &path, None);
        policies.matching(&request).next().is_some()
    }

    #[test]
    fn a_policy_matches_writes_by_operation_and_resource() {
        let deployments = "/apis/apps/v1/namespaces/n/deployments";
        let deployment = "/apis/apps/v1/namespaces/n/deployments/d";
        let scale = "/apis/apps/v1/namespaces/n/deployments/d/scale";
        let exec = "/api/v1/namespaces/n/pods/p/exec";
        let rows = [
            (("CREATE", "deployments"), "POST", deployments, true),
            (("UPDATE", "deployments"), "POST", deployments, false),
            (("*", "deployments"), "POST", deployments, true),
            (("CREATE", "pods"), "POST", deployments, false),
            (("CREATE", "*"), "POST", deployments, true),
            (("CREATE", "*/*"), "POST", deployments, true),
            (
                ("CREATE,DELETE", "pods,deployments"),
                "DELETE",
                deployment,
                true,
            ),
            (("DELETE", "deployments"), "DELETE", deployments, true),
            // An update or apply creates an object that does not exist.
            (("CREATE", "deployments"), "PUT", deployment, true),
            (("CREATE", "deployments"), "PATCH", deployment, true),
            // Subresources.
            (("UPDATE", "deployments"), "PUT", scale, false),
            (("UPDATE", "*"), "PUT", scale, false),
            (("UPDATE", "deployments/*"), "PUT", scale, true),
            (("UPDATE", "deployments/*"), "PUT", deployment, true),
            (("UPDATE", "*/scale"), "PUT", scale, true),
            (("CONNECT", "pods/exec"), "GET", exec, true),
            (("CREATE", "pods/exec"), "POST", exec, false),
            // Reads, and kinds that are exempt.
            (("*", "*/*"), "GET", deployments, false),
            (("*", "*/*"), "GET", deployment, false),
            (
                ("*", "*/*"),
                "POST",
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                false,
            ),
            (
                ("*", "*/*"),
                "POST",
                "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
                false,
            ),
            (
                ("*", "*/*"),
                "POST",
                "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
                true,
            ),
        ];
        for (rule, method, path, expected) in rows {
            assert_eq!(
                matches(rule, method, path),
                expected,
                "{rule:?} {method} {path}"
            );
        }
    }
}
