//! The request handler: authenticates a request, parses its target, routes it, sends it and
//! responds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use http::header::{CONNECTION, DATE, HOST, UPGRADE, USER_AGENT, WARNING};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use skewbridge_http_engine::body::{RequestBody, ResponseBody};
use skewbridge_http_engine::buffer_budget::ClientLimits;
use skewbridge_http_engine::close_connection::CloseConnection;
use skewbridge_http_engine::header_bounds::HeaderLimit;
use skewbridge_http_engine::http_date;
use skewbridge_http_engine::server::{ClientResponse, Service, UpgradeHandler};
use skewbridge_http_signature::VerifyError;
use skewbridge_k8s_api::content_negotiation::negotiate_error_format;
use skewbridge_k8s_api::forwarding_headers::{self, ForwardedFor};
use skewbridge_k8s_api::request_info::{DecodedPath, RequestInfo, Verb};
use skewbridge_k8s_api::status::Status;
use skewbridge_peer_directory::registry::RegistryStatus;
use skewbridge_peer_directory::{Identity, reachability};

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
use crate::authentication_limit::{Attempt, Outcome, TokenHash};
use crate::authn::{AuthnResult, Caller, ClientCertState, TrustConfig};
use crate::balancer::{
    BackendSet, Backends, BalancedBackend, announce_doubts, has_other_usable, with_identity,
};
use crate::bridge_headers::{mark_by_bridge, mark_reached, remove_between_bridges};
use crate::client_connection::{ClientConnection, TokenLocation};
use crate::cluster_state::{Cluster, ClusterHandle, ResyncHint};
use crate::discovery_view::freshness::changes_shared_apis;
use crate::error_response::{self, Detail};
use crate::health;
use crate::metrics::connections::Credential;
use crate::placement_rule::{Rule, RuleSet};
use crate::request_class::RequestClass;
use crate::routing::{self, HopState, PeerRoute, Refusal, Route};
use crate::signatures::{self, SignatureError, Signatures};
use crate::state::GatewayState;
use crate::streams::{UpgradeRequest, UpgradedStream};
use crate::upstream::{
    Pool, ProtocolPreference, ReplayBody, RetryClass, UpstreamIdentity, UpstreamResponse,
};
use crate::vanishing::observation::Observation;
use crate::watch_drain::WatchEnd;

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
            Some(refused) => {
                record.route("rejected");
                record.tap(TapKind::Refused, head.method.as_str(), head.uri.path(), "");
                Err(refused)
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

    /// The response to a request whose `Connection` header lists a protected header: without that
    /// header the request would have another meaning.
    fn reject_protected_connection_header(&self, head: &Parts) -> Option<Response<Bytes>> {
        if !head.headers.contains_key(CONNECTION) {
            return None;
        }
        let trust = self.0.bridge.live.trust.load();
        let name =
            forwarding_headers::protected_header_in_connection(&head.headers, trust.headers())?;
        let message = format!("the Connection header must not list {name}");
        let format = negotiate_error_format(&head.headers);
        Some(error_response::status(
            &Status::bad_request(message),
            format,
        ))
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
        } = authenticated.map_err(|status| {
            record.route("rejected");
            record.tap(TapKind::Refused, head.method.as_str(), head.uri.path(), "");
            error_response::status(&status, format)
        })?;
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
            record.long_running(open_requests::kind_of(&info), caller.name());
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
            observation.note(&bridge.ledger, info, caller, agent, response);
        }
        if let Ok(ProxiedResponse { response, .. }) = &proxied {
            let (agent, status) = (user_agent.as_ref(), response.status());
            (bridge.leaders).note(&context.info, agent, status, Instant::now);
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

    /// Authenticates a request. The body of a signed request is complete afterwards.
    async fn authenticate(
        &self,
        trust: &Arc<TrustConfig>,
        head: &mut Parts,
        body: RequestBody,
    ) -> Result<AuthenticatedRequest<'_>, Status> {
        let authn = self.0.client_cert.authenticate(trust, &head.headers);
        let signatures = self.0.bridge.signatures.as_ref();
        let signatures = signatures.filter(|_| signatures::must_verify(&authn.caller, head));
        let credential = match (&authn.caller, signatures) {
            (_, Some(_)) => Some(Credential::Signature),
            (Caller::Bearer, None) => Some(Credential::Token),
            (Caller::Unauthorized, None) => Some(Credential::Certificate),
            _ => None,
        };
        let attempt = match credential {
            Some(credential) => self.attempt(&authn.caller, credential, head)?,
            None => None,
        };
        let Some(signatures) = signatures else {
            if credential == Some(Credential::Certificate) {
                self.note_failure(Credential::Certificate, attempt.as_ref());
            }
            return Ok(AuthenticatedRequest {
                authn,
                body,
                attempt,
            });
        };
        // Boxed: few requests are signed, and the future of watches should be small.
        let verified = Box::pin(self.verify_signature(signatures, authn, head, body)).await;
        match verified {
            Ok((authn, body)) => Ok(AuthenticatedRequest {
                authn,
                body,
                // The signature is verified, so the response of kube-apiserver proves nothing more.
                attempt: None,
            }),
            Err(error) => {
                let status = error.status();
                if status.code == StatusCode::UNAUTHORIZED {
                    self.note_failure(Credential::Signature, attempt.as_ref());
                }
                Err(status)
            }
        }
    }

    fn note_failure(&self, credential: Credential, attempt: Option<&Attempt<'_>>) {
        let ConnectionState { bridge, client, .. } = &*self.0;
        bridge.note_authentication_failure(client, credential, attempt);
    }

    /// Rejects a credential of a source that had too many failures. Connections that have
    /// authenticated are not limited.
    fn attempt(
        &self,
        caller: &Caller,
        credential: Credential,
        head: &Parts,
    ) -> Result<Option<Attempt<'_>>, Status> {
        let ConnectionState { bridge, client, .. } = &*self.0;
        if client.is_authenticated() {
            return Ok(None);
        }
        let (source, token) = (
            client.source().ip(),
            self.unauthenticated_token(caller, head),
        );
        let (limit, failed) = (&bridge.authentication_limit, client.has_failed());
        let begun = limit.begin(source, credential, token, failed, bridge.next_lb_seed());
        begun.map(Some).inspect_err(|_| {
            let metrics = bridge.metrics.connections();
            metrics.authentication_limited(credential);
        })
    }

    /// The token of a request on a connection that has not authenticated.
    fn unauthenticated_token(&self, caller: &Caller, head: &Parts) -> Option<TokenHash> {
        (matches!(caller, Caller::Bearer) && !self.0.client.is_authenticated())
            .then(|| self.0.bridge.authentication_limit.token(&head.headers))
    }

    async fn verify_signature(
        &self,
        signatures: &Signatures,
        authn: AuthnResult,
        head: &mut Parts,
        body: RequestBody,
    ) -> Result<(AuthnResult, RequestBody), SignatureError> {
        let AuthnResult {
            caller,
            from_front_proxy,
        } = authn;
        let bridge = &*self.0.bridge;
        // Signatures are verified only if keys are configured.
        let keys = bridge.live.signature_keys.load_full();
        let keys = keys.ok_or(VerifyError::UnknownKey)?;
        let metrics = bridge.metrics.signatures();
        let verified = signatures.verify(&keys, &caller, head, body, metrics);
        let (user, body) = verified.await?;
        let authn = AuthnResult {
            caller: Caller::Signed(user),
            from_front_proxy,
        };
        Ok((authn, body))
    }

    /// Sets `Host`, adds `X-Forwarded-*` headers and the `Via` token of this bridge.
    fn add_forwarding_headers(&self, head: &mut Parts) {
        if let Some(authority) = head.uri.authority() {
            // Absolute-form: the target's authority counts (RFC 9112, 3.2.2).
            if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
                head.headers.insert(HOST, host);
            }
        } else if !head.headers.contains_key(HOST) {
            let host = self.0.bridge.default_host.clone();
            head.headers.insert(HOST, host);
        }
        let source = self.0.client.source().ip().to_canonical();
        if forwarding_headers::set_forwarded_headers(&mut head.headers, source)
            == ForwardedFor::Shortened
        {
            self.met_header_limit(HeaderLimit::ForwardedForShortened);
        }
        self.0.bridge.via.add(&mut head.headers, head.version);
    }
}

