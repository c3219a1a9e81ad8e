//! The client: WebSocket over TLS, version 5 of the protocol, as in kubectl.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use http::header::{HOST, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use skewbridge_http_engine::http1::{parse_response, write_headers, write_request_line};
use skewbridge_remotecommand::{
    ChannelEvent, ErrorChannel, ErrorChannelEnd, FromServer, Input, Outcome, Output, Protocol,
    ToServer,
};
use skewbridge_websocket::{
    Control, Decoder, Event, Key, Limits, Role, check_response, set_request_headers,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::node_command::{NodeCommand, SMALL_MESSAGE_BYTES};
use crate::pattern::Pattern;
use crate::pki::SERVER_NAME;

/// The read buffer size, below TLS and above it.
pub(crate) const READ_BUFFER_BYTES: usize = 128 * 1024;
/// Much more than either translator puts into a message.
pub(crate) const LIMITS: Limits = Limits {
    frame: 16 << 20,
    message: 16 << 20,
};
/// A small message.
const TEXT: &[u8; SMALL_MESSAGE_BYTES] = b"the quick brown ";
/// For opening a session, and for its end after the outcome.
const SESSION_TIMEOUT: Duration = Duration::from_secs(20);

/// The address for commands.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) path: String,
    pub(crate) tls: Arc<ClientConfig>,
}

impl Target {
    /// The time to send this many bytes, until the node confirms that it has received them.
    pub(crate) async fn send(&self, bytes: u64) -> Result<Duration> {
        let mut session = Session::open(self, NodeCommand::Sink { bytes }).await?;
        let mut pattern = Pattern::default();
        let start = Instant::now();
        while let Some(message) = pattern.next(bytes) {
            session.send(&message).await?;
        }
        session.close_stdin().await?;
        while session.errors.bytes().is_empty() {
            session.read_stdout().await?;
        }
        let elapsed = start.elapsed();
        session.end().await?;
        Ok(elapsed)
    }

    /// The time until this many bytes have arrived, and no more.
    pub(crate) async fn receive(&self, bytes: u64) -> Result<Duration> {
        let mut session = Session::open(self, NodeCommand::Source { bytes }).await?;
        let mut pattern = Pattern::default();
        let start = Instant::now();
        // The success status may overtake the last of the data.
        while pattern.passed() < bytes || session.errors.bytes().is_empty() {
            let piece = session.read_stdout().await?;
            pattern.check(&piece)?;
        }
        ensure!(pattern.passed() == bytes, "more than requested");
        let elapsed = start.elapsed();
        session.end().await?;
        Ok(elapsed)
    }

    /// How many small messages go to the node and back in this time. In each session `at_once`
    /// messages are sent, and the next ones when all of these have returned.
    pub(crate) async fn exchange_messages(
        &self,
        sessions: u32,
        at_once: u32,
        time: Duration,
    ) -> Result<ExchangeResult> {
        let words = Bytes::from(TEXT.repeat(usize::try_from(at_once)?));
        let mut open = Vec::new();
        for _ in 0..sessions {
            let mut session = Session::open(self, NodeCommand::Echo).await?;
            session.exchange(&words).await?;
            open.push(session);
        }
        let start = Instant::now();
        let deadline = start + time;
        let mut exchanges = JoinSet::new();
        for mut session in open {
            let words = words.clone();
            exchanges.spawn(async move {
                let mut messages = 0_u32;
                while Instant::now() < deadline {
                    session.exchange(&words).await?;
                    messages += at_once;
                }
                anyhow::Ok((session, messages))
            });
        }
        let (mut open, mut messages) = (Vec::new(), 0);
        while let Some(result) = exchanges.join_next().await {
            let (session, count) = result??;
            open.push(session);
            messages += count;
        }
        let elapsed = start.elapsed();
        for mut session in open {
            session.close_stdin().await?;
            session.end().await?;
        }
        Ok(ExchangeResult { messages, elapsed })
    }
}

/// The result of an exchange of messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExchangeResult {
    pub(crate) messages: u32,
    pub(crate) elapsed: Duration,
}

/// One command.
struct Session {
    io: TlsStream<BufReader<TcpStream>>,
    buffer: BytesMut,
    out: BytesMut,
    frames: Decoder,
    reader: FromServer,
    writer: ToServer,
    errors: ErrorChannel,
    ended: bool,
}

impl Session {
    async fn open(target: &Target, work: NodeCommand) -> Result<Self> {
        timeout(SESSION_TIMEOUT, Self::connect(target, work))
            .await
            .context("no answer")?
    }

