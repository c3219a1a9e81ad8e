//! Worker threads. Each has its own runtime and its own connections to upstream, and shares nothing
//! with the others that would need a lock. A request never changes threads.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::BytesMut;
use skewbridge_http_engine::buffer_budget::ClientLimits;
use skewbridge_http_engine::drain::InFlight;
use skewbridge_http_engine::server::ClientTimeouts;
use skewbridge_http_engine::server::h2::H2Limits;
use skewbridge_http_engine::server::{h1, h2};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::handshake::{self, TlsConnection, accept_tls};
use crate::authn::ClientCertState;
use crate::balancer::Backends;
use crate::client_connection::ClientConnection;
use crate::connection_slots::ConnectionSlot;
use crate::metrics::Gauge;
use crate::proxy::handler::{ConnectionHandler, ConnectionState};

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
    /// What was read after the PROXY header.
    pub(crate) buffered: BytesMut,
    pub(crate) slot: ConnectionSlot,
}

impl Worker {
    /// Starts the thread.
    pub(crate) fn start(number: usize, backends: Arc<Backends>) -> io::Result<Self> {
        let (connections, receiver) = mpsc::unbounded_channel();
        let running = InFlight::default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || runtime.block_on(run(number, backends, receiver)))?;
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
    number: usize,
    backends: Arc<Backends>,
    mut connections: mpsc::UnboundedReceiver<(AcceptedConnection, InFlight)>,
) {
    let bridge = backends.client_facing().clone();
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
                let backends = backends.clone();
                let open = OpenConnectionGuard::new(bridge.metrics.client_connections());
                let eviction = accepted.slot.eviction();
                let task = tokio::spawn(async move {
                    connection(accepted, backends, number, limits).await;
                    drop((running, open));
                });
                eviction.set_task(task.abort_handle());
            }
            _ = idle_check.tick() => {
                for backend in backends.all().iter() {
                    let handle = backend.state.cluster_handle.as_ref();
                    let cluster = handle.map(|it| it.cluster.load());
                    backend.pools[number].evict_idle(|identity, address| {
                        let peer = cluster.as_ref().and_then(|it| it.peers.get(identity));
                        peer.is_some_and(|it| it.is_at(address))
                    });
                }
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
    backends: Arc<Backends>,
    worker: usize,
    limits: H2Limits,
) {
    let AcceptedConnection {
        tcp,
        client: source,
        buffered,
        slot,
    } = accepted;
    let Ok(tcp) = TcpStream::from_std(tcp) else {
        return;
    };
    let client = Arc::new(ClientConnection::new(source).with_slot(slot.promotion()));
    let bridge = backends.client_facing().clone();
    let serving = serve((tcp, buffered), client.clone(), backends, worker, limits);
    handshake::serve_with_slot(slot, &client, &bridge.limits, serving).await;
}

async fn serve(
    tcp: (TcpStream, BytesMut),
    client: Arc<ClientConnection>,
    backends: Arc<Backends>,
    worker: usize,
    limits: H2Limits,
) {
    let bridge = backends.client_facing().clone();
    let source = client.source();
    let Some(TlsConnection { io, chain, is_h2 }) = accept_tls(tcp, source, &bridge).await else {
        return;
    };
    let drain = bridge.drain.clone();
    let client_cert = ClientCertState::of_client(source, chain);
    client.note_certificate(client_cert.class(&bridge.live.trust.load_full()));
    let service = ConnectionHandler(Arc::new(ConnectionState {
        limits: ClientLimits::new(client.clone(), bridge.buffers.clone()),
        bridge,
        backends,
        worker,
        client,
        client_cert,
    }));
    if is_h2 {
        h2::serve(io, service, limits, drain).await;
    } else {
        h1::serve(io, service, limits.timeouts, drain).await;
    }
}
