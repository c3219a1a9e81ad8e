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

use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// The protocol agreed on, if any.
fn negotiated_alpn(tls: &TlsStream<TcpStream>) -> Option<String> {
    let id = tls.get_ref().1.alpn_protocol()?;
    Some(String::from_utf8_lossy(id).into_owned())
}

async fn listen(addr: SocketAddr) -> TcpListener {
    TcpListener::bind(addr).await.unwrap()
}

/// Any free port of this machine.
fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}
