use bytes::BytesMut;
use proptest::prelude::*;
use skewbridge_websocket::{Decoder, Event, Limits, MessageKind, Role};

use super::*;
use crate::writer::{ToClient, ToServer};

/// Reads messages, each in chunks of up to `cut` bytes, and joins the data of each message.
fn read<C: ChannelId>(
    protocol: Protocol,
    messages: &[&[u8]],
    cut: usize,
) -> Result<Vec<ChannelEvent<C>>, ReaderError> {
    let (mut reader, mut all) = (Reader::new(protocol), Vec::new());
    for message in messages {
        let mut event = None;
        let mut chunks: Vec<_> = message.chunks(cut).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        for (index, bytes) in chunks.iter().enumerate() {
            let chunk = MessageChunk {
                kind: MessageKind::Binary,
                is_first: index == 0,
                is_last: index + 1 == chunks.len(),
                bytes: Bytes::copy_from_slice(bytes),
            };
            event = match (event, reader.read_chunk(chunk)?) {
                (Some(ChannelEvent::Data(channel, left)), Some(ChannelEvent::Data(_, right))) => {
                    let data = [left, right].concat().into();
                    Some(ChannelEvent::Data(channel, data))
                }
                (before, now) => now.or(before),
            };
        }
        all.extend(event);
    }
    Ok(all)
}

fn whole<C: ChannelId>(
    protocol: Protocol,
    messages: &[&[u8]],
) -> Result<Vec<ChannelEvent<C>>, ReaderError> {
    let whole = read(protocol, messages, usize::MAX);
    let bytewise = read(protocol, messages, 1);
    assert!(whole == bytewise, "{messages:?}");
    whole
}

fn data<C>(channel: C, data: &'static str) -> ChannelEvent<C> {
    ChannelEvent::Data(channel, data.into())
}

#[test]
fn client_messages_are_stdin_and_sizes() {
    let messages: &[&[u8]] = &[
        b"\0ls\n",
        b"",
        b"\0",
        b"\x01not to be written",
        b"\x03nor this",
        b"\x04{}",
        b"\x05",
        b"\xfe\0",
        b"\0x",
    ];
    let events = [
        data(Input::Stdin, "ls\n"),
        data(Input::Stdin, ""),
        data(Input::Resize, "{}"),
        data(Input::Stdin, "x"),
    ];
    for protocol in [Protocol::V1, Protocol::V4, Protocol::V5] {
        assert_eq!(whole(protocol, messages), Ok(events.to_vec()));
    }
}

#[test]
fn server_messages_are_output_and_errors() {
    let messages: &[&[u8]] = &[
        b"\x01", b"\x01out", b"\x02err", b"\x03{}", b"\0in", b"\xff\0",
    ];
    let events = [
        data(Output::Stdout, ""),
        data(Output::Stdout, "out"),
        data(Output::Stderr, "err"),
        data(Output::Error, "{}"),
    ];
    assert_eq!(whole(Protocol::V5, messages), Ok(events.to_vec()));
}

#[test]
fn version_5_closes_channels() {
    let close = |messages: &[&[u8]]| whole::<Input>(Protocol::V5, messages);
    // Only channels that the client writes, only once, and nothing follows.
    let messages: &[&[u8]] = &[b"\0a", b"\xff\0", b"\0b", b"\xff\0", b"\xff\x01", b"\x04{}"];
    let events = [
        data(Input::Stdin, "a"),
        ChannelEvent::Closed(Input::Stdin),
        data(Input::Resize, "{}"),
    ];
    assert_eq!(close(messages), Ok(events.to_vec()));
    assert_eq!(
        close(&[b"\xff\x04"]),
        Ok(vec![ChannelEvent::Closed(Input::Resize)])
    );
    assert_eq!(close(&[b"\xff"]), Err(ReaderError::CloseSignal));
    assert_eq!(close(&[b"\xff\0\0"]), Err(ReaderError::CloseSignal));
    assert_eq!(close(&[b"\xff\x05"]), Err(ReaderError::CloseUnknown(5)));
    // Before version 5 it is an unknown channel.
    assert_eq!(
        whole::<Input>(Protocol::V4, &[b"\xff\0", b"\xff"]),
        Ok(vec![])
    );
}

#[test]
fn text_protocols_use_digits_and_base64() {
    let messages: &[&[u8]] = &[
        b"0bHMK", b"0", b"4e30=", b"1bHMK", b"9!", b"\0bHMK", b"\xff0",
    ];
    let events = [
        data(Input::Stdin, "ls\n"),
        data(Input::Stdin, ""),
        data(Input::Resize, "{}"),
    ];
    for protocol in [Protocol::V1_BASE64, Protocol::V4_BASE64] {
        assert_eq!(whole(protocol, messages), Ok(events.to_vec()));
        assert_eq!(whole::<Input>(protocol, &[b"0!"]), Err(ReaderError::Base64));
        assert_eq!(
            whole::<Input>(protocol, &[b"0bHM"]),
            Err(ReaderError::Base64)
        );
    }
}

