//! The connections of this machine that are carried to ports of a pod.

use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{TcpStream, UnixStream};

/// How the program at the other end sees that a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseMode {
    /// As an end: there is no more.
    Graceful,
    /// As an error: there may have been more. What it has not taken yet is thrown away.
    Reset,
}

/// A connection of this machine.
pub trait LocalStream: AsyncRead + AsyncWrite + Send + Unpin {
    /// From now on it closes so, whoever closes it: a process that is killed, too.
    fn set_close_mode(&self, mode: CloseMode);
}

impl LocalStream for TcpStream {
    fn set_close_mode(&self, mode: CloseMode) {
        let linger = match mode {
            CloseMode::Graceful => None,
            CloseMode::Reset => Some(std::time::Duration::ZERO),
        };
        // A socket that refuses the option is one that has been closed.
        let _ = set_socket_linger(self, linger);
    }
}

/// Sockets in the file system know no reset.
impl LocalStream for UnixStream {
    fn set_close_mode(&self, _: CloseMode) {}
}

/// Nor do those in memory.
impl LocalStream for DuplexStream {
    fn set_close_mode(&self, _: CloseMode) {}
}

impl<T: LocalStream + ?Sized> LocalStream for Box<T> {
    fn set_close_mode(&self, mode: CloseMode) {
        (**self).set_close_mode(mode);
    }
}
