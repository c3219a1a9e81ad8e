//! Sends a request to its destination, and records what the response shows about the caller.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use skewbridge_http_engine::body::RequestBody;
use skewbridge_k8s_api::status::Status;
use skewbridge_peer_directory::Peer;

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
pub(super) enum Destination {
    Local(Arc<Pool>),
    Peers(Vec<Arc<Peer>>),
    /// These peers, or the local server if none of them accepts the request.
    PeersOrLocal(Vec<Arc<Peer>>, Arc<Pool>),
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
        self.send_with(head, RequestBody::Empty, record).await
    }

    pub(super) async fn send_with(
        &self,
        head: Parts,
        body: RequestBody,
        record: &mut AccessLogEntry,
    ) -> Result<UpstreamResponse, ProxyError> {
        let has_body = !body.is_done();
        let mut body = ReplayBody::new(body, self.context.trust.clone(), self.retry_class)
            .anonymous(matches!(self.context.caller, Caller::Anonymous));
        if has_body {
            // Only a workload may still read its request after it has sent an error response.
            let duplex = self.context.info.reaches_workload();
            body = body
                .charged_to(self.context.limits.reservation())
                .duplex(duplex);
        }
        let mut request = Request::from_parts(head, body);
        let sent = pin!(async {
            match self.destination {
                Destination::Local(pool) => {
                    forward_local::forward(self.context, pool, self.prefer, &mut request, record)
                        .await
                }
                // Boxed: few requests are rerouted, and the future of watches should be small.
                Destination::Peers(peers) => {
                    let peers = peers.clone();
                    Box::pin(forward_peer::forward(
                        self.context,
                        (peers, AfterLastPeer::Respond),
                        self.prefer,
                        &mut request,
                        record,
                    ))
                    .await
                }
                Destination::PeersOrLocal(peers, pool) => {
                    Box::pin(self.send_to_peers_or_local(peers, pool, &mut request, record)).await
                }
            }
        });
        if let Some(attempt) = &self.context.attempt {
            attempt.sent();
        }
        let response = self.deadline.enforce(sent).await.inspect_err(|_| {
            if let Some(attempt) = &self.context.attempt {
                attempt.settle(Outcome::Undecided);
            }
        })?;
        self.note_status(response.status());
        Ok(response)
    }

    async fn send_to_peers_or_local(
        &self,
        peers: &[Arc<Peer>],
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
        let subrequest = OutboundRequest {
            prefer: ProtocolPreference::H1,
            deadline: Deadline::of(false, &self.bridge().limits),
            ..*self
        };
        subrequest.send_with(head, body, record).await
    }

    /// The response to an invalid request.
    pub(crate) fn refuse(&self, status: &Status) -> Response<Bytes> {
        error_response::status(status, self.context.format)
    }

    /// Plans the stream of an upgrade request. `None` if it is not for a stream.
    pub(super) fn stream_request(&self, upgrade: UpgradeRequest) -> Option<StreamRequest> {
        let version = match self.destination {
            Destination::Local(_) => self.bridge().upstream_version.load().as_deref().copied(),
            // Any of them may answer, so the lowest version counts.
            Destination::Peers(peers) | Destination::PeersOrLocal(peers, _) => {
                let versions = peers.iter().map(|peer| peer.served.as_ref()?.version);
                versions.min().flatten()
            }
        };
        let streams = &self.bridge().streams;
        streams.request(upgrade, &self.context.info, version)
    }
}
