//! The program to start: the command, or the user's shell with a prompt that names the context.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;

use skewbridge_private_files::PrivateDir;
use tokio::process::Command;

use super::flags::CommandKind;

/// The user's own file first, then the hint. The context is expanded when the prompt is printed,
/// and not parsed as a part of it.
const BASH_RC: &str = "\
[ -f ~/.bashrc ] && . ~/.bashrc
PS1='($SKEWBRIDGE_CONTEXT) '\"$PS1\"
";

/// For shells that keep the prompt of the environment.
const PROMPT: &str = "($SKEWBRIDGE_CONTEXT) $ ";

/// The program with its arguments.
pub(super) fn command(
    what: &CommandKind,
    context: &str,
    directory: &PrivateDir,
) -> Result<Command, String> {
    match what {
        CommandKind::Command(program, arguments) => {
            let mut command = Command::new(program);
            command.args(arguments);
            Ok(command)
        }
        CommandKind::Shell => {
            let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
            let shell = shell.unwrap_or_else(|| OsString::from("/bin/sh"));
            let _ = writeln!(
                std::io::stderr(),
                "skewbridge: a shell for the context {context:?}; `exit` ends it"
            );
            let mut command = Command::new(&shell);
            if Path::new(&shell).file_name() == Some("bash".as_ref()) {
                let rc = directory
                    .write("bashrc", BASH_RC.as_bytes())
                    .map_err(|error| format!("{}: {error}", directory.path().display()))?;
                command.arg("--rcfile").arg(rc);
            } else {
                command.env("PS1", PROMPT);
            }
            Ok(command)
        }
    }
}
