//! A stream by SPDY is a POST, and needs `create`; by WebSocket it is a GET, for
//! which kube-apiserver before 1.35 asks for `get` alone. Where a POST becomes a GET,
//! the bridge asks whether the caller may `create`: `get` alone must not suffice.

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, Uri};
use serde::{Deserialize, Serialize};
use skewbridge_api::request_info::RequestInfo;
use skewbridge_api::status::Status;

use super::translation_plan::STREAM_PROTOCOL;
use crate::access_log::AccessLogEntry;
use crate::body::RequestBody;
use crate::handler::OutboundRequest;
use crate::upstream::UpstreamResponse;

const PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Longer than any such answer.
const MAX_ANSWER: usize = 64 * 1024;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    api_version: &'static str,
    kind: &'static str,
    spec: Spec<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    resource_attributes: Attributes<'a>,
}

#[derive(Serialize)]
struct Attributes<'a> {
    namespace: &'a str,
    verb: &'static str,
    version: &'a str,
    resource: &'a str,
    subresource: &'a str,
    name: &'a str,
}

#[derive(Deserialize)]
struct Reviewed {
    status: Verdict,
}

#[derive(Deserialize)]
struct Verdict {
    #[serde(default)]
    allowed: bool,
    #[serde(default)]
    reason: String,
}

/// The question, as JSON.
fn question(info: &RequestInfo<'_>) -> Bytes {
    let review = Review {
        api_version: "authorization.k8s.io/v1",
        kind: "SelfSubjectAccessReview",
        spec: Spec {
            resource_attributes: Attributes {
                namespace: info.namespace,
                verb: "create",
                version: info.version,
                resource: info.resource,
                subresource: info.subresource,
                name: &info.name,
            },
        },
    };
    // A plain structure with string keys does not fail to serialise.
    serde_json::to_vec(&review).unwrap_or_default().into()
}

/// Asks upstream, as the caller, whether the caller may `create` this stream. What
/// upstream says to the question itself (who is unknown, is not let in) is the answer.
pub(crate) async fn check_create(
    head: &Parts,
    outbound: &OutboundRequest<'_>,
    record: &mut AccessLogEntry,
) -> Result<(), Response<crate::body::ResponseBody>> {
    let own = |status: &Status| {
        let answer = outbound.refuse(status);
        answer.map(crate::body::ResponseBody::full)
    };
    let asked = outbound.read(|info| (question(info), denied(info)));
    let Some((question, denied)) = asked else {
        return Err(own(&Status::internal("a stream of nothing")));
    };
    let mut asking = head.clone();
    asking.method = Method::POST;
    asking.uri = Uri::from_static(PATH);
    for name in [UPGRADE, STREAM_PROTOCOL, ACCEPT_ENCODING] {
        asking.headers.remove(name);
    }
    let json = HeaderValue::from_static("application/json");
    asking.headers.insert(ACCEPT, json.clone());
    asking.headers.insert(CONTENT_TYPE, json);
    asking.headers.insert(CONTENT_LENGTH, question.len().into());
    let sent = outbound
        .ask(asking, RequestBody::Full(question), record)
        .await;
    let response = match sent.map_err(|refused| refused.map(crate::body::ResponseBody::full))? {
        UpstreamResponse::Response(response) if response.status() == StatusCode::CREATED => {
            response
        }
        UpstreamResponse::Response(response) if response.status().is_success() => {
            let why = "upstream's answer to a SelfSubjectAccessReview is none";
            return Err(own(&Status::bad_gateway(why)));
        }
        UpstreamResponse::Response(response) => return Err(response),
        UpstreamResponse::Upgraded(..) => {
            return Err(own(&Status::bad_gateway("nobody asked for it")));
        }
    };
    let answer = response.into_body().whole(MAX_ANSWER).await;
    let answer = answer.map_err(|error| own(&Status::bad_gateway(error.to_string())))?;
    match serde_json::from_slice::<Reviewed>(&answer) {
        Ok(Reviewed { status }) if status.allowed => Ok(()),
        Ok(Reviewed { status }) if status.reason.is_empty() => Err(own(&Status::forbidden(denied))),
        Ok(Reviewed { status }) => {
            let why = format!("{denied}: {}", status.reason);
            Err(own(&Status::forbidden(why)))
        }
        Err(error) => Err(own(&Status::bad_gateway(format!(
            "upstream's answer to a SelfSubjectAccessReview is none: {error}"
        )))),
    }
}

/// In kube-apiserver's words, as far as we know them: not who asks.
fn denied(info: &RequestInfo<'_>) -> String {
    format!(
        "pods {:?} is forbidden: this caller cannot create resource \"pods/{}\" in API group \"\" \
         in the namespace {:?}",
        info.name, info.subresource, info.namespace
    )
}

#[cfg(test)]
mod tests {
    use skewbridge_api::request_info::DecodedPath;

    use super::*;

    #[test]
    fn create_is_asked_for() {
        let path = DecodedPath::new("/api/v1/namespaces/n/pods/p/exec").unwrap();
        let info = RequestInfo::parse(&Method::POST, &path, None);
        let question: serde_json::Value = serde_json::from_slice(&question(&info)).unwrap();
        assert_eq!(
            question,
            serde_json::json!({
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {
                    "namespace": "n", "verb": "create", "version": "v1",
                    "resource": "pods", "subresource": "exec", "name": "p",
                }},
            })
        );
    }
}
