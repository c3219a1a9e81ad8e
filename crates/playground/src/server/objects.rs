//! From what is asked of the API to who does it.

use skewbridge_gateway::serve::Answer;
use skewbridge_k8s_api::request_info::Verb;
use skewbridge_k8s_api::status::Status;

use super::answers;
use super::ask::{Ask, Subject};
use super::pod_streams::StreamKind;
use super::{delete, pods, read, reviews, scale, watching, write};
use crate::catalogue::{Release, Served};
use crate::status::{method_not_allowed, unknown_resource};
use crate::strategy::{Definition, Part};

/// What is said to everybody who asks for endpoints.
const ENDPOINTS: &str =
    "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice";

/// Answers a request for objects.
pub(super) async fn answer(ask: &Ask<'_>) -> Result<Answer, Status> {
    let info = ask.info;
    let catalogue = &ask.server.catalogue;
    if !catalogue.has_version(info.group, info.version) {
        return Ok(Answer::new(answers::nothing_here()));
    }
    let served = catalogue.find(info).ok_or_else(unknown_resource)?;
    let subject = subject(ask, served)?;
    let verb = match (info.verb, info.name.is_empty()) {
        // A name that is only selected is no name of a path.
        (Verb::Get, true) => Verb::List,
        (verb, _) => verb,
    };
    let told = match served.subresource {
        Some(subresource) => subresource.subresource.as_str(),
        None => "",
    };
    let is_pod = served.group.is_empty() && served.resource.resource == "pods";
    if let (true, Some(kind)) = (is_pod, StreamKind::of_subresource(told)) {
        return pods::stream(ask, &subject, kind).await;
    }
    // Some list more verbs than they have paths for.
    if !served.allows(verb.as_str()) {
        return Err(method_not_allowed());
    }
    let reply = match (told, verb) {
        ("", Verb::Create) if reviews::is_review(served.group, &served.resource.resource) => {
            reviews::create(ask, &subject)
        }
        ("", Verb::Create)
            if served.group.is_empty() && subject.resource().resource == "bindings" =>
        {
            bind_by_name(ask, &subject)
        }
        ("", Verb::List) => read::list(ask, &subject),
        ("", Verb::Watch) => watching::watch(ask, &subject),
        ("", Verb::Create) => write::create(ask, &subject),
        ("", Verb::Update) => write::update(ask, &subject, Part::Main),
        ("", Verb::Patch) => write::patch(ask, &subject, Part::Main),
        ("", Verb::Delete) => delete::delete(ask, &subject),
        ("", Verb::DeleteCollection) => delete::delete_collection(ask, &subject),
        ("binding", Verb::Create) => pods::bind(ask, &subject, subject.name),
        ("eviction", Verb::Create) => pods::evict(ask, &subject),
        ("scale", Verb::Get) => scale::get(ask, &subject),
        ("scale", Verb::Update | Verb::Patch) => scale::write(ask, &subject),
        ("proxy", _) => Err(Status::service_unavailable(
            "nothing is proxied to workloads here",
            1,
        )),
        (_, Verb::Get) => read::get(ask, &subject),
        (part, Verb::Update) => write::update(ask, &subject, part_of(part)),
        (part, Verb::Patch) => write::patch(ask, &subject, part_of(part)),
        _ => Err(method_not_allowed()),
    };
    let mut reply = reply?;
    let is_core = served.group.is_empty();
    if is_core && served.resource.resource == "endpoints" && ask.server.release > Release::V1_28 {
        answers::warn(&mut reply, &[ENDPOINTS.to_owned()]);
    }
    Ok(Answer::new(reply))
}

/// Which part of an object a subresource is.
fn part_of(subresource: &str) -> Part {
    match subresource {
        "finalize" => Part::Finalize,
        "status" | "approval" => Part::Status,
        // Containers and their sizes are wishes.
        _ => Part::Main,
    }
}

/// `bindings`, where the pod is named by the object.
fn bind_by_name(ask: &Ask<'_>, subject: &Subject<'_>) -> Result<answers::Reply, Status> {
    let binding = ask.value()?;
    let pod = binding["metadata"]["name"].as_str().unwrap_or_default();
    let served = ask.server.catalogue.resource("", "v1", "pods");
    let served = served.ok_or_else(unknown_resource)?;
    let subject = Subject {
        served,
        definition: Definition::of(&served),
        namespace: subject.namespace,
        name: pod,
    };
    pods::bind(ask, &subject, pod)
}

/// What is asked for, where the path is one of its paths.
fn subject<'a>(ask: &Ask<'a>, served: Served<'a>) -> Result<Subject<'a>, Status> {
    let info: &'a _ = ask.info;
    let definition = Definition::of(&served);
    let is_named = matches!(
        info.verb,
        Verb::Get | Verb::Update | Verb::Patch | Verb::Delete
    ) || !info.subresource.is_empty();
    let namespace = if served.is_namespaced() {
        if info.namespace.is_empty() && is_named {
            return Err(unknown_resource());
        }
        let is_question = reviews::is_review(served.group, &served.resource.resource);
        if info.namespace.is_empty() && info.verb == Verb::Create && !is_question {
            return Err(method_not_allowed());
        }
        info.namespace
    } else {
        if !info.namespace.is_empty() && !definition.is_namespaces() {
            return Err(unknown_resource());
        }
        ""
    };
    Ok(Subject {
        served,
        definition,
        namespace,
        name: match info.verb {
            // There it is what is selected, and a selector says so.
            Verb::List | Verb::DeleteCollection => "",
            _ => &info.name,
        },
    })
}
