//! Any messages, in any chunks, in every protocol: the same events, no panic, and no error
//! channel decodes to a success that was not encoded.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use skewbridge_remotecommand::port_forward::legacy;
use skewbridge_remotecommand::{
    ChannelEvent, ChannelId, FromClient, FromServer, Options, Outcome, Protocol, QueryDialect,
    Reader, ReaderError, ResizeDecoder, ServerKind, Version, negotiate, negotiate_spdy,
    port_forward,
};
use skewbridge_websocket::{MessageChunk, MessageKind};

/// The joined events of one message.
fn read<C: ChannelId>(
    reader: &mut Reader<C>,
    message: &[u8],
    cut: usize,
) -> Result<Option<ChannelEvent<C>>, ReaderError> {
    let mut chunks: Vec<_> = message.chunks(cut).collect();
    if chunks.is_empty() {
        chunks.push(&[]);
    }
    let (mut event, last) = (None, chunks.len() - 1);
    for (index, bytes) in chunks.into_iter().enumerate() {
        let chunk = MessageChunk {
            kind: MessageKind::Binary,
            is_first: index == 0,
            is_last: index == last,
            bytes: Bytes::copy_from_slice(bytes),
        };
        event = match (event, reader.read_chunk(chunk)?) {
            (Some(ChannelEvent::Data(channel, left)), Some(ChannelEvent::Data(_, right))) => {
                Some(ChannelEvent::Data(channel, [left, right].concat().into()))
            }
            (before, now) => now.or(before),
        };
    }
    Ok(event)
}

fn assert_same_events<C: ChannelId>(
    mut whole: Reader<C>,
    mut split: Reader<C>,
    bytes: &[u8],
    cut: usize,
) {
    for message in bytes.split(|byte| *byte == b'\n') {
        let (left, right) = (
            read(&mut whole, message, usize::MAX),
            read(&mut split, message, cut),
        );
        assert!(left == right);
        if left.is_err() {
            return;
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&cut, bytes)) = input.split_first() else {
        return;
    };
    let cut = usize::from(cut).max(1);
    for protocol in Protocol::ALL {
        let client = || FromClient::new(protocol);
        assert_same_events(client(), client(), bytes, cut);
        let server = || FromServer::new(protocol);
        assert_same_events(server(), server(), bytes, cut);
        let forward = || legacy::FromClient::new(protocol);
        assert_same_events(forward(), forward(), bytes, cut);
    }
    for version in [Version::V3, Version::V5] {
        let outcome = Outcome::decode(version, bytes);
        let again = Outcome::decode(version, &outcome.encode(version));
        assert!(again != Outcome::Success || outcome == Outcome::Success);
    }
    let mut sizes = ResizeDecoder::default();
    for chunk in bytes.chunks(cut) {
        if sizes.push(chunk).is_err() {
            break;
        }
    }
    if let Ok(text) = str::from_utf8(bytes) {
        let _ = Options::from_query(QueryDialect::Api, Some(text));
        let _ = port_forward::ports("ports", Some(text));
        let _ = negotiate(ServerKind::Bridge, text.split(','));
        let _ = negotiate_spdy([text]);
    }
});
