//! Running other programs, one announced step after the other.

use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::beside::Ended;

/// Why a command stops: one line for the reader.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) String);

/// What the steps took, for the closing summary.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    done: Vec<(&'static str, Duration)>,
}

impl Steps {
    /// Announces a step, runs it and says how long it took.
    pub(crate) fn run(
        &mut self,
        name: &'static str,
        step: impl FnOnce() -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        println!("\n==> {name}");
        let start = Instant::now();
        let outcome = step();
        self.judge(name, start.elapsed(), outcome)
    }

    /// Shows what a step has said that ran beside others, and how it ended.
    pub(crate) fn ended(&mut self, ended: Ended) -> Result<(), Failed> {
        let Ended {
            name,
            took,
            said,
            outcome,
        } = ended;
        println!("\n==> {name} (beside the others)\n{said}");
        self.judge(name, took, outcome)
    }

    fn judge(
        &mut self,
        name: &'static str,
        took: Duration,
        outcome: Result<(), Failed>,
    ) -> Result<(), Failed> {
        let seconds = took.as_secs_f64();
        if let Err(Failed(why)) = outcome {
            return Err(Failed(format!("{name} failed after {seconds:.1} s: {why}")));
        }
        println!("<== {name}: passed in {seconds:.1} s");
        self.done.push((name, took));
        Ok(())
    }

    /// Lists what has passed.
    pub(crate) fn summarize(&self) {
        println!("\nAll {} steps passed:", self.done.len());
        for (name, took) in &self.done {
            println!("  {:>7.1} s  {name}", took.as_secs_f64());
        }
    }
}

/// Runs a program with its output shown; anything but success is a failure.
pub(crate) fn run(command: &mut Command) -> Result<(), Failed> {
    let line = describe(command);
    println!("$ {line}");
    match command.status() {
        Ok(status) => judged(&line, status),
        Err(error) => Err(Failed(format!("`{line}` did not start: {error}"))),
    }
}

/// Anything but success is a failure of this command line.
pub(crate) fn judged(line: &str, status: ExitStatus) -> Result<(), Failed> {
    if status.success() {
        return Ok(());
    }
    Err(Failed(format!("`{line}` ended with {status}")))
}

/// Whether a program starts and succeeds, without a word.
pub(crate) fn works(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Whether a program is on the `PATH`, whatever it answers.
pub(crate) fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// The cargo that runs this program.
pub(crate) fn cargo(words: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(words.split_whitespace());
    // What is built once needs no notes for the next time.
    if std::env::var_os("CI").is_some_and(|ci| ci == "true") {
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

/// A command as one would type it.
pub(crate) fn describe(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program());
    std::iter::once(name)
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
