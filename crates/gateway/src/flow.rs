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
use skewbridge_api::hygiene::{self, ViaToken};
use skewbridge_api::media::{Format, negotiate_error_format};
use skewbridge_api::request_info::{DecodedPath, RequestInfo, Verb};
use skewbridge_api::status::Status;
use skewbridge_api::version::Version as KubeVersion;
use skewbridge_peers::Peer;
use skewbridge_signatures::http_signature::Refusal as SignatureRefusal;

use crate::authentication_limit::{AuthenticationLimit, Credential, TokenHash};
use crate::body::{RequestBody, ResponseBody};
use crate::buffer_budget::{BufferBudget, ClientLimits};
use crate::caller::{Caller, Presented, Recognised, Trust};
use crate::client_connection::{ClientConnection, TokenPlace};
use crate::cluster::{Hint, Interop};
use crate::config::{BridgeUser, Limits};
use crate::date;
use crate::drain::Drain;
use crate::envoy::{Deadline, Envoy, Subject, not_processed, remove_not_processed};
use crate::health;
use crate::local;
use crate::metrics::Metrics;
use crate::peer;
use crate::record::Record;
use crate::respond::{self, Detail};
use crate::route::{self, Journey, Refusal, Route};
use crate::self_test::SelfTest;
use crate::serve::{Answer, CloseConnection, Service};
use crate::signatures::{self, Rejected, Signatures};
use crate::streams::{self, StreamOutcome, StreamRequest, Streams, UpgradeRequest, UpgradedStream};
use crate::tls::reload::Live;
use crate::upstream::{Pool, Pools, Prefer, Repeat, Replay, Reply};
use crate::view::{Complete, Instead};
use crate::watch::WatchEnd;

