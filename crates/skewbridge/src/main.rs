//! The command line of Skewbridge: parse, build, run.

mod logs;
mod playground;
mod serve;
mod skew;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == playground::PROCESS) {
        // Not for clap: what follows is somebody else's command line.
        return playground::process(words);
    }
    match Cli::try_parse() {
        Ok(cli) => match cli.command {
            Command::Serve(flags) => serve::run(&flags),
            Command::Skew(flags) => skew::run(&flags),
            Command::Playground(flags) => playground::run(&flags),
            Command::Version => version(),
        },
        Err(error) => usage(&error),
    }
}

/// Kubernetes control planes of mixed versions that behave as one.
#[derive(Parser)]
#[command(
    name = "skewbridge",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "`skewbridge COMMAND --help` tells more about a command."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gateway beside one kube-apiserver.
    Serve(Box<serve::Flags>),
    /// Show what differs between servers, and what a client of each would miss.
    Skew(skew::Flags),
    /// Show everything at work, in one process: three servers, bridges, a node, a tour.
    Playground(playground::Flags),
    /// Print the version.
    Version,
}

/// What `sysexits.h` calls `EX_USAGE`: the command line is wrong, and running
/// it again will not help.
const EXIT_USAGE: u8 = 64;

fn version() -> ExitCode {
    // Whoever closed the pipe does not want to know.
    let _ = writeln!(
        std::io::stdout(),
        "{} {}",
        env!("CARGO_PKG_NAME"),
        env!("CARGO_PKG_VERSION")
    );
    ExitCode::SUCCESS
}

/// What clap has to say: help and version are answers, the rest is misuse.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.use_stderr() {
        ExitCode::from(EXIT_USAGE)
    } else {
        ExitCode::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
