//! `skewbridge health`: the health of a bridge on this machine, for images without a shell.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::admin_port;
use crate::client_command::{Failure, end, print_stdout};

const HELP: &str = "\
Exit code: 0 healthy, 1 not healthy or not reachable.

Examples:
  skewbridge health
  skewbridge health --endpoint=readyz
  HEALTHCHECK CMD [\"/usr/local/bin/skewbridge\", \"health\"]";

// The flags of `health`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub(crate) struct Flags {
    /// livez: whether the bridge itself works; readyz: also whether it can serve requests now
    #[arg(long, value_name = "NAME", value_enum, default_value_t = HealthEndpoint::Livez)]
    endpoint: HealthEndpoint,
    /// The --admin-address of the bridge
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10270")]
    admin_address: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HealthEndpoint {
    Livez,
    Readyz,
}

impl HealthEndpoint {
    fn target(self) -> &'static str {
        match self {
            Self::Livez => "/livez?verbose",
            Self::Readyz => "/readyz?verbose",
        }
    }
}

/// Prints every check of the bridge.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    let answer = admin_port::get(flags.admin_address, flags.endpoint.target());
    end(match answer {
        Ok(checks) => {
            for line in checks.lines() {
                print_stdout(line);
            }
            Ok(())
        }
        Err(problem) => Err(Failure::new(problem)),
    })
}
