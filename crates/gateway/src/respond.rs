//! The one place that turns a failure into an answer: always a
//! `metav1.Status`, in a media type that the caller can read.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use skewbridge_api::media::{Format, content_type};
use skewbridge_api::status::Status;
use skewbridge_h1::HeadError;

use crate::upstream::SendError;

/// Upstream is usually back within seconds: kube-apiserver restarts, or a
/// connection was lost.
const RETRY_AFTER_SECONDS: u32 = 1;

/// A Status as an answer.
pub(crate) fn status(status: &Status, format: Format) -> Response<Bytes> {
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
    headers.insert(DATE, crate::date::now());
    if let Some(seconds) = status.retry_after_seconds {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    *response.body_mut() = body;
    response
}

/// What came was not an HTTP/1.1 request. There are no headers to negotiate
/// with.
pub(crate) fn bad_head(error: HeadError) -> Response<Bytes> {
    let message = error.to_string();
    let answer = match error {
        HeadError::Malformed(_) => Status::bad_request(message),
        HeadError::TooLarge => Status::header_fields_too_large(message),
    };
    self::status(&answer, Format::Json)
}

/// A request head took too long to arrive.
pub(crate) fn slow_head() -> Response<Bytes> {
    let message = "the request's headers did not arrive in time (--read-header-timeout)";
    self::status(&Status::client_timeout(message), Format::Json)
}

/// Not now, but soon: nothing has been done.
pub(crate) fn later(message: impl Into<String>) -> Status {
    Status::service_unavailable(message, RETRY_AFTER_SECONDS)
}

/// Upstream, which has this name, gave no answer.
pub(crate) fn send_error(error: &SendError, name: &str) -> Status {
    match error {
        SendError::Connect(_)
        | SendError::NotProcessed(_)
        | SendError::GoneAway(_)
        | SendError::Declined(_) => Status::service_unavailable(
            format!("{name} cannot be reached: {error}"),
            RETRY_AFTER_SECONDS,
        ),
        SendError::CutOff(_) | SendError::BadAnswer(_) => Status::bad_gateway(error.to_string()),
        SendError::Client(cause) => Status::bad_request(cause.clone()),
    }
}
