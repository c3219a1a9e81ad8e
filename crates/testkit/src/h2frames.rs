//! HTTP/2 frames as bytes, to send what a well-behaved library would never send: a GOAWAY
//! in the middle of a response, refused streams, CONTINUATION floods, rapid resets.
//!
//! ```
//! use skewbridge_testkit::h2frames::{self, FrameHeader, code, kind};
//!
//! let frame = h2frames::goaway(5, code::NO_ERROR);
//! let header = FrameHeader::parse(frame[..9].try_into().unwrap());
//! assert_eq!((header.kind, header.length), (kind::GOAWAY, 8));
//! ```

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The client connection preface (RFC 9113, section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The length of a frame header in bytes.
pub const HEADER_LEN: usize = 9;

/// A response header block with only `:status: 200`.
pub const STATUS_200: &[u8] = &[0x88];

/// Frame types (RFC 9113, section 6).
#[allow(missing_docs, reason = "the names are those of the RFC")]
pub mod kind {
    pub const DATA: u8 = 0x0;
    pub const HEADERS: u8 = 0x1;
    pub const PRIORITY: u8 = 0x2;
    pub const RST_STREAM: u8 = 0x3;
    pub const SETTINGS: u8 = 0x4;
    pub const PUSH_PROMISE: u8 = 0x5;
    pub const PING: u8 = 0x6;
    pub const GOAWAY: u8 = 0x7;
    pub const WINDOW_UPDATE: u8 = 0x8;
    pub const CONTINUATION: u8 = 0x9;
}

/// Frame flags (RFC 9113, section 6).
#[allow(missing_docs, reason = "the names are those of the RFC")]
pub mod flag {
    pub const NONE: u8 = 0x0;
    pub const ACK: u8 = 0x1;
    pub const END_STREAM: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

/// Error codes (RFC 9113, section 7).
#[allow(missing_docs, reason = "the names are those of the RFC")]
pub mod code {
    pub const NO_ERROR: u32 = 0x0;
    pub const PROTOCOL_ERROR: u32 = 0x1;
    pub const INTERNAL_ERROR: u32 = 0x2;
    pub const FLOW_CONTROL_ERROR: u32 = 0x3;
    pub const STREAM_CLOSED: u32 = 0x5;
    pub const FRAME_SIZE_ERROR: u32 = 0x6;
    pub const REFUSED_STREAM: u32 = 0x7;
    pub const CANCEL: u32 = 0x8;
    pub const COMPRESSION_ERROR: u32 = 0x9;
    pub const ENHANCE_YOUR_CALM: u32 = 0xb;
    pub const HTTP_1_1_REQUIRED: u32 = 0xd;
}

/// Settings (RFC 9113, section 6.5.2; RFC 8441).
#[allow(missing_docs, reason = "the names are those of the RFC")]
pub mod setting {
    pub const HEADER_TABLE_SIZE: u16 = 0x1;
    pub const ENABLE_PUSH: u16 = 0x2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 0x3;
    pub const INITIAL_WINDOW_SIZE: u16 = 0x4;
    pub const MAX_FRAME_SIZE: u16 = 0x5;
    pub const MAX_HEADER_LIST_SIZE: u16 = 0x6;
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
}

/// The nine bytes before a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The length of the payload in bytes, 24 bits on the wire.
    pub length: u32,
    /// A frame type of [`kind`].
    pub kind: u8,
    /// Flags of [`flag`].
    pub flags: u8,
    /// The stream ID, 0 for the connection.
    pub stream: u32,
}

impl FrameHeader {
    /// Parses a header; the reserved bit is ignored.
    pub fn parse(bytes: [u8; HEADER_LEN]) -> Self {
        let [a, b, c, kind, flags, stream @ ..] = bytes;
        Self {
            length: u32::from_be_bytes([0, a, b, c]),
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & 0x7fff_ffff,
        }
    }

    /// Encodes a header with any values.
    pub fn encode(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..3].copy_from_slice(&self.length.to_be_bytes()[1..]);
        bytes[3..5].copy_from_slice(&[self.kind, self.flags]);
        bytes[5..].copy_from_slice(&self.stream.to_be_bytes());
        bytes
    }

    /// Whether all bits of `flag` are set.
    pub fn has(self, flag: u8) -> bool {
        self.flags & flag == flag
    }
}

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The frame header.
    pub header: FrameHeader,
    /// The payload, including padding.
    pub payload: Vec<u8>,
}

impl Frame {
    /// The error code of a `RST_STREAM` or GOAWAY.
    pub fn error_code(&self) -> Option<u32> {
        let at = match self.header.kind {
            kind::RST_STREAM => 0,
            kind::GOAWAY => 4,
            _ => return None,
        };
        let bytes = self.payload.get(at..at + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    }
}

/// Encodes any frame; the length is that of the payload.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader {
        length: u32::try_from(payload.len()).unwrap(),
        kind,
        flags,
        stream,
    };
    [&header.encode(), payload].concat()
}

/// SETTINGS with pairs of [`setting`] and value.
pub fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> = values
        .iter()
        .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    frame(kind::SETTINGS, flag::NONE, 0, &payload)
}

/// The acknowledgement of the other end's SETTINGS.
pub fn settings_ack() -> Vec<u8> {
    frame(kind::SETTINGS, flag::ACK, 0, &[])
}

/// HEADERS with an encoded block, such as [`STATUS_200`], [`request_block`] or [`literal`]s.
pub fn headers(stream: u32, flags: u8, block: &[u8]) -> Vec<u8> {
    frame(kind::HEADERS, flags, stream, block)
}

