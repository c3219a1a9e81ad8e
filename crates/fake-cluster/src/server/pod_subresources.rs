//! Subresources of pods: binding, eviction, and streams, which the node serves.

use http::header::UPGRADE;
use http::{HeaderValue, StatusCode};
use serde_json::json;
use skewbridge_http_engine::body::{ChunkProducer, ResponseBody};
use skewbridge_http_engine::server::{ClientResponse, UpgradeHandler};
use skewbridge_k8s_api::status::Status;
use skewbridge_remotecommand::port_forward::tunnel::tunnelled_protocols;
use skewbridge_websocket::subprotocols;
use tokio::sync::mpsc;

use super::api_request::{ApiRequest, ApiTarget};
use super::authenticate::remove_credentials;
use super::delete::{Options, end};
use super::pod_streams::{Protocols, StreamKind, StreamRequest, StreamResponse, UpgradedStream};
use super::responses::{self, ApiResponse};
use super::write::change;
use crate::catalogue::Release;
use crate::object::Object;
use crate::rbac::Attributes;
use crate::resource_strategy::Part;
use crate::status::{conflict, quoted};

/// `pods/{exec,attach,portforward,log}`
pub(super) async fn stream(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
    kind: StreamKind,
) -> Result<ClientResponse, Status> {
    let release = request.server.release;
    let protocols = Protocols::of(release);
    let headers = &request.head.headers;
    let is_websocket = headers
        .get(UPGRADE)
        .is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if kind != StreamKind::Log {
        if headers.get(UPGRADE).is_none() {
            return Err(Status::bad_request("Upgrade request required"));
        }
        // From 1.35 on, streams need the verb create also by GET.
        if release >= Release::V1_36 && request.head.method == http::Method::GET {
            let attributes = Attributes::Resource {
                verb: "create",
                group: "",
                resource: "pods",
                subresource: request.info.subresource,
                namespace: target.namespace,
                name: target.name,
            };
            request.server.authorize(request.user, attributes)?;
        }
    }
    let pod = request
        .server
        .store
        .read(|store| store.get(&target.definition, target.namespace, target.name))?;
    let is_refused = kind != StreamKind::PortForward || is_tunnel(headers);
    if is_websocket && protocols == Protocols::Spdy && is_refused {
        return Ok(ClientResponse::new(not_by_websocket()));
    }
    if pod.text(&["spec", "nodeName"]).is_empty() {
        if kind == StreamKind::Log {
            // There is no log yet.
            let mut nothing = responses::text(StatusCode::NO_CONTENT, "");
            nothing.headers_mut().remove(http::header::CONTENT_TYPE);
            nothing.headers_mut().remove(http::header::CONTENT_LENGTH);
            return Ok(ClientResponse::new(nothing));
        }
        let message = format!("pod {} does not have a host assigned", target.name);
        return Err(Status::bad_request(message));
    }
    let mut headers = headers.clone();
    remove_credentials(&mut headers);
    let stream_request = StreamRequest {
        kind,
        method: request.head.method.clone(),
        query: request.head.uri.query().unwrap_or_default().to_owned(),
        headers,
        name: target.name.to_owned(),
        pod,
    };
    match request.server.streams.answer(stream_request).await {
        StreamResponse::Chunked(head, pieces) => Ok(ClientResponse::new(
            head.map(|()| ResponseBody::generated(Channel(pieces))),
        )),
        StreamResponse::Refused(status) => Err(status),
        StreamResponse::Switch(..) if request.head.version == http::Version::HTTP_2 => {
            Err(Status::bad_request("Upgrade request required"))
        }
        StreamResponse::Switch(head, handler) => Ok(ClientResponse::switching(
            head,
            UpgradeHandler::new(|io, input, ()| {
                handler.run(UpgradedStream {
                    io: Box::new(io),
                    input,
                })
            }),
        )),
    }
}

/// Whether a port-forward is SPDY inside of a WebSocket (KEP-4006), and not the older channels,
/// which every release supports.
fn is_tunnel(headers: &http::HeaderMap) -> bool {
    tunnelled_protocols(subprotocols(headers)).next().is_some()
}

/// A kubelet of 1.28 rejects an unknown subprotocol: the handshake fails, and the client falls
/// back to SPDY.
fn not_by_websocket() -> ApiResponse {
    // Offered protocols are not repeated, because one may contain a token.
    tracing::debug!("a server that supports only SPDY refuses WebSockets");
    let mut reply = responses::text(StatusCode::FORBIDDEN, "");
    reply
        .headers_mut()
        .insert(http::header::CONNECTION, HeaderValue::from_static("close"));
    reply
}

/// Chunks of a channel.
#[derive(Debug)]
struct Channel(mpsc::Receiver<bytes::Bytes>);

impl ChunkProducer for Channel {
    fn poll_chunk(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<bytes::Bytes>> {
        self.0.poll_recv(cx)
    }
}

/// `pods/binding`: as a scheduler writes it.
pub(super) fn bind(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
    pod: &str,
) -> Result<ApiResponse, Status> {
    let dry_run = request.query.dry_run("CreateOptions")?;
    let binding = Object::new(request.value()?)?;
    let node = binding.text(&["target", "name"]);
    if node.is_empty() {
        return Err(Status::bad_request("target.name: Required value"));
    }
    let target = ApiTarget {
        definition: target.definition.clone(),
        name: pod,
        ..*target
    };
    let api_version = target.served.api_version();
    let writer = request.writer(&api_version);
    request.server.store.write(dry_run, |store, context| {
        let before = store.get(&target.definition, target.namespace, pod)?;
        let bound = before.text(&["spec", "nodeName"]);
        if !bound.is_empty() {
            let why = format!("pod {pod} is already assigned to node {}", quoted(bound));
            return Err(conflict(target.resource(), pod, why));
        }
        let mut next = Object::clone(&before);
        next.set(&["spec", "nodeName"], node);
        change(store, &target, next, Part::Main, &writer, context)
    })?;
    Ok(responses::json(
        StatusCode::CREATED,
        &success(StatusCode::CREATED),
    ))
}

/// `pods/eviction`: a deletion that disruption budgets could forbid; the playground has none.
pub(super) fn evict(
    request: &ApiRequest<'_>,
    target: &ApiTarget<'_>,
) -> Result<ApiResponse, Status> {
    let options = Options::read(&request.value()?["deleteOptions"], request)?;
    request
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
    Ok(responses::json(
        StatusCode::CREATED,
        &success(StatusCode::CREATED),
    ))
}

fn success(code: StatusCode) -> serde_json::Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "code": code.as_u16(),
    })
}
