//! The forwarding engine: requests of clients, changed by modifiers, on their way
//! to one upstream.
//!
//! It knows nothing of plugins. A [`Forwarder`] has where requests go ([`Dial`]),
//! as which host, and what is done to them; [`serve()`] accepts clients for it, and
//! [`Apart`] does so on a thread of its own. HTTP/1.1, HTTP/2 and upgrades pass, bodies and
//! watches as they come. Nothing is sent twice that could have an effect, and an answer
//! that is cut is cut for the client as well.

mod activity;
mod apart;
mod body;
mod client_h1;
mod client_h2;
mod dial;
mod handshakes;
mod logged_failure;
mod overheard;
mod pool;
mod refusal;
mod room;
mod serve;
mod tunnel;
mod upstream_h1;
mod upstream_h2;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, Version};
use skewbridge_k8s_api::forwarding_headers;
use skewbridge_k8s_api::request_info::DecodedPath;

pub use activity::Activity;
pub use apart::Apart;
pub use dial::{BoxFuture, Dial, DialError, Dialled, Offer, Protocol, Standing};
pub(crate) use serve::is_same_user;
pub use serve::{Listener, serve};

use crate::modifier::{NeedsBody, Outgoing, RequestModifier};
use activity::Busy;
use body::{AnyBody, Uncollected, Whole, collect};
use logged_failure::LoggedFailure;
use pool::Pool;
use refusal::Refusal;
use room::{MAX_HELD, Place, Room};
use tunnel::Upgraded;

/// Bodies that modifiers see are held in memory, up to this unless
/// [`Forwarder::body_limit`] says otherwise: kube-apiserver takes no more than
/// 3 MiB.
pub const BODY_LIMIT: usize = 4 * 1024 * 1024;

/// A body of at most this length is read before its request is sent, so that the
/// request can be sent again where upstream is known not to have acted on it.
const HELD_BODY: u64 = 64 * 1024;

/// How long that takes at most between two pieces. What has stalled by then is sent as it
/// comes, and not again: its server sees it begin, as it would without us.
const HELD_IDLE: Duration = Duration::from_secs(1);

/// How long a modifier that wants to see all of a body waits for the next piece of it: its
/// room is kept from others meanwhile, and the client is on this machine.
const BODY_IDLE: Duration = Duration::from_secs(30);

/// Passes requests on to one upstream.
pub struct Forwarder {
    authority: Authority,
    host: HeaderValue,
    modifiers: Vec<Box<dyn RequestModifier>>,
    pool: Arc<Pool>,
    activity: Activity,
    body_limit: usize,
    room: Room,
    failures: LoggedFailure,
}

impl Forwarder {
    /// Requests go where `dial` leads, for the host `authority` whatever host the
    /// client names, and after each of `modifiers` in turn.
    pub fn new(
        dial: impl Dial,
        authority: Authority,
        modifiers: Vec<Box<dyn RequestModifier>>,
    ) -> Self {
        // An authority is made of what may stand in a header.
        let host = HeaderValue::from_str(authority.as_str())
            .unwrap_or_else(|_| HeaderValue::from_static("kubernetes"));
        Self {
            authority,
            host,
            modifiers,
            pool: Pool::new(Box::new(dial)),
            activity: Activity::default(),
            body_limit: BODY_LIMIT,
            room: Room::new(MAX_HELD),
            failures: LoggedFailure::default(),
        }
    }

