//! Raw mode, window sizes and signals of the terminal.

use std::io;
use std::os::fd::AsFd;

use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use skewbridge_client::remote_command::TerminalSize;
use skewbridge_exec_proxy::{IgnoredSignals, SignalStream};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Whether standard input is a terminal.
pub(crate) fn is_terminal() -> bool {
    isatty(stdin())
}

/// The size of the terminal, if there is one.
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

/// A terminal in raw mode. Dropping this restores it, also on a terminating signal ([`Signals`])
/// and on a panic.
#[derive(Debug)]
pub(crate) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// For standard input. Signals are caught first: one that arrived in between would leave the
    /// terminal in raw mode.
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
        // Without draining: a stopped terminal must not block the exit.
        let _ = tcsetattr(stdin().as_fd(), OptionalActions::Now, &self.before);
    }
}

/// Terminating signals, and the signal of a changed window size.
#[derive(Debug)]
pub(crate) struct Signals {
    ends: TermSignals,
    window: Signal,
}

impl Signals {
    /// Catches the signals: from now on, they do not end the program.
    fn listen() -> io::Result<Self> {
        Ok(Self {
            ends: TermSignals::listen()?,
            window: signal(SignalKind::window_change())?,
        })
    }

    /// Waits for a new window size, or for a terminating signal, which returns the exit code of
    /// shells.
    pub(crate) async fn end_or_resize(&mut self) -> Result<(), u8> {
        tokio::select! {
            _ = self.window.recv() => Ok(()),
            code = self.ends.recv() => Err(code),
        }
    }
}

/// Terminating signals. Those that were ignored at the start, as by `nohup`, stay ignored.
#[derive(Debug)]
pub(crate) struct TermSignals([(SignalStream, u8); 4]);

/// The exit code that shells report after Ctrl-C.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

impl TermSignals {
    /// Catches the signals: from now on, they do not end the program.
    pub(crate) fn listen() -> io::Result<Self> {
        Self::listen_unless(IgnoredSignals::current())
    }

    /// The same, but SIGINT ends the program even if it was ignored at the start: a shell
    /// without job control ignores it in background jobs, which are ended by `kill -INT`.
    pub(crate) fn listen_in_background() -> io::Result<Self> {
        Self::listen_unless(IgnoredSignals::current().without(SignalKind::interrupt()))
    }

    fn listen_unless(ignored: IgnoredSignals) -> io::Result<Self> {
        let listen = |kind: SignalKind| -> io::Result<(SignalStream, u8)> {
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

    /// Waits for a signal; returns the exit code of shells for it.
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
