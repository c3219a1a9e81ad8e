//! Keeps fields that not all servers have (`--guard-fields`).
//!
//! A write goes to a server that has every field of the kind. That is not enough in two cases:
//!
//! - An update replaces the object, and a patch may replace objects and lists in it (`patch`). Its base
//!   may have been read from a server that lacks fields, or its client may not support them, so that they
//!   are missing. The bridge compares the write with the stored object and adds them again
//!   (`completed_body`, `completed_patch`).
//! - No available server has every field. The write is then sent to another one, unless its body
//!   (`body_fields`, `protobuf_fields`) or the `managedFields` of the object name such a field.

mod body_fields;
mod completed_body;
mod completed_patch;
mod completion;
mod dry_run;
mod patch;
mod precondition;
mod protobuf_fields;

use std::future::poll_fn;

use bytes::{Bytes, BytesMut};
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING,
};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use skewbridge_field_sets::{FieldPath, Mention, Step, has_any, mentions};
use skewbridge_http_engine::body::{Frame, RequestBody, ResponseBody};
use skewbridge_http_engine::buffer_budget::{ClientLimits, Reservation};
use skewbridge_k8s_api::request_info::{RequestInfo, Verb};
use skewbridge_k8s_api::status::Status;
use tokio::time::timeout;

use self::body_fields::BodyFields;
use self::completion::Completion;
use self::dry_run::{dry_run, send_dry_run};
use self::patch::PatchKind;
use super::error::ProxyError;
use super::outbound::{Destination, OutboundRequest, replay_body};
use super::request_context::RequestContext;
use crate::access_log::AccessLogEntry;
use crate::field_guard::FieldGuard;
use crate::placement_rule::{Rule, RuleSet};
use crate::upstream::{ReplayBody, UpstreamResponse};

/// The maximum size of the body of an update: the limit of kube-apiserver.
const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;

/// The maximum size of an object as JSON. etcd stores at most 1.5 MiB, which is smaller in protobuf.
const MAX_OBJECT_BYTES: usize = 4 * 1024 * 1024;

/// Paths that a Status or a log line names.
const MAX_NAMED_PATHS: usize = 5;

/// A check of a request before it is sent.
#[derive(Debug)]
pub(super) struct UpdateGuard {
    check: Check,
    /// The fields that not all servers have; for an incomplete server, the fields that it lacks.
    fields: Vec<FieldPath>,
    /// A server that has the fields exists, and is not available.
    is_known_elsewhere: bool,
    /// The request is from a component of Kubernetes that is not newer than its server: it does not know
    /// the fields either.
    is_from_old_component: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    /// The update has all of these fields that the stored object has.
    Update,
    /// What the patch replaces has them.
    Patch(PatchKind),
    /// The server lacks some of these fields: neither the object nor the request has one.
    Incomplete,
    /// As [`Check::Incomplete`], for a request that creates an object.
    IncompleteCreate,
    /// The server lacks some of these fields, and the objects are not known.
    Unknown,
}

/// The result of a check.
pub(super) enum Checked {
    /// The request may be sent as it is.
    Passed,
    /// The request may be sent by [`UpdateGuard::send`], with a body to which fields were added.
    Completed(Box<Completion>),
    /// The client gets this response.
    Respond(Response<ResponseBody>),
}

impl UpdateGuard {
    /// The check of a request, if it needs one. `unmet` are the rules that its server does not
    /// satisfy.
    pub(super) fn of(
        context: &RequestContext<'_>,
        (destination, unmet): (&Destination, RuleSet),
        head: &Parts,
    ) -> Option<Self> {
        if context.placement.fields == FieldGuard::Off || context.rerouted {
            return None;
        }
        let info = &context.info;
        let check = check(info, &head.headers, unmet.contains(Rule::Fields))?;
        if head.uri.query().is_some_and(has_dry_run) {
            return None;
        }
        let cluster = context.bridge.cluster_handle.as_ref()?.cluster.load();
        let difference = cluster.fields.difference(info.group, info.resource)?;
        // Custom resources and aggregated APIs are the same on every server.
        if difference.fields.is_empty() || cluster.is_shared(info, std::time::Instant::now()) {
            return None;
        }
        let mut fields = difference.fields.clone();
        if !matches!(check, Check::Update | Check::Patch(_)) {
            fields = difference.lacked_by(destination.servers());
        }
        Some(Self {
            check,
            fields,
            is_known_elsewhere: !difference.complete.is_empty(),
            is_from_old_component: context.placement.component.is_some()
                && !unmet.contains(Rule::Version),
        })
    }

