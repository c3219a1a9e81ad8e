//! Errors of the request path, and their responses to the client.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use skewbridge_k8s_api::content_negotiation::Format;
use skewbridge_k8s_api::status::Status;

use crate::bridge_headers::mark_not_processed;
use crate::error_response::{self, Detail};
use crate::health;
use crate::routing::Refusal;
use crate::state::GatewayState;
use crate::upstream::{RetryClass, SendError};

/// Why a bridge that drains is not ready.
const SHUTTING_DOWN: &str = "the bridge is shutting down";

/// The start of the message for a write that an admission policy may match.
const NOT_ENFORCED: &str = "no available kube-apiserver enforces the admission policies that may match \
     this write";

/// KEP-4020, Aggregation Layer, 5.
const PEER_FAILED: &str = "Error while proxying request to destination apiserver";

/// The client that gets the response to a failed request.
#[derive(Clone, Copy)]
pub(crate) struct ErrorRecipient<'a> {
    pub(crate) bridge: &'a GatewayState,
    pub(crate) format: Format,
    pub(crate) detail: Detail,
    pub(crate) is_front_proxy: bool,
}

/// A request that no server has answered.
#[derive(Debug)]
pub(crate) struct ProxyError {
    kind: ErrorKind,
    retry: Retry,
    source: Option<SendError>,
}

/// Whether the request can be retried at another server, also if it is a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    /// No server has processed it.
    Safe,
    /// A server may have processed it, or another server would reject it as well.
    Unsafe,
}

#[derive(Debug)]
enum ErrorKind {
    /// The request is invalid. The Status names no server.
    Rejected(Box<Status>),
    /// Routing has rejected it.
    Refused(Refusal),
    /// The local kube-apiserver gave no response.
    Local,
    /// The local kube-apiserver has been replaced by one that does not serve this.
    LocalReplaced,
    /// The local kube-apiserver is not ready, and has denied the request.
    DeniedAtStart,
    /// The local kube-apiserver, one of several backends, does not serve this.
    NotServedByBackend,
    /// No peer has accepted the request.
    NoPeer(String),
    /// The only peer that got the request has not processed it, but has read its body.
    NotProcessedByPeer(String),
    /// A peer may have processed the request. The response has no `Retry-After`, because a retry
    /// could process it twice.
    PeerLost(String),
    /// The response of a server cannot be used.
    Unusable(Box<Status>),
    /// No response within this time.
    Timeout(Duration),
}

impl ProxyError {
    fn new(kind: ErrorKind, retry: Retry) -> Self {
        Self {
            kind,
            retry,
            source: None,
        }
    }

    /// The request is invalid.
    pub(crate) fn rejected(status: Status) -> Self {
        Self::new(ErrorKind::Rejected(Box::new(status)), Retry::Unsafe)
    }

    /// Routing has rejected the request.
    pub(crate) fn refused(refusal: Refusal) -> Self {
        use Refusal::{NotEnforced, NotServed, PeerUnknown, PeerUnread, TooEarly};
        let retry = match refusal {
            TooEarly(_) | NotServed | PeerUnknown(_) | PeerUnread(_) | NotEnforced(_) => {
                Retry::Safe
            }
            _ => Retry::Unsafe,
        };
        Self::new(ErrorKind::Refused(refusal), retry)
    }

    /// The local kube-apiserver gave no response.
    pub(crate) fn local(error: SendError) -> Self {
        if matches!(error, SendError::Declined(StatusCode::FORBIDDEN)) {
            return Self::denied_at_start();
        }
        let retry = if error.is_safe_to_retry() {
            Retry::Safe
        } else {
            Retry::Unsafe
        };
        Self {
            source: Some(error),
            ..Self::new(ErrorKind::Local, retry)
        }
    }

    /// The local kube-apiserver has been replaced by one that does not serve this.
    pub(crate) fn local_replaced() -> Self {
        Self::new(ErrorKind::LocalReplaced, Retry::Safe)
    }

    /// The local kube-apiserver is not ready, and has denied the request.
    pub(crate) fn denied_at_start() -> Self {
        Self::new(ErrorKind::DeniedAtStart, Retry::Safe)
    }

