//! Sources of a PIN: never arguments or the environment, which other processes can read.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Pid;
use zeroize::Zeroizing;

use crate::pin_prompt_guard::{self, ActivePrompt};
use crate::tty;

/// More bytes than any PIN has.
const MAX_PIN_BYTES: u64 = 256;

/// The source of a PIN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PinSource {
    /// The user is prompted at the terminal.
    Prompt,
    /// There is no terminal to prompt at, because the client has not passed its own. Works
    /// for tokens that need no PIN, or that have a PIN pad.
    Unavailable,
    /// The first line of a file.
    File(PathBuf),
    /// The first line that a program prints; the prompt is its argument, as with `SSH_ASKPASS`.
    Askpass(OsString),
}

/// Which attempt a PIN is requested for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PinRequest {
    /// The first attempt.
    First,
    /// The first attempt of this process, and the last one before the token is locked.
    OnlyAttempt,
    /// The previous PIN was wrong.
    Retry,
    /// The previous PIN was wrong, and this is the last attempt before the token is locked.
    LastRetry,
}

impl PinSource {
    /// Whether a user types it, instead of a file or a program.
    pub(crate) fn is_typed(&self) -> bool {
        matches!(self, Self::Prompt | Self::Unavailable)
    }

    /// Returns the PIN of this token. It blocks until the user has entered it.
    pub(crate) fn get(
        &self,
        token: &str,
        request: PinRequest,
    ) -> Result<Zeroizing<String>, String> {
        let before = match request {
            PinRequest::First => "",
            PinRequest::OnlyAttempt => "One try is left (^C ends it). ",
            PinRequest::Retry => "That PIN is wrong. ",
            PinRequest::LastRetry => "That PIN is wrong, and one try is left (^C ends it). ",
        };
        let prompt = format!("{before}PIN of token {token:?}: ");
        match self {
            Self::Prompt => tty::prompt(&prompt).map_err(|error| {
                format!(
                    "a PIN is needed, and it cannot be requested at a terminal: {error}; give \
                     --pkcs11-pin-file or --pkcs11-askpass"
                )
            }),
            Self::Unavailable => Err(
                "a PIN is needed, and the client has passed no terminal to request it at \
                 (interactiveMode); give --pkcs11-pin-file or --pkcs11-askpass"
                    .to_owned(),
            ),
            Self::File(path) => {
                let read = File::open(path).and_then(first_line);
                read.map_err(|error| format!("--pkcs11-pin-file {}: {error}", path.display()))
            }
            Self::Askpass(program) => {
                let line = run_askpass(program, &prompt);
                line.map_err(|error| format!("--pkcs11-askpass {}: {error}", program.display()))
            }
        }
    }
}

fn run_askpass(program: &OsString, prompt: &str) -> std::io::Result<Zeroizing<String>> {
    let mut child = Command::new(program)
        .arg(prompt)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let guard = pin_prompt_guard::begin(ActivePrompt::Program(Pid::from_child(&child)));
    let line = match child.stdout.take() {
        Some(stdout) => first_line(stdout),
        None => Err(std::io::Error::other("it has no output")),
    };
    // Before the process ID can be reused.
    drop(guard);
    let status = child.wait()?;
    if !status.success() {
        return Err(std::io::Error::other(format!("failed with {status}")));
    }
    line
}

fn first_line(from: impl Read) -> std::io::Result<Zeroizing<String>> {
    // The full capacity at once: a buffer that grows leaves copies behind.
    let capacity = usize::try_from(MAX_PIN_BYTES).unwrap_or_default() + 1;
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    from.take(MAX_PIN_BYTES).read_to_end(&mut bytes)?;
    let line = bytes
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line).map_err(|_| std::io::Error::other("it is not text"))?;
    if text.is_empty() {
        return Err(std::io::Error::other("it contains no PIN"));
    }
    Ok(Zeroizing::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::ScratchDir;

    use super::*;

    #[test]
    fn a_pin_is_the_first_line_of_a_file_or_of_a_programs_output() {
        let dir = ScratchDir::new();
        let file = PinSource::File(dir.write("pin", "1234\r\nmore\n"));
        assert_eq!(&**file.get("t", PinRequest::First).unwrap(), "1234");
        let empty = PinSource::File(dir.write("empty", "\n"));
        assert!(
            empty
                .get("t", PinRequest::First)
                .unwrap_err()
                .ends_with("it contains no PIN")
        );
        let script = dir.write_program("askpass", "#!/bin/sh\necho \"$1\"\n");
        let program = PinSource::Askpass(script.into());
        assert_eq!(
            &**program.get("t", PinRequest::First).unwrap(),
            "PIN of token \"t\": "
        );
        assert_eq!(
            &**program.get("t", PinRequest::OnlyAttempt).unwrap(),
            "One try is left (^C ends it). PIN of token \"t\": "
        );
        let unavailable = PinSource::Unavailable
            .get("t", PinRequest::First)
            .unwrap_err();
        assert!(
            unavailable.contains("no terminal to request it at"),
            "{unavailable}"
        );
        let failing = PinSource::Askpass("false".into());
        assert!(
            failing
                .get("t", PinRequest::First)
                .unwrap_err()
                .contains("failed with")
        );
    }
}
