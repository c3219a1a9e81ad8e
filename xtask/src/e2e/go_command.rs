//! The go command.

use std::process::Command;

/// The go command, independent of the user's settings.
pub(super) fn go(words: &str) -> Command {
    let mut command = Command::new("go");
    command
        .args(words.split_whitespace())
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "");
    command
}
