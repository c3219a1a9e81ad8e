use proptest::prelude::*;

use super::*;
use crate::assembly::Assembly;
use crate::close_code::CloseCode;
use crate::control::{Close, ControlPayload};
use crate::encode::Encoder;
use crate::frame::Frame;

const LIMITS: Limits = Limits {
    frame: 1000,
    message: 2000,
};

/// A complete message or a control frame.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Received {
    Message(MessageKind, Bytes),
    Control(Control),
}

/// Everything that was decoded completely, and the error if there is one.
fn read<'a>(
    role: Role,
    limits: Limits,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Received>, Option<Violation>) {
    let mut decoder = Decoder::new(role, limits);
    let (mut buffer, mut assembly, mut received) =
        (BytesMut::new(), Assembly::default(), Vec::new());
    for chunk in chunks {
        buffer.extend_from_slice(chunk);
        loop {
            match decoder.decode(&mut buffer) {
                Err(violation) => {
                    assert_eq!(decoder.decode(&mut buffer), Err(violation));
                    return (received, Some(violation));
                }
                Ok(None) => break,
                Ok(Some(Event::Control(control))) => received.push(Received::Control(control)),
                Ok(Some(Event::Chunk(chunk))) => {
                    assert!(!chunk.bytes.is_empty() || chunk.is_last);
                    if let Some((kind, bytes)) = assembly.push(chunk) {
                        assert!(bytes.len() as u64 <= limits.message);
                        received.push(Received::Message(kind, bytes));
                    }
                }
            }
        }
    }
    (received, None)
}

fn from_server(bytes: &[u8]) -> (Vec<Received>, Option<Violation>) {
    read(Role::Client, LIMITS, [bytes])
}

fn text(text: &'static str) -> Received {
    Received::Message(MessageKind::Text, text.into())
}

#[test]
fn the_examples_of_rfc_6455_are_decoded() {
    // RFC 6455, 5.7.
    let hello = vec![text("Hello")];
    assert_eq!(from_server(b"\x81\x05Hello"), (hello.clone(), None));
    assert_eq!(from_server(b"\x01\x03Hel\x80\x02lo"), (hello.clone(), None));
    let masked = b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
    assert_eq!(read(Role::Server, LIMITS, [&masked[..]]), (hello, None));
    let payload = ControlPayload::new("Hello".into()).unwrap();
    let ping = Received::Control(Control::Ping(payload.clone()));
    assert_eq!(from_server(b"\x89\x05Hello"), (vec![ping], None));
    let masked = b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
    let answer = Received::Control(Control::Pong(payload));
    assert_eq!(
        read(Role::Server, LIMITS, [&masked[..]]),
        (vec![answer], None)
    );
}

#[test]
fn input_that_the_rfc_forbids_is_rejected() {
    let rows: &[(&[u8], Violation)] = &[
        (b"\xc1\x00", Violation::ReservedBits),
        (b"\xa1\x00", Violation::ReservedBits),
        (b"\x91\x00", Violation::ReservedBits),
        (b"\x83\x00", Violation::ReservedOpcode(3)),
        (b"\x8b\x00", Violation::ReservedOpcode(11)),
        (b"\x8f", Violation::ReservedOpcode(15)),
        (b"\x81\x80\0\0\0\0", Violation::Masked),
        (b"\x09\x00", Violation::FragmentedControl),
        (b"\x89\x7e\x00\x80", Violation::LongControl),
        (b"\x82\x7e\x00\x7d", Violation::LengthNotMinimal),
        (b"\x82\x7f\0\0\0\0\0\0\xff\xff", Violation::LengthNotMinimal),
        (b"\x82\x7f\x80\0\0\0\0\0\0\0", Violation::ReservedLength),
        (b"\x80\x00", Violation::NothingToContinue),
        (b"\x01\x01a\x81\x01b", Violation::Interleaved),
        (b"\x81\x01\xff", Violation::InvalidUtf8),
        (b"\x81\x01\xc3", Violation::InvalidUtf8),
        (b"\x01\x01\xc3\x80\x01a", Violation::InvalidUtf8),
        (b"\x88\x01a", Violation::ShortClose),
        (b"\x88\x02\x03\xed", Violation::ReservedCloseCode(1005)),
        (b"\x88\x02\x00\x00", Violation::ReservedCloseCode(0)),
        (b"\x88\x03\x03\xe8\xff", Violation::InvalidUtf8),
        (b"\x82\x7e\x03\xe9", Violation::FrameTooLong),
        (
            b"\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff",
            Violation::FrameTooLong,
        ),
    ];
    for (bytes, violation) in rows {
        let (received, got) = from_server(bytes);
        assert_eq!(
            (received, got),
            (Vec::new(), Some(*violation)),
            "{bytes:x?}"
        );
    }
    let unmasked = read(Role::Server, LIMITS, [&b"\x81\x05Hello"[..]]);
    assert_eq!(unmasked.1, Some(Violation::Unmasked));
    assert_eq!(Violation::Unmasked.close_code().number(), 1002);
    assert_eq!(Violation::InvalidUtf8.close_code().number(), 1007);
    assert_eq!(Violation::FrameTooLong.close_code().number(), 1009);
}

