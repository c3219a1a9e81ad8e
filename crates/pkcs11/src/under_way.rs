//! The question for a PIN that is being asked, so that a process which ends meanwhile
//! leaves nothing of it: no terminal that is silent, no program that waits.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

use crate::tty::Quiet;

/// How somebody is being asked.
pub(crate) enum UnderWay {
    /// At the terminal, which shows nothing.
    Terminal(Quiet),
    /// By this program. It has not been waited for, so the number is its own.
    Program(Pid),
}

/// One at a time: there is one session with one token.
static UNDER_WAY: Mutex<Option<UnderWay>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<UnderWay>> {
    // Nothing that panics is done under this lock.
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Somebody is being asked while this lives.
pub(crate) struct Asking(());

/// Begins to ask.
pub(crate) fn begin(what: UnderWay) -> Asking {
    *lock() = Some(what);
    Asking(())
}

impl Drop for Asking {
    fn drop(&mut self) {
        match lock().take() {
            Some(UnderWay::Terminal(quiet)) => quiet.leave(),
            Some(UnderWay::Program(_)) | None => {}
        }
    }
}

/// Leaves a question that is under way: the terminal is as it was before, and a program
/// that asks is ended. For a process that is about to end while another of its threads
/// asks; without a question nothing happens.
pub fn give_up() {
    match lock().take() {
        Some(UnderWay::Terminal(quiet)) => quiet.abandon(),
        Some(UnderWay::Program(pid)) => {
            let _ = kill_process(pid, Signal::TERM);
        }
        None => {}
    }
}
