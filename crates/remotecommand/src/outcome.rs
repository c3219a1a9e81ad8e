//! How a remote command ended.

use std::fmt;
use std::num::NonZeroU8;

use bytes::Bytes;

use crate::error_channel::ErrorChannel;
use crate::protocol::Version;
use crate::status;

/// How a remote command ended, in whatever protocol it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// With exit code 0; or an attachment ended.
    Success,
    /// With another one.
    Exited(ExitCode),
    /// The server says why there is no exit code.
    Failed(Failure),
    /// Nobody said. Never to be told as a success.
    Disconnected,
}

/// The exit code of a command that failed.
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

/// What a server has to say of a command that it could not run to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The HTTP status code; text has none.
    pub code: Option<u16>,
    /// For programs; empty where there is no word for it.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// What Go puts before an error of its own.
pub(crate) const INTERNAL: &str = "Internal error occurred: ";

impl Failure {
    /// Something broke.
    pub fn internal(error: impl fmt::Display) -> Self {
        Self {
            code: Some(500),
            reason: "InternalError".to_owned(),
            message: format!("{INTERNAL}{error}"),
        }
    }
}

/// What is told of a command that nobody knows the end of.
const CUT_OFF: &str = "the stream was cut off before it was known how the command ended";

impl Outcome {
    /// What the error channel carries in this version; nothing at all where
    /// success is silent.
    pub fn encode(&self, version: Version) -> Bytes {
        let failure;
        let outcome = match self {
            Self::Disconnected => {
                failure = Self::Failed(Failure::internal(CUT_OFF));
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

    /// From all that the error channel has carried, if that ended as it should.
    pub fn decode(version: Version, bytes: &[u8]) -> Self {
        let mut channel = ErrorChannel::new(version);
        channel.push(bytes);
        channel.end(crate::error_channel::ErrorChannelEnd::Clean)
    }
}

const EXITED: &str = "command terminated with non-zero exit code: ";

/// As kube-apiserver says it.
pub(crate) fn exit_message(code: ExitCode) -> String {
    format!(
        "{EXITED}command terminated with exit code {}",
        code.number()
    )
}

/// What versions without a Status say. How runtimes put an exit code into dialect
/// is theirs; all have it as the last one.
pub(crate) fn from_text(text: &str) -> Outcome {
    let code = text.strip_prefix(EXITED).and_then(|exit| {
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
