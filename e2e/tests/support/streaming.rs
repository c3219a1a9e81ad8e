//! Clients of exec, attach and port-forward: the real kubectl, and skewbridge's WebSocket
//! client.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use bytes::BytesMut;
use serde_json::{Value, json};
use skewbridge_e2e::{
    Bridge, ControlPlane, Metrics, Node, Output, Protocol as Http, Request, User, Via, is_since,
    newest, versions,
};
use skewbridge_remotecommand::{
    ChannelEvent, FromServer, Input, Output as Channel, Protocol, ToServer,
};
use skewbridge_testkit::{Connection, H1Client, TEST_TIMEOUT, TlsClient, eventually};
use skewbridge_websocket::{Control, Decoder, Event, Limits, Role};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

/// For a command that takes a second or two on an idle machine.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// Larger than any message here.
const LIMITS: Limits = Limits {
    frame: 64 << 20,
    message: 64 << 20,
};

/// The stream protocol that kubectl tries first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamProtocol {
    WebSocket,
    Spdy,
}

/// A server or bridge, and the protocol to use.
#[derive(Clone, Copy)]
pub(crate) struct StreamTarget<'a> {
    pub(crate) plane: &'a ControlPlane,
    pub(crate) address: SocketAddr,
    /// The admin address of its bridge, if there is one.
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) protocol: StreamProtocol,
}

/// The newest kubectl; `None` if it does not support WebSocket.
pub(crate) fn kubectl_version() -> Option<String> {
    let versions = versions();
    let version = newest(&versions);
    if !is_since(version, 31) {
        println!("skipped: kubectl {version} does not support WebSocket");
        return None;
    }
    Some(version.to_owned())
}

impl<'a> StreamTarget<'a> {
    /// Directly to a server.
    pub(crate) fn direct(plane: &'a ControlPlane, server: usize, protocol: StreamProtocol) -> Self {
        Self {
            plane,
            address: plane.servers[server].address,
            admin: None,
            protocol,
        }
    }

    /// Through the bridge of a server.
    pub(crate) fn bridged(
        plane: &'a ControlPlane,
        server: usize,
        protocol: StreamProtocol,
    ) -> Self {
        Self {
            plane,
            address: plane.servers[server].bridge,
            admin: Some(plane.servers[server].admin),
            protocol,
        }
    }

    /// Through another bridge.
    pub(crate) fn through(
        plane: &'a ControlPlane,
        bridge: &Bridge,
        protocol: StreamProtocol,
    ) -> Self {
        Self {
            plane,
            address: bridge.address,
            admin: Some(bridge.admin),
            protocol,
        }
    }