    /// With another limit for bodies that modifiers want to see.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = bytes;
        self.held_limit(bytes.max(MAX_HELD))
    }

    /// With another limit for all bodies together that are held at one time. Requests
    /// for which there is no room wait, and are refused with a 503 Status if that takes
    /// too long.
    #[must_use]
    pub fn held_limit(mut self, bytes: usize) -> Self {
        self.room = Room::new(bytes);
        self
    }

    /// What is under way.
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Answers one request.
    async fn call(&self, request: Request<AnyBody>) -> Answer {
        let busy = self.activity.begin();
        let asked = request.headers().clone();
        let mut answer = match self.forward(request).await {
            Ok(answer) => answer,
            Err(refusal) => {
                // Not all clients show the cause.
                if matches!(refusal, Refusal::Modifier { .. }) && self.failures.is_new(&refusal) {
                    tracing::warn!(cause = %refusal, "requests fail because a signer failed");
                } else {
                    tracing::debug!(%refusal, "a request was not answered by the server");
                }
                Answer::refused(&refusal, &asked)
            }
        };
        answer.busy = Some(busy);
        answer
    }

    async fn forward(&self, request: Request<AnyBody>) -> Result<Answer, Refusal> {
        let (mut head, body) = request.into_parts();
        if head.method == Method::CONNECT {
            return Err(Refusal::Connect);
        }
        let upgrade = (head.version == Version::HTTP_11)
            .then(|| forwarding_headers::requested_upgrade(&head.headers))
            .flatten();
        forwarding_headers::remove_hop_by_hop(&mut head.headers);
        // The body tells the client to go on when it is asked for.
        head.headers.remove(EXPECT);
        let body = Body::of(&head, body, &self.room).await?;
        // As it came, should it have to be signed anew.
        let unsigned = (!self.modifiers.is_empty()).then(|| head.headers.clone());
        let body = self.modify(&mut head, body, upgrade.as_ref()).await?;
        let repeat = Repeat::of(&head, upgrade.is_some());
        let offer = match upgrade {
            None => Offer::Either,
            Some(_) => Offer::Http1,
        };
        let reply = match body {
            Body::Held(bytes) => {
                let whole = || Box::new(Whole(bytes.clone()));
                match self.pool.send(&head, whole(), repeat, offer).await {
                    Err(Refusal::NotProcessed(cause)) => {
                        tracing::debug!(%cause, "a request is sent once more");
                        if let Some(headers) = unsigned {
                            head.headers = headers;
                            let again = Body::Held(bytes.clone());
                            self.modify(&mut head, again, upgrade.as_ref()).await?;
                        }
                        // Boxed: it happens seldom, and each watch would have
                        // room for it.
                        Box::pin(self.pool.send(&head, whole(), repeat, offer)).await
                    }
                    answered => answered,
                }
            }
            Body::Streamed(body) => self.pool.send(&head, body, repeat, offer).await,
        };
        Ok(match reply? {
            Reply::Response(mut response, body) => {
                forwarding_headers::remove_hop_by_hop(response.headers_mut());
                Answer {
                    response,
                    body,
                    upgraded: None,
                    busy: None,
                }
            }
            Reply::Upgraded(mut response, upgraded) => {
                let chosen = response.headers().get(UPGRADE).cloned();
                forwarding_headers::remove_hop_by_hop(response.headers_mut());
                let headers = response.headers_mut();
                headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
                if let Some(protocol) = chosen.or(upgrade) {
                    headers.insert(UPGRADE, protocol);
                }
                Answer {
                    response,
                    body: body::empty(),
                    upgraded: Some(upgraded),
                    busy: None,
                }
            }
        })
    }

    /// All of a body, for a modifier that wants to see it.
    async fn hold(
        &self,
        body: Body,
        modifier: &dyn RequestModifier,
        head: &mut Parts,
    ) -> Result<Body, Refusal> {
        let body = match body {
            Body::Held(bytes) => return Ok(Body::Held(bytes)),
            Body::Streamed(body) => body,
        };
        let limit = self.body_limit;
        let too_long = || Refusal::BodyTooLong {
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
        let place = self.room.take(length.unwrap_or(limit)).await;
        let place: Place = place.ok_or_else(|| Refusal::NoRoom {
            modifier: modifier.name().to_owned(),
        })?;
        match collect(body, length.unwrap_or_default(), limit, BODY_IDLE).await {
            Ok(bytes) => {
                head.headers.remove(TRANSFER_ENCODING);
                head.headers.insert(CONTENT_LENGTH, bytes.len().into());
                Ok(Body::Held(place.hold(bytes)))
            }
            Err(Uncollected::TooLong) => Err(too_long()),
            Err(Uncollected::Stalled(_)) => Err(Refusal::StalledBody {
                modifier: modifier.name().to_owned(),
                after: BODY_IDLE,
            }),
            Err(Uncollected::Cut(cut)) => Err(Refusal::Body(cut.to_string())),
        }
    }

    /// Lets each modifier have its turn. What concerns the connection is not
    /// theirs to say.
    async fn modify(
        &self,
        head: &mut Parts,
        mut body: Body,
        upgrade: Option<&HeaderValue>,
    ) -> Result<Body, Refusal> {
        let target = head.uri.path_and_query().cloned();
        let target = target.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let mut url = http::uri::Parts::default();
        url.scheme = Some(Scheme::HTTPS);
        url.authority = Some(self.authority.clone());
        url.path_and_query = Some(target);
        head.uri = Uri::from_parts(url).map_err(|error| Refusal::NotARequest(error.to_string()))?;
        head.headers.insert(HOST, self.host.clone());
        for modifier in &self.modifiers {
            if modifier.needs_body() == NeedsBody::Whole {
                body = self.hold(body, modifier.as_ref(), head).await?;
            }
            let outgoing = Outgoing {
                method: &head.method,
                url: &head.uri,
                headers: &mut head.headers,
                body: body.bytes(),
                upgrade: upgrade.and_then(|protocol| protocol.to_str().ok()),
            };
            modifier
                .modify(outgoing)
                .await
                .map_err(|cause| Refusal::Modifier {
                    modifier: modifier.name().to_owned(),
                    cause: cause.to_string(),
                })?;
        }
        if !self.modifiers.is_empty() {
            forwarding_headers::remove_hop_by_hop(&mut head.headers);
            head.headers.remove(EXPECT);
            head.headers.insert(HOST, self.host.clone());
        }
        if let Body::Held(bytes) = &body
            && (!bytes.is_empty() || head.headers.contains_key(CONTENT_LENGTH))
        {
            head.headers.insert(CONTENT_LENGTH, bytes.len().into());
        }
        if let Some(protocol) = upgrade {
            let connection = HeaderValue::from_static("Upgrade");
            head.headers.insert(CONNECTION, connection);
            head.headers.insert(UPGRADE, protocol.clone());
        }
        Ok(body)
    }
}

