//! Bytes in, events out.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::control::{CloseCode, Control};
use crate::frame::{ControlOpcode, Header, MessageKind, Opcode, Role};
use crate::mask::Mask;
use crate::utf8::{Invalid, Utf8};

/// What the other end says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Some of a message, as much of it as is there.
    Chunk(MessageChunk),
    /// Not part of a message, though it may come between two chunks of one.
    Control(Control),
}

/// Some of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageChunk {
    /// What the message is made of. A chunk of text may end within a character.
    pub kind: MessageKind,
    /// The message begins with it.
    pub is_first: bool,
    /// The message is_last with it.
    pub is_last: bool,
    /// May be empty where the message is_first or is_last.
    pub bytes: Bytes,
}

/// What is refused as too long, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The payload of a frame.
    pub frame: u64,
    /// All payloads of a message. Who takes chunks as they come needs no bound
    /// here; who puts them together does.
    pub message: u64,
}

/// What the other end may not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// RFC 6455, 5.2: they belong to extensions, and none was agreed to.
    #[error("a frame with reserved bits")]
    ReservedBits,
    /// RFC 6455, 5.2.
    #[error("a frame of the unknown kind {0}")]
    ReservedOpcode(u8),
    /// RFC 6455, 5.1: clients mask.
    #[error("a frame of a client that is not masked")]
    Unmasked,
    /// RFC 6455, 5.1: servers do not.
    #[error("a frame of a server that is masked")]
    Masked,
    /// RFC 6455, 5.4.
    #[error("a control frame in fragments")]
    FragmentedControl,
    /// RFC 6455, 5.5.
    #[error("a control frame longer than 125 bytes")]
    LongControl,
    /// RFC 6455, 5.2.
    #[error("a length that is not written in the fewest bytes")]
    LengthNotMinimal,
    /// RFC 6455, 5.2.
    #[error("a length with its highest bit set")]
    ReservedLength,
    /// RFC 6455, 5.4.
    #[error("a continuation of no message")]
    NothingToContinue,
    /// RFC 6455, 5.4.
    #[error("a message within another one")]
    Interleaved,
    /// RFC 6455, 8.1.
    #[error("text that is not UTF-8")]
    InvalidUtf8,
    /// RFC 6455, 5.5.1.
    #[error("a close frame with half a code")]
    ShortClose,
    /// RFC 6455, 7.4.
    #[error("a close frame with the code {0}")]
    ReservedCloseCode(u16),
    /// [`Limits::frame`].
    #[error("a frame that is too long")]
    FrameTooLong,
    /// [`Limits::message`].
    #[error("a message that is too long")]
    MessageTooLong,
}

impl Violation {
    /// What the connection is to be closed with.
    pub fn close_code(self) -> CloseCode {
        match self {
            Self::InvalidUtf8 => CloseCode::INVALID_DATA,
            Self::FrameTooLong | Self::MessageTooLong => CloseCode::TOO_BIG,
            _ => CloseCode::PROTOCOL_ERROR,
        }
    }
}

impl From<Invalid> for Violation {
    fn from(Invalid: Invalid) -> Self {
        Self::InvalidUtf8
    }
}

/// Takes the bytes of one direction of a connection apart. It keeps none of
/// them.
#[derive(Debug)]
pub struct Decoder {
    role: Role,
    limits: Limits,
    state: State,
    message: Option<Message>,
}

#[derive(Debug)]
enum State {
    Head,
    Data {
        left: u64,
        mask: Option<Mask>,
        fin: bool,
    },
    Control {
        opcode: ControlOpcode,
        length: usize,
        mask: Option<Mask>,
    },
    Closed,
    Failed(Violation),
}

/// One that has begun and not ended.
#[derive(Debug)]
struct Message {
    kind: MessageKind,
    length: u64,
    /// No chunk of it has been given yet.
    is_unread: bool,
    utf8: Utf8,
}

impl Decoder {
    /// For the end that has this role: what is read comes from the other one.
    pub fn new(role: Role, limits: Limits) -> Self {
        Self {
            role,
            limits,
            state: State::Head,
            message: None,
        }
    }

