//! A node over a store, and clients of its streams.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};
use skewbridge_fake_cluster::node::{Node, NodeConfig, Program};
use skewbridge_fake_cluster::object::Object;
use skewbridge_fake_cluster::server::SharedStore;
use skewbridge_fake_cluster::server::pod_streams::{
    PodStreams as _, StreamKind, StreamRequest, StreamResponse, UpgradedStream,
};
use skewbridge_fake_cluster::server::shared_store::StoreWatch;
use skewbridge_fake_cluster::status::GroupResource;
use skewbridge_fake_cluster::store::{DryRun, Preconditions};
use skewbridge_fake_cluster::watch::Change;
use skewbridge_k8s_api::status::Status;
use skewbridge_remotecommand::{
    Channel, ChannelEvent, ErrorChannel, ErrorChannelEnd, FromServer, Input, Options, Outcome,
    Output, Protocol, QueryDialect, STREAM_TYPE, SpdyProtocol, ToServer,
};
use skewbridge_spdy::connection::{self, Receiver, Sender};
use skewbridge_spdy::{Config, Headers};
use skewbridge_testkit::ScratchDir;
use skewbridge_websocket::{
    Control, ControlPayload, Decoder, Event, Key, Limits, Role, set_request_headers,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

/// Long enough for a loaded machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct NodeFixture {
    pub(crate) store: SharedStore,
    pub(crate) node: Node,
    pub(crate) scratch: ScratchDir,
}

pub(crate) fn pods() -> GroupResource {
    GroupResource::new("", "pods")
}

impl NodeFixture {
    pub(crate) fn new() -> Self {
        let (store, scratch) = (SharedStore::new().unwrap(), ScratchDir::new());
        let node = Node::start(NodeConfig {
            store: store.clone(),
            directory: scratch.path().join("pods"),
            program: Program {
                file: env!("CARGO_BIN_EXE_skewbridge-fake-cluster-process").into(),
                arguments: Vec::new(),
            },
        });
        Self {
            store,
            node: node.unwrap(),
            scratch,
        }
    }

    pub(crate) fn create(&self, name: &str, spec: &Value) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec,
        });
        let pod = Object::new(pod).unwrap();
        self.store.create(&pods(), "default", pod).unwrap();
    }

    pub(crate) fn pod(&self, name: &str) -> Arc<Object> {
        self.store.get(&pods(), "default", name).unwrap()
    }

    /// As a client deletes a pod.
    pub(crate) fn delete_within(&self, name: &str, grace: u32) {
        let deleted = self.store.write(DryRun::Off, |store, context| {
            let definition = self.store.definition(&pods())?;
            let any = Preconditions::default();
            store.delete_within(definition, "default", name, grace, &any, context)
        });
        deleted.unwrap();
    }

    fn watch(&self) -> StoreWatch {
        self.store.watch(&pods(), "default").unwrap()
    }

    /// The directory of a pod's processes.
    pub(crate) fn directory(&self, pod: &Object) -> PathBuf {
        self.scratch.path().join("pods").join(pod.uid())
    }

    /// Waits until a pod matches.
    pub(crate) async fn until(&self, name: &str, wanted: impl Fn(&Object) -> bool) -> Arc<Object> {
        self.wait_for_event(self.watch(), name, wanted).await
    }

    /// Waits until a watch has reported a matching pod, whatever its current state.
    async fn wait_for_event(
        &self,
        mut watch: StoreWatch,
        name: &str,
        wanted: impl Fn(&Object) -> bool,
    ) -> Arc<Object> {
        let wait = async {
            loop {
                for set_release in watch.next().await.unwrap() {
                    if let Change::Added(pod) | Change::Modified(pod) = set_release
                        && pod.name() == name
                        && wanted(&pod)
                    {
                        return pod;
                    }
                }
            }
        };
        let found = tokio::time::timeout(TEST_TIMEOUT, wait).await;
        found.unwrap_or_else(|_| panic!("{:#?}", self.store.get(&pods(), "default", name)))
    }

    pub(crate) async fn running(&self, name: &str, spec: &Value) -> Arc<Object> {
        let watch = self.watch();
        self.create(name, spec);
        self.wait_for_event(watch, name, |pod| {
            pod.text(&["status", "phase"]) == "Running"
        })
        .await
    }

    pub(crate) async fn send_request(
        &self,
        kind: StreamKind,
        pod: &str,
        query: &str,
        headers: HeaderMap,
    ) -> StreamResponse {
        let is_spdy = headers.get(UPGRADE).is_some_and(|it| it == "SPDY/3.1");
        let request = StreamRequest {
            kind,
            method: if is_spdy { Method::POST } else { Method::GET },
            query: query.to_owned(),
            headers,
            name: pod.to_owned(),
            pod: self.pod(pod),
        };
        self.node.answer(request).await
    }

    pub(crate) async fn refused(&self, kind: StreamKind, pod: &str, query: &str) -> Status {
        match self
            .send_request(kind, pod, query, spdy_headers("v4.channel.k8s.io"))
            .await
        {
            StreamResponse::Refused(status) => status,
            other => panic!("{other:?}"),
        }
    }

    /// A connection after 101.
    pub(crate) async fn switched(
        &self,
        kind: StreamKind,
        pod: &str,
        query: &str,
        headers: HeaderMap,
    ) -> DuplexStream {
        let handler = match self.send_request(kind, pod, query, headers).await {
            StreamResponse::Switch(_, handler) => handler,
            other => panic!("{other:?}"),
        };
        let (client_io, node_io) = tokio::io::duplex(64 * 1024);
        tokio::spawn(handler.run(UpgradedStream {
            io: Box::new(node_io),
            input: BytesMut::new(),
        }));
        client_io
    }

    pub(crate) async fn spdy(
        &self,
        kind: StreamKind,
        query: &str,
        protocol: SpdyProtocol,
    ) -> SpdyClient {
        let headers = spdy_headers(protocol.name());
        let io = self.switched(kind, "web", query, headers).await;
        SpdyClient::open(io, query, protocol)
    }

    pub(crate) async fn websocket(
        &self,
        kind: StreamKind,
        query: &str,
        protocol: Protocol,
    ) -> WebSocketClient {
        let headers = websocket_headers(protocol.name());
        let io = self.switched(kind, "web", query, headers).await;
        WebSocketClient::new(io, protocol)
    }
}

