//! What is written to clients.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WARNING};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::Value;
use skewbridge_gateway::body::ResponseBody;
use skewbridge_k8s_api::content_negotiation::{Format, content_type, negotiate_error_format};
use skewbridge_k8s_api::status::Status;

/// An answer with its body.
pub(super) type Reply = Response<ResponseBody>;

/// An object, as JSON with a newline, as kube-apiserver writes it.
pub(super) fn json(code: StatusCode, value: &Value) -> Reply {
    // A value with string keys does not fail to serialise.
    let mut bytes = serde_json::to_vec(value).unwrap_or_default();
    bytes.push(b'\n');
    let mut reply = whole(code, "application/json", bytes);
    let headers = reply.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    reply
}

/// Says something besides, which kubectl prints.
pub(super) fn warn(reply: &mut Reply, warnings: &[String]) {
    for warning in warnings {
        let text = format!("299 - {}", crate::status::quoted(warning));
        if let Ok(value) = HeaderValue::from_str(&text) {
            reply.headers_mut().append(WARNING, value);
        }
    }
}

/// Words for people.
pub(super) fn text(code: StatusCode, text: impl Into<String>) -> Reply {
    whole(code, "text/plain; charset=utf-8", text.into())
}

/// Bytes of a type.
pub(super) fn whole(code: StatusCode, media: &'static str, body: impl Into<Bytes>) -> Reply {
    let body = body.into();
    let mut reply = Response::new(());
    *reply.status_mut() = code;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    headers.insert(http::header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    reply.map(|()| ResponseBody::full(body))
}

/// What Go's server says of a path that nobody serves.
pub(super) fn nothing_here() -> Reply {
    let mut reply = text(StatusCode::NOT_FOUND, "404 page not found\n");
    let headers = reply.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    reply
}

/// A failure, in a form that the caller reads.
pub(super) fn failure(status: &Status, asked: &HeaderMap) -> Reply {
    let format = match status.code {
        // Nothing that the caller reads: it is written for people.
        406 => return not_acceptable(status),
        _ => negotiate_error_format(asked),
    };
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let media = match format {
        Format::Json | Format::Yaml => "application/json",
        Format::Protobuf => "application/vnd.kubernetes.protobuf",
        Format::Cbor => "application/cbor",
    };
    debug_assert_eq!(content_type(format), media);
    let mut reply = whole(code, media, status.encode(format));
    let headers = reply.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    if let Some(seconds) = status.retry_after_seconds {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    reply
}

/// In lines, as kube-apiserver writes it to those of whom it cannot know what they read.
fn not_acceptable(status: &Status) -> Reply {
    let quoted = Value::from(status.message.as_str());
    let text = format!(
        "{{\n  \"kind\": \"Status\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {{}},\n  \
         \"status\": \"Failure\",\n  \"message\": {quoted},\n  \"reason\": \"{}\",\n  \
         \"code\": {}\n}}",
        status.reason, status.code
    );
    let mut reply = whole(StatusCode::NOT_ACCEPTABLE, "application/json", text);
    let headers = reply.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    reply
}
