//! What each process of a pod does at its start: it exits with its parent, and reports why it cannot
//! run a command.

use std::io::{self, Write as _};
use std::process::ExitCode;

use rustix::process::Signal;

/// Environment variable with the id of the parent. It is removed before the command starts.
pub(super) const PARENT: &str = "SKEWBRIDGE_PARENT";

/// The exit code of shells for a command that cannot be run.
const EXIT_CANNOT_RUN: u8 = 126;

/// Sets the signal that this process gets when its parent exits, so that a killed playground
/// leaves no processes behind.
pub(super) fn exit_with_parent(signal: Signal) {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Pid, getppid, set_parent_process_death_signal};
        let _ = set_parent_process_death_signal(Some(signal));
        let parent = std::env::var(PARENT).ok().and_then(|id| id.parse().ok());
        // The parent may have exited already.
        if getppid() != parent.and_then(Pid::from_raw) {
            std::process::exit(i32::from(EXIT_CANNOT_RUN));
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = signal;
}

pub(super) fn report_failure(what: impl std::fmt::Display) -> ExitCode {
    // Write errors are ignored. The exit code still shows the failure.
    let _ = writeln!(io::stderr(), "{what}");
    ExitCode::from(EXIT_CANNOT_RUN)
}
