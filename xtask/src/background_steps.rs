//! Steps that run in the background of another step, on the CPU time that it leaves.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use crate::step::{self, FinishedStep, StepError, Steps};

/// A step whose output is shown when it has finished.
pub(crate) struct BackgroundStep {
    pub(crate) name: &'static str,
    pub(crate) command: Command,
}

/// Runs the background steps one after the other while the foreground step runs. Their output
/// is shown after it. All steps run to their end; then the first failure is returned.
pub(crate) fn run(
    steps: &mut Steps,
    background: Vec<BackgroundStep>,
    foreground: impl FnOnce(&mut Steps) -> Result<(), StepError>,
) -> Result<(), StepError> {
    let (foreground, background) = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            background
                .into_iter()
                .map(BackgroundStep::run)
                .collect::<Vec<_>>()
        });
        let foreground = foreground(steps);
        (foreground, worker.join())
    });
    let Ok(background) = background else {
        return Err(StepError("a background step panicked".to_owned()));
    };
    let background = background
        .into_iter()
        .map(|finished| steps.finished(finished));
    let outcomes: Vec<_> = std::iter::once(foreground).chain(background).collect();
    outcomes.into_iter().collect()
}

impl BackgroundStep {
    fn run(self) -> FinishedStep {
        let start = Instant::now();
        let mut command = idle(&self.command);
        let line = step::describe(&self.command);
        let (output, outcome) = match command.stdin(Stdio::null()).output() {
            Ok(finished) => {
                let output = [finished.stdout, finished.stderr].concat();
                let outcome = step::check_status(&line, finished.status);
                (String::from_utf8_lossy(&output).into_owned(), outcome)
            }
            Err(error) => {
                let why = StepError(format!("`{line}` did not start: {error}"));
                (String::new(), Err(why))
            }
        };
        FinishedStep {
            name: self.name,
            elapsed: start.elapsed(),
            output,
            outcome,
        }
    }
}

/// The same command with the scheduling policy `SCHED_IDLE`.
fn idle(command: &Command) -> Command {
    let mut idle = Command::new("chrt");
    idle.args(["--idle", "0"])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => idle.env(name, value),
            None => idle.env_remove(name),
        };
    }
    idle
}

#[cfg(test)]
mod tests {
    use super::*;

    fn background(name: &'static str, script: &str) -> BackgroundStep {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        BackgroundStep { name, command }
    }

    #[test]
    fn a_failure_is_returned_after_all_steps_have_finished() {
        let rows: [(&str, Result<(), &str>, Option<&str>); 4] = [
            ("exit 0", Ok(()), None),
            (
                "exit 3",
                Ok(()),
                Some("`sh -c exit 3` ended with exit status: 3"),
            ),
            ("exit 0", Err("foreground"), Some("foreground")),
            ("exit 3", Err("foreground"), Some("foreground")),
        ];
        for (script, foreground, expected) in rows {
            let foreground = foreground.map_err(|why| StepError(why.to_owned()));
            let outcome = run(
                &mut Steps::default(),
                vec![background("it", script)],
                |_| foreground,
            );
            let why = outcome.err().map(|StepError(why)| why);
            match expected {
                None => assert_eq!(why, None, "{script}"),
                Some(expected) => assert!(why.expect("a failure").contains(expected), "{script}"),
            }
        }
    }

    #[test]
    fn a_background_step_has_the_idle_scheduling_policy() {
        let finished = background("policy", "chrt -p $$; echo $GIVEN")
            .with("GIVEN", "a word")
            .run();
        assert!(finished.outcome.is_ok(), "{}", finished.output);
        assert!(
            finished.output.contains("SCHED_IDLE"),
            "{}",
            finished.output
        );
        assert!(finished.output.contains("a word"), "{}", finished.output);
    }

    impl BackgroundStep {
        fn with(mut self, name: &str, value: &str) -> Self {
            self.command.env(name, value);
            self
        }
    }
}
