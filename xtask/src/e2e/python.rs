//! Python virtual environments.

use std::path::Path;
use std::process::Command;

use crate::debian_packages;
use crate::step::{self, StepError, failed};

/// Debian has the modules for virtual environments in a separate package.
pub(super) fn ensure_environments() -> Result<(), StepError> {
    let has_modules =
        || step::succeeds(Command::new("python3").args(["-c", "import ensurepip, venv"]));
    if has_modules() {
        return Ok(());
    }
    debian_packages::install(
        "the modules venv and ensurepip of Python",
        &["python3-venv"],
    )?;
    if has_modules() {
        return Ok(());
    }
    Err(StepError(
        "python3 cannot create virtual environments (python3 -m venv)".to_owned(),
    ))
}

/// The version and prefix of Python. An environment works with one Python only.
pub(super) fn version() -> Result<String, StepError> {
    let script = "import sys; print(sys.version, sys.base_prefix)";
    let output = Command::new("python3").args(["-c", script]).output();
    let output = output.map_err(failed("python3"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Creates an environment with the packages of a requirements file, each verified by hash.
pub(super) fn make(environment: &Path, requirements: &Path) -> Result<(), StepError> {
    step::run(
        Command::new("python3")
            .args(["-m", "venv"])
            .arg(environment),
    )?;
    step::run(
        Command::new(environment.join("bin/python"))
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ])
            .args(["--require-hashes", "--only-binary=:all:", "-r"])
            .arg(requirements),
    )
}