    /// The newest kubectl, in the namespace of the pod.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let version = kubectl_version().expect("a kubectl that speaks WebSocket");
        let mut command = self.plane.kubectl_at(&version, self.address, User::Admin);
        let web_sockets = (self.protocol == StreamProtocol::WebSocket).to_string();
        command
            .args(["-n", Node::NAMESPACE])
            .args(words)
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", &web_sockets)
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", &web_sockets);
        command
    }

    /// Runs it until it exits.
    pub(crate) async fn run(&self, words: &[&str], stdin: &[u8]) -> Output {
        let mut child = self
            .command(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let mut input = child.stdin.take().unwrap();
        let writing_stdin = async move {
            // A command may exit before it has read its input.
            let _ = input.write_all(stdin).await;
        };
        let both = async { tokio::join!(writing_stdin, child.wait_with_output()).1 };
        let output = timeout(COMMAND_TIMEOUT, both).await;
        let output = output
            .unwrap_or_else(|_| panic!("{words:?} hangs"))
            .unwrap();
        Output {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs a shell command line in the pod.
    pub(crate) async fn sh(&self, line: &str) -> Output {
        self.run(&["exec", Node::POD, "--", "sh", "-c", line], b"")
            .await
    }

    /// The metrics of its bridge.
    pub(crate) async fn metrics(&self) -> Metrics {
        self.plane.metrics(self.admin.expect("a bridge")).await
    }

    /// How many streams of a kind have ended, with these protocols of client and upstream.
    pub(crate) async fn ended(&self, kind: &str, client: &str, upstream: &str) -> u64 {
        let kind = format!("kind=\"{kind}\"");
        let labels = [
            kind.as_str(),
            &format!("client=\"{client}\""),
            &format!("upstream=\"{upstream}\""),
        ];
        let metrics = self.metrics().await;
        metrics.sum("skewbridge_streams_total", &labels)
    }

    /// Waits until this many streams have ended.
    pub(crate) async fn wait_until_ended(
        &self,
        kind: &str,
        client: &str,
        upstream: &str,
        count: u64,
    ) {
        let what = format!("{count} of {kind} by {client} and {upstream}");
        eventually(&what, TEST_TIMEOUT, async || {
            self.ended(kind, client, upstream).await >= count
        })
        .await;
        assert_eq!(self.ended(kind, client, upstream).await, count, "{what}");
    }

    /// How many streams have ended that had this protocol on the client's side.
    pub(crate) async fn ended_with_client(&self, client: &str) -> u64 {
        let label = format!("client=\"{client}\"");
        let metrics = self.metrics().await;
        metrics.sum("skewbridge_streams_total", &[&label])
    }
}

/// The path of a stream with its query.
pub(crate) fn path(subresource: &str, query: &str) -> String {
    format!(
        "/api/v1/namespaces/{}/pods/{}/{subresource}?{query}",
        Node::NAMESPACE,
        Node::POD
    )
}

/// The query for a shell command line with all streams.
pub(crate) fn shell(line: &str) -> String {
    let mut encoded = String::new();
    for byte in line.bytes() {
        let _ = write!(encoded, "%{byte:02X}");
    }
    format!("command=sh&command=-c&command={encoded}&stdin=true&stdout=true&stderr=true")
}

/// Requests a WebSocket, and returns the connection after 101, or the status and the text.
pub(crate) async fn request_websocket(
    client: &TlsClient,
    address: SocketAddr,
    path: &str,
    offers: &str,
    more: &str,
) -> Result<H1Client, (u16, String)> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: {offers}\r\n{more}\r\n"
    );
    upgrade(client, address, &request).await
}

/// The same for SPDY.
pub(crate) async fn request_spdy(
    client: &TlsClient,
    address: SocketAddr,
    path: &str,
    offer: &str,
    more: &str,
) -> Result<H1Client, (u16, String)> {
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: {offer}\r\nContent-Length: 0\r\n{more}\r\n"
    );
    upgrade(client, address, &request).await
}

async fn upgrade(
    client: &TlsClient,
    address: SocketAddr,
    request: &str,
) -> Result<H1Client, (u16, String)> {
    let handshake = async {
        let mut http = client.http1(address).await.unwrap();
        http.send(request).await.unwrap();
        let head = http.read_head().await.unwrap();
        if head.status == 101 {
            return Ok(http);
        }
        let mut text = Vec::new();
        while let Ok(Some(piece)) = http.read_chunk().await {
            text.extend_from_slice(&piece);
        }
        Err((head.status, String::from_utf8_lossy(&text).into_owned()))
    };
    timeout(COMMAND_TIMEOUT, handshake)
        .await
        .expect("an answer in time")
}

/// A WebSocket on which a command runs.
pub(crate) struct ChannelSocket {
    io: Connection,
    input: BytesMut,
    decoder: Decoder,
    reader: FromServer,
    writer: ToServer,
    /// How many pings were received.
    pub(crate) pings: usize,
}

/// All output, and how the stream ended.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) error: String,
    /// The close code, if the WebSocket was closed.
    pub(crate) closed: Option<u16>,
}

