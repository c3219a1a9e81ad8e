//! What a request takes along on its way: who asks, for what, until when.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri};
use skewbridge_k8s_api::identity::User;
use skewbridge_k8s_api::request_info::{DecodedPath, Kind, RequestInfo, Verb};
use skewbridge_k8s_api::status::Status;
use skewbridge_k8s_api::version::Version;
use tokio::time::{self, sleep};

use crate::authn::{Caller, TrustConfig};
use crate::body::ResponseBody;
use crate::cluster_state::ServedBy;
use crate::config::Limits;
use crate::handler::GatewayState;
use crate::header_metrics::HeaderLimit;
use crate::peer_metrics::PeerError;
use crate::upstream::{Pools, ProtocolPreference, SendError};

/// Said by a bridge to a peer that passed a request on: nothing has been done
/// with it, so it may be given to another server, writes included.
const NOT_PROCESSED: HeaderName = HeaderName::from_static("x-skewbridge-not-processed");

/// Said by a bridge in its answers to peers: the token of a request is verified alone here,
/// whatever certificate the peer presents beside it.
const BY_BRIDGE: HeaderName = HeaderName::from_static("x-skewbridge-answered");

/// The mark of kube-apiserver's priority and fairness.
const LET_IN: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");

/// What kube-apiserver says of a path that it does not know. A missing object is
/// told with its name instead. The words are the same in JSON, protobuf and CBOR.
const UNKNOWN_PATH: &[u8] = b"the server could not find the requested resource";

/// Longer than any such Status.
const MAX_STATUS: usize = 16 * 1024;

/// How long a peer may take to answer a read before it is asked whether it still answers
/// at all: longer than nearly all reads take.
pub(crate) const LIVENESS_CHECK_DELAY: Duration = Duration::from_secs(2);

/// How often the result of that check is read.
const LIVENESS_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Whom to answer for, and with what.
pub(crate) struct RequestContext<'a> {
    pub(crate) bridge: &'a GatewayState,
    pub(crate) pools: &'a Pools,
    pub(crate) trust: &'a TrustConfig,
    pub(crate) caller: &'a Caller,
    pub(crate) prefer: ProtocolPreference,
    pub(crate) subject: &'a Subject,
    /// It has a token that kube-apiserver has not accepted before.
    pub(crate) is_unproven: bool,
}

/// What a request is about, kept while its head is on the way. Nothing is
/// copied: it is read again in the few cases that need it.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    method: Method,
    uri: Uri,
    /// A peer has passed it on already.
    pub(crate) hopped: bool,
}

impl Subject {
    pub(crate) fn of(head: &Parts, hopped: bool) -> Self {
        Self {
            method: head.method.clone(),
            uri: head.uri.clone(),
            hopped,
        }
    }

    /// What it asks for.
    pub(crate) fn read<T>(&self, with: impl FnOnce(&RequestInfo<'_>) -> T) -> Option<T> {
        // It was read before, or it would not be on its way.
        let path = DecodedPath::new(self.uri.path()).ok()?;
        Some(with(&RequestInfo::parse(
            &self.method,
            &path,
            self.uri.query(),
        )))
    }

    /// Whether this answer says that the server knows no such path. An object
    /// that is not there is told by a Status; what a node or a workload says is its
    /// own affair.
    pub(crate) fn is_unknown(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        let is_text = |value: &HeaderValue| value.as_bytes().starts_with(b"text/plain");
        status == StatusCode::NOT_FOUND
            && headers.get(CONTENT_TYPE).is_some_and(is_text)
            && self.is_served_by_apiserver()
    }

    fn is_served_by_apiserver(&self) -> bool {
        self.read(|info| {
            let by_a_node = matches!(
                info.subresource,
                "attach" | "exec" | "log" | "portforward" | "proxy"
            );
            info.kind == Kind::Resource && info.verb != Verb::Proxy && !by_a_node
        }) == Some(true)
    }
}

/// Why there is no answer but ours.
#[derive(Debug)]
pub(crate) struct ForwardError {
    pub(crate) status: Status,
    /// It is certain that nothing has been done.
    pub(crate) untouched: bool,
}

impl ForwardError {
    pub(crate) fn perhaps_done(status: Status) -> Self {
        Self {
            status,
            untouched: false,
        }
    }
}

/// Tells a peer that nothing has been done.
pub(crate) fn not_processed(headers: &mut HeaderMap) {
    headers.insert(NOT_PROCESSED, HeaderValue::from_static("true"));
}

/// Whether it is certain that a peer has done nothing with a request: a bridge says so,
/// and a kube-apiserver that is about to end refuses before it has looked.
pub(crate) fn is_not_processed(status: StatusCode, headers: &HeaderMap) -> bool {
    (status == StatusCode::SERVICE_UNAVAILABLE && headers.contains_key(NOT_PROCESSED))
        || is_shutting_down(status, headers)
}

/// Whether these are the words of a kube-apiserver that is about to end: 503 with "apiserver
/// is shutting down", or 429 with `--shutdown-send-retry-after`. Both are written outside of
/// priority and fairness, whose mark every request bears that was let in, also one that was
/// refused later or by a server behind this one.
fn is_shutting_down(status: StatusCode, headers: &HeaderMap) -> bool {
    let after = match status {
        StatusCode::SERVICE_UNAVAILABLE => "1",
        StatusCode::TOO_MANY_REQUESTS => "5",
        _ => return false,
    };
    let is = |name: HeaderName, value: &str| headers.get(name).is_some_and(|it| it == value);
    is(RETRY_AFTER, after) && is(X_CONTENT_TYPE_OPTIONS, "nosniff") && !headers.contains_key(LET_IN)
}

/// Tells a peer that a bridge has answered.
pub(crate) fn by_bridge(headers: &mut HeaderMap) {
    headers.insert(BY_BRIDGE, HeaderValue::from_static("true"));
}

/// Whether a bridge has answered, and not a kube-apiserver.
pub(crate) fn is_by_bridge(headers: &HeaderMap) -> bool {
    headers.contains_key(BY_BRIDGE)
}

/// Removes what bridges tell each other beside an answer.
pub(crate) fn remove_between_bridges(headers: &mut HeaderMap) {
    headers.remove(NOT_PROCESSED);
    headers.remove(BY_BRIDGE);
}

impl RequestContext<'_> {
    /// Where else it is served, as far as is known.
    pub(crate) fn elsewhere(&self) -> ServedBy {
        let Some(interop) = &self.bridge.interop else {
            return ServedBy::Local;
        };
        let cluster = interop.cluster.load();
        self.subject
            .read(|info| cluster.elsewhere(info, Instant::now()))
            .unwrap_or(ServedBy::Local)
    }

