//! The project's own commands: `cargo xtask COMMAND`.

mod advisories;
mod background_steps;
mod bench;
mod debian_packages;
mod dist;
mod e2e;
mod layers;
mod step;
mod test;

use std::process::ExitCode;

use e2e::SuiteSelection;

const HELP: &str = "\
The project's own commands.

Usage: cargo xtask COMMAND

Commands:
  test               Everything a change has to pass: format, lints, tests, docs, licences
  e2e [--all] [FILTER]
                     Tests against real Kubernetes, which it builds first (needs Go);
                     --all: on more versions, and what takes long.
                     E2E_VERSIONS=1.33.13,1.34.4 in the environment: on one control plane of
                     these versions instead
  dist               The production build, without the playground: target/dist/skewbridge
  layers             The layers of each crate's modules; a cycle is a failure
  advisories         Known vulnerabilities in the dependencies (needs the network)
  bench NAME [ARGS]  A measurement in release mode: pass-through, reroute, watches; with real
                     Kubernetes, which is built first: translate, exec, agent
  help               This text
";

/// `EX_USAGE` of sysexits: the command line is not valid.
const EX_USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        ["test"] => test::run(),
        ["e2e", "--all", filter @ ..] => e2e::run(SuiteSelection::All, filter),
        ["e2e", filter @ ..] => e2e::run(SuiteSelection::Default, filter),
        ["dist"] => dist::run(),
        ["layers"] => layers::run(),
        ["advisories"] => advisories::run(),
        ["bench", name, rest @ ..] if bench::NAMES.contains(name) => bench::run(name, rest),
        wrong => {
            eprintln!("xtask: {}\n", usage_error(wrong));
            eprint!("{HELP}");
            return ExitCode::from(EX_USAGE);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(step::StepError(why)) => {
            eprintln!("\nxtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Why a command line is not valid.
fn usage_error(words: &[&str]) -> String {
    match words {
        ["bench"] => format!("bench needs a name: {}", bench::NAMES.join(" or ")),
        ["bench", name, ..] => format!("no such measurement: {name}"),
        [
            command @ ("test" | "dist" | "layers" | "advisories" | "help"),
            ..,
        ] => {
            format!("{command} takes no arguments")
        }
        _ => format!("not a command: {}", words.join(" ")),
    }
}