#[test]
fn the_length_of_a_fragmented_message_is_limited() {
    let mut wire = BytesMut::new();
    let mut server = Encoder::new(Role::Server);
    server.write(Frame::First(MessageKind::Binary), &[&[0; 1000]], &mut wire);
    server.write(Frame::Middle, &[&[0; 1000]], &mut wire);
    assert_eq!(from_server(&wire), (Vec::new(), None));
    server.write(Frame::Middle, &[&[0; 1]], &mut wire);
    assert_eq!(from_server(&wire).1, Some(Violation::MessageTooLong));
}

#[test]
fn control_frames_may_come_between_fragments_and_inside_characters() {
    let (received, violation) = from_server(b"\x01\x01\xc3\x89\x00\x00\x00\x80\x01\xa4\x81\x00");
    let ping = Received::Control(Control::Ping(ControlPayload::default()));
    assert_eq!(
        (received, violation),
        (vec![ping, text("ä"), text("")], None)
    );
}

#[test]
fn chunks_are_returned_as_they_arrive_and_not_copied() {
    let mut decoder = Decoder::new(Role::Client, LIMITS);
    let mut buffer = BytesMut::from(&b"\x82\x05abc"[..]);
    let at = buffer[2..].as_ptr();
    let Ok(Some(Event::Chunk(chunk))) = decoder.decode(&mut buffer) else {
        panic!("no chunk");
    };
    assert_eq!(
        (&chunk.bytes[..], chunk.is_first, chunk.is_last),
        (&b"abc"[..], true, false)
    );
    assert_eq!(chunk.bytes.as_ptr(), at);
    assert_eq!(decoder.decode(&mut buffer), Ok(None));
    buffer.extend_from_slice(b"de");
    let Ok(Some(Event::Chunk(chunk))) = decoder.decode(&mut buffer) else {
        panic!("no chunk");
    };
    assert_eq!(
        (&chunk.bytes[..], chunk.is_first, chunk.is_last),
        (&b"de"[..], false, true)
    );
}

#[test]
fn nothing_follows_a_close() {
    let mut decoder = Decoder::new(Role::Client, LIMITS);
    let mut buffer = BytesMut::from(&b"\x88\x00\x81\x01a"[..]);
    let close = Event::Control(Control::Close(None));
    assert_eq!(decoder.decode(&mut buffer), Ok(Some(close)));
    assert!(decoder.is_closed());
    assert_eq!(decoder.decode(&mut buffer), Ok(None));
    assert!(buffer.is_empty());
}

/// What one end sends, in frames.
#[derive(Debug, Clone)]
enum Send {
    Message(MessageKind, Vec<Vec<u8>>),
    Control(Control),
}

