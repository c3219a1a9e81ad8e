//! What pods have besides an object: a node to be bound to, an end before their time, and
//! streams, which somebody else answers.

use http::header::UPGRADE;
use http::{HeaderValue, StatusCode};
use serde_json::json;
use skewbridge_gateway::body::{Pieces, ResponseBody};
use skewbridge_gateway::serve::{self, Answer};
use skewbridge_k8s_api::status::Status;
use skewbridge_remotecommand::port_forward::tunnel::tunnelled_protocols;
use skewbridge_websocket::subprotocols;
use tokio::sync::mpsc;

use super::answers::{self, Reply};
use super::ask::{Ask, Subject};
use super::authenticate::remove_credentials;
use super::delete::{Options, end};
use super::pod_streams::{Protocols, StreamAnswer, StreamKind, StreamRequest, Switched};
use super::write::change;
use crate::catalogue::Release;
use crate::object::Object;
use crate::rbac::Deed;
use crate::status::{conflict, quoted};
use crate::strategy::Part;

/// `pods/{exec,attach,portforward,log}`
pub(super) async fn stream(
    ask: &Ask<'_>,
    subject: &Subject<'_>,
    kind: StreamKind,
) -> Result<Answer, Status> {
    let release = ask.server.release;
    let protocols = Protocols::of(release);
    let headers = &ask.head.headers;
    let is_websocket = headers
        .get(UPGRADE)
        .is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if kind != StreamKind::Log {
        if headers.get(UPGRADE).is_none() {
            return Err(Status::bad_request("Upgrade request required"));
        }
        // From 1.35 on who may only look may not enter by the method that looks.
        if release >= Release::V1_36 && ask.head.method == http::Method::GET {
            let deed = Deed::Resource {
                verb: "create",
                group: "",
                resource: "pods",
                subresource: ask.info.subresource,
                namespace: subject.namespace,
                name: subject.name,
            };
            ask.server.authorize(ask.user, deed)?;
        }
    }
    let pod = ask
        .server
        .store
        .read(|store| store.get(&subject.definition, subject.namespace, subject.name))?;
    let is_refused = kind != StreamKind::PortForward || is_tunnel(headers);
    if is_websocket && protocols == Protocols::Spdy && is_refused {
        return Ok(Answer::new(not_by_websocket()));
    }
    if pod.text(&["spec", "nodeName"]).is_empty() {
        if kind == StreamKind::Log {
            // There is nothing to be told yet.
            let mut nothing = answers::text(StatusCode::NO_CONTENT, "");
            nothing.headers_mut().remove(http::header::CONTENT_TYPE);
            nothing.headers_mut().remove(http::header::CONTENT_LENGTH);
            return Ok(Answer::new(nothing));
        }
        let message = format!("pod {} does not have a host assigned", subject.name);
        return Err(Status::bad_request(message));
    }
    let mut headers = headers.clone();
    remove_credentials(&mut headers);
    let request = StreamRequest {
        kind,
        method: ask.head.method.clone(),
        path: ask.head.uri.path().to_owned(),
        query: ask.head.uri.query().unwrap_or_default().to_owned(),
        headers,
        namespace: subject.namespace.to_owned(),
        name: subject.name.to_owned(),
        pod,
        user: ask.user.clone(),
        release,
        protocols,
    };
    match ask.server.streams.answer(request).await {
        StreamAnswer::Whole(response) => Ok(Answer::new(response.map(ResponseBody::full))),
        StreamAnswer::Pieces(head, pieces) => Ok(Answer::new(
            head.map(|()| ResponseBody::made(Channel(pieces))),
        )),
        StreamAnswer::Refused(status) => Err(status),
        StreamAnswer::Switch(..) if ask.head.version == http::Version::HTTP_2 => {
            Err(Status::bad_request("Upgrade request required"))
        }
        StreamAnswer::Switch(head, takeover) => Ok(Answer::switching(
            head,
            serve::Takeover::new(|io, input| {
                takeover.run(Switched {
                    io: Box::new(io),
                    input,
                })
            }),
        )),
    }
}

/// Whether a port-forward is SPDY inside of a WebSocket (KEP-4006), and not the older channels,
/// which every release takes.
fn is_tunnel(headers: &http::HeaderMap) -> bool {
    tunnelled_protocols(subprotocols(headers)).next().is_some()
}

/// What a kubelet of 1.28 answers to a subprotocol that it does not know: the handshake
/// fails, and the client takes the other way.
fn not_by_websocket() -> Reply {
    // Not what was offered: a token may be among it.
    tracing::debug!("a WebSocket is refused by a server that speaks SPDY alone");
    let mut reply = answers::text(StatusCode::FORBIDDEN, "");
    reply
        .headers_mut()
        .insert(http::header::CONNECTION, HeaderValue::from_static("close"));
    reply
}

/// Pieces that somebody sends.
#[derive(Debug)]
struct Channel(mpsc::Receiver<bytes::Bytes>);

impl Pieces for Channel {
    fn poll_piece(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<bytes::Bytes>> {
        self.0.poll_recv(cx)
    }
}

/// `pods/binding`: what a scheduler says.
pub(super) fn bind(ask: &Ask<'_>, subject: &Subject<'_>, pod: &str) -> Result<Reply, Status> {
    let effect = ask.query.effect("CreateOptions")?;
    let binding = Object::new(ask.value()?)?;
    let node = binding.text(&["target", "name"]);
    if node.is_empty() {
        return Err(Status::bad_request("target.name: Required value"));
    }
    let subject = Subject {
        definition: subject.definition.clone(),
        name: pod,
        ..*subject
    };
    let api_version = subject.served.api_version();
    let writer = ask.writer(&api_version);
    ask.server.store.write(effect, |store, occasion| {
        let before = store.get(&subject.definition, subject.namespace, pod)?;
        let bound = before.text(&["spec", "nodeName"]);
        if !bound.is_empty() {
            let why = format!("pod {pod} is already assigned to node {}", quoted(bound));
            return Err(conflict(subject.resource(), pod, why));
        }
        let mut next = Object::clone(&before);
        next.set(&["spec", "nodeName"], node);
        change(store, &subject, next, Part::Main, &writer, occasion)
    })?;
    Ok(answers::json(
        StatusCode::CREATED,
        &success(StatusCode::CREATED),
    ))
}

/// `pods/eviction`: a deletion that budgets could forbid; here are none.
pub(super) fn evict(ask: &Ask<'_>, subject: &Subject<'_>) -> Result<Reply, Status> {
    let options = Options::read(&ask.value()?["deleteOptions"], ask)?;
    ask.server.store.write(options.effect, |store, occasion| {
        end(
            store,
            subject,
            subject.namespace,
            subject.name,
            &options,
            occasion,
        )
    })?;
    Ok(answers::json(
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