    /// The local kube-apiserver, one of several backends, does not serve this.
    pub(crate) fn not_served_by_backend() -> Self {
        Self::new(ErrorKind::NotServedByBackend, Retry::Safe)
    }

    /// No peer has accepted the request.
    pub(crate) fn no_peer(why: impl Into<String>) -> Self {
        Self::new(ErrorKind::NoPeer(why.into()), Retry::Safe)
    }

    /// A peer has read the request and not processed it, so the bridge cannot send it again.
    pub(crate) fn not_processed_by_peer(why: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotProcessedByPeer(why.into()), Retry::Safe)
    }

    /// The same error for a request that only servers that enforce these kinds of policies may get.
    pub(crate) fn of_policy_enforcement(mut self, kinds: &str) -> Self {
        if let ErrorKind::NoPeer(why) = &mut self.kind {
            *why = format!("{NOT_ENFORCED}: {kinds}; {why}");
        }
        self
    }

    /// Whether no peer has accepted the request, so that the bridge can still send it to the local
    /// server.
    pub(crate) fn is_unsent(&self) -> bool {
        matches!(self.kind, ErrorKind::NoPeer(_))
    }

    /// Whether the request can be sent to another backend: no server has processed it, or it is a
    /// read whose response was lost.
    pub(crate) fn permits_other_backend(&self, retry_class: RetryClass) -> bool {
        let is_lost_read = retry_class == RetryClass::Idempotent
            && matches!(self.kind, ErrorKind::Local | ErrorKind::PeerLost(_))
            && !matches!(self.source, Some(SendError::Client(_)));
        self.retry == Retry::Safe || is_lost_read
    }

    /// The same error of a read or dry run that precedes a write: the write has not been sent.
    pub(crate) fn before_write(mut self) -> Self {
        let is_of_client = matches!(self.source, Some(SendError::Client(_)));
        if matches!(self.kind, ErrorKind::Local | ErrorKind::PeerLost(_)) && !is_of_client {
            self.retry = Retry::Safe;
            if let ErrorKind::PeerLost(why) = self.kind {
                self.kind = ErrorKind::NoPeer(why);
            }
        }
        self
    }

    /// Whether no server has processed the request.
    pub(crate) fn is_safe(&self) -> bool {
        self.retry == Retry::Safe
    }

    /// Whether no available server enforces the policies that may match the write.
    pub(crate) fn is_of_policy_enforcement(&self) -> bool {
        match &self.kind {
            ErrorKind::Refused(Refusal::NotEnforced(_) | Refusal::PeerUnread(_)) => true,
            ErrorKind::NoPeer(why) => why.starts_with(NOT_ENFORCED),
            _ => false,
        }
    }

    /// Whether the local server cannot be used at the moment.
    pub(crate) fn is_failure_of_local(&self) -> bool {
        matches!(self.kind, ErrorKind::Local) && !matches!(self.source, Some(SendError::Client(_)))
    }

    /// A peer may have processed the request.
    pub(crate) fn peer_lost(why: impl Into<String>) -> Self {
        Self::new(ErrorKind::PeerLost(why.into()), Retry::Unsafe)
    }

    /// A peer gave no response; the request can be retried at another one.
    pub(crate) fn peer(error: SendError) -> Self {
        let peer = Self::no_peer(error.to_string());
        Self {
            source: Some(error),
            ..peer
        }
    }

    /// The response of a server cannot be used.
    pub(crate) fn unusable(status: Status) -> Self {
        Self::new(ErrorKind::Unusable(Box::new(status)), Retry::Unsafe)
    }

    /// No response within this time.
    pub(crate) fn timeout(limit: Duration) -> Self {
        Self::new(ErrorKind::Timeout(limit), Retry::Unsafe)
    }

    /// The error of the connection, or this error if there is none.
    pub(crate) fn into_source(self) -> Result<SendError, Self> {
        match self.source {
            Some(source) => Ok(source),
            None => Err(self),
        }
    }

    /// The Status of this error, with names and addresses.
    pub(crate) fn status(&self, state: &GatewayState) -> Status {
        match &self.kind {
            ErrorKind::Rejected(status) | ErrorKind::Unusable(status) => (**status).clone(),
            ErrorKind::Refused(refusal) => refusal_status(refusal, state),
            ErrorKind::Local => match &self.source {
                Some(SendError::Client(cause)) => Status::bad_request(cause.clone()),
                Some(error) if self.retry == Retry::Safe => error_response::retry_later(format!(
                    "{} cannot be reached: {error}",
                    state.upstream_name()
                )),
                Some(error) => Status::bad_gateway(error.to_string()),
                None => Status::bad_gateway("no response"),
            },
            ErrorKind::LocalReplaced | ErrorKind::NotServedByBackend => {
                error_response::retry_later(format!(
                    "{} does not serve this any more; discovery of other servers is in progress",
                    state.upstream_name()
                ))
            }
            ErrorKind::DeniedAtStart => error_response::retry_later(format!(
                "{} is not ready and denies requests; it may be starting",
                state.upstream_name()
            )),
            ErrorKind::NoPeer(why) | ErrorKind::NotProcessedByPeer(why) => {
                error_response::retry_later(format!("{PEER_FAILED}: {why}"))
            }
            ErrorKind::PeerLost(why) => Status::unavailable(format!("{PEER_FAILED}: {why}")),
            ErrorKind::Timeout(limit) => Status::timeout(format!(
                "the kube-apiserver that serves this did not answer within {} s",
                limit.as_secs()
            )),
        }
    }

    /// The status code of the response to the client.
    pub(crate) fn code(&self, state: &GatewayState) -> StatusCode {
        let code = StatusCode::from_u16(self.status(state).code);
        code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The response to the client. For a peer, a header marks a request that can be retried at
    /// another server.
    pub(crate) fn respond(&self, recipient: ErrorRecipient<'_>) -> Response<Bytes> {
        if let ErrorKind::Refused(Refusal::NotReady) = &self.kind {
            return health::not_ready(SHUTTING_DOWN);
        }
        let status = self.status(recipient.bridge);
        let mut response = match &self.kind {
            ErrorKind::Rejected(_) => error_response::status(&status, recipient.format),
            _ => error_response::status(&recipient.detail.of_status(&status), recipient.format),
        };
        if recipient.is_front_proxy && self.retry == Retry::Safe {
            mark_not_processed(response.headers_mut());
        }
        response
    }
}

