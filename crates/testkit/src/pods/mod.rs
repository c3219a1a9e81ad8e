//! A fake kube-apiserver with pods: their commands are local processes, their ports are
//! ports of 127.0.0.1. It serves plain HTTP, with configurable faults.

mod fault;
mod process;
mod request;
mod spdy;
mod websocket;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use skewbridge_remotecommand::{Options, Protocol, QueryDialect, SpdyProtocol};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::task::OwnedTask;
use crate::upstream::{ReservedPort, listen};
use fault::FaultyIo;
use request::Request;

/// The response to a protocol upgrade request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpgradeResponse {
    /// 101 Switching Protocols.
    Accept,
    /// Another status with this body.
    Reject(u16, String),
    /// The connection is closed without a response.
    Close,
    /// No response is sent while the client waits.
    Hang,
}

/// The fake server. It stops when it is dropped.
#[derive(Debug)]
pub struct Pods {
    /// Reserves the port.
    port: ReservedPort,
    state: Arc<Mutex<State>>,
    task: OwnedTask<()>,
}

#[derive(Debug)]
struct State {
    websocket: UpgradeResponse,
    spdy: UpgradeResponse,
    /// The number of bytes written after the 101 before the connection is cut.
    cut_after: Option<usize>,
    /// Responses by target or by path.
    objects: BTreeMap<String, (u16, String)>,
    requests: Vec<String>,
    streams: Vec<OwnedTask<()>>,
}

impl Pods {
    /// Starts a server that accepts all upgrades.
    pub async fn start() -> Self {
        Self::start_at(ReservedPort::new()).await
    }

    /// The same, on a reserved port.
    #[expect(
        clippy::unused_async,
        reason = "the listener is registered with the runtime of the caller"
    )]
    pub async fn start_at(port: ReservedPort) -> Self {
        let addr = port.addr();
        let listener = listen(addr);
        let state = Arc::new(Mutex::new(State {
            websocket: UpgradeResponse::Accept,
            spdy: UpgradeResponse::Accept,
            cut_after: None,
            objects: BTreeMap::new(),
            requests: Vec::new(),
            streams: Vec::new(),
        }));
        let shared = state.clone();
        let task = OwnedTask::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let _ = tcp.set_nodelay(true);
                let serving = OwnedTask::spawn(serve(tcp, shared.clone()));
                let mut state = shared.lock().unwrap();
                state.streams.retain(|stream| !stream.is_finished());
                state.streams.push(serving);
            }
        });
        Self { port, state, task }
    }

    /// The address it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// A kubeconfig for this server.
    pub fn kubeconfig(&self) -> String {
        format!(
            "current-context: c\n\
             contexts: [{{name: c, context: {{cluster: k, namespace: default}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'http://{}'}}}}]\n",
            self.addr()
        )
    }

    /// Sets the response to WebSocket upgrades.
    pub fn websocket(&self, upgrade: UpgradeResponse) {
        self.state.lock().unwrap().websocket = upgrade;
    }

    /// Sets the response to SPDY upgrades.
    pub fn spdy(&self, upgrade: UpgradeResponse) {
        self.state.lock().unwrap().spdy = upgrade;
    }

    /// Cuts every stream after this many bytes following its 101.
    pub fn cut_after(&self, bytes: Option<usize>) {
        self.state.lock().unwrap().cut_after = bytes;
    }

    /// Adds an object at a path.
    pub fn object(&self, path: &str, json: &str) {
        self.respond(path, 200, json);
    }

    /// Adds a response for a path, or for a path with its query.
    pub fn respond(&self, path: &str, status: u16, json: &str) {
        let mut state = self.state.lock().unwrap();
        let respond = (status, json.to_owned());
        state.objects.insert(path.to_owned(), respond);
    }

    /// Adds a running pod with these containers.
    pub fn pod(&self, namespace: &str, name: &str, containers: &[&str]) {
        let list = |field: &str| {
            let containers = containers.iter();
            let containers = containers.map(|name| format!(r#"{{"name":"{name}"{field}}}"#));
            containers.collect::<Vec<_>>().join(",")
        };
        let (spec, status) = (list(""), list(r#","ready":true,"state":{"running":{}}"#));
        let json = format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"{namespace}"}},
            "spec":{{"containers":[{spec}]}},
            "status":{{"phase":"Running","containerStatuses":[{status}]}}}}"#
        );
        self.object(
            &format!("/api/v1/namespaces/{namespace}/pods/{name}"),
            &json,
        );
    }

    /// The requests so far: `GET /path websocket`, `POST /path spdy`, `GET /path`.
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    /// Closes all connections abruptly.
    pub fn cut_all(&self) {
        self.state.lock().unwrap().streams.clear();
    }

    /// Stops the server. Its port stays reserved, and refuses connections.
    pub async fn end(self) -> ReservedPort {
        self.task.end().await;
        // Including those that were accepted last.
        self.state.lock().unwrap().streams.clear();
        self.port
    }
}

