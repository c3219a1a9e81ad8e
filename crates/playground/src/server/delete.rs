//! Ending objects: one, or all that are selected.

use http::StatusCode;
use serde_json::{Value, json};
use skewbridge_k8s_api::status::Status;

use super::answers::{self, Reply};
use super::ask::{Ask, Subject};
use super::negotiate::Form;
use super::query;
use super::read::{present, present_list, selection};
use crate::namespaces::admit_deletion;
use crate::object::{Object, texts};
use crate::status::quoted;
use crate::store::{Deletion, Effect, Listed, Occasion, Preconditions, Store};
use crate::strategy::Definition;

/// How something is to be deleted: `DeleteOptions` in the body, or the query.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Options {
    pub(super) grace: Option<u32>,
    pub(super) preconditions: Preconditions,
    pub(super) dependents: Dependents,
    pub(super) effect: Effect,
}

/// What becomes of those that depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dependents {
    /// They end after it.
    End,
    /// They stay.
    Stay,
}

impl Options {
    pub(super) fn of(ask: &Ask<'_>) -> Result<Self, Status> {
        if ask.body.is_empty() {
            Self::read(&Value::Null, ask)
        } else {
            Self::read(&ask.value()?, ask)
        }
    }

    /// `DeleteOptions` wherever they stand; the query counts where they do not say.
    pub(super) fn read(body: &Value, ask: &Ask<'_>) -> Result<Self, Status> {
        let said = |name: &str| match &body[name] {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            _ => ask.query.get(name).to_owned(),
        };
        let text = |name: &str| body["preconditions"][name].as_str().map(str::to_owned);
        let mut dry_run = texts(body.get("dryRun"));
        dry_run.push(ask.query.get("dryRun"));
        let grace = match said("gracePeriodSeconds").as_str() {
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
                said("propagationPolicy").as_str(),
                &*said("orphanDependents"),
            ) {
                ("Orphan", _) | ("", "true") => Dependents::Stay,
                _ => Dependents::End,
            },
            effect: query::effect(dry_run.into_iter(), "DeleteOptions")?,
        })
    }
}

/// `DELETE` of an object.
pub(super) fn delete(ask: &Ask<'_>, subject: &Subject<'_>) -> Result<Reply, Status> {
    let form = Form::of(&ask.head.headers)?;
    let options = Options::of(ask)?;
    let deletion = ask.server.store.write(options.effect, |store, occasion| {
        end(
            store,
            subject,
            subject.namespace,
            subject.name,
            &options,
            occasion,
        )
    })?;
    Ok(match &deletion {
        Deletion::Gone(object) if !is_told_whole(&subject.definition) => {
            answers::json(StatusCode::OK, &success(&subject.definition, object))
        }
        Deletion::Gone(object) | Deletion::Pending(object) => {
            answers::json(StatusCode::OK, &present(ask, subject, object, form))
        }
    })
}

/// `DELETE` of a collection.
pub(super) fn delete_collection(ask: &Ask<'_>, subject: &Subject<'_>) -> Result<Reply, Status> {
    let form = Form::of(&ask.head.headers)?;
    let options = Options::of(ask)?;
    let selection = selection(ask, subject)?;
    let (items, version) = ask.server.store.write(options.effect, |store, occasion| {
        let all = store.list(
            subject.resource(),
            subject.namespace,
            &selection,
            &crate::store::ListOptions::default(),
        )?;
        let mut items = Vec::new();
        for object in &all.items {
            let (namespace, name) = (object.namespace(), object.name());
            let (Deletion::Gone(object) | Deletion::Pending(object)) =
                end(store, subject, namespace, name, &options, occasion)?;
            items.push(object);
        }
        Ok((items, store.version()))
    })?;
    let listed = Listed {
        items,
        version,
        continue_token: String::new(),
        remaining: None,
    };
    Ok(answers::json(
        StatusCode::OK,
        &present_list(ask, subject, &listed, form),
    ))
}

/// Deletes an object in the store.
pub(super) fn end(
    store: &mut Store,
    subject: &Subject<'_>,
    namespace: &str,
    name: &str,
    options: &Options,
    occasion: &mut Occasion<'_>,
) -> Result<Deletion, Status> {
    let definition = &subject.definition;
    admit_deletion(definition, name)?;
    let before = store.get(definition, namespace, name)?;
    let grace = definition.grace(&before, options.grace);
    let preconditions = &options.preconditions;
    let deletion =
        store.delete_within(definition, namespace, name, grace, preconditions, occasion)?;
    if options.dependents == Dependents::Stay && options.effect == Effect::Lasting {
        super::controllers::orphan(store, before.uid(), occasion)?;
    }
    Ok(deletion)
}

/// Whose deletion is answered with the object.
fn is_told_whole(definition: &Definition) -> bool {
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
