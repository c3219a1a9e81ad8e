//! Frames of streams: SPDY, WebSocket, and the channels of remote commands.

use std::hint::black_box;
use std::task::Poll;

use bytes::{Buf as _, Bytes, BytesMut};
use gungraun::prelude::*;
use skewbridge_remotecommand::{FromClient, Output, Protocol, ToClient};
use skewbridge_spdy::frame::StreamId;
use skewbridge_spdy::{
    Config, Event as SpdyEvent, Headers, Layout, OpenOptions, Role as SpdyRole, SendBuffer, Session,
};
use skewbridge_websocket::{
    Decoder, Encoder, Event, Frame, Limits, Mask, MessageChunk, MessageKind, Role,
};

use crate::ROUNDS;

/// A keystroke, a line of a log, and a block of a copied file.
const PAYLOAD_BYTES: [usize; 3] = [1, 120, 16 << 10];

fn payloads() -> [Bytes; 3] {
    PAYLOAD_BYTES.map(|length| (b'a'..=b'z').cycle().take(length).collect())
}

/// The streams of `kubectl exec -it`.
const STREAM_TYPES: [&str; 4] = ["error", "stdin", "stdout", "resize"];

/// Both ends of a SPDY connection.
struct Spdy {
    client: Session,
    server: Session,
    wire: BytesMut,
    sent: SendBuffer,
}

impl Spdy {
    fn new() -> Self {
        let config = || Config {
            max_streams: 2 * ROUNDS * STREAM_TYPES.len(),
            ..Config::default()
        };
        Self {
            client: Session::new(SpdyRole::Client, config()),
            server: Session::new(SpdyRole::Server, config()),
            wire: BytesMut::with_capacity(64 << 10),
            sent: SendBuffer::new(Layout::Vectored),
        }
    }

    /// Opens the streams of one command, and returns the last one.
    fn open(&mut self) -> Option<StreamId> {
        let mut last = None;
        for name in STREAM_TYPES {
            let options = OpenOptions {
                headers: Headers::new().with("streamtype", name),
                ..OpenOptions::default()
            };
            last = self.client.open(options).ok();
        }
        transfer(
            &mut self.client,
            &mut self.server,
            &mut self.sent,
            &mut self.wire,
        );
        last
    }

    /// Writes to a stream at the server, and reads it at the client.
    fn exchange(&mut self, stream: StreamId, payloads: &[Bytes; 3]) {
        for payload in black_box(payloads) {
            black_box(self.server.write(stream, payload.clone()).is_ok());
        }
        transfer(
            &mut self.server,
            &mut self.client,
            &mut self.sent,
            &mut self.wire,
        );
        while let Poll::Ready(Ok(Some(data))) = self.client.poll_read(stream) {
            black_box(data);
        }
    }
}

/// Sends all output of one end to the other, which accepts all streams.
fn transfer(from: &mut Session, to: &mut Session, sent: &mut SendBuffer, wire: &mut BytesMut) {
    from.transmit(sent, |_| {});
    while sent.has_remaining() {
        let chunk = sent.chunk();
        let length = chunk.len();
        wire.extend_from_slice(chunk);
        sent.advance(length);
    }
    while let Ok(Some(event)) = to.receive(wire) {
        if let SpdyEvent::Opened { stream, .. } = black_box(event) {
            black_box(to.accept(stream, Headers::new()).is_ok());
        }
    }
}

fn connection() -> Spdy {
    let mut spdy = Spdy::new();
    spdy.open();
    spdy
}

// The streams of many commands on one connection: control frames with compressed headers.
#[library_benchmark]
#[bench::commands(connection())]
fn spdy_open_streams(mut spdy: Spdy) -> Spdy {
    for _ in 0..ROUNDS {
        black_box(spdy.open());
    }
    spdy
}

struct OpenStream {
    spdy: Spdy,
    stream: StreamId,
    payloads: [Bytes; 3],
}

fn open_stream() -> OpenStream {
    let mut spdy = Spdy::new();
    let stream = spdy.open().expect("the limit of streams is not reached");
    let payloads = payloads();
    spdy.exchange(stream, &payloads);
    OpenStream {
        spdy,
        stream,
        payloads,
    }
}

