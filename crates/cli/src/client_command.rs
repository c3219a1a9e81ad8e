//! Shared by the commands that talk to a cluster as kubectl does: how they run, and how they
//! exit.

use std::fmt;
use std::future::Future;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use skewbridge_client::{Error, ErrorResponse};

use crate::flag_values;
use crate::skew::plain;

/// Why a command fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// As printed; kubectl's message where it has one.
    message: String,
    /// Further lines with advice.
    hints: Vec<String>,
    code: u8,
}

/// The exit code of failures without their own.
const EXIT_FAILURE: u8 = 1;

impl Failure {
    /// A failure of the command itself.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self {
            message: format!("error: {message}"),
            hints: Vec::new(),
            code: EXIT_FAILURE,
        }
    }

    /// An error response of a server.
    pub(crate) fn refused(response: &ErrorResponse) -> Self {
        let ErrorResponse {
            code,
            reason,
            message,
        } = response;
        let message = match (response.is_status(), message.is_empty()) {
            (true, _) => format!("Error from server ({reason}): {message}"),
            (false, false) => format!("error: unable to upgrade connection: {message}"),
            (false, true) => format!("error: the server answered {code} without a message"),
        };
        let (hints, code) = (Vec::new(), EXIT_FAILURE);
        Self {
            message,
            hints,
            code,
        }
    }

    /// Without a prefix.
    pub(crate) fn plain(message: impl Into<String>, code: u8) -> Self {
        let (message, hints) = (message.into(), Vec::new());
        Self {
            message,
            hints,
            code,
        }
    }

    /// No message.
    pub(crate) fn without_message(code: u8) -> Self {
        Self::plain("", code)
    }

    /// With advice.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Api { response, .. } => Self::refused(&response),
            Error::AllTransportsFailed { websocket, spdy } => {
                Self::from(*spdy).hint(refused_before(&websocket))
            }
            error => Self::new(error),
        }
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::new(message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(&self.message))?;
        for hint in &self.hints {
            write!(f, "\n{}", plain(hint))?;
        }
        Ok(())
    }
}

/// `--pod-running-timeout`, with kubectl's message if it is invalid.
pub(crate) fn pod_running_timeout(text: &str) -> Result<Duration, Failure> {
    let is_none = |text: &str| flag_values::duration(text).is_ok_and(|it| it.is_zero());
    let is_below = |text: &str| flag_values::duration(text).is_ok();
    if is_none(text) || text.strip_prefix('-').is_some_and(is_below) {
        return Err(Failure::new(
            "--pod-running-timeout must be higher than zero",
        ));
    }
    let read = flag_values::duration(text);
    read.map_err(|wrong| Failure::new(format!("--pod-running-timeout: {wrong}")))
}

/// A hint about the refused WebSocket request, for an error of the SPDY request that followed.
pub(crate) fn refused_before(websocket: &str) -> String {
    format!("the request used SPDY, because WebSocket was refused: {websocket}")
}

/// Runs a command to its end on one thread, since it mostly waits. Blocking reads and writes of
/// a terminal or pipe are abandoned.
pub(crate) fn run(command: impl Future<Output = Result<(), Failure>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(command);
            runtime.shutdown_background();
            ended
        }
        Err(error) => Err(Failure::new(error)),
    };
    end(ended)
}

/// Splits the message off a failed command, for a caller that prints it itself.
pub(crate) fn split_message(ended: Result<(), Failure>) -> (Option<String>, Result<(), Failure>) {
    match ended {
        Ok(()) => (None, Ok(())),
        Err(failure) => {
            let message = (!failure.message.is_empty()).then(|| failure.to_string());
            (message, Err(Failure::without_message(failure.code)))
        }
    }
}

/// Prints the message of a command that has ended, and returns its exit code.
pub(crate) fn end(ended: Result<(), Failure>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                print_stderr(&failure);
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Prints a line on stdout. See [`print_stderr`].
pub(crate) fn print_stdout(line: impl fmt::Display) {
    let line = plain(&line.to_string());
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Prints a line on stderr. Control characters are escaped, because the text may come from a
/// server. Write errors are ignored: the reader may have closed the pipe.
pub(crate) fn print_stderr(line: impl fmt::Display) {
    let line = plain(&line.to_string());
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_kubectls_messages() {
        let rows = [
            (
                404,
                r#"{"kind":"Status","message":"pods \"web\" not found","reason":"NotFound"}"#,
                "Error from server (NotFound): pods \"web\" not found",
            ),
            (
                500,
                "container not found (\"app\")",
                "error: unable to upgrade connection: container not found (\"app\")",
            ),
            (502, "", "error: the server answered 502 without a message"),
            (
                400,
                "\u{1b}[2J",
                "error: unable to upgrade connection: \u{fffd}[2J",
            ),
        ];
        for (code, body, expected) in rows {
            let failure = Failure::refused(&ErrorResponse::parse(code, body.as_bytes()));
            assert_eq!(failure.to_string(), expected);
        }
        let failure = Failure::new("no").hint("do this");
        assert_eq!(failure.to_string(), "error: no\ndo this");
    }

    #[test]
    fn pod_running_timeout_must_be_positive() {
        let nothing = "error: --pod-running-timeout must be higher than zero";
        let rows = [
            ("1m30s", Ok(90)),
            ("0", Err(nothing)),
            ("0s", Err(nothing)),
            ("-1s", Err(nothing)),
        ];
        for (text, expected) in rows {
            let found = pod_running_timeout(text).map(|it| it.as_secs());
            let found = found.map_err(|failure| failure.to_string());
            assert_eq!(
                found.as_ref().map_err(String::as_str),
                expected.as_ref().map_err(|it| *it)
            );
        }
        for text in ["1", "-1", "x", ""] {
            let wrong = pod_running_timeout(text).unwrap_err().to_string();
            let start = "error: --pod-running-timeout: ";
            assert!(wrong.starts_with(start), "{wrong}");
        }
    }
}
