//! Why a request was not forwarded or has no response, and the `metav1.Status` for the client.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response};
use skewbridge_http_engine::client::SendError;
use skewbridge_http_engine::error_response;
use skewbridge_k8s_api::content_negotiation::negotiate_error_format;
use skewbridge_k8s_api::status::Status;

/// Why a request was not forwarded, or has no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    #[error("{0}")]
    InvalidRequest(String),
    #[error("{0}")]
    HeadersTooLarge(String),
    #[error("CONNECT is not supported")]
    Connect,
    #[error(
        "{modifier} needs the whole body of a request, and this one is longer than {limit} bytes"
    )]
    BodyTooLong { modifier: String, limit: usize },
    #[error(
        "{modifier} needs the whole request body, but the memory for request bodies is exhausted: \
         too many requests with bodies are in flight"
    )]
    BodyBudgetExhausted { modifier: String },
    #[error(
        "{modifier} needs the whole body of a request, and no further part of it has arrived for \
         {} s",
        .after.as_secs()
    )]
    StalledBody { modifier: String, after: Duration },
    #[error("{modifier}: {cause}")]
    Modifier { modifier: String, cause: String },
    /// No connection: the server has received nothing.
    #[error("{0}")]
    Unreachable(String),
    /// The server is known not to have processed the request.
    #[error("the server did not process the request: {0}")]
    NotProcessed(String),
    /// The server may have processed the request, and did not answer.
    #[error("the server closed the connection before it responded: {0}")]
    ConnectionLost(String),
    #[error("the server's response is not valid HTTP: {0}")]
    InvalidResponse(String),
}

/// `Retry-After` of a request that was not processed.
const RETRY_AFTER_SECONDS: u32 = 1;

impl From<SendError> for ForwardError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Connect(error) => Self::Unreachable(error.to_string()),
            SendError::NotProcessed(cause) | SendError::GoAway(cause) => Self::NotProcessed(cause),
            SendError::ConnectionLost(cause) => Self::ConnectionLost(cause),
            SendError::InvalidResponse(cause) => Self::InvalidResponse(cause),
            SendError::Client(cause) => Self::InvalidRequest(cause),
            // No response is declined here.
            error @ SendError::Declined(_) => Self::InvalidResponse(error.to_string()),
        }
    }
}

impl ForwardError {
    fn status(&self) -> Status {
        let message = self.to_string();
        match self {
            Self::InvalidRequest(_) => Status::bad_request(message),
            Self::HeadersTooLarge(_) => Status::header_fields_too_large(message),
            Self::StalledBody { .. } => Status::client_timeout(message),
            Self::Connect => Status::method_not_allowed(message),
            Self::BodyTooLong { .. } => Status::new(413, "RequestEntityTooLarge", message),
            Self::Modifier { .. } => Status::internal(message),
            Self::Unreachable(_) => Status::unavailable(message),
            Self::BodyBudgetExhausted { .. } | Self::NotProcessed(_) => {
                Status::service_unavailable(message, RETRY_AFTER_SECONDS)
            }
            Self::ConnectionLost(_) | Self::InvalidResponse(_) => Status::bad_gateway(message),
        }
    }

    /// The response in the client's negotiated error format.
    pub(super) fn response(&self, request: &HeaderMap) -> Response<Bytes> {
        let mut response = error_response::status(&self.status(), negotiate_error_format(request));
        if requests_aggregated_discovery(request) {
            *response.body_mut() = Bytes::from(self.to_string());
            let length = response.body().len();
            let headers = response.headers_mut();
            let text = HeaderValue::from_static("text/plain; charset=utf-8");
            headers.insert(CONTENT_TYPE, text);
            headers.insert(CONTENT_LENGTH, length.into());
        }
        response
    }
}

/// Whether a client requests aggregated discovery. client-go does not decode a Status there:
/// kubectl prints the body of a text/plain response, and `unknown` for any other.
fn requests_aggregated_discovery(request: &HeaderMap) -> bool {
    let mut accepted = request.get_all(ACCEPT).iter();
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
        let error = ForwardError::Modifier {
            modifier: "sigv4".to_owned(),
            cause: "no AWS credentials".to_owned(),
        };
        let discovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                         application/json";
        for (accept, kind) in [
            ("application/json", "application/json"),
            (discovery, "text/plain; charset=utf-8"),
        ] {
            let mut request_headers = HeaderMap::new();
            request_headers.insert(ACCEPT, HeaderValue::from_static(accept));
            let response = error.response(&request_headers);
            assert_eq!(response.status(), 500);
            assert_eq!(response.headers()[CONTENT_TYPE], kind);
            let text = String::from_utf8(response.body().to_vec()).unwrap();
            assert!(text.contains("sigv4: no AWS credentials"), "{text}");
            assert_eq!(text.starts_with('{'), accept == "application/json");
        }
    }
}
