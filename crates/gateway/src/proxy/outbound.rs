//! Sends a request to its destination, and records what the response shows about the caller.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use skewbridge_http_engine::body::RequestBody;
use skewbridge_k8s_api::status::Status;
use skewbridge_peer_directory::{Identity, Peer};

use super::error::ProxyError;
use super::forward_peer::AfterLastPeer;
use super::request_context::{Deadline, RequestContext};
use super::{forward_local, forward_peer};
use crate::access_log::AccessLogEntry;
use crate::authentication_limit::Outcome;
use crate::authn::Caller;
use crate::error_response;
use crate::metrics::connections::Credential;
use crate::state::GatewayState;
use crate::streams::{StreamRequest, UpgradeRequest};
use crate::upstream::{Pool, ProtocolPreference, ReplayBody, RetryClass, UpstreamResponse};

/// The destination of a request.
#[derive(Clone)]
pub(super) enum Destination {
    Local(Arc<Pool>),
    /// Groups of equally good peers, the best first.
    Peers(Vec<Vec<Arc<Peer>>>),
    /// These peers, or the local server if none of them accepts the request.
    PeersOrLocal(Vec<Vec<Arc<Peer>>>, Arc<Pool>),
    /// These peers: the local server does not enforce the policies in force.
    EnforcingPeers(Vec<Vec<Arc<Peer>>>),
}

impl Destination {
    /// Whether a server is in the first group of this destination; `None` is the local server. Another
    /// server got the request because the first group did not accept it.
    pub(super) fn is_best(&self, server: Option<&Identity>) -> bool {
        let is_in_best = |groups: &[Vec<Arc<Peer>>]| {
            let mut best = groups.first().into_iter().flatten();
            server.is_some_and(|server| best.any(|it| it.identity == *server))
        };
        match self {
            Self::Local(_) => server.is_none(),
            Self::Peers(groups) | Self::EnforcingPeers(groups) | Self::PeersOrLocal(groups, _) => {
                is_in_best(groups)
            }
        }
    }

    /// The servers that may get the request. `None` is the local server.
    pub(super) fn servers(&self) -> impl Iterator<Item = Option<&Identity>> {
        let (peers, may_be_local) = match self {
            Self::Local(_) => (&[][..], true),
            Self::Peers(peers) | Self::EnforcingPeers(peers) => (&**peers, false),
            Self::PeersOrLocal(peers, _) => (&**peers, true),
        };
        let peers = peers.iter().flatten().map(|peer| Some(&peer.identity));
        peers.chain(may_be_local.then_some(None))
    }
}

/// A routed request.
#[derive(Clone, Copy)]
pub(crate) struct OutboundRequest<'a> {
    pub(super) context: &'a RequestContext<'a>,
    pub(super) destination: &'a Destination,
    pub(super) prefer: ProtocolPreference,
    pub(super) retry_class: RetryClass,
    pub(super) deadline: Deadline,
}

/// The body of a request, which can be sent again.
pub(super) fn replay_body(
    context: &RequestContext<'_>,
    body: RequestBody,
    retry_class: RetryClass,
) -> ReplayBody {
    let has_body = !body.is_done();
    let body = ReplayBody::new(body, context.trust.clone(), retry_class)
        .anonymous(matches!(context.caller, Caller::Anonymous));
    if !has_body {
        return body;
    }
    // Only a workload may still read its request after it has sent an error response.
    let duplex = context.info.reaches_workload();
    body.charged_to(context.limits.reservation()).duplex(duplex)
}

