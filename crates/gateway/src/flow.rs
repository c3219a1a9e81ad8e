//! One request from its head to its answer: caller, request, route, local,
//! respond, in this order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, HOST, UPGRADE};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use skewbridge_api::hygiene::{self, ViaToken};
use skewbridge_api::media::{Format, negotiate_error_format};
use skewbridge_api::request_info::{DecodedPath, RequestInfo, Verb};
use skewbridge_api::status::Status;
use skewbridge_api::version::Version as KubeVersion;

use crate::body::{RequestBody, ResponseBody};
use crate::caller::{Caller, Presented, Recognised, Trust};
use crate::config::Limits;
use crate::drain::Drain;
use crate::health;
use crate::local::{self, Deadline};
use crate::metrics::Metrics;
use crate::record::Record;
use crate::respond;
use crate::route::{self, Refusal, Route};
use crate::serve::{Answer, Service};
use crate::tls::reload::Live;
use crate::upstream::{Prefer, Repeat, Replay, Reply};
use crate::watch::WatchEnd;
use crate::worker::Pools;

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
}

/// One connection from a client.
#[derive(Debug, Clone)]
pub struct Connection(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) bridge: Arc<Bridge>,
    pub(crate) pools: Arc<Pools>,
    pub(crate) peer: SocketAddr,
    pub(crate) presented: Presented,
}

impl Service for Connection {
    fn refused(&self, status: StatusCode) {
        let mut record = Record::begin(&self.0.bridge.metrics);
        record.route("refuse");
        record.status(status);
        record.complete();
    }

    async fn call(&self, request: Request<RequestBody>) -> Answer {
        let bridge = &*self.0.bridge;
        let mut record = Record::begin(&bridge.metrics);
        let (mut head, body) = request.into_parts();
        if bridge.access_log {
            record.log(&head);
        }
        match self.handle(&mut head, body, &mut record).await {
            Ok(Reply::Response(mut response)) => {
                hygiene::remove_hop_by_hop(response.headers_mut());
                record.status(response.status());
                Answer {
                    response,
                    upgraded: None,
                    record,
                }
            }
            Ok(Reply::Upgraded(response, upgraded)) => {
                record.status(response.status());
                Answer {
                    response: response.map(|()| ResponseBody::empty()),
                    upgraded: Some(upgraded),
                    record,
                }
            }
            Err(refused) => {
                record.status(refused.status());
                Answer {
                    response: refused.map(ResponseBody::full),
                    upgraded: None,
                    record,
                }
            }
        }
    }
}

impl Connection {
    async fn handle(
        &self,
        head: &mut Parts,
        body: RequestBody,
        record: &mut Record,
    ) -> Result<Reply, Response<Bytes>> {
        let bridge = &*self.0.bridge;
        let trust = bridge.live.trust.load_full();
        let format = negotiate_error_format(&head.headers);
        let upgrade = clean(head);
        let Recognised { caller, from_peer } = self.0.presented.caller(&trust, &head.headers);
        record.caller(caller.name());

        let decided = self.decide(head, &caller, record).map_err(|refused| {
            // Answers to a request that was not understood still have to be
            // readable.
            refused.answer(format)
        })?;
        let upstream = bridge.upstream_version.load();
        let upstream = upstream.as_deref();
        identify(&mut head.headers, &trust, &caller, from_peer, upstream)
            .map_err(|status| respond::status(&status, format))?;
        self.mark(head);

        let prefer = match (&upgrade, head.version) {
            (Some(_), _) => Prefer::Upgrade,
            (None, Version::HTTP_2) => Prefer::H2,
            (None, _) => Prefer::H1,
        };
        if let Some(upgrade) = upgrade {
            head.headers.insert(UPGRADE, upgrade);
        }
        let request = Request::from_parts(take(head), Replay::new(body, trust, decided.repeat));
        let reply = local::forward(
            &decided.pool,
            request,
            prefer,
            Deadline::of(decided.long_running, &bridge.limits),
            &bridge.metrics,
        );
        let mut reply = reply
            .await
            .map_err(|status| respond::status(&status, format))?;
        if let Reply::Response(response) = &reply
            && decided.readyz
            && response.status().is_success()
            && !bridge.acquainted.load(Ordering::Relaxed)
        {
            return Err(health::not_ready(NOT_ACQUAINTED));
        }
        if let Reply::Response(response) = &mut reply
            && decided.watch
            && response.status().is_success()
        {
            let share = bridge.next_share.fetch_add(97, Ordering::Relaxed);
            let end = WatchEnd::new(&bridge.drain, share, response.headers());
            response.body_mut().end_with(end);
        }
        Ok(reply)
    }

    fn decide(
        &self,
        head: &Parts,
        caller: &Caller,
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
            seen_before: bridge.via.seen(&head.headers),
        };
        let route = route::route(&info, caller, facts);
        record.route(route.as_str());
        match route {
            Route::Local(leg) => Ok(Decided {
                pool: self.0.pools.of(leg, &bridge.live, &bridge.metrics).ok_or(
                    // The certificate went away between two looks at it.
                    Refused::Refusal(Refusal::CannotAssert),
                )?,
                long_running: info.is_long_running(),
                repeat: if info.is_harmless(&head.method) {
                    Repeat::Harmless
                } else {
                    Repeat::OnlyIfCertain
                },
                watch: info.verb == Verb::Watch,
                readyz: info.is_readyz(),
            }),
            Route::Refuse(refusal) => Err(Refused::Refusal(refusal)),
        }
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
        hygiene::forwarded(&mut head.headers, self.0.peer.ip().to_canonical());
        self.0.bridge.via.add(&mut head.headers, head.version);
    }
}

/// Why the bridge itself is not ready.
const LEAVING: &str = "the bridge is shutting down";
const NOT_ACQUAINTED: &str = "the bridge has not heard from upstream yet";

struct Decided {
    pool: Arc<crate::upstream::Pool>,
    long_running: bool,
    repeat: Repeat,
    watch: bool,
    readyz: bool,
}

enum Refused {
    Status(Status),
    Refusal(Refusal),
}

impl Refused {
    fn answer(&self, format: Format) -> Response<Bytes> {
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
        };
        respond::status(&status, format)
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

/// Leaves in the headers the identity that was proven, and no other.
fn identify(
    headers: &mut HeaderMap,
    trust: &Trust,
    caller: &Caller,
    from_peer: bool,
    upstream: Option<&KubeVersion>,
) -> Result<(), Status> {
    let names = trust.headers();
    names.remove(headers);
    if !from_peer {
        hygiene::remove_peer_hop(headers);
    }
    match caller {
        Caller::Peer(user) => {
            names
                .write(headers, user)
                .map_err(|error| Status::bad_request(error.to_string()))?;
            // What has been asserted is not to be judged a second time.
            headers.remove(AUTHORIZATION);
        }
        Caller::Certificate(user) => {
            user.headers(upstream).apply(headers);
            headers.remove(AUTHORIZATION);
        }
        Caller::Bearer | Caller::Anonymous | Caller::Unauthorized => {}
    }
    Ok(())
}

fn take(head: &mut Parts) -> Parts {
    std::mem::replace(head, Request::new(()).into_parts().0)
}
