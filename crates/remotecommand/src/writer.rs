//! Encodes channel data as WebSocket messages.

use std::marker::PhantomData;

use bytes::{Bytes, BytesMut};
use skewbridge_websocket::{Control, Encoder, Frame, MessageKind, Role};

use crate::base64_text;
use crate::channel::{ChannelId, Input, Output};
use crate::options::Options;
use crate::protocol::{Encoding, Protocol};
use crate::reader::CLOSE_SIGNAL;

/// Writes the messages of a server.
pub type ToClient = Writer<Output>;

/// Writes the messages of a client.
pub type ToServer = Writer<Input>;

/// Writes the messages of one end, each in one frame: Kubernetes treats each frame of a
/// fragmented message as a message.
#[derive(Debug)]
pub struct Writer<C> {
    protocol: Protocol,
    frames: Encoder,
    role: Role,
    channels: PhantomData<C>,
}

impl ToClient {
    /// Writes in this protocol.
    pub fn new(protocol: Protocol) -> Self {
        Self::with_role(protocol, Role::Server)
    }

    /// Appends the empty message with which a server starts.
    pub fn open(&mut self, options: Options, out: &mut BytesMut) {
        self.write(options.initial_channel(), &[], out);
    }
}

impl ToServer {
    /// Writes in this protocol.
    pub fn new(protocol: Protocol) -> Self {
        Self::with_role(protocol, Role::Client)
    }

    /// Appends the start of a message and returns the data that is to be written after it,
    /// masked in place. If the data has to be encoded, the whole message is appended.
    #[must_use = "the returned data has to be written"]
    pub fn frame_in_place(
        &mut self,
        channel: Input,
        mut data: Vec<u8>,
        out: &mut BytesMut,
    ) -> Option<Bytes> {
        if self.protocol.encoding() != Encoding::Binary {
            self.write(channel, &data, out);
            return None;
        }
        let head = self
            .frames
            .head(Frame::Whole(MessageKind::Binary), 1 + data.len());
        out.extend_from_slice(head.as_bytes());
        let mut number = [channel.number()];
        if let Some(mask) = head.mask() {
            let _ = mask.apply(&mut number).apply(&mut data);
        }
        out.extend_from_slice(&number);
        Some(data.into())
    }

    /// Appends the signal that nothing follows on a channel. Returns `false` if the protocol
    /// has none: then only closing the connection ends the channel, which ends the command as
    /// well.
    #[must_use]
    pub fn close(&mut self, channel: Input, out: &mut BytesMut) -> bool {
        let has_close_signal = self.protocol.version().has_close_signal();
        if has_close_signal {
            let frame = Frame::Whole(MessageKind::Binary);
            let signal = [CLOSE_SIGNAL, channel.number()];
            self.frames.write(frame, &[&signal], out);
        }
        has_close_signal
    }
}

impl<C: ChannelId> Writer<C> {
    pub(crate) fn with_role(protocol: Protocol, role: Role) -> Self {
        Self {
            protocol,
            frames: Encoder::new(role),
            role,
            channels: PhantomData,
        }
    }

    /// Appends a message.
    pub fn write(&mut self, channel: C, data: &[u8], out: &mut BytesMut) {
        match self.protocol.encoding() {
            Encoding::Binary => {
                let frame = Frame::Whole(MessageKind::Binary);
                self.frames.write(frame, &[&[channel.number()], data], out);
            }
            Encoding::Base64 => {
                let mut text = BytesMut::with_capacity(1 + data.len().div_ceil(3) * 4);
                text.extend_from_slice(&[b'0'.wrapping_add(channel.number())]);
                base64_text::append(data, &mut text);
                self.frames
                    .write(Frame::Whole(MessageKind::Text), &[&text], out);
            }
        }
    }

    /// Appends the start of a message and returns the data that is to be written after it
    /// unchanged. If the data has to be masked or encoded, the whole message is appended.
    #[must_use = "the returned data has to be written"]
    pub fn frame(&mut self, channel: C, data: Bytes, out: &mut BytesMut) -> Option<Bytes> {
        if (self.role, self.protocol.encoding()) != (Role::Server, Encoding::Binary) {
            self.write(channel, &data, out);
            return None;
        }
        let frame = Frame::Whole(MessageKind::Binary);
        let head = self.frames.head(frame, 1 + data.len());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&[channel.number()]);
        Some(data)
    }

    /// Appends a ping, pong or close frame.
    pub fn control(&mut self, control: &Control, out: &mut BytesMut) {
        self.frames.control(control, out);
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_websocket::{Decoder, Event, Limits};

    use super::*;
    use crate::options::QueryDialect;
    use crate::reader::{ChannelEvent, FromClient};

    const LIMITS: Limits = Limits {
        frame: u64::MAX,
        message: u64::MAX,
    };

    #[test]
    fn masking_in_place_and_by_copying_give_the_same_message() {
        for protocol in [Protocol::V5, Protocol::V4_BASE64] {
            for length in [0, 1, 5, 70_000] {
                let data: Vec<u8> = (0..=250).cycle().take(length).collect();
                let (mut out, mut client) = (BytesMut::new(), ToServer::new(protocol));
                let rest = client.frame_in_place(Input::Stdin, data.clone(), &mut out);
                assert_eq!(rest.is_some(), protocol == Protocol::V5);
                out.extend_from_slice(&rest.unwrap_or_default());
                let mut decoder = Decoder::new(Role::Server, LIMITS);
                let mut reader = FromClient::new(protocol);
                let mut received = Vec::new();
                while let Some(event) = decoder.decode(&mut out).unwrap() {
                    let Event::Chunk(chunk) = event else {
                        panic!("{event:?}")
                    };
                    if let Some(ChannelEvent::Data(Input::Stdin, bytes)) =
                        reader.read_chunk(chunk).unwrap()
                    {
                        received.extend_from_slice(&bytes);
                    }
                }
                assert_eq!(received, data);
            }
        }
    }

    #[test]
    fn server_messages_are_encoded() {
        let options = Options::from_query(QueryDialect::Api, Some("stdin=1&stderr=1"));
        let mut out = BytesMut::new();
        let mut server = ToClient::new(Protocol::V5);
        server.open(options, &mut out);
        assert_eq!(out.split(), b"\x82\x01\x02"[..]);
        server.write(Output::Stdout, b"ls", &mut out);
        assert_eq!(out.split(), b"\x82\x03\x01ls"[..]);
        let rest = server.frame(Output::Error, Bytes::from_static(b"{}"), &mut out);
        assert_eq!(
            (&out.split()[..], rest),
            (&b"\x82\x03\x03"[..], Some("{}".into()))
        );

        let mut server = ToClient::new(Protocol::V1_BASE64);
        server.open(options, &mut out);
        assert_eq!(out.split(), b"\x81\x012"[..]);
        server.write(Output::Stdout, b"ls\n", &mut out);
        assert_eq!(out.split(), b"\x81\x051bHMK"[..]);
    }

    #[test]
    fn only_version_5_has_a_close_signal() {
        let mut out = BytesMut::new();
        for protocol in Protocol::ALL {
            let has_close_signal = ToServer::new(protocol).close(Input::Stdin, &mut out);
            assert_eq!(has_close_signal, protocol == Protocol::V5);
            assert_eq!(out.split().is_empty(), !has_close_signal);
        }
    }
}
