//! Both ends of a stream: a WebSocket client like kubectl, and a node that speaks SPDY behind a
//! fake kube-apiserver.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use skewbridge_gateway::config as gateway;
use skewbridge_remotecommand::{ChannelEvent, FromServer, Input, Output, Protocol, ToServer};
use skewbridge_spdy::connection::{self, Handle, Stream};
use skewbridge_spdy::{Config, Headers};
use skewbridge_testkit::upstream::{RecordedRequest, Upgrade};
use skewbridge_testkit::{
    ApiServer, ClientAuth, Connection, Options, Reply, TEST_TIMEOUT, TlsClient, eventually,
};
use skewbridge_websocket::{
    Control, Decoder, Encoder, Event, Frame, Limits, MessageChunk, MessageKind, Role,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::support::admin_client;
use crate::support::pki::{PkiFixture, start};

pub(crate) const EXEC: &str =
    "/api/v1/namespaces/n/pods/p/exec?command=sh&stdin=true&stdout=true&stderr=true";
pub(crate) const FORWARD: &str = "/api/v1/namespaces/n/pods/p/portforward";

/// A version that does not translate streams itself, and one that does.
pub(crate) const VERSION_WITHOUT_TRANSLATION: &str = "v1.28.15";
pub(crate) const VERSION_WITH_TRANSLATION: &str = "v1.36.4";

pub(crate) fn always_translate(config: &mut gateway::Config) {
    config.streams.translate = gateway::TranslateStreams::Always;
}

/// Starts a bridge and waits until it has read the version of its upstream.
pub(crate) async fn start_bridge(
    pki: &PkiFixture,
    cluster: &SpdyUpstream,
    change: fn(&mut gateway::Config),
) -> skewbridge_gateway::Handle {
    let mut config = pki.config(cluster.api.addr());
    change(&mut config);
    let bridge = start(&config);
    let admin = bridge.admin_address();
    eventually("the bridge is ready", TEST_TIMEOUT, async || {
        admin_client::get(admin, "/readyz").await.status == 200
    })
    .await;
    bridge
}

pub(crate) async fn metrics(bridge: &skewbridge_gateway::Handle) -> String {
    admin_client::get(bridge.admin_address(), "/metrics")
        .await
        .body
}

/// Whether the metrics contain this line.
pub(crate) async fn has_metric(bridge: &skewbridge_gateway::Handle, line: &str) -> bool {
    metrics(bridge).await.lines().any(|it| it == line)
}

/// Waits until the metrics count one stream with this result.
pub(crate) async fn wait_for_stream_result(
    bridge: &skewbridge_gateway::Handle,
    kind: &str,
    result: &str,
) {
    let deprecated = match result {
        "disconnected" => "cut_off",
        result => result,
    };
    let line = format!(
        r#"skewbridge_streams_total{{kind="{kind}",client="websocket",upstream="spdy",outcome="{deprecated}",result="{result}"}} 1"#
    );
    eventually(&line, TEST_TIMEOUT, async || {
        has_metric(bridge, &line).await
    })
    .await;
}

pub(crate) const WEBSOCKET_KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
pub(crate) const SUCCESS: &str = r#"{"metadata":{},"status":"Success"}"#;

/// A kube-apiserver of this version whose nodes support only SPDY.
pub(crate) struct SpdyUpstream {
    pub(crate) api: ApiServer,
    upgrades: mpsc::UnboundedReceiver<Upgrade>,
}

/// The response to an upgrade request; `None` accepts the upgrade.
pub(crate) type Refusal = Arc<dyn Fn(&RecordedRequest) -> Option<Reply> + Send + Sync>;

impl SpdyUpstream {
    /// Rejects WebSocket like a node.
    pub(crate) async fn with_version(pki: &PkiFixture, version: &'static str) -> Self {
        Self::with(pki, version, Arc::new(refuse_websocket)).await
    }

    pub(crate) async fn with(pki: &PkiFixture, version: &'static str, refusal: Refusal) -> Self {
        let (sender, upgrades) = mpsc::unbounded_channel();
        let options =
            Options::new(pki.upstream.clone()).clients(ClientAuth::Accept(&pki.front_proxy_ca));
        let api = ApiServer::start(options, move |recorded| {
            if recorded.path() == "/version" {
                return Reply::json(format!(r#"{{"gitVersion":"{version}"}}"#));
            }
            if let Some(refused) = refusal(&recorded) {
                return refused;
            }
            let Some(protocol) = recorded.header("upgrade") else {
                return Reply::json("{}");
            };
            let (reply, upgrade) = Reply::upgrade(protocol);
            sender.send(upgrade).unwrap();
            match recorded.header("x-stream-protocol-version") {
                Some(offer) => reply.header("X-Stream-Protocol-Version", offer),
                None => reply
                    .header("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
                    .header("Sec-WebSocket-Protocol", "v4.channel.k8s.io"),
            }
        })
        .await;
        Self { api, upgrades }
    }

    /// The raw connection of the next stream.
    pub(crate) async fn next_connection(&mut self) -> Connection {
        self.upgrades.recv().await.unwrap().connection().await
    }

    /// The next command, which has this many streams.
    pub(crate) async fn next_command(&mut self, streams: usize) -> Node {
        Node::accept(self.next_connection().await, streams).await
    }

    /// The requests for streams.
    pub(crate) fn stream_requests(&self) -> Vec<RecordedRequest> {
        let mut recorded = self.api.requests();
        recorded.retain(|recorded| recorded.path().contains("/pods/"));
        recorded
    }
}

/// How nodes reject a protocol that they do not support.
pub(crate) fn refuse_websocket(recorded: &RecordedRequest) -> Option<Reply> {
    let websocket = recorded.header("upgrade") == Some("websocket");
    websocket.then(|| Reply::new(403))
}

/// A node that runs a command: the SPDY server.
pub(crate) struct Node {
    pub(crate) streams: HashMap<String, Stream>,
    /// The stream names, in the order in which they were opened.
    pub(crate) order: Vec<String>,
    pub(crate) handle: Handle,
    pub(crate) driver: JoinHandle<()>,
}

impl Node {
    pub(crate) async fn accept<T>(io: T, count: usize) -> Self
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (handle, mut incoming, driver) = connection::server(io, Config::default());
        let driver = tokio::spawn(async move {
            let _ = driver.await;
        });
        let (mut streams, mut order) = (HashMap::new(), Vec::new());
        while streams.len() < count {
            let request = incoming.next().await.unwrap();
            let name = request.headers().get("streamtype").unwrap().to_owned();
            order.push(name.clone());
            streams.insert(name, request.accept(Headers::new()).unwrap());
        }
        // Kept open: dropping it would close the connection with the last stream.
        std::mem::forget(incoming);
        Self {
            streams,
            order,
            handle,
            driver,
        }
    }

    pub(crate) async fn write(&mut self, name: &str, data: impl Into<Bytes>) {
        let stream = self.streams.get_mut(name).unwrap();
        stream.sender.write(data.into()).await.unwrap();
    }

    pub(crate) async fn read(&mut self, name: &str) -> Option<Bytes> {
        let stream = self.streams.get_mut(name).unwrap();
        stream.receiver.read().await.unwrap()
    }

    /// Sends the status of the command and closes the connection like a kubelet.
    pub(crate) async fn end(mut self, status: &str) {
        self.write("error", status.to_owned()).await;
        for stream in self.streams.values_mut() {
            let _ = stream.sender.finish();
        }
        self.handle.close();
    }

    /// Disconnects without a status.
    pub(crate) fn kill(self) {
        self.driver.abort();
    }
}

/// Records the bytes that are written.
pub(crate) struct RecordingIo {
    pub(crate) io: Connection,
    pub(crate) written: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for RecordingIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for RecordingIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        if let Poll::Ready(Ok(length)) = &written {
            let mut copy = self.written.lock().unwrap();
            copy.extend_from_slice(&buf[..*length]);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// A WebSocket client of the bridge.
pub(crate) struct WebSocket {
    pub(crate) io: Connection,
    pub(crate) input: BytesMut,
    decoder: Decoder,
    reader: FromServer,
    writer: ToServer,
    encoder: Encoder,
    /// Whether pings are answered.
    pub(crate) answers_pings: bool,
    pub(crate) pings: usize,
}

/// A message on a channel, or the close frame.
#[derive(Debug, PartialEq)]
pub(crate) enum ClientMessage {
    Data(Output, Bytes),
    Closed(u16, String),
}

/// The head of a WebSocket upgrade request.
pub(crate) fn upgrade_request(path: &str, offers: &str, more: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: k\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {WEBSOCKET_KEY}\r\n\
         Sec-WebSocket-Protocol: {offers}\r\n{more}\r\n"
    )
}

impl WebSocket {
    /// Opens a stream.
    pub(crate) async fn open(
        client: &TlsClient,
        bridge: std::net::SocketAddr,
        path: &str,
        protocol: Protocol,
    ) -> Self {
        let mut http = client.http1(bridge).await.unwrap();
        http.send(upgrade_request(path, protocol.name(), ""))
            .await
            .unwrap();
        let head = http.read_head().await.unwrap();
        assert_eq!(head.status, 101);
        assert_eq!(head.header("upgrade"), Some("websocket"));
        assert_eq!(
            head.header("sec-websocket-accept"),
            Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
        );
        assert_eq!(head.header("sec-websocket-protocol"), Some(protocol.name()));
        assert_eq!(head.header("x-stream-protocol-version"), None);
        Self::accept(http.into_connection(), protocol)
    }

    /// A client on a connection after the handshake.
    pub(crate) fn accept(io: Connection, protocol: Protocol) -> Self {
        let limits = Limits {
            frame: 1 << 30,
            message: 1 << 30,
        };
        Self {
            io,
            input: BytesMut::new(),
            decoder: Decoder::new(Role::Client, limits),
            reader: FromServer::new(protocol),
            writer: ToServer::new(protocol),
            encoder: Encoder::new(Role::Client),
            answers_pings: true,
            pings: 0,
        }
    }

    async fn send(&mut self, bytes: BytesMut) -> io::Result<()> {
        self.io.write_all(&bytes).await?;
        self.io.flush().await
    }

    pub(crate) async fn write(&mut self, input: Input, data: &[u8]) -> io::Result<()> {
        let mut out = BytesMut::new();
        self.writer.write(input, data, &mut out);
        self.send(out).await
    }

    pub(crate) async fn close_stdin(&mut self) {
        let mut out = BytesMut::new();
        assert!(self.writer.close(Input::Stdin, &mut out));
        self.send(out).await.unwrap();
    }

    pub(crate) async fn binary(&mut self, data: &[u8]) {
        let mut out = BytesMut::new();
        self.encoder
            .write(Frame::Whole(MessageKind::Binary), &[data], &mut out);
        self.send(out).await.unwrap();
    }

    pub(crate) async fn control(&mut self, control: &Control) {
        let mut out = BytesMut::new();
        self.encoder.control(control, &mut out);
        self.send(out).await.unwrap();
    }

    /// The next event except pings.
    pub(crate) async fn event(&mut self) -> io::Result<Event> {
        loop {
            if let Some(event) = self.event_or_ping().await? {
                return Ok(event);
            }
        }
    }

    /// Waits for a ping, before which no other event may arrive.
    pub(crate) async fn answer_next_ping(&mut self) {
        assert_eq!(self.event_or_ping().await.unwrap(), None);
    }

    /// The next event; `None` is a ping, which has been counted and answered.
    async fn event_or_ping(&mut self) -> io::Result<Option<Event>> {
        loop {
            match self.decoder.decode(&mut self.input).unwrap() {
                Some(Event::Control(Control::Ping(payload))) => {
                    self.pings += 1;
                    if self.answers_pings {
                        self.control(&Control::Pong(payload)).await;
                    }
                    return Ok(None);
                }
                Some(event) => return Ok(Some(event)),
                None => {
                    if self.io.read_buf(&mut self.input).await? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
        }
    }

    pub(crate) async fn next_chunk(&mut self) -> MessageChunk {
        match self.event().await.unwrap() {
            Event::Chunk(piece) => piece,
            Event::Control(control) => panic!("{control:?}"),
        }
    }

    /// The next message on a channel, or the close frame.
    pub(crate) async fn next_message(&mut self) -> io::Result<ClientMessage> {
        loop {
            match self.event().await? {
                Event::Chunk(piece) => match self.reader.read_chunk(piece).unwrap() {
                    Some(ChannelEvent::Data(output, data)) => {
                        return Ok(ClientMessage::Data(output, data));
                    }
                    Some(ChannelEvent::Closed(_)) => panic!("servers close no channels"),
                    None => {}
                },
                Event::Control(Control::Close(Some(close))) => {
                    let reason = close.reason().to_owned();
                    return Ok(ClientMessage::Closed(close.code().number(), reason));
                }
                Event::Control(Control::Pong(_)) => {}
                Event::Control(control) => panic!("{control:?}"),
            }
        }
    }

    /// Reads everything up to the end of the stream.
    pub(crate) async fn read_to_end(&mut self) -> StreamTranscript {
        let mut transcript = StreamTranscript::default();
        loop {
            match self.next_message().await {
                Ok(ClientMessage::Data(Output::Stdout, data)) => {
                    transcript.stdout.extend_from_slice(&data);
                }
                Ok(ClientMessage::Data(Output::Stderr, data)) => {
                    transcript.stderr.extend_from_slice(&data);
                }
                Ok(ClientMessage::Data(Output::Error, data)) => {
                    transcript.error.push_str(text(&data));
                }
                Ok(ClientMessage::Closed(code, _)) => {
                    transcript.code = Some(code);
                    return transcript;
                }
                Err(_) => return transcript,
            }
        }
    }
}

/// Everything that a client has received.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct StreamTranscript {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) error: String,
    /// The close code, if the connection was closed with one.
    pub(crate) code: Option<u16>,
}

impl StreamTranscript {
    /// Whether a client would take this for a successful command.
    pub(crate) fn looks_successful(&self) -> bool {
        self.code == Some(1000) && (self.error.is_empty() || self.error.contains("Success"))
    }
}

pub(crate) fn text(data: &[u8]) -> &str {
    std::str::from_utf8(data).unwrap()
}
