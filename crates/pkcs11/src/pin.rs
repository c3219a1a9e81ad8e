//! Where a PIN comes from: never from arguments or the environment, which other
//! processes can read.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Pid;
use zeroize::Zeroizing;

use crate::tty;
use crate::under_way::{self, UnderWay};

/// More than any PIN.
const MAX_LENGTH: u64 = 256;

/// Where a PIN comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PinSource {
    /// The user is asked at the terminal.
    Prompt,
    /// The user would have to be asked, and may not be: the client has not given its
    /// terminal. Good for tokens that need no PIN, or have keys of their own for it.
    Nowhere,
    /// The first line of a file.
    File(PathBuf),
    /// The first line that a program prints; the question is its argument, as with
    /// `SSH_ASKPASS`.
    Askpass(OsString),
}

/// Which time a PIN is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// For the first time.
    First,
    /// For the first time here, but it must not be wrong: others were.
    FirstAndLast,
    /// The last one was wrong.
    Again,
    /// The last one was wrong, and so must not be the next.
    ForTheLastTime,
}

impl PinSource {
    /// Whether a user types it, and not a file or a program.
    pub(crate) fn is_typed(&self) -> bool {
        matches!(self, Self::Prompt | Self::Nowhere)
    }

    /// The PIN of this token. It may take as long as the user does.
    pub(crate) fn get(&self, token: &str, asked: Asked) -> Result<Zeroizing<String>, String> {
        let before = match asked {
            Asked::First => "",
            Asked::FirstAndLast => "One try is left (^C ends it). ",
            Asked::Again => "That PIN is wrong. ",
            Asked::ForTheLastTime => "That PIN is wrong, and one try is left (^C ends it). ",
        };
        let question = format!("{before}PIN of token {token:?}: ");
        match self {
            Self::Prompt => tty::ask(&question).map_err(|error| {
                format!(
                    "a PIN is needed, and nobody can be asked at a terminal: {error}; give \
                     --pkcs11-pin-file or --pkcs11-askpass"
                )
            }),
            Self::Nowhere => Err(
                "a PIN is needed, and the client has given no terminal to ask at \
                 (interactiveMode); give --pkcs11-pin-file or --pkcs11-askpass"
                    .to_owned(),
            ),
            Self::File(path) => {
                let read = File::open(path).and_then(first_line);
                read.map_err(|error| format!("--pkcs11-pin-file {}: {error}", path.display()))
            }
            Self::Askpass(program) => {
                let ran = ask_program(program, &question);
                ran.map_err(|error| format!("--pkcs11-askpass {}: {error}", program.display()))
            }
        }
    }
}

fn ask_program(program: &OsString, question: &str) -> std::io::Result<Zeroizing<String>> {
    let mut child = Command::new(program)
        .arg(question)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let asking = under_way::begin(UnderWay::Program(Pid::from_child(&child)));
    let line = match child.stdout.take() {
        Some(stdout) => first_line(stdout),
        None => Err(std::io::Error::other("it has no output")),
    };
    // Before its number can become another's.
    drop(asking);
    let ended = child.wait()?;
    if !ended.success() {
        return Err(std::io::Error::other(format!("failed with {ended}")));
    }
    line
}

fn first_line(from: impl Read) -> std::io::Result<Zeroizing<String>> {
    // Room for all of it: a buffer that grows leaves copies behind.
    let room = usize::try_from(MAX_LENGTH).unwrap_or_default() + 1;
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    from.take(MAX_LENGTH).read_to_end(&mut bytes)?;
    let line = bytes
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line).map_err(|_| std::io::Error::other("it is not text"))?;
    if text.is_empty() {
        return Err(std::io::Error::other("there is no PIN"));
    }
    Ok(Zeroizing::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::ScratchDir;

    use super::*;

    #[test]
    fn a_pin_is_the_first_line_of_a_file_or_of_what_a_program_prints() {
        let dir = ScratchDir::new();
        let file = PinSource::File(dir.write("pin", "1234\r\nmore\n"));
        assert_eq!(&**file.get("t", Asked::First).unwrap(), "1234");
        let empty = PinSource::File(dir.write("empty", "\n"));
        assert!(
            empty
                .get("t", Asked::First)
                .unwrap_err()
                .ends_with("there is no PIN")
        );
        let script = dir.write_program("askpass", "#!/bin/sh\necho \"$1\"\n");
        let program = PinSource::Askpass(script.into());
        assert_eq!(
            &**program.get("t", Asked::First).unwrap(),
            "PIN of token \"t\": "
        );
        assert_eq!(
            &**program.get("t", Asked::FirstAndLast).unwrap(),
            "One try is left (^C ends it). PIN of token \"t\": "
        );
        let nowhere = PinSource::Nowhere.get("t", Asked::First).unwrap_err();
        assert!(nowhere.contains("no terminal to ask at"), "{nowhere}");
        let failing = PinSource::Askpass("false".into());
        assert!(
            failing
                .get("t", Asked::First)
                .unwrap_err()
                .contains("failed with")
        );
    }
}
