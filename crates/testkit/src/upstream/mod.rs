//! Fake kube-apiservers: a well-behaved one and a scripted one.

mod api;
mod conn_context;
mod http1;
mod http2;
mod recorded_request;
mod reply;
mod scripted;

pub use api::{ApiServer, Options};
pub use recorded_request::{Body, ClientCertificate, RecordedRequest};
pub use reply::{BodySender, Cancelled, Reply, Upgrade};
pub use scripted::{ScriptedConn, ScriptedServer};

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsStream;

/// The negotiated protocol, if any.
fn negotiated_alpn(tls: &TlsStream<TcpStream>) -> Option<String> {
    let id = tls.get_ref().1.alpn_protocol()?;
    Some(String::from_utf8_lossy(id).into_owned())
}

/// The length of the accept queue, as in tokio.
const BACKLOG: u32 = 1024;

/// Binds a socket to this address. Several sockets may be bound, and one of them listens: a bound
/// socket that does not listen keeps the kernel from assigning the port to another socket,
/// including a client's.
fn bind_reserved(addr: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.set_reuseport(true).unwrap();
    socket.bind(addr).unwrap();
    socket
}

/// Listens, also on a port that a [`ReservedPort`] holds.
pub(crate) fn listen(addr: SocketAddr) -> TcpListener {
    bind_reserved(addr).listen(BACKLOG).unwrap()
}

/// An address that refuses connections and is not assigned to another socket until this is
/// dropped.
#[derive(Debug)]
pub struct ReservedPort(TcpSocket);

impl ReservedPort {
    /// Reserves a free port.
    pub fn new() -> Self {
        Self(bind_reserved(any_local_port()))
    }

    /// The address that refuses connections.
    pub fn addr(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }
}

impl Default for ReservedPort {
    fn default() -> Self {
        Self::new()
    }
}

/// Any free local port.
fn any_local_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}
