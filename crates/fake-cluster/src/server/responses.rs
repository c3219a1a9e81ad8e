//! Responses.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WARNING};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::Value;
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_k8s_api::content_negotiation::{Format, content_type, negotiate_error_format};
use skewbridge_k8s_api::status::Status;

/// A response with its body.
pub(super) type ApiResponse = Response<ResponseBody>;

/// An object, as JSON with a newline, as kube-apiserver writes it.
pub(super) fn json(code: StatusCode, value: &Value) -> ApiResponse {
    // A value with string keys does not fail to serialise.
    let mut bytes = serde_json::to_vec(value).unwrap_or_default();
    bytes.push(b'\n');
    let mut reply = full(code, "application/json", bytes);
    let headers = reply.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    reply
}

/// Adds warnings, which kubectl prints.
pub(super) fn warn(reply: &mut ApiResponse, warnings: &[String]) {
    for warning in warnings {
        let text = format!("299 - {}", crate::status::quoted(warning));
        if let Ok(value) = HeaderValue::from_str(&text) {
            reply.headers_mut().append(WARNING, value);
        }
    }
}

/// Plain text.
pub(super) fn text(code: StatusCode, text: impl Into<String>) -> ApiResponse {
    full(code, "text/plain; charset=utf-8", text.into())
}

/// A body of a media type.
pub(super) fn full(code: StatusCode, media: &'static str, body: impl Into<Bytes>) -> ApiResponse {
    let body = body.into();
    let mut reply = Response::new(());
    *reply.status_mut() = code;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    headers.insert(http::header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    reply.map(|()| ResponseBody::full(body))
}

/// The response of Go's server for an unknown path.
pub(super) fn not_found_page() -> ApiResponse {
    let mut reply = text(StatusCode::NOT_FOUND, "404 page not found\n");
    let headers = reply.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    reply
}

/// An error, in a format that the client accepts.
pub(super) fn failure(status: &Status, requested: &HeaderMap) -> ApiResponse {
    let format = match status.code {
        // Without an accepted format, it is plain text.
        406 => return not_acceptable(status),
        _ => negotiate_error_format(requested),
    };
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let media = match format {
        Format::Json | Format::Yaml => "application/json",
        Format::Protobuf => "application/vnd.kubernetes.protobuf",
        Format::Cbor => "application/cbor",
    };
    debug_assert_eq!(content_type(format), media);
    let mut reply = full(code, media, status.encode(format));
    let headers = reply.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    if let Some(seconds) = status.retry_after_seconds {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    reply
}

/// Plain text lines, as kube-apiserver writes them if no format is accepted.
fn not_acceptable(status: &Status) -> ApiResponse {
    let quoted = Value::from(status.message.as_str());
    let text = format!(
        "{{\n  \"kind\": \"Status\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {{}},\n  \
         \"status\": \"Failure\",\n  \"message\": {quoted},\n  \"reason\": \"{}\",\n  \
         \"code\": {}\n}}",
        status.reason, status.code
    );
    let mut reply = full(StatusCode::NOT_ACCEPTABLE, "application/json", text);
    let headers = reply.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    reply
}
