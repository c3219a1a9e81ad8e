//! Dispatches requests by resource, subresource and verb.

use skewbridge_http_engine::server::ClientResponse;
use skewbridge_k8s_api::request_info::Verb;
use skewbridge_k8s_api::status::Status;

use super::api_request::{ApiRequest, ApiTarget};
use super::pod_streams::StreamKind;
use super::responses;
use super::{delete, pod_subresources, read, reviews, scale, watch_stream, write};
use crate::catalogue::{Release, Served};
use crate::resource_strategy::{Definition, Part};
use crate::status::{method_not_allowed, unknown_resource};

/// The deprecation warning of endpoints.
const ENDPOINTS: &str =
    "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice";

/// Answers a request for objects.
pub(super) async fn answer(request: &ApiRequest<'_>) -> Result<ClientResponse, Status> {
    let info = request.info;
    let catalogue = &request.server.catalogue;
    if !catalogue.has_version(info.group, info.version) {
        return Ok(ClientResponse::new(responses::not_found_page()));
    }
    let served = catalogue.find(info).ok_or_else(unknown_resource)?;
    let target = target(request, served)?;
    let verb = match (info.verb, info.name.is_empty()) {
        // A name in a field selector is not a name in the path.
        (Verb::Get, true) => Verb::List,
        (verb, _) => verb,
    };
    let subresource = match served.subresource {
        Some(subresource) => subresource.subresource.as_str(),
        None => "",
    };
    let is_pod = served.group.is_empty() && served.resource.resource == "pods";
    if let (true, Some(kind)) = (is_pod, StreamKind::of_subresource(subresource)) {
        return pod_subresources::stream(request, &target, kind).await;
    }
    // Some resources list verbs without a path for them.
    if !served.allows(verb.as_str()) {
        return Err(method_not_allowed());
    }
    let reply = match (subresource, verb) {
        ("", Verb::Create) if reviews::is_review(served.group, &served.resource.resource) => {
            reviews::create(request, &target)
        }
        ("", Verb::Create)
            if served.group.is_empty() && target.resource().resource == "bindings" =>
        {
            bind_by_name(request, &target)
        }
        ("", Verb::List) => read::list(request, &target),
        ("", Verb::Watch) => watch_stream::watch(request, &target),
        ("", Verb::Create) => write::create(request, &target),
        ("", Verb::Update) => write::update(request, &target, Part::Main),
        ("", Verb::Patch) => write::patch(request, &target, Part::Main),
        ("", Verb::Delete) => delete::delete(request, &target),
        ("", Verb::DeleteCollection) => delete::delete_collection(request, &target),
        ("binding", Verb::Create) => pod_subresources::bind(request, &target, target.name),
        ("eviction", Verb::Create) => pod_subresources::evict(request, &target),
        ("scale", Verb::Get) => scale::get(request, &target),
        ("scale", Verb::Update | Verb::Patch) => scale::write(request, &target),
        ("proxy", _) => Err(Status::service_unavailable(
            "nothing is proxied to workloads here",
            1,
        )),
        (_, Verb::Get) => read::get(request, &target),
        (part, Verb::Update) => write::update(request, &target, part_of(part)),
        (part, Verb::Patch) => write::patch(request, &target, part_of(part)),
        _ => Err(method_not_allowed()),
    };
    let mut reply = reply?;
    let is_core = served.group.is_empty();
    if is_core && served.resource.resource == "endpoints" && request.server.release > Release::V1_28
    {
        responses::warn(&mut reply, &[ENDPOINTS.to_owned()]);
    }
    Ok(ClientResponse::new(reply))
}

/// The part of an object that a subresource writes.
fn part_of(subresource: &str) -> Part {
    match subresource {
        "finalize" => Part::Finalize,
        "status" | "approval" => Part::Status,
        // Containers and their resources are part of the spec.
        _ => Part::Main,
    }
}

/// `bindings`, where the pod is named by the object.
fn bind_by_name(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
) -> Result<responses::ApiResponse, Status> {
    let binding = request.value()?;
    let pod = binding["metadata"]["name"].as_str().unwrap_or_default();
    let served = request.server.catalogue.resource("", "v1", "pods");
    let served = served.ok_or_else(unknown_resource)?;
    let target = ApiTarget {
        served,
        definition: Definition::of(&served),
        namespace: target.namespace,
        name: pod,
    };
    pod_subresources::bind(request, &target, pod)
}

/// The target of a request, if its path is valid for the resource.
fn target<'a>(request: &ApiRequest<'a>, served: Served<'a>) -> Result<ApiTarget<'a>, Status> {
    let info: &'a _ = request.info;
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
    Ok(ApiTarget {
        served,
        definition,
        namespace,
        name: match info.verb {
            // In a list, the name is a field selector.
            Verb::List | Verb::DeleteCollection => "",
            _ => &info.name,
        },
    })
}
