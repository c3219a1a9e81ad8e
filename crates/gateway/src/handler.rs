//! One request from its head to its answer: caller, request, route, local or
//! peer, respond, in this order.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::header::{CONNECTION, DATE, HOST, UPGRADE};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use skewbridge_k8s_api::content_negotiation::{Format, negotiate_error_format};
use skewbridge_k8s_api::forwarding_headers::{self, ForwardedFor, ViaToken};
use skewbridge_k8s_api::request_info::{DecodedPath, RequestInfo, Verb};
use skewbridge_k8s_api::status::Status;
use skewbridge_k8s_api::version::Version as KubeVersion;
use skewbridge_peers::Peer;
use skewbridge_signatures::http_signature::Refusal as SignatureRefusal;

use crate::access_log::AccessLogEntry;
use crate::authentication_limit::{Attempt, AuthenticationLimit, Credential, Outcome, TokenHash};
use crate::authn::{AuthnResult, Caller, ClientCertState, TrustConfig};
use crate::body::{RequestBody, ResponseBody};
use crate::buffer_budget::{BufferBudget, ClientLimits};
use crate::client_connection::{ClientConnection, TokenPlace};
use crate::cluster_state::{ClusterHandle, ResyncHint};
use crate::config::{BridgeUser, Limits};
use crate::date;
use crate::discovery_view::{Complete, Intercept};
use crate::drain::Drain;
use crate::error_response::{self, Detail};
use crate::forward_local;
use crate::forward_peer;
use crate::header_metrics::HeaderLimit;
use crate::health;
use crate::metrics::Metrics;
use crate::request_context::{
    Deadline, RequestContext, Subject, by_bridge, not_processed, remove_between_bridges,
};
use crate::routing::{self, HopState, Refusal, Route};
use crate::self_test::SelfTest;
use crate::serve::{Answer, CloseConnection, Service};
use crate::signatures::{self, Rejected, Signatures};
use crate::streams::{self, StreamOutcome, StreamRequest, Streams, UpgradeRequest, UpgradedStream};
use crate::tls::reload::LiveTls;
use crate::upstream::{Pool, Pools, ProtocolPreference, Replay, RetryClass, UpstreamResponse};
use crate::watch_drain::WatchEnd;

/// What all connections of a bridge share.
#[derive(Debug)]
pub struct GatewayState {
    /// Certificates, CAs and where upstream is, as they are now.
    pub live: Arc<LiveTls>,
    /// What is counted.
    pub metrics: Metrics,
    /// Whether the bridge is leaving.
    pub drain: Drain,
    /// Marks requests that have been here.
    pub via: ViaToken,
    /// Which kube-apiserver is behind us, once it has said so.
    pub upstream_version: ArcSwapOption<KubeVersion>,
    /// Whether upstream has been ready, and asked for its version, before.
    pub acquainted: AtomicBool,
    /// Bounds.
    pub limits: Limits,
    /// `Host` for clients of HTTP/1.0, who send none.
    pub default_host: HeaderValue,
    /// Whether each request is logged.
    pub access_log: bool,
    /// Where in the time of draining the next watch ends.
    pub next_share: AtomicU8,
    /// The other servers of the cluster, where they are to be known.
    pub interop: Option<Arc<ClusterHandle>>,
    /// There are no other servers to be known, although there should be.
    pub alone: bool,
    /// Whether all of discovery is that of the whole cluster.
    pub(crate) complete: Complete,
    /// Requests that went to peers so far.
    pub turns: AtomicU64,
    /// How exec, attach and port-forward are carried.
    pub(crate) streams: Streams,
    /// Whether upstream believes what the bridge asserts.
    pub self_test: Arc<SelfTest>,
    /// The user of its own requests.
    pub(crate) own_user: BridgeUser,
    /// Judges signed requests, where there are keys.
    pub(crate) signatures: Option<Signatures>,
    /// Limits failed authentications per source.
    pub(crate) authentication_limit: AuthenticationLimit,
    /// Bytes held for all clients.
    pub(crate) buffers: Arc<BufferBudget>,
}

