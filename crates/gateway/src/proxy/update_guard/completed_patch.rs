//! Adds fields of the stored object to a patch that would erase them.

use http::StatusCode;
use serde_json::Value;
use skewbridge_field_sets::{
    Alternatives, FieldPath, Written, restore, restore_after_json_patch, without_removed,
};
use skewbridge_http_engine::buffer_budget::Reservation;

use super::completed_body::with_body;
use super::completion::Completion;
use super::dry_run::{dry_run, send_dry_run};
use super::patch::PatchKind;
use super::precondition::{add_precondition, append_precondition};
use super::{Checked, UpdateGuard, Write, erasing_status, object_of, read};
use crate::access_log::AccessLogEntry;
use crate::proxy::error::ProxyError;
use crate::proxy::outbound::OutboundRequest;

/// The result of completing a patch.
enum Completing {
    /// It erases no field.
    Complete,
    /// Fields were added.
    Completed(Checked),
    /// What it changes cannot be determined.
    NotApplicable,
}

impl UpdateGuard {
    /// Adds fields to a patch. JSON patches and JSON merge patches are applied here; how a strategic merge
    /// patch changes lists is known to the server only, so the result of a dry run decides whether it
    /// erases a field. A patch that erases fields and cannot be completed is rejected.
    pub(super) async fn complete_patch(
        &self,
        kind: PatchKind,
        (stored, erasable): (&[u8], &[FieldPath]),
        outbound: &OutboundRequest<'_>,
        write: &Write<'_>,
        (record, reservation): (&mut AccessLogEntry, &mut Reservation),
    ) -> Result<Checked, ProxyError> {
        let completing = || complete(kind, (stored, erasable), write);
        if kind != PatchKind::Strategic {
            match completing()? {
                Completing::Complete => return self.add_precondition(stored, write),
                Completing::Completed(completed) => return Ok(completed),
                Completing::NotApplicable => {}
            }
        }
        let response = send_dry_run(dry_run(write.head, write.body)?, outbound, record).await?;
        if response.status() == StatusCode::UNPROCESSABLE_ENTITY
            && kind == PatchKind::Strategic
            && let Completing::Completed(completed) = completing()?
        {
            // Perhaps it is invalid because it lacks a field.
            return Ok(completed);
        }
        if !response.status().is_success() {
            return Ok(Checked::Respond(response));
        }
        let erased = {
            let mut result = object_of(&read(response, reservation).await?)?;
            let mut before = object_of(stored)?;
            if result["kind"] != before["kind"] {
                // The subresource has a kind of its own.
                return Ok(Checked::Passed);
            }
            if let (PatchKind::Strategic, Ok(patch)) = (kind, serde_json::from_slice(write.body)) {
                before = without_removed(&before, &patch, erasable);
            }
            let written = Written::Object;
            restore(&before, &mut result, erasable, written, Alternatives::Keep)
        };
        if erased.is_empty() {
            return self.add_precondition(stored, write);
        }
        match completing()? {
            Completing::Completed(completed) => Ok(completed),
            Completing::Complete | Completing::NotApplicable => {
                Err(ProxyError::rejected(erasing_status(write.info, &erased)))
            }
        }
    }
}

/// Adds the fields that a patch erases to it.
fn complete(
    kind: PatchKind,
    (stored, erasable): (&[u8], &[FieldPath]),
    write: &Write<'_>,
) -> Result<Completing, ProxyError> {
    let Ok(patch) = serde_json::from_slice::<Value>(write.body) else {
        return Ok(Completing::NotApplicable);
    };
    let stored = object_of(stored)?;
    let complete = |alternatives| {
        let mut patch = patch.clone();
        let added = match kind {
            PatchKind::Json => {
                restore_after_json_patch(&stored, &mut patch, erasable, alternatives).ok()?
            }
            PatchKind::Merge => {
                let written = Written::MergePatch;
                restore(&stored, &mut patch, erasable, written, alternatives)
            }
            PatchKind::Strategic => {
                let written = Written::StrategicMergePatch;
                restore(&stored, &mut patch, erasable, written, alternatives)
            }
        };
        let precondition = match kind {
            PatchKind::Json => append_precondition(&mut patch, &stored),
            PatchKind::Merge | PatchKind::Strategic => add_precondition(&mut patch, &stored),
        };
        let (head, body) = with_body(write.head, &patch, None);
        Some(((head, body, added), precondition))
    };
    let Some((completed, precondition)) = complete(Alternatives::Keep) else {
        return Ok(Completing::NotApplicable);
    };
    if completed.2.is_empty() {
        return Ok(Completing::Complete);
    }
    let without_replaced = complete(Alternatives::LeaveOut).map(|(reduced, _)| reduced);
    let without_replaced = without_replaced.filter(|reduced| reduced.1 != completed.1);
    let mut completion = Completion::of(write, completed, precondition)?;
    if let Some(reduced) = without_replaced {
        completion.or_without_replaced(reduced)?;
    }
    completion.untested(dry_run(write.head, write.body)?);
    Ok(Completing::Completed(completion.into()))
}
