//! `skewbridge completion`: what a shell needs to complete our commands, made from their
//! definitions.

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

// Everything that `completion` can be told. (What it is for, `main.rs` says.)
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub(crate) struct Flags {
    /// For which shell
    shell: Shell,
}

/// The shells that kubectl knows, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    Powershell,
}

/// Prints it.
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
    // Whoever closed the pipe does not want to know.
    let _ = std::io::stdout().write_all(&text);
    ExitCode::SUCCESS
}
