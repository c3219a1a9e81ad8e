//! A remote command by WebSocket, and SPDY inside of a WebSocket.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use bytes::BytesMut;
use skewbridge_remotecommand::port_forward::tunnel;
use skewbridge_remotecommand::{
    ChannelEvent, Failure, FromClient, Input, Options, Outcome, Output, Protocol, ToClient, Version,
};
use skewbridge_websocket::{
    Close, CloseCode, Control, ControlPayload, Decoder, Encoder, Event, Frame, Limits,
    MessageChunk, MessageKind, Role,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::command_pipes::{Inputs, ProcessEnd, READ_BUFFER_BYTES, ends};

/// Chunks are forwarded as they arrive: messages of any size are not buffered.
const LIMITS: Limits = Limits {
    frame: u64::MAX,
    message: u64::MAX,
};

/// Pings that wait for their pong; further ones are dropped.
pub(super) const MAX_PENDING_PONGS: usize = 4;

/// Time for a client to receive the result and to close.
pub(super) const RESULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves a command to its end, or until the client disconnects: then the command is dropped.
pub(super) async fn serve<T, F>(
    io: T,
    options: Options,
    protocol: Protocol,
    run: impl FnOnce(ProcessEnd) -> F,
) where
    T: AsyncRead + AsyncWrite,
    F: Future<Output = Outcome>,
{
    let (process_end, client_end) = ends(options);
    let (mut outputs, inputs) = (client_end.outputs, client_end.inputs);
    let (read, mut write) = tokio::io::split(io);
    let (ping, mut pings) = mpsc::channel(MAX_PENDING_PONGS);
    let mut reading = pin!(listen(read, protocol, inputs, ping));
    let mut command = pin!(run(process_end));
    let exchange = async {
        let mut writer = ToClient::new(protocol);
        let mut out = BytesMut::new();
        writer.open(options, &mut out);
        let mut outcome = None;
        while outcome.is_none() || outputs.is_open() {
            write.write_all_buf(&mut out).await?;
            write.flush().await?;
            tokio::select! {
                it = &mut command, if outcome.is_none() => outcome = Some(it),
                Some(payload) = pings.recv() => writer.control(&Control::Pong(payload), &mut out),
                piece = outputs.next(), if outputs.is_open() => if let Some((output, data)) = piece {
                    writer.write(output, &data, &mut out);
                },
            }
        }
        let words = as_translated(outcome.unwrap_or(Outcome::Disconnected), protocol)
            .encode(protocol.version());
        // Before v4, success is not reported.
        if !words.is_empty() {
            writer.write(Output::Error, &words, &mut out);
        }
        let close = Close::new(CloseCode::NORMAL, "");
        writer.control(&Control::Close(Some(close)), &mut out);
        timeout(RESULT_TIMEOUT, write.write_all_buf(&mut out)).await??;
        timeout(RESULT_TIMEOUT, write.shutdown()).await?
    };
    tokio::select! {
        () = &mut reading => return,
        result = exchange => if result.is_err() { return },
    }
    // Closing at once could lose data in flight.
    let _ = timeout(RESULT_TIMEOUT, reading).await;
}

/// A failure as kube-apiserver forwards it. kube-apiserver translates version 5 itself, and turns
/// the node's message into an error of its own.
fn as_translated(outcome: Outcome, protocol: Protocol) -> Outcome {
    match outcome {
        Outcome::Failed(failure) if protocol.version() == Version::V5 => {
            Outcome::Failed(Failure::internal(failure.message))
        }
        other => other,
    }
}

/// Reads from the client until it disconnects.
async fn listen(
    read: impl AsyncRead + Unpin,
    protocol: Protocol,
    mut inputs: Inputs,
    pings: mpsc::Sender<ControlPayload>,
) {
    let mut messages = MessageReader::new(read, pings);
    let mut reader = FromClient::new(protocol);
    while let Some(piece) = messages.next().await {
        match reader.read_chunk(piece) {
            Ok(Some(ChannelEvent::Data(Input::Stdin, data))) => inputs.write(data).await,
            Ok(Some(ChannelEvent::Data(Input::Resize, data))) => inputs.resizing.push(&data),
            Ok(Some(ChannelEvent::Closed(Input::Stdin))) => inputs.stdin = None,
            Ok(Some(ChannelEvent::Closed(Input::Resize)) | None) => {}
            Err(_) => return,
        }
    }
}

/// Tunnels bytes: `inside` is the other end of the SPDY connection.
pub(super) async fn tunnel(io: impl AsyncRead + AsyncWrite, inside: DuplexStream) {
    let (read, mut write) = tokio::io::split(io);
    let (mut from_inside, mut to_inside) = tokio::io::split(inside);
    let (ping, mut pings) = mpsc::channel(MAX_PENDING_PONGS);
    let inwards = async {
        let mut messages = MessageReader::new(read, ping);
        while let Some(piece) = messages.next().await {
            let Ok(data) = tunnel::tunnel_payload(piece) else {
                return;
            };
            if to_inside.write_all(&data).await.is_err() {
                return;
            }
        }
    };
    let outwards = async {
        let mut encoder = Encoder::new(Role::Server);
        let (mut out, mut piece) = (BytesMut::new(), BytesMut::with_capacity(READ_BUFFER_BYTES));
        loop {
            tokio::select! {
                read = from_inside.read_buf(&mut piece) => {
                    if read? == 0 {
                        break;
                    }
                    encoder.write(Frame::Whole(MessageKind::Binary), &[&piece], &mut out);
                    piece.clear();
                }
                Some(payload) = pings.recv() => encoder.control(&Control::Pong(payload), &mut out),
            }
            write.write_all_buf(&mut out).await?;
            write.flush().await?;
        }
        let close = Close::new(CloseCode::NORMAL, "");
        encoder.control(&Control::Close(Some(close)), &mut out);
        timeout(RESULT_TIMEOUT, write.write_all_buf(&mut out)).await??;
        timeout(RESULT_TIMEOUT, write.shutdown()).await?
    };
    let mut inwards = pin!(inwards);
    tokio::select! {
        () = &mut inwards => return,
        result = outwards => if result.is_err() { return },
    }
    let _ = timeout(RESULT_TIMEOUT, inwards).await;
}

/// Reads messages of a client.
pub(super) struct MessageReader<R> {
    read: R,
    buffer: BytesMut,
    decoder: Decoder,
    pings: mpsc::Sender<ControlPayload>,
}

impl<R: AsyncRead + Unpin> MessageReader<R> {
    pub(super) fn new(read: R, pings: mpsc::Sender<ControlPayload>) -> Self {
        Self {
            read,
            buffer: BytesMut::new(),
            decoder: Decoder::new(Role::Server, LIMITS),
            pings,
        }
    }

    /// The next chunk; `None` if the client has disconnected or violated the protocol.
    pub(super) async fn next(&mut self) -> Option<MessageChunk> {
        loop {
            match self.decoder.decode(&mut self.buffer) {
                Ok(Some(Event::Chunk(piece))) => return Some(piece),
                Ok(Some(Event::Control(Control::Ping(payload)))) => {
                    // Pongs are dropped if pings arrive faster than they can be answered.
                    let _ = self.pings.try_send(payload);
                }
                Ok(Some(Event::Control(Control::Pong(_)))) => {}
                Ok(Some(Event::Control(Control::Close(_)))) | Err(_) => return None,
                Ok(None) => {
                    self.buffer.reserve(READ_BUFFER_BYTES);
                    match self.read.read_buf(&mut self.buffer).await {
                        Ok(1..) => {}
                        Ok(0) | Err(_) => return None,
                    }
                }
            }
        }
    }
}
