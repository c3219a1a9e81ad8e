//! `cargo xtask test`: everything a change has to pass.

use crate::beside::Quiet;
use crate::debian::{self, Need};
use crate::e2e::{self, Extent};
use crate::layers;
use crate::step::{self, Failed, Steps, cargo};

/// The version the project is checked with; another may judge differently.
const CARGO_DENY: &str = "0.20.2";

/// The crypto library is C; it comes with its own build script and needs no more than this.
const C_COMPILER: Need = Need {
    program: "cc",
    packages: &["gcc", "libc6-dev", "make"],
};

/// How many tests of a program run at a time: most of the time they wait for each other.
const TESTS_AT_A_TIME: &str = "8";

/// Tokens with keys in them, and the tool that makes the keys: for `skewbridge agent`.
const TOKENS: [Need; 2] = [
    Need {
        program: "softhsm2-util",
        packages: &["softhsm2"],
    },
    Need {
        program: "pkcs11-tool",
        packages: &["opensc"],
    },
];

pub(crate) fn run() -> Result<(), Failed> {
    let mut steps = Steps::default();
    let [softhsm, opensc] = TOKENS;
    steps.run("system packages", || {
        debian::ensure(&[C_COMPILER, softhsm, opensc])
    })?;
    steps.run("format", || step::run(&mut cargo("fmt --all --check")))?;
    steps.run("layers", layers::run)?;
    steps.run("unit, integration and doc tests", tests)?;
    let ci = std::env::var("CI").unwrap_or_default();
    match RealKubernetes::of(step::exists("go"), &ci) {
        RealKubernetes::Judges => {
            steps.run("licences, bans and sources", dependencies)?;
            e2e::steps(&mut steps, Extent::Default, &[], quiet())?;
        }
        RealKubernetes::LeftOut => {
            for Quiet { name, mut command } in quiet() {
                steps.run(name, || step::run(&mut command))?;
            }
            steps.run("licences, bans and sources", dependencies)?;
            println!("\nGo is not installed: the tests against real Kubernetes are left out.");
        }
    }
    steps.summarize();
    Ok(())
}

/// Whether the tests against real Kubernetes run.
#[derive(Debug, PartialEq, Eq)]
enum RealKubernetes {
    /// They do, and fail if something that they need is missing.
    Judges,
    /// They cannot, and nobody relies on them.
    LeftOut,
}

impl RealKubernetes {
    fn of(go: bool, ci: &str) -> Self {
        if go || ci == "true" {
            Self::Judges
        } else {
            Self::LeftOut
        }
    }
}

/// Without a target selection, cargo runs unit tests, integration tests and the doc tests of
/// the libraries.
fn tests() -> Result<(), Failed> {
    step::run(cargo("test --workspace --locked").env("RUST_TEST_THREADS", TESTS_AT_A_TIME))
}

/// What needs no other step, and whose time the tests against real Kubernetes leave: they
/// wait half of theirs.
fn quiet() -> Vec<Quiet> {
    let lints = "clippy --workspace --all-targets --features skewbridge-e2e/kubernetes --locked";
    let mut lints = cargo(lints);
    lints.args(["--", "-D", "warnings"]);
    let mut documentation = cargo("doc --workspace --no-deps --locked --document-private-items");
    documentation.env("RUSTDOCFLAGS", "-D warnings");
    vec![
        Quiet {
            name: "lints",
            command: lints,
        },
        Quiet {
            name: "documentation",
            command: documentation,
        },
    ]
}

fn dependencies() -> Result<(), Failed> {
    ensure_cargo_deny()?;
    step::run(&mut cargo("deny --locked check licenses bans sources"))
}

/// Installs cargo-deny where it is missing.
pub(crate) fn ensure_cargo_deny() -> Result<(), Failed> {
    if step::works(&mut cargo("deny --version")) {
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
    fn only_a_developer_without_go_does_without_real_kubernetes() {
        let rows = [
            (true, "", RealKubernetes::Judges),
            (true, "true", RealKubernetes::Judges),
            (false, "true", RealKubernetes::Judges),
            (false, "", RealKubernetes::LeftOut),
            (false, "false", RealKubernetes::LeftOut),
        ];
        for (go, ci, expected) in rows {
            assert_eq!(RealKubernetes::of(go, ci), expected, "{go} {ci:?}");
        }
    }
}
