//! Programs that the operating system provides, installed from Debian packages.

use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

use crate::step::{self, StepError};

/// Debian packages run this before they start a service; exit code 101 forbids it.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// A program and the Debian packages that contain it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequiredProgram {
    pub(crate) program: &'static str,
    pub(crate) packages: &'static [&'static str],
}

/// Makes sure that the programs exist. On Debian, as root, missing ones are installed;
/// elsewhere the error names them.
pub(crate) fn ensure(needs: &[RequiredProgram]) -> Result<(), StepError> {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let programs: Vec<_> = missing.iter().map(|need| need.program).collect();
    let packages: Vec<_> = missing.iter().flat_map(|need| need.packages).collect();
    let packages: Vec<&str> = packages.into_iter().copied().collect();
    install(&programs.join(", "), &packages)?;
    match self::missing(needs).as_slice() {
        [] => Ok(()),
        [need, ..] => Err(StepError(format!(
            "{} is still missing after the installation",
            need.program
        ))),
    }
}

fn missing(needs: &[RequiredProgram]) -> Vec<RequiredProgram> {
    let missing = needs.iter().filter(|need| !step::exists(need.program));
    missing.copied().collect()
}

/// Installs packages on Debian, as root.
pub(crate) fn install(missing: &str, packages: &[&str]) -> Result<(), StepError> {
    if !can_install() {
        return Err(StepError(format!(
            "missing: {missing}; install it first (Debian packages: {})",
            packages.join(" ")
        )));
    }
    let _no_services = ServiceStartBlocker::enter()?;
    step::run(Command::new("apt-get").arg("update"))?;
    step::run(
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "-y", "--no-install-recommends"])
            .args(packages),
    )
}

/// Whether this is Debian, and this process may change it.
pub(crate) fn can_install() -> bool {
    Path::new("/etc/debian_version").exists() && is_root()
}

/// `/proc/self` belongs to the effective user of this process.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Prevents packages from starting their services until it is dropped. A policy that exists
/// already is not changed.
struct ServiceStartBlocker {
    ours: bool,
}

impl ServiceStartBlocker {
    fn enter() -> Result<Self, StepError> {
        if Path::new(POLICY).exists() {
            return Ok(Self { ours: false });
        }
        let file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(POLICY);
        let policy = Self { ours: file.is_ok() };
        file.and_then(|mut file| std::io::Write::write_all(&mut file, b"#!/bin/sh\nexit 101\n"))
            .map(|()| policy)
            .map_err(|error| StepError(format!("cannot write {POLICY}: {error}")))
    }
}

impl Drop for ServiceStartBlocker {
    fn drop(&mut self) {
        if self.ours {
            let _ = fs::remove_file(POLICY);
        }
    }
}