#[library_benchmark]
#[bench::payloads(open_stream())]
fn spdy_data_frames(mut open: OpenStream) -> OpenStream {
    for _ in 0..ROUNDS {
        open.spdy.exchange(open.stream, &open.payloads);
    }
    open
}

const LIMITS: Limits = Limits {
    frame: 1 << 20,
    message: 1 << 20,
};

/// The frame of a client. Its mask is always the same: random ones need a generator, which costs
/// more than the frame.
fn masked_frame(payload: &[u8], out: &mut BytesMut) {
    let from = out.len();
    let mask = Mask::new(*b"mask");
    Encoder::new(Role::Server).write(Frame::Whole(MessageKind::Binary), &[payload], out);
    let header = out.len() - from - payload.len();
    let mut frame = out.split_off(from);
    frame[1] |= 0x80;
    let mut payload = frame.split_off(header);
    let _ = mask.apply(&mut payload);
    out.extend_from_slice(&frame);
    out.extend_from_slice(&mask.key());
    out.extend_from_slice(&payload);
}

fn read_frames(wire: &mut BytesMut) -> usize {
    let mut decoder = Decoder::new(Role::Server, LIMITS);
    let mut bytes = 0;
    while let Ok(Some(event)) = decoder.decode(wire) {
        if let Event::Chunk(chunk) = black_box(event) {
            bytes += chunk.bytes.len();
        }
    }
    bytes
}

fn masked_frames() -> BytesMut {
    let mut wire = BytesMut::new();
    for payload in payloads() {
        masked_frame(&payload, &mut wire);
    }
    let mut once = wire.clone();
    assert_eq!(read_frames(&mut once), PAYLOAD_BYTES.iter().sum::<usize>());
    wire.repeat(ROUNDS).as_slice().into()
}

#[library_benchmark]
#[bench::masked(masked_frames())]
fn websocket_read_frames(mut wire: BytesMut) -> (BytesMut, usize) {
    let bytes = read_frames(&mut wire);
    (wire, bytes)
}

struct Written {
    encoder: Encoder,
    payloads: [Bytes; 3],
    wire: BytesMut,
}

impl Written {
    fn round(&mut self) {
        self.wire.clear();
        for payload in black_box(&self.payloads) {
            let frame = Frame::Whole(MessageKind::Binary);
            self.encoder.write(frame, &[payload], &mut self.wire);
        }
    }
}

fn unwritten() -> Written {
    let mut written = Written {
        encoder: Encoder::new(Role::Server),
        payloads: payloads(),
        wire: BytesMut::with_capacity(32 << 10),
    };
    written.round();
    written
}

#[library_benchmark]
#[bench::unmasked(unwritten())]
fn websocket_write_frames(mut written: Written) -> Written {
    for _ in 0..ROUNDS {
        written.round();
    }
    written
}

struct Channels {
    reader: FromClient,
    writer: ToClient,
    /// The messages of a client on the channel of standard input.
    messages: [Bytes; 3],
    output: [Bytes; 3],
    wire: BytesMut,
}

impl Channels {
    fn new() -> Self {
        let mut channels = Self {
            reader: FromClient::new(Protocol::V5),
            writer: ToClient::new(Protocol::V5),
            messages: payloads().map(|payload| [&[STDIN], &payload[..]].concat().into()),
            output: payloads(),
            wire: BytesMut::with_capacity(32 << 10),
        };
        channels.round();
        channels
    }

    fn round(&mut self) {
        self.wire.clear();
        for message in black_box(&self.messages) {
            let chunk = MessageChunk {
                kind: MessageKind::Binary,
                is_first: true,
                is_last: true,
                bytes: message.clone(),
            };
            let _ = black_box(self.reader.read_chunk(chunk));
        }
        for data in black_box(&self.output) {
            let writer = &mut self.writer;
            black_box(writer.frame(Output::Stdout, data.clone(), &mut self.wire));
        }
    }
}

/// The number of the channel of standard input.
const STDIN: u8 = 0;

#[library_benchmark]
#[bench::v5(Channels::new())]
fn channel_frames(mut channels: Channels) -> Channels {
    for _ in 0..ROUNDS {
        channels.round();
    }
    channels
}

library_benchmark_group!(
    name = stream_parts,
    benchmarks = [
        spdy_open_streams,
        spdy_data_frames,
        websocket_read_frames,
        websocket_write_frames,
        channel_frames
    ]
);
