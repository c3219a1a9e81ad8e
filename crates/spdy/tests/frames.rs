//! Frames: their wire format, and properties of all frames.
#![allow(clippy::unwrap_used)] // test helpers panic on failure

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use skewbridge_spdy::frame::{
    Data, Fin, Frame, GoAway, GoAwayStatus, HeadersFrame, Ping, Priority, ResetStatus, RstStream,
    Setting, SettingId, Settings, StreamId, SynReply, SynStream, WindowUpdate,
};
use skewbridge_spdy::{Compressor, Decoder, Error, Headers};

fn id(id: u32) -> StreamId {
    StreamId::new(id).unwrap()
}

fn encode(frames: &[Frame]) -> BytesMut {
    let mut compressor = Compressor::new();
    let mut wire = BytesMut::new();
    for frame in frames {
        frame.encode(&mut compressor, &mut wire).unwrap();
    }
    wire
}

/// The decoded frames, with the chunks of a data frame joined, and the error if there is one.
fn decode(chunks: &[&[u8]]) -> (Vec<Frame>, Result<bool, Error>) {
    let mut decoder = Decoder::new();
    let mut buffer = BytesMut::new();
    let mut frames = Vec::new();
    for chunk in chunks {
        buffer.extend_from_slice(chunk);
        loop {
            match decoder.decode(&mut buffer) {
                Ok(Some(frame)) => join(&mut frames, frame),
                Ok(None) => break,
                Err(error) => return (frames, Err(error)),
            }
        }
    }
    let ended = decoder.is_between_frames(&buffer);
    (frames, Ok(ended))
}

fn join(frames: &mut Vec<Frame>, frame: Frame) {
    if let (Some(Frame::Data(last)), Frame::Data(next)) = (frames.last_mut(), &frame)
        && last.stream == next.stream
        && last.fin == Fin::No
    {
        last.payload = [&last.payload[..], &next.payload].concat().into();
        last.fin = next.fin;
        return;
    }
    frames.push(frame);
}

#[test]
fn frames_are_encoded_as_specified() {
    let reset = RstStream {
        stream: id(5),
        status: ResetStatus::Cancel,
    };
    let settings = Settings {
        clear: true,
        settings: vec![Setting {
            flags: 2,
            id: SettingId::InitialWindowSize,
            value: 0x1_0000,
        }],
    };
    let go_away = GoAway {
        last: None,
        status: GoAwayStatus::ProtocolError,
    };
    let update = WindowUpdate {
        stream: Some(id(3)),
        delta: 0x7fff_ffff,
    };
    let data = Data {
        stream: id(0x7fff_ffff),
        fin: Fin::Yes,
        payload: Bytes::from_static(b"hi"),
    };
    for (frame, wire) in [
        (
            Frame::RstStream(reset),
            &b"\x80\x03\0\x03\0\0\0\x08\0\0\0\x05\0\0\0\x05"[..],
        ),
        (
            Frame::Settings(settings),
            b"\x80\x03\0\x04\x01\0\0\x0c\0\0\0\x01\x02\0\0\x07\0\x01\0\0",
        ),
        (
            Frame::Ping(Ping { id: 7 }),
            b"\x80\x03\0\x06\0\0\0\x04\0\0\0\x07",
        ),
        (
            Frame::GoAway(go_away),
            b"\x80\x03\0\x07\0\0\0\x08\0\0\0\0\0\0\0\x01",
        ),
        (
            Frame::WindowUpdate(update),
            b"\x80\x03\0\x09\0\0\0\x08\0\0\0\x03\x7f\xff\xff\xff",
        ),
        (Frame::Data(data), b"\x7f\xff\xff\xff\x01\0\0\x02hi"),
    ] {
        assert_eq!(encode(std::slice::from_ref(&frame)), wire, "{frame:?}");
        let (frames, end) = decode(&[wire]);
        assert_eq!((frames, end.unwrap()), (vec![frame], true));
    }
}

