//! Asking the user at the terminal, without showing what is typed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};

use rustix::process::getpgrp;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use zeroize::Zeroizing;

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
    let quiet = Quiet::enter(&tty)?;
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

/// The terminal says nothing, and passes keys on as they come.
struct Quiet<'a> {
    tty: &'a File,
    before: Termios,
}

impl<'a> Quiet<'a> {
    fn enter(tty: &'a File) -> io::Result<Self> {
        let before = tcgetattr(tty)?;
        let mut quiet = before.clone();
        quiet
            .local_modes
            .remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        tcsetattr(tty, OptionalActions::Flush, &quiet)?;
        Ok(Self { tty, before })
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.tty, OptionalActions::Now, &self.before);
    }
}