    /// The answer, unless it says in a Status that the server knows no such path:
    /// that is how kube-apiserver answers for a resource, or a subresource, that a
    /// group-version it knows does not have. By then the request is gone.
    pub(crate) async fn detect_unserved_404(
        &self,
        response: Response<ResponseBody>,
    ) -> Result<Response<ResponseBody>, SendError> {
        if response.status() != StatusCode::NOT_FOUND || !self.subject.is_served_by_apiserver() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let body = body.held(MAX_STATUS).await;
        let body = body.map_err(|error| SendError::CutOff(error.to_string()))?;
        if body.begins_with_words(UNKNOWN_PATH) {
            return Err(SendError::Declined(StatusCode::NOT_FOUND));
        }
        Ok(Response::from_parts(head, body))
    }

    /// Counts a limit on headers that it has met.
    pub(crate) fn met_header_limit(&self, limit: HeaderLimit) {
        self.bridge.metrics.headers().met(limit);
    }

    /// Counts why a peer did not take it.
    pub(crate) fn count_error(&self, cause: PeerError) {
        let metrics = self.bridge.metrics.peers();
        self.subject.read(|info| metrics.error(cause, info));
    }

    /// Says who asks to the kube-apiserver behind this bridge. Nothing of the
    /// kind is in the headers yet.
    pub(crate) fn set_identity_for_local(&self, headers: &mut HeaderMap) -> Result<(), Status> {
        let upstream = self.bridge.upstream_version.load();
        self.introduce(headers, upstream.as_deref())
    }

    /// Says who asks to a peer. An anonymous request comes with the front-proxy
    /// certificate, so that anonymity has to be asserted; a token travels as it came.
    pub(crate) fn set_identity_for_peer(
        &self,
        headers: &mut HeaderMap,
        version: Option<&Version>,
    ) -> Result<(), Status> {
        self.trust.headers().remove(headers);
        if let Caller::Anonymous = self.caller {
            let nobody = User {
                name: "system:anonymous".to_owned(),
                groups: vec!["system:unauthenticated".to_owned()],
                ..User::default()
            };
            return self.assert(headers, &nobody);
        }
        self.introduce(headers, version)
    }

    fn introduce(&self, headers: &mut HeaderMap, version: Option<&Version>) -> Result<(), Status> {
        match self.caller {
            Caller::Peer(user) => self.assert(headers, user)?,
            Caller::Certificate(user) => {
                user.headers(version).apply(headers);
                headers.remove(AUTHORIZATION);
            }
            Caller::Signed(user) => {
                user.headers.apply(headers);
                headers.remove(AUTHORIZATION);
            }
            Caller::Bearer | Caller::Anonymous | Caller::Unauthorized => {}
        }
        Ok(())
    }

    fn assert(&self, headers: &mut HeaderMap, user: &User) -> Result<(), Status> {
        let written = self.trust.headers().write(headers, user);
        written.map_err(|error| Status::bad_request(error.to_string()))?;
        // What has been asserted is not to be judged a second time.
        headers.remove(AUTHORIZATION);
        Ok(())
    }
}

/// How long an answer may take to begin.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Deadline {
    /// Watches, logs and streams begin when there is something to say.
    None,
    /// Everything else.
    After(Duration),
}

impl Deadline {
    pub(crate) fn of(long_running: bool, limits: &Limits) -> Self {
        if long_running {
            Self::None
        } else {
            Self::After(limits.request_timeout + limits.answer_grace)
        }
    }

    /// Ends a request that is not answered in time. One timer also has a slow request look
    /// after [`LIVENESS_CHECK_DELAY`] whether its peer still answers: a second timer for each
    /// rerouted request would cost more than the check.
    pub(crate) async fn enforce<T>(
        self,
        sent: impl Future<Output = Result<T, ForwardError>>,
    ) -> Result<T, ForwardError> {
        let Self::After(limit) = self else {
            return sent.await;
        };
        let deadline = time::Instant::now() + limit;
        let mut timer = pin!(sleep(limit.min(LIVENESS_CHECK_DELAY)));
        let mut sent = pin!(sent);
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(answered) = sent.as_mut().poll(cx) {
                    return Poll::Ready(answered);
                }
                ready!(timer.as_mut().poll(cx));
                let now = time::Instant::now();
                if now >= deadline {
                    return Poll::Ready(Err(ForwardError::perhaps_done(Status::timeout(format!(
                        "the kube-apiserver that serves this did not answer within {} s",
                        limit.as_secs()
                    )))));
                }
                let next = deadline.min(now + LIVENESS_CHECK_INTERVAL);
                timer.as_mut().reset(next);
            }
        })
        .await
    }
}
