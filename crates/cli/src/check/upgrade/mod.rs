//! `skewbridge check upgrade`: what an upgrade or a rollback of a cluster has to wait for. With
//! and without bridges; nothing is changed.

mod client;
mod cluster;
mod collect;
mod components;
mod deprecated_calls;
mod flags;
mod objects;
mod readers;
mod render;
mod servers;

use std::io::Write as _;
use std::process::ExitCode;

use skewbridge_upgrade_check::Verdict;

use crate::client_command::print_stderr;
use crate::console::Color;
use flags::Format;

pub(crate) use collect::{collect, release};
pub(crate) use flags::{ClusterFlags, ClusterOptions, Flags};
pub(crate) use render::escaped_markdown;

/// From flags to reports, text and exit code.
pub(super) fn run(flags: &Flags) -> ExitCode {
    let options = match flags.parse() {
        Ok(options) => options,
        Err(problems) => {
            for problem in problems {
                print_stderr(format_args!("skewbridge: {}", crate::skew::plain(&problem)));
            }
            print_stderr(format_args!("see skewbridge check upgrade --help"));
            return ExitCode::from(crate::EXIT_USAGE);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let collected = match runtime {
        Ok(runtime) => runtime.block_on(collect(&options.cluster)),
        Err(error) => Err(error.to_string()),
    };
    let reports = match collected {
        Ok(collected) => collected.reports,
        Err(why) => {
            print_stderr(format_args!("skewbridge: {}", crate::skew::plain(&why)));
            return ExitCode::FAILURE;
        }
    };
    let text = match options.format {
        Format::Text => render::text(&reports, Color::of_stdout(), super::width()),
        Format::Json => render::json(&reports),
        Format::Markdown => render::markdown(&reports),
        Format::Html => render::html(&reports),
    };
    // Write errors are ignored: the reader may have closed the pipe. The exit code still shows
    // the result.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::from(exit_code(reports.iter().map(|it| it.verdict)))
}

/// Findings count more than what is not known.
pub(crate) fn exit_code(verdicts: impl Iterator<Item = Verdict>) -> u8 {
    let rank = |verdict: &Verdict| match verdict {
        Verdict::Go => 0,
        Verdict::NotKnown => 1,
        Verdict::Findings => 2,
    };
    verdicts.max_by_key(rank).unwrap_or(Verdict::Go).exit_code()
}

/// The servers that are queried for their own facts, as the flags and the cluster name them.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ServerSelection {
    /// The addresses that kube-apiservers publish in the Service `kubernetes`, or else the server
    /// of the context.
    Published,
    /// Those of `--server`.
    Named(Vec<String>),
}

impl From<&ClusterOptions> for ServerSelection {
    fn from(options: &ClusterOptions) -> Self {
        match options.servers.as_slice() {
            [] => Self::Published,
            servers => Self::Named(servers.to_vec()),
        }
    }
}
