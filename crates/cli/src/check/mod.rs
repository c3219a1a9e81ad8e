//! `skewbridge check`: what is wrong before a bridge starts, and whether a cluster with bridges
//! works.
//!
//! Findings are plain data ([`finding`]). Each check collects facts, and judges them by a pure
//! function.

mod admin_port;
mod cluster;
mod finding;
mod flags;
mod handshake;
mod http;
mod parallel;
mod preflight;
mod render;
pub(crate) mod upgrade;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::client_command::print_stderr;
use crate::console::{Color, size};
use finding::Report;
use flags::{Format, Options};

pub(crate) use flags::Flags;

/// The pause between two runs of `--wait`.
const WAIT_INTERVAL: Duration = Duration::from_secs(2);

/// From flags to report, text and exit code.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    crate::private_memory::deny_dumps_and_core_files();
    if let Some(flags::Subject::Upgrade(flags)) = &flags.subject {
        return upgrade::run(flags);
    }
    let options = match flags.parse() {
        Ok(options) => options,
        Err(problems) => {
            for problem in problems {
                print_stderr(format_args!("skewbridge: {}", crate::skew::plain(&problem)));
            }
            print_stderr(format_args!("see skewbridge check --help"));
            return ExitCode::from(crate::EXIT_USAGE);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            print_stderr(format_args!("skewbridge: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let report = runtime.block_on(until_without_failure(&options));
    let text = match options.format {
        Format::Text => render::text(&report, Color::of_stdout(), width()),
        Format::Json => render::json(&report),
    };
    // Write errors are ignored: the reader may have closed the pipe. The exit code still shows
    // the result.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::from(report.exit_code())
}

fn width() -> usize {
    let terminal = std::io::stdout().is_terminal().then(size).flatten();
    terminal.map_or(render::DEFAULT_WIDTH, |it| it.width.into())
}

/// Repeats the checks while there is a ✗ and the time of `--wait` has not passed.
async fn until_without_failure(options: &Options) -> Report {
    let deadline = Instant::now() + options.wait;
    let mut printed = String::new();
    loop {
        let report = once(options).await;
        let left = deadline.saturating_duration_since(Instant::now());
        if report.exit_code() == 0 || left < WAIT_INTERVAL {
            return report;
        }
        let names: Vec<_> = report.failures().map(|it| it.name.as_str()).collect();
        let progress = names.join("; ");
        if progress != printed {
            let progress = crate::skew::plain(&progress);
            print_stderr(format_args!("waiting {} s for: {progress}", left.as_secs()));
            printed = names.join("; ");
        }
        sleep(WAIT_INTERVAL).await;
    }
}

async fn once(options: &Options) -> Report {
    let mut findings = Vec::new();
    if let Some(command_line) = &options.preflight {
        findings.extend(preflight::check(command_line).await);
    }
    if let Some(cluster) = &options.cluster {
        findings.extend(cluster::check(cluster).await);
    }
    Report::new(findings)
}
