//! Adds fields of the stored object to the body of a write, and the resource version that it was compared
//! with.

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING,
};
use http::request::Parts;
use http::{HeaderValue, StatusCode, Uri};
use serde_json::Value;
use skewbridge_field_sets::{Alternatives, Written, restore};
use skewbridge_http_engine::buffer_budget::Reservation;

use super::completion::{Completion, UpdateWithoutReplaced};
use super::precondition::{add_precondition, conditional_body, version_of};
use super::{
    Check, Checked, UpdateGuard, Write, full, named, object_of, read, response_of, with_target,
};
use crate::access_log::AccessLogEntry;
use crate::proxy::error::ProxyError;
use crate::proxy::outbound::OutboundRequest;

impl UpdateGuard {
    /// Without such a field in the stored object, no write can remove one. A write without a precondition
    /// gets one, in case a client sets such a field between this check and the write. Of an incomplete
    /// server every write is one that removes it; of a complete one only an update is.
    pub(super) fn add_precondition(
        &self,
        stored: &[u8],
        write: &Write<'_>,
    ) -> Result<Checked, ProxyError> {
        let may_erase = match self.check {
            Check::Update => true,
            Check::Incomplete => write.has_metadata(),
            Check::MergePatch | Check::IncompleteCreate | Check::Unknown => false,
        };
        if !may_erase {
            return Ok(Checked::Passed);
        }
        let version = version_of(stored)?;
        let conditional = version.and_then(|version| conditional_body(write.body, &version));
        let Some(body) = conditional else {
            return Ok(Checked::Passed);
        };
        let (head, body) = with_bytes(write.head, body, None);
        Completion::of(write, (head, body, Vec::new()), None, true)
    }

    /// Adds the fields to the items of lists in a merge patch.
    pub(super) fn complete_patch(
        &self,
        stored: &[u8],
        write: &Write<'_>,
    ) -> Result<Checked, ProxyError> {
        // The server rejects what is not JSON.
        let Ok(mut patch) = serde_json::from_slice::<Value>(write.body) else {
            return Ok(Checked::Passed);
        };
        let stored = object_of(stored)?;
        let added = restore(
            &stored,
            &mut patch,
            &self.fields,
            Written::MergePatch,
            Alternatives::Keep,
        );
        if added.is_empty() {
            return Ok(Checked::Passed);
        }
        let is_conditional = add_precondition(&mut patch, &stored);
        let (head, body) = with_body(write.head, &patch, None);
        Completion::of(write, (head, body, added), None, is_conditional)
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
        let Write { head, body, .. } = *write;
        let mut request = head.clone();
        request.uri = with_dry_run(&head.uri)?;
        request.headers.remove(ACCEPT_ENCODING);
        let json = HeaderValue::from_static("application/json");
        request.headers.insert(ACCEPT, json.clone());
        let sent = outbound.send_subrequest(request, full(body.clone()), record);
        let response = response_of(sent.await.map_err(ProxyError::before_write)?)?;
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
        let complete = |alternatives| {
            let mut completed = result.clone();
            let added = restore(
                &stored,
                &mut completed,
                &self.fields,
                Written::Object,
                alternatives,
            );
            // Without it, the server continues with the managers of the stored object.
            if let Some(metadata) = completed["metadata"].as_object_mut() {
                metadata.remove("managedFields");
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
        let without_replaced = (body != completed_body).then_some(UpdateWithoutReplaced {
            head,
            body,
            added: fewer,
        });
        let completed = (completed_head, completed_body, added);
        // The result of the dry run has the resource version of the stored object.
        Completion::of(write, completed, without_replaced, true)
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
        let is_conditional = add_precondition(&mut update, &stored);
        let (head, body) = with_body(write.head, &update, None);
        Completion::of(write, (head, body, added), None, is_conditional).map(Some)
    }
}

/// The target of the dry run of a request.
pub(super) fn with_dry_run(uri: &Uri) -> Result<Uri, ProxyError> {
    let path = uri.path();
    let target = match uri.query() {
        None | Some("") => format!("{path}?dryRun=All"),
        Some(query) => format!("{path}?{query}&dryRun=All"),
    };
    with_target(uri, &target)
}

/// A head and a body in the place of those of a request.
fn with_body(head: &Parts, body: &Value, content_type: Option<HeaderValue>) -> (Parts, Bytes) {
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
