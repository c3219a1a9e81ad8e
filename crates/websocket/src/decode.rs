//! Decodes bytes into events.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::control::Control;
use crate::frame::{ControlOpcode, Header, MessageKind, Opcode, Role};
use crate::mask::Mask;
use crate::utf8::Utf8;
use crate::violation::Violation;

/// What the other end sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A part of a message, as much as is available.
    Chunk(MessageChunk),
    /// A control frame, which may come between two chunks of a message.
    Control(Control),
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageChunk {
    /// The kind of the message. A chunk of text may end inside a character.
    pub kind: MessageKind,
    /// The message starts with it.
    pub is_first: bool,
    /// The message ends with it.
    pub is_last: bool,
    /// May be empty at the start or end of a message.
    pub bytes: Bytes,
}

/// Size limits, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The payload of a frame.
    pub frame: u64,
    /// All payloads of a message. A caller that handles chunks as they arrive needs no limit
    /// here; one that assembles messages does.
    pub message: u64,
}

/// Decodes one direction of a connection. It buffers nothing.
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

/// A message that has started and not ended.
#[derive(Debug)]
struct Message {
    kind: MessageKind,
    length: u64,
    /// No chunk of it was returned yet.
    is_unread: bool,
    utf8: Utf8,
}

impl Decoder {
    /// For the end with this role: the input comes from the other one.
    pub fn new(role: Role, limits: Limits) -> Self {
        Self {
            role,
            limits,
            state: State::Head,
            message: None,
        }
    }

    /// Decodes the next event from the front of `buffer`; `None` means that more bytes are
    /// needed. After a close frame all input is dropped; after a violation every call returns
    /// the same one.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Event>, Violation> {
        let result = self.step(buffer);
        if let Err(violation) = result {
            self.state = State::Failed(violation);
        }
        result
    }

    /// Whether a close frame was received. A connection that ends without one was interrupted.
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
                    let available = usize::try_from(left).unwrap_or(usize::MAX);
                    let available = available.min(buffer.len());
                    if available == 0 && left > 0 {
                        return Ok(None);
                    }
                    let (bytes, mask) = take(buffer, available, mask);
                    let left = left - available as u64;
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

    /// Whether such a frame is allowed now.
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
                // At most 125, as the parser has checked.
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
        // Data frames occur only within a message.
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

/// Splits off bytes and unmasks them; returns the mask for those that follow.
fn take(buffer: &mut BytesMut, length: usize, mask: Option<Mask>) -> (BytesMut, Option<Mask>) {
    let mut bytes = buffer.split_to(length);
    let mask = mask.map(|mask| mask.apply(&mut bytes));
    (bytes, mask)
}

#[cfg(test)]
mod tests;
