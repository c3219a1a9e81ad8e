//! A stream over SPDY is a POST and needs the verb `create`; over WebSocket it is a GET, for
//! which kube-apiserver before 1.35 only checks `get`. Where a POST becomes a GET, the bridge
//! checks that the caller may `create`: `get` alone must not suffice.

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, Uri};
use serde::{Deserialize, Serialize};
use skewbridge_http_engine::body::{RequestBody, ResponseBody};
use skewbridge_k8s_api::request_info::RequestInfo;
use skewbridge_k8s_api::status::Status;

use super::outbound::OutboundRequest;
use crate::access_log::AccessLogEntry;
use crate::streams::translation_plan::STREAM_PROTOCOL_HEADER;
use crate::upstream::UpstreamResponse;

const REVIEWS_PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Larger than any such response.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

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
struct ReviewResponse {
    status: ReviewStatus,
}

#[derive(Deserialize)]
struct ReviewStatus {
    #[serde(default)]
    allowed: bool,
    #[serde(default)]
    reason: String,
}

/// The `SelfSubjectAccessReview`, as JSON.
fn review_body(info: &RequestInfo<'_>) -> Bytes {
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
    // Serialising a plain structure with string keys cannot fail.
    serde_json::to_vec(&review).unwrap_or_default().into()
}

/// Checks at upstream, as the caller, whether the caller may `create` this stream. If upstream rejects
/// the review itself (not authenticated, not authorized), its response is returned.
pub(crate) async fn check_create(
    head: &Parts,
    outbound: &OutboundRequest<'_>,
    record: &mut AccessLogEntry,
) -> Result<(), Response<ResponseBody>> {
    let error_response = |status: &Status| {
        let body = outbound.refuse(status);
        body.map(ResponseBody::full)
    };
    let info = &outbound.context.info;
    let (review_body, denied) = (review_body(info), denied(info));
    let mut request = head.clone();
    request.method = Method::POST;
    request.uri = Uri::from_static(REVIEWS_PATH);
    for name in [UPGRADE, STREAM_PROTOCOL_HEADER, ACCEPT_ENCODING] {
        request.headers.remove(name);
    }
    let json = HeaderValue::from_static("application/json");
    request.headers.insert(ACCEPT, json.clone());
    request.headers.insert(CONTENT_TYPE, json);
    request
        .headers
        .insert(CONTENT_LENGTH, review_body.len().into());
    let sent = outbound
        .send_subrequest(request, RequestBody::Full(review_body), record)
        .await;
    let recipient = outbound.context.error_recipient();
    let response = match sent.map_err(|error| error.respond(recipient).map(ResponseBody::full))? {
        UpstreamResponse::Response(response) if response.status() == StatusCode::CREATED => {
            response
        }
        UpstreamResponse::Response(response) if response.status().is_success() => {
            let message = "upstream sent no valid response to a SelfSubjectAccessReview";
            return Err(error_response(&Status::bad_gateway(message)));
        }
        UpstreamResponse::Response(response) => return Err(response),
        UpstreamResponse::Upgraded(..) => {
            return Err(error_response(&Status::bad_gateway(
                "upstream upgraded a request that is not an upgrade",
            )));
        }
    };
    let body = response.into_body().collect(MAX_RESPONSE_BYTES).await;
    let body = body.map_err(|error| error_response(&Status::bad_gateway(error.to_string())))?;
    match serde_json::from_slice::<ReviewResponse>(&body) {
        Ok(ReviewResponse { status }) if status.allowed => Ok(()),
        Ok(ReviewResponse { status }) if status.reason.is_empty() => {
            Err(error_response(&Status::forbidden(denied)))
        }
        Ok(ReviewResponse { status }) => {
            let message = format!("{denied}: {}", status.reason);
            Err(error_response(&Status::forbidden(message)))
        }
        Err(error) => Err(error_response(&Status::bad_gateway(format!(
            "upstream sent no valid response to a SelfSubjectAccessReview: {error}"
        )))),
    }
}

/// The wording of kube-apiserver, except that the user name is not known.
fn denied(info: &RequestInfo<'_>) -> String {
    format!(
        "pods {:?} is forbidden: this caller cannot create resource \"pods/{}\" in API group \"\" \
         in the namespace {:?}",
        info.name, info.subresource, info.namespace
    )
}

#[cfg(test)]
mod tests {
    use skewbridge_k8s_api::request_info::DecodedPath;

    use super::*;

    #[test]
    fn the_review_is_for_the_verb_create() {
        let path = DecodedPath::new("/api/v1/namespaces/n/pods/p/exec").unwrap();
        let info = RequestInfo::parse(&Method::POST, &path, None);
        let review_body: serde_json::Value = serde_json::from_slice(&review_body(&info)).unwrap();
        assert_eq!(
            review_body,
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
