//! The result of a remote command.

pub(crate) mod error_channel;
mod status;

use std::fmt;
use std::num::NonZeroU8;

use bytes::Bytes;

use crate::protocol::Version;
use error_channel::ErrorChannel;

/// The result of a remote command, independent of the protocol version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Exit code 0, or the end of an attach.
    Success,
    /// Another exit code.
    Exited(ExitCode),
    /// The server reported why there is no exit code.
    Failed(Failure),
    /// The result is unknown. It must never be reported as a success.
    Disconnected,
}

/// The exit code of a failed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExitCode(NonZeroU8);

impl ExitCode {
    /// `None` for 0, which is no failure.
    pub fn new(code: u8) -> Option<Self> {
        NonZeroU8::new(code).map(Self)
    }

    /// From 1 to 255.
    pub fn number(self) -> u8 {
        self.0.get()
    }

    /// The signal that ended the command, if its exit code follows the
    /// convention of shells and runtimes: 137 is 128 and SIGKILL.
    pub fn signal(self) -> Option<u8> {
        let signal = self.number().checked_sub(128)?;
        (1..=64).contains(&signal).then_some(signal)
    }
}

/// Why a server could not run a command to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The HTTP status code; plain text has none.
    pub code: Option<u16>,
    /// Machine-readable; may be empty.
    pub reason: String,
    /// Human-readable.
    pub message: String,
}

/// The prefix of Go's internal errors.
pub(crate) const INTERNAL_PREFIX: &str = "Internal error occurred: ";

impl Failure {
    /// An internal error.
    pub fn internal(error: impl fmt::Display) -> Self {
        Self {
            code: Some(500),
            reason: "InternalError".to_owned(),
            message: format!("{INTERNAL_PREFIX}{error}"),
        }
    }
}

/// The message if the result of a command is unknown.
const DISCONNECTED: &str = "the connection was lost before the result of the command was known";

impl Outcome {
    /// The bytes of the error channel in this version; empty for a success before version 4.
    pub fn encode(&self, version: Version) -> Bytes {
        let failure;
        let outcome = match self {
            Self::Disconnected => {
                failure = Self::Failed(Failure::internal(DISCONNECTED));
                &failure
            }
            outcome => outcome,
        };
        if version.has_status() {
            return status::encode(outcome);
        }
        match outcome {
            Self::Success | Self::Disconnected => Bytes::new(),
            Self::Exited(code) => exit_message(*code).into(),
            Self::Failed(failure) => failure.message.clone().into(),
        }
    }

    /// Decodes a complete error channel that ended cleanly.
    pub fn decode(version: Version, bytes: &[u8]) -> Self {
        let mut channel = ErrorChannel::new(version);
        channel.push(bytes);
        channel.end(error_channel::ErrorChannelEnd::Clean)
    }
}

const EXITED_PREFIX: &str = "command terminated with non-zero exit code: ";

/// The wording of kube-apiserver.
pub(crate) fn exit_message(code: ExitCode) -> String {
    format!(
        "{EXITED_PREFIX}command terminated with exit code {}",
        code.number()
    )
}

/// Decodes the text of versions without a Status. Runtimes word it differently, but the exit
/// code is always the last word.
pub(crate) fn from_text(text: &str) -> Outcome {
    let code = text.strip_prefix(EXITED_PREFIX).and_then(|exit| {
        let last = exit.split_whitespace().next_back()?;
        last.parse().ok().and_then(ExitCode::new)
    });
    match code {
        Some(code) => Outcome::Exited(code),
        None => Outcome::Failed(Failure {
            code: None,
            reason: String::new(),
            message: text.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests;