#[test]
fn data_is_not_copied() {
    let bytes = Bytes::from_static(b"\0abc");
    let at = bytes[1..].as_ptr();
    let chunk = MessageChunk {
        kind: MessageKind::Binary,
        is_first: true,
        is_last: true,
        bytes,
    };
    let Ok(Some(ChannelEvent::Data(Input::Stdin, data))) =
        FromClient::new(Protocol::V5).read_chunk(chunk)
    else {
        panic!("no data");
    };
    assert_eq!(data.as_ptr(), at);
}

/// All events from a byte stream that arrives in chunks.
fn decoded_events<C: ChannelId>(
    protocol: Protocol,
    role: Role,
    wire: &[u8],
    cut: usize,
) -> Vec<ChannelEvent<C>> {
    let limits = Limits {
        frame: 1 << 20,
        message: 1 << 20,
    };
    let (mut decoder, mut reader) = (Decoder::new(role, limits), Reader::new(protocol));
    let (mut buffer, mut all) = (BytesMut::new(), Vec::new());
    let mut joins = false;
    for chunk in wire.chunks(cut) {
        buffer.extend_from_slice(chunk);
        while let Some(event) = decoder.decode(&mut buffer).unwrap() {
            let Event::Chunk(chunk) = event else {
                panic!("{event:?}");
            };
            joins &= !chunk.is_first;
            match (all.last_mut(), reader.read_chunk(chunk).unwrap()) {
                (Some(ChannelEvent::Data(_, left)), Some(ChannelEvent::Data(_, right)))
                    if joins =>
                {
                    *left = [&left[..], &right[..]].concat().into();
                }
                (_, Some(events)) => {
                    all.push(events);
                    joins = true;
                }
                (_, None) => {}
            }
        }
    }
    all
}

proptest! {
    #[test]
    fn servers_decode_messages_of_clients(
        protocol in prop::sample::select(&Protocol::ALL[..]),
        messages in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..300)), 0..6),
        closes: bool, cut in 1..400usize,
    ) {
        let (mut client, mut wire, mut events) = (ToServer::new(protocol), BytesMut::new(), Vec::new());
        for (is_stdin, data) in messages {
            let channel = if is_stdin { Input::Stdin } else { Input::Resize };
            if let Some(rest) = client.frame(channel, data.clone().into(), &mut wire) {
                wire.extend_from_slice(&rest);
            }
            events.push(ChannelEvent::Data(channel, data.into()));
        }
        if closes && client.close(Input::Stdin, &mut wire) {
            events.push(ChannelEvent::Closed(Input::Stdin));
        }
        prop_assert_eq!(decoded_events(protocol, Role::Server, &wire, cut), events);
    }

    #[test]
    fn clients_decode_messages_of_servers(
        protocol in prop::sample::select(&Protocol::ALL[..]),
        messages in prop::collection::vec((1..4u8, prop::collection::vec(any::<u8>(), 0..300)), 0..6),
        cut in 1..400usize,
    ) {
        let (mut server, mut wire, mut events) = (ToClient::new(protocol), BytesMut::new(), Vec::new());
        for (number, data) in messages {
            let channel = Output::from_number(number).unwrap();
            let rest = server.frame(channel, data.clone().into(), &mut wire);
            prop_assert_eq!(rest.is_some(), protocol.encoding() == Encoding::Binary);
            wire.extend_from_slice(&rest.unwrap_or_default());
            events.push(ChannelEvent::Data(channel, data.into()));
        }
        prop_assert_eq!(decoded_events(protocol, Role::Client, &wire, cut), events);
    }

    #[test]
    fn any_messages_are_read_the_same_in_chunks(
        protocol in prop::sample::select(&Protocol::ALL[..]),
        messages in prop::collection::vec(
            prop::collection::vec(prop_oneof![any::<u8>(), 0..6u8, Just(255), b'0'..b'6', Just(b'=')], 0..8), 0..6),
        cut in 1..8usize,
    ) {
        let messages: Vec<&[u8]> = messages.iter().map(|it| &it[..]).collect();
        prop_assert_eq!(
            read::<Input>(protocol, &messages, cut),
            read::<Input>(protocol, &messages, usize::MAX)
        );
        prop_assert_eq!(
            read::<Output>(protocol, &messages, cut),
            read::<Output>(protocol, &messages, usize::MAX)
        );
    }
}