async fn serve(mut tcp: TcpStream, state: Arc<Mutex<State>>) {
    let mut buffer = BytesMut::new();
    while let Some(request) = request::read(&mut tcp, &mut buffer).await {
        let (upgrade, cut_after) = {
            let mut state = state.lock().unwrap();
            let kind = request
                .upgrade
                .as_deref()
                .unwrap_or_default()
                .to_ascii_lowercase();
            let what = format!(
                "{} {} {}",
                request.method,
                request.target,
                protocol_name(&kind)
            );
            state.requests.push(what.trim_end().to_owned());
            let upgrade = match protocol_name(&kind) {
                "" => None,
                "websocket" => Some(state.websocket.clone()),
                _ => Some(state.spdy.clone()),
            };
            (upgrade, state.cut_after)
        };
        let (status, body) = match upgrade {
            Some(UpgradeResponse::Accept) => {
                let io = FaultyIo::new(tcp, cut_after);
                return stream(&request, io, buffer).await;
            }
            Some(UpgradeResponse::Close) => return,
            Some(UpgradeResponse::Hang) => {
                let _ = tcp.read_buf(&mut buffer).await;
                return;
            }
            Some(UpgradeResponse::Reject(status, body)) => (status, body),
            None => respond(&state.lock().unwrap(), &request),
        };
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let written = tcp.write_all(format!("{head}{body}").as_bytes()).await;
        if written.is_err() {
            return;
        }
    }
}

fn protocol_name(kind: &str) -> &str {
    if kind.starts_with("spdy") {
        "spdy"
    } else {
        kind
    }
}

fn respond(state: &State, request: &Request) -> (u16, String) {
    let path = request.target.split('?').next().unwrap_or_default();
    let found = state
        .objects
        .get(&request.target)
        .or_else(|| state.objects.get(path));
    found.cloned().unwrap_or_else(|| {
        let mut parts = path.rsplit('/');
        let (name, kind) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let message = format!(r#"{kind} \"{name}\" not found"#);
        let body = format!(
            r#"{{"kind":"Status","apiVersion":"v1","status":"Failure","message":"{message}","reason":"NotFound","details":{{"name":"{name}","kind":"{kind}"}},"code":404}}"#
        );
        (404, body)
    })
}

async fn stream(request: &Request, mut io: FaultyIo<TcpStream>, input: BytesMut) {
    let (path, query) = request
        .target
        .split_once('?')
        .unwrap_or((&request.target, ""));
    let options = Options::from_query(QueryDialect::Api, Some(query));
    let is_command = !path.ends_with("/portforward");
    let head = if let Some(key) = &request.key {
        let protocol = if is_command {
            Protocol::V5.name()
        } else {
            "SPDY/3.1+portforward.k8s.io"
        };
        let accept = key.accept();
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n",
            accept.to_str().unwrap()
        )
    } else {
        let protocol = if is_command {
            SpdyProtocol::V4.name()
        } else {
            "portforward.k8s.io"
        };
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n\
                 X-Stream-Protocol-Version: {protocol}\r\n\r\n"
        )
    };
    if io.write_uncounted(head.as_bytes()).await.is_err() {
        return;
    }
    match (&request.key, is_command) {
        (Some(_), true) => websocket::command(io, input, options, &request.command()).await,
        (Some(_), false) => websocket::port_forward(io, input).await,
        (None, true) => spdy::command(io, input, options, &request.command()).await,
        (None, false) => spdy::port_forward(io, input).await,
    }
}
