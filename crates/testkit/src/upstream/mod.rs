//! Stand-ins for a kube-apiserver: one that behaves and one that does what it is told.

mod api;
mod http1;
mod http2;
mod raw;
mod reply;
mod seen;

pub use api::{ApiServer, Options};
pub use raw::{RawConn, RawServer};
pub use reply::{BodySender, Cancelled, Reply, Upgrade};
pub use seen::{Body, ClientCertificate, Seen};

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsStream;

/// The protocol agreed on, if any.
fn negotiated_alpn(tls: &TlsStream<TcpStream>) -> Option<String> {
    let id = tls.get_ref().1.alpn_protocol()?;
    Some(String::from_utf8_lossy(id).into_owned())
}

/// How many connections wait for being accepted, as tokio has it.
const BACKLOG: u32 = 1024;

/// A socket at this address. Several may be there, of which one listens: one that does not
/// keeps the port from being given to anybody else, a client's end of a connection included.
fn bound(addr: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.set_reuseport(true).unwrap();
    socket.bind(addr).unwrap();
    socket
}

/// Listens, also where a [`SilentPort`] is kept.
pub(crate) fn listen(addr: SocketAddr) -> TcpListener {
    bound(addr).listen(BACKLOG).unwrap()
}

/// An address where nobody listens, for as long as this lives: nobody else is given it.
#[derive(Debug)]
pub struct SilentPort(TcpSocket);

impl SilentPort {
    /// A free port, kept.
    pub fn new() -> Self {
        Self(bound(anywhere()))
    }

    /// Where connections are refused.
    pub fn addr(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }
}

impl Default for SilentPort {
    fn default() -> Self {
        Self::new()
    }
}

/// Any free port of this machine.
fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}
