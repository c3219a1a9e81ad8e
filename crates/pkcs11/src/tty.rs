//! Asking the user at the terminal, without showing what is typed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};

use rustix::process::{getpgrp, setsid};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use zeroize::Zeroizing;

use crate::under_way::{self, UnderWay};

/// More than any PIN.
const MAX_LENGTH: usize = 256;

const BACKSPACE: [u8; 2] = [0x08, 0x7f];
const CANCEL: [u8; 2] = [0x03, 0x04];
const KILL_LINE: u8 = 0x15;

/// Asks at the terminal of this process, whatever its standard input is.
pub(crate) fn ask(question: &str) -> io::Result<Zeroizing<String>> {
    let tty = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    // In the background we would be stopped for it, and the client would wait.
    if tcgetpgrp(&tty)? != getpgrp() {
        return Err(io::Error::other("this process is in its background"));
    }
    let quiet = under_way::begin(UnderWay::Terminal(Quiet::enter(&tty)?));
    (&tty).write_all(question.as_bytes())?;
    let answer = read(&tty);
    drop(quiet);
    (&tty).write_all(b"\n")?;
    answer
}

/// Key by key, so that an interrupt restores the terminal.
fn read(mut tty: &File) -> io::Result<Zeroizing<String>> {
    // Room for all of it: a buffer that grows leaves copies behind.
    let mut typed = Zeroizing::new(Vec::with_capacity(MAX_LENGTH));
    let mut key = Zeroizing::new([0]);
    loop {
        if tty.read(&mut *key)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match key[0] {
            b'\r' | b'\n' => break,
            byte if CANCEL.contains(&byte) => return Err(io::ErrorKind::Interrupted.into()),
            byte if BACKSPACE.contains(&byte) => {
                typed.pop();
            }
            KILL_LINE => typed.clear(),
            _ if typed.len() == MAX_LENGTH => return Err(io::Error::other("that is too long")),
            byte => typed.push(byte),
        }
    }
    let text = std::str::from_utf8(&typed).map_err(|_| io::Error::other("that is not text"))?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// The terminal says nothing, and passes keys on as they come, until it is told
/// otherwise.
pub(crate) struct Quiet {
    tty: File,
    before: Termios,
    during: Termios,
}

impl Quiet {
    fn enter(tty: &File) -> io::Result<Self> {
        let tty = tty.try_clone()?;
        let before = tcgetattr(&tty)?;
        let mut during = before.clone();
        during
            .local_modes
            .remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        tcsetattr(&tty, OptionalActions::Flush, &during)?;
        Ok(Self {
            tty,
            before,
            during,
        })
    }

    /// As it was.
    pub(crate) fn leave(&self) {
        let _ = tcsetattr(&self.tty, OptionalActions::Now, &self.before);
    }

    /// The same, for a process that is about to end and may have lost the terminal to
    /// the shell already: what somebody else has set since stays.
    pub(crate) fn abandon(&self) {
        let is_ours = |now: Termios| now.local_modes == self.during.local_modes;
        if !tcgetattr(&self.tty).is_ok_and(is_ours) {
            return;
        }
        // Of a process in the background the kernel would ask to stop for it, unless the
        // terminal is not that of its session.
        let is_free = setsid().is_ok();
        if is_free || tcgetpgrp(&self.tty).is_ok_and(|group| group == getpgrp()) {
            self.leave();
        }
    }
}
