//! The project's own commands: `cargo xtask COMMAND`.

mod advisories;
mod background_steps;
mod bench;
mod debian_packages;
mod dist;
mod e2e;
mod instructions;
mod layers;
mod production_build;
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
  api-data VERSION...
                     What kube-apiservers of these versions serve, from real ones:
                     writes crates/released-apis/data/MINOR.json
  dist [--verify|--check] [--architectures=amd64,arm64] [--download-url=URL]
                     What is installed, in target/dist: programs without the playground, archives,
                     Debian packages, krew manifest, bills of materials, checksums.
                     --verify: build everything again elsewhere, and compare the checksums;
                     --check: unoptimised programs of this machine, for a test of the packaging;
                     --architectures: instead of those whose compiler is installed;
                     --download-url: where the archives of the krew manifest will be
  layers             The layers of each crate's modules; a cycle is a failure
  instructions [--record]
                     Instructions of the hot parts, counted by valgrind; a change of more than 5 %
                     from the recorded counts is a failure.
                     --record: writes instruction-counts/recorded
  advisories         Known vulnerabilities in the dependencies (needs the network)
  bench NAME [--record] [ARGS]
                     A measurement in release mode: pass-through, reroute, storm, scale, placement,
                     watches; with real Kubernetes, which is built first: discovery, local,
                     peer-proxy, latency, translate, exec, agent.
                     --record: writes the result to docs/performance.md
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
        ["api-data", versions @ ..] => e2e::write_api_data(versions),
        ["dist", arguments @ ..] => match dist::Options::parse(arguments) {
            Ok(options) => dist::run(&options),
            Err(wrong) => return usage(&wrong),
        },
        ["layers"] => layers::run(),
        ["instructions"] => instructions::run(instructions::Mode::Compare),
        ["instructions", "--record"] => instructions::run(instructions::Mode::Record),
        ["advisories"] => advisories::run(),
        ["bench", name, rest @ ..] if bench::NAMES.contains(name) => bench::run(name, rest),
        wrong => return usage(&usage_error(wrong)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(step::StepError(why)) => {
            eprintln!("\nxtask: {why}");
            ExitCode::FAILURE
        }
    }
}

fn usage(wrong: &str) -> ExitCode {
    eprintln!("xtask: {wrong}\n");
    eprint!("{HELP}");
    ExitCode::from(EX_USAGE)
}

/// Why a command line is not valid.
fn usage_error(words: &[&str]) -> String {
    match words {
        ["bench"] => format!("bench needs a name: {}", bench::NAMES.join(" or ")),
        ["instructions", ..] => "instructions takes no arguments but --record".to_owned(),
        ["bench", name, ..] => format!("no such measurement: {name}"),
        [command @ ("test" | "layers" | "advisories" | "help"), ..] => {
            format!("{command} takes no arguments")
        }
        _ => format!("not a command: {}", words.join(" ")),
    }
}
