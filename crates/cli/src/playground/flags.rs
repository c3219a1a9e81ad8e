//! The flags of `playground`.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};

const HELP: &str = "\
Three API servers (1.28, 1.34 and 1.36) share one store and one node, and a bridge
is in front of each. It needs no Kubernetes, no containers and no root. Pods are
processes of this machine, everything listens on loopback, and files are in a
private directory that is removed at the end. On a terminal, single keys stop, start, kill,
upgrade and downgrade each server.

Exit code: 0; with --tour, 1 if a step failed.

Examples:
  skewbridge playground              # runs until Ctrl-C, and prints commands to try
  skewbridge playground --tour       # demonstrates everything, and ends
  skewbridge playground --tour -o json | jq .passed
  skewbridge playground --port-base=7000 --directory=/tmp/play";

// The flags of `playground`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = HELP)]
pub(crate) struct Flags {
    /// Run the tour and exit
    #[arg(long)]
    pub(super) tour: bool,
    /// Output format of the tour: text or json
    #[arg(hide_possible_values = true)]
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "text",
        requires = "tour"
    )]
    pub(super) output: Output,
    /// Directory for files, empty or not existing [default: a new one]
    #[arg(long, value_name = "DIR")]
    pub(super) directory: Option<PathBuf>,
    /// First of ten ports in a row [default: free ports]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=65_526))]
    pub(super) port_base: Option<u16>,
    /// Log verbosity on stderr: 0 events, 2 each request, 4 more
    #[arg(long, value_name = "LEVEL")]
    pub(super) v: Option<u8>,
    /// Print this help
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// Output format of the tour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    Text,
    Json,
}
