//! A `metav1.Status` as a response, in a media type that the client can read.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use skewbridge_k8s_api::content_negotiation::{Format, content_type};
use skewbridge_k8s_api::status::Status;

use crate::http_date;
use crate::http1::HeadError;

/// A Status as a response.
pub fn status(status: &Status, format: Format) -> Response<Bytes> {
    let body = status.encode(format);
    let mut response = Response::new(Bytes::new());
    *response.status_mut() =
        StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type(format));
    headers.insert(CONTENT_LENGTH, body.len().into());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(DATE, http_date::now());
    if let Some(seconds) = status.retry_after_seconds {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    *response.body_mut() = body;
    response
}

/// The response to bytes that are not an HTTP/1.1 request. There are no headers to negotiate
/// with.
pub(crate) fn bad_head(error: HeadError) -> Response<Bytes> {
    let message = error.to_string();
    let answer = match error {
        HeadError::Malformed(_) => Status::bad_request(message),
        HeadError::TargetTooLong => Status::uri_too_long(message),
        HeadError::TooLarge => Status::header_fields_too_large(message),
    };
    self::status(&answer, Format::Json)
}

/// The response to a request head that takes too long to arrive.
pub(crate) fn slow_head(flag: Option<&str>) -> Response<Bytes> {
    let message = "the request's headers did not arrive in time";
    let message = match flag {
        Some(flag) => format!("{message} ({flag})"),
        None => message.to_owned(),
    };
    self::status(&Status::client_timeout(message), Format::Json)
}

/// The response to a request whose body takes too long to arrive.
pub(crate) fn slow_body(format: Format) -> Response<Bytes> {
    let message = "the request's body did not arrive in time";
    self::status(&Status::client_timeout(message), format)
}
