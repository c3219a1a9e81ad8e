//! What is answered where upstream does not: a `metav1.Status`.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use skewbridge_k8s_api::content_negotiation::{content_type, negotiate_error_format};
use skewbridge_k8s_api::status::Status;

/// Why a request was not passed on, or has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{0}")]
    NotARequest(String),
    #[error("{0}")]
    HeadTooLarge(String),
    #[error("{0}")]
    TargetTooLong(String),
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
            Self::TargetTooLong(_) => Status::uri_too_long(message),
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
        let (kind, body) = if asks_for_aggregated_discovery(asked) {
            let text = HeaderValue::from_static("text/plain; charset=utf-8");
            (text, Bytes::from(self.to_string()))
        } else {
            let format = negotiate_error_format(asked);
            (content_type(format), status.encode(format))
        };
        let mut response = Response::new(());
        *response.status_mut() =
            StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, kind);
        headers.insert(CONTENT_LENGTH, body.len().into());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        if let Some(seconds) = status.retry_after_seconds {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        (response, body)
    }
}

/// Whether a client asks for aggregated discovery. client-go does not decode a Status there:
/// kubectl prints the text of an answer in text, and `unknown` for any other.
fn asks_for_aggregated_discovery(asked: &HeaderMap) -> bool {
    let mut accepted = asked.get_all(ACCEPT).iter();
    accepted.any(|value| {
        let value = String::from_utf8_lossy(value.as_bytes());
        value.contains("g=apidiscovery.k8s.io")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_can_show_why_discovery_failed() {
        let refusal = Refusal::Modifier {
            modifier: "sigv4".to_owned(),
            cause: "no AWS credentials".to_owned(),
        };
        let discovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                         application/json";
        for (accept, kind) in [
            ("application/json", "application/json"),
            (discovery, "text/plain; charset=utf-8"),
        ] {
            let mut asked = HeaderMap::new();
            asked.insert(ACCEPT, HeaderValue::from_static(accept));
            let (response, body) = refusal.response(&asked);
            assert_eq!(response.status(), 500);
            assert_eq!(response.headers()[CONTENT_TYPE], kind);
            let text = String::from_utf8(body.to_vec()).unwrap();
            assert!(text.contains("sigv4: no AWS credentials"), "{text}");
            assert_eq!(text.starts_with('{'), accept == "application/json");
        }
    }
}
