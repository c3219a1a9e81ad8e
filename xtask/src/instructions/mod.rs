//! `cargo xtask instructions`: the instructions of the hot parts, counted by valgrind and compared
//! with those that are recorded.

mod comparison;
mod counts;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::debian_packages::{self, RequiredProgram};
use crate::step::{self, StepError, cargo};
use counts::Counts;

/// Counts the instructions.
pub(crate) const VALGRIND: RequiredProgram = RequiredProgram {
    program: "valgrind",
    packages: &["valgrind"],
};

/// Starts valgrind for each hot part. Its version has to be that of the library.
const RUNNER: &str = "gungraun-runner";
const RUNNER_VERSION: &str = "0.20.0";

/// What is done with the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// They are compared with the recorded ones.
    Compare,
    /// They become the recorded ones.
    Record,
}

/// Whether the test command counts instructions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// They are counted, and it is a failure if valgrind is missing.
    Required,
    /// They are not counted, for this reason.
    Skipped(&'static str),
}

impl Counting {
    /// Whether it is possible on this machine.
    pub(crate) fn here() -> Self {
        let ci = std::env::var("CI").unwrap_or_default();
        let recorded = recorded().is_ok_and(|file| file.exists());
        let valgrind = step::exists(VALGRIND.program) || debian_packages::can_install();
        Self::of(recorded, valgrind, &ci)
    }

    fn of(recorded: bool, valgrind: bool, ci: &str) -> Self {
        match (recorded, valgrind || ci == "true") {
            (true, true) => Self::Required,
            (true, false) => Self::Skipped("valgrind is not installed"),
            (false, _) => Self::Skipped("no counts are recorded for this architecture"),
        }
    }
}

pub(crate) fn run(mode: Mode) -> Result<(), StepError> {
    debian_packages::ensure(&[VALGRIND])?;
    ensure_runner()?;
    let counted = count()?;
    let file = recorded()?;
    let failed = |error| StepError(format!("{}: {error}", file.display()));
    if mode == Mode::Record {
        std::fs::write(&file, counted.to_json()).map_err(failed)?;
        println!("{counted}\nrecorded in {}", file.display());
        return Ok(());
    }
    let recorded = std::fs::read_to_string(&file)
        .map_err(|error| error.to_string())
        .and_then(|text| Counts::from_json(&text).map_err(|error| error.to_string()))
        .map_err(|error| {
            StepError(format!(
                "{}: {error}; `cargo xtask instructions --record` writes it",
                file.display()
            ))
        })?;
    println!("{}", comparison::table(&recorded, &counted));
    comparison::check(&recorded, &counted).map_err(StepError)
}

/// The recorded counts of this architecture.
fn recorded() -> Result<PathBuf, StepError> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or_else(|| StepError("xtask has no parent directory".to_owned()))?;
    let name = format!("{}.json", std::env::consts::ARCH);
    Ok(root.join("instruction-counts/recorded").join(name))
}

/// Runs every hot part once.
fn count() -> Result<Counts, StepError> {
    let mut command = cargo(
        "bench --profile instructions --locked --package skewbridge-instruction-counts \
         --bench hot_parts -- --output-format=json",
    );
    println!("$ {}", step::describe(&command));
    let summaries = step::output(command.stderr(Stdio::inherit()))?;
    Counts::from_summaries(&summaries).map_err(StepError)
}

/// Installs the runner where it is missing. A debug build is enough, and takes a third of the time:
/// the runner starts valgrind and reads what it writes.
fn ensure_runner() -> Result<(), StepError> {
    let version = step::output(Command::new(RUNNER).arg("--version")).unwrap_or_default();
    if version == format!("{RUNNER} {RUNNER_VERSION}") {
        return Ok(());
    }
    println!("{RUNNER} {RUNNER_VERSION} is missing: building it now, which takes some minutes.");
    let mut install = cargo(&format!(
        "install {RUNNER} --locked --version {RUNNER_VERSION} --debug"
    ));
    step::run(install.env("CARGO_PROFILE_DEV_DEBUG", "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_counted_where_valgrind_can_be_had_and_in_ci() {
        let no_valgrind = || Counting::Skipped("valgrind is not installed");
        let not_recorded = || Counting::Skipped("no counts are recorded for this architecture");
        let rows = [
            (true, true, "", Counting::Required),
            (true, true, "true", Counting::Required),
            (true, false, "true", Counting::Required),
            (true, false, "", no_valgrind()),
            (true, false, "false", no_valgrind()),
            (false, true, "", not_recorded()),
            (false, false, "true", not_recorded()),
        ];
        for (recorded, valgrind, ci, expected) in rows {
            let counting = Counting::of(recorded, valgrind, ci);
            assert_eq!(counting, expected, "{recorded} {valgrind} {ci:?}");
        }
    }

    #[test]
    fn the_runner_has_the_version_of_the_library() {
        let lock = include_str!("../../../Cargo.lock");
        let package = format!("name = \"gungraun\"\nversion = \"{RUNNER_VERSION}\"\n");
        assert!(lock.contains(&package), "{package}");
    }
}
