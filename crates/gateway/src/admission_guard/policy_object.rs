//! Parses what admission policies match.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;
use skewbridge_peer_directory::watch::WatchedObject;

use super::{MatchRule, PolicyMatches};

/// Operations and resources in the rules of one kind. Every write is compared with them, and more are
/// treated as rules that match everything.
const MAX_RULE_NAMES: usize = 2_000;

/// The part of an admission policy that decides which requests it can match.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "RawPolicy")]
pub(crate) struct PolicyObject {
    pub(crate) name: String,
    resource_version: String,
    pub(crate) matches: PolicyMatches,
}

impl WatchedObject for PolicyObject {
    fn name(&self) -> &str {
        &self.name
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }
}

#[derive(Deserialize)]
struct RawPolicy {
    metadata: RawMetadata,
    #[serde(default)]
    spec: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct RawMetadata {
    name: String,
    resource_version: String,
}

impl From<RawPolicy> for PolicyObject {
    fn from(raw: RawPolicy) -> Self {
        let rules = &raw.spec["matchConstraints"]["resourceRules"];
        Self {
            name: raw.metadata.name,
            resource_version: raw.metadata.resource_version,
            matches: match_rules(rules).map_or(PolicyMatches::AnyWrite, PolicyMatches::Rules),
        }
    }
}

/// The rules; `None` if they are missing or have another form than that of Kubernetes 1.36.
/// Selectors and excluded resources are ignored: the policy then matches fewer requests than the
/// rules.
fn match_rules(rules: &Value) -> Option<Vec<MatchRule>> {
    let rules = rules.as_array().filter(|rules| !rules.is_empty())?;
    let rules = rules.iter().map(|rule| {
        Some(MatchRule {
            operations: names(&rule["operations"])?,
            resources: names(&rule["resources"])?,
        })
    });
    rules.collect()
}

fn names(list: &Value) -> Option<Vec<String>> {
    let list = list.as_array().filter(|list| !list.is_empty())?;
    let names = list.iter().map(|it| it.as_str().map(str::to_owned));
    names.collect()
}

/// What any of these objects matches.
pub(crate) fn union<'a>(objects: impl Iterator<Item = &'a PolicyMatches>) -> PolicyMatches {
    let mut rules = BTreeSet::new();
    let mut names = 0;
    for matches in objects {
        let PolicyMatches::Rules(all) = matches else {
            return PolicyMatches::AnyWrite;
        };
        for rule in all {
            if rules.insert(rule) {
                names += rule.operations.len() + rule.resources.len();
            }
            if names > MAX_RULE_NAMES {
                return PolicyMatches::AnyWrite;
            }
        }
    }
    PolicyMatches::Rules(rules.into_iter().cloned().collect())
}

#[cfg(test)]
mod tests {
    use http::Method;
    use proptest::prelude::*;
    use serde_json::json;
    use skewbridge_k8s_api::request_info::{DecodedPath, RequestInfo};

    use super::*;

    fn rule(operations: &[&str], resources: &[&str]) -> MatchRule {
        let owned = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect();
        MatchRule {
            operations: owned(operations),
            resources: owned(resources),
        }
    }

    fn parse(spec: &Value) -> PolicyMatches {
        let object = json!({"metadata": {"name": "a", "resourceVersion": "7"}, "spec": spec});
        let object: PolicyObject = serde_json::from_value(object).unwrap();
        assert_eq!((object.name(), object.resource_version()), ("a", "7"));
        object.matches
    }

    #[test]
    fn resource_rules_are_parsed() {
        let rules = json!([
            {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
             "resources": ["deployments"], "scope": "*"},
            {"operations": ["*"], "resources": ["pods/*"]},
        ]);
        let spec = json!({"matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": rules,
            "namespaceSelector": {}, "excludeResourceRules": []}, "mutations": []});
        let expected = vec![
            rule(&["CREATE", "UPDATE"], &["deployments"]),
            rule(&["*"], &["pods/*"]),
        ];
        assert_eq!(parse(&spec), PolicyMatches::Rules(expected));
    }

    #[test]
    fn a_policy_of_another_form_can_match_every_write() {
        let good = json!({"operations": ["*"], "resources": ["pods"]});
        for rules in [
            json!(null),
            json!([]),
            json!({}),
            json!("*"),
            json!(["*"]),
            json!([good, {"operations": ["*"]}]),
            json!([good, {"operations": [], "resources": ["pods"]}]),
            json!([{"operations": ["*"], "resources": "pods"}]),
            json!([{"operations": [1], "resources": ["pods"]}]),
        ] {
            let spec = json!({"matchConstraints": {"resourceRules": rules}});
            assert_eq!(parse(&spec), PolicyMatches::AnyWrite, "{spec}");
        }
        for spec in [json!(null), json!([]), json!({"match": "all"})] {
            assert_eq!(parse(&spec), PolicyMatches::AnyWrite, "{spec}");
        }
        let bare: PolicyObject = serde_json::from_value(json!({"metadata": {}})).unwrap();
        assert_eq!(bare.matches, PolicyMatches::AnyWrite);
    }

    fn any_rule() -> impl Strategy<Value = MatchRule> {
        let operation = prop::sample::select(vec!["CREATE", "UPDATE", "DELETE", "CONNECT", "*"]);
        let resource = prop::sample::select(vec!["pods", "pods/*", "pods/exec", "nodes", "*/*"]);
        (operation, resource).prop_map(|(operation, resource)| rule(&[operation], &[resource]))
    }

    proptest! {
        #[test]
        fn all_objects_together_match_what_one_of_them_matches(
            objects in prop::collection::vec(prop::collection::vec(any_rule(), 1..4), 0..5),
            method in prop::sample::select(vec![Method::POST, Method::PATCH, Method::DELETE]),
            path in prop::sample::select(vec![
                "/api/v1/namespaces/a/pods", "/api/v1/namespaces/a/pods/b/exec", "/api/v1/nodes/a",
            ]),
        ) {
            let path = DecodedPath::new(path).unwrap();
            let request = RequestInfo::parse(&method, &path, None);
            let objects: Vec<_> = objects.into_iter().map(PolicyMatches::Rules).collect();
            let any = objects.iter().any(|it| it.contain(&request));
            prop_assert_eq!(union(objects.iter()).contain(&request), any);
        }
    }

    #[test]
    fn the_rules_of_all_objects_are_united() {
        let pods = || PolicyMatches::Rules(vec![rule(&["*"], &["pods"])]);
        let nodes = PolicyMatches::Rules(vec![rule(&["CREATE"], &["nodes"])]);
        let both = vec![rule(&["*"], &["pods"]), rule(&["CREATE"], &["nodes"])];
        assert_eq!(
            union([&nodes, &pods(), &pods()].into_iter()),
            PolicyMatches::Rules(both)
        );
        assert_eq!(
            union([&nodes, &PolicyMatches::AnyWrite].into_iter()),
            PolicyMatches::AnyWrite
        );
        assert_eq!(union([].into_iter()), PolicyMatches::Rules(Vec::new()));
        let many: Vec<_> = (0..=MAX_RULE_NAMES / 2)
            .map(|number| PolicyMatches::Rules(vec![rule(&["*"], &[&format!("r{number}")])]))
            .collect();
        assert_eq!(union(many.iter()), PolicyMatches::AnyWrite);
        let fits = &many[1..];
        assert_ne!(union(fits.iter()), PolicyMatches::AnyWrite);
        let equal = vec![pods(); MAX_RULE_NAMES];
        assert_eq!(union(equal.iter()), pods());
    }
}