impl GatewayState {
    /// Why it is not ready although upstream is. Anonymous clients may read this: it
    /// names no file and no address, which the admin port does.
    fn unreadiness(&self) -> Option<String> {
        if !self.acquainted.load(Ordering::Relaxed) {
            return Some(NOT_ACQUAINTED.to_owned());
        }
        if self.self_test.problem().is_some() {
            return Some(format!("the self-test has not passed; {ADMIN_SAYS_WHY}"));
        }
        let interop = self.interop.as_ref()?;
        match interop.cluster.load().missing() {
            Some(missing) => Some(format!("the bridge does not know yet {}", missing.as_str())),
            None => interop
                .registry_unread()
                .map(|_| format!("addresses of peers have not been read yet; {ADMIN_SAYS_WHY}")),
        }
    }

    /// Counts a refused credential, and charges it to the source unless the connection has
    /// authenticated.
    fn note_authentication_failure(
        &self,
        client: &ClientConnection,
        credential: Credential,
        attempt: Option<&Attempt<'_>>,
    ) {
        self.metrics.connections().authentication_failed(credential);
        client.note_failure();
        if let Some(attempt) = attempt {
            attempt.settle(Outcome::Refused);
        }
    }

    /// A number that spreads load: not a secret, only never the same for long.
    pub(crate) fn chance(&self) -> u64 {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        turn.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The kube-apiserver behind us, as it is called in answers: one that comes
    /// by way of another bridge has to say which.
    pub(crate) fn upstream_name(&self) -> Cow<'static, str> {
        match &self.interop {
            Some(interop) => format!("the kube-apiserver {}", interop.local.name()).into(),
            None => "the kube-apiserver behind this gateway".into(),
        }
    }
}

/// One connection from a client.
#[derive(Debug, Clone)]
pub struct Connection(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) bridge: Arc<GatewayState>,
    pub(crate) pools: Arc<Pools>,
    pub(crate) client: Arc<ClientConnection>,
    pub(crate) limits: ClientLimits,
    pub(crate) presented: ClientCertState,
}

impl Service for Connection {
    fn limits(&self) -> &ClientLimits {
        &self.0.limits
    }

    fn met_header_limit(&self, limit: HeaderLimit) {
        self.0.bridge.metrics.headers().met(limit);
    }

    fn refused(&self, status: StatusCode) {
        let mut record = AccessLogEntry::begin(&self.0.bridge.metrics);
        record.route("refuse");
        record.status(status);
        record.complete();
    }

    async fn call(&self, request: Request<RequestBody>) -> Answer {
        let bridge = &*self.0.bridge;
        let mut record = AccessLogEntry::begin(&bridge.metrics);
        self.0.client.note_request();
        let (mut head, body) = request.into_parts();
        let is_h2 = head.version == Version::HTTP_2;
        if bridge.access_log {
            record.log(&head, self.0.client.source());
        }
        let handled = match self.changed_by_connection(&head) {
            None => self.handle(&mut head, body, &mut record).await,
            Some(refused) => {
                record.route("refuse");
                Err(refused)
            }
        };
        match handled {
            Ok(StreamOutcome::Response(mut response)) => {
                forwarding_headers::remove_hop_by_hop(response.headers_mut());
                // Whoever answered does not say for us what a peer may repeat.
                remove_between_bridges(response.headers_mut());
                if response.extensions_mut().remove::<ToPeer>().is_some() {
                    by_bridge(response.headers_mut());
                }
                // RFC 9110, 6.6.1: an answer that is forwarded has a Date.
                let headers = response.headers_mut();
                headers.entry(DATE).or_insert_with(date::now);
                record.audit_id(headers);
                record.status(response.status());
                Answer {
                    response,
                    switched: None,
                    record,
                }
            }
            Ok(StreamOutcome::Upgraded(response, switched)) => {
                record.audit_id(response.headers());
                record.status(response.status());
                Answer {
                    response: response.map(|()| ResponseBody::empty()),
                    switched: Some(switched),
                    record,
                }
            }
            Err(mut refused) => {
                record.status(refused.status());
                if is_h2 && refused.status() == StatusCode::UNAUTHORIZED && self.ends_anonymous() {
                    refused.extensions_mut().insert(CloseConnection);
                }
                Answer {
                    response: refused.map(ResponseBody::full),
                    switched: None,
                    record,
                }
            }
        }
    }
}

