//! Getting and listing objects.

use http::StatusCode;
use serde_json::{Value, json};
use skewbridge_k8s_api::status::Status;

use super::answers::{self, Reply};
use super::ask::{Ask, Subject};
use super::negotiate::Form;
use super::shared::now;
use crate::catalogue::Release;
use crate::conversion;
use crate::object::Object;
use crate::select::Selection;
use crate::status::{FieldError, GroupResource, invalid};
use crate::store::{ListOptions, Listed, VersionMatch};
use crate::table::{Include, ListMeta, table};

/// One object.
pub(super) fn get(ask: &Ask<'_>, subject: &Subject<'_>) -> Result<Reply, Status> {
    let form = Form::of(&ask.head.headers)?;
    let (definition, namespace, name) = (&subject.definition, subject.namespace, subject.name);
    let found = ask
        .server
        .store
        .read(|store| store.get(definition, namespace, name))?;
    Ok(answers::json(
        StatusCode::OK,
        &present(ask, subject, &found, form),
    ))
}

/// Several.
pub(super) fn list(ask: &Ask<'_>, subject: &Subject<'_>) -> Result<Reply, Status> {
    let form = Form::of(&ask.head.headers)?;
    let selection = selection(ask, subject)?;
    let options = options(ask)?;
    let listed = ask
        .server
        .store
        .read(|store| store.list(subject.resource(), subject.namespace, &selection, &options))?;
    Ok(answers::json(
        StatusCode::OK,
        &present_list(ask, subject, &listed, form),
    ))
}

/// What `labelSelector` and `fieldSelector` mean; a name in the path is meant too.
pub(super) fn selection(ask: &Ask<'_>, subject: &Subject<'_>) -> Result<Selection, Status> {
    let mut fields = ask.query.get("fieldSelector").to_owned();
    if !subject.name.is_empty() && fields.is_empty() {
        fields = format!("metadata.name={}", subject.name);
    }
    Selection::parse(
        ask.query.get("labelSelector"),
        &fields,
        subject.served.group,
        &subject.definition.kind,
    )
}

fn options(ask: &Ask<'_>) -> Result<ListOptions, Status> {
    let query = &ask.query;
    let limit = query.number("limit")?.unwrap_or_default();
    let resource_version = query.get("resourceVersion");
    let forbidden = |why: &str| {
        let error = FieldError::forbidden("resourceVersionMatch", why);
        Err(invalid("meta.k8s.io", "ListOptions", "", &[error]))
    };
    let version_match = match query.get("resourceVersionMatch") {
        // Before there was a word for it, a page meant just this version.
        "" if limit > 0 && !matches!(resource_version, "" | "0") => VersionMatch::Exact,
        "" => VersionMatch::NotOlderThan,
        _ if resource_version.is_empty() => {
            return forbidden(
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            );
        }
        _ if !query.get("continue").is_empty() => {
            return forbidden("resourceVersionMatch is forbidden when continue is provided");
        }
        "NotOlderThan" => VersionMatch::NotOlderThan,
        "Exact" if resource_version == "0" => {
            return forbidden(
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            );
        }
        "Exact" => VersionMatch::Exact,
        other => {
            let error = FieldError {
                field: "resourceVersionMatch".to_owned(),
                fault: crate::status::Fault::Unsupported(
                    other.to_owned(),
                    r#"supported values: "Exact", "NotOlderThan", """#.to_owned(),
                ),
            };
            return Err(invalid("meta.k8s.io", "ListOptions", "", &[error]));
        }
    };
    Ok(ListOptions {
        limit: usize::try_from(limit).unwrap_or(usize::MAX),
        continue_token: query.get("continue").to_owned(),
        resource_version: resource_version.to_owned(),
        version_match,
    })
}

/// An object as a release writes it, where releases differ.
pub(super) fn as_released(
    release: Release,
    resource: &GroupResource,
    mut object: Object,
) -> Object {
    if release > Release::V1_28 {
        return object;
    }
    match (resource.group.as_str(), resource.resource.as_str()) {
        // Pods had no generations.
        ("", "pods") => drop(object.remove(&["metadata", "generation"])),
        // A time that is not set was written as well.
        ("batch", "cronjobs") => {
            let job = ["spec", "jobTemplate"];
            without_time(&mut object, &[&job[..], &["metadata"]].concat());
            let pod = [&job[..], &["spec", "template", "metadata"]].concat();
            without_time(&mut object, &pod);
        }
        ("apps" | "batch", _) => without_time(&mut object, &["spec", "template", "metadata"]),
        _ => {}
    }
    object
}

fn without_time(object: &mut Object, metadata: &[&str]) {
    if object.at(metadata).is_some_and(Value::is_object) {
        let time = [metadata, &["creationTimestamp"]].concat();
        if object.at(&time).is_none() {
            object.set(&time, Value::Null);
        }
    }
}

/// An object in the version in which it is asked for.
pub(super) fn versioned(subject: &Subject<'_>, object: &Object) -> Object {
    let api_version = subject.served.api_version();
    conversion::shown(object, &api_version, &subject.definition.kind)
}

/// An object in a form.
pub(super) fn present(ask: &Ask<'_>, subject: &Subject<'_>, object: &Object, form: Form) -> Value {
    match form {
        Form::Objects => {
            let object = versioned(subject, object);
            as_released(ask.server.release, subject.resource(), object).into_value()
        }
        Form::Metadata => partial(&versioned(subject, object)),
        Form::Table => {
            let meta = ListMeta {
                resource_version: object.resource_version().to_owned(),
                ..ListMeta::default()
            };
            let object = versioned(subject, object);
            let release = ask.server.release;
            let resource = subject.resource();
            table(release, resource, [&object], &meta, include(ask), now())
        }
    }
}

/// Objects in a form.
pub(super) fn present_list(
    ask: &Ask<'_>,
    subject: &Subject<'_>,
    listed: &Listed,
    form: Form,
) -> Value {
    let meta = ListMeta {
        resource_version: listed.version.to_string(),
        continue_token: listed.continue_token.clone(),
        remaining: listed.remaining,
    };
    if form == Form::Table {
        let objects: Vec<_> = (listed.items.iter())
            .map(|object| versioned(subject, object))
            .collect();
        let release = ask.server.release;
        let resource = subject.resource();
        return table(release, resource, &objects, &meta, include(ask), now());
    }
    let (kind, api_version) = match form {
        Form::Metadata => (
            "PartialObjectMetadataList".to_owned(),
            "meta.k8s.io/v1".to_owned(),
        ),
        _ => (
            format!("{}List", subject.definition.kind),
            subject.served.api_version(),
        ),
    };
    let items = listed.items.iter().map(|object| {
        let object = versioned(subject, object);
        if form == Form::Metadata {
            return partial(&object);
        }
        // The list says what they are.
        let mut object = as_released(ask.server.release, subject.resource(), object);
        object.remove(&["apiVersion"]);
        object.remove(&["kind"]);
        object.into_value()
    });
    let items: Vec<Value> = items.collect();
    let mut metadata = json!({"resourceVersion": meta.resource_version});
    if !meta.continue_token.is_empty() {
        metadata["continue"] = meta.continue_token.into();
    }
    if let Some(remaining) = meta.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    json!({"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items})
}

/// What a table's rows are to bring along.
pub(super) fn include(ask: &Ask<'_>) -> Include {
    match ask.query.get("includeObject") {
        "None" => Include::None,
        "Object" => Include::Object,
        _ => Include::Metadata,
    }
}

pub(super) fn partial(object: &Object) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.value()["metadata"],
    })
}