/// Whether a write must wait until servers that may have been replaced have been read again.
fn needs_confirmation(context: &RequestContext<'_>) -> bool {
    if context.rerouted || !routing::depends_on_versions(&context.info, context.placement) {
        return false;
    }
    // An outage of another backend may have been noticed only by its own view.
    announce_doubts(context.backends);
    let cluster = (context.bridge.cluster_handle.as_ref()).map(|it| it.cluster.load());
    cluster.is_some_and(|it| it.missing().is_none() && it.is_unconfirmed(Instant::now()))
}

async fn confirm_servers(context: &RequestContext<'_>) {
    if let Some(cluster_handle) = &context.bridge.cluster_handle {
        cluster_handle.confirm_servers().await;
    }
}

/// Decides which server gets a request.
fn route(
    context: &RequestContext<'_>,
    head: &Parts,
    record: &mut AccessLogEntry,
) -> Result<RoutedRequest, ProxyError> {
    let bridge = context.bridge;
    let input = routing::RouteInput {
        shutting_down: bridge.drain.is_not_ready(),
        can_assert: bridge.targets.load().front_proxy.is_some(),
        hop_state: match (bridge.via.is_present(&head.headers), context.rerouted) {
            (true, _) => HopState::Loop,
            (false, true) => HopState::FromPeer,
            (false, false) => HopState::First,
        },
        placement: context.placement,
    };
    let cluster = bridge.cluster_handle.as_ref().map(|it| it.cluster.load());
    let cluster = cluster.as_deref().map(|it| (&**it, Instant::now()));
    let route = routing::route(&context.info, &context.caller, input, cluster);
    record.route(route.as_str());
    match route {
        Route::Local { identity, unmet } => {
            record.unmet(unmet);
            Ok(RoutedRequest {
                destination: Destination::Local(local_pool(context, identity)?),
                warnings: note_unmet(context, unmet),
                unmet,
            })
        }
        Route::Peers(peers) => placed_destination(context, peers, record),
        Route::Refuse(refusal) => {
            if let Refusal::NotEnforced(_) = refusal {
                bridge.metrics.placement().unmet(Rule::Admission);
            }
            if refusal == Refusal::NotServed
                && let Some(cluster_handle) = &bridge.cluster_handle
            {
                // The peer has older discovery of the local server.
                cluster_handle.hint(ResyncHint::LocalChanged);
            }
            Err(ProxyError::refused(refusal))
        }
    }
}