impl Connection {
    /// Whether kube-apiserver ends HTTP/2 connections of callers without an identity.
    fn ends_anonymous(&self) -> bool {
        let bridge = &*self.0.bridge;
        let pool = (self.0.pools).anonymous(&bridge.live, &bridge.metrics);
        pool.ends_anonymous_connections()
    }

    /// The answer to a request that would mean something else without what its
    /// `Connection` header has removed.
    fn changed_by_connection(&self, head: &Parts) -> Option<Response<Bytes>> {
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
    ) -> Result<StreamOutcome, Response<Bytes>> {
        let bridge = &*self.0.bridge;
        let trust = bridge.live.trust.load_full();
        let format = negotiate_error_format(&head.headers);
        let switch = UpgradeRequest::parse(&head.method, &head.headers);
        let upgrade = clean(head);
        let authenticated = self.authenticate(&trust, head, body).await;
        let Authenticated {
            recognised,
            body,
            attempt,
        } = authenticated.map_err(|status| {
            record.route("refuse");
            error_response::status(&status, format)
        })?;
        let AuthnResult { caller, from_peer } = recognised;
        record.caller(caller.name());
        self.0.client.note_caller(&caller);
        let hopped = from_peer && forwarding_headers::has_peer_hop(&head.headers);
        trust.headers().remove(&mut head.headers);
        if !from_peer {
            forwarding_headers::remove_peer_hop_headers(&mut head.headers);
        }

        let detail = Detail::of(&caller, &self.0.client, from_peer);
        let decided = self
            .decide(head, &caller, hopped, record)
            .map_err(|refused| {
                // Answers to a request that was not understood still have to be
                // readable.
                let mut answer = refused.answer(format, bridge, detail);
                if from_peer && refused.is_untouched() {
                    not_processed(answer.headers_mut());
                }
                answer
            })?;
        let mut instead = match &decided.route {
            Destination::Local(_) if hopped => Intercept::polled_by_peer(head, bridge),
            Destination::Local(_) => Intercept::of(head, &caller, bridge),
            Destination::Peers(_) => Intercept::Nothing,
        };
        if let Some(recalled) = instead.begin(head, bridge).await {
            record.route("discovery");
            let token = TokenPlace::of(&caller, head);
            let proven = self.0.client.note_answer(token, recalled.status());
            if let (true, Some(attempt)) = (proven, &attempt) {
                attempt.settle(Outcome::Accepted);
            }
            return Ok(StreamOutcome::Response(recalled));
        }
        self.mark(head);

        let prefer = match (&upgrade, head.version) {
            (Some(_), _) => ProtocolPreference::Upgrade,
            (None, Version::HTTP_2) => ProtocolPreference::H2,
            (None, _) => ProtocolPreference::H1,
        };
        let asks_to_switch = upgrade.is_some();
        if let Some(upgrade) = upgrade {
            head.headers.insert(UPGRADE, upgrade);
        }
        let token = self.unproven_token(&caller, head);
        let outbound = OutboundRequest {
            context: RequestContext {
                bridge,
                pools: &self.0.pools,
                trust: &trust,
                caller: &caller,
                prefer,
                subject: &decided.subject,
                is_unproven: token.is_some_and(|it| !bridge.authentication_limit.knows(it)),
            },
            client: &self.0.client,
            attempt: attempt.as_ref(),
            token_place: TokenPlace::of(&caller, head),
            limits: &self.0.limits,
            going: &decided.route,
            trust: &trust,
            repeat: decided.repeat,
            deadline: Deadline::of(decided.long_running, &bridge.limits),
            format,
            detail,
            from_peer,
        };
        if let Some(switch) = switch
            && asks_to_switch
            && body.is_done()
            && let Some(job) = outbound.job(switch)
        {
            // Boxed: watches are many, and do not come here.
            return Box::pin(streams::handshake(job, take(head), &outbound, record)).await;
        }
        let mut reply = outbound.send_with(take(head), body, record).await?;
        if !matches!(instead, Intercept::Nothing)
            && let UpstreamResponse::Response(response) = reply
        {
            record.route("discovery");
            // Boxed: watches are many, and do not come here.
            let replaced = Box::pin(instead.end(response, bridge)).await;
            let replaced = replaced.map_err(|status| outbound.refuse_by_detail(&status));
            reply = UpstreamResponse::Response(replaced?);
        }
        Ok(finish(bridge, &decided, reply))
    }

