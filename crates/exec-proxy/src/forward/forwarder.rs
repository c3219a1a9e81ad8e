//! Forwards requests to one server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, Version};
use skewbridge_client::Stream;
use skewbridge_http_engine::body::{RequestBody, ResponseBody};
use skewbridge_http_engine::buffer_budget::{BufferBudget, ClientAuthentication, ClientLimits};
use skewbridge_http_engine::client::{
    Pool, PoolConfig, ProtocolPreference, ReplayBody, SendError, UpstreamResponse,
};
use skewbridge_http_engine::header_bounds::check_outgoing;
use skewbridge_http_engine::message_headers::content_length;
use skewbridge_http_engine::server::{ClientResponse, Service, UpgradeHandler};
use skewbridge_http_engine::tunnel;
use skewbridge_k8s_api::forwarding_headers;
use tokio::time::sleep;

use super::activity::{Activity, ActivityGuard};
use super::body_budget::{BodyBudget, MAX_BUDGET_BYTES};
use super::collected_body::{BODY_IDLE_TIMEOUT, CollectError, collect};
use super::dial::{Dial, DialConnector};
use super::error::ForwardError;
use super::logged_failure::LoggedFailure;
use super::retry_class::{may_reach_workload, retry_class};
use crate::modifier::{NeedsBody, Outgoing, RequestModifier};

/// Default maximum size of a body that is buffered for modifiers; see [`Forwarder::body_limit`].
/// kube-apiserver accepts 3 MiB.
pub const DEFAULT_MAX_BODY_BYTES: usize = 4 * 1024 * 1024;

/// Bytes held for stalled clients and for retries.
const MAX_BUFFERED_BYTES: usize = 64 * 1024 * 1024;

/// Unused HTTP/1.1 connections that are kept: client-go keeps 25 a host.
const MAX_IDLE_CONNECTIONS: usize = 32;

/// Maximum attempts of a request that is rejected by GOAWAY, as in Go's client, and of a request that
/// was not processed for another reason.
const MAX_GOAWAY_ATTEMPTS: u32 = 6;
const MAX_ATTEMPTS: u32 = 2;

/// Before the second retry; doubled for each further one.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(2);

/// The stall timeout of clients that have not authenticated. The forwarder has no such clients.
const UNAUTHENTICATED_STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// What the server may send on one HTTP/2 stream before the client has taken it. Servers may be
/// far away.
const H2_STREAM_WINDOW_BYTES: u32 = 256 * 1024;

/// Forwards requests to one server.
pub struct Forwarder {
    authority: Authority,
    host: HeaderValue,
    modifiers: Vec<Box<dyn RequestModifier>>,
    pool: Arc<Pool<DialConnector>>,
    activity: Activity,
    body_limit: usize,
    body_budget: BodyBudget,
    buffers: Arc<BufferBudget>,
    failures: LoggedFailure,
}

impl Forwarder {
    /// Sends requests over connections of `dial` after applying `modifiers` in order. `authority`
    /// replaces the client's `Host`.
    pub fn new(
        dial: impl Dial,
        authority: Authority,
        modifiers: Vec<Box<dyn RequestModifier>>,
    ) -> Self {
        // Every byte of an authority is valid in a header value.
        let host = HeaderValue::from_str(authority.as_str())
            .unwrap_or_else(|_| HeaderValue::from_static("kubernetes"));
        let config = PoolConfig {
            max_idle_connections: MAX_IDLE_CONNECTIONS,
            // Opening a connection may have required a touch of a hardware key.
            finish_cancelled_connects: true,
            h2_stream_window_bytes: H2_STREAM_WINDOW_BYTES,
            mirrors_close: false,
        };
        Self {
            authority,
            host,
            modifiers,
            pool: Pool::new(DialConnector(Box::new(dial)), config, Arc::new(())),
            activity: Activity::default(),
            body_limit: DEFAULT_MAX_BODY_BYTES,
            body_budget: BodyBudget::new(MAX_BUDGET_BYTES),
            buffers: BufferBudget::new(MAX_BUFFERED_BYTES, UNAUTHENTICATED_STALL_TIMEOUT, None),
            failures: LoggedFailure::default(),
        }
    }

