//! The header of a frame (RFC 6455, 5.2).

use crate::mask::Mask;
use crate::violation::Violation;

/// Which end of a connection this is: clients mask what they send, servers do not (RFC 6455,
/// 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Requested the connection.
    Client,
    /// Accepted it.
    Server,
}

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// UTF-8.
    Text,
    /// Bytes.
    Binary,
}

/// A data frame: a whole message, or a part of one.
///
/// Messages to Kubernetes should be whole: its servers treat each frame as a message, whatever
/// FIN says (`golang.org/x/net/websocket`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// All of a message.
    Whole(MessageKind),
    /// The first part of a message.
    First(MessageKind),
    /// A part that is neither the first nor the last.
    Middle,
    /// The last part of a message.
    Last,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opcode {
    Continuation,
    Data(MessageKind),
    Control(ControlOpcode),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlOpcode {
    Close,
    Ping,
    Pong,
}

/// The longest payload of a control frame (RFC 6455, 5.5).
pub(crate) const MAX_CONTROL_BYTES: u8 = 125;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;

/// Two bytes of length follow.
const LENGTH_16: u8 = 126;
/// Eight bytes of length follow.
const LENGTH_64: u8 = 127;

/// A decoded header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) fin: bool,
    pub(crate) opcode: Opcode,
    pub(crate) mask: Option<Mask>,
    pub(crate) length: u64,
}

impl Header {
    /// Parses a header as far as it was received; `None` means that more bytes are needed.
    /// Errors are detected at the first byte that shows them.
    pub(crate) fn parse(
        bytes: &[u8],
        role: Role,
        check: impl Fn(Opcode, Option<u64>) -> Result<(), Violation>,
    ) -> Result<Option<(Self, usize)>, Violation> {
        let Some(&first) = bytes.first() else {
            return Ok(None);
        };
        if first & RESERVED != 0 {
            return Err(Violation::ReservedBits);
        }
        let (fin, opcode) = (first & FIN != 0, Opcode::parse(first & 0x0f)?);
        if !fin && matches!(opcode, Opcode::Control(_)) {
            return Err(Violation::FragmentedControl);
        }
        check(opcode, None)?;

        let Some(&second) = bytes.get(1) else {
            return Ok(None);
        };
        match (role, second & MASKED != 0) {
            (Role::Server, false) => return Err(Violation::Unmasked),
            (Role::Client, true) => return Err(Violation::Masked),
            _ => {}
        }
        let short = second & !MASKED;
        if short > MAX_CONTROL_BYTES && matches!(opcode, Opcode::Control(_)) {
            return Err(Violation::LongControl);
        }
        let Some((length, at)) = length(short, &bytes[2..])? else {
            return Ok(None);
        };
        check(opcode, Some(length))?;

        let mut end = 2 + at;
        let mask = match role {
            Role::Client => None,
            Role::Server => {
                let Some(key) = bytes[end..].first_chunk() else {
                    return Ok(None);
                };
                end += key.len();
                Some(Mask::new(*key))
            }
        };
        let header = Self {
            fin,
            opcode,
            mask,
            length,
        };
        Ok(Some((header, end)))
    }

    /// Writes it to the front of `out`, and returns its length.
    pub(crate) fn write(&self, out: &mut [u8; MAX_HEADER_BYTES]) -> usize {
        out[0] = self.opcode.number() | if self.fin { FIN } else { 0 };
        let masked = if self.mask.is_some() { MASKED } else { 0 };
        let mut end = match (u8::try_from(self.length), u16::try_from(self.length)) {
            (Ok(short), _) if short <= MAX_CONTROL_BYTES => {
                out[1] = masked | short;
                2
            }
            (_, Ok(middle)) => {
                out[1] = masked | LENGTH_16;
                out[2..4].copy_from_slice(&middle.to_be_bytes());
                4
            }
            _ => {
                out[1] = masked | LENGTH_64;
                out[2..10].copy_from_slice(&self.length.to_be_bytes());
                10
            }
        };
        if let Some(mask) = self.mask {
            out[end..end + 4].copy_from_slice(&mask.key());
            end += 4;
        }
        end
    }
}

/// Two bytes, eight of length, four of mask.
pub(crate) const MAX_HEADER_BYTES: usize = 14;

/// A length, and how many further bytes encode it.
fn length(short: u8, more: &[u8]) -> Result<Option<(u64, usize)>, Violation> {
    match short {
        LENGTH_16 => {
            let Some(bytes) = more.first_chunk() else {
                return Ok(None);
            };
            let length = u16::from_be_bytes(*bytes);
            if length <= MAX_CONTROL_BYTES.into() {
                return Err(Violation::LengthNotMinimal);
            }
            Ok(Some((length.into(), 2)))
        }
        LENGTH_64 => {
            let Some(bytes) = more.first_chunk() else {
                return Ok(None);
            };
            let length = u64::from_be_bytes(*bytes);
            if length > i64::MAX.unsigned_abs() {
                return Err(Violation::ReservedLength);
            }
            if length <= u16::MAX.into() {
                return Err(Violation::LengthNotMinimal);
            }
            Ok(Some((length, 8)))
        }
        short => Ok(Some((short.into(), 0))),
    }
}

impl Opcode {
    fn parse(number: u8) -> Result<Self, Violation> {
        Ok(match number {
            0x0 => Self::Continuation,
            0x1 => Self::Data(MessageKind::Text),
            0x2 => Self::Data(MessageKind::Binary),
            0x8 => Self::Control(ControlOpcode::Close),
            0x9 => Self::Control(ControlOpcode::Ping),
            0xa => Self::Control(ControlOpcode::Pong),
            number => return Err(Violation::ReservedOpcode(number)),
        })
    }

    fn number(self) -> u8 {
        match self {
            Self::Continuation => 0x0,
            Self::Data(MessageKind::Text) => 0x1,
            Self::Data(MessageKind::Binary) => 0x2,
            Self::Control(ControlOpcode::Close) => 0x8,
            Self::Control(ControlOpcode::Ping) => 0x9,
            Self::Control(ControlOpcode::Pong) => 0xa,
        }
    }
}

impl Frame {
    pub(crate) fn opcode(self) -> Opcode {
        match self {
            Self::Whole(kind) | Self::First(kind) => Opcode::Data(kind),
            Self::Middle | Self::Last => Opcode::Continuation,
        }
    }

    pub(crate) fn fin(self) -> bool {
        matches!(self, Self::Whole(_) | Self::Last)
    }
}