pub(crate) fn spdy_headers(protocol: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    let protocol = HeaderValue::from_static(protocol);
    headers.insert("x-stream-protocol-version", protocol);
    headers
}

pub(crate) fn websocket_headers(protocol: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    set_request_headers(&Key::random(), [protocol], &mut headers).unwrap();
    headers
}

/// The output and the result of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommandResult {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) outcome: Outcome,
}

pub(crate) fn command_result(stdout: &str, stderr: &str, outcome: Outcome) -> CommandResult {
    CommandResult {
        stdout: stdout.to_owned(),
        stderr: stderr.to_owned(),
        outcome,
    }
}

/// A client by SPDY.
pub(crate) struct SpdyClient {
    pub(crate) stdin: Option<Sender>,
    pub(crate) resize: Option<Sender>,
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
    error: Receiver,
    protocol: SpdyProtocol,
    /// Clients do not close unused directions.
    halves: Vec<Sender>,
    _handle: connection::Handle,
    driver: tokio::task::JoinHandle<()>,
}

impl SpdyClient {
    fn open(io: DuplexStream, query: &str, protocol: SpdyProtocol) -> Self {
        let (handle, _, driver) = connection::client(io, Config::default());
        let driver = tokio::spawn(async {
            let _ = driver.await;
        });
        let options = Options::from_query(QueryDialect::Api, Some(query));
        let (mut stdin, mut resize, mut stdout, mut stderr, mut error) =
            (None, None, None, None, None);
        let mut halves = Vec::new();
        for channel in options.streams(protocol) {
            let headers = Headers::new().with(STREAM_TYPE, channel.stream_type());
            let stream = handle.open(headers).unwrap();
            let (sender, receiver) = (stream.sender, stream.receiver);
            match channel {
                Channel::Stdin => stdin = Some(sender),
                Channel::Resize => resize = Some(sender),
                Channel::Stdout => {
                    stdout = Some(receiver);
                    halves.push(sender);
                }
                Channel::Stderr => {
                    stderr = Some(receiver);
                    halves.push(sender);
                }
                Channel::Error => {
                    error = Some(receiver);
                    halves.push(sender);
                }
            }
        }
        Self {
            stdin,
            resize,
            stdout,
            stderr,
            error: error.unwrap(),
            protocol,
            halves,
            _handle: handle,
            driver,
        }
    }

    pub(crate) async fn write(&mut self, text: &'static str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin
            .write(Bytes::from_static(text.as_bytes()))
            .await
            .unwrap();
    }

    pub(crate) async fn read_some(&mut self) -> Bytes {
        self.stdout.as_mut().unwrap().read().await.unwrap().unwrap()
    }

    pub(crate) fn disconnect(self) {
        self.driver.abort();
    }

