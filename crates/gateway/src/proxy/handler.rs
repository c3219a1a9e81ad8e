//! The request handler: authenticates a request, parses its target, routes it, sends it and
//! responds.

mod authentication;
mod request_head;
mod response;
mod routed_request;
mod shared_api_write;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{UPGRADE, USER_AGENT, WARNING};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, Version};
use skewbridge_http_engine::body::{RequestBody, ResponseBody};
use skewbridge_http_engine::buffer_budget::ClientLimits;
use skewbridge_http_engine::close_connection::CloseConnection;
use skewbridge_http_engine::header_bounds::HeaderLimit;
use skewbridge_http_engine::server::{ClientResponse, Service, UpgradeHandler};
use skewbridge_k8s_api::content_negotiation::{Format, negotiate_error_format};
use skewbridge_k8s_api::forwarding_headers;
use skewbridge_k8s_api::request_info::RequestInfo;
use skewbridge_k8s_api::status::Status;

use self::authentication::AuthenticatedRequest;
use self::request_head::{decoded_path, strip_hop_by_hop, take_head};
use self::response::{count_at_answering_backend, finish, finish_headers, goes_away};
use self::routed_request::{RoutedRequest, confirm_servers, needs_confirmation, note_unmet, route};
use self::shared_api_write::SharedApiWrite;
use super::discovery::Intercept;
use super::error::ProxyError;
use super::outbound::{Destination, OutboundRequest, replay_body};
use super::policy_write;
use super::proxied_response::ProxiedResponse;
use super::request_context::{AfterBackend, Deadline, RequestContext};
use super::stream_handshake;
use super::update_guard::{Checked, UpdateGuard};
use crate::access_log::AccessLogEntry;
use crate::activity::open_requests;
use crate::activity::tap::TapKind;
use crate::authentication_limit::Outcome;
use crate::authn::{AuthnResult, Caller, ClientCertState};
use crate::balancer::{BackendSet, Backends, has_other_usable};
use crate::client_connection::{ClientConnection, TokenLocation};
use crate::error_response::{self, Detail};
use crate::request_class::RequestClass;
use crate::state::GatewayState;
use crate::streams::UpgradeRequest;
use crate::upstream::{ProtocolPreference, ReplayBody, RetryClass, UpstreamResponse};
use crate::vanishing::observation::Observation;

/// The warning for a write whose body was completed (`update_guard`).
const FIELDS_KEPT: &str = "299 - \"fields that not every kube-apiserver has were kept; use a strategic \
                           merge patch or apply to remove them\"";

/// Handles the requests of one client connection.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionHandler(pub(crate) Arc<ConnectionState>);

#[derive(Debug)]
pub(crate) struct ConnectionState {
    /// The state of the first backend, for what concerns clients.
    pub(crate) bridge: Arc<GatewayState>,
    pub(crate) backends: Arc<Backends>,
    /// The number of the worker, which has its own connections to upstream.
    pub(crate) worker: usize,
    pub(crate) client: Arc<ClientConnection>,
    pub(crate) limits: ClientLimits,
    pub(crate) client_cert: ClientCertState,
}

impl Service for ConnectionHandler {
    type Record = AccessLogEntry;

    const HEAD_TIMEOUT_FLAG: Option<&'static str> = Some("--read-header-timeout");

    fn limits(&self) -> &ClientLimits {
        &self.0.limits
    }

    fn met_header_limit(&self, limit: HeaderLimit) {
        self.0.bridge.metrics.headers().record(limit);
    }

    fn refused(&self, status: StatusCode) {
        let bridge = &self.0.bridge;
        let mut record = AccessLogEntry::begin(&bridge.metrics, &bridge.activity);
        record.route("rejected");
        record.status(status);
        record.complete();
    }

