//! The user's terminal while a plugin may ask at it.

use std::io::stdin;

use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

/// A terminal that is lent to a plugin. However that ends, by us perhaps in the midst of a
/// question, the terminal is as before when this is dropped.
pub(super) struct TerminalGuard {
    saved: Option<Termios>,
}

impl TerminalGuard {
    /// Lends that of our standard input.
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
        // In the background it is somebody else's, and we would be stopped for it.
        let is_ours = tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp());
        if is_ours && tcgetattr(stdin()).is_ok_and(is_changed) {
            let _ = tcsetattr(stdin(), OptionalActions::Now, saved);
        }
    }
}
