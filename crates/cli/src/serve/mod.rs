//! `skewbridge serve`: the bridge in front of one kube-apiserver, or of several.

mod command_line;
mod config;
mod config_file;
mod diagnostics;
mod effective_config;
mod egress;
mod features;
mod files;
mod flag_definitions;
mod flags;
mod signatures;

use std::io::Write as _;
use std::process::ExitCode;

use skewbridge_gateway::config::Config;

use crate::client_command::print_stderr;
use command_line::Mode;
use diagnostics::Problems;

pub(crate) use command_line::{CommandLine, EffectiveFlags};
pub(crate) use config_file::{
    API_VERSION as CONFIGURATION_API_VERSION, KIND as CONFIGURATION_KIND,
};
pub(crate) use diagnostics::{Problem, Warning};
pub(crate) use effective_config::scalar as yaml_scalar;

/// From flags to config to gateway; returns when the gateway has drained.
pub(crate) fn run(command_line: &CommandLine) -> ExitCode {
    // Before any private key is read: other processes must not get keys from dumps or core files.
    crate::private_memory::deny_dumps_and_core_files();
    let Configuration {
        effective,
        config,
        warnings,
    } = match configuration(command_line) {
        Ok(configuration) => configuration,
        Err(problems) => {
            // Write errors are ignored. The exit code still shows the failure.
            let _ = write!(std::io::stderr(), "{problems}");
            return ExitCode::from(crate::EXIT_USAGE);
        }
    };
    if command_line.mode == Mode::Print {
        for warning in &warnings {
            print_stderr(format_args!("warning: {warning}"));
        }
        // Write errors are ignored: the reader may have closed the pipe.
        let _ = write!(std::io::stdout(), "{}", effective_config::yaml(&effective));
        return ExitCode::SUCCESS;
    }
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

/// The checked configuration of a bridge.
pub(crate) struct Configuration {
    pub(crate) effective: EffectiveFlags,
    pub(crate) config: Config,
    pub(crate) warnings: Vec<Warning>,
}

/// Joins the flags with the file of `--config`, and checks all values and the files that they name.
pub(crate) fn configuration(command_line: &CommandLine) -> Result<Configuration, Problems> {
    let effective = command_line.effective()?;
    let located = |all: Vec<Problem>| all.into_iter().map(|it| effective.locate(it)).collect();
    let service = config::kubernetes_service(|name| std::env::var(name).ok());
    let (mut config, warnings) = config::config(&effective.parsed, service)
        .map_err(|Problems(problems)| Problems(located(problems)))?;
    config.admin.flags = effective_config::by_name(&effective);
    let warnings = located(warnings);
    Ok(Configuration {
        effective,
        config,
        warnings,
    })
}

/// The errors of a configuration file, without those of the files that it names.
#[cfg(test)]
pub(crate) fn configuration_problems(text: &str) -> Vec<String> {
    let parsed = config_file::parse(text, &flag_definitions::all());
    parsed.err().unwrap_or_default()
}
