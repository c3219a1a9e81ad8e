//! Adds fields of the stored object to the body of a write, and the resource version that it was compared
//! with.

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use serde_json::Value;
use skewbridge_field_sets::{Alternatives, Written, restore};
use skewbridge_http_engine::buffer_budget::Reservation;

use super::completion::Completion;
use super::dry_run::{dry_run, send_dry_run};
use super::precondition::{
    Precondition, add_precondition, conditional_write, version_in, version_of,
};
use super::{Check, Checked, UpdateGuard, Write, named, object_of, read};
use crate::access_log::AccessLogEntry;
use crate::proxy::error::ProxyError;
use crate::proxy::outbound::OutboundRequest;

impl UpdateGuard {
    /// Without such a field in the stored object, no write can remove one. A write without a precondition
    /// gets one, in case a client sets such a field between this check and the write. Of an incomplete
    /// server every write is one that removes it; of a complete one those that are checked are.
    pub(super) fn add_precondition(
        &self,
        stored: &[u8],
        write: &Write<'_>,
    ) -> Result<Checked, ProxyError> {
        if matches!(self.check, Check::IncompleteCreate | Check::Unknown) {
            return Ok(Checked::Passed);
        }
        let Some(version) = version_of(stored)? else {
            return Ok(Checked::Passed);
        };
        let Some((body, content_type)) = conditional_write(write, &version) else {
            return Ok(Checked::Passed);
        };
        let (head, body) = with_bytes(write.head, body, content_type);
        let completed = (head, body, Vec::new());
        Ok(Completion::of(write, completed, Precondition::Added(version))?.into())
    }

    /// Adds the fields to the result of a dry run, which replaces the update: the server has decoded
    /// it, whatever its encoding, and knows which parts of it count. The stored object is parsed again
    /// afterwards: parsed, it would take up to forty times its size while the server works.
    pub(super) async fn complete_update(
        &self,
        stored: &[u8],
        outbound: &OutboundRequest<'_>,
        write: &Write<'_>,
        (record, reservation): (&mut AccessLogEntry, &mut Reservation),
    ) -> Result<Checked, ProxyError> {
        let head = write.head;
        let request = dry_run(head, write.body)?;
        let response = send_dry_run(request, outbound, record).await?;
        if response.status() == StatusCode::UNPROCESSABLE_ENTITY
            && let Some(completed) = self.complete_invalid_update(stored, write)?
        {
            return Ok(completed);
        }
        if !response.status().is_success() {
            // The update would fail in the same way.
            return Ok(Checked::Respond(response));
        }
        let result = object_of(&read(response, reservation).await?)?;
        let stored = object_of(stored)?;
        if result["kind"] != stored["kind"] {
            // The subresource has a kind of its own.
            return Ok(Checked::Passed);
        }
        let json = HeaderValue::from_static("application/json");
        let complete = |alternatives| {
            let mut completed = result.clone();
            let added = restore(
                &stored,
                &mut completed,
                &self.fields,
                Written::Object,
                alternatives,
            );
            if let Some(metadata) = completed["metadata"].as_object_mut() {
                // Without it, the server continues with the managers of the stored object.
                metadata.remove("managedFields");
                // The dry run may have met a later version, with fields that were not compared.
                if let Some(version) = version_in(&stored) {
                    metadata.insert("resourceVersion".to_owned(), version.into());
                }
            }
            let (head, body) = with_body(head, &completed, Some(json.clone()));
            (head, body, added)
        };
        let (completed_head, completed_body, added) = complete(Alternatives::Keep);
        if added.is_empty() {
            return Ok(Checked::Passed);
        }
        tracing::debug!(
            fields = named(added.iter()),
            "an update without fields that not every kube-apiserver has was completed"
        );
        let (head, body, fewer) = complete(Alternatives::LeaveOut);
        let without_replaced = (body != completed_body).then_some((head, body, fewer));
        let completed = (completed_head, completed_body, added);
        let precondition = version_in(&stored).map_or(Precondition::Own, Precondition::Added);
        let mut completion = Completion::of(write, completed, precondition)?;
        if let Some(reduced) = without_replaced {
            completion.or_without_replaced(reduced)?;
        }
        Ok(completion.into())
    }

    /// Adds the fields to an update that is invalid, perhaps because it lacks them: of a union that must
    /// have one member, its client may not see the one that is set. Only JSON names fields.
    fn complete_invalid_update(
        &self,
        stored: &[u8],
        write: &Write<'_>,
    ) -> Result<Option<Checked>, ProxyError> {
        let Ok(mut update) = serde_json::from_slice::<Value>(write.body) else {
            return Ok(None);
        };
        let stored = object_of(stored)?;
        let added = restore(
            &stored,
            &mut update,
            &self.fields,
            Written::Object,
            Alternatives::Keep,
        );
        if added.is_empty() {
            return Ok(None);
        }
        let precondition = add_precondition(&mut update, &stored);
        let (head, body) = with_body(write.head, &update, None);
        let completion = Completion::of(write, (head, body, added), precondition)?;
        Ok(Some(completion.into()))
    }
}

/// A head and a body in the place of those of a request.
pub(super) fn with_body(
    head: &Parts,
    body: &Value,
    content_type: Option<HeaderValue>,
) -> (Parts, Bytes) {
    with_bytes(head, Bytes::from(body.to_string()), content_type)
}

fn with_bytes(head: &Parts, bytes: Bytes, content_type: Option<HeaderValue>) -> (Parts, Bytes) {
    let mut head = head.clone();
    head.headers.remove(CONTENT_ENCODING);
    head.headers.remove(TRANSFER_ENCODING);
    head.headers.insert(CONTENT_LENGTH, bytes.len().into());
    if let Some(content_type) = content_type {
        head.headers.insert(CONTENT_TYPE, content_type);
    }
    (head, bytes)
}
