//! The error channel, up to its end.

use super::{Failure, Outcome, from_text, status};
use crate::protocol::Version;

/// The longest error that is kept; the rest is dropped.
pub const MAX_ERROR_BYTES: usize = 64 << 10;

/// Collects the bytes of the error channel.
#[derive(Debug)]
pub struct ErrorChannel {
    version: Version,
    bytes: Vec<u8>,
    overflows: bool,
}

/// How the error channel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorChannelEnd {
    /// The other end closed it, or sent a close for the connection.
    Clean,
    /// The connection was lost, or the stream was reset.
    Aborted,
}

impl ErrorChannel {
    /// For a protocol of this version.
    pub fn new(version: Version) -> Self {
        Self {
            version,
            bytes: Vec::new(),
            overflows: false,
        }
    }

    /// Adds the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let room = MAX_ERROR_BYTES - self.bytes.len();
        self.overflows |= bytes.len() > room;
        self.bytes
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// All bytes received.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Decodes the result. From version 4 on, every server writes a Status, also for success, so an
    /// end without one means that the connection was lost (client-go treats it as success). Before
    /// version 4, success is an empty channel, and only the kind of end distinguishes it from a
    /// lost connection.
    pub fn end(self, end: ErrorChannelEnd) -> Outcome {
        let text = || String::from_utf8_lossy(&self.bytes);
        match (self.version.has_status(), self.bytes.is_empty()) {
            (true, true) => Outcome::Disconnected,
            (true, false) if self.overflows => Outcome::Failed(Failure::internal(format_args!(
                "the error stream is too long: {:.200}…",
                text()
            ))),
            (true, false) => status::decode(&self.bytes),
            (false, true) => match end {
                ErrorChannelEnd::Clean => Outcome::Success,
                ErrorChannelEnd::Aborted => Outcome::Disconnected,
            },
            (false, false) => from_text(&text()),
        }
    }
}
