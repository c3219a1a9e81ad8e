//! Versions of the remote command protocol, and their names.

use skewbridge_websocket::MessageKind;

/// A protocol version. Later versions have all features of earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// The version without a number in its name.
    V1,
    /// Version 1 with fixes for SPDY (stdin may be closed).
    V2,
    /// Adds resizing over SPDY.
    V3,
    /// The error channel carries a Status.
    V4,
    /// Adds a signal that closes a channel. There is no SPDY protocol of this version: SPDY
    /// streams can be closed anyway.
    V5,
}

impl Version {
    /// Whether the error channel carries a Status instead of plain text.
    pub fn has_status(self) -> bool {
        self >= Self::V4
    }

    /// Whether a client can signal the end of a channel.
    pub fn has_close_signal(self) -> bool {
        self >= Self::V5
    }
}

/// How messages are encoded over WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// The number of the channel as a byte, then data.
    Binary,
    /// The number of the channel as a digit, then data in base64.
    Base64,
}

impl Encoding {
    /// The kind of WebSocket message.
    pub fn kind(self) -> MessageKind {
        match self {
            Self::Binary => MessageKind::Binary,
            Self::Base64 => MessageKind::Text,
        }
    }
}

/// A WebSocket subprotocol for remote commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Protocol {
    version: Version,
    encoding: Encoding,
}

impl Protocol {
    /// What kubectl requests, and kube-apiserver translates (KEP-4006).
    pub const V5: Self = Self::binary(Version::V5);
    /// What container runtimes support.
    pub const V4: Self = Self::binary(Version::V4);
    /// The same for clients that cannot send bytes.
    pub const V4_BASE64: Self = Self::text(Version::V4);
    /// Also used if a client offers no subprotocol.
    pub const V1: Self = Self::binary(Version::V1);
    /// The same for clients that cannot send bytes.
    pub const V1_BASE64: Self = Self::text(Version::V1);

    /// All named protocols. Version 5 has no text form: its close signal is a byte that cannot
    /// occur in text.
    pub const ALL: [Self; 9] = [
        Self::V5,
        Self::V4,
        Self::V4_BASE64,
        Self::binary(Version::V3),
        Self::text(Version::V3),
        Self::binary(Version::V2),
        Self::text(Version::V2),
        Self::V1,
        Self::V1_BASE64,
    ];

    const fn binary(version: Version) -> Self {
        let encoding = Encoding::Binary;
        Self { version, encoding }
    }

    const fn text(version: Version) -> Self {
        let encoding = Encoding::Base64;
        Self { version, encoding }
    }

    /// The protocol version.
    pub fn version(self) -> Version {
        self.version
    }

    /// The encoding of messages.
    pub fn encoding(self) -> Encoding {
        self.encoding
    }

    /// The name in `Sec-WebSocket-Protocol`.
    pub fn name(self) -> &'static str {
        match (self.version, self.encoding) {
            (version, Encoding::Binary) => name(version),
            (Version::V1, Encoding::Base64) => "base64.channel.k8s.io",
            (Version::V2, Encoding::Base64) => "v2.base64.channel.k8s.io",
            (Version::V3, Encoding::Base64) => "v3.base64.channel.k8s.io",
            (Version::V4, Encoding::Base64) => "v4.base64.channel.k8s.io",
            // No constant has this combination.
            (Version::V5, Encoding::Base64) => "v5.base64.channel.k8s.io",
        }
    }

    /// The subprotocol with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

/// An SPDY protocol for remote commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SpdyProtocol {
    /// [`Version::V1`]
    V1,
    /// [`Version::V2`]
    V2,
    /// [`Version::V3`]
    V3,
    /// [`Version::V4`]
    V4,
}

impl SpdyProtocol {
    /// All protocols, in the order of preference of clients and servers.
    pub const ALL: [Self; 4] = [Self::V4, Self::V3, Self::V2, Self::V1];

    /// The protocol version.
    pub fn version(self) -> Version {
        match self {
            Self::V1 => Version::V1,
            Self::V2 => Version::V2,
            Self::V3 => Version::V3,
            Self::V4 => Version::V4,
        }
    }

    /// Whether there is a stream for terminal sizes.
    pub fn has_resize_stream(self) -> bool {
        self >= Self::V3
    }

    /// The name in `X-Stream-Protocol-Version`.
    pub fn name(self) -> &'static str {
        name(self.version())
    }

    /// The protocol with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

fn name(version: Version) -> &'static str {
    match version {
        Version::V1 => "channel.k8s.io",
        Version::V2 => "v2.channel.k8s.io",
        Version::V3 => "v3.channel.k8s.io",
        Version::V4 => "v4.channel.k8s.io",
        Version::V5 => "v5.channel.k8s.io",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_protocols_map_to_each_other() {
        for protocol in Protocol::ALL {
            assert_eq!(Protocol::from_name(protocol.name()), Some(protocol));
        }
        for protocol in SpdyProtocol::ALL {
            assert_eq!(SpdyProtocol::from_name(protocol.name()), Some(protocol));
        }
        assert_eq!(Protocol::V4_BASE64.name(), "v4.base64.channel.k8s.io");
    }

    #[test]
    fn other_names_are_unknown() {
        for name in [
            "",
            "v1.channel.k8s.io",
            "v5.base64.channel.k8s.io",
            "base64.v4.channel.k8s.io",
            "V5.channel.k8s.io",
            "SPDY/3.1+portforward.k8s.io",
        ] {
            assert_eq!(Protocol::from_name(name), None, "{name}");
        }
        assert_eq!(SpdyProtocol::from_name("v5.channel.k8s.io"), None);
    }
}
