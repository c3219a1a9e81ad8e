//! Accepts connections, reads the PROXY headers of load balancers, assigns a slot, and sends each
//! connection to the worker with the fewest.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use skewbridge_http_engine::drain::Drain;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::connection_slots::{ConnectionSlot, ConnectionSlots};
use crate::frontend::proxy_header::{Incoming, LoadBalancers, MAX_PENDING_HEADERS};
use crate::frontend::worker::{AcceptedConnection, Worker};
use crate::metrics::Metrics;
use crate::tcp;

/// The accept backlog: the limit of Linux.
const BACKLOG: i32 = 4096;

/// The pause after a failed accept: without file descriptors, `accept` fails at once every time.
pub(crate) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Accepts until the bridge drains. Connections that were accepted before are served.
pub(crate) async fn run(
    listener: TcpListener,
    workers: &[Worker],
    slots: &Arc<ConnectionSlots>,
    load_balancers: &LoadBalancers,
    metrics: &Metrics,
    drain: Drain,
) {
    let connections = Connections {
        workers,
        slots,
        load_balancers,
        metrics,
    };
    let mut pending = JoinSet::new();
    connections.accept(&listener, &mut pending, drain).await;
    drop(listener);
    // Each header has a timeout, and the drain has one.
    while let Some(read) = pending.join_next().await {
        if let Ok(read) = read
            && let Some(incoming) = connections.with_header(read)
        {
            let slot = slots.admit(incoming.client.ip()).await;
            connections.serve(incoming, slot);
        }
    }
}

/// The header of a load balancer, or the load balancer whose header cannot be read.
type HeaderRead = Result<Incoming, (SocketAddr, io::Error)>;

/// What the listener does with accepted connections.
struct Connections<'a> {
    workers: &'a [Worker],
    slots: &'a Arc<ConnectionSlots>,
    load_balancers: &'a LoadBalancers,
    metrics: &'a Metrics,
}

impl Connections<'_> {
    /// Accepts connections until the bridge drains. `pending` then has those that have no slot yet.
    async fn accept(
        &self,
        listener: &TcpListener,
        pending: &mut JoinSet<HeaderRead>,
        mut drain: Drain,
    ) {
        loop {
            let next = async {
                // While all slots are held by authenticated clients, connections stay in the
                // accept backlog.
                self.slots.wait_for_room().await;
                tokio::select! {
                    Some(Ok(read)) = pending.join_next(), if !pending.is_empty() => {
                        Next::Header(read)
                    }
                    accepted = listener.accept(), if pending.len() < MAX_PENDING_HEADERS => {
                        Next::Accepted(accepted)
                    }
                }
            };
            let next = tokio::select! {
                biased;
                () = drain.draining() => return,
                next = next => next,
            };
            let incoming = match next {
                Next::Accepted(Err(_)) => {
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    None
                }
                Next::Accepted(Ok(accepted)) => self.without_header(accepted, pending),
                Next::Header(read) => self.with_header(read),
            };
            let Some(incoming) = incoming else { continue };
            tokio::select! {
                biased;
                () = drain.draining() => {
                    pending.spawn(async move { Ok(incoming) });
                    return;
                }
                slot = self.slots.admit(incoming.client.ip()) => self.serve(incoming, slot),
            }
        }
    }

    /// A connection that begins without a header. The header of a load balancer is read in a task.
    fn without_header(
        &self,
        (tcp, client): (TcpStream, SocketAddr),
        pending: &mut JoinSet<HeaderRead>,
    ) -> Option<Incoming> {
        tcp::tune(&tcp);
        let incoming = Incoming {
            tcp,
            client,
            buffered: BytesMut::new(),
        };
        if !self.load_balancers.contain(client.ip()) {
            return Some(incoming);
        }
        let load_balancers = self.load_balancers.clone();
        pending.spawn(async move {
            let read = load_balancers.read_header(incoming).await;
            read.map_err(|error| (client, error))
        });
        None
    }

    fn with_header(&self, read: HeaderRead) -> Option<Incoming> {
        read.inspect_err(|(load_balancer, error)| {
            // A load balancer also connects and closes, to check that the bridge accepts.
            if error.kind() != io::ErrorKind::UnexpectedEof {
                self.metrics.handshake_failed("proxy-protocol");
                tracing::debug!(%load_balancer, %error, "no PROXY header");
            }
        })
        .ok()
    }

    fn serve(&self, incoming: Incoming, slot: ConnectionSlot) {
        if let Ok(tcp) = incoming.tcp.into_std()
            && let Some(worker) = self.workers.iter().min_by_key(|it| it.connections())
        {
            worker.serve(AcceptedConnection {
                tcp,
                client: incoming.client,
                buffered: incoming.buffered,
                slot,
            });
        }
    }
}

/// What the listener waits for.
enum Next {
    Accepted(io::Result<(TcpStream, SocketAddr)>),
    Header(HeaderRead),
}

/// Opens a port. Must be called in the context of the runtime that uses it.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}
