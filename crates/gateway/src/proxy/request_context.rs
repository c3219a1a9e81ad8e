//! The context of a request, and its deadline.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_http_engine::buffer_budget::ClientLimits;
use skewbridge_http_engine::header_bounds::HeaderLimit;
use skewbridge_k8s_api::component::Component;
use skewbridge_k8s_api::content_negotiation::Format;
use skewbridge_k8s_api::forwarding_headers::PEER_PROXIED;
use skewbridge_k8s_api::identity::User;
use skewbridge_k8s_api::request_info::{Kind, RequestInfo, Verb};
use skewbridge_k8s_api::status::Status;
use skewbridge_k8s_api::version::Version;
use skewbridge_peer_directory::{Identity, Peer};
use tokio::time::{self, sleep};

use super::error::{ErrorRecipient, ProxyError};
use crate::access_log::AccessLogEntry;
use crate::activity::tap::TapKind;
use crate::authentication_limit::Attempt;
use crate::authn::{Caller, TrustConfig};
use crate::balancer::{BackendList, BalancedBackend};
use crate::client_connection::{ClientConnection, TokenLocation};
use crate::cluster_state::ServedBy;
use crate::config::Limits;
use crate::error_response::Detail;
use crate::metrics::peers::PeerErrorType;
use crate::placement_rule::{Rule, RuleSet};
use crate::routing::{self, PlacementInput, Refusal};
use crate::state::GatewayState;
use crate::upstream::{Pool, Pools, SendError, UpstreamIdentity};

/// The message of kube-apiserver's 404 for a path that it does not serve. The message for a missing
/// object contains its name instead. The text is the same in JSON, protobuf and CBOR.
const UNKNOWN_PATH: &[u8] = b"the server could not find the requested resource";

/// Larger than any such Status.
const MAX_STATUS_BYTES: usize = 16 * 1024;

/// The time after which a peer that has not answered a read is polled: longer than nearly all reads
/// take.
pub(crate) const LIVENESS_CHECK_DELAY: Duration = Duration::from_secs(2);

/// The interval at which the result of that poll is checked.
const LIVENESS_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The handling of a request that its backend has certainly not processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterBackend {
    /// The client gets the response of this backend, or an error.
    Respond,
    /// Another backend gets the request.
    TryNext,
}

/// The context of a request, from its authentication to its response. The target is parsed once.
pub(crate) struct RequestContext<'a> {
    /// All backends, as they were when the request began.
    pub(crate) backends: &'a BackendList,
    /// The state of the backend that gets the request.
    pub(crate) bridge: &'a GatewayState,
    pub(crate) pools: &'a Pools,
    /// The backend among others; `None` for a sole one.
    pub(crate) member: Option<&'a BalancedBackend>,
    /// What happens to the request if this backend does not accept it.
    pub(crate) after_backend: AfterBackend,
    pub(crate) client: &'a ClientConnection,
    pub(crate) limits: &'a ClientLimits,
    pub(crate) trust: Arc<TrustConfig>,
    pub(crate) info: RequestInfo<'a>,
    /// The component that sends the request, if its server must not be older.
    pub(crate) component: Option<Component<'a>>,
    /// Inputs of the placement rules.
    pub(crate) placement: PlacementInput,
    pub(crate) caller: Caller,
    /// The connection has the certificate of a peer or front proxy.
    pub(crate) from_front_proxy: bool,
    /// A peer has rerouted the request.
    pub(crate) rerouted: bool,
    pub(crate) token_place: Option<TokenLocation>,
    /// The request has a token that kube-apiserver has not accepted before.
    pub(crate) has_unauthenticated_token: bool,
    /// Counts the authentication, if kube-apiserver verifies the credential.
    pub(crate) attempt: Option<Attempt<'a>>,
    /// The media type of errors.
    pub(crate) format: Format,
    pub(crate) detail: Detail,
}