    /// Who sent a request; and its body, which of a signed one is whole then.
    async fn authenticate(
        &self,
        trust: &Arc<TrustConfig>,
        head: &mut Parts,
        body: RequestBody,
    ) -> Result<Authenticated<'_>, Status> {
        let recognised = self.0.presented.caller(trust, &head.headers);
        let signatures = self.0.bridge.signatures.as_ref();
        let signatures = signatures.filter(|_| signatures::concern(&recognised.caller, head));
        let credential = match (&recognised.caller, signatures) {
            (_, Some(_)) => Some(Credential::Signature),
            (Caller::Bearer, None) => Some(Credential::Token),
            (Caller::Unauthorized, None) => Some(Credential::Certificate),
            _ => None,
        };
        let attempt = match credential {
            Some(credential) => self.attempt(&recognised.caller, credential, head)?,
            None => None,
        };
        let Some(signatures) = signatures else {
            if credential == Some(Credential::Certificate) {
                self.note_failure(Credential::Certificate, attempt.as_ref());
            }
            return Ok(Authenticated {
                recognised,
                body,
                attempt,
            });
        };
        // Boxed: most requests do not come here, and watches are many.
        let judged = Box::pin(self.judge(signatures, recognised, head, body)).await;
        match judged {
            Ok((recognised, body)) => Ok(Authenticated {
                recognised,
                body,
                // The signature is valid, and what kube-apiserver answers says no more of it.
                attempt: None,
            }),
            Err(rejected) => {
                let status = rejected.status();
                if status.code == StatusCode::UNAUTHORIZED {
                    self.note_failure(Credential::Signature, attempt.as_ref());
                }
                Err(status)
            }
        }
    }

    fn note_failure(&self, credential: Credential, attempt: Option<&Attempt<'_>>) {
        let Inner { bridge, client, .. } = &*self.0;
        bridge.note_authentication_failure(client, credential, attempt);
    }

    /// Refuses a credential of a source that had too many failures. Connections that have
    /// authenticated are not limited.
    fn attempt(
        &self,
        caller: &Caller,
        credential: Credential,
        head: &Parts,
    ) -> Result<Option<Attempt<'_>>, Status> {
        let Inner { bridge, client, .. } = &*self.0;
        if client.is_authenticated() {
            return Ok(None);
        }
        let (source, token) = (client.source().ip(), self.unproven_token(caller, head));
        let (limit, failed) = (&bridge.authentication_limit, client.has_failed());
        let begun = limit.begin(source, credential, token, failed, bridge.chance());
        begun.map(Some).inspect_err(|_| {
            let metrics = bridge.metrics.connections();
            metrics.authentication_limited(credential);
        })
    }

    /// Whether kube-apiserver may end the connection with its answer: to an anonymous
    /// request, or to a token that it has not accepted before.
    fn is_unproven(&self, caller: &Caller, head: &Parts) -> bool {
        let limit = &self.0.bridge.authentication_limit;
        let token = self.unproven_token(caller, head);
        matches!(caller, Caller::Anonymous) || token.is_some_and(|token| !limit.knows(token))
    }

    /// The token of a request on a connection that has not authenticated.
    fn unproven_token(&self, caller: &Caller, head: &Parts) -> Option<TokenHash> {
        (matches!(caller, Caller::Bearer) && !self.0.client.is_authenticated())
            .then(|| self.0.bridge.authentication_limit.token(&head.headers))
    }

    async fn judge(
        &self,
        signatures: &Signatures,
        recognised: AuthnResult,
        head: &mut Parts,
        body: RequestBody,
    ) -> Result<(AuthnResult, RequestBody), Rejected> {
        let AuthnResult { caller, from_peer } = recognised;
        let bridge = &*self.0.bridge;
        // There are some wherever signatures are judged.
        let keys = bridge.live.signature_keys.load_full();
        let keys = keys.ok_or(SignatureRefusal::UnknownKey)?;
        let metrics = bridge.metrics.signatures();
        let judged = signatures.judge(&keys, &caller, head, body, metrics);
        let (user, body) = judged.await?;
        let recognised = AuthnResult {
            caller: Caller::Signed(user),
            from_peer,
        };
        Ok((recognised, body))
    }

    fn decide(
        &self,
        head: &Parts,
        caller: &Caller,
        hopped: bool,
        record: &mut AccessLogEntry,
    ) -> Result<RouteDecision, Refused> {
        let bridge = &*self.0.bridge;
        if head.method == Method::CONNECT {
            return Err(Refused::Status(Status::method_not_allowed(
                "CONNECT is not served here",
            )));
        }
        target(head).map_err(|cause| Refused::Status(Status::bad_request(cause)))?;
        let path = DecodedPath::new(head.uri.path())
            .map_err(|error| Refused::Status(Status::bad_request(error.to_string())))?;
        let info = RequestInfo::parse(&head.method, &path, head.uri.query());
        record.verb(info.verb.as_str());
        let facts = routing::RouteInput {
            leaving: bridge.drain.is_leaving(),
            can_assert: bridge.live.targets.load().front_proxy.is_some(),
            hop_state: match (bridge.via.is_present(&head.headers), hopped) {
                (true, _) => HopState::Loop,
                (false, true) => HopState::FromPeer,
                (false, false) => HopState::First,
            },
        };
        let cluster = bridge.interop.as_ref().map(|it| it.cluster.load());
        let cluster = cluster.as_deref().map(|it| (&**it, Instant::now()));
        let route = routing::route(&info, caller, facts, cluster);
        record.route(route.as_str());
        let going = match route {
            Route::Local(leg) => {
                let pools = &self.0.pools;
                let pool = if self.is_unproven(caller, head) {
                    Some(pools.anonymous(&bridge.live, &bridge.metrics))
                } else {
                    pools.of(leg, &bridge.live, &bridge.metrics)
                };
                Destination::Local(pool.ok_or(
                    // The certificate went away between two looks at it.
                    Refused::Refusal(Refusal::CannotAssert),
                )?)
            }
            Route::Peer(peers) => Destination::Peers(peers),
            Route::Refuse(refusal) => {
                if refusal == Refusal::NotHere
                    && let Some(interop) = &bridge.interop
                {
                    // The peer that sent it has heard otherwise from us.
                    interop.hint(ResyncHint::LocalChanged);
                }
                return Err(Refused::Refusal(refusal));
            }
        };
        Ok(RouteDecision {
            route: going,
            subject: Subject::of(head, hopped),
            long_running: info.is_long_running(),
            repeat: if info.is_idempotent_read(&head.method) {
                RetryClass::Idempotent
            } else {
                RetryClass::OnlyIfUnsent
            },
            watch: info.verb == Verb::Watch,
            readyz: info.is_readyz(),
        })
    }

    /// Who asked, by which way, and that it was here.
    fn mark(&self, head: &mut Parts) {
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

/// The reply as it goes to the client: `/readyz` is also about the bridge, and a watch ends
/// at its share of the drain.
fn finish(
    bridge: &GatewayState,
    decided: &RouteDecision,
    mut reply: UpstreamResponse,
) -> StreamOutcome {
    if let UpstreamResponse::Response(response) = &mut reply
        && decided.subject.hopped
    {
        response.extensions_mut().insert(ToPeer);
    }
    if let UpstreamResponse::Response(response) = &mut reply
        && response.status().is_success()
    {
        if decided.readyz
            && let Some(problem) = bridge.unreadiness()
        {
            return StreamOutcome::Response(health::not_ready(&problem).map(ResponseBody::full));
        }
        if decided.watch {
            let share = bridge.next_share.fetch_add(97, Ordering::Relaxed);
            let end = WatchEnd::new(&bridge.drain, share, response.headers());
            response.body_mut().end_with(end);
        }
    }
    match reply {
        UpstreamResponse::Response(response) => StreamOutcome::Response(response),
        UpstreamResponse::Upgraded(response, upgraded) => {
            StreamOutcome::Upgraded(response, UpgradedStream::Tunnel(upgraded, None))
        }
    }
}

/// A request that is about to leave: where to, for whom, and what is said if no
/// answer comes.
pub(crate) struct OutboundRequest<'a> {
    context: RequestContext<'a>,
    client: &'a ClientConnection,
    attempt: Option<&'a Attempt<'a>>,
    token_place: Option<TokenPlace>,
    limits: &'a ClientLimits,
    going: &'a Destination,
    trust: &'a Arc<TrustConfig>,
    repeat: RetryClass,
    deadline: Deadline,
    format: Format,
    detail: Detail,
    from_peer: bool,
}

