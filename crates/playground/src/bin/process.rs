//! What begins the processes of pods where nothing else can: the tests of this crate.
//! The command line of Skewbridge does it itself.

use std::process::ExitCode;

use skewbridge_playground::node::program::run_in_pod;

fn main() -> ExitCode {
    run_in_pod(std::env::args_os().skip(1))
}
