//! What a container runtime wrote (`k8s.io/cri-streaming` 0.37.2, recorded): a command that
//! prints "hi" and exits with code 3, with stdout and stderr requested.
#![allow(clippy::unwrap_used)]

use bytes::BytesMut;
use skewbridge_remotecommand::{
    ChannelEvent, ErrorChannel, ErrorChannelEnd, ExitCode, FromServer, Options, Outcome, Output,
    Protocol, QueryDialect, ToClient,
};
use skewbridge_websocket::{CloseCode, Control, Decoder, Event, Limits, Role};

const TEXT: &[u8] = b"\x82\x01\x01\x82\x03\x01hi\x82P\x03command terminated with non-zero exit code: command terminated with exit code 3\x88\x02\x03\xe8";

const BASE64_TEXT: &[u8] = b"\x81\x011\x81\x051aGk=\x81m3Y29tbWFuZCB0ZXJtaW5hdGVkIHdpdGggbm9uLXplcm8gZXhpdCBjb2RlOiBjb21tYW5kIHRlcm1pbmF0ZWQgd2l0aCBleGl0IGNvZGUgMw==\x88\x02\x03\xe8";

const STATUS: &[u8] = b"\x82\x01\x01\x82\x03\x01hi\x82~\x00\xc7\x03{\"status\":\"Failure\",\"message\":\"command terminated with non-zero exit code: command terminated with exit code 3\",\"reason\":\"NonZeroExitCode\",\"details\":{\"causes\":[{\"reason\":\"ExitCode\",\"message\":\"3\"}]}}\x88\x02\x03\xe8";

const BASE64_STATUS: &[u8] = b"\x81\x011\x81\x051aGk=\x81~\x01\t3eyJzdGF0dXMiOiJGYWlsdXJlIiwibWVzc2FnZSI6ImNvbW1hbmQgdGVybWluYXRlZCB3aXRoIG5vbi16ZXJvIGV4aXQgY29kZTogY29tbWFuZCB0ZXJtaW5hdGVkIHdpdGggZXhpdCBjb2RlIDMiLCJyZWFzb24iOiJOb25aZXJvRXhpdENvZGUiLCJkZXRhaWxzIjp7ImNhdXNlcyI6W3sicmVhc29uIjoiRXhpdENvZGUiLCJtZXNzYWdlIjoiMyJ9XX19\x88\x02\x03\xe8";

const ALL: [(Protocol, &[u8]); 4] = [
    (Protocol::V1, TEXT),
    (Protocol::V1_BASE64, BASE64_TEXT),
    (Protocol::V4, STATUS),
    (Protocol::V4_BASE64, BASE64_STATUS),
];

#[test]
fn recorded_runtime_output_is_decoded() {
    for (protocol, wire) in ALL {
        let limits = Limits {
            frame: 1 << 20,
            message: 1 << 20,
        };
        let mut frames = Decoder::new(Role::Client, limits);
        let mut reader = FromServer::new(protocol);
        let mut errors = ErrorChannel::new(protocol.version());
        let (mut buffer, mut stdout, mut closed) = (BytesMut::from(wire), Vec::new(), None);
        while let Some(event) = frames.decode(&mut buffer).unwrap() {
            match event {
                Event::Chunk(chunk) => match reader.read_chunk(chunk).unwrap().unwrap() {
                    ChannelEvent::Data(Output::Stdout, data) => stdout.push(data),
                    ChannelEvent::Data(Output::Error, data) => errors.push(&data),
                    event => panic!("{event:?}"),
                },
                Event::Control(Control::Close(close)) => closed = close,
                Event::Control(control) => panic!("{control:?}"),
            }
        }
        // The initial empty message, then the output.
        assert_eq!(stdout, ["", "hi"]);
        assert_eq!(closed.unwrap().code(), CloseCode::NORMAL);
        let exited = ExitCode::new(3).map(Outcome::Exited);
        assert_eq!(Some(errors.end(ErrorChannelEnd::Clean)), exited);
    }
}

#[test]
fn plain_text_results_match_the_runtime_byte_for_byte() {
    let options = Options::from_query(QueryDialect::Kubelet, Some("output=1&error=1"));
    for (protocol, wire) in &ALL[..2] {
        let (mut server, mut out) = (ToClient::new(*protocol), BytesMut::new());
        server.open(options, &mut out);
        server.write(Output::Stdout, b"hi", &mut out);
        let outcome = Outcome::Exited(ExitCode::new(3).unwrap());
        let encoded = outcome.encode(protocol.version());
        server.write(Output::Error, &encoded, &mut out);
        assert_eq!(out, wire[..wire.len() - 4]);
    }
}
