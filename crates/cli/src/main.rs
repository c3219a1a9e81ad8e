//! The command line of Skewbridge: parse, build, run.

mod admin_port;
mod agent;
mod attach;
mod check;
mod client_command;
mod cluster_flags;
mod completion;
mod console;
mod cp;
mod exec;
mod flag_values;
mod flag_word;
#[cfg(all(test, feature = "playground"))]
mod flags_page;
mod health;
mod local_addresses;
mod logs;
mod man;
mod manifest;
#[cfg(feature = "playground")]
mod playground;
mod pods;
mod port_forward;
mod private_memory;
mod route;
mod run;
mod serve;
mod session;
mod similar_names;
mod skew;
mod status;
mod upgrade;
mod usage_error;
mod vanishing;
mod version;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = || std::env::args_os().skip(1);
    let candidates =
        completion::candidates_for_shell(program().as_deref(), arguments(), definition);
    if let Some(code) = candidates {
        return code;
    }
    #[cfg(feature = "playground")]
    if let Some(code) = playground::run_pod_process(arguments()) {
        return code;
    }
    let parsed = definition()
        .try_get_matches()
        .and_then(|matches| Cli::from_arg_matches(&matches));
    match parsed {
        Ok(cli) => match cli.command {
            Command::Agent(flags) => agent::run(&flags),
            Command::Attach(flags) => attach::run(&flags),
            Command::Check(flags) => check::run(&flags),
            Command::Completion(flags) => completion::run(&flags),
            Command::Cp(flags) => cp::run(&flags),
            Command::Exec(flags) => exec::run(&flags),
            Command::Health(flags) => health::run(&flags),
            Command::Man(flags) => man::run(&flags, definition()),
            Command::Manifest(flags) => manifest::run(&flags),
            #[cfg(feature = "playground")]
            Command::Playground(flags) => playground::run(&flags),
            Command::PortForward(flags) => port_forward::run(&flags),
            Command::Route(flags) => route::run(&flags),
            Command::Run(flags) => run::run(&flags),
            Command::Serve(command_line) => serve::run(&command_line),
            Command::Skew(flags) => skew::run(&flags),
            Command::Status(flags) => status::run(&flags),
            Command::Upgrade(flags) => upgrade::run(&flags),
            Command::Vanishing(flags) => vanishing::run(&flags),
            Command::Version(flags) => version::run(&flags),
        },
        Err(error) => usage_error::print(error, definition(), std::env::args_os().skip(1)),
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
    /// Check a configuration before a bridge starts, and a cluster with bridges.
    Check(Box<check::Flags>),
    /// Print a shell completion script.
    Completion(completion::Flags),
    /// Copy files and directories to and from containers.
    Cp(Box<cp::Flags>),
    /// Run a command in a container.
    Exec(Box<exec::Flags>),
    /// Show whether the bridge on this machine is healthy.
    Health(health::Flags),
    /// Print manual pages.
    Man(man::Flags),
    /// Print what to install: manifests, units, rights.
    Manifest(manifest::Flags),
    /// Demo in one process: three servers with bridges, a node, and a tour.
    #[cfg(feature = "playground")]
    Playground(playground::Flags),
    /// Forward local ports to a pod.
    PortForward(Box<port_forward::Flags>),
    /// Show which server gets a request, and why.
    Route(route::Flags),
    /// Run a command whose requests go through a credential plugin.
    Run(run::Flags),
    /// Run the bridge, in front of one kube-apiserver or of several.
    Serve(Box<serve::CommandLine>),
    /// Show how servers differ, and what a client of each would miss.
    Skew(skew::Flags),
    /// Show the control plane as a bridge sees it: servers, differences, requests, changes.
    Status(status::Flags),
    /// Print the steps of an upgrade or a rollback of a cluster.
    Upgrade(Box<upgrade::Flags>),
    /// Show who calls APIs that the next minor version does not serve.
    Vanishing(vanishing::Flags),
    /// Print the version, and how this program was built.
    Version(version::Flags),
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
