//! SPDY: any bytes, in any chunks, to a decoder and to a session.
//!
//! The first two input bytes are the chunk size and the role of the reader.
#![no_main]

use std::task::Poll;

use bytes::{Buf as _, BytesMut};
use libfuzzer_sys::fuzz_target;
use skewbridge_spdy::frame::{Data, Fin, Frame, StreamId};
use skewbridge_spdy::{
    Config, Decoder, Event, FlowControl, Headers, Layout, OpenOptions, Role, SendBuffer, Session,
};

fuzz_target!(|input: &[u8]| {
    let [chunk, role, wire @ ..] = input else {
        return;
    };
    let chunk = usize::from(*chunk).max(1);
    assert_eq!(frames(wire, wire.len().max(1)), frames(wire, chunk));
    let role = if role & 1 == 0 {
        Role::Client
    } else {
        Role::Server
    };
    session(wire, chunk, role);
});

/// The decoded frames, with the chunks of a data frame joined, and the error if there is one.
fn frames(wire: &[u8], chunk: usize) -> (Vec<Frame>, Option<String>) {
    let mut decoder = Decoder::new();
    let mut buffer = BytesMut::new();
    let mut frames: Vec<Frame> = Vec::new();
    for chunk in wire.chunks(chunk) {
        buffer.extend_from_slice(chunk);
        loop {
            match decoder.decode(&mut buffer) {
                Ok(Some(Frame::Data(next))) => join(&mut frames, next),
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error.to_string())),
            }
        }
    }
    (frames, None)
}

fn join(frames: &mut Vec<Frame>, next: Data) {
    if let Some(Frame::Data(last)) = frames.last_mut()
        && last.stream == next.stream
        && last.fin == Fin::No
    {
        last.payload = [&last.payload[..], &next.payload].concat().into();
        last.fin = next.fin;
        return;
    }
    frames.push(Frame::Data(next));
}

/// Feeds a session, with an application that accepts, reads and writes.
fn session(wire: &[u8], chunk: usize, role: Role) {
    let config = Config {
        flow_control: FlowControl::Auto,
        max_streams: 8,
        receive_window: 1000,
        send_queue: 1000,
        ..Config::default()
    };
    let mut session = Session::new(role, config);
    let _ = session.open(OpenOptions::default());
    let mut buffer = BytesMut::new();
    for chunk in wire.chunks(chunk) {
        buffer.extend_from_slice(chunk);
        loop {
            match session.receive(&mut buffer) {
                Ok(Some(event)) => handle_event(&mut session, &event),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
    let mut send_buffer = SendBuffer::new(Layout::Vectored);
    session.transmit(&mut send_buffer, |_| {});
    // Output is bounded by input: a frame has at least eight bytes, and the session and
    // the application answer each with less than 512.
    assert!(send_buffer.remaining() < 4096 + 64 * wire.len());
    assert!(session.streams() <= 16);
}

fn handle_event(session: &mut Session, event: &Event) {
    match event {
        Event::Opened { stream, .. } => {
            let _ = session.accept(*stream, Headers::new());
            let _ = session.write(*stream, "hello".into());
        }
        Event::Readable(stream) => read(session, *stream),
        Event::Accepted(stream) => {
            let _ = session.finish(*stream);
        }
        _ => {}
    }
}

fn read(session: &mut Session, stream: StreamId) {
    while let Poll::Ready(Ok(Some(data))) = session.poll_read(stream) {
        assert!(!data.is_empty());
    }
}
