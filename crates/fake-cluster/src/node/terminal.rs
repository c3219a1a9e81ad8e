//! A pseudoterminal: the terminal of a process, and its controlling side.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open as open_file};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use skewbridge_remotecommand::TerminalSize;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe;

/// A terminal of a process.
#[derive(Debug)]
pub(super) struct Terminal {
    /// The output of the process.
    pub(super) output: TerminalOutput,
    /// The input of the process.
    pub(super) input: pipe::Sender,
    /// Its size.
    pub(super) window: Window,
    /// The side of the process.
    pub(super) process_side: OwnedFd,
}

/// The size of a terminal.
#[derive(Debug)]
pub(super) struct Window(OwnedFd);

/// The output of a terminal.
#[derive(Debug)]
pub(super) struct TerminalOutput(pipe::Receiver);

impl Terminal {
    /// Opens one.
    pub(super) fn open() -> io::Result<Self> {
        let node_side = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        // Otherwise processes that are started meanwhile would inherit it.
        fcntl_setfd(&node_side, FdFlags::CLOEXEC)?;
        grantpt(&node_side)?;
        unlockpt(&node_side)?;
        let name = ptsname(&node_side, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let process_side = open_file(name.as_c_str(), flags, Mode::empty())?;
        fcntl_setfl(&node_side, fcntl_getfl(&node_side)? | OFlags::NONBLOCK)?;
        // It is read and written like a pipe.
        let file = |fd: &OwnedFd| fd.try_clone().map(File::from);
        Ok(Self {
            output: TerminalOutput(pipe::Receiver::from_file_unchecked(file(&node_side)?)?),
            input: pipe::Sender::from_file_unchecked(file(&node_side)?)?,
            window: Window(node_side),
            process_side,
        })
    }
}

impl Window {
    /// Sets the window size.
    pub(super) fn resize(&self, size: TerminalSize) {
        let size = Winsize {
            ws_row: size.height,
            ws_col: size.width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // An error is ignored: the process has exited.
        let _ = tcsetwinsize(&self.0, size);
    }
}

impl AsyncRead for TerminalOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match ready!(Pin::new(&mut self.0).poll_read(cx, buf)) {
            // Linux: all descriptors of the other side are closed.
            Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
                Poll::Ready(Ok(()))
            }
            read => Poll::Ready(read),
        }
    }
}
