//! `cargo xtask test`: everything a change has to pass.

use crate::background_steps::BackgroundStep;
use crate::debian_packages::{self, RequiredProgram};
use crate::e2e::{self, SuiteSelection};
use crate::instructions::{self, Counting};
use crate::layers;
use crate::production_build;
use crate::step::{self, StepError, Steps, cargo};

/// The version that the project is checked with. Other versions may have other rules.
const CARGO_DENY: &str = "0.20.2";

/// The crypto library is C code with a build script of its own.
const C_COMPILER: RequiredProgram = RequiredProgram {
    program: "cc",
    packages: &["gcc", "libc6-dev", "make"],
};

/// How many tests of one program run at a time. Most of them wait for I/O.
const TESTS_AT_A_TIME: &str = "8";

/// PKCS#11 tokens, and the tool that creates keys in them, for the tests of `skewbridge agent`.
const PKCS11_TOOLS: [RequiredProgram; 2] = [
    RequiredProgram {
        program: "softhsm2-util",
        packages: &["softhsm2"],
    },
    RequiredProgram {
        program: "pkcs11-tool",
        packages: &["opensc"],
    },
];

/// Shells in which completion is tested, besides bash.
const SHELLS: [RequiredProgram; 2] = [
    RequiredProgram {
        program: "zsh",
        packages: &["zsh"],
    },
    RequiredProgram {
        program: "fish",
        packages: &["fish"],
    },
];

pub(crate) fn run() -> Result<(), StepError> {
    let mut steps = Steps::default();
    let [softhsm, opensc] = PKCS11_TOOLS;
    let [zsh, fish] = SHELLS;
    let mut programs = vec![C_COMPILER, softhsm, opensc, zsh, fish];
    let counting = Counting::here();
    if counting == Counting::Required {
        programs.push(instructions::VALGRIND);
    }
    steps.run("system packages", || debian_packages::ensure(&programs))?;
    steps.run("format", || step::run(&mut cargo("fmt --all --check")))?;
    steps.run("layers", layers::run)?;
    steps.run("unit, integration and doc tests", tests)?;
    steps.run("production build", production_build::test)?;
    let ci = std::env::var("CI").unwrap_or_default();
    match RealKubernetes::of(step::exists("go"), &ci) {
        RealKubernetes::Required => {
            steps.run("licences, bans and sources", dependencies)?;
            e2e::steps(
                &mut steps,
                SuiteSelection::Default,
                &[],
                background_steps(&counting),
            )?;
        }
        RealKubernetes::Skipped => {
            for BackgroundStep { name, mut command } in background_steps(&counting) {
                steps.run(name, || step::run(&mut command))?;
            }
            steps.run("licences, bans and sources", dependencies)?;
            println!("\nGo is not installed: the tests against real Kubernetes are skipped.");
        }
    }
    if let Counting::Skipped(why) = counting {
        println!("\nInstructions were not counted: {why}.");
    }
    steps.summarize();
    Ok(())
}

/// Whether the tests against real Kubernetes run.
#[derive(Debug, PartialEq, Eq)]
enum RealKubernetes {
    /// The tests run, and fail if a program that they need is missing.
    Required,
    /// Go is missing, and this is not CI.
    Skipped,
}

impl RealKubernetes {
    fn of(go: bool, ci: &str) -> Self {
        if go || ci == "true" {
            Self::Required
        } else {
            Self::Skipped
        }
    }
}

/// Without a target selection, cargo runs unit tests, integration tests and the doc tests of
/// the libraries.
fn tests() -> Result<(), StepError> {
    step::run(cargo("test --workspace --locked").env("RUST_TEST_THREADS", TESTS_AT_A_TIME))
}

/// Steps that depend on no other step. They use the CPU time that the tests against real
/// Kubernetes leave, which wait half of the time.
fn background_steps(counting: &Counting) -> Vec<BackgroundStep> {
    let lints = "clippy --workspace --all-targets --features skewbridge-e2e/kubernetes --locked";
    let mut lints = cargo(lints);
    lints.args(["--", "-D", "warnings"]);
    let mut production_lints = production_build::lints();
    production_lints.args(["--", "-D", "warnings"]);
    let mut documentation = cargo("doc --workspace --no-deps --locked --document-private-items");
    documentation.env("RUSTDOCFLAGS", "-D warnings");
    let counts = BackgroundStep {
        name: "instruction counts",
        command: cargo("run --quiet --package xtask --locked -- instructions"),
    };
    let counts = (*counting == Counting::Required).then_some(counts);
    let steps = [
        BackgroundStep {
            name: "packages",
            command: cargo("run --quiet --package xtask --locked -- dist --check"),
        },
        BackgroundStep {
            name: "lints",
            command: lints,
        },
        BackgroundStep {
            name: "lints of the production build",
            command: production_lints,
        },
        BackgroundStep {
            name: "documentation",
            command: documentation,
        },
    ];
    steps.into_iter().chain(counts).collect()
}

fn dependencies() -> Result<(), StepError> {
    ensure_cargo_deny()?;
    step::run(&mut cargo("deny --locked check licenses bans sources"))
}

/// Installs cargo-deny where it is missing.
pub(crate) fn ensure_cargo_deny() -> Result<(), StepError> {
    if step::succeeds(&mut cargo("deny --version")) {
        return Ok(());
    }
    println!("cargo-deny is missing: building it now, which takes some minutes.");
    step::run(&mut cargo(&format!(
        "install cargo-deny --locked --version {CARGO_DENY}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_kubernetes_is_skipped_only_without_go_and_outside_of_ci() {
        let rows = [
            (true, "", RealKubernetes::Required),
            (true, "true", RealKubernetes::Required),
            (false, "true", RealKubernetes::Required),
            (false, "", RealKubernetes::Skipped),
            (false, "false", RealKubernetes::Skipped),
        ];
        for (go, ci, expected) in rows {
            assert_eq!(RealKubernetes::of(go, ci), expected, "{go} {ci:?}");
        }
    }
}
