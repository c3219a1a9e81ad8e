//! The port of a server, reserved while the playground runs, whether the server listens or not.

use std::io;
use std::net::{SocketAddr, TcpListener};

use tokio::net::TcpSocket;

/// The accept backlog: tokio's default.
const BACKLOG: u32 = 1024;

/// A port that other programs cannot bind.
#[derive(Debug)]
pub(super) struct ReservedPort {
    address: SocketAddr,
    /// Never listens. Without `SO_REUSEADDR`, no socket of another program can be bound to the
    /// same address; `SO_REUSEPORT` allows the listener of this process.
    _held: TcpSocket,
}

impl ReservedPort {
    /// Reserves a port; a free one if it is 0.
    pub(super) fn take(address: SocketAddr) -> io::Result<Self> {
        if address.port() != 0 {
            // With `SO_REUSEPORT` alone, another playground could share the port: a socket
            // without it is refused there.
            drop(TcpListener::bind(address)?);
        }
        let held = TcpSocket::new_v4()?;
        held.set_reuseport(true)?;
        held.bind(address)?;
        Ok(Self {
            address: held.local_addr()?,
            _held: held,
        })
    }

    /// Its address.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens. Must be called within a runtime, and by one server at a time.
    pub(super) fn listen(&self) -> io::Result<TcpListener> {
        let socket = TcpSocket::new_v4()?;
        // Connections of the previous server may still be closing.
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(true)?;
        socket.bind(self.address)?;
        socket.listen(BACKLOG)?.into_std()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_port_stays_reserved_without_a_listener() {
        let port = ReservedPort::take((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let others = || {
            let taken = [
                TcpListener::bind(port.address()).err(),
                ReservedPort::take(port.address()).err(),
            ];
            taken.map(|it| it.map(|error| error.kind()))
        };
        let refused = [Some(io::ErrorKind::AddrInUse); 2];
        assert_eq!(others(), refused);
        for _ in 0..2 {
            let listener = port.listen().unwrap();
            listener.set_nonblocking(false).unwrap();
            let mut client = TcpStream::connect(port.address()).unwrap();
            // The side that closes first keeps the address in TIME_WAIT.
            drop(listener.accept().unwrap());
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
            assert_eq!(others(), refused);
            drop(listener);
            let error = TcpStream::connect(port.address()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            assert_eq!(others(), refused);
        }
    }
}