/// What moby/spdystream 0.5.1 wrote when it opened a stream with `Streamtype: stdin` and
/// `Port: 80`, and when it accepted one.
#[test]
fn recorded_spdystream_frames_are_decoded() {
    let opened = include_bytes!("spdystream/syn_stream.bin");
    let answered = include_bytes!("spdystream/syn_reply.bin");
    let (frames, end) = decode(&[opened]);
    assert!(end.unwrap());
    let headers = Headers::new()
        .with("streamtype", "stdin")
        .with("port", "80");
    let [Frame::SynStream(frame)] = &frames[..] else {
        panic!("{frames:?}");
    };
    assert_eq!(frame.stream, id(1));
    let mut names: Vec<_> = frame.headers.iter().collect();
    names.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(names, headers.iter().collect::<Vec<_>>());
    let (frames, end) = decode(&[answered]);
    assert!(end.unwrap());
    let reply = SynReply {
        stream: id(1),
        fin: Fin::No,
        headers: Headers::new(),
    };
    assert_eq!(frames, [Frame::SynReply(reply)]);
}

#[test]
fn missing_optional_fields_are_accepted() {
    // A SYN_REPLY without headers at all, and a GOAWAY without a status.
    let wire = b"\x80\x03\0\x02\x01\0\0\x04\0\0\0\x01\x80\x03\0\x07\0\0\0\x04\0\0\0\x03";
    let reply = SynReply {
        stream: id(1),
        fin: Fin::Yes,
        headers: Headers::new(),
    };
    let go_away = GoAway {
        last: Some(id(3)),
        status: GoAwayStatus::Ok,
    };
    let (frames, end) = decode(&[wire]);
    assert!(end.unwrap());
    assert_eq!(frames, [Frame::SynReply(reply), Frame::GoAway(go_away)]);
}

#[test]
fn frames_of_unknown_types_are_skipped() {
    // CREDENTIAL, and an undefined type, longer than any buffer.
    let mut wire = b"\x80\x03\0\x0a\0\0\0\x02xx\x80\x03\0\x77\0\xff\xff\xff".to_vec();
    wire.extend(vec![1; 0x00ff_ffff]);
    wire.extend_from_slice(b"\x80\x03\0\x06\0\0\0\x04\0\0\0\x07");
    let (frames, end) = decode(&wire.chunks(4096).collect::<Vec<_>>());
    assert!(end.unwrap());
    assert_eq!(frames, [Frame::Ping(Ping { id: 7 })]);
}

#[test]
fn malformed_frames_end_the_connection() {
    for wire in [
        // another version
        &b"\x80\x02\0\x06\0\0\0\x04\0\0\0\x07"[..],
        // data, a reset and a SYN_STREAM with the id zero
        b"\0\0\0\0\0\0\0\x01x",
        b"\x80\x03\0\x03\0\0\0\x08\0\0\0\0\0\0\0\x05",
        b"\x80\x03\0\x01\0\0\0\x0a\0\0\0\0\0\0\0\0\0\0",
        // too short
        b"\x80\x03\0\x01\0\0\0\x09\0\0\0\x01\0\0\0\0\0",
        b"\x80\x03\0\x02\0\0\0\x03\0\0\0",
        b"\x80\x03\0\x03\0\0\0\x07\0\0\0\x01\0\0\0",
        b"\x80\x03\0\x04\0\0\0\x03\0\0\0",
        b"\x80\x03\0\x06\0\0\0\0",
        b"\x80\x03\0\x07\0\0\0\0",
        b"\x80\x03\0\x08\0\0\0\0",
        b"\x80\x03\0\x09\0\0\0\x04\0\0\0\0",
        // too long
        b"\x80\x03\0\x06\0\xff\xff\xff",
        // more settings than the frame has, and than are allowed
        b"\x80\x03\0\x04\0\0\0\x04\0\0\0\x01",
        b"\x80\x03\0\x04\0\0\0\x04\xff\xff\xff\xff",
        // headers that are not compressed
        b"\x80\x03\0\x02\0\0\0\x08\0\0\0\x01\0\0\0\0",
    ] {
        let (frames, end) = decode(&[wire]);
        assert!(end.is_err() && frames.is_empty(), "{wire:?}");
    }
}

fn any_id() -> impl Strategy<Value = StreamId> {
    (1u32..=0x7fff_ffff).prop_map(id)
}

fn any_fin() -> impl Strategy<Value = Fin> {
    prop_oneof![Just(Fin::No), Just(Fin::Yes)]
}

