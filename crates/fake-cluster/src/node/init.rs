//! The first process of a container or of an exec, like pid 1: it starts the command, adopts
//! orphans, and ends all of them with the command or with the playground.
//!
//! A process can leave its group, its session and its parents, but not its subreaper
//! (`PR_SET_CHILD_SUBREAPER`). When the playground is killed, this process gets a signal
//! (`PR_SET_PDEATHSIG`) that it can handle; `SIGKILL` would not reach the other processes.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group, wait,
};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::{Instant, timeout};

use super::process_start::{PARENT, exit_with_parent, report_failure};
use super::process_tree::descendants;

/// The signal to end all processes at once. Before the handler is installed, it ends this
/// process, which has no children yet.
pub(super) const END_SIGNAL: Signal = Signal::USR1;

/// Time for killed processes to exit: a process that waits for a disk, or that belongs to another
/// user, may stay.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between kills: processes may have forked meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The exit code that shells report for SIGKILL.
const EXIT_KILLED: u8 = 128 + 9;

/// Runs a command line to its end.
pub(super) fn run(words: &[OsString]) -> ExitCode {
    match supervise(words) {
        Ok(code) => ExitCode::from(code),
        Err(error) => report_failure(error),
    }
}

fn supervise(words: &[OsString]) -> io::Result<u8> {
    let (file, words) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // Done before the command, which needs cleanup, is started.
        let mut end = signal(SignalKind::user_defined1())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut child_exits = signal(SignalKind::child())?;
        adopt_orphans()?;
        exit_with_parent(END_SIGNAL);
        let mut command = Command::new(file);
        command
            .args(words)
            .env(PARENT, std::process::id().to_string());
        let child = command.spawn()?;
        // Inherited pipes are closed here, so that they end when the command has closed them.
        redirect_streams_to_null()?;
        let leader = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let mut processes = ProcessGroup {
            leader: leader.ok_or(io::ErrorKind::Other)?,
            code: None,
        };
        while processes.code.is_none() {
            tokio::select! {
                _ = end.recv() => break,
                _ = terminate.recv() => processes.signal(Signal::TERM),
                _ = child_exits.recv() => drop(processes.reap()),
            }
        }
        processes.end(&mut child_exits).await;
        Ok(processes.code.unwrap_or(EXIT_KILLED))
    })
}

/// All processes below this one.
struct ProcessGroup {
    leader: Pid,
    /// The exit code of the leader.
    code: Option<u8>,
}

/// Whether processes are left.
#[derive(PartialEq, Eq)]
enum ProcessesLeft {
    Some,
    None,
}

impl ProcessGroup {
    /// Sends a signal to the command and its group.
    fn signal(&self, signal: Signal) {
        if self.code.is_none() {
            // A new process may not lead a group yet.
            if kill_process_group(self.leader, signal).is_err() {
                let _ = kill_process(self.leader, signal);
            }
        }
    }

    /// Waits for processes that have exited.
    fn reap(&mut self) -> ProcessesLeft {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((id, status))) => {
                    if id == self.leader {
                        self.code = Some(code(status));
                    }
                }
                Ok(None) => return ProcessesLeft::Some,
                // There are no children.
                Err(_) => return ProcessesLeft::None,
            }
        }
    }

    /// Kills all processes, until none is left.
    async fn end(&mut self, child_exits: &mut Signals) {
        let deadline = Instant::now() + KILL_TIMEOUT;
        loop {
            self.signal(Signal::KILL);
            for id in descendants([getpid()]) {
                let _ = kill_process(id, Signal::KILL);
            }
            if self.reap() == ProcessesLeft::None || Instant::now() > deadline {
                return;
            }
            let _ = timeout(POLL_INTERVAL, child_exits.recv()).await;
        }
    }
}

fn code(status: WaitStatus) -> u8 {
    let signal = status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or(signal);
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(255)
}

fn redirect_streams_to_null() -> io::Result<()> {
    use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&nothing)?;
    dup2_stdout(&nothing)?;
    dup2_stderr(&nothing)?;
    Ok(())
}

/// On other systems only the group of the command is known.
fn adopt_orphans() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(getpid()))?;
    Ok(())
}
