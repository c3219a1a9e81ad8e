//! Making and changing objects. Each write is judged and done while nobody else writes.

use std::sync::Arc;

use http::StatusCode;
use skewbridge_k8s_api::status::Status;

use super::answers::{self, Reply};
use super::ask::{Ask, Subject, Typed, yaml};
use super::negotiate::Form;
use super::read::{present, versioned};
use crate::apply::{self, Conflicts, Writer, note_update};
use crate::conversion::kept;
use crate::defaults;
use crate::namespaces::admit_creation;
use crate::object::Object;
use crate::patch::{Patch, PatchKind};
use crate::pod_updates;
use crate::shape;
use crate::status::{FieldError, invalid};
use crate::store::{Occasion, Store};
use crate::strategy::Part;
/// What came of a write.
pub(super) enum Written {
    Created(Arc<Object>),
    Changed(Arc<Object>),
}

/// `POST`
pub(super) fn create(ask: &Ask<'_>, subject: &Subject<'_>) -> Result<Reply, Status> {
    let form = Form::of(&ask.head.headers)?;
    let effect = ask.query.effect("CreateOptions")?;
    let Typed { object, warnings } = ask.object(subject)?;
    let api_version = subject.served.api_version();
    let writer = ask.writer(&api_version);
    let made = ask.server.store.write(effect, |store, occasion| {
        make(store, subject, object, Some(&writer), occasion)
    })?;
    let mut reply = reply(ask, subject, &Written::Created(made), form);
    answers::warn(&mut reply, &warnings);
    Ok(reply)
}

/// `PUT`
pub(super) fn update(ask: &Ask<'_>, subject: &Subject<'_>, part: Part) -> Result<Reply, Status> {
    let form = Form::of(&ask.head.headers)?;
    let effect = ask.query.effect("UpdateOptions")?;
    let Typed { object, warnings } = ask.object(subject)?;
    let api_version = subject.served.api_version();
    let writer = ask.writer(&api_version);
    let changed = ask.server.store.write(effect, |store, occasion| {
        change(store, subject, object, part, &writer, occasion)
    })?;
    let mut reply = reply(ask, subject, &Written::Changed(changed), form);
    answers::warn(&mut reply, &warnings);
    Ok(reply)
}

/// `PATCH`
pub(super) fn patch(ask: &Ask<'_>, subject: &Subject<'_>, part: Part) -> Result<Reply, Status> {
    let form = Form::of(&ask.head.headers)?;
    let effect = ask.query.effect("PatchOptions")?;
    let kind = PatchKind::of_content_type(ask.content_type())?;
    let api_version = subject.served.api_version();
    let mut writer = ask.writer(&api_version);
    if kind == PatchKind::Apply {
        // Who applies has to say who it is.
        writer.manager = ask.query.get("fieldManager");
        let applied = applied(ask, subject)?;
        let conflicts = match ask.query.flag("force") {
            Some(true) => Conflicts::Force,
            _ => Conflicts::Refuse,
        };
        let written = ask.server.store.write(effect, |store, occasion| {
            apply_to(store, subject, &applied, part, &writer, conflicts, occasion)
        })?;
        return Ok(reply(ask, subject, &written, form));
    }
    if ask.query.find("force").is_some() {
        let why = "may not be specified for non-apply patch";
        let error = FieldError::forbidden("force", why);
        return Err(invalid("meta.k8s.io", "PatchOptions", "", &[error]));
    }
    let patch = Patch::parse(kind, &ask.body)?;
    let (changed, warnings) = ask.server.store.write(effect, |store, occasion| {
        let (definition, namespace) = (&subject.definition, subject.namespace);
        let before = store.get(definition, namespace, subject.name)?;
        let after = patch.apply(&versioned(subject, &before))?;
        let Typed { object, warnings } = ask.typed(subject, after)?;
        let changed = change(store, subject, object, part, &writer, occasion)?;
        Ok((changed, warnings))
    })?;
    let mut reply = reply(ask, subject, &Written::Changed(changed), form);
    answers::warn(&mut reply, &warnings);
    Ok(reply)
}

/// The object of a server-side apply.
fn applied(ask: &Ask<'_>, subject: &Subject<'_>) -> Result<Object, Status> {
    let applied = Object::new(yaml(&ask.body)?)?;
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
    let (kind, api_version) = (&subject.definition.kind, subject.served.api_version());
    if (applied.kind(), applied.api_version()) != (kind.as_str(), api_version.as_str()) {
        return Err(Status::bad_request(format!(
            "invalid object type: {}, Kind={} is not {api_version}, Kind={kind}",
            applied.api_version(),
            applied.kind()
        )));
    }
    if !matches!(applied.name(), "") && applied.name() != subject.name {
        return Err(Status::bad_request(format!(
            "metadata.name Invalid value: {:?}: must match the name on the URL ({})",
            applied.name(),
            subject.name
        )));
    }
    let mut value = applied.into_value();
    let undeclared = |why: String| {
        let message = format!(
            "failed to create typed patch object ({}/{}; {}, Kind={kind}): {why}",
            subject.namespace,
            subject.name,
            apply::long_version(&api_version),
        );
        // Not one of the API's own failures, so 500 and no reason.
        Status::new(500, "", message)
    };
    match shape::prune(&api_version, kind, &mut value) {
        Ok(unknown) if unknown.is_empty() => Object::new(value),
        Ok(unknown) => {
            let unknown = unknown.iter();
            let faults: Vec<_> = unknown
                .map(|it| format!(".{it}: field not declared in schema"))
                .collect();
            Err(undeclared(faults.join(", ")))
        }
        Err(mismatch) => Err(undeclared(mismatch.0)),
    }
}

