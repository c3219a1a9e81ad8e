//! Creates and changes objects. Each write is validated and done under the lock of the store.

use std::sync::Arc;

use http::StatusCode;
use skewbridge_k8s_api::status::Status;

use super::api_request::{ApiRequest, ApiTarget, ValidatedObject, yaml};
use super::negotiate::Form;
use super::read::{present, versioned};
use super::responses::{self, ApiResponse};
use crate::apply::{self, Conflicts, FieldManager, note_update};
use crate::conversion::to_storage;
use crate::defaults;
use crate::namespaces::admit_creation;
use crate::object::Object;
use crate::patch::{Patch, PatchKind};
use crate::pod_updates;
use crate::resource_strategy::Part;
use crate::schema_validation;
use crate::status::{FieldError, invalid};
use crate::store::{Store, WriteContext};
/// The result of a write.
pub(super) enum WriteResult {
    Created(Arc<Object>),
    Changed(Arc<Object>),
}

/// `POST`
pub(super) fn create(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
) -> Result<ApiResponse, Status> {
    let form = Form::of(&request.head.headers)?;
    let dry_run = request.query.dry_run("CreateOptions")?;
    let ValidatedObject { object, warnings } = request.object(target)?;
    let api_version = target.served.api_version();
    let writer = request.writer(&api_version);
    let made = request.server.store.write(dry_run, |store, context| {
        make(store, target, object, Some(&writer), context)
    })?;
    let mut reply = reply(request, target, &WriteResult::Created(made), form);
    responses::warn(&mut reply, &warnings);
    Ok(reply)
}

/// `PUT`
pub(super) fn update(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
    part: Part,
) -> Result<ApiResponse, Status> {
    let form = Form::of(&request.head.headers)?;
    let dry_run = request.query.dry_run("UpdateOptions")?;
    let ValidatedObject { object, warnings } = request.object(target)?;
    let api_version = target.served.api_version();
    let writer = request.writer(&api_version);
    let changed = request.server.store.write(dry_run, |store, context| {
        change(store, target, object, part, &writer, context)
    })?;
    let mut reply = reply(request, target, &WriteResult::Changed(changed), form);
    responses::warn(&mut reply, &warnings);
    Ok(reply)
}

/// `PATCH`
pub(super) fn patch(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
    part: Part,
) -> Result<ApiResponse, Status> {
    let form = Form::of(&request.head.headers)?;
    let dry_run = request.query.dry_run("PatchOptions")?;
    let kind = PatchKind::of_content_type(request.content_type())?;
    let api_version = target.served.api_version();
    let mut writer = request.writer(&api_version);
    if kind == PatchKind::Apply {
        // Apply requires a field manager.
        writer.manager = request.query.get("fieldManager");
        let applied = applied(request, target)?;
        let conflicts = match request.query.flag("force") {
            Some(true) => Conflicts::Force,
            _ => Conflicts::Refuse,
        };
        let written = request.server.store.write(dry_run, |store, context| {
            apply_to(store, target, &applied, part, &writer, conflicts, context)
        })?;
        return Ok(reply(request, target, &written, form));
    }
    if request.query.find("force").is_some() {
        let why = "may not be specified for non-apply patch";
        let error = FieldError::forbidden("force", why);
        return Err(invalid("meta.k8s.io", "PatchOptions", "", &[error]));
    }
    let patch = Patch::parse(kind, &request.body)?;
    let (changed, warnings) = request.server.store.write(dry_run, |store, context| {
        let (definition, namespace) = (&target.definition, target.namespace);
        let before = store.get(definition, namespace, target.name)?;
        let after = patch.apply(&versioned(target, &before))?;
        let ValidatedObject { object, warnings } = request.typed(target, after)?;
        let changed = change(store, target, object, part, &writer, context)?;
        Ok((changed, warnings))
    })?;
    let mut reply = reply(request, target, &WriteResult::Changed(changed), form);
    responses::warn(&mut reply, &warnings);
    Ok(reply)
}

