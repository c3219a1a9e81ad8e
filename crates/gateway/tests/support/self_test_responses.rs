//! The responses of an upstream to a bridge's self-test.

use serde_json::json;
use skewbridge_testkit::{RecordedRequest, Reply};

pub(crate) const REVIEWS_PATH: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
pub(crate) const AUTHENTICATION: &str =
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

/// The responses to a self-test of an upstream whose configuration matches every bridge.
pub(crate) fn passing_response(recorded: &RecordedRequest) -> Option<Reply> {
    match recorded.path() {
        REVIEWS_PATH => Some(review(recorded)),
        AUTHENTICATION => Some(Reply::json(r#"{"kind":"ConfigMap"}"#)),
        _ => None,
    }
}

/// kube-apiserver's response to a review: the user it has authenticated.
pub(crate) fn review(recorded: &RecordedRequest) -> Reply {
    let groups = [recorded.all("x-remote-group"), vec!["system:authenticated"]].concat();
    let user = json!({"username": recorded.header("x-remote-user"), "groups": groups});
    let review = json!({"kind": "SelfSubjectReview", "status": {"userInfo": user}});
    Reply::json(review.to_string()).status(201)
}
