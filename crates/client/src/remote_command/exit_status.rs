//! How a command in a container ended.

use skewbridge_remotecommand::{ExitCode, Failure, Outcome};

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitStatus {
    /// With exit code 0; or an attached session ended.
    Success,
    /// With another exit code.
    Code(ExitCode),
    /// Without an exit code, for the reason that the server gave.
    Failed(Failure),
    /// Unknown: the connection was lost first.
    Disconnected(Disconnected),
}

/// The state of a command when its connection was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disconnected {
    /// The cause.
    pub cause: String,
    /// How many bytes of stdin had been handed to the connection. The command may have read
    /// fewer.
    pub sent: u64,
    /// How many bytes of stdin had not been handed to the connection.
    pub unsent: u64,
    /// How many bytes of the command's output had been received.
    pub received: u64,
}

impl ExitStatus {
    /// Whether the command ended with exit code 0.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Success)
    }

    pub(crate) fn from_outcome(
        outcome: Outcome,
        disconnected: impl FnOnce() -> Disconnected,
    ) -> Self {
        match outcome {
            Outcome::Success => Self::Success,
            Outcome::Exited(code) => Self::Code(code),
            Outcome::Failed(failure) => Self::Failed(failure),
            Outcome::Disconnected => Self::Disconnected(disconnected()),
        }
    }
}
