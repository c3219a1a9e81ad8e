//! A stand-in for a kube-apiserver with pods: their commands are processes of this machine,
//! their ports those of 127.0.0.1. It speaks plain HTTP, and misbehaves when it is told to.

mod by_spdy;
mod by_websocket;
mod cut;
mod process;
mod request;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use skewbridge_remotecommand::{Options, Protocol, QueryDialect, SpdyProtocol};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::task::Owned;
use crate::upstream::{SilentPort, listen};
use cut::Cut;
use request::Request;

/// What becomes of a request to switch protocols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// 101.
    Yes,
    /// This status and body.
    No(u16, String),
    /// The connection ends without an answer.
    Hangup,
    /// Nothing is said, for as long as the other one waits.
    Silence,
}

/// The stand-in. It ends when it is dropped.
#[derive(Debug)]
pub struct Pods {
    /// Keeps the port from being given to anybody else.
    port: SilentPort,
    state: Arc<Mutex<State>>,
    task: Owned<()>,
}

#[derive(Debug)]
struct State {
    websocket: Grant,
    spdy: Grant,
    /// How many bytes are written behind 101 before the connection is cut.
    cut_after: Option<usize>,
    /// By target, or by path.
    objects: BTreeMap<String, (u16, String)>,
    seen: Vec<String>,
    streams: Vec<Owned<()>>,
}

impl Pods {
    /// One that grants everything.
    pub async fn start() -> Self {
        Self::start_at(SilentPort::new()).await
    }

    /// The same, where another one has been.
    #[expect(
        clippy::unused_async,
        reason = "it needs the runtime that it listens in"
    )]
    pub async fn start_at(port: SilentPort) -> Self {
        let addr = port.addr();
        let listener = listen(addr);
        let state = Arc::new(Mutex::new(State {
            websocket: Grant::Yes,
            spdy: Grant::Yes,
            cut_after: None,
            objects: BTreeMap::new(),
            seen: Vec::new(),
            streams: Vec::new(),
        }));
        let shared = state.clone();
        let task = Owned::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let _ = tcp.set_nodelay(true);
                let serving = Owned::spawn(serve(tcp, shared.clone()));
                let mut state = shared.lock().unwrap();
                state.streams.retain(|stream| !stream.is_finished());
                state.streams.push(serving);
            }
        });
        Self { port, state, task }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// A kubeconfig for it.
    pub fn kubeconfig(&self) -> String {
        format!(
            "current-context: c\n\
             contexts: [{{name: c, context: {{cluster: k, namespace: default}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'http://{}'}}}}]\n",
            self.addr()
        )
    }

    /// What is answered to requests for a WebSocket.
    pub fn websocket(&self, grant: Grant) {
        self.state.lock().unwrap().websocket = grant;
    }

    /// What is answered to requests for SPDY.
    pub fn spdy(&self, grant: Grant) {
        self.state.lock().unwrap().spdy = grant;
    }

    /// Cuts every stream when so many bytes have been written behind its 101.
    pub fn cut_after(&self, bytes: Option<usize>) {
        self.state.lock().unwrap().cut_after = bytes;
    }

    /// Has an object at a path.
    pub fn object(&self, path: &str, json: &str) {
        self.answer(path, 200, json);
    }

    /// Has an answer at a path, or at a path with its query.
    pub fn answer(&self, path: &str, status: u16, json: &str) {
        let mut state = self.state.lock().unwrap();
        let answer = (status, json.to_owned());
        state.objects.insert(path.to_owned(), answer);
    }

    /// Has a running pod with these containers.
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

    /// What was asked for so far: `GET /path websocket`, `POST /path spdy`, `GET /path`.
    pub fn seen(&self) -> Vec<String> {
        self.state.lock().unwrap().seen.clone()
    }

    /// Ends all connections at once, without a word.
    pub fn cut_all(&self) {
        self.state.lock().unwrap().streams.clear();
    }

    /// Ends it. Nobody listens at its port then, and nobody else is given it.
    pub async fn end(self) -> SilentPort {
        self.task.end().await;
        // Of those that it had accepted last, too.
        self.state.lock().unwrap().streams.clear();
        self.port
    }
}

async fn serve(mut tcp: TcpStream, state: Arc<Mutex<State>>) {
    let mut buffer = BytesMut::new();
    while let Some(request) = request::read(&mut tcp, &mut buffer).await {
        let (grant, cut_after) = {
            let mut state = state.lock().unwrap();
            let kind = request
                .upgrade
                .as_deref()
                .unwrap_or_default()
                .to_ascii_lowercase();
            let what = format!("{} {} {}", request.method, request.target, short(&kind));
            state.seen.push(what.trim_end().to_owned());
            let grant = match short(&kind) {
                "" => None,
                "websocket" => Some(state.websocket.clone()),
                _ => Some(state.spdy.clone()),
            };
            (grant, state.cut_after)
        };
        let (status, body) = match grant {
            Some(Grant::Yes) => {
                let io = Cut::new(tcp, cut_after);
                return stream(&request, io, buffer).await;
            }
            Some(Grant::Hangup) => return,
            Some(Grant::Silence) => {
                let _ = tcp.read_buf(&mut buffer).await;
                return;
            }
            Some(Grant::No(status, body)) => (status, body),
            None => answer(&state.lock().unwrap(), &request),
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

fn short(kind: &str) -> &str {
    if kind.starts_with("spdy") {
        "spdy"
    } else {
        kind
    }
}

fn answer(state: &State, request: &Request) -> (u16, String) {
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

async fn stream(request: &Request, mut io: Cut<TcpStream>, input: BytesMut) {
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
    if io.uncounted(head.as_bytes()).await.is_err() {
        return;
    }
    match (&request.key, is_command) {
        (Some(_), true) => by_websocket::command(io, input, options, &request.words()).await,
        (Some(_), false) => by_websocket::port_forward(io, input).await,
        (None, true) => by_spdy::command(io, input, options, &request.words()).await,
        (None, false) => by_spdy::port_forward(io, input).await,
    }
}
