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

use super::discovery::Intercept;
use super::error::ProxyError;
use super::outbound::{Destination, OutboundRequest};
use super::proxied_response::ProxiedResponse;
use super::request_context::{Deadline, RequestContext};
use super::stream_handshake;
use crate::access_log::AccessLogEntry;
use crate::authentication_limit::{Attempt, Outcome, TokenHash};
use crate::authn::{AuthnResult, Caller, ClientCertState, TrustConfig};
use crate::bridge_headers::{mark_by_bridge, remove_between_bridges};
use crate::client_connection::{ClientConnection, TokenLocation};
use crate::cluster_state::ResyncHint;
use crate::error_response::{self, Detail};
use crate::health;
use crate::metrics::connections::Credential;
use crate::placement_rule::Rule;
use crate::routing::{self, HopState, Placed, Refusal, Route};
use crate::signatures::{self, SignatureError, Signatures};
use crate::state::GatewayState;
use crate::streams::{UpgradeRequest, UpgradedStream};
use crate::upstream::{
    Pool, Pools, ProtocolPreference, RetryClass, UpstreamIdentity, UpstreamResponse,
};
use crate::watch_drain::WatchEnd;

/// Handles the requests of one client connection.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionHandler(pub(crate) Arc<ConnectionState>);

#[derive(Debug)]
pub(crate) struct ConnectionState {
    pub(crate) bridge: Arc<GatewayState>,
    pub(crate) pools: Arc<Pools>,
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
        let mut record = AccessLogEntry::begin(&self.0.bridge.metrics);
        record.route("rejected");
        record.status(status);
        record.complete();
    }

    async fn call(&self, request: Request<RequestBody>) -> ClientResponse<AccessLogEntry> {
        let bridge = &*self.0.bridge;
        let mut record = AccessLogEntry::begin(&bridge.metrics);
        self.0.client.note_request();
        let (mut head, body) = request.into_parts();
        let is_h2 = head.version == Version::HTTP_2;
        if bridge.access_log {
            record.log(&head, self.0.client.source());
        }
        let handled = match self.reject_protected_connection_header(&head) {
            None => self.handle(&mut head, body, &mut record).await,
            Some(refused) => {
                record.route("rejected");
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
                }
                record.audit_id(response.headers());
                record.status(response.status());
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
        let pool = (self.0.pools).anonymous(&bridge.live.targets, &bridge.metrics);
        pool.ends_anonymous_connections()
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
        let Authenticated {
            authn,
            body,
            attempt,
        } = authenticated.map_err(|status| {
            record.route("rejected");
            error_response::status(&status, format)
        })?;
        let AuthnResult {
            caller,
            from_front_proxy,
        } = authn;
        record.caller(caller.name());
        self.0.client.note_caller(&caller);
        let rerouted = from_front_proxy && forwarding_headers::has_peer_hop(&head.headers);
        trust.headers().remove(&mut head.headers);
        if !from_front_proxy {
            forwarding_headers::remove_peer_hop_headers(&mut head.headers);
        }

        let detail = Detail::of(&caller, &self.0.client, from_front_proxy);
        let token_place = TokenLocation::of(&caller, head);
        let token = self.unproven_token(&caller, head);
        // The head is forwarded; the context keeps the method and the URI that it was parsed from.
        let (method, uri) = (head.method.clone(), head.uri.clone());
        let user_agent = head.headers.get(USER_AGENT).cloned();
        let path = decoded_path(&method, &uri)
            .map_err(|status| error_response::status(&status, format))?;
        let context = RequestContext {
            bridge,
            pools: &self.0.pools,
            client: &self.0.client,
            limits: &self.0.limits,
            trust,
            info: RequestInfo::parse(&method, &path, uri.query()),
            component: user_agent
                .as_ref()
                .and_then(|it| bridge.guarded_components.find(it.to_str().ok()?)),
            caller,
            from_front_proxy,
            rerouted,
            token_place,
            has_unproven_token: token.is_some_and(|it| !bridge.authentication_limit.knows(it)),
            attempt,
            format,
            detail,
        };
        let proxied = self
            .proxy(&context, head, body, (upgrade, switch), record)
            .await;
        proxied.map_err(|error| error.respond(&context))
    }

    /// Routes a request, sends it and returns the response.
    async fn proxy(
        &self,
        context: &RequestContext<'_>,
        head: &mut Parts,
        body: RequestBody,
        (upgrade, switch): (Option<HeaderValue>, Option<UpgradeRequest>),
        record: &mut AccessLogEntry,
    ) -> Result<ProxiedResponse, ProxyError> {
        let bridge = context.bridge;
        let info = &context.info;
        record.verb(info.verb.as_str());
        let Routed {
            destination,
            warning,
        } = route(context, head, record)?;
        let mut intercept = match &destination {
            Destination::Local(_) if context.rerouted => Intercept::polled_by_peer(head, context),
            Destination::Local(_) => Intercept::of(head, context),
            Destination::Peers(_) | Destination::PeersOrLocal(..) => Intercept::Nothing,
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
            prefer: match (&upgrade, head.version) {
                (Some(_), _) => ProtocolPreference::Upgrade,
                (None, Version::HTTP_2) => ProtocolPreference::H2,
                (None, _) => ProtocolPreference::H1,
            },
            retry_class: if info.is_idempotent_read(&head.method) {
                RetryClass::Idempotent
            } else {
                RetryClass::OnlyIfUnsent
            },
            deadline: Deadline::of(info.is_long_running(), &bridge.limits),
        };
        if let Some(upgrade) = upgrade {
            head.headers.insert(UPGRADE, upgrade);
            if let Some(switch) = switch
                && body.is_done()
                && let Some(stream_request) = outbound.stream_request(switch)
            {
                // Boxed to keep the future of the many watches small.
                let handshake =
                    stream_handshake::handshake(stream_request, take_head(head), &outbound, record);
                return Box::pin(handshake).await;
            }
        }
        let mut upstream_response = outbound.send_with(take_head(head), body, record).await?;
        if !matches!(intercept, Intercept::Nothing)
            && let UpstreamResponse::Response(response) = upstream_response
        {
            record.route("discovery");
            // Boxed to keep the future of watches small, which are many and never take this path.
            let replaced = Box::pin(intercept.end(response, bridge)).await;
            upstream_response = UpstreamResponse::Response(replaced.map_err(ProxyError::unusable)?);
        }
        let mut proxied = finish(context, upstream_response);
        if let Some(warning) = warning {
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
    ) -> Result<Authenticated<'_>, Status> {
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
            return Ok(Authenticated {
                authn,
                body,
                attempt,
            });
        };
        // Boxed: few requests are signed, and the future of watches should be small.
        let verified = Box::pin(self.verify_signature(signatures, authn, head, body)).await;
        match verified {
            Ok((authn, body)) => Ok(Authenticated {
                authn,
                body,
                // The signature is valid, so the response of kube-apiserver does not matter.
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
        let (source, token) = (client.source().ip(), self.unproven_token(caller, head));
        let (limit, failed) = (&bridge.authentication_limit, client.has_failed());
        let begun = limit.begin(source, credential, token, failed, bridge.next_lb_seed());
        begun.map(Some).inspect_err(|_| {
            let metrics = bridge.metrics.connections();
            metrics.authentication_limited(credential);
        })
    }

    /// The token of a request on a connection that has not authenticated.
    fn unproven_token(&self, caller: &Caller, head: &Parts) -> Option<TokenHash> {
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
        // There are keys wherever signatures are verified.
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

/// Decides which server gets a request.
fn route(
    context: &RequestContext<'_>,
    head: &Parts,
    record: &mut AccessLogEntry,
) -> Result<Routed, ProxyError> {
    let bridge = context.bridge;
    let input = routing::RouteInput {
        shutting_down: bridge.drain.is_not_ready(),
        can_assert: bridge.live.targets.load().front_proxy.is_some(),
        hop_state: match (bridge.via.is_present(&head.headers), context.rerouted) {
            (true, _) => HopState::Loop,
            (false, true) => HopState::FromPeer,
            (false, false) => HopState::First,
        },
        component: context.component.map(|it| it.version),
    };
    let cluster = bridge.cluster_handle.as_ref().map(|it| it.cluster.load());
    let cluster = cluster.as_deref().map(|it| (&**it, Instant::now()));
    let route = routing::route(&context.info, &context.caller, input, cluster);
    record.route(route.as_str());
    match route {
        Route::Local(identity) => Ok(Destination::Local(local_pool(context, identity)?).into()),
        Route::Peer(peers) => {
            record.placed(Some(Rule::Serves));
            bridge.metrics.placement().placed(Rule::Serves);
            Ok(Destination::Peers(peers).into())
        }
        Route::Placed(placed) => place(context, placed, record),
        Route::Refuse(refusal) => {
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

/// The destination of a request, and what its response warns of.
struct Routed {
    destination: Destination,
    /// The `Warning` header of the response.
    warning: Option<HeaderValue>,
}

impl From<Destination> for Routed {
    fn from(destination: Destination) -> Self {
        Self {
            destination,
            warning: None,
        }
    }
}

fn local_pool(
    context: &RequestContext<'_>,
    identity: UpstreamIdentity,
) -> Result<Arc<Pool>, ProxyError> {
    let bridge = context.bridge;
    let (pools, targets) = (context.pools, &bridge.live.targets);
    let pool = if context.is_unproven() {
        Some(pools.anonymous(targets, &bridge.metrics))
    } else {
        pools.of(identity, targets, &bridge.metrics)
    };
    // The certificate was removed since the routing decision.
    pool.ok_or_else(|| ProxyError::refused(Refusal::CannotAssert))
}

/// The destination of a request to which a placement rule applies.
fn place(
    context: &RequestContext<'_>,
    placed: Placed,
    record: &mut AccessLogEntry,
) -> Result<Routed, ProxyError> {
    let bridge = context.bridge;
    let metrics = bridge.metrics.placement();
    let pool = local_pool(context, placed.fallback)?;
    let destination = if placed.peers.is_empty() {
        Destination::Local(pool)
    } else {
        metrics.placed(placed.rule);
        record.placed(Some(placed.rule));
        Destination::PeersOrLocal(placed.peers, pool)
    };
    let warning = context.component.filter(|_| placed.unmet).and_then(|it| {
        metrics.unmet(placed.rule);
        bridge.log_older_server(it);
        let text = format!(
            "299 - \"no available kube-apiserver is as new as {}\"",
            it.name
        );
        HeaderValue::from_str(&text).ok()
    });
    Ok(Routed {
        destination,
        warning,
    })
}

/// Completes the response: `/readyz` also fails if the bridge is not ready, and a watch ends in its
/// slot of the drain.
fn finish(context: &RequestContext<'_>, mut response: UpstreamResponse) -> ProxiedResponse {
    let bridge = context.bridge;
    if let UpstreamResponse::Response(response) = &mut response
        && context.rerouted
    {
        response.extensions_mut().insert(ToPeer);
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

/// Sets the headers of a response that does not switch protocols.
fn finish_headers(response: &mut Response<ResponseBody>) {
    forwarding_headers::remove_hop_by_hop(response.headers_mut());
    // These headers are valid for one hop: those of the upstream bridge end here.
    remove_between_bridges(response.headers_mut());
    if response.extensions_mut().remove::<ToPeer>().is_some() {
        mark_by_bridge(response.headers_mut());
    }
    // RFC 9110, 6.6.1: a forwarded response has a Date.
    let headers = response.headers_mut();
    headers.entry(DATE).or_insert_with(http_date::now);
}

/// An authenticated request.
struct Authenticated<'a> {
    authn: AuthnResult,
    body: RequestBody,
    /// The attempt, if kube-apiserver has to verify the credential.
    attempt: Option<Attempt<'a>>,
}

/// Marks a response to a request that a peer has rerouted.
#[derive(Debug, Clone, Copy)]
struct ToPeer;

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
