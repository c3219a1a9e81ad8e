//! What both TLS ports do with an accepted connection: the handshake, and the timeout of the first
//! request.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;

use bytes::BytesMut;
use rustls_pki_types::CertificateDer;
use skewbridge_http_engine::server::ClientIo;
use skewbridge_stream_io::ReadAhead;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::plain_http;
use crate::client_connection::ClientConnection;
use crate::config::Limits;
use crate::connection_slots::ConnectionSlot;
use crate::metrics::connections::EvictionReason;
use crate::state::GatewayState;

/// A connection after its handshake.
pub(crate) struct TlsConnection {
    pub(crate) io: ClientIo,
    /// The certificates that the client has sent; not verified.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) is_h2: bool,
}

/// Makes the TLS handshake with the serving certificate of the bridge. `None` if it fails, which is
/// counted.
pub(crate) async fn accept_tls(
    (mut tcp, buffered): (TcpStream, BytesMut),
    source: SocketAddr,
    state: &GatewayState,
) -> Option<TlsConnection> {
    let config = state.live.server.load_full();
    let accept = async {
        let first = plain_http::first_bytes(&mut tcp, buffered).await?;
        if plain_http::is_request(&first) {
            plain_http::reject(tcp).await;
            return Ok(None);
        }
        let tls = TlsAcceptor::from(config).accept(ReadAhead::with_buffered(first, tcp));
        tls.await.map(Some)
    };
    let tls = match timeout(state.limits.handshake_timeout, accept).await {
        Ok(Ok(Some(tls))) => tls,
        Ok(Ok(None)) => {
            state.metrics.handshake_failed("not-tls");
            tracing::debug!(client = %source, "HTTP without TLS");
            return None;
        }
        Ok(Err(error)) => {
            state.metrics.handshake_failed(reason(&error));
            tracing::debug!(client = %source, %error, "TLS handshake failed");
            return None;
        }
        Err(_) => {
            state.metrics.handshake_failed("timeout");
            return None;
        }
    };
    let session = tls.get_ref().1;
    let chain = session
        .peer_certificates()
        .map(|chain| chain.iter().map(|it| it.clone().into_owned()).collect())
        .unwrap_or_default();
    Some(TlsConnection {
        chain,
        is_h2: session.alpn_protocol() == Some(b"h2"),
        io: ClientIo::Tls(Box::new(tls)),
    })
}

/// Serves a connection, unless its client neither authenticates nor sends a request in time.
pub(crate) async fn serve_with_slot(
    slot: ConnectionSlot,
    client: &ClientConnection,
    limits: &Limits,
    serving: impl Future<Output = ()>,
) {
    // As in kube-apiserver, the first request head has the same timeout as later ones.
    let first_request = limits.handshake_timeout + limits.read_header_timeout;
    let mut timer = Some(Box::pin(sleep(first_request)));
    let mut serving = pin!(serving);
    let ended = poll_fn(|cx| {
        if serving.as_mut().poll(cx).is_ready() {
            return Poll::Ready(ConnectionEnd::Served);
        }
        // This runs for each message of a stream, so the timer is dropped with the first request.
        let Some(waiting) = &mut timer else {
            return Poll::Pending;
        };
        if client.is_authenticated() || client.has_requested() {
            timer = None;
            return Poll::Pending;
        }
        waiting.as_mut().poll(cx).map(|()| ConnectionEnd::NoRequest)
    });
    if let ConnectionEnd::NoRequest = ended.await {
        slot.evict(EvictionReason::NoRequest);
    }
}

/// How a connection ended.
enum ConnectionEnd {
    Served,
    /// The client has neither authenticated nor sent a request in time.
    NoRequest,
}

/// The metric label.
fn reason(error: &io::Error) -> &'static str {
    let tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidMessage(_)) => "not-tls",
        Some(rustls::Error::AlertReceived(_)) => "refused-by-client",
        Some(rustls::Error::PeerIncompatible(_)) => "incompatible",
        Some(rustls::Error::NoApplicationProtocol) => "no-common-protocol",
        Some(_) => "tls",
        None => "connection-lost",
    }
}
