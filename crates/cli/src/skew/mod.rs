//! `skewbridge skew`: how servers differ, and what a client of each would miss.

mod collect;
mod fetch;
mod flags;
mod json;
mod report;
mod table;

use std::io::Write as _;
use std::process::ExitCode;

pub(crate) use flags::Flags;
use flags::{Format, Options};
use report::Report;
pub(crate) use report::plain;

/// Exit code if there is skew; 1 is any failure, and 64 an invalid command line.
const EXIT_SKEW: u8 = 2;

/// From flags to servers, report, text and exit code.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    let options = match flags.parse() {
        Ok(options) => options,
        Err(problems) => {
            for problem in problems {
                print_error(&problem);
            }
            let _ = writeln!(std::io::stderr(), "see skewbridge skew --help");
            return ExitCode::from(crate::EXIT_USAGE);
        }
    };
    let report = match collect(&options) {
        Ok(report) => report,
        Err(problem) => {
            print_error(&problem);
            return ExitCode::FAILURE;
        }
    };
    let text = match options.format {
        Format::Table => table::render(&report, table::Detail::Short),
        Format::Wide => table::render(&report, table::Detail::Long),
        Format::Json => json::render(&report),
    };
    // Write errors are ignored: the reader may have closed the pipe. The exit code still shows
    // the result.
    let _ = std::io::stdout().write_all(text.as_bytes());
    for (server, problem) in report.problems() {
        print_error(&format!("{server}: {problem}"));
    }
    exit_code(&report)
}

fn collect(options: &Options) -> Result<Report, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(collect::collect(options))
}

/// An unknown server could cause skew or not, so the exit code is that of a failure.
fn exit_code(report: &Report) -> ExitCode {
    if !report.is_complete() {
        ExitCode::FAILURE
    } else if report.skew.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_SKEW)
    }
}

fn print_error(problem: &str) {
    let _ = writeln!(std::io::stderr(), "skewbridge: {}", report::plain(problem));
}