/// The destination of a request, and the warnings for its response.
struct RoutedRequest {
    destination: Destination,
    /// The `Warning` headers of the response.
    warnings: Vec<&'static str>,
    /// The rules that its best server does not satisfy.
    unmet: RuleSet,
}

fn local_pool(
    context: &RequestContext<'_>,
    identity: UpstreamIdentity,
) -> Result<Arc<Pool>, ProxyError> {
    let bridge = context.bridge;
    let (pools, targets) = (context.pools, &bridge.targets);
    let pool = if context.is_unauthenticated() {
        Some(pools.anonymous(targets, &bridge.metrics))
    } else {
        pools.of(identity, targets, &bridge.metrics)
    };
    // The certificate was removed since the routing decision.
    pool.ok_or_else(|| ProxyError::refused(Refusal::CannotAssert))
}

/// The destination of a request for which a peer ranks above the local server.
fn placed_destination(
    context: &RequestContext<'_>,
    route: PeerRoute,
    record: &mut AccessLogEntry,
) -> Result<RoutedRequest, ProxyError> {
    let PeerRoute {
        peers,
        fallback,
        rule,
        unmet,
        must_enforce,
    } = route;
    context.bridge.metrics.placement().placed(rule);
    record.placed(Some(rule));
    context.tap(TapKind::Rerouted, record);
    record.unmet(unmet);
    let destination = match fallback {
        Some(identity) => Destination::PeersOrLocal(peers, local_pool(context, identity)?),
        None if must_enforce => Destination::EnforcingPeers(peers),
        None => Destination::Peers(peers),
    };
    Ok(RoutedRequest {
        destination,
        warnings: note_unmet(context, unmet),
        unmet,
    })
}