fn any_send() -> impl Strategy<Value = Send> {
    let fragments = |bytes| prop::collection::vec(bytes, 1..4);
    let payload = prop::collection::vec(any::<u8>(), 0..=125);
    let payload = payload.prop_map(|it| ControlPayload::new(it.into()).unwrap());
    let length = prop_oneof![0..10usize, 120..130usize, 300..301usize];
    let code = prop_oneof![1000..=1003u16, 1007..=1014u16, 3000..=4999u16];
    prop_oneof![
        fragments(
            length
                .prop_flat_map(|it| prop::collection::vec(any::<u8>(), it))
                .boxed()
        )
        .prop_map(|it| Send::Message(MessageKind::Binary, it)),
        fragments("\\PC{0,40}".prop_map(String::into_bytes).boxed())
            .prop_map(|it| Send::Message(MessageKind::Text, it)),
        payload
            .clone()
            .prop_map(|it| Send::Control(Control::Ping(it))),
        payload.prop_map(|it| Send::Control(Control::Pong(it))),
        Just(Send::Control(Control::Close(None))),
        (code, "\\PC{0,50}").prop_map(|(code, reason)| {
            let close = Close::new(CloseCode::new(code).unwrap(), &reason);
            Send::Control(Control::Close(Some(close)))
        }),
    ]
}

fn any_role() -> impl Strategy<Value = (Role, Role)> {
    prop_oneof![
        Just((Role::Client, Role::Server)),
        Just((Role::Server, Role::Client))
    ]
}

/// The encoded frames, and what the other end decodes, up to the first close.
fn write(role: Role, sends: &[Send]) -> (BytesMut, Vec<Received>) {
    let (mut encoder, mut wire, mut received) = (Encoder::new(role), BytesMut::new(), Vec::new());
    for sent in sends {
        match sent {
            Send::Control(control) => {
                encoder.control(control, &mut wire);
                received.push(Received::Control(control.clone()));
                if matches!(control, Control::Close(_)) {
                    break;
                }
            }
            Send::Message(kind, fragments) => {
                for (index, fragment) in fragments.iter().enumerate() {
                    let frame = match (index, fragments.len() - 1 - index) {
                        (0, 0) => Frame::Whole(*kind),
                        (0, _) => Frame::First(*kind),
                        (_, 0) => Frame::Last,
                        _ => Frame::Middle,
                    };
                    let (left, right) = fragment.split_at(fragment.len() / 3);
                    encoder.write(frame, &[left, right], &mut wire);
                }
                received.push(Received::Message(*kind, fragments.concat().into()));
            }
        }
    }
    (wire, received)
}

/// Splits bytes at any offsets.
fn chunks<'a>(mut bytes: &'a [u8], sizes: &[usize]) -> Vec<&'a [u8]> {
    let mut chunks = Vec::new();
    for &size in sizes {
        let (chunk, rest) = bytes.split_at(size.min(bytes.len()));
        chunks.push(chunk);
        bytes = rest;
    }
    chunks.push(bytes);
    chunks
}

proptest! {
    #[test]
    fn encoded_messages_are_decoded_at_any_split(
        (writes, reads) in any_role(),
        sends in prop::collection::vec(any_send(), 0..8),
        sizes in prop::collection::vec(0..40usize, 0..60),
    ) {
        let (wire, received) = write(writes, &sends);
        prop_assert_eq!(read(reads, LIMITS, [&wire[..]]), (received.clone(), None));
        prop_assert_eq!(read(reads, LIMITS, chunks(&wire, &sizes)), (received.clone(), None));
        prop_assert_eq!(read(reads, LIMITS, wire.chunks(1)), (received, None));
    }

    #[test]
    fn arbitrary_bytes_decode_equally_at_any_split(
        role in prop_oneof![Just(Role::Client), Just(Role::Server)],
        bytes in prop::collection::vec(
            prop_oneof![3 => any::<u8>(), 1 => 0x80..0x8bu8, 2 => 0..6u8, 1 => 0x80..0x86u8], 0..120),
        sizes in prop::collection::vec(0..10usize, 0..20),
    ) {
        let whole = read(role, LIMITS, [&bytes[..]]);
        prop_assert_eq!(&read(role, LIMITS, chunks(&bytes, &sizes)), &whole);
        prop_assert_eq!(&read(role, LIMITS, bytes.chunks(1)), &whole);
    }
}
