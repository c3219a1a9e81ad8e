//! Gets and lists objects.

use http::StatusCode;
use serde_json::{Value, json};
use skewbridge_k8s_api::status::Status;

use super::api_request::{ApiRequest, ApiTarget};
use super::negotiate::Form;
use super::responses::{self, ApiResponse};
use super::shared_store::now;
use crate::catalogue::Release;
use crate::conversion;
use crate::object::Object;
use crate::selectors::Selection;
use crate::status::{FieldError, GroupResource, invalid};
use crate::store::{ListOptions, ListPage, VersionMatch};
use crate::table::{Include, ListMeta, table};

/// Gets one object.
pub(super) fn get(request: &ApiRequest<'_>, target: &ApiTarget<'_>) -> Result<ApiResponse, Status> {
    let form = Form::of(&request.head.headers)?;
    let (definition, namespace, name) = (&target.definition, target.namespace, target.name);
    let found = request
        .server
        .store
        .read(|store| store.get(definition, namespace, name))?;
    Ok(responses::json(
        StatusCode::OK,
        &present(request, target, &found, form),
    ))
}

/// Lists objects.
pub(super) fn list(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
) -> Result<ApiResponse, Status> {
    let form = Form::of(&request.head.headers)?;
    let selection = selection(request, target)?;
    let options = options(request)?;
    let listed = request
        .server
        .store
        .read(|store| store.list(target.resource(), target.namespace, &selection, &options))?;
    Ok(responses::json(
        StatusCode::OK,
        &present_list(request, target, &listed, form),
    ))
}

/// The selection of `labelSelector`, `fieldSelector` and a name in the path.
pub(super) fn selection(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
) -> Result<Selection, Status> {
    let mut fields = request.query.get("fieldSelector").to_owned();
    if !target.name.is_empty() && fields.is_empty() {
        fields = format!("metadata.name={}", target.name);
    }
    Selection::parse(
        request.query.get("labelSelector"),
        &fields,
        target.served.group,
        &target.definition.kind,
    )
}

fn options(request: &ApiRequest<'_>) -> Result<ListOptions, Status> {
    let query = &request.query;
    let limit = query.number("limit")?.unwrap_or_default();
    let resource_version = query.get("resourceVersion");
    let forbidden = |why: &str| {
        let error = FieldError::forbidden("resourceVersionMatch", why);
        Err(invalid("meta.k8s.io", "ListOptions", "", &[error]))
    };
    let version_match = match query.get("resourceVersionMatch") {
        // Without `resourceVersionMatch`, a limit implies the exact version.
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
                fault: crate::status::FieldErrorKind::Unsupported(
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

/// An object as a release serialises it.
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
        // Unset times were serialised too.
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

/// An object in the requested version.
pub(super) fn versioned(target: &ApiTarget<'_>, object: &Object) -> Object {
    let api_version = target.served.api_version();
    conversion::from_storage(object, &api_version, &target.definition.kind)
}

/// An object in the requested form.
pub(super) fn present(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
    object: &Object,
    form: Form,
) -> Value {
    match form {
        Form::Objects => {
            let object = versioned(target, object);
            as_released(request.server.release, target.resource(), object).into_value()
        }
        Form::Metadata => partial(&versioned(target, object)),
        Form::Table => {
            let meta = ListMeta {
                resource_version: object.resource_version().to_owned(),
                ..ListMeta::default()
            };
            let object = versioned(target, object);
            let release = request.server.release;
            let resource = target.resource();
            table(release, resource, [&object], &meta, include(request), now())
        }
    }
}

/// Objects in the requested form.
pub(super) fn present_list(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
    listed: &ListPage,
    form: Form,
) -> Value {
    let meta = ListMeta {
        resource_version: listed.version.to_string(),
        continue_token: listed.continue_token.clone(),
        remaining: listed.remaining,
    };
    if form == Form::Table {
        let objects: Vec<_> = (listed.items.iter())
            .map(|object| versioned(target, object))
            .collect();
        let release = request.server.release;
        let resource = target.resource();
        return table(release, resource, &objects, &meta, include(request), now());
    }
    let (kind, api_version) = match form {
        Form::Metadata => (
            "PartialObjectMetadataList".to_owned(),
            "meta.k8s.io/v1".to_owned(),
        ),
        _ => (
            format!("{}List", target.definition.kind),
            target.served.api_version(),
        ),
    };
    let items = listed.items.iter().map(|object| {
        let object = versioned(target, object);
        if form == Form::Metadata {
            return partial(&object);
        }
        // The list has the kind of its items.
        let mut object = as_released(request.server.release, target.resource(), object);
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

/// The `includeObject` option of a table.
pub(super) fn include(request: &ApiRequest<'_>) -> Include {
    match request.query.get("includeObject") {
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