/// Counts the rules that no available server satisfies for a request. Returns the warnings for its
/// client.
fn note_unmet(context: &RequestContext<'_>, unmet: RuleSet) -> Vec<&'static str> {
    let metrics = context.bridge.metrics.placement();
    let noted = unmet.iter().filter_map(|rule| {
        metrics.unmet(rule);
        match rule {
            Rule::Version => {
                if let Some(component) = context.component {
                    context.bridge.log_older_server(component);
                }
                Some("299 - \"no available kube-apiserver is as new as this component\"")
            }
            Rule::Fields => {
                Some("299 - \"no available kube-apiserver has all fields of this kind\"")
            }
            // Such a request is not sent to any server.
            Rule::Available | Rule::Serves | Rule::Admission => None,
        }
    });
    noted.collect()
}

/// Counts the request at the backend that has answered it. That may be another backend than the
/// chosen one, because of the placement rules or of what each serves.
fn count_at_answering_backend<'a>(
    context: &RequestContext<'a>,
    record: &mut AccessLogEntry,
) -> Option<&'a BalancedBackend> {
    let chosen = context.member?;
    let answering = (record.answered_by())
        .and_then(|identity| with_identity(context.backends, identity)?.member.as_ref());
    let member = answering.unwrap_or(chosen);
    record.answered_by_backend(member.load());
    Some(member)
}

/// Completes the response: `/readyz` also fails if the bridge is not ready, and a watch ends in its
/// slot of the drain.
fn finish(
    context: &RequestContext<'_>,
    member: Option<&BalancedBackend>,
    mut response: UpstreamResponse,
) -> ProxiedResponse {
    let bridge = context.bridge;
    if let UpstreamResponse::Response(response) = &mut response
        && context.rerouted
    {
        let local = bridge.cluster_handle.as_ref();
        let identity = local.map(|it| it.local.identity.clone());
        // The poll of a peer begins with it.
        let is_poll = context.info.path == "/version";
        let reached = local.filter(|_| is_poll);
        let reached = reached.map(|it| reached_peers(&it.cluster.load()));
        response
            .extensions_mut()
            .insert(ToPeer { identity, reached });
    }
    if let UpstreamResponse::Response(response) = &mut response
        && response.status().is_success()
    {
        if context.info.is_readyz()
            && let Some(problem) = bridge.unreadiness()
        {
            return ProxiedResponse::new(health::not_ready(&problem).map(ResponseBody::full));
        }
        if context.info.verb == Verb::Watch {
            let slot = bridge.next_drain_slot.fetch_add(97, Ordering::Relaxed);
            let end = WatchEnd::new(&bridge.drain, slot, response.headers());
            let end = match member {
                None => end,
                Some(member) => end.or_when(member.end_of_watch(bridge.next_lb_seed())),
            };
            response.body_mut().end_early(end);
        }
    }
    match response {
        UpstreamResponse::Response(response) => ProxiedResponse::new(response),
        UpstreamResponse::Upgraded(response, upgraded) => {
            ProxiedResponse::switching(response, UpgradedStream::Tunnel(upgraded, None))
        }
    }
}

/// Whether the connection of an HTTP/2 request ends after the requests in flight on it, as with
/// `--goaway-chance` of kube-apiserver: its client opens another one, maybe to another bridge.
fn goes_away(chance: f64, backends: &Backends) -> bool {
    chance > 0.0 && is_below(backends.random(), chance)
}

/// Whether a random number is in this share of all.
fn is_below(random: u64, chance: f64) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "any rounding spreads the ends")]
    let position = random as f64 / u64::MAX as f64;
    position < chance
}