impl OutboundRequest<'_> {
    /// The bridge that it passes.
    pub(crate) fn bridge(&self) -> &GatewayState {
        self.context.bridge
    }

    /// Sends a request without a body.
    pub(crate) async fn send(
        &self,
        head: Parts,
        record: &mut AccessLogEntry,
    ) -> Result<UpstreamResponse, Response<Bytes>> {
        self.send_with(head, RequestBody::Empty, record).await
    }

    async fn send_with(
        &self,
        head: Parts,
        body: RequestBody,
        record: &mut AccessLogEntry,
    ) -> Result<UpstreamResponse, Response<Bytes>> {
        let has_body = !body.is_done();
        let mut body = Replay::new(body, self.trust.clone(), self.repeat)
            .anonymous(matches!(self.context.caller, Caller::Anonymous));
        if has_body {
            // Only a workload may read its request after it has begun to refuse it.
            let duplex = self.read(|info| !info.reaches_workload()) == Some(false);
            body = body.charged_to(self.limits.reservation()).duplex(duplex);
        }
        let mut request = Request::from_parts(head, body);
        let sent = async {
            match self.going {
                Destination::Local(pool) => {
                    forward_local::forward(&self.context, pool, &mut request, record).await
                }
                // Boxed: most requests stay here, and watches are many.
                Destination::Peers(peers) => {
                    let peers = peers.clone();
                    Box::pin(forward_peer::forward(
                        &self.context,
                        peers,
                        &mut request,
                        record,
                    ))
                    .await
                }
            }
        };
        if let Some(attempt) = self.attempt {
            attempt.sent();
        }
        let reply = self.deadline.enforce(sent).await.map_err(|unanswered| {
            if let Some(attempt) = self.attempt {
                attempt.settle(Outcome::Undecided);
            }
            let mut answer = self.refuse_by_detail(&unanswered.status);
            if self.from_peer && unanswered.untouched {
                not_processed(answer.headers_mut());
            }
            answer
        })?;
        self.note_answer(reply.status());
        Ok(reply)
    }

    /// What the status of an answer says of the caller's token.
    fn note_answer(&self, status: StatusCode) {
        let proven = self.client.note_answer(self.token_place, status);
        if matches!(self.context.caller, Caller::Bearer)
            && status == StatusCode::UNAUTHORIZED
            && !self.is_of_workload()
        {
            let bridge = self.bridge();
            bridge.note_authentication_failure(self.client, Credential::Token, self.attempt);
        } else if let Some(attempt) = self.attempt {
            attempt.settle(if proven {
                Outcome::Accepted
            } else {
                Outcome::Undecided
            });
        }
    }

    /// Whether 401 can be the answer of a workload: what is behind a proxy subresource
    /// answers so for reasons of its own. The client has to have authenticated before, or
    /// the path would be a way around the limit.
    fn is_of_workload(&self) -> bool {
        self.client.is_authenticated()
            && self.read(|info| info.subresource == "proxy") == Some(true)
    }

    /// Asks something else of the same server, for the same caller.
    pub(crate) async fn ask(
        &self,
        head: Parts,
        body: RequestBody,
        record: &mut AccessLogEntry,
    ) -> Result<UpstreamResponse, Response<Bytes>> {
        let asking = OutboundRequest {
            context: RequestContext {
                prefer: ProtocolPreference::H1,
                ..self.context
            },
            deadline: Deadline::of(false, &self.bridge().limits),
            ..*self
        };
        asking.send_with(head, body, record).await
    }

    /// What is asked for.
    pub(crate) fn read<T>(&self, with: impl FnOnce(&RequestInfo<'_>) -> T) -> Option<T> {
        self.context.subject.read(with)
    }

    /// Answers with a Status.
    pub(crate) fn refuse(&self, status: &Status) -> Response<Bytes> {
        error_response::status(status, self.format)
    }

    /// The same, where the failure may name servers and addresses.
    fn refuse_by_detail(&self, status: &Status) -> Response<Bytes> {
        self.refuse(&self.detail.of_status(status))
    }

    /// What is to be done with a request to switch protocols, if it is for a stream.
    fn job(&self, switch: UpgradeRequest) -> Option<StreamRequest> {
        let version = match self.going {
            Destination::Local(_) => self.bridge().upstream_version.load().as_deref().copied(),
            // Whichever of them will answer: the one that knows least counts.
            Destination::Peers(peers) => {
                let versions = peers.iter().map(|peer| peer.served.as_ref()?.version);
                versions.min().flatten()
            }
        };
        let streams = &self.bridge().streams;
        self.context
            .subject
            .read(|info| streams.request(switch, info, version))
            .flatten()
    }
}

