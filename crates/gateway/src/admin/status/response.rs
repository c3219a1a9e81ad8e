//! The responses of `/status`, `/status.json` and `/status/events`.

use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_k8s_api::content_negotiation::negotiate_error_format;
use skewbridge_k8s_api::status::Status;

use super::StatusSampler;
use super::events::{EventStream, Snapshot};
use crate::error_response;
use crate::health;
use crate::status::page;

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Whether a path belongs to the status page.
pub(in crate::admin) fn is_status_path(path: &str) -> bool {
    matches!(path, "/status" | "/status.json" | "/status/events")
}

/// The response to a request for one of these paths.
pub(in crate::admin) fn respond(sampler: &StatusSampler, head: &Parts) -> Response<ResponseBody> {
    let mut response = match head.uri.path() {
        "/status" => page(sampler),
        "/status.json" => json(sampler),
        _ => events(sampler, head),
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (RESOURCE_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn page(sampler: &StatusSampler) -> Response<ResponseBody> {
    let mut response = text_response("text/html; charset=utf-8", page::page(&sampler.document()));
    if let Ok(policy) = HeaderValue::from_str(&page::CONTENT_SECURITY_POLICY) {
        response
            .headers_mut()
            .insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

fn json(sampler: &StatusSampler) -> Response<ResponseBody> {
    let text = serde_json::to_string_pretty(&sampler.document()).unwrap_or_default();
    text_response("application/json", text + "\n")
}

fn text_response(content_type: &'static str, text: String) -> Response<ResponseBody> {
    let mut response = health::text(StatusCode::OK, text).map(ResponseBody::full);
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn events(sampler: &StatusSampler, head: &Parts) -> Response<ResponseBody> {
    let mut response = if head.method == Method::HEAD {
        Response::new(ResponseBody::empty())
    } else {
        let Some((viewer, updates)) = sampler.subscribe() else {
            let message = "too many status pages are open at this bridge; close some of them";
            let status = Status::service_unavailable(message, 10);
            let format = negotiate_error_format(&head.headers);
            return error_response::status(&status, format).map(ResponseBody::full);
        };
        let first = Snapshot::of(&sampler.document());
        Response::new(ResponseBody::generated(EventStream::new(
            viewer, updates, &first,
        )))
    };
    let content_type = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
