//! Worker threads. Each has its own runtime and its own connections to upstream, and shares nothing
//! with the others that would need a lock. A request never changes threads.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::ServerConfig;
use skewbridge_http_engine::buffer_budget::ClientLimits;
use skewbridge_http_engine::drain::InFlight;
use skewbridge_http_engine::server::ClientTimeouts;
use skewbridge_http_engine::server::h2::H2Limits;
use skewbridge_http_engine::server::{ClientIo, h1, h2};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::plain_http;
use crate::authn::ClientCertState;
use crate::client_connection::ClientConnection;
use crate::connection_slots::Slot;
use crate::metrics::Gauge;
use crate::metrics::connections::EvictionReason;
use crate::proxy::handler::{ConnectionHandler, ConnectionState};
use crate::state::GatewayState;
use crate::upstream::Pools;
use skewbridge_stream_io::ReadAhead;

/// The interval between two checks for idle upstream connections.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A worker thread.
#[derive(Debug)]
pub(crate) struct Worker {
    connections: mpsc::UnboundedSender<(AcceptedConnection, InFlight)>,
    running: InFlight,
    thread: Option<JoinHandle<()>>,
}

/// An accepted connection. The connection slots bound their number, so the channel needs no bound.
#[derive(Debug)]
pub(crate) struct AcceptedConnection {
    pub(crate) tcp: std::net::TcpStream,
    pub(crate) client: SocketAddr,
    pub(crate) slot: Slot,
}

impl Worker {
    /// Starts the thread.
    pub(crate) fn start(number: usize, bridge: Arc<GatewayState>) -> io::Result<Self> {
        let (connections, receiver) = mpsc::unbounded_channel();
        let running = InFlight::default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || runtime.block_on(run(bridge, receiver)))?;
        Ok(Self {
            connections,
            running,
            thread: Some(thread),
        })
    }

    /// Serves a connection.
    pub(crate) fn serve(&self, accepted: AcceptedConnection) {
        // A worker only ends when it is stopped.
        let _ = self.connections.send((accepted, self.running.guard()));
    }

    /// The number of its connections.
    pub(crate) fn connections(&self) -> usize {
        self.running.count()
    }

    /// Ends the thread and all of its open connections.
    pub(crate) fn stop(mut self) {
        drop(self.connections);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn run(
    bridge: Arc<GatewayState>,
    mut connections: mpsc::UnboundedReceiver<(AcceptedConnection, InFlight)>,
) {
    let pools = Arc::new(Pools::default());
    let mut idle_check = tokio::time::interval(IDLE_CHECK_INTERVAL);
    let timeouts = ClientTimeouts {
        head: bridge.limits.read_header_timeout,
        idle: bridge.limits.idle_timeout,
        stall: bridge.limits.stall_timeout,
    };
    let limits = H2Limits {
        max_streams: bridge.limits.max_streams_per_connection,
        timeouts,
    };
    loop {
        tokio::select! {
            biased;
            accepted = connections.recv() => {
                // The end of this future drops the runtime and all tasks.
                let Some((accepted, running)) = accepted else { return };
                let bridge = bridge.clone();
                let pools = pools.clone();
                let open = OpenConnectionGuard::new(bridge.metrics.client_connections());
                let eviction = accepted.slot.eviction();
                let task = tokio::spawn(async move {
                    connection(accepted, bridge, pools, limits).await;
                    drop((running, open));
                });
                eviction.set_task(task.abort_handle());
            }
            _ = idle_check.tick() => {
                let cluster = bridge.cluster_handle.as_ref().map(|it| it.cluster.load());
                pools.evict_idle(|identity| {
                    cluster.as_ref().is_some_and(|it| it.peers.get(identity).is_some())
                });
            }
        }
    }
}

/// Counts a connection while it is open.
struct OpenConnectionGuard(Gauge);

impl OpenConnectionGuard {
    fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for OpenConnectionGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Serves one connection. An eviction aborts this task, which drops and closes the connection.
async fn connection(
    accepted: AcceptedConnection,
    bridge: Arc<GatewayState>,
    pools: Arc<Pools>,
    limits: H2Limits,
) {
    let AcceptedConnection {
        tcp,
        client: source,
        slot,
    } = accepted;
    let Ok(tcp) = TcpStream::from_std(tcp) else {
        return;
    };
    let client = Arc::new(ClientConnection::new(source).with_slot(slot.promotion()));
    // As in kube-apiserver, the first request head has the same timeout as later ones.
    let first_request = bridge.limits.handshake_timeout + bridge.limits.read_header_timeout;
    let mut timer = Some(Box::pin(sleep(first_request)));
    let mut serving = pin!(serve(tcp, client.clone(), bridge, pools, limits));
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

async fn serve(
    tcp: TcpStream,
    client: Arc<ClientConnection>,
    bridge: Arc<GatewayState>,
    pools: Arc<Pools>,
    limits: H2Limits,
) {
    let source = client.source();
    let config: Arc<ServerConfig> = bridge.live.server.load_full();
    let accept = async {
        let mut tcp = tcp;
        let first = plain_http::first_bytes(&mut tcp).await?;
        if plain_http::is_request(&first) {
            plain_http::reject(tcp).await;
            return Ok(None);
        }
        let tls = TlsAcceptor::from(config).accept(ReadAhead::with_buffered(first, tcp));
        tls.await.map(Some)
    };
    let tls = match timeout(bridge.limits.handshake_timeout, accept).await {
        Ok(Ok(Some(tls))) => tls,
        Ok(Ok(None)) => {
            bridge.metrics.handshake_failed("not-tls");
            tracing::debug!(client = %source, "HTTP without TLS");
            return;
        }
        Ok(Err(error)) => {
            bridge.metrics.handshake_failed(reason(&error));
            tracing::debug!(client = %source, %error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            bridge.metrics.handshake_failed("timeout");
            return;
        }
    };
    let session = tls.get_ref().1;
    let chain = session
        .peer_certificates()
        .map(|chain| chain.iter().map(|it| it.clone().into_owned()).collect())
        .unwrap_or_default();
    let is_h2 = session.alpn_protocol() == Some(b"h2");
    let drain = bridge.drain.clone();
    let client_cert = ClientCertState::of_client(source, chain);
    client.note_certificate(client_cert.class(&bridge.live.trust.load_full()));
    let service = ConnectionHandler(Arc::new(ConnectionState {
        limits: ClientLimits::new(client.clone(), bridge.buffers.clone()),
        bridge,
        pools,
        client,
        client_cert,
    }));
    let io = ClientIo::Tls(Box::new(tls));
    if is_h2 {
        h2::serve(io, service, limits, drain).await;
    } else {
        h1::serve(io, service, limits.timeouts, drain).await;
    }
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
