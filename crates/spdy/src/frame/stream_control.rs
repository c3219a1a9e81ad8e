//! The control frames that open, describe and end a stream.

use bytes::{BufMut as _, BytesMut};

use super::{
    FLAG_UNIDIRECTIONAL, Fin, FrameError, Kind, MalformedFrame, Priority, ResetStatus, StreamId,
    encode_control, encode_words, take_word,
};
use crate::header_block::{Compressor, Decompressor, HeaderBlockError};
use crate::headers::Headers;

/// Opens a stream.
///
/// The headers that SPDY requires (`:method`, `:path` and so on) are not checked: Kubernetes
/// does not send them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SynStream {
    /// The new stream.
    pub stream: StreamId,
    /// The associated stream. Kubernetes does not use it.
    pub associated: Option<StreamId>,
    /// The priority.
    pub priority: Priority,
    /// Whether the sender will send no data.
    pub fin: Fin,
    /// Whether the receiver must not send data.
    pub unidirectional: bool,
    /// The headers.
    pub headers: Headers,
}

impl SynStream {
    pub(crate) fn parse(
        flags: u8,
        mut payload: &[u8],
        decompressor: &mut Decompressor,
    ) -> Result<Self, FrameError> {
        let missing = "a SYN_STREAM that is too short";
        let stream = StreamId::parse(take_word(&mut payload, missing)?)?;
        let associated = StreamId::new(take_word(&mut payload, missing)? & 0x7fff_ffff);
        let ([priority, _slot], block) = payload
            .split_first_chunk::<2>()
            .ok_or(MalformedFrame(missing))?;
        Ok(Self {
            stream,
            associated,
            priority: Priority::new(priority >> 5),
            fin: Fin::from_flags(flags),
            unidirectional: flags & FLAG_UNIDIRECTIONAL != 0,
            headers: decompressor.headers(block)?,
        })
    }

    /// Appends the frame.
    pub fn encode(
        &self,
        compressor: &mut Compressor,
        out: &mut BytesMut,
    ) -> Result<(), HeaderBlockError> {
        let mut flags = self.fin.flags();
        if self.unidirectional {
            flags |= FLAG_UNIDIRECTIONAL;
        }
        encode_control(out, Kind::SynStream, flags, |out| {
            out.put_u32(self.stream.get());
            out.put_u32(self.associated.map_or(0, StreamId::get));
            out.put_u8(self.priority.get() << 5);
            // The slot of a client certificate, which SPDY/3.1 removed.
            out.put_u8(0);
            compressor.append(&self.headers, out)
        })
    }
}

/// Accepts a stream. Kubernetes sends it without headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SynReply {
    /// The accepted stream.
    pub stream: StreamId,
    /// Whether the sender will send no data.
    pub fin: Fin,
    /// The headers.
    pub headers: Headers,
}

/// Further headers of a stream. Kubernetes does not send them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadersFrame {
    /// The stream.
    pub stream: StreamId,
    /// Whether this is the last frame of the sender.
    pub fin: Fin,
    /// The headers.
    pub headers: Headers,
}

/// `SYN_REPLY` and `HEADERS` differ only in their type.
macro_rules! stream_and_headers {
    ($frame:ident, $missing:literal, $kind:expr) => {
        impl $frame {
            pub(crate) fn parse(
                flags: u8,
                mut payload: &[u8],
                decompressor: &mut Decompressor,
            ) -> Result<Self, FrameError> {
                Ok(Self {
                    stream: StreamId::parse(take_word(&mut payload, $missing)?)?,
                    fin: Fin::from_flags(flags),
                    headers: decompressor.headers(payload)?,
                })
            }

            /// Appends the frame.
            pub fn encode(
                &self,
                compressor: &mut Compressor,
                out: &mut BytesMut,
            ) -> Result<(), HeaderBlockError> {
                encode_control(out, $kind, self.fin.flags(), |out| {
                    out.put_u32(self.stream.get());
                    compressor.append(&self.headers, out)
                })
            }
        }
    };
}

stream_and_headers!(SynReply, "a SYN_REPLY that is too short", Kind::SynReply);
stream_and_headers!(HeadersFrame, "a HEADERS that is too short", Kind::Headers);

/// Resets a stream, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RstStream {
    /// The stream.
    pub stream: StreamId,
    /// The reason.
    pub status: ResetStatus,
}

impl RstStream {
    pub(crate) fn parse(mut payload: &[u8]) -> Result<Self, MalformedFrame> {
        let missing = "a RST_STREAM that is too short";
        Ok(Self {
            stream: StreamId::parse(take_word(&mut payload, missing)?)?,
            status: ResetStatus::from_code(take_word(&mut payload, missing)?),
        })
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut BytesMut) {
        let words = [self.stream.get(), self.status.code()];
        encode_words(out, Kind::RstStream, &words);
    }
}