fn any_headers() -> impl Strategy<Value = Headers> {
    let value = proptest::collection::vec(0u8.., 0..40);
    proptest::collection::vec(("[a-z:-]{0,12}", value), 0..8).prop_map(|fields| {
        let mut headers = Headers::new();
        for (name, value) in fields {
            headers.append(&name, value);
        }
        headers
    })
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let syn_stream = (
        any_id(),
        any_id(),
        0u8..8,
        any_fin(),
        any::<bool>(),
        any_headers(),
    )
        .prop_map(|(stream, other, priority, fin, unidirectional, headers)| {
            Frame::SynStream(SynStream {
                stream,
                associated: unidirectional.then_some(other),
                priority: Priority::new(priority),
                fin,
                unidirectional,
                headers,
            })
        });
    let syn_reply = (any_id(), any_fin(), any_headers()).prop_map(|(stream, fin, headers)| {
        Frame::SynReply(SynReply {
            stream,
            fin,
            headers,
        })
    });
    let headers = (any_id(), any_fin(), any_headers()).prop_map(|(stream, fin, headers)| {
        Frame::Headers(HeadersFrame {
            stream,
            fin,
            headers,
        })
    });
    let reset = (any_id(), any::<u32>()).prop_map(|(stream, code)| {
        Frame::RstStream(RstStream {
            stream,
            status: ResetStatus::from_code(code),
        })
    });
    let setting = (any::<u8>(), 0u32..12, any::<u32>()).prop_map(|(flags, code, value)| Setting {
        flags,
        id: match code {
            4 => SettingId::MaxConcurrentStreams,
            7 => SettingId::InitialWindowSize,
            other => SettingId::Other(other),
        },
        value,
    });
    let settings = (any::<bool>(), proptest::collection::vec(setting, 0..10))
        .prop_map(|(clear, settings)| Frame::Settings(Settings { clear, settings }));
    let ping = any::<u32>().prop_map(|id| Frame::Ping(Ping { id }));
    let go_away = (any::<bool>(), any_id(), any::<u32>()).prop_map(|(some, last, code)| {
        Frame::GoAway(GoAway {
            last: some.then_some(last),
            status: GoAwayStatus::from_code(code),
        })
    });
    let update = (any::<bool>(), any_id(), 0u32..=0x7fff_ffff).prop_map(|(some, stream, delta)| {
        Frame::WindowUpdate(WindowUpdate {
            stream: some.then_some(stream),
            delta,
        })
    });
    let data = (
        any_id(),
        any_fin(),
        proptest::collection::vec(0u8.., 0..300),
    )
        .prop_map(|(stream, fin, payload)| {
            Frame::Data(Data {
                stream,
                fin,
                payload: payload.into(),
            })
        });
    prop_oneof![
        syn_stream, syn_reply, headers, reset, settings, ping, go_away, update, data
    ]
}

/// `bytes`, split at these offsets.
fn cut<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.sort_unstable();
    let mut chunks = Vec::new();
    let mut from = 0;
    for cut in cuts {
        chunks.push(&bytes[from..cut]);
        from = cut;
    }
    chunks.push(&bytes[from..]);
    chunks
}

proptest! {
    #[test]
    fn encoded_frames_are_decoded_at_any_split(
        frames in proptest::collection::vec(any_frame(), 0..12),
        cuts in proptest::collection::vec(any::<usize>(), 0..24),
    ) {
        let wire = encode(&frames);
        let mut expected = Vec::new();
        for frame in frames {
            join(&mut expected, frame);
        }
        let (decoded, end) = decode(&cut(&wire, &cuts));
        prop_assert_eq!(decoded, expected);
        prop_assert!(end.unwrap());
    }

    #[test]
    fn any_split_of_arbitrary_bytes_decodes_equally(
        frames in proptest::collection::vec(any_frame(), 0..6),
        spoilt in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        cuts in proptest::collection::vec(any::<usize>(), 0..24),
    ) {
        let mut wire = encode(&frames);
        for (at, byte) in spoilt {
            if !wire.is_empty() {
                let at = at % wire.len();
                wire[at] = byte;
            }
        }
        let (whole, end) = decode(&[&wire]);
        let (chunks, end_of_pieces) = decode(&cut(&wire, &cuts));
        prop_assert_eq!(whole, chunks);
        prop_assert_eq!(format!("{end:?}"), format!("{end_of_pieces:?}"));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(0u8.., 0..600)) {
        let _ = decode(&[&bytes]);
    }
}
