//! The older WebSocket framing, which container runtimes support: the query names the ports,
//! each port has two channels and one connection.
//!
//! Messages are encoded like those of a remote command: a [`Reader`] and a [`Writer`] of
//! [`ToPod`] and [`FromPod`].

use skewbridge_websocket::Role;

use super::{Port, Stream};
use crate::channel::ChannelId;
use crate::protocol::{Encoding, Protocol};
use crate::reader::Reader;
use crate::writer::Writer;

/// Each port takes two channel numbers of one byte, and 255 is reserved.
const MAX_PORTS: usize = 127;

/// How many ports a request can have. In text, channel numbers are the characters from `0` on,
/// of which ASCII has 80.
pub fn max_ports(encoding: Encoding) -> usize {
    match encoding {
        Encoding::Binary => MAX_PORTS,
        Encoding::Base64 => 40,
    }
}

/// Negotiates version 4, which may be unnamed. There is no other version.
pub fn negotiate<'a>(
    offers: impl IntoIterator<Item = &'a str>,
) -> Option<crate::NegotiatedProtocol> {
    let mut offers = offers.into_iter().peekable();
    if offers.peek().is_none() {
        return Some(crate::NegotiatedProtocol {
            protocol: Protocol::V4,
            header: None,
        });
    }
    let known = [Protocol::V4, Protocol::V4_BASE64];
    let protocol = offers.find_map(|offer| known.into_iter().find(|it| it.name() == offer))?;
    Some(crate::NegotiatedProtocol {
        protocol,
        header: Some(protocol.name()),
    })
}

/// The channels that clients write: data to a port, by its position in the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ToPod {
    /// The position of the port; may be beyond those of the query.
    pub port: u8,
}

/// The channels that servers write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FromPod {
    /// The position of the port.
    pub port: u8,
    /// Which of its two channels.
    pub stream: Stream,
}

/// Reads the messages of a client.
pub type FromClient = Reader<ToPod>;

/// Writes the messages of a server.
pub type ToClient = Writer<FromPod>;

impl ToClient {
    /// Writes in this protocol.
    pub fn new(protocol: Protocol) -> Self {
        Self::with_role(protocol, Role::Server)
    }
}

/// Reads the messages of a server.
pub type FromServer = Reader<FromPod>;

/// Writes the messages of a client.
pub type ToServer = Writer<ToPod>;

impl ToServer {
    /// Writes in this protocol.
    pub fn new(protocol: Protocol) -> Self {
        Self::with_role(protocol, Role::Client)
    }
}

/// The first message on each channel of a server: the port of the channel.
pub fn encode_port(port: Port) -> [u8; 2] {
    port.number().to_le_bytes()
}

/// Decodes the first message on a channel.
pub fn decode_port(message: &[u8]) -> Option<Port> {
    let bytes = message.try_into().ok()?;
    Port::new(u16::from_le_bytes(bytes))
}

impl ChannelId for ToPod {
    const CHANNEL_COUNT: u8 = u8::MAX;
    const CLOSABLE: bool = false;

    fn number(self) -> u8 {
        self.port.wrapping_mul(2)
    }

    fn from_number(number: u8) -> Option<Self> {
        let port = number / 2;
        (number.is_multiple_of(2) && usize::from(port) < MAX_PORTS).then_some(Self { port })
    }
}

impl ChannelId for FromPod {
    const CHANNEL_COUNT: u8 = u8::MAX;
    const CLOSABLE: bool = false;

    fn number(self) -> u8 {
        self.port.wrapping_mul(2) | u8::from(self.stream == Stream::Error)
    }

    fn from_number(number: u8) -> Option<Self> {
        let port = number / 2;
        let stream = match number % 2 {
            0 => Stream::Data,
            _ => Stream::Error,
        };
        (usize::from(port) < MAX_PORTS).then_some(Self { port, stream })
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;

    #[test]
    fn each_port_has_two_channel_numbers() {
        for number in 0..254 {
            let from = FromPod::from_number(number).unwrap();
            assert_eq!(from.number(), number);
            assert_eq!(usize::from(from.port), usize::from(number) / 2);
            let to = ToPod::from_number(number);
            assert_eq!(to.is_some(), from.stream == Stream::Data);
            assert!(to.is_none_or(|to| to.number() == number));
        }
        assert_eq!(FromPod::from_number(254), None);
        assert_eq!(FromPod::from_number(255), None);
    }

    #[test]
    fn a_server_starts_with_the_ports() {
        let (mut server, mut out) = (ToClient::new(Protocol::V4), BytesMut::new());
        let port = Port::new(8080).unwrap();
        for stream in [Stream::Data, Stream::Error] {
            server.write(FromPod { port: 1, stream }, &encode_port(port), &mut out);
        }
        // 8080 is 0x1f90.
        assert_eq!(out, b"\x82\x03\x02\x90\x1f\x82\x03\x03\x90\x1f"[..]);
        assert_eq!(decode_port(&[0x90, 0x1f]), Some(port));
        for bad in [&b""[..], b"\x01", b"\0\0", b"\x01\x02\x03"] {
            assert_eq!(decode_port(bad), None);
        }
    }

    #[test]
    fn only_version_4_is_supported() {
        let header = |offers: &[&str]| negotiate(offers.iter().copied()).map(|it| it.header);
        let v4 = "v4.channel.k8s.io";
        assert_eq!(header(&[]), Some(None));
        assert_eq!(header(&["channel.k8s.io", v4]), Some(Some(v4)));
        let text = "v4.base64.channel.k8s.io";
        assert_eq!(header(&[text, v4]), Some(Some(text)));
        assert_eq!(header(&["channel.k8s.io", "base64.channel.k8s.io"]), None);
    }
}
