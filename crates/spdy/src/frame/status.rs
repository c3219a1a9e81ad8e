//! Reasons for ending a stream or a connection.

/// The status of a `RST_STREAM`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetStatus {
    /// 1: a frame that is not allowed on this stream.
    ProtocolError,
    /// 2: a frame for an unknown stream.
    InvalidStream,
    /// 3: not handled; a retry is safe.
    RefusedStream,
    /// 4
    UnsupportedVersion,
    /// 5: no longer wanted; what moby/spdystream always sends.
    Cancel,
    /// 6
    InternalError,
    /// 7: more than the window allows, or a window overflow.
    FlowControlError,
    /// 8: a second reply.
    StreamInUse,
    /// 9: data after the end.
    StreamAlreadyClosed,
    /// 11
    FrameTooLarge,
    /// Any other.
    Other(u32),
}

impl ResetStatus {
    /// The status with this number.
    pub const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::ProtocolError,
            2 => Self::InvalidStream,
            3 => Self::RefusedStream,
            4 => Self::UnsupportedVersion,
            5 => Self::Cancel,
            6 => Self::InternalError,
            7 => Self::FlowControlError,
            8 => Self::StreamInUse,
            9 => Self::StreamAlreadyClosed,
            11 => Self::FrameTooLarge,
            other => Self::Other(other),
        }
    }

    /// Its number.
    pub const fn code(self) -> u32 {
        match self {
            Self::ProtocolError => 1,
            Self::InvalidStream => 2,
            Self::RefusedStream => 3,
            Self::UnsupportedVersion => 4,
            Self::Cancel => 5,
            Self::InternalError => 6,
            Self::FlowControlError => 7,
            Self::StreamInUse => 8,
            Self::StreamAlreadyClosed => 9,
            Self::FrameTooLarge => 11,
            Self::Other(code) => code,
        }
    }
}

/// The status of a `GOAWAY`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoAwayStatus {
    /// 0: no error.
    Ok,
    /// 1: the remote violated the protocol.
    ProtocolError,
    /// 2: an internal error.
    InternalError,
    /// Any other.
    Other(u32),
}

impl GoAwayStatus {
    /// The status with this number.
    pub const fn from_code(code: u32) -> Self {
        match code {
            0 => Self::Ok,
            1 => Self::ProtocolError,
            2 => Self::InternalError,
            other => Self::Other(other),
        }
    }

    /// Its number.
    pub const fn code(self) -> u32 {
        match self {
            Self::Ok => 0,
            Self::ProtocolError => 1,
            Self::InternalError => 2,
            Self::Other(code) => code,
        }
    }
}