impl OutboundRequest<'_> {
    /// The state of the bridge.
    pub(crate) fn bridge(&self) -> &GatewayState {
        self.context.bridge
    }

    /// Sends a request without a body.
    pub(crate) async fn send(
        &self,
        head: Parts,
        record: &mut AccessLogEntry,
    ) -> Result<UpstreamResponse, ProxyError> {
        let mut body = replay_body(self.context, RequestBody::Empty, self.retry_class);
        self.send_with(head, &mut body, record).await
    }

    /// Sends a request. If it is not answered, its body is put back.
    pub(super) async fn send_with(
        &self,
        head: Parts,
        body: &mut ReplayBody,
        record: &mut AccessLogEntry,
    ) -> Result<UpstreamResponse, ProxyError> {
        let empty = body.empty();
        let mut request = Request::from_parts(head, std::mem::replace(body, empty));
        let outcome = self.send_request(&mut request, record).await;
        if outcome.is_err() {
            *body = request.into_body();
        }
        outcome
    }

    async fn send_request(
        &self,
        request: &mut Request<ReplayBody>,
        record: &mut AccessLogEntry,
    ) -> Result<UpstreamResponse, ProxyError> {
        let sent = pin!(async {
            match self.destination {
                Destination::Local(pool) => {
                    forward_local::forward(self.context, pool, self.prefer, request, record).await
                }
                // Boxed: few requests are rerouted, and the future of watches should be small.
                Destination::Peers(peers) => {
                    Box::pin(self.send_to_peers(peers, request, record)).await
                }
                Destination::EnforcingPeers(peers) => {
                    Box::pin(self.send_to_enforcing_peers(peers, request, record)).await
                }
                Destination::PeersOrLocal(peers, pool) => {
                    Box::pin(self.send_to_peers_or_local(peers, pool, request, record)).await
                }
            }
        });
        if let Some(attempt) = &self.context.attempt {
            attempt.sent();
        }
        let response = self.deadline.enforce(sent).await.inspect_err(|_| {
            // Otherwise the response of another backend may prove or reject the token.
            if let (Some(attempt), false) =
                (&self.context.attempt, self.context.may_try_next_backend())
            {
                attempt.settle(Outcome::Undecided);
            }
        })?;
        self.note_status(response.status());
        Ok(response)
    }

    async fn send_to_peers(
        &self,
        peers: &[Vec<Arc<Peer>>],
        request: &mut Request<ReplayBody>,
        record: &mut AccessLogEntry,
    ) -> Result<UpstreamResponse, ProxyError> {
        let peers = (peers.to_vec(), AfterLastPeer::Respond);
        forward_peer::forward(self.context, peers, self.prefer, request, record).await
    }

    async fn send_to_enforcing_peers(
        &self,
        peers: &[Vec<Arc<Peer>>],
        request: &mut Request<ReplayBody>,
        record: &mut AccessLogEntry,
    ) -> Result<UpstreamResponse, ProxyError> {
        // The client gets the reason from this bridge, not the error of the last peer.
        let peers = (peers.to_vec(), AfterLastPeer::TryLocal);
        let sent = forward_peer::forward(self.context, peers, self.prefer, request, record).await;
        sent.map_err(|error| self.context.note_unenforced(error))
    }

    async fn send_to_peers_or_local(
        &self,
        peers: &[Vec<Arc<Peer>>],
        pool: &Arc<Pool>,
        request: &mut Request<ReplayBody>,
        record: &mut AccessLogEntry,
    ) -> Result<UpstreamResponse, ProxyError> {
        let (context, prefer) = (self.context, self.prefer);
        let outcome = forward_peer::forward(
            context,
            (peers.to_vec(), AfterLastPeer::TryLocal),
            prefer,
            request,
            record,
        )
        .await;
        match outcome {
            Err(error) if error.is_unsent() && request.body_mut().rewind() => {
                tracing::debug!("no peer accepted a request; the local server gets it");
                context.clear_identity_for_peer(request.headers_mut());
                record.route("local");
                record.placed(None);
                forward_local::forward(context, pool, prefer, request, record).await
            }
            outcome => outcome,
        }
    }

    /// Records whether the status of a response proves or rejects the token of the caller.
    fn note_status(&self, status: StatusCode) {
        let (client, attempt) = (self.context.client, self.context.attempt.as_ref());
        let proven = client.note_answer(self.context.token_place, status);
        if matches!(self.context.caller, Caller::Bearer)
            && status == StatusCode::UNAUTHORIZED
            && !self.may_be_from_workload()
        {
            let bridge = self.bridge();
            bridge.note_authentication_failure(client, Credential::Token, attempt);
        } else if let Some(attempt) = attempt {
            attempt.settle(if proven {
                Outcome::Accepted
            } else {
                Outcome::Undecided
            });
        }
    }

    /// Whether 401 can be the response of a workload behind a proxy subresource. The client must
    /// have authenticated before; otherwise such a path would bypass the limit.
    fn may_be_from_workload(&self) -> bool {
        self.context.client.is_authenticated() && self.context.info.subresource == "proxy"
    }

    /// Sends another request to the same server, as the same caller.
    pub(crate) async fn send_subrequest(
        &self,
        head: Parts,
        body: RequestBody,
        record: &mut AccessLogEntry,
    ) -> Result<UpstreamResponse, ProxyError> {
        let retry_class = match head.method {
            Method::GET => RetryClass::Idempotent,
            _ => RetryClass::OnlyIfUnsent,
        };
        let subrequest = OutboundRequest {
            prefer: ProtocolPreference::H1,
            retry_class,
            deadline: Deadline::of(false, &self.bridge().limits),
            ..*self
        };
        let mut body = replay_body(self.context, body, self.retry_class);
        subrequest.send_with(head, &mut body, record).await
    }

    /// Sends a read to the same server as the user of the bridge.
    pub(super) async fn send_as_bridge(
        &self,
        mut head: Parts,
        record: &mut AccessLogEntry,
    ) -> Result<UpstreamResponse, ProxyError> {
        let context = self.context.as_bridge_user();
        let impersonation: Vec<_> = (head.headers.keys())
            .filter(|name| name.as_str().starts_with("impersonate-"))
            .cloned()
            .collect();
        for name in impersonation {
            head.headers.remove(name);
        }
        let destination = match self.destination {
            Destination::Local(_) => Destination::Local(context.front_proxy_pool()?),
            Destination::PeersOrLocal(peers, _) => Destination::Peers(peers.clone()),
            destination => destination.clone(),
        };
        let as_bridge = OutboundRequest {
            context: &context,
            destination: &destination,
            ..*self
        };
        as_bridge
            .send_subrequest(head, RequestBody::Empty, record)
            .await
    }

    /// The response to an invalid request.
    pub(crate) fn refuse(&self, status: &Status) -> Response<Bytes> {
        error_response::status(status, self.context.format)
    }

    /// Plans the stream of an upgrade request. `None` if it is not for a stream.
    pub(super) fn stream_request(&self, upgrade: UpgradeRequest) -> Option<StreamRequest> {
        let version = match self.destination {
            Destination::Local(_) => self.bridge().upstream_version.load().as_deref().copied(),
            // Any of these peers may get the stream, so the lowest version decides.
            Destination::Peers(peers)
            | Destination::EnforcingPeers(peers)
            | Destination::PeersOrLocal(peers, _) => {
                let versions = peers.iter().flatten().map(|peer| peer.version());
                versions.min().flatten()
            }
        };
        let streams = &self.bridge().streams;
        streams.request(upgrade, &self.context.info, version)
    }
}
