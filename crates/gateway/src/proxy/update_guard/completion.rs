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

use super::dry_run::{DryRun, send_dry_run};
use super::precondition::Precondition;
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
    head: Parts,
    body: Bytes,
    /// The fields that were added; none if only a precondition was.
    added: Vec<String>,
    /// The write without the fields whose place another field has taken; `None` if it is the same.
    without_replaced: Option<CompletedWrite>,
    /// Shows whether the server accepts the original write; `None` if it does.
    untested: Option<DryRun>,
    precondition: Precondition,
    /// Counts both bodies until the response.
    reservation: Reservation,
}

/// A head, its body, and the fields that were added to it.
pub(super) type CompletedWrite = (Parts, Bytes, Vec<String>);

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
            let precondition = completion.precondition.clone();
            if sent.response.status() != StatusCode::CONFLICT || precondition == Precondition::Own {
                return Ok(sent);
            }
            tracing::debug!(
                "an object has changed while an update was completed; it is read again"
            );
            drop(completion);
            // If the client sent the precondition itself, the server rejects the dry run.
            completion = match self.check(outbound, head, body, record).await? {
                // The conflict has another reason.
                Checked::Completed(again) if again.precondition == precondition => return Ok(sent),
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
        if sent.response.status() == StatusCode::CONFLICT
            && completion.precondition != Precondition::Own
        {
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
    /// The completion of a write; an error if its body exceeds the budget of the client.
    pub(super) fn of(
        write: &Write<'_>,
        (head, body, added): CompletedWrite,
        precondition: Precondition,
    ) -> Result<Self, ProxyError> {
        let mut reservation = write.limits.reservation();
        charge(&mut reservation, body.len())?;
        Ok(Self {
            head,
            body,
            added,
            without_replaced: None,
            untested: None,
            precondition,
            reservation,
        })
    }

    /// Sends this write in its place if the server rejects it.
    pub(super) fn or_without_replaced(
        &mut self,
        reduced: CompletedWrite,
    ) -> Result<(), ProxyError> {
        charge(&mut self.reservation, reduced.1.len())?;
        self.without_replaced = Some(reduced);
        Ok(())
    }

    /// The server may reject the original write, too: then the client gets that response.
    pub(super) fn untested(&mut self, original: DryRun) {
        self.untested = Some(original);
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
        let Some((head, body, added)) = &self.without_replaced else {
            return self.rejected(outbound, response, &self.added, record).await;
        };
        let response = send(outbound, head, body, record).await?;
        if response.status() == StatusCode::UNPROCESSABLE_ENTITY && !added.is_empty() {
            return self.rejected(outbound, response, added, record).await;
        }
        let left_out = self.added.iter().filter(|it| !added.contains(it));
        let left_out: Vec<_> = left_out.collect();
        tracing::debug!(
            fields = named(left_out.iter()),
            "an update has replaced fields that not every kube-apiserver has"
        );
        Ok(Sent {
            response,
            is_completed: !added.is_empty(),
        })
    }

    /// The result of a write that the server rejects with the added fields.
    async fn rejected(
        &self,
        outbound: &OutboundRequest<'_>,
        response: UpstreamResponse,
        added: &[String],
        record: &mut AccessLogEntry,
    ) -> Result<Sent, ProxyError> {
        if let Some(original) = &self.untested {
            let tested = send_dry_run(original.clone(), outbound, record).await?;
            if !tested.status().is_success() {
                return Ok(Sent {
                    response: UpstreamResponse::Response(tested),
                    is_completed: false,
                });
            }
        }
        Err(rejected(outbound, response, added).await)
    }
}

impl From<Completion> for Checked {
    fn from(completion: Completion) -> Self {
        Self::Completed(Box::new(completion))
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

/// The response to a completed write that its server rejects: the reason of the server, the fields that
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
        "{reason}; the write lacks fields of the stored object that not every kube-apiserver has ({}), \
         and is invalid with them: remove them first, with a patch",
        named(added.iter())
    );
    ProxyError::rejected(Status::new(422, "Invalid", message))
}
