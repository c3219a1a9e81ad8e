//! Environments of Python with packages of others.

use std::path::Path;
use std::process::Command;

use super::shelf::failed;
use crate::debian;
use crate::step::{self, Failed};

/// Debian has what makes environments in a package of its own.
pub(super) fn ensure_environments() -> Result<(), Failed> {
    let has_them = || step::works(Command::new("python3").args(["-c", "import ensurepip, venv"]));
    if has_them() {
        return Ok(());
    }
    debian::install(
        "the modules venv and ensurepip of Python",
        &["python3-venv"],
    )?;
    if has_them() {
        return Ok(());
    }
    Err(Failed(
        "python3 cannot make environments (python3 -m venv)".to_owned(),
    ))
}

/// Which Python this is: environments are of one.
pub(super) fn version() -> Result<String, Failed> {
    let told = "import sys; print(sys.version, sys.base_prefix)";
    let told = Command::new("python3").args(["-c", told]).output();
    let told = told.map_err(failed("python3"))?;
    Ok(String::from_utf8_lossy(&told.stdout).into_owned())
}

/// Makes one with the packages of a list, each by its hash.
pub(super) fn make(environment: &Path, requirements: &Path) -> Result<(), Failed> {
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
