//! What the error channel carries, until it ends.

use crate::outcome::{Failure, Outcome, from_text};
use crate::protocol::Version;
use crate::status;

/// No error that somebody is to read is longer; what a server sends beyond it
/// is dropped.
pub const MAX_ERROR_BYTES: usize = 64 << 10;

/// Collects what comes on the error channel.
#[derive(Debug)]
pub struct ErrorChannel {
    version: Version,
    bytes: Vec<u8>,
    overflows: bool,
}

/// How a channel came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorChannelEnd {
    /// The other end has closed it, or the whole connection, and said so.
    Clean,
    /// The connection was lost, or the stream was reset.
    Aborted,
}

impl ErrorChannel {
    /// Of a protocol of this version.
    pub fn new(version: Version) -> Self {
        Self {
            version,
            bytes: Vec::new(),
            overflows: false,
        }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let room = MAX_ERROR_BYTES - self.bytes.len();
        self.overflows |= bytes.len() > room;
        self.bytes
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// All that has come.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What it has told. From the fourth version on, an end without a Status
    /// is none, however clean: every server writes one, also for success.
    /// client-go takes that for success. Before, success is silent, and only
    /// the way in which the channel ended tells it from a connection lost.
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