impl Transcript {
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl ChannelSocket {
    /// Runs a command with this protocol.
    pub(crate) async fn open(
        client: &TlsClient,
        address: SocketAddr,
        path: &str,
        protocol: Protocol,
    ) -> Result<Self, (u16, String)> {
        let http = request_websocket(client, address, path, protocol.name(), "").await?;
        Ok(Self::over(http, protocol))
    }

    /// Uses the connection after the 101.
    pub(crate) fn over(http: H1Client, protocol: Protocol) -> Self {
        Self {
            io: http.into_connection(),
            input: BytesMut::new(),
            decoder: Decoder::new(Role::Client, LIMITS),
            reader: FromServer::new(protocol),
            writer: ToServer::new(protocol),
            pings: 0,
        }
    }

    pub(crate) async fn write(&mut self, input: Input, data: &[u8]) -> io::Result<()> {
        let mut out = BytesMut::new();
        self.writer.write(input, data, &mut out);
        self.io.write_all(&out).await?;
        self.io.flush().await
    }

    /// Reads until this much of stdout has arrived.
    pub(crate) async fn until(&mut self, transcript: &mut Transcript, bytes: usize) {
        while transcript.stdout.len() < bytes {
            assert!(
                self.step(transcript).await,
                "the stream ended too early: {transcript:?}"
            );
        }
    }

    /// Reads until the stream ends.
    pub(crate) async fn read_until_end(&mut self, transcript: &mut Transcript) {
        while self.step(transcript).await {}
    }

    /// Reads the rest.
    pub(crate) async fn rest(&mut self, mut transcript: Transcript) -> Transcript {
        while self.step(&mut transcript).await {}
        transcript
    }

    /// Reads one event; `false` at the end. Sends no pings, and answers pings.
    async fn step(&mut self, transcript: &mut Transcript) -> bool {
        let Some(event) = self.decoder.decode(&mut self.input).unwrap() else {
            return matches!(self.io.read_buf(&mut self.input).await, Ok(1..));
        };
        match event {
            Event::Chunk(piece) => match self.reader.read_chunk(piece).unwrap() {
                Some(ChannelEvent::Data(Channel::Stdout, data)) => {
                    transcript.stdout.extend_from_slice(&data);
                }
                Some(ChannelEvent::Data(Channel::Stderr, data)) => {
                    transcript.stderr.extend_from_slice(&data);
                }
                Some(ChannelEvent::Data(Channel::Error, data)) => {
                    transcript
                        .error
                        .push_str(std::str::from_utf8(&data).unwrap());
                }
                Some(ChannelEvent::Closed(_)) | None => {}
            },
            Event::Control(Control::Ping(payload)) => {
                self.pings += 1;
                let mut out = BytesMut::new();
                self.writer.control(&Control::Pong(payload), &mut out);
                let _ = self.io.write_all(&out).await;
                let _ = self.io.flush().await;
            }
            Event::Control(Control::Close(close)) => {
                transcript.closed = close.map(|close| close.code().number());
                return false;
            }
            Event::Control(Control::Pong(_)) => {}
        }
        true
    }
}

/// An endless sequence of bytes that reveals a lost, duplicated or misplaced part.
#[derive(Debug, Clone)]
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    /// The next bytes of this length, a multiple of eight.
    pub(crate) fn take(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            // Marsaglia's xorshift64.
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            bytes.extend_from_slice(&self.0.to_le_bytes());
        }
        bytes
    }
}

/// Grants the user and the service account of this name these verbs on streams and read
/// access to pods, and returns a token of the account.
pub(crate) async fn allow(plane: &ControlPlane, name: &str, verbs: &[&str]) -> String {
    let namespace = Node::NAMESPACE;
    let roles = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}");
    let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    let resources = ["pods/exec", "pods/attach", "pods/portforward"];
    let role = json!({"metadata": {"name": name},
        "rules": [{"apiGroups": [""], "resources": resources, "verbs": verbs},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": name},
    "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
    "subjects": [
        {"apiGroup": group, "kind": "User", "name": name},
        {"kind": "ServiceAccount", "name": name, "namespace": namespace},
    ]});
    create(plane, &format!("{roles}/roles"), &role).await;
    create(plane, &format!("{roles}/rolebindings"), &binding).await;
    create(plane, &accounts, &json!({"metadata": {"name": name}})).await;
    let request = json!({"spec": {"audiences": []}});
    let token = create(plane, &format!("{accounts}/{name}/token"), &request).await;
    token["status"]["token"].as_str().unwrap().to_owned()
}

async fn create(plane: &ControlPlane, path: &str, object: &Value) -> Value {
    let request = Request::new("POST", path).body("application/json", &object.to_string());
    let mut client = plane.http_client(0, Via::Server, Http::H1);
    let created = client.send(&request).await.unwrap();
    assert_eq!(created.status, 201, "{path}: {}", created.text());
    serde_json::from_slice(&created.body).unwrap()
}
