//! The bridge's own requests: to the kube-apiserver behind it, and to peers.

use std::borrow::Cow;
use std::future::poll_fn;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use skewbridge_k8s_api::forwarding_headers::PEER_HOP_HEADERS;
use skewbridge_k8s_api::identity::User;
use skewbridge_peer_directory::Peer;

use crate::config::BridgeUser;
use crate::state::GatewayState;
use crate::upstream::{
    PeerConnectionIdentity, Pools, ProtocolPreference, ReplayBody, RetryClass, UpstreamIdentity,
    UpstreamResponse,
};
use skewbridge_http_engine::body::{Frame, RequestBody, ResponseBody};

/// Who we are in a server's log.
const USER_AGENT_VALUE: &str = concat!("skewbridge/", env!("CARGO_PKG_VERSION"));

/// Says that a peer has passed a request on.
const HOPPED: HeaderName = HeaderName::from_static(PEER_HOP_HEADERS[0]);

/// More than a page of a list takes; what is longer is an error.
const MAX_ANSWER: usize = 32 * 1024 * 1024;

/// How much of a refusal is told: it goes into logs and into `/debug/peers`.
const MAX_SAID: usize = 400;

/// A watch event, with everything that one object may hold.
const MAX_LINE: usize = 8 * 1024 * 1024;

/// Whom to ask, and as whom.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InternalTarget<'a> {
    /// The kube-apiserver behind us, as nobody in particular.
    UpstreamAsNobody,
    /// The same, as kube-apiserver asks itself.
    Upstream,
    /// The same, with a user that the bridge asserts.
    UpstreamAs(&'a User),
    /// A peer, as kube-apiservers ask each other.
    Peer(&'a Peer),
    /// A peer, as kube-apiserver asks itself: for what the server behind us cannot do any
    /// more.
    PeerAsBridgeUser(&'a Peer),
}

impl InternalTarget<'_> {
    fn user(self, bridge: &BridgeUser) -> Option<User> {
        let groups = match self {
            Self::UpstreamAsNobody => return None,
            Self::UpstreamAs(user) => return Some(user.clone()),
            Self::Upstream | Self::PeerAsBridgeUser(_) => bridge.groups.clone(),
            Self::Peer(_) => vec!["system:authenticated".to_owned()],
        };
        Some(User {
            name: bridge.name.clone(),
            groups,
            ..User::default()
        })
    }
}

/// A question.
#[derive(Debug, Clone)]
pub(crate) struct InternalRequest<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) headers: Vec<(HeaderName, String)>,
    pub(crate) json: Option<Vec<u8>>,
    /// How long the answer may be.
    pub(crate) limit: usize,
}

impl<'a> InternalRequest<'a> {
    /// A plain GET.
    pub(crate) fn get(path: &'a str) -> Self {
        Self {
            method: Method::GET,
            path,
            headers: Vec::new(),
            json: None,
            limit: MAX_ANSWER,
        }
    }

    /// With a shorter answer.
    #[must_use]
    pub(crate) fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Sends a document along.
    pub(crate) fn json(method: Method, path: &'a str, json: Vec<u8>) -> Self {
        Self {
            method,
            json: Some(json),
            ..Self::get(path)
        }
    }

    /// With a header.
    #[must_use]
    pub(crate) fn header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// An answer, read whole.
#[derive(Debug)]
pub(crate) struct InternalResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl InternalResponse {
    /// What is wrong with it, unless it is a 2xx.
    pub(crate) fn ok(self, path: &str) -> Result<Self, String> {
        if self.status.is_success() {
            return Ok(self);
        }
        let said: String = said(&self.body).trim().chars().take(MAX_SAID).collect();
        Err(format!("{path}: {}: {said}", self.status.as_u16()))
    }

    pub(crate) fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Asks in the bridge's own name.
#[derive(Debug)]
pub(crate) struct InternalClient {
    pub(crate) bridge: Arc<GatewayState>,
    pools: Pools,
}

impl InternalClient {
    pub(crate) fn new(bridge: Arc<GatewayState>) -> Self {
        Self {
            bridge,
            pools: Pools::default(),
        }
    }

    /// Closes connections that are not needed any more.
    pub(crate) fn tidy(&self) {
        let cluster = self
            .bridge
            .cluster_handle
            .as_ref()
            .map(|it| it.cluster.load());
        self.pools.evict_idle(|identity| {
            (cluster.as_ref()).is_some_and(|it| it.peers.get(identity).is_some())
        });
    }

    /// Asks, and reads the whole answer. Whoever asks sets a time limit.
    pub(crate) async fn ask(
        &self,
        party: InternalTarget<'_>,
        ask: InternalRequest<'_>,
    ) -> Result<InternalResponse, String> {
        let limit = ask.limit;
        let response = self.send(party, ask).await?;
        let (head, body) = response.into_parts();
        Ok(InternalResponse {
            status: head.status,
            headers: head.headers,
            body: read(body, limit).await?,
        })
    }

