//! The command line of Skewbridge: parse, build, run.

mod agent;
mod attach;
mod client_command;
mod cluster_flags;
mod completion;
mod console;
mod cp;
mod exec;
mod logs;
mod man;
#[cfg(feature = "playground")]
mod playground;
mod plugin_completion;
mod pods;
mod port_forward;
mod private_memory;
mod run;
mod serve;
mod session;
mod skew;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use skewbridge_pkcs11::{PIN_REFUSED, Selection};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    if program().is_some_and(|name| name == plugin_completion::PROGRAM) {
        return plugin_completion::run(arguments, definition());
    }
    #[cfg(feature = "playground")]
    if let Some(code) = playground::run_pod_process(arguments) {
        return code;
    }
    let parsed = definition()
        .try_get_matches()
        .and_then(|matches| Cli::from_arg_matches(&matches));
    match parsed {
        Ok(cli) => match cli.command {
            Command::Agent(flags) => agent::run(&flags),
            Command::Attach(flags) => attach::run(&flags),
            Command::Completion(flags) => completion::run(&flags, definition()),
            Command::Cp(flags) => cp::run(&flags),
            Command::Exec(flags) => exec::run(&flags),
            Command::Man(flags) => man::run(&flags, definition()),
            #[cfg(feature = "playground")]
            Command::Playground(flags) => playground::run(&flags),
            Command::PortForward(flags) => port_forward::run(&flags),
            Command::Run(flags) => run::run(&flags),
            Command::Serve(flags) => serve::run(&flags),
            Command::Skew(flags) => skew::run(&flags),
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
    after_help = "`skewbridge COMMAND --help` describes a command."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// Flags are defined only for the command that is called: defining those of all commands would
// dominate the run time of a short command.
#[derive(Subcommand)]
#[command(defer = true)]
enum Command {
    /// Credential plugin that proxies requests; configured in a kubeconfig.
    Agent(Box<agent::Flags>),
    /// Attach to the process of a container.
    Attach(Box<attach::Flags>),
    /// Print a shell completion script.
    Completion(completion::Flags),
    /// Copy files and directories to and from containers.
    Cp(Box<cp::Flags>),
    /// Run a command in a container.
    Exec(Box<exec::Flags>),
    /// Print manual pages.
    Man(man::Flags),
    /// Demo in one process: three servers with bridges, a node, and a tour.
    #[cfg(feature = "playground")]
    Playground(playground::Flags),
    /// Forward local ports to a pod.
    PortForward(Box<port_forward::Flags>),
    /// Run a command whose requests go through a credential plugin.
    Run(run::Flags),
    /// Run the gateway beside one kube-apiserver.
    Serve(Box<serve::Flags>),
    /// Show how servers differ, and what a client of each would miss.
    Skew(skew::Flags),
    /// Print the version.
    Version,
}

/// The command line, with the name that the user typed.
fn definition() -> clap::Command {
    Cli::command().bin_name(called())
}

/// The name that the user types: the program called `kubectl-skewbridge` is a kubectl plugin.
fn called() -> &'static str {
    if program().is_some_and(|name| name == "kubectl-skewbridge") {
        "kubectl skewbridge"
    } else {
        "skewbridge"
    }
}

/// The file name of the program, or of the link to it.
fn program() -> Option<OsString> {
    let path = std::env::args_os().next()?;
    Some(Path::new(&path).file_name()?.to_owned())
}

/// `EX_USAGE` of `sysexits.h`: the command line is not valid.
const EXIT_USAGE: u8 = 64;

fn version() -> ExitCode {
    // Write errors are ignored: the reader may have closed the pipe.
    let _ = writeln!(
        std::io::stdout(),
        "{} {}",
        env!("CARGO_PKG_NAME"),
        env!("CARGO_PKG_VERSION")
    );
    ExitCode::SUCCESS
}

/// Prints clap's output: help and version succeed, everything else is a usage error.
fn usage(error: &clap::Error) -> ExitCode {
    // clap repeats an unexpected argument, which may be a URI with a PIN.
    if error.use_stderr() && Selection::mentions_pin(&error.render().to_string()) {
        let _ = writeln!(std::io::stderr(), "error: {PIN_REFUSED}");
    } else {
        let _ = error.print();
    }
    if error.use_stderr() {
        ExitCode::from(EXIT_USAGE)
    } else {
        ExitCode::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_has_the_same_description_in_the_list_and_in_its_help() {
        let listed = Cli::command();
        let mut built = Cli::command();
        built.build();
        for command in listed.get_subcommands() {
            let itself = built.find_subcommand(command.get_name()).unwrap();
            let about = |command: &clap::Command| command.get_about().map(ToString::to_string);
            assert_eq!(about(itself), about(command), "{}", command.get_name());
            assert!(about(command).is_some());
        }
    }
}
