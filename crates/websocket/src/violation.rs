//! Violations of the protocol.

use crate::close_code::CloseCode;
use crate::utf8;

/// A violation of the protocol by the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// RFC 6455, 5.2: they belong to extensions, and none was negotiated.
    #[error("a frame with reserved bits")]
    ReservedBits,
    /// RFC 6455, 5.2.
    #[error("a frame with the unknown opcode {0}")]
    ReservedOpcode(u8),
    /// RFC 6455, 5.1: clients mask frames.
    #[error("an unmasked frame from a client")]
    Unmasked,
    /// RFC 6455, 5.1: servers do not.
    #[error("a masked frame from a server")]
    Masked,
    /// RFC 6455, 5.4.
    #[error("a fragmented control frame")]
    FragmentedControl,
    /// RFC 6455, 5.5.
    #[error("a control frame longer than 125 bytes")]
    LongControl,
    /// RFC 6455, 5.2.
    #[error("a length that is not minimally encoded")]
    LengthNotMinimal,
    /// RFC 6455, 5.2.
    #[error("a length with its highest bit set")]
    ReservedLength,
    /// RFC 6455, 5.4.
    #[error("a continuation frame outside of a message")]
    NothingToContinue,
    /// RFC 6455, 5.4.
    #[error("a new message before the end of the last one")]
    Interleaved,
    /// RFC 6455, 8.1.
    #[error("text that is not UTF-8")]
    InvalidUtf8,
    /// RFC 6455, 5.5.1.
    #[error("a close frame with an incomplete code")]
    ShortClose,
    /// RFC 6455, 7.4.
    #[error("a close frame with the invalid code {0}")]
    ReservedCloseCode(u16),
    /// [`crate::Limits::frame`].
    #[error("a frame that is too long")]
    FrameTooLong,
    /// [`crate::Limits::message`].
    #[error("a message that is too long")]
    MessageTooLong,
}

impl Violation {
    /// The close code for the connection.
    pub fn close_code(self) -> CloseCode {
        match self {
            Self::InvalidUtf8 => CloseCode::INVALID_DATA,
            Self::FrameTooLong | Self::MessageTooLong => CloseCode::TOO_BIG,
            _ => CloseCode::PROTOCOL_ERROR,
        }
    }
}

impl From<utf8::InvalidUtf8> for Violation {
    fn from(utf8::InvalidUtf8: utf8::InvalidUtf8) -> Self {
        Self::InvalidUtf8
    }
}
