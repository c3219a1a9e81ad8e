//! Keys of a playground that runs on a terminal: a digit selects a server, a letter an action.

use std::io::{IsTerminal as _, Read as _, stdin, stdout};

use rustix::process::getpgrp;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use tokio::sync::mpsc;

use super::commands::ServerAction;

/// Key presses that wait to be handled.
const KEY_QUEUE_LENGTH: usize = 16;

/// The meaning of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Choose(usize),
    Do(ServerAction),
    Help,
    Quit,
}

impl Key {
    fn of(byte: u8) -> Option<Self> {
        Some(match byte.to_ascii_lowercase() {
            digit @ b'1'..=b'3' => Self::Choose(usize::from(digit - b'1')),
            b'k' => Self::Do(ServerAction::Kill),
            b's' => Self::Do(ServerAction::Toggle),
            b'u' => Self::Do(ServerAction::Upgrade),
            b'd' => Self::Do(ServerAction::Downgrade),
            b'h' | b'?' => Self::Help,
            b'q' => Self::Quit,
            _ => return None,
        })
    }
}

/// The terminal without line mode and echo. Dropping this restores it.
pub(super) struct Keys {
    before: Termios,
    pub(super) pressed: mpsc::Receiver<Key>,
}

impl Keys {
    /// Reads keys, if stdin is a terminal and this process is in the foreground.
    pub(super) fn listen() -> Option<Self> {
        if !stdin().is_terminal() || !stdout().is_terminal() {
            return None;
        }
        // A background process would be stopped by SIGTTOU.
        if tcgetpgrp(stdin()).ok()? != getpgrp() {
            return None;
        }
        let before = tcgetattr(stdin()).ok()?;
        let mut modes = before.clone();
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        tcsetattr(stdin(), OptionalActions::Now, &modes).ok()?;
        let (run_key_action, pressed) = mpsc::channel(KEY_QUEUE_LENGTH);
        // The blocking read cannot be interrupted; the thread ends with the program.
        let thread = std::thread::Builder::new().name("keys".to_owned());
        let started = thread.spawn(move || {
            let mut bytes = stdin().lock().bytes();
            while let Some(Ok(byte)) = bytes.next() {
                if let Some(key) = Key::of(byte)
                    && run_key_action.blocking_send(key).is_err()
                {
                    return;
                }
            }
        });
        let keys = Self { before, pressed };
        started.ok().map(|_| keys)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_match_the_help() {
        let rows = [
            (b'1', Some(Key::Choose(0))),
            (b'3', Some(Key::Choose(2))),
            (b'4', None),
            (b'K', Some(Key::Do(ServerAction::Kill))),
            (b's', Some(Key::Do(ServerAction::Toggle))),
            (b'q', Some(Key::Quit)),
            (b'\n', None),
        ];
        for (byte, key) in rows {
            assert_eq!(Key::of(byte), key, "{}", char::from(byte));
        }
    }
}
