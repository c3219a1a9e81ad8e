//! `skewbridge completion`: shell completion scripts, generated from the definitions of the
//! commands.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use clap_complete::Shell as Generator;

const HELP: &str = "\
Examples:
  source <(skewbridge completion bash)
  skewbridge completion zsh > \"${fpath[1]}/_skewbridge\"
  skewbridge completion fish > ~/.config/fish/completions/skewbridge.fish
  skewbridge completion powershell | Out-String | Invoke-Expression";

// The flags of `completion`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub(crate) struct Flags {
    /// The shell
    shell: Shell,
}

/// The shells that kubectl supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    Powershell,
}

/// Prints the script.
pub(crate) fn run(flags: &Flags, mut command: clap::Command) -> ExitCode {
    let generator = match flags.shell {
        Shell::Bash => Generator::Bash,
        Shell::Zsh => Generator::Zsh,
        Shell::Fish => Generator::Fish,
        Shell::Powershell => Generator::PowerShell,
    };
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(generator, &mut command, name, &mut text);
    // Write errors are ignored: the reader may have closed the pipe.
    let _ = std::io::stdout().write_all(&text);
    ExitCode::SUCCESS
}
