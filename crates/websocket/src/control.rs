//! Control frames (RFC 6455, 5.5) and close codes (7.4).

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::close_code::CloseCode;
use crate::frame::{ControlOpcode, MAX_CONTROL_BYTES};
use crate::violation::Violation;

/// A frame that is not part of any message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Requests a [`Control::Pong`] with the same payload.
    Ping(ControlPayload),
    /// Answers a [`Control::Ping`], or is an unsolicited keepalive.
    Pong(ControlPayload),
    /// The last frame in its direction.
    Close(Option<Close>),
}

/// The payload of a ping and of its pong: at most 125 bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlPayload(Bytes);

impl ControlPayload {
    /// `None` if it is too long.
    pub fn new(bytes: Bytes) -> Option<Self> {
        (bytes.len() <= MAX_CONTROL_BYTES.into()).then_some(Self(bytes))
    }

    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }
}

/// Why a connection is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Close {
    code: CloseCode,
    reason: String,
}

/// The space in a control frame after the close code.
const MAX_REASON_BYTES: usize = MAX_CONTROL_BYTES as usize - 2;

impl Close {
    /// A code and a human-readable reason, which is truncated if it is too long.
    pub fn new(code: CloseCode, reason: &str) -> Self {
        let end = reason.floor_char_boundary(MAX_REASON_BYTES);
        Self {
            code,
            reason: reason[..end].to_owned(),
        }
    }

    /// Machine-readable.
    pub fn code(&self) -> CloseCode {
        self.code
    }

    /// Human-readable; often empty.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl Control {
    pub(crate) fn parse(opcode: ControlOpcode, payload: Bytes) -> Result<Self, Violation> {
        Ok(match opcode {
            ControlOpcode::Ping => Self::Ping(ControlPayload(payload)),
            ControlOpcode::Pong => Self::Pong(ControlPayload(payload)),
            ControlOpcode::Close => Self::Close(Close::parse(&payload)?),
        })
    }

    pub(crate) fn opcode(&self) -> ControlOpcode {
        match self {
            Self::Ping(_) => ControlOpcode::Ping,
            Self::Pong(_) => ControlOpcode::Pong,
            Self::Close(_) => ControlOpcode::Close,
        }
    }

    pub(crate) fn payload(&self) -> Bytes {
        match self {
            Self::Ping(payload) | Self::Pong(payload) => payload.0.clone(),
            Self::Close(None) => Bytes::new(),
            Self::Close(Some(close)) => {
                let mut payload = BytesMut::with_capacity(2 + close.reason.len());
                payload.put_u16(close.code.number());
                payload.extend_from_slice(close.reason.as_bytes());
                payload.freeze()
            }
        }
    }
}

impl Close {
    fn parse(payload: &[u8]) -> Result<Option<Self>, Violation> {
        let Some((code, reason)) = payload.split_first_chunk() else {
            return match payload {
                [] => Ok(None),
                _ => Err(Violation::ShortClose),
            };
        };
        let code = u16::from_be_bytes(*code);
        let code = CloseCode::new(code).ok_or(Violation::ReservedCloseCode(code))?;
        let reason = str::from_utf8(reason).map_err(|_| Violation::InvalidUtf8)?;
        Ok(Some(Self {
            code,
            reason: reason.to_owned(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_defined_codes_are_accepted() {
        let allowed = [
            1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999,
            4000, 4999,
        ];
        for code in allowed {
            assert_eq!(CloseCode::new(code).map(CloseCode::number), Some(code));
        }
        for code in [
            0,
            999,
            1004,
            1005,
            1006,
            1015,
            1016,
            2000,
            2999,
            5000,
            u16::MAX,
        ] {
            assert_eq!(CloseCode::new(code), None, "{code}");
        }
    }

    #[test]
    fn a_long_reason_is_truncated_at_a_character_boundary() {
        let close = Close::new(CloseCode::NORMAL, &"ä".repeat(100));
        assert_eq!(close.reason(), "ä".repeat(61));
        let payload = Control::Close(Some(close)).payload();
        assert!(ControlPayload::new(payload).is_some());
    }

    #[test]
    fn control_payloads_are_bounded() {
        assert!(ControlPayload::new(Bytes::from_static(&[0; 125])).is_some());
        assert!(ControlPayload::new(Bytes::from_static(&[0; 126])).is_none());
    }
}