/// The object of a server-side apply.
fn applied(request: &ApiRequest<'_>, target: &ApiTarget<'_>) -> Result<Object, Status> {
    let applied = Object::new(yaml(&request.body)?)?;
    let missing = [
        ("apiVersion", applied.api_version()),
        ("kind", applied.kind()),
    ];
    for (field, value) in missing {
        if value.is_empty() {
            return Err(Status::bad_request(format!(
                "invalid object type: {field} has to be set in what is applied"
            )));
        }
    }
    let (kind, api_version) = (&target.definition.kind, target.served.api_version());
    if (applied.kind(), applied.api_version()) != (kind.as_str(), api_version.as_str()) {
        return Err(Status::bad_request(format!(
            "invalid object type: {}, Kind={} is not {api_version}, Kind={kind}",
            applied.api_version(),
            applied.kind()
        )));
    }
    if !matches!(applied.name(), "") && applied.name() != target.name {
        return Err(Status::bad_request(format!(
            "metadata.name Invalid value: {:?}: must match the name on the URL ({})",
            applied.name(),
            target.name
        )));
    }
    let mut value = applied.into_value();
    let undeclared = |why: String| {
        let message = format!(
            "failed to create typed patch object ({}/{}; {}, Kind={kind}): {why}",
            target.namespace,
            target.name,
            apply::long_version(&api_version),
        );
        // Not an API error, so 500 without a reason.
        Status::new(500, "", message)
    };
    match schema_validation::prune(&api_version, kind, &mut value) {
        Ok(unknown) if unknown.is_empty() => Object::new(value),
        Ok(unknown) => {
            let unknown = unknown.iter();
            let errors: Vec<_> = unknown
                .map(|it| format!(".{it}: field not declared in schema"))
                .collect();
            Err(undeclared(errors.join(", ")))
        }
        Err(mismatch) => Err(undeclared(mismatch.0)),
    }
}

fn apply_to(
    store: &mut Store,
    target: &ApiTarget<'_>,
    applied: &Object,
    part: Part,
    writer: &FieldManager<'_>,
    conflicts: Conflicts,
    context: &mut WriteContext<'_>,
) -> Result<WriteResult, Status> {
    let live = store.get(&target.definition, target.namespace, target.name);
    let live = match (live, part) {
        (Ok(live), _) => Some(live),
        (Err(_), Part::Main) => None,
        (Err(missing), _) => return Err(missing),
    };
    let live_in_version = live.as_deref().map(|live| versioned(target, live));
    let mut after = apply::apply(live_in_version.as_ref(), applied, writer, conflicts)?;
    if live.is_none() {
        after.set(&["metadata", "name"], target.name);
        return make(store, target, after, None, context).map(WriteResult::Created);
    }
    complete(store, target, &mut after, live.as_deref(), context)?;
    if let Some(live) = &live {
        validate_update(target, part, live, &mut after)?;
    }
    let (definition, namespace, name) = (&target.definition, target.namespace, target.name);
    let changed = store.update(
        definition,
        namespace,
        name,
        to_storage(after),
        part,
        context,
    )?;
    Ok(WriteResult::Changed(changed))
}

/// Creates an object in the store. The writer owns its fields.
pub(super) fn make(
    store: &mut Store,
    target: &ApiTarget<'_>,
    mut object: Object,
    writer: Option<&FieldManager<'_>>,
    context: &mut WriteContext<'_>,
) -> Result<Arc<Object>, Status> {
    let definition = &target.definition;
    admit_creation(store, definition, target.namespace, object.name())?;
    definition.prepare_new(&mut object);
    complete(store, target, &mut object, None, context)?;
    if let Some(writer) = writer {
        note_update(None, &mut object, writer);
    }
    store.create(definition, target.namespace, to_storage(object), context)
}

