//! Prompts the user at the terminal, without echo.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};

use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use zeroize::Zeroizing;

use crate::pin_prompt_guard::{self, ActivePrompt};
use crate::raw_mode::RawMode;

/// More bytes than any PIN has.
const MAX_PIN_BYTES: usize = 256;

const BACKSPACE: [u8; 2] = [0x08, 0x7f];
const CANCEL: [u8; 2] = [0x03, 0x04];
const KILL_LINE: u8 = 0x15;

/// Prompts at the controlling terminal of this process, independent of its standard input.
pub(crate) fn prompt(text: &str) -> io::Result<Zeroizing<String>> {
    let tty = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    // A background process would be stopped by the kernel, and the client would wait.
    if tcgetpgrp(&tty)? != getpgrp() {
        return Err(io::Error::other("this process is in the background"));
    }
    let guard = pin_prompt_guard::begin(ActivePrompt::Terminal(RawMode::enter(&tty)?));
    (&tty).write_all(text.as_bytes())?;
    let input = read_line(&tty);
    drop(guard);
    (&tty).write_all(b"\n")?;
    input
}

/// Reads key by key, so that an interrupt restores the terminal.
fn read_line(mut tty: &File) -> io::Result<Zeroizing<String>> {
    // The full capacity at once: a buffer that grows leaves copies behind.
    let mut typed = Zeroizing::new(Vec::with_capacity(MAX_PIN_BYTES));
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
            _ if typed.len() == MAX_PIN_BYTES => {
                return Err(io::Error::other("the input is too long"));
            }
            byte => typed.push(byte),
        }
    }
    let text =
        std::str::from_utf8(&typed).map_err(|_| io::Error::other("the input is not UTF-8"))?;
    Ok(Zeroizing::new(text.to_owned()))
}
