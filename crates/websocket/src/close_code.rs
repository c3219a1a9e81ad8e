//! Close codes (RFC 6455, 7.4).

/// A code that may occur in a frame: never 1005, 1006 or 1015, which only describe what an end
/// has observed (RFC 6455, 7.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CloseCode(u16);

impl CloseCode {
    /// Clean end. Kubernetes clients treat it as success unless the error channel reports
    /// otherwise: it must not be used for a stream that was interrupted.
    pub const NORMAL: Self = Self(1000);
    /// This end shuts down, or the user leaves.
    pub const GOING_AWAY: Self = Self(1001);
    /// The other end violated the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// The other end sent a kind of data that is not accepted, such as text.
    pub const UNSUPPORTED_DATA: Self = Self(1003);
    /// The other end sent invalid UTF-8 as text.
    pub const INVALID_DATA: Self = Self(1007);
    /// The other end violated a policy.
    pub const POLICY_VIOLATION: Self = Self(1008);
    /// The other end sent too large a message.
    pub const TOO_BIG: Self = Self(1009);
    /// An internal error, here or upstream.
    pub const INTERNAL_ERROR: Self = Self(1011);

    /// `None` for a code that may not be sent.
    pub fn new(code: u16) -> Option<Self> {
        // The IANA registry adds 1012 to 1014 to those of the RFC.
        matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999).then_some(Self(code))
    }

    /// The number in a frame.
    pub fn number(self) -> u16 {
        self.0
    }
}
