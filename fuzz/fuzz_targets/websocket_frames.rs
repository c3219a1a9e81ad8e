//! Any bytes, in any split, in both roles: the same events, no panic, nothing
//! beyond the limits; and what is read can be written and read again.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use skewbridge_websocket::{
    Assembly, Control, Decoder, Encoder, Event, Frame, Limits, MessageKind, Role, Violation,
};

const LIMITS: Limits = Limits {
    frame: 4096,
    message: 8192,
};

#[derive(Debug, PartialEq)]
enum Received {
    Message(MessageKind, Bytes),
    Control(Control),
}

fn read(role: Role, bytes: &[u8], cut: usize) -> (Vec<Received>, Option<Violation>) {
    let (mut decoder, mut assembly) = (Decoder::new(role, LIMITS), Assembly::default());
    let (mut buffer, mut received) = (BytesMut::new(), Vec::new());
    for chunk in bytes.chunks(cut) {
        buffer.extend_from_slice(chunk);
        loop {
            match decoder.decode(&mut buffer) {
                Err(violation) => return (received, Some(violation)),
                Ok(None) => break,
                Ok(Some(Event::Control(control))) => received.push(Received::Control(control)),
                Ok(Some(Event::Chunk(chunk))) => {
                    if let Some((kind, message)) = assembly.push(chunk) {
                        assert!(message.len() as u64 <= LIMITS.message);
                        received.push(Received::Message(kind, message));
                    }
                }
            }
        }
    }
    (received, None)
}

fuzz_target!(|input: &[u8]| {
    let Some((&cut, bytes)) = input.split_first() else {
        return;
    };
    for (role, other) in [(Role::Client, Role::Server), (Role::Server, Role::Client)] {
        let (received, violation) = read(role, bytes, usize::MAX);
        let split = read(role, bytes, usize::from(cut).max(1));
        assert_eq!((&received, violation), (&split.0, split.1));

        // A message of several frames comes back as one, which may be longer
        // than a frame is allowed to be.
        let (mut encoder, mut wire) = (Encoder::new(other), BytesMut::new());
        for event in &received {
            match event {
                Received::Control(control) => encoder.control(control, &mut wire),
                Received::Message(kind, message) => {
                    let (left, right) = message.split_at(message.len() / 2);
                    encoder.write(Frame::First(*kind), &[left], &mut wire);
                    encoder.write(Frame::Last, &[right], &mut wire);
                }
            }
        }
        assert_eq!(read(role, &wire, usize::MAX), (received, None));
    }
});
