//! The threads that carry requests. Each has its own runtime, its own
//! connections to upstream and shares nothing with the others that would have
//! to be locked; a request never changes threads.

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

const TIDY_EVERY: Duration = Duration::from_secs(5);

/// One thread.
#[derive(Debug)]
pub(crate) struct Worker {
    arrivals: mpsc::UnboundedSender<(Arrival, InFlight)>,
    running: InFlight,
    thread: Option<JoinHandle<()>>,
}

/// A connection that has been accepted. How many there can be is bounded by the
/// connection slots, so the channel needs no bound of its own.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) tcp: std::net::TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) slot: Slot,
}

impl Worker {
    /// Starts a thread.
    pub(crate) fn start(number: usize, bridge: Arc<GatewayState>) -> io::Result<Self> {
        let (arrivals, receiver) = mpsc::unbounded_channel();
        let running = InFlight::default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || runtime.block_on(run(bridge, receiver)))?;
        Ok(Self {
            arrivals,
            running,
            thread: Some(thread),
        })
    }

    /// Takes a connection over.
    pub(crate) fn take(&self, arrival: Arrival) {
        // A worker that is gone has been told to go.
        let _ = self.arrivals.send((arrival, self.running.one()));
    }

    /// How many connections it has.
    pub(crate) fn connections(&self) -> usize {
        self.running.count()
    }

    /// Ends the thread, and with it every connection that is still open.
    pub(crate) fn stop(mut self) {
        drop(self.arrivals);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn run(
    bridge: Arc<GatewayState>,
    mut arrivals: mpsc::UnboundedReceiver<(Arrival, InFlight)>,
) {
    let pools = Arc::new(Pools::default());
    let mut tidy = tokio::time::interval(TIDY_EVERY);
    let timeouts = ClientTimeouts {
        head: bridge.limits.read_header_timeout,
        idle: bridge.limits.idle_timeout,
        stall: bridge.limits.stall_timeout,
    };
    let bounds = H2Limits {
        max_streams: bridge.limits.max_streams_per_connection,
        timeouts,
    };
    loop {
        tokio::select! {
            biased;
            arrival = arrivals.recv() => {
                // The end of this future drops the runtime, and with it all
                // tasks.
                let Some((arrival, running)) = arrival else { return };
                let bridge = bridge.clone();
                let pools = pools.clone();
                let open = Open::new(bridge.metrics.client_connections());
                let eviction = arrival.slot.eviction();
                let task = tokio::spawn(async move {
                    connection(arrival, bridge, pools, bounds).await;
                    drop((running, open));
                });
                eviction.by(task.abort_handle());
            }
            _ = tidy.tick() => {
                let cluster = bridge.cluster_handle.as_ref().map(|it| it.cluster.load());
                pools.evict_idle(|identity| {
                    cluster.as_ref().is_some_and(|it| it.peers.get(identity).is_some())
                });
            }
        }
    }
}

/// Counts a connection while it is open.
struct Open(Gauge);

impl Open {
    fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// One connection from its first byte to its last. An eviction aborts its task: dropping
/// what serves it closes it.
async fn connection(
    arrival: Arrival,
    bridge: Arc<GatewayState>,
    pools: Arc<Pools>,
    bounds: H2Limits,
) {
    let Arrival { tcp, peer, slot } = arrival;
    let Ok(tcp) = TcpStream::from_std(tcp) else {
        return;
    };
    let client = Arc::new(ClientConnection::new(peer).with_slot(slot.promotion()));
    // kube-apiserver waits for the first request head of a connection as for any other.
    let first_request = bridge.limits.handshake_timeout + bridge.limits.read_header_timeout;
    let mut timer = Some(Box::pin(sleep(first_request)));
    let mut serving = pin!(serve(tcp, client.clone(), bridge, pools, bounds));
    let ended = poll_fn(|cx| {
        if serving.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ended::Served);
        }
        // This runs for each message of a stream: the timer goes with the first request.
        let Some(waiting) = &mut timer else {
            return Poll::Pending;
        };
        if client.is_authenticated() || client.has_requested() {
            timer = None;
            return Poll::Pending;
        }
        waiting.as_mut().poll(cx).map(|()| Ended::NoRequest)
    });
    if let Ended::NoRequest = ended.await {
        slot.evict(EvictionReason::NoRequest);
    }
}

/// How a connection ended.
enum Ended {
    Served,
    /// The client has neither authenticated nor sent a request in time.
    NoRequest,
}

async fn serve(
    tcp: TcpStream,
    client: Arc<ClientConnection>,
    bridge: Arc<GatewayState>,
    pools: Arc<Pools>,
    bounds: H2Limits,
) {
    let peer = client.source();
    let config: Arc<ServerConfig> = bridge.live.server.load_full();
    let accept = async {
        let mut tcp = tcp;
        let first = plain_http::first_bytes(&mut tcp).await?;
        if plain_http::is_request(&first) {
            plain_http::refuse(tcp).await;
            return Ok(None);
        }
        let tls = TlsAcceptor::from(config).accept(ReadAhead::with_buffered(first, tcp));
        tls.await.map(Some)
    };
    let tls = match timeout(bridge.limits.handshake_timeout, accept).await {
        Ok(Ok(Some(tls))) => tls,
        Ok(Ok(None)) => {
            bridge.metrics.handshake_failed("not-tls");
            tracing::debug!(%peer, "HTTP without TLS");
            return;
        }
        Ok(Err(error)) => {
            bridge.metrics.handshake_failed(reason(&error));
            tracing::debug!(%peer, %error, "TLS handshake failed");
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
    let client_cert = ClientCertState::of_client(peer, chain);
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
        h2::serve(io, service, bounds, drain).await;
    } else {
        h1::serve(io, service, bounds.timeouts, drain).await;
    }
}

/// As a metric label.
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