/// Sets the headers of a response that does not switch protocols.
fn finish_headers(response: &mut Response<ResponseBody>) {
    forwarding_headers::remove_hop_by_hop(response.headers_mut());
    // These headers are valid for one hop: those of the upstream bridge end here.
    remove_between_bridges(response.headers_mut());
    if let Some(ToPeer { identity, reached }) = response.extensions_mut().remove::<ToPeer>() {
        mark_by_bridge(response.headers_mut(), identity.as_ref());
        if let Some(reached) = reached {
            mark_reached(response.headers_mut(), reached.iter());
        }
    }
    // RFC 9110, 6.6.1: a forwarded response has a Date.
    let headers = response.headers_mut();
    headers.entry(DATE).or_insert_with(http_date::now);
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

/// A write of a CRD or an `APIService`. When it is dropped, also because the client has disconnected, the
/// next discovery of all backends must not come from before: any of them may answer it.
struct SharedApiWrite {
    handles: Vec<Arc<ClusterHandle>>,
}

impl SharedApiWrite {
    fn of(context: &RequestContext<'_>) -> Option<Self> {
        changes_shared_apis(&context.info).then(|| {
            let backends = context.backends.iter();
            let handles = backends.filter_map(|it| it.state.cluster_handle.clone());
            Self {
                handles: handles.collect(),
            }
        })
    }

    /// A response of 4xx says that nothing was written.
    fn settle(mut self, response: Option<&ProxiedResponse>) {
        if response.is_some_and(|it| it.response.status().is_client_error()) {
            self.handles.clear();
        }
    }
}

impl Drop for SharedApiWrite {
    fn drop(&mut self) {
        for handle in &self.handles {
            handle.note_shared_api_write();
        }
    }
}

/// An authenticated request.
struct AuthenticatedRequest<'a> {
    authn: AuthnResult,
    body: RequestBody,
    /// The attempt, if kube-apiserver has to verify the credential.
    attempt: Option<Attempt<'a>>,
}

/// Marks a response to a request that a peer has rerouted.
#[derive(Debug, Clone)]
struct ToPeer {
    /// The identity of the local server.
    identity: Option<Identity>,
    /// The peers that this bridge reaches, in the response to a poll.
    reached: Option<Vec<Identity>>,
}

fn reached_peers(cluster: &Cluster) -> Vec<Identity> {
    // The reachability of a peer with an address does not depend on the registry.
    let registry = RegistryStatus::up("none");
    let now = Instant::now();
    let peers = cluster.peers.peers.iter();
    let reached = peers.filter(|peer| reachability(peer, &registry, now).is_reachable());
    reached.map(|peer| peer.identity.clone()).collect()
}

/// Removes hop-by-hop headers, and returns the protocol of the requested upgrade if it can be
/// forwarded.
fn strip_hop_by_hop(head: &mut Parts) -> Option<HeaderValue> {
    let upgrade = (head.version == Version::HTTP_11)
        .then(|| forwarding_headers::requested_upgrade(&head.headers))
        .flatten()
        // Requests inside an HTTP/2 tunnel would bypass all checks.
        .filter(|protocol| {
            !protocol
                .as_bytes()
                .to_ascii_lowercase()
                .windows(3)
                .any(|it| it == b"h2c")
        });
    forwarding_headers::remove_hop_by_hop(&mut head.headers);
    head.headers.remove(CONNECTION);
    upgrade
}

/// The path of a request. The target must be a path, optionally with an authority (RFC 9112, 3.2;
/// RFC 9113, 8.3.1), which every server interprets in the same way.
fn decoded_path<'a>(method: &Method, uri: &'a Uri) -> Result<DecodedPath<'a>, Status> {
    if method == Method::CONNECT {
        return Err(Status::method_not_allowed("CONNECT is not served here"));
    }
    let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
    let is_path = path.starts_with('/') || (path == "*" && method == Method::OPTIONS);
    if !is_path {
        return Err(Status::bad_request("the request target is not a path"));
    }
    let names_user = |authority: &Authority| authority.as_str().contains('@');
    if uri.authority().is_some_and(names_user) {
        return Err(Status::bad_request("the request target names a user"));
    }
    DecodedPath::new(uri.path()).map_err(|error| Status::bad_request(error.to_string()))
}

fn take_head(head: &mut Parts) -> Parts {
    std::mem::replace(head, Request::new(()).into_parts().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_end_with_the_given_chance() {
        for (chance, random, expected) in [
            (0.02, 0, true),
            (0.02, u64::MAX / 51, true),
            (0.02, u64::MAX / 49, false),
            (0.02, u64::MAX, false),
        ] {
            assert_eq!(is_below(random, chance), expected, "{chance} {random}");
        }
    }
}
