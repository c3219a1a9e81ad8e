//! What is answered where upstream does not: a `metav1.Status`.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use skewbridge_api::media::{content_type, negotiate_error_format};
use skewbridge_api::status::Status;

/// Why a request was not passed on, or has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{0}")]
    NotARequest(String),
    #[error("{0}")]
    HeadTooLarge(String),
    #[error("the request's head did not come in time")]
    SlowHead,
    #[error("CONNECT is not spoken here")]
    Connect,
    #[error("the request's body ended early: {0}")]
    Body(String),
    #[error(
        "{modifier} needs the whole body of a request, and this one is longer than {limit} bytes"
    )]
    BodyTooLong { modifier: String, limit: usize },
    #[error(
        "{modifier} needs the whole body of a request, and there is no room for it: too many \
         requests with bodies are under way"
    )]
    NoRoom { modifier: String },
    #[error(
        "{modifier} needs the whole body of a request, and nothing more of it has come for {} s",
        .after.as_secs()
    )]
    StalledBody { modifier: String, after: Duration },
    #[error("{modifier}: {cause}")]
    Modifier { modifier: String, cause: String },
    /// No connection: upstream has seen nothing.
    #[error("{0}")]
    Unreachable(String),
    /// Upstream is known not to have acted.
    #[error("the server did not take the request: {0}")]
    NotProcessed(String),
    /// Upstream may have acted, and did not say.
    #[error("the server closed the connection before it answered: {0}")]
    CutOff(String),
    #[error("the server's answer cannot be understood: {0}")]
    BadAnswer(String),
}

/// When it is worth trying again where nothing was done: at once.
const RETRY_SECONDS: u32 = 1;

impl Refusal {
    fn status(&self) -> Status {
        let message = self.to_string();
        match self {
            Self::NotARequest(_) | Self::Body(_) => Status::bad_request(message),
            Self::HeadTooLarge(_) => Status::header_fields_too_large(message),
            Self::SlowHead | Self::StalledBody { .. } => Status::client_timeout(message),
            Self::Connect => Status::method_not_allowed(message),
            Self::BodyTooLong { .. } => Status::new(413, "RequestEntityTooLarge", message),
            Self::Modifier { .. } => Status::internal(message),
            Self::Unreachable(_) => Status::unavailable(message),
            Self::NoRoom { .. } | Self::NotProcessed(_) => {
                Status::service_unavailable(message, RETRY_SECONDS)
            }
            Self::CutOff(_) | Self::BadAnswer(_) => Status::bad_gateway(message),
        }
    }

    /// In a form that the sender of these headers reads.
    pub(crate) fn response(&self, asked: &HeaderMap) -> (Response<()>, Bytes) {
        let status = self.status();
        let format = negotiate_error_format(asked);
        let body = status.encode(format);
        let mut response = Response::new(());
        *response.status_mut() =
            StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, content_type(format));
        headers.insert(CONTENT_LENGTH, body.len().into());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        if let Some(seconds) = status.retry_after_seconds {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        (response, body)
    }
}