    /// Takes the next event off the front of `buffer`; `None` asks for more
    /// bytes. After a close whatever follows is dropped; after a violation
    /// every call gives the same one.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Event>, Violation> {
        let result = self.step(buffer);
        if let Err(violation) = result {
            self.state = State::Failed(violation);
        }
        result
    }

    /// Whether the other end has said that nothing follows. A connection that
    /// is_last without it was cut off.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    fn step(&mut self, buffer: &mut BytesMut) -> Result<Option<Event>, Violation> {
        loop {
            match self.state {
                State::Closed => {
                    buffer.clear();
                    return Ok(None);
                }
                State::Failed(violation) => return Err(violation),
                State::Head => {
                    let check = |opcode, length| self.check(opcode, length);
                    let Some((header, end)) = Header::parse(buffer, self.role, check)? else {
                        return Ok(None);
                    };
                    buffer.advance(end);
                    self.begin(&header);
                }
                State::Control {
                    opcode,
                    length,
                    mask,
                } => {
                    if buffer.len() < length {
                        return Ok(None);
                    }
                    let (payload, _) = take(buffer, length, mask);
                    let control = Control::parse(opcode, payload.freeze())?;
                    self.state = match control {
                        Control::Close(_) => State::Closed,
                        _ => State::Head,
                    };
                    return Ok(Some(Event::Control(control)));
                }
                State::Data { left, mask, fin } => {
                    let there = usize::try_from(left).unwrap_or(usize::MAX);
                    let there = there.min(buffer.len());
                    if there == 0 && left > 0 {
                        return Ok(None);
                    }
                    let (bytes, mask) = take(buffer, there, mask);
                    let left = left - there as u64;
                    self.state = match left {
                        0 => State::Head,
                        _ => State::Data { left, mask, fin },
                    };
                    if let Some(chunk) = self.chunk(bytes.freeze(), fin && left == 0)? {
                        return Ok(Some(Event::Chunk(chunk)));
                    }
                }
            }
        }
    }

    /// Whether such a frame may come now.
    fn check(&self, opcode: Opcode, length: Option<u64>) -> Result<(), Violation> {
        let before = match (opcode, &self.message) {
            (Opcode::Control(_), _) => return Ok(()),
            (Opcode::Continuation, None) => return Err(Violation::NothingToContinue),
            (Opcode::Data(_), Some(_)) => return Err(Violation::Interleaved),
            (Opcode::Continuation, Some(message)) => message.length,
            (Opcode::Data(_), None) => 0,
        };
        let Some(length) = length else {
            return Ok(());
        };
        if length > self.limits.frame {
            return Err(Violation::FrameTooLong);
        }
        if before.saturating_add(length) > self.limits.message {
            return Err(Violation::MessageTooLong);
        }
        Ok(())
    }

    fn begin(&mut self, header: &Header) {
        let (left, mask, fin) = (header.length, header.mask, header.fin);
        match header.opcode {
            Opcode::Control(opcode) => {
                // At most 125, or it would not have been parsed.
                let length = usize::try_from(left).unwrap_or(usize::MAX);
                self.state = State::Control {
                    opcode,
                    length,
                    mask,
                };
                return;
            }
            Opcode::Continuation => {}
            Opcode::Data(kind) => {
                self.message = Some(Message {
                    kind,
                    length: 0,
                    is_unread: true,
                    utf8: Utf8::default(),
                });
            }
        }
        if let Some(message) = &mut self.message {
            message.length = message.length.saturating_add(left);
        }
        self.state = State::Data { left, mask, fin };
    }

    fn chunk(&mut self, bytes: Bytes, is_last: bool) -> Result<Option<MessageChunk>, Violation> {
        // Data is only read within a message.
        let Some(message) = &mut self.message else {
            return Ok(None);
        };
        if bytes.is_empty() && !is_last {
            return Ok(None);
        }
        let kind = message.kind;
        if kind == MessageKind::Text {
            message.utf8.push(&bytes)?;
            if is_last {
                message.utf8.end()?;
            }
        }
        let is_first = std::mem::take(&mut message.is_unread);
        if is_last {
            self.message = None;
        }
        Ok(Some(MessageChunk {
            kind,
            is_first,
            is_last,
            bytes,
        }))
    }
}

/// Splits bytes off, unmasks them, and says how those that follow are masked.
fn take(buffer: &mut BytesMut, length: usize, mask: Option<Mask>) -> (BytesMut, Option<Mask>) {
    let mut bytes = buffer.split_to(length);
    let mask = mask.map(|mask| mask.apply(&mut bytes));
    (bytes, mask)
}

#[cfg(test)]
mod tests;