    /// Checks a request, as its caller and at its destination. Afterwards `body` is the whole original body.
    pub(super) async fn check(
        &self,
        outbound: &OutboundRequest<'_>,
        head: &Parts,
        body: &mut ReplayBody,
        record: &mut AccessLogEntry,
    ) -> Result<Checked, ProxyError> {
        let limit = outbound.bridge().limits.request_timeout;
        let checked = timeout(limit, self.try_check(outbound, head, body, record)).await;
        checked.unwrap_or_else(|_| Err(ProxyError::timeout(limit)))
    }

    async fn try_check(
        &self,
        outbound: &OutboundRequest<'_>,
        head: &Parts,
        body: &mut ReplayBody,
        record: &mut AccessLogEntry,
    ) -> Result<Checked, ProxyError> {
        let info = &outbound.context.info;
        if self.check == Check::Unknown {
            return Err(ProxyError::rejected(incomplete_status(info, &self.fields)));
        }
        // The body is read first, so that no stored object is in memory while the client sends it.
        let limits = outbound.context.limits;
        let mut body_reservation = limits.reservation();
        let bytes = buffer(body, &mut body_reservation).await?;
        *body = replay_body(outbound.context, full(bytes.clone()), body.retry_class())
            .counted_by(body_reservation);
        // Until the end of the check.
        let mut reservation = limits.reservation();
        if self.is_incomplete() {
            let accounts = (&mut *record, &mut reservation);
            self.check_body(outbound, head, &bytes, accounts).await?;
        }
        if self.check == Check::IncompleteCreate {
            return Ok(Checked::Passed);
        }
        let write = Write {
            limits,
            info,
            head,
            body: &bytes,
        };
        // The fields that the write can erase without naming them.
        let erasable = match self.check {
            Check::Patch(kind) => kind.erasable(&bytes, &self.fields),
            _ => self.fields.clone(),
        };
        if erasable.is_empty() {
            return Ok(Checked::Passed);
        }
        let stored = self.read_object(outbound, head, (record, &mut reservation));
        let stored = match stored.await? {
            Stored::Object(stored) => stored,
            Stored::WithoutFields(stored) => return self.add_precondition(&stored, &write),
            // The update creates the object, or the server answers 404.
            Stored::Missing => return Ok(Checked::Passed),
            Stored::Denied(response) => return Ok(Checked::Respond(response)),
        };
        match self.check {
            Check::Incomplete if self.is_managed(&stored)? => {
                Err(ProxyError::rejected(incomplete_status(info, &self.fields)))
            }
            // A client of another bridge may set such a field before the write.
            Check::Incomplete => self.add_precondition(&stored, &write),
            Check::IncompleteCreate | Check::Unknown => Ok(Checked::Passed),
            _ if bytes.is_empty() || !has_any(&object_of(&stored)?, &erasable) => {
                self.add_precondition(&stored, &write)
            }
            Check::Patch(kind) => {
                let accounts = (record, &mut reservation);
                self.complete_patch(kind, (&stored, &erasable), outbound, &write, accounts)
                    .await
            }
            Check::Update => {
                let accounts = (record, &mut reservation);
                self.complete_update(&stored, outbound, &write, accounts)
                    .await
            }
        }
    }

    fn is_incomplete(&self) -> bool {
        matches!(self.check, Check::Incomplete | Check::IncompleteCreate)
    }

