//! The node: a kubelet for kube-apiserver, and the server behind the bridge. It is one program,
//! so that both translators have the same conditions.
//!
//! It also accepts a WebSocket from a client without any translator, under its own path, to
//! show the rate of client and node by themselves.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, UPGRADE};
use http::{HeaderMap, HeaderValue, StatusCode, Version};
use rustls::ServerConfig;
use skewbridge_http_engine::http1::{RequestHead, parse_request, write_headers, write_status_line};
use skewbridge_remotecommand::{
    Channel, ChannelEvent, ExitCode, FromClient, Input, Options, Outcome, Output, Protocol,
    QueryDialect, STREAM_TYPE, SpdyProtocol, ToClient, negotiate_spdy,
};
use skewbridge_spdy::connection::{self, Receiver, Sender};
use skewbridge_spdy::{Config, Headers};
use skewbridge_websocket::{
    Close, CloseCode, Control, Decoder, Event, Role, parse_upgrade_request, set_response_headers,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::client::{LIMITS, READ_BUFFER_BYTES};
use super::node_command::NodeCommand;
use crate::args::Node;
use crate::pattern::Pattern;
use crate::pki;
use crate::proxies::loopback;

/// The path without a translator.
pub(crate) const DIRECT_PATH: &str = "/direct";

/// For a client that has received the outcome and stays connected.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);

const PROTOCOL_VERSION: &str = "x-stream-protocol-version";
const SPDY: &str = "SPDY/3.1";

/// Enough for a bridge to start: it requests the version of its upstream.
const VERSION: &str = r#"{"major":"1","minor":"36","gitVersion":"v1.36.4"}"#;

type Io = TlsStream<BufReader<TcpStream>>;

pub(crate) async fn run(args: Node) -> Result<()> {
    let config = pki::stream_server(&args.certificate, &args.key)?;
    let listener = TcpListener::bind(loopback(args.port)).await?;
    loop {
        let (tcp, _) = listener.accept().await?;
        let config = config.clone();
        tokio::spawn(async move {
            if let Err(error) = connection(tcp, config).await {
                eprintln!("connection: {error:#}");
            }
        });
    }
}

/// Serves requests until one is upgraded.
async fn connection(tcp: TcpStream, config: Arc<ServerConfig>) -> Result<()> {
    tcp.set_nodelay(true)?;
    let tcp = BufReader::with_capacity(READ_BUFFER_BYTES, tcp);
    let Ok(mut io) = TlsAcceptor::from(config).accept(tcp).await else {
        // A connection that only checks whether the node listens.
        return Ok(());
    };
    let mut buffer = BytesMut::new();
    loop {
        let Some(head) = parse_request(&mut buffer)? else {
            if io.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
            continue;
        };
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
        let words = match path {
            DIRECT_PATH => return direct(io, &head, query).await,
            path if path.starts_with("/exec/") => QueryDialect::Kubelet,
            path if path.ends_with("/exec") => QueryDialect::Api,
            path => {
                answer(&mut io, path).await?;
                continue;
            }
        };
        ensure!(buffer.is_empty(), "SPDY before it was granted");
        let options = Options::from_query(words, Some(query));
        let work = NodeCommand::from_query(query)?;
        return exec(io, &head, options, work).await;
    }
}

async fn answer(io: &mut Io, path: &str) -> Result<()> {
    let (media, body) = match path {
        "/version" => ("application/json", VERSION),
        _ => ("text/plain", "ok"),
    };
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    headers.insert(CONTENT_LENGTH, body.len().into());
    respond(io, StatusCode::OK, &headers, body).await
}

async fn respond(io: &mut Io, status: StatusCode, headers: &HeaderMap, body: &str) -> Result<()> {
    let mut out = BytesMut::new();
    write_status_line(&mut out, Version::HTTP_11, status);
    write_headers(&mut out, headers);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body.as_bytes());
    io.write_all(&out).await?;
    Ok(io.flush().await?)
}

/// The standard streams of a command.
trait Streams {
    /// `None` at the end.
    async fn read(&mut self) -> Result<Option<Bytes>>;
    async fn write(&mut self, data: Bytes) -> Result<()>;
}

