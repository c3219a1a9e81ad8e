//! Running other programs, one announced step after the other.

use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Why a command stops: one line for the reader.
#[derive(Debug)]
pub(crate) struct StepError(pub(crate) String);

/// The times of all steps, for the closing summary.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    done: Vec<(&'static str, Duration)>,
}

/// A step that ran in the background.
pub(crate) struct FinishedStep {
    pub(crate) name: &'static str,
    pub(crate) elapsed: Duration,
    pub(crate) output: String,
    pub(crate) outcome: Result<(), StepError>,
}

impl Steps {
    /// Announces a step, runs it and prints its duration.
    pub(crate) fn run(
        &mut self,
        name: &'static str,
        step: impl FnOnce() -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        println!("\n==> {name}");
        let start = Instant::now();
        let outcome = step();
        self.record(name, start.elapsed(), outcome)
    }

    /// Shows the output and the outcome of a step that ran in the background.
    pub(crate) fn finished(&mut self, step: FinishedStep) -> Result<(), StepError> {
        let FinishedStep {
            name,
            elapsed,
            output,
            outcome,
        } = step;
        println!("\n==> {name} (in the background)\n{output}");
        self.record(name, elapsed, outcome)
    }

    fn record(
        &mut self,
        name: &'static str,
        elapsed: Duration,
        outcome: Result<(), StepError>,
    ) -> Result<(), StepError> {
        let seconds = elapsed.as_secs_f64();
        if let Err(StepError(why)) = outcome {
            return Err(StepError(format!(
                "{name} failed after {seconds:.1} s: {why}"
            )));
        }
        println!("<== {name}: passed in {seconds:.1} s");
        self.done.push((name, elapsed));
        Ok(())
    }

    /// Lists the steps that passed.
    pub(crate) fn summarize(&self) {
        println!("\nAll {} steps passed:", self.done.len());
        for (name, elapsed) in &self.done {
            println!("  {:>7.1} s  {name}", elapsed.as_secs_f64());
        }
    }
}

/// Adds to an I/O error the file or program that it concerns.
pub(crate) fn failed(what: &str) -> impl Fn(std::io::Error) -> StepError + use<> {
    let what = what.to_owned();
    move |error| StepError(format!("{what}: {error}"))
}

/// What a program prints, without the line break at its end.
pub(crate) fn output(command: &mut Command) -> Result<String, StepError> {
    let line = describe(command);
    let output = command
        .output()
        .map_err(|error| StepError(format!("`{line}` did not start: {error}")))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(StepError(format!(
            "`{line}` ended with {}: {stderr}",
            output.status
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned())
}

/// Runs a program with its output shown; anything but success is a failure.
pub(crate) fn run(command: &mut Command) -> Result<(), StepError> {
    let line = describe(command);
    println!("$ {line}");
    match command.status() {
        Ok(status) => check_status(&line, status),
        Err(error) => Err(StepError(format!("`{line}` did not start: {error}"))),
    }
}

/// Turns any exit status but success into a failure of this command line.
pub(crate) fn check_status(line: &str, status: ExitStatus) -> Result<(), StepError> {
    if status.success() {
        return Ok(());
    }
    Err(StepError(format!("`{line}` ended with {status}")))
}

/// Whether a program starts and succeeds. Its output is discarded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Whether a program is on the `PATH`, whatever its exit status.
pub(crate) fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// The cargo that runs this program.
pub(crate) fn cargo(words: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(words.split_whitespace());
    // A build that runs once gains nothing from incremental compilation.
    if std::env::var_os("CI").is_some_and(|ci| ci == "true") {
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

/// A command as it is typed in a shell.
pub(crate) fn describe(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program());
    std::iter::once(name)
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
