//! The frames of SPDY/3.1: small types, each with its `parse` and `encode`.
//!
//! A control frame starts with a set bit, the version and the type; a data frame with the id
//! of its stream. Both continue with a byte of flags and a length of 24 bits. `parse` gets
//! what follows these eight bytes, `encode` writes the whole frame.

mod connection_control;
mod data;
mod id;
mod status;
mod stream_control;

use bytes::{BufMut as _, BytesMut};

pub use connection_control::{GoAway, Ping, Setting, SettingId, Settings, WindowUpdate};
pub use data::Data;
pub(crate) use data::DataHead;
pub use id::{Priority, StreamId};
pub use status::{GoAwayStatus, ResetStatus};
pub use stream_control::{HeadersFrame, RstStream, SynReply, SynStream};

use crate::header_block::{Compressor, HeaderBlockError};

/// The version field of SPDY/3.1 is 3.
pub(crate) const VERSION: u16 = 3;

/// The eight bytes at the start of each frame.
pub(crate) const HEAD_BYTES: usize = 8;

/// The bit at the start of a control frame.
const CONTROL: u32 = 0x8000_0000;

/// The last frame of its sender on this stream.
const FLAG_FIN: u8 = 0x01;
/// On a `SYN_STREAM`: the remote must not send data.
const FLAG_UNIDIRECTIONAL: u8 = 0x02;

/// Why a frame is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MalformedFrame(pub(crate) &'static str);

/// Why a frame with headers cannot be parsed.
#[derive(Debug)]
pub(crate) enum FrameError {
    Malformed(MalformedFrame),
    Headers(HeaderBlockError),
}

impl From<MalformedFrame> for FrameError {
    fn from(error: MalformedFrame) -> Self {
        Self::Malformed(error)
    }
}

impl From<HeaderBlockError> for FrameError {
    fn from(error: HeaderBlockError) -> Self {
        Self::Headers(error)
    }
}

/// Whether a frame is the last one of its sender on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fin {
    /// More frames may follow.
    #[default]
    No,
    /// Nothing follows: this half of the stream is closed.
    Yes,
}

impl Fin {
    fn from_flags(flags: u8) -> Self {
        if flags & FLAG_FIN == 0 {
            Self::No
        } else {
            Self::Yes
        }
    }

    fn flags(self) -> u8 {
        match self {
            Self::No => 0,
            Self::Yes => FLAG_FIN,
        }
    }
}

/// Any frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Opens a stream.
    SynStream(SynStream),
    /// Accepts a stream.
    SynReply(SynReply),
    /// Resets a stream.
    RstStream(RstStream),
    /// Announces limits of the sender.
    Settings(Settings),
    /// Requests a reply, or is one.
    Ping(Ping),
    /// The sender accepts no more streams.
    GoAway(GoAway),
    /// Further headers of a stream.
    Headers(HeadersFrame),
    /// Allows the remote to send more.
    WindowUpdate(WindowUpdate),
    /// Bytes of a stream.
    Data(Data),
}

impl Frame {
    /// Appends the frame to `out`. A session sends data frames another way, without copying.
    pub fn encode(
        &self,
        compressor: &mut Compressor,
        out: &mut BytesMut,
    ) -> Result<(), HeaderBlockError> {
        match self {
            Self::SynStream(frame) => return frame.encode(compressor, out),
            Self::SynReply(frame) => return frame.encode(compressor, out),
            Self::Headers(frame) => return frame.encode(compressor, out),
            Self::RstStream(frame) => frame.encode(out),
            Self::Settings(frame) => frame.encode(out),
            Self::Ping(frame) => frame.encode(out),
            Self::GoAway(frame) => frame.encode(out),
            Self::WindowUpdate(frame) => frame.encode(out),
            Self::Data(frame) => frame.encode(out),
        }
        Ok(())
    }
}

/// The types of control frames that are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    SynStream = 1,
    SynReply = 2,
    RstStream = 3,
    Settings = 4,
    Ping = 6,
    GoAway = 7,
    Headers = 8,
    WindowUpdate = 9,
}

impl Kind {
    pub(crate) fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            1 => Self::SynStream,
            2 => Self::SynReply,
            3 => Self::RstStream,
            4 => Self::Settings,
            6 => Self::Ping,
            7 => Self::GoAway,
            8 => Self::Headers,
            9 => Self::WindowUpdate,
            _ => return None,
        })
    }
}

/// The head of a control frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ControlHead {
    pub(crate) version: u16,
    /// The type, known or not.
    pub(crate) code: u16,
    pub(crate) flags: u8,
    pub(crate) length: usize,
}

/// The head of any frame.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Head {
    Control(ControlHead),
    Data(DataHead),
}

impl Head {
    pub(crate) fn parse(bytes: [u8; HEAD_BYTES]) -> Result<Self, MalformedFrame> {
        let first = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let flags = bytes[4];
        let length = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]) as usize;
        if first & CONTROL == 0 {
            return Ok(Self::Data(DataHead {
                stream: StreamId::parse(first)?,
                fin: Fin::from_flags(flags),
                length,
            }));
        }
        Ok(Self::Control(ControlHead {
            version: u16::from_be_bytes([bytes[0] & 0x7f, bytes[1]]),
            code: u16::from_be_bytes([bytes[2], bytes[3]]),
            flags,
            length,
        }))
    }
}

/// Writes a control frame: the head, the payload, and then the length in the head.
fn encode_control<E>(
    out: &mut BytesMut,
    kind: Kind,
    flags: u8,
    payload: impl FnOnce(&mut BytesMut) -> Result<(), E>,
) -> Result<(), E> {
    let start = out.len();
    out.put_u16(0x8000 | VERSION);
    out.put_u16(kind as u16);
    out.put_u32(0);
    if let Err(error) = payload(out) {
        out.truncate(start);
        return Err(error);
    }
    let length = out.len() - start - HEAD_BYTES;
    let [_, high, middle, low] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    out[start + 4..start + HEAD_BYTES].copy_from_slice(&[flags, high, middle, low]);
    Ok(())
}

/// The same for frames of fixed words.
fn encode_words(out: &mut BytesMut, kind: Kind, words: &[u32]) {
    let Ok(()) = encode_control(out, kind, 0, |out| {
        for word in words {
            out.put_u32(*word);
        }
        Ok::<(), std::convert::Infallible>(())
    });
}

/// Takes a word off the front of a payload.
fn take_word(payload: &mut &[u8], missing: &'static str) -> Result<u32, MalformedFrame> {
    let (word, rest) = payload
        .split_first_chunk::<4>()
        .ok_or(MalformedFrame(missing))?;
    *payload = rest;
    Ok(u32::from_be_bytes(*word))
}
