//! The terminal mode of a PIN prompt.

use std::fs::File;
use std::io;

use rustix::process::{getpgrp, setsid};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

/// The terminal without echo, line editing and signals, until it is restored.
pub(crate) struct RawMode {
    tty: File,
    saved: Termios,
    applied: Termios,
}

impl RawMode {
    pub(crate) fn enter(tty: &File) -> io::Result<Self> {
        let tty = tty.try_clone()?;
        let saved = tcgetattr(&tty)?;
        let mut applied = saved.clone();
        applied
            .local_modes
            .remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        tcsetattr(&tty, OptionalActions::Flush, &applied)?;
        Ok(Self {
            tty,
            saved,
            applied,
        })
    }

    /// Restores the previous mode.
    pub(crate) fn restore(&self) {
        let _ = tcsetattr(&self.tty, OptionalActions::Now, &self.saved);
    }

    /// The same, for a process that is about to exit and may have lost the terminal to the
    /// shell already: a mode that another process has set since is kept.
    pub(crate) fn restore_if_unchanged(&self) {
        let is_unchanged = |now: Termios| now.local_modes == self.applied.local_modes;
        if !tcgetattr(&self.tty).is_ok_and(is_unchanged) {
            return;
        }
        // The kernel would stop a background process for changing the mode of its
        // controlling terminal; after setsid the process has none.
        let is_detached = setsid().is_ok();
        if is_detached || tcgetpgrp(&self.tty).is_ok_and(|group| group == getpgrp()) {
            self.restore();
        }
    }
}