/// Runs a command until it exits.
async fn perform(work: NodeCommand, streams: &mut impl Streams) -> Result<Outcome> {
    let mut pattern = Pattern::default();
    match work {
        NodeCommand::Sink { bytes } => {
            while let Some(piece) = streams.read().await? {
                pattern.check(&piece)?;
            }
            if pattern.passed() != bytes {
                eprintln!("{} bytes instead of {bytes}", pattern.passed());
                return Ok(ExitCode::new(1).map_or(Outcome::Disconnected, Outcome::Exited));
            }
        }
        NodeCommand::Source { bytes } => {
            while let Some(message) = pattern.next(bytes) {
                streams.write(message).await?;
            }
        }
        NodeCommand::Echo => {
            while let Some(piece) = streams.read().await? {
                streams.write(piece).await?;
            }
        }
    }
    Ok(Outcome::Success)
}

/// Only SPDY: a WebSocket on this path was not translated.
async fn exec(mut io: Io, head: &RequestHead, options: Options, work: NodeCommand) -> Result<()> {
    let upgrade = head.headers.get(UPGRADE);
    if upgrade.is_none_or(|upgrade| !upgrade.as_bytes().eq_ignore_ascii_case(SPDY.as_bytes())) {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        respond(&mut io, StatusCode::BAD_REQUEST, &headers, "").await?;
        bail!("the request is for {upgrade:?}, not for {SPDY}");
    }
    let offers = head.headers.get_all(PROTOCOL_VERSION).into_iter();
    let protocol = negotiate_spdy(offers.filter_map(|offer| offer.to_str().ok()))?;
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
    headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(protocol.name()));
    respond(&mut io, StatusCode::SWITCHING_PROTOCOLS, &headers, "").await?;

    let (handle, mut incoming, driver) = connection::server(io, Config::default());
    let command = async move {
        let mut streams = SpdyStreams::take(&mut incoming, options, protocol).await?;
        let outcome = perform(work, &mut streams).await?;
        streams.end(&outcome, protocol).await?;
        handle.close();
        anyhow::Ok(streams)
    };
    // A task for each, so that they do not block each other.
    let driver = tokio::spawn(driver);
    let ended = command.await;
    let stopping = driver.abort_handle();
    let left = timeout(DISCONNECT_TIMEOUT, driver).await;
    stopping.abort();
    let _streams = ended?;
    match left {
        Ok(Ok(Err(error))) => Err(error.into()),
        _ => Ok(()),
    }
}

/// The streams of a command over SPDY. Dropping a sender resets its stream, so they are
/// kept to the end.
struct SpdyStreams {
    stdin: Option<(Sender, Receiver)>,
    stdout: Option<(Sender, Receiver)>,
    error: Option<(Sender, Receiver)>,
}

impl SpdyStreams {
    async fn take(
        incoming: &mut connection::Incoming,
        options: Options,
        protocol: SpdyProtocol,
    ) -> Result<Self> {
        let mut streams = Self {
            stdin: None,
            stdout: None,
            error: None,
        };
        for _ in options.streams(protocol) {
            let request = incoming.next().await.context("a stream is missing")?;
            let channel = request.headers().get(STREAM_TYPE);
            let channel = channel.and_then(Channel::from_stream_type);
            let place = match channel.context("a stream without a type")? {
                Channel::Stdin => &mut streams.stdin,
                Channel::Stdout => &mut streams.stdout,
                Channel::Error => &mut streams.error,
                other => bail!("an unexpected stream: {other:?}"),
            };
            let stream = request.accept(Headers::new())?;
            *place = Some((stream.sender, stream.receiver));
        }
        Ok(streams)
    }

    /// Sends the outcome of the command, as kubelets do: last of all.
    async fn end(&mut self, outcome: &Outcome, protocol: SpdyProtocol) -> Result<()> {
        for (sender, _) in [&mut self.stdout, &mut self.stdin].into_iter().flatten() {
            sender.finish()?;
        }
        let (sender, _) = self.error.as_mut().context("no stream for errors")?;
        sender.write(outcome.encode(protocol.version())).await?;
        Ok(sender.finish()?)
    }
}

impl Streams for SpdyStreams {
    async fn read(&mut self) -> Result<Option<Bytes>> {
        let (_, receiver) = self.stdin.as_mut().context("no stdin")?;
        Ok(receiver.read().await?)
    }

    async fn write(&mut self, data: Bytes) -> Result<()> {
        let (sender, _) = self.stdout.as_mut().context("no stdout")?;
        Ok(sender.write(data).await?)
    }
}