    /// Sets the maximum size of a body that is buffered for modifiers.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = bytes;
        self.total_body_limit(bytes.max(MAX_BUDGET_BYTES))
    }

    /// Sets the total size of buffered bodies. Requests wait for memory, and get a 503 Status after a
    /// timeout.
    #[must_use]
    pub fn total_body_limit(mut self, bytes: usize) -> Self {
        self.body_budget = BodyBudget::new(bytes);
        self
    }

    /// Requests in flight.
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Answers one request.
    async fn call(
        &self,
        request: Request<RequestBody>,
        limits: &ClientLimits,
    ) -> ClientResponse<ActivityGuard> {
        let guard = self.activity.begin();
        let headers = request.headers().clone();
        match self.forward(request, limits).await {
            Ok(UpstreamResponse::Response(response)) => {
                ClientResponse::with_record(response, guard)
            }
            Ok(UpstreamResponse::Upgraded(response, upgraded)) => ClientResponse {
                response: response.map(|()| ResponseBody::empty()),
                switched: Some(UpgradeHandler::new(|io, input, guard| async move {
                    let ended = tunnel::relay(io, input, upgraded, |_, _| {}).await;
                    drop(guard);
                    if let Err(cut) = ended {
                        cut.close().await;
                    }
                })),
                record: guard,
            },
            Err(error) => {
                // Not all clients show the cause.
                if matches!(error, ForwardError::Modifier { .. }) && self.failures.is_new(&error) {
                    tracing::warn!(cause = %error, "requests fail because a signer failed");
                } else {
                    tracing::debug!(%error, "a request was not answered by the server");
                }
                let response = error.response(&headers).map(ResponseBody::full);
                ClientResponse::with_record(response, guard)
            }
        }
    }

    async fn forward(
        &self,
        request: Request<RequestBody>,
        limits: &ClientLimits,
    ) -> Result<UpstreamResponse<Stream>, ForwardError> {
        let (mut head, body) = request.into_parts();
        if head.method == Method::CONNECT {
            return Err(ForwardError::Connect);
        }
        let upgrade = (head.version == Version::HTTP_11)
            .then(|| forwarding_headers::requested_upgrade(&head.headers))
            .flatten();
        forwarding_headers::remove_hop_by_hop(&mut head.headers);
        // Reading the body sends `100 Continue` to the client.
        head.headers.remove(EXPECT);
        let body = self.body_for_modifiers(body, &mut head).await?;
        let whole_body = match &body {
            RequestBody::Full(bytes) => Some(bytes.clone()),
            RequestBody::Empty => Some(Bytes::new()),
            RequestBody::Stream(_) => None,
        };
        // The original headers, in case a retry has to be signed again.
        let unsigned = (!self.modifiers.is_empty()).then(|| head.headers.clone());
        self.modify(&mut head, whole_body.as_ref(), upgrade.as_ref())
            .await?;
        let retry_class = retry_class(&head, upgrade.is_some());
        let reaches_workload = may_reach_workload(head.uri.path());
        let replay = |body| {
            ReplayBody::new(body, Arc::new(()), retry_class)
                .charged_to(limits.reservation())
                .duplex(reaches_workload)
        };
        let prefer = match upgrade {
            None => ProtocolPreference::H2,
            Some(_) => ProtocolPreference::Upgrade,
        };
        self.pool.evict_idle();
        let mut request = Request::from_parts(head, replay(body));
        let mut attempts = 1;
        let response = loop {
            let bytes = check_outgoing(request.method(), request.uri(), request.headers())
                .map_err(|status| ForwardError::HeadersTooLarge(status.message))?;
            request.body_mut().set_header_bytes(bytes);
            let (cause, max_attempts) = match self.pool.send(&mut request, prefer).await {
                Ok(response) => break response,
                Err(SendError::NotProcessed(cause)) => (cause, MAX_ATTEMPTS),
                Err(SendError::GoAway(cause)) => (cause, MAX_GOAWAY_ATTEMPTS),
                Err(error) => return Err(error.into()),
            };
            let can_resend = whole_body.is_some() || request.body_mut().rewind();
            if attempts >= max_attempts || !can_resend {
                return Err(ForwardError::NotProcessed(cause));
            }
            tracing::debug!(%cause, "a request is retried");
            // Boxed: retries are rare, and every watch would carry their state.
            request = Box::pin(async {
                if attempts > 1 {
                    sleep(FIRST_RETRY_DELAY * 2u32.pow(attempts - 2)).await;
                }
                let (mut head, mut body) = request.into_parts();
                if let Some(bytes) = &whole_body {
                    body = replay(RequestBody::from(bytes.clone()));
                }
                if let Some(headers) = &unsigned {
                    head.headers = headers.clone();
                    self.modify(&mut head, whole_body.as_ref(), upgrade.as_ref())
                        .await?;
                }
                Ok::<_, ForwardError>(Request::from_parts(head, body))
            })
            .await?;
            attempts += 1;
        };
        Ok(match response {
            UpstreamResponse::Response(mut response) => {
                forwarding_headers::remove_hop_by_hop(response.headers_mut());
                UpstreamResponse::Response(response)
            }
            UpstreamResponse::Upgraded(mut response, upgraded) => {
                set_upgrade_response_headers(&mut response, upgrade);
                UpstreamResponse::Upgraded(response, upgraded)
            }
        })
    }

    /// The body, collected if a modifier needs to see all of it.
    async fn body_for_modifiers(
        &self,
        body: RequestBody,
        head: &mut Parts,
    ) -> Result<RequestBody, ForwardError> {
        let mut modifiers = self.modifiers.iter();
        let modifier = modifiers.find(|it| it.needs_body() == NeedsBody::Whole);
        let (Some(modifier), RequestBody::Stream(_)) = (modifier, &body) else {
            return Ok(body);
        };
        let limit = self.body_limit;
        let too_long = || ForwardError::BodyTooLong {
            modifier: modifier.name().to_owned(),
            limit,
        };
        let length = match content_length(&head.headers) {
            Some(length) => {
                let length = usize::try_from(length).ok();
                let length = length.filter(|length| *length <= limit);
                Some(length.ok_or_else(too_long)?)
            }
            None => None,
        };
        let permit = self.body_budget.acquire(length.unwrap_or(limit)).await;
        let permit = permit.ok_or_else(|| ForwardError::BodyBudgetExhausted {
            modifier: modifier.name().to_owned(),
        })?;
        match collect(body, length.unwrap_or_default(), limit).await {
            Ok(bytes) => {
                head.headers.remove(TRANSFER_ENCODING);
                head.headers.insert(CONTENT_LENGTH, bytes.len().into());
                Ok(RequestBody::from(permit.hold(bytes)))
            }
            Err(CollectError::TooLong) => Err(too_long()),
            Err(CollectError::Stalled) => Err(ForwardError::StalledBody {
                modifier: modifier.name().to_owned(),
                after: BODY_IDLE_TIMEOUT,
            }),
            Err(CollectError::Body(cause)) => Err(ForwardError::InvalidRequest(cause.to_string())),
        }
    }

    /// Runs each modifier. They cannot set headers of the connection. `body` is `None` if it is
    /// streamed.
    async fn modify(
        &self,
        head: &mut Parts,
        body: Option<&Bytes>,
        upgrade: Option<&HeaderValue>,
    ) -> Result<(), ForwardError> {
        let target = head.uri.path_and_query().cloned();
        let target = target.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let mut url = http::uri::Parts::default();
        url.scheme = Some(Scheme::HTTPS);
        url.authority = Some(self.authority.clone());
        url.path_and_query = Some(target);
        head.uri = Uri::from_parts(url)
            .map_err(|error| ForwardError::InvalidRequest(error.to_string()))?;
        head.headers.insert(HOST, self.host.clone());
        for modifier in &self.modifiers {
            let outgoing = Outgoing {
                method: &head.method,
                url: &head.uri,
                headers: &mut head.headers,
                body,
                upgrade: upgrade.and_then(|protocol| protocol.to_str().ok()),
            };
            modifier
                .modify(outgoing)
                .await
                .map_err(|cause| ForwardError::Modifier {
                    modifier: modifier.name().to_owned(),
                    cause: cause.to_string(),
                })?;
        }
        if !self.modifiers.is_empty() {
            forwarding_headers::remove_hop_by_hop(&mut head.headers);
            head.headers.remove(EXPECT);
            head.headers.insert(HOST, self.host.clone());
        }
        // The length of a streamed body is the client's.
        if let Some(bytes) = body
            && (!bytes.is_empty() || head.headers.contains_key(CONTENT_LENGTH))
        {
            head.headers.insert(CONTENT_LENGTH, bytes.len().into());
        }
        if let Some(protocol) = upgrade {
            let connection = HeaderValue::from_static("Upgrade");
            head.headers.insert(CONNECTION, connection);
            head.headers.insert(UPGRADE, protocol.clone());
        }
        Ok(())
    }
}

