//! `skewbridge upgrade plan`: the steps of an upgrade or a rollback, from the facts of `check
//! upgrade`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{ArgAction, Args};
use skewbridge_k8s_api::version::Version;
use skewbridge_released_apis::Minor;
use skewbridge_upgrade_check::Facts;
use skewbridge_upgrade_check::plan::{minors, steps};

use super::render::{self, Plan};
use crate::check::upgrade::{ClusterFlags, ClusterOptions, collect, exit_code, release};
use crate::client_command::print_stderr;

const HELP: &str = "\
Reads the cluster as `skewbridge check upgrade` does, and prints a checklist in Markdown: findings
to resolve first, then for each minor version on the way the order of the kube-apiservers, what to
wait for, what to check after each, and when to return. With --rollback it prints the way back.
Commands are those of kubeadm. Nothing is changed; the user needs to read the objects.

Exit code: as that of `skewbridge check upgrade`: 0 go, 2 findings, 1 something could not be
checked, or another failure, 64 the command line is wrong.

Examples:
  skewbridge upgrade plan --target=1.37 > upgrade.md
  skewbridge upgrade plan --rollback=1.36
  skewbridge upgrade plan --target=1.37 -o json";

// The flags of `upgrade plan`. The comments are the help text.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = HELP)]
pub(super) struct Flags {
    #[command(flatten)]
    cluster: ClusterFlags,
    /// Output format: markdown or json
    #[arg(short, long, value_name = "FORMAT", default_value = "markdown")]
    output: String,
    /// Print this help
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// Output format.
#[derive(Debug, Clone, Copy)]
enum Format {
    Markdown,
    Json,
}

/// From flags to plans, text and exit code.
pub(super) fn run(flags: &Flags) -> ExitCode {
    const FORMATS: [(&str, Format); 2] = [("markdown", Format::Markdown), ("json", Format::Json)];
    let (options, format) = match flags.cluster.parse_with(&flags.output, &FORMATS) {
        Ok(parsed) => parsed,
        Err(problems) => {
            for problem in problems {
                print_stderr(format_args!("skewbridge: {}", crate::skew::plain(&problem)));
            }
            print_stderr(format_args!("see skewbridge upgrade plan --help"));
            return ExitCode::from(crate::EXIT_USAGE);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let plans = match runtime {
        Ok(runtime) => runtime.block_on(plans(&options)),
        Err(error) => Err(error.to_string()),
    };
    let plans = match plans {
        Ok(plans) => plans,
        Err(why) => {
            print_stderr(format_args!("skewbridge: {}", crate::skew::plain(&why)));
            return ExitCode::FAILURE;
        }
    };
    let text = match format {
        Format::Markdown => render::markdown(&plans),
        Format::Json => render::json(&plans),
    };
    // Write errors are ignored: the reader may have closed the pipe. The exit code still shows
    // the result.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::from(exit_code(plans.iter().map(|it| it.report.verdict)))
}

async fn plans(options: &ClusterOptions) -> Result<Vec<Plan>, String> {
    let collected = collect(options).await?;
    let facts = &collected.facts;
    let reports = collected.reports.into_iter();
    reports
        .map(|report| {
            let path = minors(facts, &report).into_iter();
            let path: Result<Vec<_>, _> = path.map(|minor| version(facts, minor)).collect();
            let steps = steps(facts, &report, &path?);
            Ok(Plan { report, steps })
        })
        .collect()
}

/// The release of a minor version to upgrade to: what a server has already, or a known one.
fn version(facts: &Facts, minor: Minor) -> Result<Version, String> {
    let servers = facts
        .servers
        .iter()
        .filter_map(|it| it.version.clone().ok());
    let newest = servers.filter(|it| Minor::from(*it) == minor).max();
    newest.map_or_else(|| release(minor).map(|it| it.version), Ok)
}
