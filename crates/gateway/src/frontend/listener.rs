//! Accepts connections, gives each a slot, and hands it to the worker with the fewest.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use skewbridge_http_engine::drain::Drain;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;

use crate::connection_slots::ConnectionSlots;
use crate::frontend::worker::{Arrival, Worker};
use crate::tcp;

/// Connections that the kernel holds for us: Linux's own limit.
const BACKLOG: i32 = 4096;

/// When the process is out of file descriptors, accepting fails at once, again
/// and again.
pub(crate) const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// Accepts until the bridge drains.
pub(crate) async fn run(
    listener: TcpListener,
    workers: &[Worker],
    slots: &Arc<ConnectionSlots>,
    mut drain: Drain,
) {
    loop {
        let accepted = async {
            // While all slots are held by authenticated clients, connections stay in the
            // accept backlog.
            slots.room().await;
            let (tcp, peer) = listener.accept().await?;
            io::Result::Ok((tcp, peer, slots.admit(peer.ip()).await))
        };
        let accepted = tokio::select! {
            biased;
            () = drain.draining() => return,
            accepted = accepted => accepted,
        };
        let Ok((tcp, peer, slot)) = accepted else {
            tokio::time::sleep(AFTER_FAILURE).await;
            continue;
        };
        tcp::tune(&tcp);
        if let Ok(tcp) = tcp.into_std()
            && let Some(worker) = workers.iter().min_by_key(|worker| worker.connections())
        {
            worker.take(Arrival { tcp, peer, slot });
        }
    }
}

/// Opens a port. Must be called inside the runtime that will use it.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}
