//! Local connections that are forwarded to ports of a pod.

use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{TcpStream, UnixStream};

/// How a local program sees the end of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseMode {
    /// As end-of-file.
    Graceful,
    /// As an error: data may be missing. Data that the program has not read yet is discarded.
    Reset,
}

/// A local connection.
pub trait LocalStream: AsyncRead + AsyncWrite + Send + Unpin {
    /// Sets how the connection closes from now on, even if our process is killed.
    fn set_close_mode(&self, mode: CloseMode);
}

impl LocalStream for TcpStream {
    fn set_close_mode(&self, mode: CloseMode) {
        let linger = match mode {
            CloseMode::Graceful => None,
            CloseMode::Reset => Some(std::time::Duration::ZERO),
        };
        // A socket that rejects the option has been closed already.
        let _ = set_socket_linger(self, linger);
    }
}

/// Unix sockets have no reset.
impl LocalStream for UnixStream {
    fn set_close_mode(&self, _: CloseMode) {}
}

/// In-memory streams have no reset.
impl LocalStream for DuplexStream {
    fn set_close_mode(&self, _: CloseMode) {}
}

impl<T: LocalStream + ?Sized> LocalStream for Box<T> {
    fn set_close_mode(&self, mode: CloseMode) {
        (**self).set_close_mode(mode);
    }
}