/// A WebSocket without a translator.
async fn direct(mut io: Io, head: &RequestHead, query: &str) -> Result<()> {
    let work = NodeCommand::from_query(query)?;
    let request = parse_upgrade_request(&head.method, &head.headers)?;
    let taken = HeaderValue::from_static(Protocol::V5.name());
    let mut headers = HeaderMap::new();
    set_response_headers(&request, Some(taken), &mut headers);
    respond(&mut io, StatusCode::SWITCHING_PROTOCOLS, &headers, "").await?;
    let mut streams = WebSocketStreams {
        io,
        buffer: BytesMut::new(),
        out: BytesMut::new(),
        frames: Decoder::new(Role::Server, LIMITS),
        reader: FromClient::new(Protocol::V5),
        writer: ToClient::new(Protocol::V5),
    };
    let outcome = perform(work, &mut streams).await?;
    streams.end(&outcome).await
}

struct WebSocketStreams {
    io: Io,
    buffer: BytesMut,
    out: BytesMut,
    frames: Decoder,
    reader: FromClient,
    writer: ToClient,
}

impl WebSocketStreams {
    async fn end(&mut self, outcome: &Outcome) -> Result<()> {
        let status = outcome.encode(Protocol::V5.version());
        self.writer.write(Output::Error, &status, &mut self.out);
        let close = Control::Close(Some(Close::new(CloseCode::NORMAL, "")));
        self.writer.control(&close, &mut self.out);
        self.send().await?;
        Ok(self.io.shutdown().await?)
    }

    async fn send(&mut self) -> Result<()> {
        self.io.write_all(&self.out).await?;
        self.out.clear();
        Ok(self.io.flush().await?)
    }
}

impl Streams for WebSocketStreams {
    async fn read(&mut self) -> Result<Option<Bytes>> {
        loop {
            match self.frames.decode(&mut self.buffer)? {
                Some(Event::Chunk(piece)) => match self.reader.read_chunk(piece)? {
                    Some(ChannelEvent::Data(Input::Stdin, data)) => return Ok(Some(data)),
                    Some(ChannelEvent::Closed(Input::Stdin)) => return Ok(None),
                    _ => {}
                },
                Some(Event::Control(_)) => {}
                None => {
                    self.buffer.reserve(READ_BUFFER_BYTES);
                    let read = self.io.read_buf(&mut self.buffer).await?;
                    ensure!(read > 0, "cut off");
                }
            }
        }
    }

    async fn write(&mut self, data: Bytes) -> Result<()> {
        self.writer.write(Output::Stdout, &data, &mut self.out);
        self.send().await
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::Ca;

    use super::*;
    use crate::pki::Pki;
    use crate::proxies::free_ports;
    use crate::scratch_dir::ScratchDir;
    use crate::translate::client::Target;
    use crate::translate::node_command::exec_path;

    async fn started(scratch: &ScratchDir) -> Target {
        let ca = Ca::new("cluster");
        let pki = Pki::issued_by(&ca, scratch).unwrap();
        let [port] = free_ports().unwrap();
        tokio::spawn(run(Node {
            port,
            certificate: pki.certificate,
            key: pki.key,
        }));
        let address = loopback(port);
        while TcpStream::connect(address).await.is_err() {
            tokio::task::yield_now().await;
        }
        Target {
            address,
            path: DIRECT_PATH.to_owned(),
            tls: pki::stream_client(&ca, &ca.client("admin", &[])).unwrap(),
        }
    }

    #[tokio::test]
    async fn client_and_node_interoperate() {
        let scratch = ScratchDir::create().unwrap();
        let target = started(&scratch).await;
        for bytes in [0, 1, 1 << 20] {
            target.send(bytes).await.unwrap();
            target.receive(bytes).await.unwrap();
        }
        let exchanged = target
            .exchange_messages(3, 5, Duration::ZERO)
            .await
            .unwrap();
        assert_eq!(exchanged.messages, 0);
    }

    #[tokio::test]
    async fn an_untranslated_websocket_is_rejected() {
        let scratch = ScratchDir::create().unwrap();
        let target = Target {
            path: exec_path(),
            ..started(&scratch).await
        };
        let error = target.send(1).await.unwrap_err().to_string();
        assert!(error.starts_with("answered 400"), "{error}");
    }
}
