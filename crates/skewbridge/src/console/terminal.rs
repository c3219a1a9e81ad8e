//! Raw mode, and what happens to a terminal.

use std::io;
use std::os::fd::AsFd;

use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use skewbridge_client::streams::TerminalSize;
use skewbridge_harness::{Heard, IgnoredSignals};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Whether standard input is a terminal.
pub(crate) fn is_terminal() -> bool {
    isatty(stdin())
}

/// How large the terminal is, if there is one.
pub(crate) fn size() -> Option<TerminalSize> {
    let sized = [stdout(), stdin(), stderr()].into_iter().find_map(|fd| {
        let size = tcgetwinsize(fd).ok()?;
        (size.ws_col > 0 && size.ws_row > 0).then_some(size)
    })?;
    Some(TerminalSize {
        width: sized.ws_col,
        height: sized.ws_row,
    })
}

/// A terminal that passes every key on. When this is dropped, it is as it was before:
/// also when we are told to end ([`Signals`]), and when something panics.
#[derive(Debug)]
pub(crate) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// Of standard input. Signals are listened to before: one that came in between would
    /// leave the terminal as nobody wants it.
    pub(crate) fn enter() -> io::Result<(Self, Signals)> {
        let signals = Signals::listen()?;
        let before = tcgetattr(stdin().as_fd())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin().as_fd(), OptionalActions::Now, &raw)?;
        Ok((Self { before }, signals))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // At once: a terminal that takes nothing must not keep us.
        let _ = tcsetattr(stdin().as_fd(), OptionalActions::Now, &self.before);
    }
}

/// Signals that end a program, and that of a window that has changed.
#[derive(Debug)]
pub(crate) struct Signals {
    ends: TermSignals,
    window: Signal,
}

impl Signals {
    /// From here on they do not end the program by themselves.
    fn listen() -> io::Result<Self> {
        Ok(Self {
            ends: TermSignals::listen()?,
            window: signal(SignalKind::window_change())?,
        })
    }

    /// Waits for another size of the window, or for the end: that with the exit code of
    /// shells for it.
    pub(crate) async fn end_or_resize(&mut self) -> Result<(), u8> {
        tokio::select! {
            _ = self.window.recv() => Ok(()),
            code = self.ends.recv() => Err(code),
        }
    }
}

/// Signals that end a program. Those that whoever started us wants to be ignored, as
/// `nohup` does, are.
#[derive(Debug)]
pub(crate) struct TermSignals([(Heard, u8); 4]);

/// What a shell makes of a program that was ended by ctrl-c.
pub(crate) const INTERRUPTED: u8 = 130;

impl TermSignals {
    /// From here on they do not end the program by themselves.
    pub(crate) fn listen() -> io::Result<Self> {
        Self::listen_unless(IgnoredSignals::now())
    }

    /// The same, but SIGINT ends the program even if it was ignored at the start: a shell
    /// without job control starts background jobs so, and they are ended by `kill -INT`.
    pub(crate) fn listen_in_background() -> io::Result<Self> {
        Self::listen_unless(IgnoredSignals::now().without(SignalKind::interrupt()))
    }

    fn listen_unless(ignored: IgnoredSignals) -> io::Result<Self> {
        let listen = |kind: SignalKind| -> io::Result<(Heard, u8)> {
            let number = u8::try_from(kind.as_raw_value()).unwrap_or(0);
            Ok((ignored.listen(kind)?, 128 + number))
        };
        Ok(Self([
            listen(SignalKind::interrupt())?,
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
            listen(SignalKind::quit())?,
        ]))
    }

    /// Waits for one; gives the exit code of shells for it.
    pub(crate) async fn recv(&mut self) -> u8 {
        let [(a, one), (b, two), (c, three), (d, four)] = &mut self.0;
        tokio::select! {
            () = a.recv() => *one,
            () = b.recv() => *two,
            () = c.recv() => *three,
            () = d.recv() => *four,
        }
    }
}
