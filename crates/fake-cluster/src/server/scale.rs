//! The subresource `/scale`, which is the same for all scalable resources.

use http::StatusCode;
use serde_json::{Value, json};
use skewbridge_k8s_api::status::Status;

use super::api_request::{ApiRequest, ApiTarget};
use super::read::versioned;
use super::responses::{self, ApiResponse};
use super::write::change;
use crate::object::Object;
use crate::patch::{Patch, PatchKind};
use crate::resource_strategy::Part;
use crate::status::{FieldError, invalid};

/// `GET`
pub(super) fn get(request: &ApiRequest<'_>, target: &ApiTarget<'_>) -> Result<ApiResponse, Status> {
    let found = request
        .server
        .store
        .read(|store| store.get(&target.definition, target.namespace, target.name))?;
    Ok(responses::json(StatusCode::OK, &scale(&found)))
}

/// `PUT` and `PATCH`
pub(super) fn write(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
) -> Result<ApiResponse, Status> {
    let dry_run = request.query.dry_run("UpdateOptions")?;
    let api_version = target.served.api_version();
    let writer = request.writer(&api_version);
    let patch = if request.head.method == http::Method::PATCH {
        let kind = PatchKind::of_content_type(request.content_type())?;
        Some(Patch::parse(kind, &request.body)?)
    } else {
        None
    };
    let changed = request.server.store.write(dry_run, |store, context| {
        let before = store.get(&target.definition, target.namespace, target.name)?;
        let wanted = match &patch {
            Some(patch) => patch.apply(&Object::new(scale(&before))?)?,
            None => Object::new(request.value()?)?,
        };
        let replicas = wanted.at(&["spec", "replicas"]).and_then(Value::as_i64);
        let replicas = replicas.unwrap_or_default();
        if replicas < 0 {
            let why = "must be greater than or equal to 0";
            let error = FieldError::invalid("spec.replicas", replicas.to_string(), why);
            return Err(invalid("autoscaling", "Scale", target.name, &[error]));
        }
        let mut next = versioned(target, &before);
        next.set(&["spec", "replicas"], replicas);
        next.take_from(&wanted, &["metadata", "resourceVersion"]);
        change(store, target, next, Part::Main, &writer, context)
    })?;
    Ok(responses::json(StatusCode::OK, &scale(&changed)))
}

/// An `autoscaling/v1` Scale of an object.
fn scale(object: &Object) -> Value {
    let number = |path: &[&str]| object.at(path).and_then(Value::as_i64).unwrap_or_default();
    let mut metadata = json!({});
    for field in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ] {
        if let Some(value) = object.at(&["metadata", field]) {
            metadata[field] = value.clone();
        }
    }
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": number(&["spec", "replicas"])},
        "status": {
            "replicas": number(&["status", "replicas"]),
            "selector": selector(object),
        },
    })
}

/// The selector as text.
fn selector(object: &Object) -> String {
    let labels = object
        .at(&["spec", "selector", "matchLabels"])
        .or_else(|| object.at(&["spec", "selector"]));
    let labels = labels.and_then(Value::as_object).into_iter().flatten();
    let texts: Vec<_> = labels
        .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)))
        .collect();
    texts.join(",")
}