impl std::fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forwarder")
            .field("authority", &self.authority)
            .finish_non_exhaustive()
    }
}

/// Answers the requests of one client connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectionService {
    forwarder: Arc<Forwarder>,
    limits: ClientLimits,
}

/// The TLS handshake has verified the client's certificate.
#[derive(Debug)]
struct Authenticated;

impl ClientAuthentication for Authenticated {
    fn is_authenticated(&self) -> bool {
        true
    }
}

impl ConnectionService {
    pub(super) fn new(forwarder: Arc<Forwarder>) -> Self {
        let limits = ClientLimits::new(Arc::new(Authenticated), forwarder.buffers.clone());
        Self { forwarder, limits }
    }
}

impl Service for ConnectionService {
    type Record = ActivityGuard;

    async fn call(&self, request: Request<RequestBody>) -> ClientResponse<ActivityGuard> {
        self.forwarder.call(request, &self.limits).await
    }

    fn limits(&self) -> &ClientLimits {
        &self.limits
    }
}

/// The headers of a 101 for the client.
fn set_upgrade_response_headers(response: &mut Response<()>, requested: Option<HeaderValue>) {
    let chosen = response.headers().get(UPGRADE).cloned();
    let headers: &mut HeaderMap = response.headers_mut();
    forwarding_headers::remove_hop_by_hop(headers);
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Some(protocol) = chosen.or(requested) {
        headers.insert(UPGRADE, protocol);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use skewbridge_http_engine::body::{BodySource, Frame, PollFrame};

    use super::*;
    use crate::forward::{ConnectError, DialedStream, ProtocolOffer};
    use crate::modifier::BoxFuture;
    use crate::modifier::ModifyError;

    /// A body that stalls after its first bytes.
    #[derive(Debug)]
    struct Stalled(Bytes);

    impl BodySource for Stalled {
        fn poll_frame(&mut self, _: &mut Context<'_>) -> PollFrame {
            match std::mem::take(&mut self.0) {
                nothing if nothing.is_empty() => Poll::Pending,
                first => Poll::Ready(Some(Ok(Frame::Data(first)))),
            }
        }

        fn buffered(&mut self) -> usize {
            0
        }

        fn is_done(&self) -> bool {
            false
        }
    }

    fn stalled(length: usize) -> Request<RequestBody> {
        let body = RequestBody::Stream(Box::new(Stalled(Bytes::from_static(b"begun"))));
        Request::post("/api/v1/namespaces")
            .header(CONTENT_LENGTH, length)
            .body(body)
            .unwrap()
    }

    struct UnreachableDial;

    impl Dial for UnreachableDial {
        fn dial(&self, _: ProtocolOffer) -> BoxFuture<'_, Result<DialedStream, ConnectError>> {
            Box::pin(async { Err(ConnectError::new("connection refused")) })
        }
    }

    struct Signer;

    impl RequestModifier for Signer {
        fn name(&self) -> &'static str {
            "signer"
        }

        fn needs_body(&self) -> NeedsBody {
            NeedsBody::Whole
        }

        fn modify<'a>(&'a self, _: Outgoing<'a>) -> BoxFuture<'a, Result<(), ModifyError>> {
            Box::pin(async { Ok(()) })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_body_is_answered_with_408_and_its_memory_is_released() {
        let host = Authority::from_static("k.invalid");
        let forwarder = Forwarder::new(UnreachableDial, host, vec![Box::new(Signer)]);
        for length in [10, DEFAULT_MAX_BODY_BYTES] {
            let begun = tokio::time::Instant::now();
            let limits = ClientLimits::trusted();
            let mut answer = forwarder.call(stalled(length), limits).await;
            assert_eq!(answer.response.status(), 408);
            let frame = std::future::poll_fn(|cx| answer.response.body_mut().poll_frame(cx)).await;
            let Some(Ok(Frame::Data(status))) = frame else {
                panic!("no Status")
            };
            let status = String::from_utf8_lossy(&status).into_owned();
            assert!(status.contains("\"code\":408"), "{status}");
            let words = "signer needs the whole body of a request, and no further part of it has \
                         arrived for 30 s";
            assert!(status.contains(words), "{status}");
            assert!(begun.elapsed() <= BODY_IDLE_TIMEOUT + Duration::from_secs(1));
            assert!(
                forwarder
                    .body_budget
                    .try_acquire(MAX_BUDGET_BYTES)
                    .is_some(),
                "{length}"
            );
        }
    }
}
