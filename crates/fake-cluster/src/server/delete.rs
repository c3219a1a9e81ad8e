//! Deletes objects: one, or a selection.

use http::StatusCode;
use serde_json::{Value, json};
use skewbridge_k8s_api::status::Status;

use super::api_request::{ApiRequest, ApiTarget};
use super::negotiate::Form;
use super::query;
use super::read::{present, present_list, selection};
use super::responses::{self, ApiResponse};
use crate::namespaces::admit_deletion;
use crate::object::{Object, texts};
use crate::resource_strategy::Definition;
use crate::status::quoted;
use crate::store::{Deletion, DryRun, ListPage, Preconditions, Store, WriteContext};

/// Options of a deletion: `DeleteOptions` of the body, or the query.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Options {
    pub(super) grace: Option<u32>,
    pub(super) preconditions: Preconditions,
    pub(super) dependents: Dependents,
    pub(super) dry_run: DryRun,
}

/// What happens to dependents (`propagationPolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dependents {
    /// They are deleted after their owner.
    Delete,
    /// They are kept, without the owner reference.
    Orphan,
}

impl Options {
    pub(super) fn of(request: &ApiRequest<'_>) -> Result<Self, Status> {
        if request.body.is_empty() {
            Self::read(&Value::Null, request)
        } else {
            Self::read(&request.value()?, request)
        }
    }

    /// `DeleteOptions` of a body; options that are not set are taken from the query.
    pub(super) fn read(body: &Value, request: &ApiRequest<'_>) -> Result<Self, Status> {
        let option = |name: &str| match &body[name] {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            _ => request.query.get(name).to_owned(),
        };
        let text = |name: &str| body["preconditions"][name].as_str().map(str::to_owned);
        let mut dry_run = texts(body.get("dryRun"));
        dry_run.push(request.query.get("dryRun"));
        let grace = match option("gracePeriodSeconds").as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| {
                Status::bad_request(format!(
                    "gracePeriodSeconds: Invalid value: {}: must be greater than or equal to 0",
                    quoted(text)
                ))
            })?),
        };
        Ok(Self {
            grace,
            preconditions: Preconditions {
                uid: text("uid"),
                resource_version: text("resourceVersion"),
            },
            dependents: match (
                option("propagationPolicy").as_str(),
                &*option("orphanDependents"),
            ) {
                ("Orphan", _) | ("", "true") => Dependents::Orphan,
                _ => Dependents::Delete,
            },
            dry_run: query::dry_run(dry_run.into_iter(), "DeleteOptions")?,
        })
    }
}

/// `DELETE` of an object.
pub(super) fn delete(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
) -> Result<ApiResponse, Status> {
    let form = Form::of(&request.head.headers)?;
    let options = Options::of(request)?;
    let deletion = request
        .server
        .store
        .write(options.dry_run, |store, context| {
            end(
                store,
                target,
                target.namespace,
                target.name,
                &options,
                context,
            )
        })?;
    Ok(match &deletion {
        Deletion::Removed(object) if !responds_with_object(&target.definition) => {
            responses::json(StatusCode::OK, &success(&target.definition, object))
        }
        Deletion::Removed(object) | Deletion::Pending(object) => {
            responses::json(StatusCode::OK, &present(request, target, object, form))
        }
    })
}

/// `DELETE` of a collection.
pub(super) fn delete_collection(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
) -> Result<ApiResponse, Status> {
    let form = Form::of(&request.head.headers)?;
    let options = Options::of(request)?;
    let selection = selection(request, target)?;
    let (items, version) = request
        .server
        .store
        .write(options.dry_run, |store, context| {
            let all = store.list(
                target.resource(),
                target.namespace,
                &selection,
                &crate::store::ListOptions::default(),
            )?;
            let mut items = Vec::new();
            for object in &all.items {
                let (namespace, name) = (object.namespace(), object.name());
                let (Deletion::Removed(object) | Deletion::Pending(object)) =
                    end(store, target, namespace, name, &options, context)?;
                items.push(object);
            }
            Ok((items, store.version()))
        })?;
    let listed = ListPage {
        items,
        version,
        continue_token: String::new(),
        remaining: None,
    };
    Ok(responses::json(
        StatusCode::OK,
        &present_list(request, target, &listed, form),
    ))
}

/// Deletes an object in the store.
pub(super) fn end(
    store: &mut Store,
    target: &ApiTarget<'_>,
    namespace: &str,
    name: &str,
    options: &Options,
    context: &mut WriteContext<'_>,
) -> Result<Deletion, Status> {
    let definition = &target.definition;
    admit_deletion(definition, name)?;
    let before = store.get(definition, namespace, name)?;
    let grace = definition.grace(&before, options.grace);
    let preconditions = &options.preconditions;
    let deletion =
        store.delete_within(definition, namespace, name, grace, preconditions, context)?;
    if options.dependents == Dependents::Orphan && options.dry_run == DryRun::Off {
        super::controllers::orphan(store, before.uid(), context)?;
    }
    Ok(deletion)
}

/// Whether the response to a deletion is the object.
fn responds_with_object(definition: &Definition) -> bool {
    let resource = &definition.resource;
    resource.group.is_empty()
        && matches!(
            resource.resource.as_str(),
            "pods"
                | "services"
                | "serviceaccounts"
                | "persistentvolumes"
                | "persistentvolumeclaims"
                | "podtemplates"
                | "resourcequotas"
        )
}

fn success(definition: &Definition, object: &Object) -> Value {
    let mut details = json!({
        "name": object.name(),
        "kind": definition.resource.resource,
        "uid": object.uid(),
    });
    if !definition.resource.group.is_empty() {
        details["group"] = definition.resource.group.as_str().into();
    }
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    })
}
