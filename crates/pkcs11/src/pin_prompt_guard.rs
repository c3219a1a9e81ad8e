//! The active PIN prompt, so that a process that exits meanwhile cleans up: it restores the
//! terminal and terminates the askpass program.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

use crate::raw_mode::RawMode;

/// How the user is being prompted.
pub(crate) enum ActivePrompt {
    /// At the terminal, with echo turned off.
    Terminal(RawMode),
    /// By this program. It has not been reaped, so the process ID is still its own.
    Program(Pid),
}

/// At most one prompt is active because there is one session with one token.
static ACTIVE_PROMPT: Mutex<Option<ActivePrompt>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<ActivePrompt>> {
    // No code that can panic runs under this lock.
    ACTIVE_PROMPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The prompt is active until this guard is dropped.
pub(crate) struct PromptGuard(());

/// Registers the active prompt.
pub(crate) fn begin(prompt: ActivePrompt) -> PromptGuard {
    *lock() = Some(prompt);
    PromptGuard(())
}

impl Drop for PromptGuard {
    fn drop(&mut self) {
        match lock().take() {
            Some(ActivePrompt::Terminal(raw_mode)) => raw_mode.restore(),
            Some(ActivePrompt::Program(_)) | None => {}
        }
    }
}

/// Cancels an active PIN prompt: restores the terminal and terminates the askpass program.
/// For a process that is about to exit while another of its threads prompts; without a
/// prompt nothing happens.
pub fn cancel_pin_prompt() {
    match lock().take() {
        Some(ActivePrompt::Terminal(raw_mode)) => raw_mode.restore_if_unchanged(),
        Some(ActivePrompt::Program(pid)) => {
            let _ = kill_process(pid, Signal::TERM);
        }
        None => {}
    }
}
