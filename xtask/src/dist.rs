//! `cargo xtask dist`: the production build, and the test of what is not in it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::step::{self, StepError, cargo};

/// What makes a build the production build: without the playground.
const PRODUCTION: &str = "--no-default-features";

/// Builds the program that runs in front of a control plane, as `target/dist/skewbridge`.
/// `target/release/skewbridge` is whatever was built last, which may have the playground.
pub(crate) fn run() -> Result<(), StepError> {
    step::run(&mut cargo(&format!(
        "build --release --locked --package skewbridge {PRODUCTION}"
    )))?;
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let (built, program) = (target.join("release/skewbridge"), "dist/skewbridge");
    let copied = fs::create_dir_all(target.join("dist"))
        .and_then(|()| fs::copy(built, target.join(program)));
    copied.map_err(|error| StepError(format!("target/{program}: {error}")))?;
    println!("The program is target/{program}.");
    Ok(())
}

/// Tests that the production build has no playground in it. Only the program itself is built
/// again, in the profile of the other tests: with the whole workspace chosen, cargo unifies the
/// features of the dependencies as it does for the other tests.
pub(crate) fn test() -> Result<(), StepError> {
    step::run(&mut cargo(&format!(
        "test --workspace --locked {PRODUCTION} --test production_build"
    )))
}

/// The lints of the code that only the production build compiles differently: the program.
pub(crate) fn lints() -> Command {
    let targets = "--bin skewbridge --test production_build";
    cargo(&format!(
        "clippy --workspace --locked --features skewbridge-e2e/kubernetes {PRODUCTION} {targets}"
    ))
}