impl std::fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forwarder")
            .field("authority", &self.authority)
            .finish_non_exhaustive()
    }
}

/// The body of a request on its way up.
enum Body {
    /// At hand, and can be sent again.
    Held(bytes::Bytes),
    /// As it comes.
    Streamed(AnyBody),
}

impl Body {
    async fn of(head: &Parts, body: AnyBody, room: &Room) -> Result<Self, Refusal> {
        if body.is_done() {
            return Ok(Self::Held(bytes::Bytes::new()));
        }
        let length = content_length(&head.headers).filter(|length| *length <= HELD_BODY);
        let length = length.and_then(|length| usize::try_from(length).ok());
        // Without room it is sent as it comes, and not again.
        match length.and_then(|length| Some((length, room.take_now(length)?))) {
            Some((length, place)) => {
                // HTTP/2 checks the length itself, and HTTP/1.1 has no other end.
                match collect(body, length, length, HELD_IDLE).await {
                    Ok(bytes) => Ok(Self::Held(place.hold(bytes))),
                    Err(Uncollected::Stalled(resumed)) => Ok(Self::Streamed(Box::new(resumed))),
                    Err(Uncollected::TooLong) => {
                        Err(Refusal::Body("it is longer than Content-Length".to_owned()))
                    }
                    Err(Uncollected::Cut(cut)) => Err(Refusal::Body(cut.to_string())),
                }
            }
            None => Ok(Self::Streamed(body)),
        }
    }

    fn bytes(&self) -> Option<&bytes::Bytes> {
        match self {
            Self::Held(bytes) => Some(bytes),
            Self::Streamed(_) => None,
        }
    }
}

/// Whether a request may be sent again when it is not certain that the first time
/// had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// It only reads.
    Harmless,
    /// It changes something, or starts something: exec by WebSocket is a GET.
    OnlyIfCertain,
}

impl Repeat {
    fn of(head: &Parts, upgrade: bool) -> Self {
        let reads = matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS);
        // What a workload does with a GET nobody knows.
        if reads && !upgrade && !may_reach_workload(head.uri.path()) {
            Self::Harmless
        } else {
            Self::OnlyIfCertain
        }
    }
}

/// Whether somebody behind the API may answer what is at this path, whatever stands before
/// it: upstream may be reached below a path of its own.
fn may_reach_workload(path: &str) -> bool {
    let names = |part: &str| matches!(part, "proxy" | "exec" | "attach" | "portforward");
    DecodedPath::new(path).map_or(true, |path| path.as_str().split('/').any(names))
}

/// What upstream answered.
enum Reply {
    Response(Response<()>, AnyBody),
    /// 101: the connection is the client's now.
    Upgraded(Response<()>, Upgraded),
}

/// What a client is answered.
struct Answer {
    response: Response<()>,
    body: AnyBody,
    upgraded: Option<Upgraded>,
    /// Kept until the answer has been sent.
    busy: Option<Busy>,
}

impl Answer {
    fn refused(refusal: &Refusal, asked: &HeaderMap) -> Self {
        let (response, body) = refusal.response(asked);
        Self {
            response,
            body: Box::new(Whole(body)),
            upgraded: None,
            busy: None,
        }
    }
}