/// What all connections of a bridge share.
#[derive(Debug)]
pub struct Bridge {
    /// Certificates, CAs and where upstream is, as they are now.
    pub live: Arc<Live>,
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
    pub interop: Option<Arc<Interop>>,
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

impl Bridge {
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
    fn note_authentication_failure(&self, client: &ClientConnection, credential: Credential) {
        self.metrics.connections().authentication_failed(credential);
        if !client.is_authenticated() {
            let source = client.source().ip();
            self.authentication_limit.failed(source, credential);
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
    pub(crate) bridge: Arc<Bridge>,
    pub(crate) pools: Arc<Pools>,
    pub(crate) client: Arc<ClientConnection>,
    pub(crate) limits: ClientLimits,
    pub(crate) presented: Presented,
}

impl Service for Connection {
    fn limits(&self) -> ClientLimits {
        self.0.limits.clone()
    }

    fn refused(&self, status: StatusCode) {
        let mut record = Record::begin(&self.0.bridge.metrics);
        record.route("refuse");
        record.status(status);
        record.complete();
    }

    async fn call(&self, request: Request<RequestBody>) -> Answer {
        let bridge = &*self.0.bridge;
        let mut record = Record::begin(&bridge.metrics);
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
                hygiene::remove_hop_by_hop(response.headers_mut());
                // Whoever answered does not say for us what a peer may repeat.
                remove_not_processed(response.headers_mut());
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
        let trust = self.0.bridge.live.trust.load();
        let name = hygiene::not_removable(&head.headers, trust.headers())?;
        let message = format!("the Connection header must not list {name}");
        let format = negotiate_error_format(&head.headers);
        Some(respond::status(&Status::bad_request(message), format))
    }

    async fn handle(
        &self,
        head: &mut Parts,
        body: RequestBody,
        record: &mut Record,
    ) -> Result<StreamOutcome, Response<Bytes>> {
        let bridge = &*self.0.bridge;
        let trust = bridge.live.trust.load_full();
        let format = negotiate_error_format(&head.headers);
        let switch = UpgradeRequest::parse(&head.method, &head.headers);
        let upgrade = clean(head);
        let recognised = self.recognise(&trust, head, body).await;
        let (recognised, body) = recognised.map_err(|status| {
            record.route("refuse");
            respond::status(&status, format)
        })?;
        let Recognised { caller, from_peer } = recognised;
        record.caller(caller.name());
        self.0.client.note_caller(&caller);
        let hopped = from_peer && hygiene::has_hopped(&head.headers);
        trust.headers().remove(&mut head.headers);
        if !from_peer {
            hygiene::remove_peer_hop(&mut head.headers);
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
            Going::Local(_) if hopped => Instead::polled_by_peer(head, bridge),
            Going::Local(_) => Instead::of(head, &caller, bridge),
            Going::Peers(_) => Instead::Nothing,
        };
        if let Some(recalled) = instead.begin(head, bridge).await {
            record.route("discovery");
            let token = TokenPlace::of(&caller, head);
            self.0.client.note_answer(token, recalled.status());
            return Ok(StreamOutcome::Response(recalled));
        }
        self.mark(head);

        let prefer = match (&upgrade, head.version) {
            (Some(_), _) => Prefer::Upgrade,
            (None, Version::HTTP_2) => Prefer::H2,
            (None, _) => Prefer::H1,
        };
        let asks_to_switch = upgrade.is_some();
        if let Some(upgrade) = upgrade {
            head.headers.insert(UPGRADE, upgrade);
        }
        let trip = Trip {
            envoy: Envoy {
                bridge,
                pools: &self.0.pools,
                trust: &trust,
                caller: &caller,
                prefer,
                subject: &decided.subject,
            },
            client: &self.0.client,
            token: self.unproven_token(&caller, head),
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
            && let Some(job) = trip.job(switch)
        {
            // Boxed: watches are many, and do not come here.
            return Box::pin(streams::handshake(job, take(head), &trip, record)).await;
        }
        let mut reply = trip.send_with(take(head), body, record).await?;
        if !matches!(instead, Instead::Nothing)
            && let Reply::Response(response) = reply
        {
            record.route("discovery");
            // Boxed: watches are many, and do not come here.
            let replaced = Box::pin(instead.end(response, bridge)).await;
            let replaced = replaced.map_err(|status| trip.refuse_by_detail(&status));
            reply = Reply::Response(replaced?);
        }
        Ok(finish(bridge, &decided, reply))
    }

    /// Who sent a request; and its body, which of a signed one is whole then.
    async fn recognise(
        &self,
        trust: &Arc<Trust>,
        head: &mut Parts,
        body: RequestBody,
    ) -> Result<(Recognised, RequestBody), Status> {
        let recognised = self.0.presented.caller(trust, &head.headers);
        let signatures = self.0.bridge.signatures.as_ref();
        let signatures = signatures.filter(|_| signatures::concern(&recognised.caller, head));
        let credential = match (&recognised.caller, signatures) {
            (_, Some(_)) => Some(Credential::Signature),
            (Caller::Bearer, None) => Some(Credential::Token),
            (Caller::Unauthorized, None) => Some(Credential::Certificate),
            _ => None,
        };
        if let Some(credential) = credential {
            self.limit_failures(&recognised.caller, credential, head)?;
        }
        let Some(signatures) = signatures else {
            if credential == Some(Credential::Certificate) {
                self.note_failure(Credential::Certificate);
            }
            return Ok((recognised, body));
        };
        // Boxed: most requests do not come here, and watches are many.
        let judged = Box::pin(self.judge(signatures, recognised, head, body)).await;
        judged.map_err(|rejected| {
            let status = rejected.status();
            if status.code == StatusCode::UNAUTHORIZED {
                self.note_failure(Credential::Signature);
            }
            status
        })
    }

    fn note_failure(&self, credential: Credential) {
        let Inner { bridge, client, .. } = &*self.0;
        bridge.note_authentication_failure(client, credential);
    }

    /// Refuses a credential of a source that had too many failures. Connections that have
    /// authenticated are not limited.
    fn limit_failures(
        &self,
        caller: &Caller,
        credential: Credential,
        head: &Parts,
    ) -> Result<(), Status> {
        let Inner { bridge, client, .. } = &*self.0;
        if client.is_authenticated() {
            return Ok(());
        }
        let (source, token) = (client.source().ip(), self.unproven_token(caller, head));
        let refused = (bridge.authentication_limit).check(source, credential, token);
        refused.map_or(Ok(()), |status| {
            let metrics = bridge.metrics.connections();
            metrics.authentication_limited(credential);
            Err(status)
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
        recognised: Recognised,
        head: &mut Parts,
        body: RequestBody,
    ) -> Result<(Recognised, RequestBody), Rejected> {
        let Recognised { caller, from_peer } = recognised;
        let bridge = &*self.0.bridge;
        // There are some wherever signatures are judged.
        let keys = bridge.live.signature_keys.load_full();
        let keys = keys.ok_or(SignatureRefusal::UnknownKey)?;
        let metrics = bridge.metrics.signatures();
        let judged = signatures.judge(&keys, &caller, head, body, metrics);
        let (user, body) = judged.await?;
        let recognised = Recognised {
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
        record: &mut Record,
    ) -> Result<Decided, Refused> {
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
        let facts = route::Bridge {
            leaving: bridge.drain.is_leaving(),
            can_assert: bridge.live.targets.load().front_proxy.is_some(),
            journey: match (bridge.via.seen(&head.headers), hopped) {
                (true, _) => Journey::Looped,
                (false, true) => Journey::Hopped,
                (false, false) => Journey::Begins,
            },
        };
        let cluster = bridge.interop.as_ref().map(|it| it.cluster.load());
        let cluster = cluster.as_deref().map(|it| (&**it, Instant::now()));
        let route = route::route(&info, caller, facts, cluster);
        record.route(route.as_str());
        let going = match route {
            Route::Local(leg) => {
                let pools = &self.0.pools;
                let pool = if self.is_unproven(caller, head) {
                    Some(pools.anonymous(&bridge.live, &bridge.metrics))
                } else {
                    pools.of(leg, &bridge.live, &bridge.metrics)
                };
                Going::Local(pool.ok_or(
                    // The certificate went away between two looks at it.
                    Refused::Refusal(Refusal::CannotAssert),
                )?)
            }
            Route::Peer(peers) => Going::Peers(peers),
            Route::Refuse(refusal) => {
                if refusal == Refusal::NotHere
                    && let Some(interop) = &bridge.interop
                {
                    // The peer that sent it has heard otherwise from us.
                    interop.hint(Hint::LocalChanged);
                }
                return Err(Refused::Refusal(refusal));
            }
        };
        Ok(Decided {
            route: going,
            subject: Subject::of(head, hopped),
            long_running: info.is_long_running(),
            repeat: if info.is_harmless(&head.method) {
                Repeat::Harmless
            } else {
                Repeat::OnlyIfCertain
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
        hygiene::forwarded(
            &mut head.headers,
            self.0.client.source().ip().to_canonical(),
        );
        self.0.bridge.via.add(&mut head.headers, head.version);
    }
}

/// The reply as it goes to the client: `/readyz` is also about the bridge, and a watch ends
/// at its share of the drain.
fn finish(bridge: &Bridge, decided: &Decided, mut reply: Reply) -> StreamOutcome {
    if let Reply::Response(response) = &mut reply
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
        Reply::Response(response) => StreamOutcome::Response(response),
        Reply::Upgraded(response, upgraded) => {
            StreamOutcome::Upgraded(response, UpgradedStream::Tunnel(upgraded, None))
        }
    }
}

/// A request that is about to leave: where to, for whom, and what is said if no
/// answer comes.
pub(crate) struct Trip<'a> {
    envoy: Envoy<'a>,
    client: &'a ClientConnection,
    token: Option<TokenHash>,
    token_place: Option<TokenPlace>,
    limits: &'a ClientLimits,
    going: &'a Going,
    trust: &'a Arc<Trust>,
    repeat: Repeat,
    deadline: Deadline,
    format: Format,
    detail: Detail,
    from_peer: bool,
}

impl Trip<'_> {
    /// The bridge that it passes.
    pub(crate) fn bridge(&self) -> &Bridge {
        self.envoy.bridge
    }

    /// Sends a request without a body.
    pub(crate) async fn send(
        &self,
        head: Parts,
        record: &mut Record,
    ) -> Result<Reply, Response<Bytes>> {
        self.send_with(head, RequestBody::Empty, record).await
    }

    async fn send_with(
        &self,
        head: Parts,
        body: RequestBody,
        record: &mut Record,
    ) -> Result<Reply, Response<Bytes>> {
        // Only a workload may read its request after it has begun to refuse it.
        let duplex = !body.is_done() && self.read(|info| !info.reaches_workload()) == Some(false);
        let body = Replay::new(body, self.trust.clone(), self.repeat)
            .charged_to(self.limits.reservation())
            .duplex(duplex)
            .anonymous(matches!(self.envoy.caller, Caller::Anonymous));
        let mut request = Request::from_parts(head, body);
        let sent = async {
            match self.going {
                Going::Local(pool) => local::forward(&self.envoy, pool, &mut request, record).await,
                // Boxed: most requests stay here, and watches are many.
                Going::Peers(peers) => {
                    let peers = peers.clone();
                    Box::pin(peer::forward(&self.envoy, peers, &mut request, record)).await
                }
            }
        };
        let reply = self.deadline.enforce(sent).await.map_err(|unanswered| {
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
        self.client.note_answer(self.token_place, status);
        // What is behind a proxy subresource answers 401 for reasons of its own. The client
        // has to have authenticated before, or the path would be a way around the limit.
        let is_workloads = self.client.is_authenticated()
            && self.read(|info| info.subresource == "proxy") == Some(true);
        if matches!(self.envoy.caller, Caller::Bearer)
            && status == StatusCode::UNAUTHORIZED
            && !is_workloads
        {
            let bridge = self.bridge();
            bridge.note_authentication_failure(self.client, Credential::Token);
        }
        if let Some(token) = self.token
            && self.client.is_authenticated()
        {
            self.bridge().authentication_limit.accepted(token);
        }
    }

    /// Asks something else of the same server, for the same caller.
    pub(crate) async fn ask(
        &self,
        head: Parts,
        body: RequestBody,
        record: &mut Record,
    ) -> Result<Reply, Response<Bytes>> {
        let asking = Trip {
            envoy: Envoy {
                prefer: Prefer::H1,
                ..self.envoy
            },
            deadline: Deadline::of(false, &self.bridge().limits),
            ..*self
        };
        asking.send_with(head, body, record).await
    }

    /// What is asked for.
    pub(crate) fn read<T>(&self, with: impl FnOnce(&RequestInfo<'_>) -> T) -> Option<T> {
        self.envoy.subject.read(with)
    }

    /// Answers with a Status.
    pub(crate) fn refuse(&self, status: &Status) -> Response<Bytes> {
        respond::status(status, self.format)
    }

    /// The same, where the failure may name servers and addresses.
    fn refuse_by_detail(&self, status: &Status) -> Response<Bytes> {
        self.refuse(&self.detail.of_status(status))
    }

    /// What is to be done with a request to switch protocols, if it is for a stream.
    fn job(&self, switch: UpgradeRequest) -> Option<StreamRequest> {
        let version = match self.going {
            Going::Local(_) => self.bridge().upstream_version.load().as_deref().copied(),
            // Whichever of them will answer: the one that knows least counts.
            Going::Peers(peers) => {
                let versions = peers.iter().map(|peer| peer.served.as_ref()?.version);
                versions.min().flatten()
            }
        };
        let streams = &self.bridge().streams;
        self.envoy
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

struct Decided {
    route: Going,
    subject: Subject,
    long_running: bool,
    repeat: Repeat,
    watch: bool,
    readyz: bool,
}

enum Going {
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

    fn answer(&self, format: Format, bridge: &Bridge, detail: Detail) -> Response<Bytes> {
        let status = match self {
            Self::Status(status) => return respond::status(status, format),
            Self::Refusal(Refusal::NotReady) => return health::not_ready(LEAVING),
            Self::Refusal(Refusal::Unauthorized) => Status::unauthorized(),
            Self::Refusal(Refusal::CannotAssert) => Status::internal(
                "this gateway has no --proxy-client-cert-file to assert an identity with",
            ),
            Self::Refusal(Refusal::Loop) => Status::loop_detected(
                "this request has passed this gateway before: --upstream leads back to it",
            ),
            Self::Refusal(Refusal::TooEarly(missing)) => respond::later(format!(
                "the gateway of {} has just started and does not know yet {}",
                bridge.upstream_name(),
                missing.as_str()
            )),
            Self::Refusal(Refusal::NotHere) => respond::later(format!(
                "a peer sent this request to {}, which does not serve it any more",
                bridge.upstream_name()
            )),
            Self::Refusal(Refusal::PeerUnknown(identity)) => {
                respond::later(match &bridge.interop {
                    Some(interop) => interop.unknown_peer(identity),
                    None => format!("not served here, nor known of {identity}"),
                })
            }
        };
        respond::status(&detail.of_status(&status), format)
    }
}

/// Removes what was meant for this hop only, and gives the protocol that the
/// client wants to switch to, if there is one that can be passed on.
fn clean(head: &mut Parts) -> Option<HeaderValue> {
    let upgrade = (head.version == Version::HTTP_11)
        .then(|| hygiene::wants_upgrade(&head.headers))
        .flatten()
        // HTTP/2 in a tunnel would carry requests past every check here.
        .filter(|protocol| {
            !protocol
                .as_bytes()
                .to_ascii_lowercase()
                .windows(3)
                .any(|it| it == b"h2c")
        });
    hygiene::remove_hop_by_hop(&mut head.headers);
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
