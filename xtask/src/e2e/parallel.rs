//! Runs test suites in parallel: two at a time, since they wait most of the time, and beside
//! them one of those that wait nearly all of their time.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use super::suites::Suite;
use crate::step::{StepError, failed};

/// A starting server keeps a core busy, and the test command is made for two cores.
const MAX_PARALLEL_SUITES: usize = 2;

/// Several idle suites together would not be idle.
const MAX_PARALLEL_IDLE_SUITES: usize = 1;

/// The settings with which each suite runs.
pub(super) struct SuiteRunner<'a> {
    /// Flags of the test program.
    pub(super) flags: &'a [&'a str],
    pub(super) environment: &'a [(&'a str, &'a OsStr)],
    /// The working directory.
    pub(super) directory: &'a Path,
    /// The directory for the output of each suite.
    pub(super) logs: &'a Path,
}

impl SuiteRunner<'_> {
    /// Runs all suites to their end; then fails if one has failed.
    pub(super) fn all(&self, suites: VecDeque<Suite>) -> Result<(), StepError> {
        fs::create_dir_all(self.logs).map_err(failed("the directory for the output of tests"))?;
        let progress = Progress::new(suites.len());
        let run = |suite: Suite| self.run_suite(&suite, &progress);
        let (idle, busy) = suites.into_iter().partition(Suite::is_idle);
        run_idle_beside_busy(idle, busy, run);
        progress.result(self.logs)
    }

    fn run_suite(&self, suite: &Suite, progress: &Progress) {
        let output = self.logs.join(format!("{}.log", suite.name));
        progress.started(&suite.name);
        let start = Instant::now();
        let outcome = self.run_process(suite, &output);
        let elapsed = start.elapsed();
        let output = fs::read(output).unwrap_or_default();
        progress.finished(&suite.name, &outcome, elapsed, &output);
    }

    /// The output goes to a file, so that it does not mix with that of another suite. The
    /// kernel kills the process if this thread ends first, for example by a signal.
    fn run_process(&self, suite: &Suite, output: &Path) -> io::Result<ExitStatus> {
        let output = File::create(output)?;
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(&suite.program)
            .args(["--test-threads=1", "--exact"])
            .args(self.flags)
            .args(&suite.tests)
            .envs(self.environment.iter().copied())
            .current_dir(self.directory)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .status()
    }
}

/// Runs all jobs, the idle ones beside the busy ones.
fn run_idle_beside_busy<T: Send>(idle: VecDeque<T>, busy: VecDeque<T>, run: impl Fn(T) + Sync) {
    let run = &run;
    thread::scope(|scope| {
        scope.spawn(|| run_parallel(idle, MAX_PARALLEL_IDLE_SUITES, run));
        run_parallel(busy, MAX_PARALLEL_SUITES, run);
    });
}

/// Runs all jobs in this order, `limit` at a time.
fn run_parallel<T: Send>(jobs: VecDeque<T>, limit: usize, run: impl Fn(T) + Sync) {
    let left = Mutex::new(jobs);
    let next = || locked(&left).pop_front();
    thread::scope(|scope| {
        for _ in 0..limit {
            scope.spawn(|| {
                while let Some(job) = next() {
                    run(job);
                }
            });
        }
    });
}

/// Prints which suites have started and finished.
struct Progress {
    all: usize,
    state: Mutex<ProgressState>,
}

#[derive(Default)]
struct ProgressState {
    running: Vec<String>,
    finished_suites: usize,
    failed: Vec<String>,
}

impl Progress {
    fn new(all: usize) -> Self {
        let state = Mutex::default();
        Self { all, state }
    }

    fn started(&self, name: &str) {
        let mut state = locked(&self.state);
        state.running.push(name.to_owned());
        println!("--> {name}");
    }