    /// Ends the input, and reads all output.
    pub(crate) async fn finish(mut self) -> CommandResult {
        if let Some(stdin) = &mut self.stdin {
            let _ = stdin.finish();
        }
        let all = async |receiver: Option<&mut Receiver>| {
            let mut text = Vec::new();
            if let Some(receiver) = receiver {
                while let Ok(Some(data)) = receiver.read().await {
                    text.extend_from_slice(&data);
                }
            }
            text
        };
        let hear = async {
            tokio::join!(
                all(self.stdout.as_mut()),
                all(self.stderr.as_mut()),
                all(Some(&mut self.error))
            )
        };
        let (stdout, stderr, words) = tokio::time::timeout(TEST_TIMEOUT, hear).await.unwrap();
        let mut channel = ErrorChannel::new(self.protocol.version());
        channel.push(&words);
        drop(self.halves);
        CommandResult {
            stdout: String::from_utf8(stdout).unwrap(),
            stderr: String::from_utf8(stderr).unwrap(),
            outcome: channel.end(ErrorChannelEnd::Clean),
        }
    }
}

/// A client by WebSocket.
pub(crate) struct WebSocketClient {
    io: DuplexStream,
    buffer: BytesMut,
    decoder: Decoder,
    reader: FromServer,
    writer: ToServer,
    protocol: Protocol,
}

impl WebSocketClient {
    fn new(io: DuplexStream, protocol: Protocol) -> Self {
        let limits = Limits {
            frame: 1 << 20,
            message: 1 << 20,
        };
        Self {
            io,
            buffer: BytesMut::new(),
            decoder: Decoder::new(Role::Client, limits),
            reader: FromServer::new(protocol),
            writer: ToServer::new(protocol),
            protocol,
        }
    }

    pub(crate) async fn write(&mut self, input: Input, data: &[u8]) {
        let mut out = BytesMut::new();
        self.writer.write(input, data, &mut out);
        self.io.write_all(&out).await.unwrap();
    }

    pub(crate) async fn close_stdin(&mut self) {
        let mut out = BytesMut::new();
        assert!(self.writer.close(Input::Stdin, &mut out));
        self.io.write_all(&out).await.unwrap();
    }

    pub(crate) async fn ping(&mut self) {
        let mut out = BytesMut::new();
        let ping = Control::Ping(ControlPayload::default());
        self.writer.control(&ping, &mut out);
        self.io.write_all(&out).await.unwrap();
    }

    /// The next message; `None` at a close.
    pub(crate) async fn next(&mut self) -> Option<(Output, Bytes)> {
        loop {
            match self.decoder.decode(&mut self.buffer).unwrap() {
                Some(Event::Chunk(piece)) => match self.reader.read_chunk(piece).unwrap() {
                    Some(ChannelEvent::Data(output, data)) => return Some((output, data)),
                    _ => continue,
                },
                Some(Event::Control(Control::Close(_))) => return None,
                Some(Event::Control(_)) => continue,
                None => {}
            }
            let read = self.io.read_buf(&mut self.buffer);
            let read = tokio::time::timeout(TEST_TIMEOUT, read).await;
            let read =
                read.unwrap_or_else(|_| panic!("silence; at terminals are{}", at_terminals()));
            assert!(read.unwrap() > 0, "disconnected");
        }
    }

    pub(crate) async fn finish(mut self) -> CommandResult {
        let mut channel = ErrorChannel::new(self.protocol.version());
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some((output, data)) = self.next().await {
            match output {
                Output::Stdout => stdout.extend_from_slice(&data),
                Output::Stderr => stderr.extend_from_slice(&data),
                Output::Error => channel.push(&data),
            }
        }
        CommandResult {
            stdout: String::from_utf8(stdout).unwrap(),
            stderr: String::from_utf8(stderr).unwrap(),
            outcome: channel.end(ErrorChannelEnd::Clean),
        }
    }
}

/// As kubectl writes it.
pub(crate) fn query(words: &[&str], options: &str) -> String {
    let mut query = options.to_owned();
    for word in words {
        query.push_str("&command=");
        for byte in word.bytes() {
            write!(query, "%{byte:02X}").unwrap();
        }
    }
    query
}

/// Waits until the function returns a value.
pub(crate) async fn eventually<T>(mut look: impl FnMut() -> Option<T>, what: &str) -> T {
    let mut seen = None;
    skewbridge_testkit::eventually(what, TEST_TIMEOUT, async || {
        seen = look();
        seen.is_some()
    })
    .await;
    seen.unwrap()
}

/// The processes that have a terminal: id, name, state, parent, group, session, terminal,
/// foreground group, and the kernel function they wait in.
fn at_terminals() -> String {
    let mut channel = String::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |name| std::fs::read_to_string(process.path().join(name)).unwrap_or_default();
        let stat = read("stat");
        let Some((_, fields)) = stat.rsplit_once(')') else {
            continue;
        };
        if fields.split_whitespace().nth(4).is_some_and(|it| it != "0") {
            let first: Vec<&str> = stat.split_whitespace().take(8).collect();
            let _ = write!(channel, "\n{} {}", first.join(" "), read("wchan"));
        }
    }
    channel
}