    /// Rejects a request with a field that its server would drop, while a server of the cluster has it.
    /// After the last such server has gone, a request is treated as without a bridge.
    async fn check_body(
        &self,
        outbound: &OutboundRequest<'_>,
        head: &Parts,
        body: &Bytes,
        accounts: (&mut AccessLogEntry, &mut Reservation),
    ) -> Result<(), ProxyError> {
        let info = &outbound.context.info;
        if !self.is_known_elsewhere || !has_object_in_body(info) {
            return Ok(());
        }
        let is_dropped = match BodyFields::of(&head.headers, body, &self.fields) {
            BodyFields::Absent => false,
            BodyFields::Present => true,
            // The fields have numbers, or cannot be read.
            BodyFields::Unreadable => {
                !self.is_from_old_component && is_dropped(outbound, head, body, accounts).await?
            }
        };
        if is_dropped {
            return Err(ProxyError::rejected(dropped_status(info, &self.fields)));
        }
        Ok(())
    }

    /// Whether the managers of an object may have set one of the fields.
    fn is_managed(&self, stored: &[u8]) -> Result<bool, ProxyError> {
        let managed = &object_of(stored)?["metadata"]["managedFields"];
        Ok(mentions(managed, &self.fields) != Mention::Absent)
    }

    /// Reads the stored object at the destination: as the caller, or as the bridge if the caller may
    /// write the object and not read it.
    async fn read_object(
        &self,
        outbound: &OutboundRequest<'_>,
        head: &Parts,
        (record, reservation): (&mut AccessLogEntry, &mut Reservation),
    ) -> Result<Stored, ProxyError> {
        let mut request = head.clone();
        request.method = Method::GET;
        request.uri = with_target(&head.uri, &object_path(&outbound.context.info))?;
        for name in [
            CONTENT_LENGTH,
            CONTENT_TYPE,
            CONTENT_ENCODING,
            TRANSFER_ENCODING,
            ACCEPT_ENCODING,
        ] {
            request.headers.remove(name);
        }
        let json = HeaderValue::from_static("application/json");
        request.headers.insert(ACCEPT, json);
        let sent = outbound.send_subrequest(request.clone(), RequestBody::Empty, record);
        let mut response = response_of(sent.await.map_err(ProxyError::before_write)?)?;
        if response.status() == StatusCode::FORBIDDEN {
            let sent = outbound.send_as_bridge(request, record);
            response = response_of(sent.await.map_err(ProxyError::before_write)?)?;
        }
        match response.status() {
            StatusCode::NOT_FOUND => return Ok(Stored::Missing),
            status if !status.is_success() => return Ok(Stored::Denied(response)),
            _ => {}
        }
        let body = read(response, reservation).await?;
        // Few objects have such a field, and a search costs less than to parse the object.
        let may_have_fields = self.check == Check::Incomplete
            || self.fields.iter().any(|field| names_field(&body, field));
        if !may_have_fields {
            return Ok(Stored::WithoutFields(body));
        }
        Ok(Stored::Object(body))
    }
}

/// Whether a server drops a field of an object in protobuf, by the result of a dry run. A request that fails
/// is left to the server.
async fn is_dropped(
    outbound: &OutboundRequest<'_>,
    head: &Parts,
    body: &Bytes,
    (record, reservation): (&mut AccessLogEntry, &mut Reservation),
) -> Result<bool, ProxyError> {
    let info = &outbound.context.info;
    if protobuf_fields::has_dropped(body, body, info.subresource).is_none() {
        return Ok(false);
    }
    let (mut head, body) = dry_run(head, body)?;
    let protobuf = HeaderValue::from_static("application/vnd.kubernetes.protobuf");
    head.headers.insert(ACCEPT, protobuf);
    let response = send_dry_run((head, body.clone()), outbound, record).await?;
    if !response.status().is_success() {
        return Ok(false);
    }
    let result = read(response, reservation).await?;
    let has_dropped = protobuf_fields::has_dropped(&body, &result, info.subresource);
    Ok(has_dropped.unwrap_or(false))
}