    async fn call(&self, request: Request<RequestBody>) -> ClientResponse<AccessLogEntry> {
        let bridge = &*self.0.bridge;
        let mut record = AccessLogEntry::begin(&bridge.metrics, &bridge.activity);
        self.0.client.note_request();
        let (mut head, body) = request.into_parts();
        let is_h2 = head.version == Version::HTTP_2;
        record.user_agent(head.headers.get(USER_AGENT).cloned());
        if bridge.access_log {
            record.log(&head, self.0.client.source());
        }
        let handled = match self.reject_protected_connection_header(&head) {
            None => self.handle(&mut head, body, &mut record).await,
            Some(status) => {
                let format = negotiate_error_format(&head.headers);
                Err(rejection(&status, format, &head, &mut record))
            }
        };
        match handled {
            Ok(ProxiedResponse {
                mut response,
                upgrade,
            }) => {
                if upgrade.is_none() {
                    finish_headers(&mut response);
                    if is_h2 && goes_away(bridge.limits.goaway_chance, &self.0.backends) {
                        response.extensions_mut().insert(CloseConnection);
                    }
                }
                record.audit_id(response.headers());
                record.status(response.status());
                if response.status().is_success() || upgrade.is_some() {
                    record.accepted();
                }
                ClientResponse {
                    response,
                    switched: upgrade.map(|stream| {
                        UpgradeHandler::new(|io, input, record| stream.run(io, input, record))
                    }),
                    record,
                }
            }
            Err(mut refused) => {
                record.status(refused.status());
                if is_h2 && refused.status() == StatusCode::UNAUTHORIZED && self.ends_anonymous() {
                    refused.extensions_mut().insert(CloseConnection);
                }
                ClientResponse {
                    response: refused.map(ResponseBody::full),
                    switched: None,
                    record,
                }
            }
        }
    }
}

impl ConnectionHandler {
    /// Whether kube-apiserver ends HTTP/2 connections of anonymous callers.
    fn ends_anonymous(&self) -> bool {
        let bridge = &*self.0.bridge;
        let backends = self.0.backends.all();
        let pools = backends.first().map(|it| &it.pools[self.0.worker]);
        let pool = pools.map(|it| it.anonymous(&bridge.targets, &bridge.metrics));
        pool.is_some_and(|it| it.ends_anonymous_connections())
    }

    async fn handle(
        &self,
        head: &mut Parts,
        body: RequestBody,
        record: &mut AccessLogEntry,
    ) -> Result<ProxiedResponse, Response<Bytes>> {
        let bridge = &*self.0.bridge;
        let trust = bridge.live.trust.load_full();
        let format = negotiate_error_format(&head.headers);
        let switch = UpgradeRequest::parse(&head.method, &head.headers);
        let upgrade = strip_hop_by_hop(head);
        let authenticated = self.authenticate(&trust, head, body).await;
        let AuthenticatedRequest {
            authn,
            body,
            attempt,
        } = authenticated.map_err(|status| rejection(&status, format, head, record))?;
        let AuthnResult {
            caller,
            from_front_proxy,
        } = authn;
        record.caller(caller.name());
        self.0.client.note_caller(&caller);
        let rerouted = from_front_proxy && forwarding_headers::has_peer_hop(&head.headers);
        let observation = Observation::of(&caller, from_front_proxy, &head.headers);
        trust.headers().remove(&mut head.headers);
        if !from_front_proxy {
            forwarding_headers::remove_peer_hop_headers(&mut head.headers);
        }

        let detail = Detail::of(&caller, &self.0.client, from_front_proxy);
        let token_place = TokenLocation::of(&caller, head);
        let token = self.unauthenticated_token(&caller, head);
        // The head is forwarded; the context keeps the method and the URI that it was parsed from.
        let (method, uri) = (head.method.clone(), head.uri.clone());
        let user_agent = head.headers.get(USER_AGENT).cloned();
        let path = decoded_path(&method, &uri)
            .map_err(|status| error_response::status(&status, format))?;
        let component = user_agent
            .as_ref()
            .and_then(|it| bridge.guards.components.find(it.to_str().ok()?));
        let info = RequestInfo::parse(&method, &path, uri.query());
        let class = RequestClass::of(info.is_long_running());
        if class == RequestClass::LongRunning {
            record.long_running(open_requests::long_running_kind(&info), caller.name());
        }
        let mut tried = BackendSet::default();
        // `choose` returns `None` only if all backends have been tried.
        let backends = self.0.backends.all();
        let first = self.0.backends.choose(&backends, tried, class).unwrap_or(0);
        tried.insert(first);
        let backend = &backends[first];
        let mut context = RequestContext {
            backends: &backends,
            bridge: &backend.state,
            pools: &backend.pools[self.0.worker],
            member: backend.member.as_ref(),
            after_backend: if self.0.backends.is_balanced() {
                AfterBackend::TryNext
            } else {
                AfterBackend::Respond
            },
            client: &self.0.client,
            limits: &self.0.limits,
            trust,
            info,
            component,
            placement: bridge.placement_input(component),
            caller,
            from_front_proxy,
            rerouted,
            token_place,
            has_unauthenticated_token: token
                .is_some_and(|it| !bridge.authentication_limit.is_accepted(it)),
            attempt,
            format,
            detail,
        };
        let request = RoutableRequest::new(&context, head, body, (upgrade, switch));
        let shared_api_write = SharedApiWrite::of(&context);
        let proxied = self.proxy(&mut context, head, request, tried, record).await;
        if let Some(write) = shared_api_write {
            write.settle(proxied.as_ref().ok());
        }
        if let (Some(observation), Ok(ProxiedResponse { response, .. })) = (observation, &proxied)
            && !context.is_unknown_path(response.status(), response.headers())
        {
            let (info, caller, agent) = (&context.info, &context.caller, user_agent.as_ref());
            observation.record(&bridge.ledger, info, caller, agent, response);
        }
        if let Ok(ProxiedResponse { response, .. }) = &proxied {
            let (agent, status) = (user_agent.as_ref(), response.status());
            (bridge.leaders).record(&context.info, agent, status, Instant::now);
        }
        proxied.map_err(|error| {
            context.tap(TapKind::Refused, record);
            if let Some(attempt) = &context.attempt {
                attempt.settle(Outcome::Undecided);
            }
            error.respond(context.error_recipient())
        })
    }