/// Where an administrator finds the details that answers to clients leave out.
const ADMIN_SAYS_WHY: &str = "/readyz?verbose at --admin-address says why";

/// Why the bridge itself is not ready.
const LEAVING: &str = "the bridge is shutting down";
const NOT_ACQUAINTED: &str = "the bridge has not heard from upstream yet";

/// A request of which it is known who sent it.
struct Authenticated<'a> {
    recognised: AuthnResult,
    body: RequestBody,
    /// kube-apiserver is to verify its credential.
    attempt: Option<Attempt<'a>>,
}

/// Marks an answer to a request that a peer has passed on.
#[derive(Debug, Clone, Copy)]
struct ToPeer;

struct RouteDecision {
    route: Destination,
    subject: Subject,
    long_running: bool,
    repeat: RetryClass,
    watch: bool,
    readyz: bool,
}

enum Destination {
    Local(Arc<Pool>),
    Peers(Vec<Arc<Peer>>),
}

enum Refused {
    Status(Status),
    Refusal(Refusal),
}

impl Refused {
    /// Whether another server may do what this one has not begun.
    fn is_untouched(&self) -> bool {
        use Refusal::{NotHere, PeerUnknown, TooEarly};
        matches!(self, Self::Refusal(TooEarly(_) | NotHere | PeerUnknown(_)))
    }

