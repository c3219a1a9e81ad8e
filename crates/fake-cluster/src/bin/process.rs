//! The program that starts processes of pods in the tests of this crate. Otherwise the
//! `skewbridge` binary does it itself.

use std::process::ExitCode;

use skewbridge_fake_cluster::node::process_entry::run_in_pod;

fn main() -> ExitCode {
    run_in_pod(std::env::args_os().skip(1))
}