/// A write that is checked.
struct Write<'a> {
    limits: &'a ClientLimits,
    info: &'a RequestInfo<'a>,
    head: &'a Parts,
    body: &'a Bytes,
}

/// The object that a request changes.
enum Stored {
    /// As JSON.
    Object(Bytes),
    /// It does not exist.
    Missing,
    /// As JSON, which has none of the fields.
    WithoutFields(Bytes),
    /// It cannot be read.
    Denied(Response<ResponseBody>),
}

/// Which check a request needs, by its verb. `is_incomplete` if its server lacks fields.
fn check(info: &RequestInfo<'_>, headers: &HeaderMap, is_incomplete: bool) -> Option<Check> {
    if !FieldGuard::Writes.covers(info) {
        return None;
    }
    match info.verb {
        Verb::Get => None,
        // A new object has no stored fields to lose.
        Verb::Create if info.name.is_empty() && info.resource != "bindings" => {
            is_incomplete.then_some(Check::IncompleteCreate)
        }
        _ if is_incomplete && info.name.is_empty() => Some(Check::Unknown),
        _ if is_incomplete && info.resource == "bindings" => Some(Check::Unknown),
        _ if is_incomplete => Some(Check::Incomplete),
        Verb::Update if stores_body(info.subresource) => Some(Check::Update),
        Verb::Patch if stores_body(info.subresource) => PatchKind::of(headers).map(Check::Patch),
        _ => None,
    }
}

/// Whether a query requests a dry run. Nothing is stored then.
fn has_dry_run(query: &str) -> bool {
    query.split('&').any(|it| it == "dryRun=All")
}

fn with_target(uri: &Uri, target: &str) -> Result<Uri, ProxyError> {
    let mut parts = uri.clone().into_parts();
    let too_long = || ProxyError::rejected(Status::uri_too_long("the request target is too long"));
    parts.path_and_query = Some(PathAndQuery::try_from(target).map_err(|_| too_long())?);
    Uri::from_parts(parts).map_err(|_| too_long())
}

/// The path of the object that a request changes, without its subresource.
fn object_path(info: &RequestInfo<'_>) -> String {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let mut path = match info.group {
        "" => "/api".to_owned(),
        group => format!("/apis/{}", encoded(group)),
    };
    let namespace = match (info.namespace, info.resource) {
        // The request is for the namespace itself.
        ("", _) | (_, "namespaces") => None,
        (namespace, _) => Some(["namespaces", namespace]),
    };
    let object = [info.resource, &info.name];
    let parts = std::iter::once(info.version)
        .chain(namespace.into_iter().flatten())
        .chain(object);
    for part in parts {
        path.push('/');
        path.push_str(&encoded(part));
    }
    path
}

/// Whether JSON contains the name of a field.
fn names_field(json: &[u8], field: &FieldPath) -> bool {
    let mut names = field.steps().iter().rev().filter_map(|step| match step {
        Step::Field(name) => Some(name),
        Step::Item | Step::Value => None,
    });
    let Some(name) = names.next() else {
        return true;
    };
    let text = std::str::from_utf8(json).unwrap_or_default();
    text.contains(&format!("\"{name}\""))
}

/// Whether the body of a request is the object itself, or a patch of it.
fn has_object_in_body(info: &RequestInfo<'_>) -> bool {
    let is_write = matches!(info.verb, Verb::Create | Verb::Update | Verb::Patch);
    is_write && info.resource != "bindings" && stores_body(info.subresource)
}

/// Whether the body of a write to a subresource is the object. These have a kind of their own; others, also
/// of later versions, count as the object.
fn stores_body(subresource: &str) -> bool {
    !matches!(subresource, "binding" | "eviction" | "scale")
}

fn unusable(why: impl Into<String>) -> ProxyError {
    ProxyError::unusable(Status::bad_gateway(why))
}

