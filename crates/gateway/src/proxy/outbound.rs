//! A request on its way to a server: sent, answered or failed.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use skewbridge_k8s_api::status::Status;
use skewbridge_peer_directory::Peer;

use super::error::ProxyError;
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
use skewbridge_http_engine::body::RequestBody;

/// Where a request goes.
pub(super) enum Destination {
    Local(Arc<Pool>),
    Peers(Vec<Arc<Peer>>),
}

/// A request that is about to be sent.
#[derive(Clone, Copy)]
pub(crate) struct OutboundRequest<'a> {
    pub(super) context: &'a RequestContext<'a>,
    pub(super) going: &'a Destination,
    pub(super) prefer: ProtocolPreference,
    pub(super) repeat: RetryClass,
    pub(super) deadline: Deadline,
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
        let mut body = ReplayBody::new(body, self.context.trust.clone(), self.repeat)
            .anonymous(matches!(self.context.caller, Caller::Anonymous));
        if has_body {
            // Only a workload may read its request after it has begun to refuse it.
            let duplex = self.context.info.reaches_workload();
            body = body
                .charged_to(self.context.limits.reservation())
                .duplex(duplex);
        }
        let mut request = Request::from_parts(head, body);
        let sent = pin!(async {
            match self.going {
                Destination::Local(pool) => {
                    forward_local::forward(self.context, pool, self.prefer, &mut request, record)
                        .await
                }
                // Boxed: most requests stay here, and watches are many.
                Destination::Peers(peers) => {
                    let peers = peers.clone();
                    Box::pin(forward_peer::forward(
                        self.context,
                        peers,
                        self.prefer,
                        &mut request,
                        record,
                    ))
                    .await
                }
            }
        });
        if let Some(attempt) = &self.context.attempt {
            attempt.sent();
        }
        let reply = self.deadline.enforce(sent).await.inspect_err(|_| {
            if let Some(attempt) = &self.context.attempt {
                attempt.settle(Outcome::Undecided);
            }
        })?;
        self.note_answer(reply.status());
        Ok(reply)
    }

    /// What the status of an answer says of the caller's token.
    fn note_answer(&self, status: StatusCode) {
        let (client, attempt) = (self.context.client, self.context.attempt.as_ref());
        let proven = client.note_answer(self.context.token_place, status);
        if matches!(self.context.caller, Caller::Bearer)
            && status == StatusCode::UNAUTHORIZED
            && !self.is_of_workload()
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

    /// Whether 401 can be the answer of a workload: what is behind a proxy subresource
    /// answers so for reasons of its own. The client has to have authenticated before, or
    /// the path would be a way around the limit.
    fn is_of_workload(&self) -> bool {
        self.context.client.is_authenticated() && self.context.info.subresource == "proxy"
    }

    /// Asks something else of the same server, for the same caller.
    pub(crate) async fn ask(
        &self,
        head: Parts,
        body: RequestBody,
        record: &mut AccessLogEntry,
    ) -> Result<UpstreamResponse, ProxyError> {
        let asking = OutboundRequest {
            prefer: ProtocolPreference::H1,
            deadline: Deadline::of(false, &self.bridge().limits),
            ..*self
        };
        asking.send_with(head, body, record).await
    }

    /// The response to a request that is refused as it is.
    pub(crate) fn refuse(&self, status: &Status) -> Response<Bytes> {
        error_response::status(status, self.context.format)
    }

    /// What is to be done with a request to switch protocols, if it is for a stream.
    pub(super) fn job(&self, switch: UpgradeRequest) -> Option<StreamRequest> {
        let version = match self.going {
            Destination::Local(_) => self.bridge().upstream_version.load().as_deref().copied(),
            // Whichever of them will answer: the one that knows least counts.
            Destination::Peers(peers) => {
                let versions = peers.iter().map(|peer| peer.served.as_ref()?.version);
                versions.min().flatten()
            }
        };
        let streams = &self.bridge().streams;
        streams.request(switch, &self.context.info, version)
    }
}