    /// Sends a request to its backend, and to the others as long as no server has processed it.
    async fn proxy<'a>(
        &'a self,
        context: &mut RequestContext<'a>,
        head: &mut Parts,
        mut request: RoutableRequest,
        mut tried: BackendSet,
        record: &mut AccessLogEntry,
    ) -> Result<ProxiedResponse, ProxyError> {
        record.verb(context.info.verb.as_str());
        if !context.may_try_next_backend() {
            return self
                .proxy_to_backend(context, head, &mut request, record)
                .await;
        }
        let class = RequestClass::of(context.info.is_long_running());
        let spare_head = Box::new(head.clone());
        let mut refused = None;
        loop {
            if let Some(member) = context.member {
                record.backend(member.begin(class));
            }
            // A 404 is not replaced by the error of a server that is down.
            if !has_other_usable(context.backends, tried) {
                context.after_backend = AfterBackend::Respond;
            }
            let sent = self
                .proxy_to_backend(context, head, &mut request, record)
                .await;
            let Err(error) = sent else {
                return sent;
            };
            if error.is_failure_of_local() {
                context.bridge.local_health.note_failure();
            }
            // The reason for a refusal is not replaced by the error of a server that is down.
            let outcome = |error: ProxyError, refused: Option<ProxyError>| match refused {
                Some(refused) if error.is_failure_of_local() && error.is_safe() => Err(refused),
                _ => Err(error),
            };
            if !error.permits_other_backend(request.retry_class) || !request.rewind() {
                return outcome(error, refused);
            }
            let backends = context.backends;
            let Some(next) = self.0.backends.choose(backends, tried, class) else {
                return outcome(error, refused);
            };
            tracing::debug!(status = %error.code(context.bridge), "a backend has not processed a request; another one gets it");
            if error.is_of_policy_enforcement() {
                refused = Some(error);
            }
            if let Some(member) = context.member {
                member.note_retry();
            }
            tried.insert(next);
            let backend = &backends[next];
            context.bridge = &backend.state;
            context.pools = &backend.pools[self.0.worker];
            context.member = backend.member.as_ref();
            record.placed(None);
            record.local();
            head.clone_from(&spare_head);
        }
    }

    /// Routes a request from the view of one backend, sends it and returns the response.
    async fn proxy_to_backend(
        &self,
        context: &RequestContext<'_>,
        head: &mut Parts,
        request: &mut RoutableRequest,
        record: &mut AccessLogEntry,
    ) -> Result<ProxiedResponse, ProxyError> {
        let bridge = context.bridge;
        record.local_server(&bridge.traffic);
        if needs_confirmation(context) {
            // Boxed: few requests wait for it.
            Box::pin(confirm_servers(context)).await;
        }
        let RoutedRequest {
            destination,
            mut warnings,
            unmet,
        } = route(context, head, record)?;
        let mut intercept = match &destination {
            Destination::Local(_) if context.rerouted => Intercept::polled_by_peer(head, context),
            Destination::Local(_) => Intercept::of(head, context),
            Destination::Peers(_)
            | Destination::EnforcingPeers(_)
            | Destination::PeersOrLocal(..) => Intercept::Nothing,
        };
        if let Some(cached) = intercept.begin(head, bridge).await {
            record.route("discovery");
            let proven = (context.client).note_answer(context.token_place, cached.status());
            if let (true, Some(attempt)) = (proven, &context.attempt) {
                attempt.settle(Outcome::Accepted);
            }
            return Ok(ProxiedResponse::new(cached));
        }
        self.add_forwarding_headers(head);

        let outbound = OutboundRequest {
            context,
            destination: &destination,
            prefer: match (&request.upgrade, head.version) {
                (Some(_), _) => ProtocolPreference::Upgrade,
                (None, Version::HTTP_2) => ProtocolPreference::H2,
                (None, _) => ProtocolPreference::H1,
            },
            retry_class: request.retry_class,
            deadline: Deadline::of(context.info.is_long_running(), &bridge.limits),
        };
        if let Some(upgrade) = &request.upgrade {
            head.headers.insert(UPGRADE, upgrade.clone());
            if let Some(switch) = &request.switch
                && request.body.is_done()
                && let Some(stream_request) = outbound.stream_request(switch.clone())
            {
                // Boxed to keep the future of the many watches small.
                let handshake =
                    stream_handshake::handshake(stream_request, take_head(head), &outbound, record);
                let switched = Box::pin(handshake).await?;
                count_at_answering_backend(context, record);
                return Ok(switched);
            }
        }
        let body = &mut request.body;
        let mut completed = None;
        if let Some(guard) = UpdateGuard::of(context, (&destination, unmet), head) {
            // Boxed: few requests are checked.
            match Box::pin(guard.check(&outbound, head, body, record)).await? {
                Checked::Passed => {}
                // If no server processes the completed body, another backend gets the original one.
                Checked::Completed(completion) => {
                    let sent = guard.send(*completion, &outbound, head, body, record);
                    completed = Some(Box::pin(sent).await?);
                }
                Checked::Respond(response) => return Ok(ProxiedResponse::new(response)),
            }
        }
        let mut upstream_response = match completed {
            Some(sent) => {
                warnings.extend(sent.is_completed.then_some(FIELDS_KEPT));
                sent.response
            }
            None => outbound.send_with(take_head(head), body, record).await?,
        };
        if let Some(kind) = policy_write::kind_of(context, upstream_response.status()) {
            // Boxed: few requests write a policy, and the future of watches should be small.
            let backends = context.backends.iter();
            let handles = backends.filter_map(|it| it.state.cluster_handle.clone());
            Box::pin(policy_write::wait_until_known(handles, kind)).await;
        }
        if !matches!(intercept, Intercept::Nothing)
            && let UpstreamResponse::Response(response) = upstream_response
        {
            record.route("discovery");
            // Boxed: watches are numerous and never take this path, and their future should be small.
            let replaced = Box::pin(intercept.end(response, bridge)).await;
            upstream_response = UpstreamResponse::Response(replaced.map_err(ProxyError::unusable)?);
        }
        let server = record.answered_by();
        if !destination.is_best(server) {
            let unmet_by_server = context.unmet_by(server);
            warnings.extend(note_unmet(context, unmet_by_server.without(unmet)));
            record.unmet(unmet_by_server);
        }
        let member = count_at_answering_backend(context, record);
        let mut proxied = finish(context, member, upstream_response);
        for warning in warnings {
            let warning = HeaderValue::from_static(warning);
            proxied.response.headers_mut().append(WARNING, warning);
        }
        Ok(proxied)
    }
}

