//! `skewbridge skew`: how servers differ, and what a client of each would miss.

mod collect;
mod fetch;
mod fields;
mod flags;
mod json;
mod report;
mod table;

use std::io::Write as _;
use std::process::ExitCode;

pub(crate) use fetch::{refusal, server as fetch_server};
pub(crate) use flags::Flags;
use flags::{Compared, Format};
use report::Report;
pub(crate) use report::{group_version, plain};

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
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string());
    let outcome = runtime.and_then(|runtime| match options.compared {
        Compared::Resources => {
            let report = runtime.block_on(collect::collect(&options))?;
            Ok(Outcome::of_resources(&report, options.format))
        }
        Compared::Fields => {
            let report = runtime.block_on(fields::collect(&options))?;
            Ok(Outcome::of_fields(&report, options.format))
        }
    });
    match outcome {
        Ok(outcome) => outcome.print(),
        Err(problem) => {
            print_error(&problem);
            ExitCode::FAILURE
        }
    }
}

/// What is printed of a report.
struct Outcome {
    text: String,
    /// Why servers are not known, or not their current state.
    problems: Vec<String>,
    has_skew: bool,
}

impl Outcome {
    fn of_resources(report: &Report, format: Format) -> Self {
        let problems = report.problems();
        let problems = problems.map(|(server, problem)| format!("{server}: {problem}"));
        Self {
            text: match format {
                Format::Table => table::render(report, table::Detail::Short),
                Format::Wide => table::render(report, table::Detail::Long),
                Format::Json => json::render(report),
            },
            problems: problems.collect(),
            has_skew: !report.skew.is_empty(),
        }
    }

    fn of_fields(report: &fields::FieldReport, format: Format) -> Self {
        let problems = report.problems();
        let problems = problems.map(|(server, problem)| format!("{server}: {problem}"));
        Self {
            text: match format {
                Format::Table => fields::table::render(report, table::Detail::Short),
                Format::Wide => fields::table::render(report, table::Detail::Long),
                Format::Json => fields::json::render(report),
            },
            problems: problems.collect(),
            has_skew: !report.skew.is_empty(),
        }
    }

    fn print(self) -> ExitCode {
        // Write errors are ignored: the reader may have closed the pipe. The exit code still
        // shows the result.
        let _ = std::io::stdout().write_all(self.text.as_bytes());
        for problem in &self.problems {
            print_error(problem);
        }
        // An unknown server could cause skew or not, so the exit code is that of a failure.
        match (self.problems.is_empty(), self.has_skew) {
            (false, _) => ExitCode::FAILURE,
            (true, false) => ExitCode::SUCCESS,
            (true, true) => ExitCode::from(EXIT_SKEW),
        }
    }
}

fn print_error(problem: &str) {
    let _ = writeln!(std::io::stderr(), "skewbridge: {}", report::plain(problem));
}