    fn answer(&self, format: Format, bridge: &GatewayState, detail: Detail) -> Response<Bytes> {
        let status = match self {
            Self::Status(status) => return error_response::status(status, format),
            Self::Refusal(Refusal::NotReady) => return health::not_ready(LEAVING),
            Self::Refusal(Refusal::Unauthorized) => Status::unauthorized(),
            Self::Refusal(Refusal::CannotAssert) => Status::internal(
                "this gateway has no --proxy-client-cert-file to assert an identity with",
            ),
            Self::Refusal(Refusal::Loop) => Status::loop_detected(
                "this request has passed this gateway before: --upstream leads back to it",
            ),
            Self::Refusal(Refusal::TooEarly(missing)) => error_response::later(format!(
                "the gateway of {} has just started and does not know yet {}",
                bridge.upstream_name(),
                missing.as_str()
            )),
            Self::Refusal(Refusal::NotHere) => error_response::later(format!(
                "a peer sent this request to {}, which does not serve it any more",
                bridge.upstream_name()
            )),
            Self::Refusal(Refusal::PeerUnknown(identity)) => {
                error_response::later(match &bridge.interop {
                    Some(interop) => interop.unknown_peer(identity),
                    None => format!("not served here, nor known of {identity}"),
                })
            }
        };
        error_response::status(&detail.of_status(&status), format)
    }
}

/// Removes what was meant for this hop only, and gives the protocol that the
/// client wants to switch to, if there is one that can be passed on.
fn clean(head: &mut Parts) -> Option<HeaderValue> {
    let upgrade = (head.version == Version::HTTP_11)
        .then(|| forwarding_headers::requested_upgrade(&head.headers))
        .flatten()
        // HTTP/2 in a tunnel would carry requests past every check here.
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

/// Whether the target is one that every server reads alike: a path, perhaps
/// with an authority before it (RFC 9112, 3.2; RFC 9113, 8.3.1).
fn target(head: &Parts) -> Result<(), &'static str> {
    let path = head.uri.path_and_query().map_or("", PathAndQuery::as_str);
    let is_path = path.starts_with('/') || (path == "*" && head.method == Method::OPTIONS);
    if !is_path {
        return Err("the request target is not a path");
    }
    match head.uri.authority() {
        Some(authority) if authority.as_str().contains('@') => {
            Err("the request target names a user")
        }
        _ => Ok(()),
    }
}

fn take(head: &mut Parts) -> Parts {
    std::mem::replace(head, Request::new(()).into_parts().0)
}
