//! Suites of tests, two at a time: most of the time they wait. What waits nearly all of
//! its time runs beside them.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use super::shelf::failed;
use super::suites::Suite;
use crate::step::Failed;

/// How many run at a time. A server that starts keeps a core busy, and the test
/// command is meant for two cores.
const AT_A_TIME: usize = 2;

/// And how many of those that are idle: together they would not be.
const IDLE_AT_A_TIME: usize = 1;

/// How to run each of the suites.
pub(super) struct Run<'a> {
    /// For the tests: which of them count, beside their names.
    pub(super) flags: &'a [&'a str],
    pub(super) environment: &'a [(&'a str, &'a OsStr)],
    /// Where it is started.
    pub(super) directory: &'a Path,
    /// Where a file is kept of what it has said.
    pub(super) said: &'a Path,
}

impl Run<'_> {
    /// Runs them all. If one fails, so does this, after all have ended.
    pub(super) fn all(&self, suites: VecDeque<Suite>) -> Result<(), Failed> {
        fs::create_dir_all(self.said).map_err(failed("a directory for what tests say"))?;
        let board = Board::new(suites.len());
        let run = |suite: Suite| self.shown(&suite, &board);
        let (idle, busy) = suites.into_iter().partition(Suite::is_idle);
        beside(idle, busy, run);
        board.verdict(self.said)
    }

    fn shown(&self, suite: &Suite, board: &Board) {
        let said = self.said.join(format!("{}.log", suite.name));
        board.begins(&suite.name);
        let began = Instant::now();
        let outcome = self.one(suite, &said);
        let took = began.elapsed();
        let said = fs::read(said).unwrap_or_default();
        board.ends(&suite.name, &outcome, took, &said);
    }

    /// What it says goes to a file, or its lines would mix with those of another.
    /// The kernel ends it if this thread ends first, by a signal for example.
    fn one(&self, suite: &Suite, said: &Path) -> io::Result<ExitStatus> {
        let said = File::create(said)?;
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(&suite.program)
            .args(["--test-threads=1", "--exact"])
            .args(self.flags)
            .args(&suite.tests)
            .envs(self.environment.iter().copied())
            .current_dir(self.directory)
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said)
            .status()
    }
}

/// Runs all of them, those that are idle beside the others.
fn beside<T: Send>(idle: VecDeque<T>, busy: VecDeque<T>, run: impl Fn(T) + Sync) {
    let run = &run;
    thread::scope(|scope| {
        scope.spawn(|| share(idle, IDLE_AT_A_TIME, run));
        share(busy, AT_A_TIME, run);
    });
}

/// Runs all of them, so many at a time, in this order.
fn share<T: Send>(jobs: VecDeque<T>, at_a_time: usize, run: impl Fn(T) + Sync) {
    let left = Mutex::new(jobs);
    let next = || locked(&left).pop_front();
    thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                while let Some(job) = next() {
                    run(job);
                }
            });
        }
    });
}

/// What is to be seen of a run: who has begun, who has ended, and how.
struct Board {
    all: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: Vec<String>,
    ended: usize,
    failed: Vec<String>,
}

impl Board {
    fn new(all: usize) -> Self {
        let state = Mutex::default();
        Self { all, state }
    }

    fn begins(&self, name: &str) {
        let mut state = locked(&self.state);
        state.running.push(name.to_owned());
        println!("--> {name}");
    }

    /// All that it has said is shown in one piece: nobody else has the board.
    fn ends(&self, name: &str, outcome: &io::Result<ExitStatus>, took: Duration, said: &[u8]) {
        let mut state = locked(&self.state);
        let line = state.ends(name, outcome, took);
        let said = String::from_utf8_lossy(said);
        println!(
            "{said}<-- {line}; {} of {} have ended",
            state.ended, self.all
        );
    }

    fn verdict(self, said: &Path) -> Result<(), Failed> {
        let state = self.state.into_inner();
        let failed = state.unwrap_or_else(PoisonError::into_inner).failed;
        if failed.is_empty() {
            return Ok(());
        }
        Err(Failed(format!(
            "{} of {} suites failed: {}; what they said is above and in {}",
            failed.len(),
            self.all,
            failed.join(", "),
            said.display()
        )))
    }
}

impl State {
    /// One line on how it ended, and beside what.
    fn ends(&mut self, name: &str, outcome: &io::Result<ExitStatus>, took: Duration) -> String {
        self.ended += 1;
        self.running.retain(|it| it != name);
        let how = match outcome {
            Ok(status) if status.success() => "passed".to_owned(),
            Ok(status) => format!("failed ({status})"),
            Err(error) => format!("failed ({error})"),
        };
        if how != "passed" {
            self.failed.push(name.to_owned());
        }
        let seconds = took.as_secs_f64();
        let beside = match self.running.as_slice() {
            [] => String::new(),
            running => format!(", beside {}", running.join(", ")),
        };
        format!("{name}: {how} in {seconds:.1} s{beside}")
    }
}

/// What is behind the locks here is whole even if a thread has panicked.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn exit(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn two_run_at_a_time_and_never_three() {
        // Each ends only beside another.
        let beside = Barrier::new(2);
        let running = AtomicUsize::new(0);
        let most = AtomicUsize::new(0);
        let done = Mutex::new(Vec::new());
        share((0..10).collect(), 2, |job| {
            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            beside.wait();
            running.fetch_sub(1, Ordering::SeqCst);
            locked(&done).push(job);
        });
        assert_eq!(most.into_inner(), 2);
        let mut done = done.into_inner().expect("what was done");
        done.sort_unstable();
        assert_eq!(done, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn an_idle_one_takes_nobodys_place() {
        // All three end only beside each other.
        let all = Barrier::new(AT_A_TIME + IDLE_AT_A_TIME);
        let done = AtomicUsize::new(0);
        beside(VecDeque::from([0]), VecDeque::from([1, 2]), |_| {
            all.wait();
            done.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(done.into_inner(), 3);
    }

    #[test]
    fn one_at_a_time_keeps_the_order() {
        let done = Mutex::new(Vec::new());
        share(VecDeque::from([3, 1, 2]), 1, |job| locked(&done).push(job));
        assert_eq!(done.into_inner().expect("what was done"), [3, 1, 2]);
    }

    #[test]
    fn a_line_says_how_it_ended_and_beside_what() {
        let mut state = State {
            running: ["peers", "replay"].map(str::to_owned).to_vec(),
            ..State::default()
        };
        assert_eq!(
            state.ends("peers", &Ok(exit(0)), SECOND),
            "peers: passed in 1.0 s, beside replay"
        );
        assert_eq!(
            state.ends("replay", &Ok(exit(101)), SECOND),
            "replay: failed (exit status: 101) in 1.0 s"
        );
        assert_eq!(state.ended, 2);
    }

    #[test]
    fn all_that_failed_are_named_at_the_end() {
        let board = Board::new(3);
        let away = Err(io::Error::from(io::ErrorKind::NotFound));
        let ends = [
            ("etcd", Ok(exit(101))),
            ("peers", Ok(exit(0))),
            ("plane", away),
        ];
        for (name, outcome) in ends {
            board.begins(name);
            board.ends(name, &outcome, SECOND, b"");
        }
        let Failed(why) = board.verdict(Path::new("/said")).expect_err("a failure");
        assert_eq!(
            why,
            "2 of 3 suites failed: etcd, plane; what they said is above and in /said"
        );
        assert!(Board::new(3).verdict(Path::new("/said")).is_ok());
    }
}