fn apply_to(
    store: &mut Store,
    subject: &Subject<'_>,
    applied: &Object,
    part: Part,
    writer: &Writer<'_>,
    conflicts: Conflicts,
    occasion: &mut Occasion<'_>,
) -> Result<Written, Status> {
    let live = store.get(&subject.definition, subject.namespace, subject.name);
    let live = match (live, part) {
        (Ok(live), _) => Some(live),
        (Err(_), Part::Main) => None,
        (Err(missing), _) => return Err(missing),
    };
    let shown = live.as_deref().map(|live| versioned(subject, live));
    let mut after = apply::apply(shown.as_ref(), applied, writer, conflicts)?;
    if live.is_none() {
        after.set(&["metadata", "name"], subject.name);
        return make(store, subject, after, None, occasion).map(Written::Created);
    }
    complete(store, subject, &mut after, live.as_deref(), occasion)?;
    if let Some(live) = &live {
        judge(subject, part, live, &mut after)?;
    }
    let (definition, namespace, name) = (&subject.definition, subject.namespace, subject.name);
    let changed = store.update(definition, namespace, name, kept(after), part, occasion)?;
    Ok(Written::Changed(changed))
}

/// Makes an object in the store. A writer owns what is in it.
pub(super) fn make(
    store: &mut Store,
    subject: &Subject<'_>,
    mut object: Object,
    writer: Option<&Writer<'_>>,
    occasion: &mut Occasion<'_>,
) -> Result<Arc<Object>, Status> {
    let definition = &subject.definition;
    admit_creation(store, definition, subject.namespace, object.name())?;
    definition.prepare_new(&mut object);
    complete(store, subject, &mut object, None, occasion)?;
    if let Some(writer) = writer {
        note_update(None, &mut object, writer);
    }
    store.create(definition, subject.namespace, kept(object), occasion)
}

/// Changes a part of an object in the store. The writer owns what it changes.
pub(super) fn change(
    store: &mut Store,
    subject: &Subject<'_>,
    object: Object,
    part: Part,
    writer: &Writer<'_>,
    occasion: &mut Occasion<'_>,
) -> Result<Arc<Object>, Status> {
    let (definition, namespace, name) = (&subject.definition, subject.namespace, subject.name);
    let live = store.get(definition, namespace, name)?;
    let given = object.clone();
    // As they are kept: what is status there may be annotations in another version.
    let next = definition.prepare_update(part, &live, kept(object));
    // Compared in the version that is written: that is what the writer owns.
    let (before, mut next) = (versioned(subject, &live), versioned(subject, &next));
    // The store judges what was expected to be there.
    for field in ["name", "namespace", "uid"] {
        next.take_from(&given, &["metadata", field]);
    }
    complete(store, subject, &mut next, Some(&before), occasion)?;
    judge(subject, part, &before, &mut next)?;
    note_update(Some(&before), &mut next, writer);
    store.update(definition, namespace, name, kept(next), part, occasion)
}

/// Fills in what nobody said; 422 for what is still missing.
fn complete(
    store: &Store,
    subject: &Subject<'_>,
    object: &mut Object,
    before: Option<&Object>,
    occasion: &mut Occasion<'_>,
) -> Result<(), Status> {
    let resource = subject.resource();
    defaults::fill(resource, object);
    if resource.group.is_empty() && resource.resource == "services" {
        give_address(store, object, before, occasion);
    }
    match &defaults::faults(resource, object)[..] {
        [] => Ok(()),
        faults => {
            let (group, kind) = (&resource.group, &subject.definition.kind);
            Err(invalid(group, kind, object.name(), faults))
        }
    }
}

/// 422 for what may not be changed any more.
fn judge(
    subject: &Subject<'_>,
    part: Part,
    before: &Object,
    next: &mut Object,
) -> Result<(), Status> {
    let resource = subject.resource();
    if !resource.group.is_empty() || resource.resource != "pods" || part != Part::Main {
        return Ok(());
    }
    if let Some(subresource) = subject.served.subresource {
        pod_updates::confine(&subresource.subresource, before, next);
        return Ok(());
    }
    match &pod_updates::faults(before, next)[..] {
        [] => Ok(()),
        faults => Err(invalid("", "Pod", before.name(), faults)),
    }
}

/// Tries to find an address that is free: of 65,536 hardly any are taken.
const ADDRESS_TRIES: usize = 16;

/// A service keeps its address, and gets one if it has none.
fn give_address(
    store: &Store,
    service: &mut Object,
    before: Option<&Object>,
    occasion: &mut Occasion<'_>,
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
    for _ in 0..ADDRESS_TRIES {
        let [third, fourth, ..] = (occasion.entropy)().to_le_bytes();
        let address = format!("10.97.{third}.{fourth}");
        if !store.all().any(|(_, it)| it.text(&at) == address) {
            service.set(&["spec", "clusterIPs"], vec![address.clone()]);
            service.set(&at, address);
            return;
        }
    }
}

fn reply(ask: &Ask<'_>, subject: &Subject<'_>, written: &Written, form: Form) -> Reply {
    let (code, object) = match written {
        Written::Created(object) => (StatusCode::CREATED, object),
        Written::Changed(object) => (StatusCode::OK, object),
    };
    answers::json(code, &present(ask, subject, object, form))
}
