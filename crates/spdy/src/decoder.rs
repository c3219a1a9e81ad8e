//! Decodes frames from a buffer.

use bytes::{Buf as _, BytesMut};

use crate::error::Error;
use crate::frame::{
    ControlHead, Data, DataHead, Fin, Frame, GoAway, HEAD_BYTES, Head, HeadersFrame, Kind, Ping,
    RstStream, Settings, SynReply, SynStream, VERSION, WindowUpdate,
};
use crate::header_block::{Decompressor, MAX_COMPRESSED_BYTES};

/// The longest control frame that is accepted: headers and what precedes them. It has to be
/// complete before it is decoded, so this bounds what is buffered.
const MAX_CONTROL_BYTES: usize = MAX_COMPRESSED_BYTES + 16;

/// Decodes the frames of one direction of a connection, in whatever chunks they arrive.
#[derive(Debug, Default)]
pub struct Decoder {
    decompressor: Decompressor,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Head,
    Control(Kind, ControlHead),
    /// Inside a data frame: what is left of it.
    Data(DataHead),
    /// Inside a frame of an unknown type: how much is left.
    Skip(usize),
}

impl Decoder {
    /// Starts at the beginning of a connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes the next frame from the front of `buffer`; `None` means that more bytes are
    /// needed.
    ///
    /// Data is returned as it arrives, without waiting for the rest of its frame and without
    /// being copied. After an error the connection has failed.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, Error> {
        loop {
            match self.state {
                State::Head => {
                    let Some(head) = buffer.first_chunk::<HEAD_BYTES>() else {
                        return Ok(None);
                    };
                    let head = Head::parse(*head)?;
                    buffer.advance(HEAD_BYTES);
                    self.state = Self::after(head)?;
                }
                State::Skip(left) => {
                    let length = left.min(buffer.len());
                    buffer.advance(length);
                    if length < left {
                        self.state = State::Skip(left - length);
                        return Ok(None);
                    }
                    self.state = State::Head;
                }
                State::Data(head) => {
                    if buffer.is_empty() && head.length > 0 {
                        return Ok(None);
                    }
                    return Ok(Some(Frame::Data(self.data_chunk(head, buffer))));
                }
                State::Control(kind, head) => {
                    if buffer.len() < head.length {
                        return Ok(None);
                    }
                    let payload = buffer.split_to(head.length);
                    self.state = State::Head;
                    return self.control(kind, head.flags, &payload).map(Some);
                }
            }
        }
    }

    /// Whether the next byte starts a frame: then the connection may end here.
    pub fn is_between_frames(&self, buffer: &BytesMut) -> bool {
        matches!(self.state, State::Head) && buffer.is_empty()
    }

    fn after(head: Head) -> Result<State, Error> {
        let head = match head {
            Head::Data(head) => return Ok(State::Data(head)),
            Head::Control(head) => head,
        };
        if head.version != VERSION {
            return Err(Error::Version(head.version));
        }
        let Some(kind) = Kind::from_code(head.code) else {
            return Ok(State::Skip(head.length));
        };
        if head.length > MAX_CONTROL_BYTES {
            return Err(Error::Malformed("a control frame that is too long"));
        }
        Ok(State::Control(kind, head))
    }

    fn data_chunk(&mut self, head: DataHead, buffer: &mut BytesMut) -> Data {
        let length = head.length.min(buffer.len());
        let payload = buffer.split_to(length).freeze();
        let left = head.length - length;
        self.state = if left == 0 {
            State::Head
        } else {
            State::Data(DataHead {
                length: left,
                ..head
            })
        };
        Data {
            stream: head.stream,
            fin: if left == 0 { head.fin } else { Fin::No },
            payload,
        }
    }

    fn control(&mut self, kind: Kind, flags: u8, payload: &[u8]) -> Result<Frame, Error> {
        let decompressor = &mut self.decompressor;
        Ok(match kind {
            Kind::SynStream => Frame::SynStream(SynStream::parse(flags, payload, decompressor)?),
            Kind::SynReply => Frame::SynReply(SynReply::parse(flags, payload, decompressor)?),
            Kind::Headers => Frame::Headers(HeadersFrame::parse(flags, payload, decompressor)?),
            Kind::RstStream => Frame::RstStream(RstStream::parse(payload)?),
            Kind::Settings => Frame::Settings(Settings::parse(flags, payload)?),
            Kind::Ping => Frame::Ping(Ping::parse(payload)?),
            Kind::GoAway => Frame::GoAway(GoAway::parse(payload)?),
            Kind::WindowUpdate => Frame::WindowUpdate(WindowUpdate::parse(payload)?),
        })
    }
}
