//! `skewbridge serve`: the gateway beside one kube-apiserver.

mod config;
mod diagnostics;
mod egress;
mod features;
mod files;
mod flags;
pub(crate) mod parse;
mod signatures;

use std::io::Write as _;
use std::process::ExitCode;

pub(crate) use flags::Flags;

/// From flags to config to gateway; returns when the gateway has drained.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    // Before a key is read: serving, front-proxy and etcd keys stay in this process.
    crate::private_memory::deny_dumps_and_core_files();
    let (config, warnings) = match config::config(flags) {
        Ok(parsed) => parsed,
        Err(problems) => {
            // Write errors are ignored. The exit code still shows the failure.
            let _ = write!(std::io::stderr(), "{problems}");
            return ExitCode::from(crate::EXIT_USAGE);
        }
    };
    crate::logs::init(config.logs);
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    match skewbridge_gateway::run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The whole chain of causes in one line.
            tracing::error!("{:#}", anyhow::Error::from(error));
            ExitCode::FAILURE
        }
    }
}
