//! The bridge's own requests: to the kube-apiserver behind it, and to peers.

use std::borrow::Cow;
use std::future::poll_fn;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use skewbridge_http_engine::body::{Frame, RequestBody, ResponseBody};
use skewbridge_k8s_api::forwarding_headers::PEER_PROXIED;
use skewbridge_k8s_api::identity::User;
use skewbridge_peer_directory::Peer;

use crate::config::BridgeUser;
use crate::state::GatewayState;
use crate::upstream::{
    PeerConnectionIdentity, Pools, ProtocolPreference, ReplayBody, RetryClass, UpstreamIdentity,
    UpstreamResponse,
};

/// The name of the bridge in the logs of servers.
const USER_AGENT_VALUE: &str = concat!("skewbridge/", env!("CARGO_PKG_VERSION"));

/// More than a page of a list takes. A longer response is an error.
const MAX_RESPONSE_BYTES: usize = 32 * 1024 * 1024;

/// The message of an error response goes into logs and into `/debug/peers`: it is truncated.
const MAX_ERROR_MESSAGE_CHARS: usize = 400;

/// A watch event contains one object of any size that kube-apiserver accepts.
const MAX_LINE_BYTES: usize = 8 * 1024 * 1024;

/// The server that a request goes to, and the user that it is sent as.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InternalTarget<'a> {
    /// The local server, without credentials.
    UpstreamAnonymous,
    /// The local server, as `--bridge-user`.
    Upstream,
    /// The local server, as a user that the bridge asserts.
    UpstreamAs(&'a User),
    /// A peer, as kube-apiservers authenticate to each other.
    Peer(&'a Peer),
    /// A peer, as `--bridge-user`: for requests that the local server cannot process because
    /// it has ended.
    PeerAsBridgeUser(&'a Peer),
}

impl InternalTarget<'_> {
    fn user(self, bridge: &BridgeUser) -> Option<User> {
        let groups = match self {
            Self::UpstreamAnonymous => return None,
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

/// A request of the bridge itself.
#[derive(Debug, Clone)]
pub(crate) struct InternalRequest<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) headers: Vec<(HeaderName, String)>,
    pub(crate) json: Option<Vec<u8>>,
    /// The maximum size of the response body.
    pub(crate) max_response_bytes: usize,
}

impl<'a> InternalRequest<'a> {
    /// A plain GET.
    pub(crate) fn get(path: &'a str) -> Self {
        Self {
            method: Method::GET,
            path,
            headers: Vec::new(),
            json: None,
            max_response_bytes: MAX_RESPONSE_BYTES,
        }
    }

    /// Limits the size of the response body.
    #[must_use]
    pub(crate) fn max_response_bytes(mut self, bytes: usize) -> Self {
        self.max_response_bytes = bytes;
        self
    }

    /// A request with a JSON body.
    pub(crate) fn json(method: Method, path: &'a str, json: Vec<u8>) -> Self {
        Self {
            method,
            json: Some(json),
            ..Self::get(path)
        }
    }

    /// Adds a header.
    #[must_use]
    pub(crate) fn header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// A response with its complete body.
#[derive(Debug)]
pub(crate) struct InternalResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl InternalResponse {
    /// The response if its status is 2xx, otherwise an error text.
    pub(crate) fn ok(self, path: &str) -> Result<Self, String> {
        if self.status.is_success() {
            return Ok(self);
        }
        let message = message(&self.body);
        let message: String = (message.trim().chars())
            .take(MAX_ERROR_MESSAGE_CHARS)
            .collect();
        Err(format!("{path}: {}: {message}", self.status.as_u16()))
    }

    pub(crate) fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The HTTP client for requests of the bridge itself.
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

    /// Closes idle connections, and connections to peers that no longer exist.
    pub(crate) fn close_idle_connections(&self) {
        let cluster = self
            .bridge
            .cluster_handle
            .as_ref()
            .map(|it| it.cluster.load());
        self.pools.evict_idle(|identity, address| {
            let peer = cluster.as_ref().and_then(|it| it.peers.get(identity));
            peer.is_some_and(|it| it.is_at(address))
        });
    }

    /// Sends a request and reads the complete response. The caller sets a timeout.
    pub(crate) async fn request(
        &self,
        target: InternalTarget<'_>,
        request: InternalRequest<'_>,
    ) -> Result<InternalResponse, String> {
        let max_bytes = request.max_response_bytes;
        let response = self.send(target, request).await?;
        let (head, body) = response.into_parts();
        Ok(InternalResponse {
            status: head.status,
            headers: head.headers,
            body: read(body, max_bytes).await?,
        })
    }

    /// Sends a request whose response is a stream of lines.
    pub(crate) async fn watch(
        &self,
        target: InternalTarget<'_>,
        request: InternalRequest<'_>,
    ) -> Result<LineReader, String> {
        let path = request.path.to_owned();
        let response = self.send(target, request).await?;
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            let response = InternalResponse {
                status: head.status,
                headers: head.headers,
                body: read(body, MAX_RESPONSE_BYTES).await?,
            };
            response.ok(&path)?;
            return Err(format!("{path}: {}", head.status));
        }
        Ok(LineReader {
            body,
            buffer: BytesMut::new(),
        })
    }

    async fn send(
        &self,
        target: InternalTarget<'_>,
        internal: InternalRequest<'_>,
    ) -> Result<http::Response<ResponseBody>, String> {
        let bridge = &*self.bridge;
        let (targets, metrics) = (&bridge.targets, &bridge.metrics);
        if let InternalTarget::Peer(_) | InternalTarget::PeerAsBridgeUser(_) = target
            && let Some(conflict) = bridge.live.conflicts.of_peering()
        {
            return Err(format!("peering is disabled: {conflict}"));
        }
        let pool = match target {
            InternalTarget::UpstreamAnonymous => {
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
        let (body, retry_class) = match internal.json {
            None => (RequestBody::Empty, RetryClass::Idempotent),
            Some(ref json) => (
                RequestBody::Full(json.clone().into()),
                RetryClass::OnlyIfUnsent,
            ),
        };
        let mut request = Request::new(ReplayBody::new(body, trust.clone(), retry_class));
        *request.method_mut() = internal.method;
        *request.uri_mut() = internal
            .path
            .parse::<Uri>()
            .map_err(|error| format!("{}: {error}", internal.path))?;
        let headers = request.headers_mut();
        headers.insert(HOST, bridge.default_host.clone());
        headers.insert(USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(json) = &internal.json {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(CONTENT_LENGTH, json.len().into());
        }
        if let InternalTarget::Peer(_) | InternalTarget::PeerAsBridgeUser(_) = target {
            // A request has at most one hop: the bridge of the peer answers for its own
            // server and does not forward this request.
            headers.insert(PEER_PROXIED, HeaderValue::from_static("true"));
        }
        for (name, value) in internal.headers {
            let value = HeaderValue::try_from(value).map_err(|error| error.to_string())?;
            headers.insert(name, value);
        }
        if let Some(user) = target.user(&bridge.bridge_user) {
            let written = trust.headers().write(headers, &user);
            written.map_err(|error| error.to_string())?;
        }
        match pool.send(&mut request, ProtocolPreference::H2).await {
            Ok(UpstreamResponse::Response(response)) => Ok(response),
            Ok(UpstreamResponse::Upgraded(..)) => Err(format!("{} answered 101", internal.path)),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The message of a Status, or the complete body if it is not a Status.
fn message(body: &[u8]) -> Cow<'_, str> {
    #[derive(serde::Deserialize)]
    struct Status<'a> {
        kind: &'a str,
        message: String,
    }
    match serde_json::from_slice(body) {
        Ok(Status {
            kind: "Status",
            message,
        }) => message.into(),
        _ => String::from_utf8_lossy(body),
    }
}

/// Reads a body to its end, so that the connection can be reused.
async fn read(body: ResponseBody, max_bytes: usize) -> Result<Bytes, String> {
    let body = body.collect(max_bytes).await;
    body.map_err(|error| error.to_string())
}

/// A body that is a stream of lines.
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
                    if self.buffer.len() + data.len() > MAX_LINE_BYTES {
                        return Err(format!("a line is longer than {MAX_LINE_BYTES} bytes"));
                    }
                    self.buffer.extend_from_slice(&data);
                }
            }
        }
    }
}
