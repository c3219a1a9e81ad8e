//! The connections of this machine that are carried to ports of a pod.

use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{TcpStream, UnixStream};

/// How the program at the other end sees that a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// As an end: there is no more.
    Cleanly,
    /// As an error: there may have been more. What it has not taken yet is thrown away.
    ByReset,
}

/// A connection of this machine.
pub trait Local: AsyncRead + AsyncWrite + Send + Unpin {
    /// From now on it closes so, whoever closes it: a process that is killed, too.
    fn closes(&self, how: Closing);
}

impl Local for TcpStream {
    fn closes(&self, how: Closing) {
        let linger = match how {
            Closing::Cleanly => None,
            Closing::ByReset => Some(std::time::Duration::ZERO),
        };
        // A socket that refuses the option is one that has been closed.
        let _ = set_socket_linger(self, linger);
    }
}

/// Sockets in the file system know no reset.
impl Local for UnixStream {
    fn closes(&self, _: Closing) {}
}

/// Nor do those in memory.
impl Local for DuplexStream {
    fn closes(&self, _: Closing) {}
}

impl<T: Local + ?Sized> Local for Box<T> {
    fn closes(&self, how: Closing) {
        (**self).closes(how);
    }
}
