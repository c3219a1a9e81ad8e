//! Quiet steps beside a loud one: they have what the other leaves of the processors.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use crate::step::{self, Failed, Steps};

/// A step that needs nobody's attention until it has ended.
pub(crate) struct Quiet {
    pub(crate) name: &'static str,
    pub(crate) command: Command,
}

/// Runs the quiet steps one after the other while the loud one runs. What they say is
/// shown behind it; if any of all fails, so does this, after all have ended.
pub(crate) fn run(
    steps: &mut Steps,
    quiet: Vec<Quiet>,
    loud: impl FnOnce(&mut Steps) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let (loud, quiet) = thread::scope(|scope| {
        let beside = scope.spawn(|| quiet.into_iter().map(Quiet::run).collect::<Vec<_>>());
        let loud = loud(steps);
        (loud, beside.join())
    });
    let Ok(quiet) = quiet else {
        return Err(Failed("what ran beside the tests panicked".to_owned()));
    };
    let quiet = quiet.into_iter().map(|ended| steps.ended(ended));
    let outcomes: Vec<_> = std::iter::once(loud).chain(quiet).collect();
    outcomes.into_iter().collect()
}

/// How a quiet step has ended.
pub(crate) struct Ended {
    pub(crate) name: &'static str,
    pub(crate) took: std::time::Duration,
    pub(crate) said: String,
    pub(crate) outcome: Result<(), Failed>,
}

impl Quiet {
    fn run(self) -> Ended {
        let began = Instant::now();
        let mut command = idle(&self.command);
        let line = step::describe(&self.command);
        let (said, outcome) = match command.stdin(Stdio::null()).output() {
            Ok(ended) => {
                let said = [ended.stdout, ended.stderr].concat();
                let outcome = step::judged(&line, ended.status);
                (String::from_utf8_lossy(&said).into_owned(), outcome)
            }
            Err(error) => {
                let why = Failed(format!("`{line}` did not start: {error}"));
                (String::new(), Err(why))
            }
        };
        Ended {
            name: self.name,
            took: began.elapsed(),
            said,
            outcome,
        }
    }
}

/// The same command, which runs only where nothing else wants to.
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

    fn quiet(name: &'static str, script: &str) -> Quiet {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Quiet { name, command }
    }

    #[test]
    fn whoever_fails_is_told_after_all_have_ended() {
        let rows: [(&str, Result<(), &str>, Option<&str>); 4] = [
            ("exit 0", Ok(()), None),
            (
                "exit 3",
                Ok(()),
                Some("`sh -c exit 3` ended with exit status: 3"),
            ),
            ("exit 0", Err("loud"), Some("loud")),
            ("exit 3", Err("loud"), Some("loud")),
        ];
        for (script, loud, expected) in rows {
            let loud = loud.map_err(|why| Failed(why.to_owned()));
            let outcome = run(&mut Steps::default(), vec![quiet("it", script)], |_| loud);
            let why = outcome.err().map(|Failed(why)| why);
            match expected {
                None => assert_eq!(why, None, "{script}"),
                Some(expected) => assert!(why.expect("a failure").contains(expected), "{script}"),
            }
        }
    }

    #[test]
    fn it_runs_where_nothing_else_wants_to() {
        let ended = quiet("policy", "chrt -p $$; echo $GIVEN")
            .with("GIVEN", "a word")
            .run();
        assert!(ended.outcome.is_ok(), "{}", ended.said);
        assert!(ended.said.contains("SCHED_IDLE"), "{}", ended.said);
        assert!(ended.said.contains("a word"), "{}", ended.said);
    }

    impl Quiet {
        fn with(mut self, name: &str, value: &str) -> Self {
            self.command.env(name, value);
            self
        }
    }
}