/// The response to a request that is rejected before it has a context.
fn rejection(
    status: &Status,
    format: Format,
    head: &Parts,
    record: &mut AccessLogEntry,
) -> Response<Bytes> {
    record.route("rejected");
    record.tap(TapKind::Refused, head.method.as_str(), head.uri.path(), "");
    error_response::status(status, format)
}

/// What a request needs besides its head, at each backend that gets it.
struct RoutableRequest {
    /// The protocol of the requested upgrade.
    upgrade: Option<HeaderValue>,
    switch: Option<UpgradeRequest>,
    retry_class: RetryClass,
    body: ReplayBody,
    has_body: bool,
    is_anonymous: bool,
}

impl RoutableRequest {
    fn new(
        context: &RequestContext<'_>,
        head: &Parts,
        body: RequestBody,
        (upgrade, switch): (Option<HeaderValue>, Option<UpgradeRequest>),
    ) -> Self {
        let retry_class = if context.info.is_idempotent_read(&head.method) {
            RetryClass::Idempotent
        } else {
            RetryClass::OnlyIfUnsent
        };
        Self {
            upgrade,
            switch,
            retry_class,
            has_body: !body.is_done(),
            is_anonymous: matches!(context.caller, Caller::Anonymous),
            body: replay_body(context, body, retry_class),
        }
    }

    /// Prepares the body for another backend; `false` if more was sent than is kept.
    fn rewind(&mut self) -> bool {
        if !self.has_body {
            // Also after a response whose start was lost.
            self.body = self.body.empty().anonymous(self.is_anonymous);
        }
        self.body.rewind()
    }
}
