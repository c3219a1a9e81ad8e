//! Saves the user's terminal settings while a plugin may use the terminal.

use std::io::stdin;

use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

/// Restores the terminal settings on drop, however the plugin ends: it may be killed in the
/// middle of a prompt.
pub(super) struct TerminalGuard {
    saved: Option<Termios>,
}

impl TerminalGuard {
    /// Saves the settings of our standard input.
    pub(super) fn save() -> Self {
        Self {
            saved: tcgetattr(stdin()).ok(),
        }
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        let Some(saved) = &self.saved else { return };
        let is_changed = |now: Termios| {
            now.local_modes != saved.local_modes
                || now.input_modes != saved.input_modes
                || now.output_modes != saved.output_modes
                || now.control_modes != saved.control_modes
        };
        // In the background the terminal belongs to another process group, and changing it
        // would stop us.
        let is_ours = tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp());
        if is_ours && tcgetattr(stdin()).is_ok_and(is_changed) {
            let _ = tcsetattr(stdin(), OptionalActions::Now, saved);
        }
    }
}
