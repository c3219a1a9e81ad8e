//! Accepts clients: over a Unix socket of their own user, or over TCP, always with TLS.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use skewbridge_client::Stream;
use skewbridge_http_engine::drain::Drain;
use skewbridge_http_engine::server::h2::H2Limits;
use skewbridge_http_engine::server::{ClientIo, ClientTimeouts, h1, h2};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::forwarder::{ConnectionService, Forwarder};
use super::pending_handshakes::{PendingHandshakes, SocketAddrs};

/// Maximum number of authenticated connections. Excess connections stay in the accept backlog.
const MAX_CONNECTIONS: usize = 1024;

/// Delay after an accept failed because of a system limit.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The socket on which clients connect.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket. Clients of another user are rejected before a byte is read.
    Unix(UnixListener),
    /// A TCP port, which should be on loopback.
    Tcp(TcpListener),
}

impl Listener {
    /// The next client of the same user. Cancel safe.
    async fn accept(&self) -> (Stream, Option<SocketAddrs>) {
        loop {
            let accepted: std::io::Result<(Stream, _)> = match self {
                Self::Unix(listener) => match listener.accept().await {
                    Ok((stream, _)) if is_same_user(&stream) => Ok((Box::new(stream), None)),
                    Ok(_) => continue,
                    Err(error) => Err(error),
                },
                Self::Tcp(listener) => listener.accept().await.map(|(stream, client)| {
                    // A socket that refuses the option still works.
                    let _ = stream.set_nodelay(true);
                    let server = stream.local_addr().ok();
                    let addrs = server.map(|server| SocketAddrs { client, server });
                    (Box::new(stream) as Stream, addrs)
                }),
            };
            match accepted {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }
}

/// Whether the process at the other end runs as the same user. A client of another or an unknown
/// user is rejected.
pub(crate) fn is_same_user(stream: &tokio::net::UnixStream) -> bool {
    let own_uid = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(client) if client.uid() == own_uid => true,
        Ok(client) => {
            tracing::warn!(
                uid = client.uid(),
                "a process of another user tried to connect and was rejected"
            );
            false
        }
        Err(error) => {
            tracing::warn!(%error, "a process of an unknown user tried to connect");
            false
        }
    }
}

/// Serves clients until `shutdown` is ready; then aborts all requests in flight.
///
/// `tls` has the serving certificate and the CA of client certificates. Its ALPN protocols decide
/// the HTTP version: [`ProtocolOffer::alpn`](super::ProtocolOffer::alpn) returns them.
pub async fn serve(
    listener: Listener,
    tls: Arc<ServerConfig>,
    forwarder: Arc<Forwarder>,
    shutdown: impl Future<Output = ()>,
) {
    let mut handshakes = PendingHandshakes::new(TlsAcceptor::from(tls));
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => return,
            (stream, addrs) = listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                handshakes.begin(stream, addrs).await;
            }
            stream = handshakes.next() => {
                connections.spawn(serve_connection(stream, forwarder.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Maximum number of concurrent HTTP/2 streams of a connection: kube-apiserver's limit.
const MAX_STREAMS: u32 = 250;

/// Timeouts of clients, which are on this machine. A pager may leave a log unread for hours.
const CLIENT_TIMEOUTS: ClientTimeouts = ClientTimeouts {
    head: Duration::from_secs(30),
    idle: Duration::from_mins(10),
    stall: Duration::from_hours(24),
};

async fn serve_connection(stream: TlsStream<Stream>, forwarder: Arc<Forwarder>) {
    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let io = ClientIo::TlsOver(Box::new(stream));
    let service = ConnectionService::new(forwarder);
    if is_h2 {
        let limits = H2Limits {
            max_streams: MAX_STREAMS,
            timeouts: CLIENT_TIMEOUTS,
        };
        h2::serve(io, service, limits, Drain::never()).await;
    } else {
        h1::serve(io, service, CLIENT_TIMEOUTS, Drain::never()).await;
    }
}