/// Changes a part of an object in the store. The writer owns the changed fields.
pub(super) fn change(
    store: &mut Store,
    target: &ApiTarget<'_>,
    object: Object,
    part: Part,
    writer: &FieldManager<'_>,
    context: &mut WriteContext<'_>,
) -> Result<Arc<Object>, Status> {
    let (definition, namespace, name) = (&target.definition, target.namespace, target.name);
    let live = store.get(definition, namespace, name)?;
    let requested = object.clone();
    // In their stored form: a status field may be an annotation in another version.
    let next = definition.prepare_update(part, &live, to_storage(object));
    // Compared in the version of the request, whose fields the writer owns.
    let (before, mut next) = (versioned(target, &live), versioned(target, &next));
    // The store checks the resource version.
    for field in ["name", "namespace", "uid"] {
        next.take_from(&requested, &["metadata", field]);
    }
    complete(store, target, &mut next, Some(&before), context)?;
    validate_update(target, part, &before, &mut next)?;
    note_update(Some(&before), &mut next, writer);
    store.update(definition, namespace, name, to_storage(next), part, context)
}

/// Fills in defaults; 422 for missing fields.
fn complete(
    store: &Store,
    target: &ApiTarget<'_>,
    object: &mut Object,
    before: Option<&Object>,
    context: &mut WriteContext<'_>,
) -> Result<(), Status> {
    let resource = target.resource();
    defaults::fill(resource, object);
    if resource.group.is_empty() && resource.resource == "services" {
        assign_cluster_ip(store, object, before, context);
    }
    match &defaults::errors(resource, object)[..] {
        [] => Ok(()),
        errors => {
            let (group, kind) = (&resource.group, &target.definition.kind);
            Err(invalid(group, kind, object.name(), errors))
        }
    }
}

/// 422 for changes of immutable fields.
fn validate_update(
    target: &ApiTarget<'_>,
    part: Part,
    before: &Object,
    next: &mut Object,
) -> Result<(), Status> {
    let resource = target.resource();
    if !resource.group.is_empty() || resource.resource != "pods" || part != Part::Main {
        return Ok(());
    }
    if let Some(subresource) = target.served.subresource {
        pod_updates::restrict_to_subresource(&subresource.subresource, before, next);
        return Ok(());
    }
    match &pod_updates::errors(before, next)[..] {
        [] => Ok(()),
        errors => Err(invalid("", "Pod", before.name(), errors)),
    }
}

/// Attempts to find an unused cluster IP: of 65,536, hardly any are used.
const MAX_ADDRESS_ATTEMPTS: usize = 16;

/// A service keeps its cluster IP, and gets one if it has none.
fn assign_cluster_ip(
    store: &Store,
    service: &mut Object,
    before: Option<&Object>,
    context: &mut WriteContext<'_>,
) {
    let at = ["spec", "clusterIP"];
    if !service.text(&at).is_empty() || service.text(&["spec", "type"]) == "ExternalName" {
        return;
    }
    if let Some(before) = before.filter(|it| !it.text(&at).is_empty()) {
        service.take_from(before, &at);
        service.take_from(before, &["spec", "clusterIPs"]);
        return;
    }
    for _ in 0..MAX_ADDRESS_ATTEMPTS {
        let [third, fourth, ..] = (context.entropy)().to_le_bytes();
        let address = format!("10.97.{third}.{fourth}");
        if !store.all().any(|(_, it)| it.text(&at) == address) {
            service.set(&["spec", "clusterIPs"], vec![address.clone()]);
            service.set(&at, address);
            return;
        }
    }
}

fn reply(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
    written: &WriteResult,
    form: Form,
) -> ApiResponse {
    let (code, object) = match written {
        WriteResult::Created(object) => (StatusCode::CREATED, object),
        WriteResult::Changed(object) => (StatusCode::OK, object),
    };
    responses::json(code, &present(request, target, object, form))
}