impl RequestContext<'_> {
    /// The request is rerouted or refused: it may be captured for the status page.
    pub(crate) fn tap(&self, kind: TapKind, record: &mut AccessLogEntry) {
        let user = self.caller.name();
        record.tap(kind, self.info.verb.as_str(), self.info.path, user);
    }

    /// Whether another backend gets the request if this one does not process it.
    pub(crate) fn may_try_next_backend(&self) -> bool {
        self.after_backend == AfterBackend::TryNext
    }

    /// Whether kube-apiserver may end the connection after its response: for an anonymous request,
    /// and for a token that it has not accepted before.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        matches!(self.caller, Caller::Anonymous) || self.has_unauthenticated_token
    }

    /// Whether a response means that the server does not serve the path. For an object that does
    /// not exist the response is a Status. Responses of nodes and workloads do not count.
    pub(crate) fn is_unknown_path(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        let is_text = |value: &HeaderValue| value.as_bytes().starts_with(b"text/plain");
        status == StatusCode::NOT_FOUND
            && headers.get(CONTENT_TYPE).is_some_and(is_text)
            && self.is_served_by_apiserver()
    }

    fn is_served_by_apiserver(&self) -> bool {
        let served_by_node = matches!(
            self.info.subresource,
            "attach" | "exec" | "log" | "portforward" | "proxy"
        );
        self.info.kind == Kind::Resource && self.info.verb != Verb::Proxy && !served_by_node
    }

    /// The same request, of the user of the bridge.
    pub(super) fn as_bridge_user(&self) -> RequestContext<'_> {
        let user = &self.bridge.bridge_user;
        RequestContext {
            backends: self.backends,
            bridge: self.bridge,
            pools: self.pools,
            member: self.member,
            after_backend: self.after_backend,
            client: self.client,
            limits: self.limits,
            trust: self.trust.clone(),
            info: self.info.clone(),
            component: self.component,
            placement: self.placement,
            caller: Caller::Asserted(User {
                name: user.name.clone(),
                groups: user.groups.clone(),
                ..User::default()
            }),
            from_front_proxy: false,
            rerouted: false,
            token_place: None,
            has_unauthenticated_token: false,
            attempt: None,
            format: self.format,
            detail: self.detail,
        }
    }

    /// The client, as the response to a failed request needs it.
    pub(super) fn error_recipient(&self) -> ErrorRecipient<'_> {
        ErrorRecipient {
            bridge: self.bridge,
            format: self.format,
            detail: self.detail,
            is_front_proxy: self.from_front_proxy,
        }
    }

    /// Connections to the local server on which users are asserted.
    pub(super) fn front_proxy_pool(&self) -> Result<Arc<Pool>, ProxyError> {
        let (targets, metrics) = (&self.bridge.targets, &self.bridge.metrics);
        let pool = self
            .pools
            .of(UpstreamIdentity::FrontProxy, targets, metrics);
        pool.ok_or_else(|| ProxyError::refused(Refusal::CannotAssert))
    }

    /// The peers that the request can be sent to if the local server does not serve it, in groups
    /// of equally good ones, the best first.
    pub(crate) fn place_among_peers(&self) -> Vec<Vec<Arc<Peer>>> {
        let Some(cluster_handle) = &self.bridge.cluster_handle else {
            return Vec::new();
        };
        let cluster = cluster_handle.cluster.load();
        routing::place_among_peers(&self.info, self.placement, &cluster, Instant::now())
    }

    /// The available peers that the request can be sent to if the local server does not process it,
    /// in groups of equally good ones, the best first. Beside other backends there are none: those get
    /// the request.
    pub(crate) fn place_elsewhere(&self) -> Vec<Vec<Arc<Peer>>> {
        let cluster_handle = self.bridge.cluster_handle.as_ref();
        let Some(cluster_handle) =
            cluster_handle.filter(|_| !self.rerouted && self.member.is_none())
        else {
            return Vec::new();
        };
        let cluster = cluster_handle.cluster.load();
        routing::place_elsewhere(&self.info, self.placement, &cluster, Instant::now())
    }

    /// The rules that a server does not satisfy for the request; `None` is the local server.
    pub(crate) fn unmet_by(&self, server: Option<&Identity>) -> RuleSet {
        let Some(cluster_handle) = &self.bridge.cluster_handle else {
            return RuleSet::EMPTY;
        };
        let cluster = cluster_handle.cluster.load();
        routing::unmet_by(&self.info, self.placement, &cluster, Instant::now(), server)
    }

    /// The peers that serve the request, as far as is known.
    pub(crate) fn served_by_peers(&self) -> ServedBy {
        let Some(cluster_handle) = &self.bridge.cluster_handle else {
            return ServedBy::Local;
        };
        let cluster = cluster_handle.cluster.load();
        cluster.served_by_peers(&self.info, Instant::now())
    }

    /// Returns the response, or an error if it is a Status for a path that the server does not
    /// serve. kube-apiserver answers with such a Status if it serves the group-version, but not the
    /// resource or subresource. The request has been consumed by then.
    pub(crate) async fn detect_false_404(
        &self,
        response: Response<ResponseBody>,
    ) -> Result<Response<ResponseBody>, SendError> {
        if response.status() != StatusCode::NOT_FOUND || !self.is_served_by_apiserver() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let body = body.buffer_start(MAX_STATUS_BYTES).await;
        let body = body.map_err(|error| SendError::ConnectionLost(error.to_string()))?;
        if body.buffered_start_contains(UNKNOWN_PATH) {
            return Err(SendError::Declined(StatusCode::NOT_FOUND));
        }
        Ok(Response::from_parts(head, body))
    }

    /// The error of a write that no enforcing peer has accepted, and counts it.
    pub(crate) fn note_unenforced(&self, error: ProxyError) -> ProxyError {
        let Some(cluster_handle) = self.bridge.cluster_handle.as_ref() else {
            return error;
        };
        if error.is_unsent() {
            self.bridge.metrics.placement().unmet(Rule::Admission);
        }
        let cluster = cluster_handle.cluster.load();
        error.of_policy_enforcement(&cluster.policies.describe_matching(&self.info))
    }

    /// Counts a header limit that the request has reached.
    pub(crate) fn met_header_limit(&self, limit: HeaderLimit) {
        self.bridge.metrics.headers().record(limit);
    }

    /// Counts why a peer did not accept the request.
    pub(crate) fn count_error(&self, cause: PeerErrorType) {
        let metrics = self.bridge.metrics.peers();
        metrics.error(cause, &self.info);
    }

    /// Sets the identity headers for the local kube-apiserver. Identity headers of the client have
    /// been removed.
    pub(crate) fn set_identity_for_local(&self, headers: &mut HeaderMap) -> Result<(), Status> {
        let upstream = self.bridge.upstream_version.load();
        self.set_identity_headers(headers, upstream.as_deref())
    }

    /// Sets the identity headers for a peer. An anonymous request is sent with the front-proxy
    /// certificate, so `system:anonymous` has to be asserted. A bearer token is forwarded as it is.
    pub(crate) fn set_identity_for_peer(
        &self,
        headers: &mut HeaderMap,
        version: Option<&Version>,
    ) -> Result<(), Status> {
        self.trust.headers().remove(headers);
        if let Caller::Anonymous = self.caller {
            let anonymous = User {
                name: "system:anonymous".to_owned(),
                groups: vec!["system:unauthenticated".to_owned()],
                ..User::default()
            };
            return self.assert(headers, &anonymous);
        }
        self.set_identity_headers(headers, version)
    }

    /// Removes what [`Self::set_identity_for_peer`] and the hop to a peer have added.
    pub(crate) fn clear_identity_for_peer(&self, headers: &mut HeaderMap) {
        self.trust.headers().remove(headers);
        headers.remove(PEER_PROXIED);
    }

    fn set_identity_headers(
        &self,
        headers: &mut HeaderMap,
        version: Option<&Version>,
    ) -> Result<(), Status> {
        match &self.caller {
            Caller::Asserted(user) => self.assert(headers, user)?,
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
        // An asserted user must not be authenticated again by a token.
        headers.remove(AUTHORIZATION);
        Ok(())
    }
}

/// The deadline for the head of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Deadline {
    /// Watches, logs and streams: their responses may begin late.
    None,
    /// All other requests.
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

    /// Ends a request that is not answered in time. The same timer wakes a slow request after
    /// [`LIVENESS_CHECK_DELAY`], so that it checks whether its peer still answers: a second timer
    /// for each rerouted request would cost more than the check. `sent` is pinned by the caller,
    /// because it is large and would be copied.
    pub(crate) async fn enforce<T>(
        self,
        mut sent: Pin<&mut impl Future<Output = Result<T, ProxyError>>>,
    ) -> Result<T, ProxyError> {
        let Self::After(limit) = self else {
            return sent.await;
        };
        let deadline = time::Instant::now() + limit;
        let mut timer = pin!(sleep(limit.min(LIVENESS_CHECK_DELAY)));
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(result) = sent.as_mut().poll(cx) {
                    return Poll::Ready(result);
                }
                ready!(timer.as_mut().poll(cx));
                let now = time::Instant::now();
                if now >= deadline {
                    return Poll::Ready(Err(ProxyError::timeout(limit)));
                }
                let next = deadline.min(now + LIVENESS_CHECK_INTERVAL);
                timer.as_mut().reset(next);
            }
        })
        .await
    }
}
