//! SPDY: any bytes, in any pieces, to a decoder and to a session.
//!
//! The first two bytes say how the others are cut and which end reads them.
#![no_main]

use std::task::Poll;

use bytes::{Buf as _, BytesMut};
use libfuzzer_sys::fuzz_target;
use skewbridge_spdy::frame::{Data, Fin, Frame, StreamId};
use skewbridge_spdy::{
    Config, Decoder, Event, FlowControl, Headers, Layout, Opening, Outbox, Role, Session,
};

fuzz_target!(|input: &[u8]| {
    let [piece, role, wire @ ..] = input else {
        return;
    };
    let piece = usize::from(*piece).max(1);
    assert_eq!(frames(wire, wire.len().max(1)), frames(wire, piece));
    let role = if role & 1 == 0 {
        Role::Client
    } else {
        Role::Server
    };
    session(wire, piece, role);
});

/// What is read, with the pieces of a data frame joined, and how it ends.
fn frames(wire: &[u8], piece: usize) -> (Vec<Frame>, Option<String>) {
    let mut decoder = Decoder::new();
    let mut buffer = BytesMut::new();
    let mut frames: Vec<Frame> = Vec::new();
    for piece in wire.chunks(piece) {
        buffer.extend_from_slice(piece);
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

/// Lets a session read it, with an application that takes part.
fn session(wire: &[u8], piece: usize, role: Role) {
    let config = Config {
        flow_control: FlowControl::Learned,
        max_streams: 8,
        receive_window: 1000,
        send_queue: 1000,
        ..Config::default()
    };
    let mut session = Session::new(role, config);
    let _ = session.open(Opening::default());
    let mut buffer = BytesMut::new();
    for piece in wire.chunks(piece) {
        buffer.extend_from_slice(piece);
        loop {
            match session.receive(&mut buffer) {
                Ok(Some(event)) => react(&mut session, &event),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
    let mut outbox = Outbox::new(Layout::Vectored);
    session.transmit(&mut outbox, |_| {});
    // What goes out is bounded by what came: a frame has eight bytes at least, and
    // what is said to it, by the application too, is less than 512.
    assert!(outbox.remaining() < 4096 + 64 * wire.len());
    assert!(session.streams() <= 16);
}

fn react(session: &mut Session, event: &Event) {
    match event {
        Event::Opened { stream, .. } => {
            let _ = session.accept(*stream, Headers::new());
            let _ = session.write(*stream, "hello".into());
        }
        Event::Readable(stream) => read(session, *stream),
        Event::Answered(stream) => {
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