fn refusal_status(refusal: &Refusal, state: &GatewayState) -> Status {
    match refusal {
        Refusal::NotReady => Status::unavailable(SHUTTING_DOWN),
        Refusal::Unauthorized => Status::unauthorized(),
        Refusal::CannotAssert => Status::internal(
            "this bridge has no --proxy-client-cert-file to assert an identity with",
        ),
        Refusal::Loop => Status::loop_detected(
            "this request has passed this bridge before: --upstream leads back to it",
        ),
        Refusal::TooEarly(missing) => error_response::retry_later(format!(
            "the bridge of {} has just started and has not read {} yet",
            state.upstream_name(),
            missing.as_str()
        )),
        Refusal::NotServed => error_response::retry_later(format!(
            "a peer sent this request to {}, which does not serve it any more",
            state.upstream_name()
        )),
        Refusal::PeerUnknown(identity) => {
            error_response::retry_later(match &state.cluster_handle {
                Some(cluster_handle) => cluster_handle.unknown_peer(identity),
                None => format!("not served here, and the APIs of {identity} are not known yet"),
            })
        }
        Refusal::PeerUnread(identity) => {
            let name = match (&state.cluster_handle, identity.address()) {
                (Some(cluster_handle), None) => cluster_handle.name_of(identity),
                // Any client may read this text: it contains no address.
                _ => "a kube-apiserver whose identity is not known".to_owned(),
            };
            error_response::retry_later(format!(
                "{name} has not answered since the bridge has started, and the write may need its \
                 fields or admission policies"
            ))
        }
        Refusal::NotEnforced(kinds) => {
            error_response::retry_later(format!("{NOT_ENFORCED}: {kinds}"))
        }
    }
}
