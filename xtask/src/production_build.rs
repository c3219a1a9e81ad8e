//! Tests and lints of the production build, which has no playground.

use std::process::Command;

use crate::step::{self, StepError, cargo};

/// The flags of the production build: without the playground.
pub(crate) const FLAGS: &str = "--no-default-features";

/// Tests that the production build has no playground in it. Only the program itself is built
/// again, in the profile of the other tests: with the whole workspace chosen, cargo unifies the
/// features of the dependencies as it does for the other tests.
pub(crate) fn test() -> Result<(), StepError> {
    step::run(&mut cargo(&format!(
        "test --workspace --locked {FLAGS} --test production_build"
    )))
}

/// The lints of the code that only the production build compiles differently: the program.
pub(crate) fn lints() -> Command {
    let targets = "--bin skewbridge --test production_build";
    cargo(&format!(
        "clippy --workspace --locked --features skewbridge-e2e/kubernetes {FLAGS} {targets}"
    ))
}