/// CONTINUATION of a header block.
pub fn continuation(stream: u32, flags: u8, block: &[u8]) -> Vec<u8> {
    frame(kind::CONTINUATION, flags, stream, block)
}

/// DATA without padding.
pub fn data(stream: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
    frame(kind::DATA, flags, stream, bytes)
}

/// `RST_STREAM` with one of [`code`].
pub fn rst_stream(stream: u32, code: u32) -> Vec<u8> {
    frame(kind::RST_STREAM, flag::NONE, stream, &code.to_be_bytes())
}

/// GOAWAY: streams above `last_stream` were not processed.
pub fn goaway(last_stream: u32, code: u32) -> Vec<u8> {
    let payload = [last_stream.to_be_bytes(), code.to_be_bytes()].concat();
    frame(kind::GOAWAY, flag::NONE, 0, &payload)
}

/// `WINDOW_UPDATE` of a stream, or of the connection with 0.
pub fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    let payload = increment.to_be_bytes();
    frame(kind::WINDOW_UPDATE, flag::NONE, stream, &payload)
}

/// PING, or its acknowledgement with [`flag::ACK`].
pub fn ping(flags: u8, opaque: [u8; 8]) -> Vec<u8> {
    frame(kind::PING, flags, 0, &opaque)
}

/// One HPACK header: a literal without indexing, with a literal name and no Huffman coding
/// (RFC 7541, section 6.2.2).
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut encoded = vec![0x00];
    for text in [name, value] {
        encode_length(text.len(), &mut encoded);
        encoded.extend_from_slice(text.as_bytes());
    }
    encoded
}

/// The header block of a request over https.
pub fn request_block(method: &str, authority: &str, path: &str) -> Vec<u8> {
    [
        literal(":method", method),
        literal(":scheme", "https"),
        literal(":authority", authority),
        literal(":path", path),
    ]
    .concat()
}

/// Reads the next frame.
pub async fn read_frame(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
    let mut header = [0; HEADER_LEN];
    io.read_exact(&mut header).await?;
    let header = FrameHeader::parse(header);
    let mut payload = vec![0; header.length as usize];
    io.read_exact(&mut payload).await?;
    Ok(Frame { header, payload })
}

/// Skips frames until one of this type.
pub async fn read_until(io: &mut (impl AsyncRead + Unpin), kind: u8) -> io::Result<Frame> {
    loop {
        let frame = read_frame(io).await?;
        if frame.header.kind == kind {
            return Ok(frame);
        }
    }
}

/// The server's connection setup: reads the preface and the client's SETTINGS, sends
/// `values` and the acknowledgement.
pub async fn accept(
    io: &mut (impl AsyncRead + AsyncWrite + Unpin),
    values: &[(u16, u32)],
) -> io::Result<()> {
    let mut preface = [0; PREFACE.len()];
    io.read_exact(&mut preface).await?;
    if preface != PREFACE {
        return Err(crate::h1_codec::invalid("not an HTTP/2 preface"));
    }
    read_until(io, kind::SETTINGS).await?;
    io.write_all(&[settings(values), settings_ack()].concat())
        .await?;
    io.flush().await
}

/// The client's connection setup: sends the preface and `values`, reads the server's
/// SETTINGS, sends the acknowledgement.
pub async fn open(
    io: &mut (impl AsyncRead + AsyncWrite + Unpin),
    values: &[(u16, u32)],
) -> io::Result<()> {
    io.write_all(&[PREFACE, &settings(values)].concat()).await?;
    io.flush().await?;
    read_until(io, kind::SETTINGS).await?;
    io.write_all(&settings_ack()).await?;
    io.flush().await
}

/// A length with the seven-bit prefix of HPACK strings (RFC 7541, section 5.1).
fn encode_length(length: usize, out: &mut Vec<u8>) {
    const MAX_PREFIX_VALUE: usize = 0x7f;
    if length < MAX_PREFIX_VALUE {
        out.push(u8::try_from(length).unwrap());
        return;
    }
    out.push(0x7f);
    let mut rest = length - MAX_PREFIX_VALUE;
    while rest >= 0x80 {
        out.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
        rest >>= 7;
    }
    out.push(u8::try_from(rest).unwrap());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_parsed_as_encoded() {
        let header = FrameHeader {
            length: 0x01_02_03,
            kind: kind::HEADERS,
            flags: flag::END_HEADERS | flag::END_STREAM,
            stream: 0x7fff_fffd,
        };
        assert_eq!(FrameHeader::parse(header.encode()), header);
        assert!(header.has(flag::END_STREAM));
        assert!(!header.has(flag::PADDED));
    }

    #[tokio::test]
    async fn frames_are_read_back_with_their_error_code() {
        let wire = [
            window_update(0, 1),
            goaway(7, code::ENHANCE_YOUR_CALM),
            rst_stream(3, code::REFUSED_STREAM),
        ]
        .concat();
        let mut wire = wire.as_slice();
        let goaway = read_until(&mut wire, kind::GOAWAY).await.unwrap();
        assert_eq!(goaway.error_code(), Some(code::ENHANCE_YOUR_CALM));
        let reset = read_frame(&mut wire).await.unwrap();
        assert_eq!(reset.error_code(), Some(code::REFUSED_STREAM));
        assert_eq!(reset.header.stream, 3);
    }

    #[test]
    fn long_literals_have_a_multi_byte_length() {
        // RFC 7541, C.1.2 counts the same way: 1337 - 127 = 1210 = 0b1001_0111010.
        let encoded = literal("x", &"v".repeat(1337));
        assert_eq!(encoded[..6], [0x00, 1, b'x', 0x7f, 0xba, 0x09]);
    }
}
