//! `skewbridge vanishing`: who calls APIs that the next minor version does not serve, over all bridges.

mod collect;
mod flags;
mod merge;
mod render;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use crate::client_command::print_stderr;
use crate::console::{Color, size};
use crate::skew::plain;
use flags::Format;
use merge::Merged;

pub(crate) use flags::Flags;

/// From flags to reports, text and exit code.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    let options = match flags.parse() {
        Ok(options) => options,
        Err(problems) => {
            for problem in problems {
                print_stderr(format_args!("skewbridge: {}", plain(&problem)));
            }
            print_stderr(format_args!("see skewbridge vanishing --help"));
            return ExitCode::from(crate::EXIT_USAGE);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let answers = match runtime {
        Ok(runtime) => runtime.block_on(collect::reports(&options)),
        Err(error) => Err(error.to_string()),
    };
    let answers = match answers {
        Ok(answers) => answers,
        Err(why) => {
            print_stderr(format_args!("skewbridge: {}", plain(&why)));
            return ExitCode::FAILURE;
        }
    };
    let merged = merge::merge(answers);
    let text = match options.format {
        Format::Table => render::table(&merged, Color::of_stdout(), width()),
        Format::Json => render::json(&merged),
    };
    // Write errors are ignored: the reader may have closed the pipe. The exit code still shows
    // the result.
    let _ = std::io::stdout().write_all(text.as_bytes());
    let problems = merged.problems();
    let problems = problems.map(|(bridge, why)| (bridge, why.to_owned()));
    for (bridge, problem) in problems.chain(merged.unknown_targets()) {
        print_stderr(format_args!(
            "skewbridge: {}: {}",
            plain(bridge),
            plain(&problem)
        ));
    }
    ExitCode::from(exit_code(&merged))
}

/// The width of the terminal; without one, lines are not shortened.
fn width() -> Option<usize> {
    let terminal = std::io::stdout().is_terminal().then(size).flatten();
    terminal.map(|it| it.width.into())
}

/// As of `skewbridge skew`: 0 nothing vanishes for a client, 2 something does, 1 not known.
fn exit_code(merged: &Merged) -> u8 {
    if merged.problems().next().is_some() || merged.unknown_targets().next().is_some() {
        1
    } else if merged.calls.iter().any(merge::is_unserved) || merged.other.is_some() {
        2
    } else {
        0
    }
}

#[cfg(test)]
mod tests;