    async fn connect(target: &Target, work: NodeCommand) -> Result<Self> {
        let tcp = TcpStream::connect(target.address).await?;
        tcp.set_nodelay(true)?;
        let tcp = BufReader::with_capacity(READ_BUFFER_BYTES, tcp);
        let name = ServerName::try_from(SERVER_NAME)?;
        let tls = TlsConnector::from(target.tls.clone());
        let mut io = tls.connect(name, tcp).await?;

        let (key, offers) = (Key::random(), [Protocol::V5.name()]);
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static(SERVER_NAME));
        set_request_headers(&key, offers, &mut headers)?;
        let mut out = BytesMut::new();
        let wanted = format!("{}?{}", target.path, work.query());
        write_request_line(&mut out, &Method::GET, &wanted);
        write_headers(&mut out, &headers);
        out.extend_from_slice(b"\r\n");
        io.write_all(&out).await?;
        io.flush().await?;

        let mut buffer = BytesMut::new();
        let head = loop {
            let read = io.read_buf(&mut buffer).await?;
            ensure!(read > 0, "no answer");
            if let Some(head) = parse_response(&mut buffer, &Method::GET)? {
                break head;
            }
        };
        if head.status != StatusCode::SWITCHING_PROTOCOLS {
            let _ = timeout(SESSION_TIMEOUT, io.read_buf(&mut buffer)).await;
            let text = String::from_utf8_lossy(&buffer).into_owned();
            bail!("answered {}: {text}", head.status);
        }
        let taken = check_response(head.status, &head.headers, &key, &offers)?;
        ensure!(taken.is_some(), "no protocol was agreed on");
        out.clear();
        Ok(Self {
            io,
            buffer,
            out,
            frames: Decoder::new(Role::Client, LIMITS),
            reader: FromServer::new(Protocol::V5),
            writer: ToServer::new(Protocol::V5),
            errors: ErrorChannel::new(Protocol::V5.version()),
            ended: false,
        })
    }

    async fn send(&mut self, message: &[u8]) -> Result<()> {
        self.writer.write(Input::Stdin, message, &mut self.out);
        self.flush().await
    }

    async fn close_stdin(&mut self) -> Result<()> {
        ensure!(
            self.writer.close(Input::Stdin, &mut self.out),
            "no signal for the end"
        );
        self.flush().await
    }

    async fn flush(&mut self) -> Result<()> {
        self.io.write_all(&self.out).await?;
        self.out.clear();
        Ok(self.io.flush().await?)
    }

    /// Sends small messages to the node and reads them back.
    async fn exchange(&mut self, words: &[u8]) -> Result<()> {
        for message in words.chunks(SMALL_MESSAGE_BYTES) {
            self.writer.write(Input::Stdin, message, &mut self.out);
        }
        self.flush().await?;
        let mut received = 0;
        while received < words.len() {
            let piece = self.read_stdout().await?;
            ensure!(
                words[received..].starts_with(&piece),
                "an echo of other data"
            );
            received += piece.len();
        }
        Ok(())
    }

    /// The next stdout data; empty for another channel.
    async fn read_stdout(&mut self) -> Result<Bytes> {
        let received = self.next().await?;
        ensure!(!self.ended, "the session has ended early");
        Ok(received)
    }

    async fn next(&mut self) -> Result<Bytes> {
        loop {
            match self.frames.decode(&mut self.buffer)? {
                Some(Event::Chunk(piece)) => match self.reader.read_chunk(piece)? {
                    Some(ChannelEvent::Data(Output::Stdout, data)) => return Ok(data),
                    Some(ChannelEvent::Data(Output::Error, data)) => {
                        self.errors.push(&data);
                        return Ok(Bytes::new());
                    }
                    Some(event) => bail!("unexpected {event:?}"),
                    None => {}
                },
                Some(Event::Control(Control::Ping(payload))) => {
                    let pong = Control::Pong(payload);
                    self.writer.control(&pong, &mut self.out);
                    self.flush().await?;
                }
                Some(Event::Control(Control::Pong(_))) => {}
                Some(Event::Control(Control::Close(_))) => {
                    self.ended = true;
                    return Ok(Bytes::new());
                }
                None => {
                    self.buffer.reserve(READ_BUFFER_BYTES);
                    if self.io.read_buf(&mut self.buffer).await? == 0 {
                        self.ended = true;
                        return Ok(Bytes::new());
                    }
                }
            }
        }
    }

    /// Waits for the end of the connection; the command must have succeeded.
    async fn end(mut self) -> Result<()> {
        let rest = async {
            while !self.ended {
                let piece = self.next().await?;
                ensure!(piece.is_empty(), "more than requested");
            }
            Ok(())
        };
        timeout(SESSION_TIMEOUT, rest).await.context("no end")??;
        match self.errors.end(ErrorChannelEnd::Clean) {
            Outcome::Success => Ok(()),
            outcome => bail!("the command has failed: {outcome:?}"),
        }
    }
}
