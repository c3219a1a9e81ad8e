//! Accepting clients: over a Unix socket of their own user, or over TCP, always
//! with TLS.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use skewbridge_client::Stream;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::handshakes::{Ends, Handshakes};
use super::{Forwarder, client_h1, client_h2};

/// Clients with a certificate at one time: one user's programs. More wait.
const MAX_CONNECTIONS: usize = 1024;

/// After an accept that failed, which is because of a limit of the system.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// Where clients come from.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket. Peers of another user are turned away before a byte is read.
    Unix(UnixListener),
    /// A TCP port, of loopback if the caller is wise.
    Tcp(TcpListener),
}

impl Listener {
    /// The next client that may be talked to. It can be given up and asked again.
    async fn accept(&self) -> (Stream, Option<Ends>) {
        loop {
            let accepted: std::io::Result<(Stream, _)> = match self {
                Self::Unix(listener) => match listener.accept().await {
                    Ok((stream, _)) if is_same_user(&stream) => Ok((Box::new(stream), None)),
                    Ok(_) => continue,
                    Err(error) => Err(error),
                },
                Self::Tcp(listener) => listener.accept().await.map(|(stream, theirs)| {
                    // A socket that refuses the option still works.
                    let _ = stream.set_nodelay(true);
                    let ours = stream.local_addr().ok();
                    let ends = ours.map(|ours| Ends { theirs, ours });
                    (Box::new(stream) as Stream, ends)
                }),
            };
            match accepted {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(AFTER_FAILURE).await;
                }
            }
        }
    }
}

/// Whether the process at the other end runs as our own user. Who is somebody
/// else, or cannot be told, is nobody to talk to.
pub(crate) fn is_same_user(stream: &tokio::net::UnixStream) -> bool {
    let ours = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == ours => true,
        Ok(peer) => {
            tracing::warn!(
                uid = peer.uid(),
                "a process of another user tried to connect; it is turned away"
            );
            false
        }
        Err(error) => {
            tracing::warn!(%error, "a process of an unknown user tried to connect");
            false
        }
    }
}

/// Serves clients until `shutdown` is ready; then all that is under way is cut.
///
/// `tls` says what is shown and which certificates clients have to have. Its ALPN
/// protocols decide what is spoken: [`Offer::alpn`](super::Offer::alpn) has them.
pub async fn serve(
    listener: Listener,
    tls: Arc<ServerConfig>,
    forwarder: Arc<Forwarder>,
    shutdown: impl Future<Output = ()>,
) {
    let mut handshakes = Handshakes::new(TlsAcceptor::from(tls));
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => return,
            (stream, ends) = listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                handshakes.begin(stream, ends).await;
            }
            stream = handshakes.next() => {
                connections.spawn(talk(stream, forwarder.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn talk(stream: TlsStream<Stream>, forwarder: Arc<Forwarder>) {
    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let stream: Stream = Box::new(stream);
    if is_h2 {
        client_h2::serve(stream, forwarder).await;
    } else {
        client_h1::serve(stream, forwarder).await;
    }
}