fn response_of(response: UpstreamResponse) -> Result<Response<ResponseBody>, ProxyError> {
    match response {
        UpstreamResponse::Response(response) => Ok(response),
        UpstreamResponse::Upgraded(..) => Err(unusable(
            "upstream upgraded a request that is not an upgrade",
        )),
    }
}

/// The body of a response, counted against the budget of the client.
async fn read(
    response: Response<ResponseBody>,
    reservation: &mut Reservation,
) -> Result<Bytes, ProxyError> {
    let mut body = response.into_body();
    let mut bytes = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| body.poll_frame(cx)).await {
        let frame = frame.map_err(|error| unusable(error.to_string()))?;
        let Frame::Data(data) = frame else { continue };
        if bytes.len() + data.len() > MAX_OBJECT_BYTES {
            let message = format!("upstream sent more than {MAX_OBJECT_BYTES} bytes");
            return Err(unusable(message));
        }
        charge(reservation, data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

fn object_of(body: &[u8]) -> Result<Value, ProxyError> {
    serde_json::from_slice(body).map_err(|error| invalid_object(&error))
}

fn invalid_object(error: &serde_json::Error) -> ProxyError {
    unusable(format!("upstream sent no valid object: {error}"))
}

/// The whole body of an update, counted against the budget of the client.
async fn buffer(body: &mut ReplayBody, reservation: &mut Reservation) -> Result<Bytes, ProxyError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| body.poll_frame(cx)).await {
        let frame =
            frame.map_err(|error| ProxyError::rejected(Status::bad_request(error.to_string())))?;
        let Frame::Data(data) = frame else { continue };
        if bytes.len() + data.len() > MAX_BODY_BYTES {
            let message = format!("the request body is larger than {MAX_BODY_BYTES} bytes");
            let status = Status::new(413, "RequestEntityTooLarge", message);
            return Err(ProxyError::rejected(status));
        }
        charge(reservation, data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// Counts bytes against the budget of the client.
fn charge(reservation: &mut Reservation, bytes: usize) -> Result<(), ProxyError> {
    if reservation.try_add(bytes) {
        return Ok(());
    }
    let message = "the bridge holds too many request bodies; retry";
    Err(ProxyError::rejected(Status::service_unavailable(
        message, 1,
    )))
}

fn full(body: Bytes) -> RequestBody {
    if body.is_empty() {
        RequestBody::Empty
    } else {
        RequestBody::Full(body)
    }
}

fn incomplete_status(info: &RequestInfo<'_>, fields: &[FieldPath]) -> Status {
    let message = format!(
        "{} {:?} may have fields that only a kube-apiserver that is not available has (some of {}); \
         another kube-apiserver would erase them",
        info.resource,
        info.name,
        named(fields.iter()),
    );
    Status::service_unavailable(message, 1)
}

/// The response to a patch that erases fields and cannot be completed.
fn erasing_status(info: &RequestInfo<'_>, erased: &[String]) -> Status {
    let message = format!(
        "the patch of {} {:?} erases fields that not every kube-apiserver has ({}), and does not name them: \
         patch the fields that are to change, or remove these first",
        info.resource,
        info.name,
        named(erased.iter()),
    );
    Status::new(422, "Invalid", message)
}

/// The response to a write of fields that its server would drop.
fn dropped_status(info: &RequestInfo<'_>, fields: &[FieldPath]) -> Status {
    let message = format!(
        "this request has fields of {} that only a kube-apiserver that is not available has (some of {}); another \
         kube-apiserver would drop them",
        info.resource,
        named(fields.iter()),
    );
    Status::service_unavailable(message, 1)
}

fn named<T: ToString>(paths: impl ExactSizeIterator<Item = T>) -> String {
    let more = paths.len().saturating_sub(MAX_NAMED_PATHS);
    let mut names: Vec<_> = paths
        .take(MAX_NAMED_PATHS)
        .map(|it| it.to_string())
        .collect();
    if more > 0 {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests;