    /// Asks for something that comes in lines.
    pub(crate) async fn watch(
        &self,
        party: InternalTarget<'_>,
        ask: InternalRequest<'_>,
    ) -> Result<LineReader, String> {
        let path = ask.path.to_owned();
        let response = self.send(party, ask).await?;
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            let answer = InternalResponse {
                status: head.status,
                headers: head.headers,
                body: read(body, MAX_ANSWER).await?,
            };
            answer.ok(&path)?;
            return Err(format!("{path}: {}", head.status));
        }
        Ok(LineReader {
            body,
            buffer: BytesMut::new(),
        })
    }

    async fn send(
        &self,
        party: InternalTarget<'_>,
        ask: InternalRequest<'_>,
    ) -> Result<http::Response<ResponseBody>, String> {
        let bridge = &*self.bridge;
        let (targets, metrics) = (&bridge.live.targets, &bridge.metrics);
        if let InternalTarget::Peer(_) | InternalTarget::PeerAsBridgeUser(_) = party
            && let Some(conflict) = bridge.live.conflicts.of_peering()
        {
            return Err(format!("peering is switched off: {conflict}"));
        }
        let pool = match party {
            InternalTarget::UpstreamAsNobody => {
                self.pools.of(UpstreamIdentity::Plain, targets, metrics)
            }
            InternalTarget::Upstream | InternalTarget::UpstreamAs(_) => {
                self.pools
                    .of(UpstreamIdentity::FrontProxy, targets, metrics)
            }
            InternalTarget::Peer(peer) | InternalTarget::PeerAsBridgeUser(peer) => {
                self.pools
                    .to(peer, PeerConnectionIdentity::FrontProxy, targets, metrics)
            }
        };
        let Some(pool) = pool else {
            return Err("there is no front-proxy certificate".to_owned());
        };
        let trust = bridge.live.trust.load_full();
        let (body, repeat) = match ask.json {
            None => (RequestBody::Empty, RetryClass::Idempotent),
            Some(ref json) => (
                RequestBody::Full(json.clone().into()),
                RetryClass::OnlyIfUnsent,
            ),
        };
        let mut request = Request::new(ReplayBody::new(body, trust.clone(), repeat));
        *request.method_mut() = ask.method;
        *request.uri_mut() = ask
            .path
            .parse::<Uri>()
            .map_err(|error| format!("{}: {error}", ask.path))?;
        let headers = request.headers_mut();
        headers.insert(HOST, bridge.default_host.clone());
        headers.insert(USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(json) = &ask.json {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(CONTENT_LENGTH, json.len().into());
        }
        if let InternalTarget::Peer(_) | InternalTarget::PeerAsBridgeUser(_) = party {
            // As a request that has hopped already: a bridge there answers for its own
            // server, and asks nobody else.
            headers.insert(HOPPED, HeaderValue::from_static("true"));
        }
        for (name, value) in ask.headers {
            let value = HeaderValue::try_from(value).map_err(|error| error.to_string())?;
            headers.insert(name, value);
        }
        if let Some(user) = party.user(&bridge.own_user) {
            let written = trust.headers().write(headers, &user);
            written.map_err(|error| error.to_string())?;
        }
        match pool.send(&mut request, ProtocolPreference::H2).await {
            Ok(UpstreamResponse::Response(response)) => Ok(response),
            Ok(UpstreamResponse::Upgraded(..)) => Err(format!("{} answered 101", ask.path)),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// What an answer says in words: the message of a Status, else all of it.
fn said(body: &[u8]) -> Cow<'_, str> {
    #[derive(serde::Deserialize)]
    struct Told<'a> {
        kind: &'a str,
        message: String,
    }
    match serde_json::from_slice(body) {
        Ok(Told {
            kind: "Status",
            message,
        }) => message.into(),
        _ => String::from_utf8_lossy(body),
    }
}

/// Reads a body to its end, so that the connection serves the next question
/// too.
async fn read(body: ResponseBody, limit: usize) -> Result<Bytes, String> {
    body.collect(limit).await.map_err(|error| error.to_string())
}

/// A body that comes in lines.
#[derive(Debug)]
pub(crate) struct LineReader {
    body: ResponseBody,
    buffer: BytesMut,
}

impl LineReader {
    /// The next line; `None` at a clean end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, String> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.buffer[searched..].iter().position(|it| *it == b'\n') {
                let mut line = self.buffer.split_to(searched + at + 1);
                line.truncate(line.len() - 1);
                return Ok(Some(line.freeze()));
            }
            searched = self.buffer.len();
            match poll_fn(|cx| self.body.poll_frame(cx)).await {
                None => return Ok(None),
                Some(Err(error)) => return Err(error.to_string()),
                Some(Ok(Frame::Trailers(_))) => {}
                Some(Ok(Frame::Data(data))) => {
                    if self.buffer.len() + data.len() > MAX_LINE {
                        return Err(format!("a line is longer than {MAX_LINE} bytes"));
                    }
                    self.buffer.extend_from_slice(&data);
                }
            }
        }
    }
}