/// Whether a client waits for `100 Continue`.
fn expects_continue(headers: &HeaderMap) -> bool {
    headers
        .get(EXPECT)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// A length that has been looked at: one, and a number.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use bytes::Bytes;

    use super::body::{Frame, PollFrame};
    use super::*;
    use crate::modifier::ModifyError;

    /// A body that begins, and never goes on.
    struct Stalled(Bytes);

    impl body::Body for Stalled {
        fn poll_frame(&mut self, _: &mut Context<'_>) -> PollFrame {
            match std::mem::take(&mut self.0) {
                nothing if nothing.is_empty() => Poll::Pending,
                first => Poll::Ready(Some(Ok(Frame::Data(first)))),
            }
        }

        fn is_done(&self) -> bool {
            false
        }
    }

    fn stalled(length: usize) -> Request<AnyBody> {
        let body: AnyBody = Box::new(Stalled(Bytes::from_static(b"begun")));
        Request::post("/api/v1/namespaces")
            .header(CONTENT_LENGTH, length)
            .body(body)
            .unwrap()
    }

    struct Nowhere;

    impl Dial for Nowhere {
        fn dial(&self, _: Offer) -> BoxFuture<'_, Result<Dialled, DialError>> {
            Box::pin(async { Err(DialError::new("nobody there")) })
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

    #[test]
    fn only_what_reads_from_the_api_itself_may_be_repeated() {
        let rows = [
            ("GET", "/api/v1/namespaces/x/pods", false, Repeat::Harmless),
            (
                "HEAD",
                "/api/v1/namespaces/x/pods/web/log",
                false,
                Repeat::Harmless,
            ),
            (
                "POST",
                "/api/v1/namespaces/x/pods",
                false,
                Repeat::OnlyIfCertain,
            ),
            (
                "GET",
                "/api/v1/namespaces/x/pods/web/exec",
                true,
                Repeat::OnlyIfCertain,
            ),
            (
                "GET",
                "/api/v1/namespaces/x/services/web/proxy/x",
                false,
                Repeat::OnlyIfCertain,
            ),
            (
                "GET",
                "/api/v1/namespaces/x/services/web/%70roxy/x",
                false,
                Repeat::OnlyIfCertain,
            ),
            (
                "GET",
                "/k8s/clusters/c/api/v1/nodes/n%2Fproxy/x",
                false,
                Repeat::OnlyIfCertain,
            ),
            ("GET", "/api/v1/nodes/%zz", false, Repeat::OnlyIfCertain),
        ];
        for (method, path, upgrade, expected) in rows {
            let (head, ()) = Request::builder()
                .method(method)
                .uri(path)
                .body(())
                .unwrap()
                .into_parts();
            assert_eq!(Repeat::of(&head, upgrade), expected, "{method} {path}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_body_is_answered_with_408_and_gives_its_room_back() {
        let host = Authority::from_static("k.invalid");
        let forwarder = Forwarder::new(Nowhere, host, vec![Box::new(Signer)]);
        for length in [10, BODY_LIMIT] {
            let begun = tokio::time::Instant::now();
            let mut answer = forwarder.call(stalled(length)).await;
            assert_eq!(answer.response.status(), 408);
            let frame = std::future::poll_fn(|cx| answer.body.poll_frame(cx)).await;
            let Some(Ok(Frame::Data(status))) = frame else {
                panic!("no Status")
            };
            let status = String::from_utf8_lossy(&status).into_owned();
            assert!(status.contains("\"code\":408"), "{status}");
            let words = "signer needs the whole body of a request, and nothing more of it has \
                         come for 30 s";
            assert!(status.contains(words), "{status}");
            assert!(begun.elapsed() <= BODY_IDLE + HELD_IDLE + Duration::from_secs(1));
            assert!(forwarder.room.take_now(MAX_HELD).is_some(), "{length}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_body_that_stalls_is_sent_as_it_comes_unless_somebody_has_to_see_it() {
        let room = Room::new(100);
        let (head, body) = stalled(10).into_parts();
        let body = Body::of(&head, body, &room).await;
        let Ok(Body::Streamed(mut body)) = body else {
            panic!("it is waited for")
        };
        assert!(room.take_now(100).is_some());
        let first = std::future::poll_fn(|cx| body.poll_frame(cx)).await;
        assert!(matches!(first, Some(Ok(Frame::Data(first))) if first == "begun"));
    }
}
