//! Sends a write to which fields were added.
//!
//! A write has the resource version that it was compared with, so that no later value of a field is
//! overwritten. If its client sent no precondition, the write is checked again when the
//! object has changed in the meantime.
//!
//! The server may reject a completed update although it accepts the one of the client, because a field
//! that was added excludes one that the client has set. A field whose place another one has taken, as
//! with members of a union, is then left out: the server cannot store both, and the client has chosen.
//! Any other field is kept, and the response explains how to remove it.

use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use serde_json::Value;
use skewbridge_http_engine::buffer_budget::Reservation;
use skewbridge_k8s_api::status::Status;

use super::{Checked, UpdateGuard, Write, charge, full, named, read, response_of};
use crate::access_log::AccessLogEntry;
use crate::proxy::error::ProxyError;
use crate::proxy::outbound::{OutboundRequest, replay_body};
use crate::upstream::{ReplayBody, UpstreamResponse};

/// How often a write is computed from the stored object before its client has to retry.
const MAX_ATTEMPTS: u32 = 5;

/// A write to which fields were added.
pub(in crate::proxy) struct Completion {
    /// The head for the completed body.
    pub(super) head: Parts,
    pub(super) body: Bytes,
    /// The fields that were added; none if only a precondition was.
    pub(super) added: Vec<String>,
    /// The update without the fields whose place another field has taken; `None` if it is the same.
    pub(super) without_replaced: Option<UpdateWithoutReplaced>,
    /// The write has a precondition that its client may not have sent.
    pub(super) is_conditional: bool,
    /// Counts both bodies until the response.
    _reservation: Reservation,
}

/// An update that leaves out fields whose place another field has taken.
pub(super) struct UpdateWithoutReplaced {
    pub(super) head: Parts,
    pub(super) body: Bytes,
    pub(super) added: Vec<String>,
}

/// A response, and whether the request was completed.
pub(in crate::proxy) struct Sent {
    pub(in crate::proxy) response: UpstreamResponse,
    /// Fields were added to the request.
    pub(in crate::proxy) is_completed: bool,
}

impl UpdateGuard {
    /// Sends a completed write. If no server processes it, `body` is the original body.
    pub(in crate::proxy) async fn send(
        &self,
        mut completion: Completion,
        outbound: &OutboundRequest<'_>,
        head: &Parts,
        body: &mut ReplayBody,
        record: &mut AccessLogEntry,
    ) -> Result<Sent, ProxyError> {
        for _ in 1..MAX_ATTEMPTS {
            let sent = completion.send(outbound, record).await?;
            if sent.response.status() != StatusCode::CONFLICT || !completion.is_conditional {
                return Ok(sent);
            }
            tracing::debug!(
                "an object has changed while an update was completed; it is read again"
            );
            drop(completion);
            // If the client sent the precondition itself, the server rejects the dry run.
            completion = match self.check(outbound, head, body, record).await? {
                Checked::Completed(again) => *again,
                Checked::Respond(response) => {
                    return Ok(Sent {
                        response: UpstreamResponse::Response(response),
                        is_completed: false,
                    });
                }
                Checked::Passed => {
                    let sent = outbound.send_with(head.clone(), body, record).await?;
                    return Ok(Sent {
                        response: sent,
                        is_completed: false,
                    });
                }
            };
        }
        let sent = completion.send(outbound, record).await?;
        if sent.response.status() == StatusCode::CONFLICT && completion.is_conditional {
            let message = format!(
                "the object changes faster than fields that not every kube-apiserver has can be kept \
                 in an update ({MAX_ATTEMPTS} attempts); retry"
            );
            return Err(ProxyError::rejected(Status::service_unavailable(
                message, 1,
            )));
        }
        Ok(sent)
    }
}

impl Completion {
    /// The completion of a write; an error if its bodies exceed the budget of the client.
    pub(super) fn of(
        write: &Write<'_>,
        (head, body, added): (Parts, Bytes, Vec<String>),
        without_replaced: Option<UpdateWithoutReplaced>,
        is_conditional: bool,
    ) -> Result<Checked, ProxyError> {
        let mut reservation = write.limits.reservation();
        let other = without_replaced.as_ref().map_or(0, |it| it.body.len());
        charge(&mut reservation, body.len() + other)?;
        Ok(Checked::Completed(Box::new(Self {
            head,
            body,
            added,
            without_replaced,
            is_conditional,
            _reservation: reservation,
        })))
    }

    async fn send(
        &self,
        outbound: &OutboundRequest<'_>,
        record: &mut AccessLogEntry,
    ) -> Result<Sent, ProxyError> {
        let response = send(outbound, &self.head, &self.body, record).await?;
        if response.status() != StatusCode::UNPROCESSABLE_ENTITY || self.added.is_empty() {
            return Ok(Sent {
                response,
                is_completed: !self.added.is_empty(),
            });
        }
        // Nothing was stored.
        let Some(reduced) = &self.without_replaced else {
            return Err(rejected(outbound, response, &self.added).await);
        };
        let response = send(outbound, &reduced.head, &reduced.body, record).await?;
        if response.status() == StatusCode::UNPROCESSABLE_ENTITY && !reduced.added.is_empty() {
            return Err(rejected(outbound, response, &reduced.added).await);
        }
        let left_out = self.added.iter().filter(|it| !reduced.added.contains(it));
        let left_out: Vec<_> = left_out.collect();
        tracing::debug!(
            fields = named(left_out.iter()),
            "an update has replaced fields that not every kube-apiserver has"
        );
        Ok(Sent {
            response,
            is_completed: !reduced.added.is_empty(),
        })
    }
}

async fn send(
    outbound: &OutboundRequest<'_>,
    head: &Parts,
    body: &Bytes,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ProxyError> {
    let retry_class = outbound.retry_class;
    let mut body = replay_body(outbound.context, full(body.clone()), retry_class);
    outbound.send_with(head.clone(), &mut body, record).await
}

/// The response to a completed update that its server rejects: the reason of the server, the fields that
/// the client has not sent, and how to remove them.
async fn rejected(
    outbound: &OutboundRequest<'_>,
    response: UpstreamResponse,
    added: &[String],
) -> ProxyError {
    let mut reservation = outbound.context.limits.reservation();
    let read = async { read(response_of(response)?, &mut reservation).await };
    let body = match read.await {
        Ok(body) => body,
        Err(error) => return error,
    };
    let status: Value = serde_json::from_slice(&body).unwrap_or_default();
    let reason = status["message"].as_str().unwrap_or("it is invalid");
    let message = format!(
        "{reason}; the update lacks fields of the stored object that not every kube-apiserver has ({}), \
         and is invalid with them: remove them first, with a patch",
        named(added.iter())
    );
    ProxyError::rejected(Status::new(422, "Invalid", message))
}