    /// The output is printed in one piece, under the lock.
    fn finished(
        &self,
        name: &str,
        outcome: &io::Result<ExitStatus>,
        elapsed: Duration,
        output: &[u8],
    ) {
        let mut state = locked(&self.state);
        let line = state.finished(name, outcome, elapsed);
        let output = String::from_utf8_lossy(output);
        println!(
            "{output}<-- {line}; {} of {} have finished",
            state.finished_suites, self.all
        );
    }

    fn result(self, output: &Path) -> Result<(), StepError> {
        let state = self.state.into_inner();
        let failed = state.unwrap_or_else(PoisonError::into_inner).failed;
        if failed.is_empty() {
            return Ok(());
        }
        Err(StepError(format!(
            "{} of {} suites failed: {}; their output is above and in {}",
            failed.len(),
            self.all,
            failed.join(", "),
            output.display()
        )))
    }
}

impl ProgressState {
    /// One line with the outcome and the suites that still run.
    fn finished(
        &mut self,
        name: &str,
        outcome: &io::Result<ExitStatus>,
        elapsed: Duration,
    ) -> String {
        self.finished_suites += 1;
        self.running.retain(|it| it != name);
        let how = match outcome {
            Ok(status) if status.success() => "passed".to_owned(),
            Ok(status) => format!("failed ({status})"),
            Err(error) => format!("failed ({error})"),
        };
        if how != "passed" {
            self.failed.push(name.to_owned());
        }
        let seconds = elapsed.as_secs_f64();
        let beside = match self.running.as_slice() {
            [] => String::new(),
            running => format!(", beside {}", running.join(", ")),
        };
        format!("{name}: {how} in {seconds:.1} s{beside}")
    }
}

/// The data behind these locks is consistent even if a thread has panicked.
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
    fn two_jobs_run_at_a_time_and_never_three() {
        // A job ends only while another one runs.
        let beside = Barrier::new(2);
        let running = AtomicUsize::new(0);
        let most = AtomicUsize::new(0);
        let done = Mutex::new(Vec::new());
        run_parallel((0..10).collect(), 2, |job| {
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
    fn an_idle_job_does_not_count_against_the_limit() {
        // The jobs end only when all three run.
        let all = Barrier::new(MAX_PARALLEL_SUITES + MAX_PARALLEL_IDLE_SUITES);
        let done = AtomicUsize::new(0);
        run_idle_beside_busy(VecDeque::from([0]), VecDeque::from([1, 2]), |_| {
            all.wait();
            done.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(done.into_inner(), 3);
    }

    #[test]
    fn one_job_at_a_time_keeps_the_order() {
        let done = Mutex::new(Vec::new());
        run_parallel(VecDeque::from([3, 1, 2]), 1, |job| locked(&done).push(job));
        assert_eq!(done.into_inner().expect("what was done"), [3, 1, 2]);
    }

    #[test]
    fn the_line_has_the_outcome_and_the_running_suites() {
        let mut state = ProgressState {
            running: ["peers", "replay"].map(str::to_owned).to_vec(),
            ..ProgressState::default()
        };
        assert_eq!(
            state.finished("peers", &Ok(exit(0)), SECOND),
            "peers: passed in 1.0 s, beside replay"
        );
        assert_eq!(
            state.finished("replay", &Ok(exit(101)), SECOND),
            "replay: failed (exit status: 101) in 1.0 s"
        );
        assert_eq!(state.finished_suites, 2);
    }

    #[test]
    fn all_failed_suites_are_named_at_the_end() {
        let progress = Progress::new(3);
        let away = Err(io::Error::from(io::ErrorKind::NotFound));
        let finished = [
            ("etcd", Ok(exit(101))),
            ("peers", Ok(exit(0))),
            ("plane", away),
        ];
        for (name, outcome) in finished {
            progress.started(name);
            progress.finished(name, &outcome, SECOND, b"");
        }
        let StepError(why) = progress.result(Path::new("/logs")).expect_err("a failure");
        assert_eq!(
            why,
            "2 of 3 suites failed: etcd, plane; their output is above and in /logs"
        );
        assert!(Progress::new(3).result(Path::new("/logs")).is_ok());
    }
}
