//! `TokenReview` and `SubjectAccessReview`: the requests to kube-apiserver, and its responses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use skewbridge_k8s_api::identity::User;

pub(crate) const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
pub(crate) const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// The group of every user that has authenticated. kube-apiserver adds it where it authenticates
/// itself, and expects it in a `SubjectAccessReview`.
const AUTHENTICATED: &str = "system:authenticated";

/// The reason for a decision is part of a message to the client.
const MAX_REASON_CHARS: usize = 400;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<S> {
    api_version: &'static str,
    kind: &'static str,
    spec: S,
}

#[derive(Serialize)]
struct TokenSpec<'a> {
    token: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AccessSpec<'a> {
    non_resource_attributes: Attributes<'a>,
    user: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    groups: Vec<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: &'a BTreeMap<String, Vec<String>>,
}

#[derive(Serialize)]
struct Attributes<'a> {
    path: &'a str,
    verb: &'static str,
}

#[derive(Deserialize)]
struct ReviewResponse<S> {
    status: S,
}

#[derive(Deserialize)]
struct TokenStatus {
    #[serde(default)]
    authenticated: bool,
    #[serde(default)]
    user: TokenUser,
}

#[derive(Default, Deserialize)]
struct TokenUser {
    #[serde(default)]
    username: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AccessStatus {
    #[serde(default)]
    allowed: bool,
    #[serde(default)]
    denied: bool,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    evaluation_error: String,
}

/// The body of a `TokenReview`, as JSON.
pub(crate) fn token_review(token: &str) -> Vec<u8> {
    json(&Review {
        api_version: "authentication.k8s.io/v1",
        kind: "TokenReview",
        spec: TokenSpec { token },
    })
}

/// The user of a token; `None` if kube-apiserver does not accept it.
pub(crate) fn user_of_token(answer: &[u8]) -> Result<Option<User>, String> {
    let ReviewResponse { status } = parsed::<TokenStatus>("TokenReview", answer)?;
    let user = status.user;
    if status.authenticated && user.username.is_empty() {
        return Err("the answer to a TokenReview has no user name".to_owned());
    }
    Ok(status.authenticated.then_some(User {
        name: user.username,
        uid: user.uid,
        groups: user.groups,
        extra: user.extra,
    }))
}

/// The body of a `SubjectAccessReview` for reading this path, as JSON.
pub(crate) fn access_review(user: &User, path: &str) -> Vec<u8> {
    let mut groups: Vec<_> = user.groups.iter().map(String::as_str).collect();
    if !groups.contains(&AUTHENTICATED) {
        groups.push(AUTHENTICATED);
    }
    json(&Review {
        api_version: "authorization.k8s.io/v1",
        kind: "SubjectAccessReview",
        spec: AccessSpec {
            non_resource_attributes: Attributes { path, verb: "get" },
            user: &user.name,
            uid: &user.uid,
            groups,
            extra: &user.extra,
        },
    })
}

/// What kube-apiserver decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    /// With the reason, if there is one.
    Denied(String),
}

/// The decision in the answer to a `SubjectAccessReview`.
pub(crate) fn verdict(answer: &[u8]) -> Result<Verdict, String> {
    let ReviewResponse { status } = parsed::<AccessStatus>("SubjectAccessReview", answer)?;
    // kube-apiserver never sets both; an authorizer behind it might.
    if status.allowed && !status.denied {
        return Ok(Verdict::Allowed);
    }
    let reasons = [status.reason, status.evaluation_error];
    let reasons: Vec<_> = reasons.into_iter().filter(|it| !it.is_empty()).collect();
    let reason = reasons.join("; ").chars().take(MAX_REASON_CHARS).collect();
    Ok(Verdict::Denied(reason))
}

fn parsed<'a, S: Deserialize<'a>>(
    kind: &str,
    answer: &'a [u8],
) -> Result<ReviewResponse<S>, String> {
    serde_json::from_slice(answer)
        .map_err(|error| format!("kube-apiserver sent no valid answer to a {kind}: {error}"))
}

fn json(review: &impl Serialize) -> Vec<u8> {
    // Serialising a plain structure with string keys cannot fail.
    serde_json::to_vec(review).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_reviews_have_the_shape_of_kubernetes() {
        let review: Value = serde_json::from_slice(&token_review("t")).unwrap();
        let expected = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": "t"},
        });
        assert_eq!(review, expected);
        let mut user = User {
            name: "alice".to_owned(),
            uid: "u".to_owned(),
            groups: vec!["a".to_owned()],
            ..User::default()
        };
        user.extra.insert("k".to_owned(), vec!["v".to_owned()]);
        let review: Value = serde_json::from_slice(&access_review(&user, "/metrics")).unwrap();
        let expected = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
                "user": "alice", "uid": "u", "groups": ["a", "system:authenticated"],
                "extra": {"k": ["v"]},
            },
        });
        assert_eq!(review, expected);
    }

    #[test]
    fn a_user_has_the_group_of_authenticated_users_once() {
        let user = User {
            name: "a".to_owned(),
            groups: vec![AUTHENTICATED.to_owned()],
            ..User::default()
        };
        let review: Value = serde_json::from_slice(&access_review(&user, "/")).unwrap();
        assert_eq!(review["spec"]["groups"], json!([AUTHENTICATED]));
    }

    #[test]
    fn only_an_explicit_yes_is_an_authentication() {
        let user = json!({"username": "a", "groups": ["g"]});
        let rows = [
            (
                json!({"status": {"authenticated": true, "user": user}}),
                Ok(Some("a")),
            ),
            (
                json!({"status": {"authenticated": false, "user": user}}),
                Ok(None),
            ),
            (json!({"status": {"error": "expired"}}), Ok(None)),
            (json!({"status": {"authenticated": true}}), Err(())),
            (json!({"spec": {}}), Err(())),
            (json!("ok"), Err(())),
        ];
        for (answer, expected) in rows {
            let found = user_of_token(answer.to_string().as_bytes());
            let found = found.map(|it| it.map(|user| user.name)).map_err(drop);
            let expected = expected.map(|it| it.map(ToOwned::to_owned));
            assert_eq!(found, expected, "{answer}");
        }
    }

    #[test]
    fn only_an_explicit_yes_is_a_permission() {
        let denied = |reason: &str| Ok(Verdict::Denied(reason.to_owned()));
        let rows = [
            (json!({"allowed": true}), Ok(Verdict::Allowed)),
            (json!({"allowed": true, "denied": true}), denied("")),
            (json!({"allowed": false, "reason": "r"}), denied("r")),
            (
                json!({"reason": "r", "evaluationError": "e"}),
                denied("r; e"),
            ),
            (json!({}), denied("")),
            (json!("yes"), Err(())),
        ];
        for (status, expected) in rows {
            let answer = json!({"status": status}).to_string();
            let found = verdict(answer.as_bytes()).map_err(drop);
            assert_eq!(found, expected, "{answer}");
        }
        assert!(verdict(b"{}").is_err());
    }
}
