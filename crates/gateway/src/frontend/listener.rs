//! Accepts connections, assigns a slot, and sends each to the worker with the fewest connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use skewbridge_http_engine::drain::Drain;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;

use crate::connection_slots::ConnectionSlots;
use crate::frontend::worker::{AcceptedConnection, Worker};
use crate::tcp;

/// The accept backlog: the limit of Linux.
const BACKLOG: i32 = 4096;

/// The pause after a failed accept: without file descriptors, `accept` fails at once every time.
pub(crate) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

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
            slots.wait_for_room().await;
            let (tcp, client) = listener.accept().await?;
            io::Result::Ok((tcp, client, slots.admit(client.ip()).await))
        };
        let accepted = tokio::select! {
            biased;
            () = drain.draining() => return,
            accepted = accepted => accepted,
        };
        let Ok((tcp, client, slot)) = accepted else {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        tcp::tune(&tcp);
        if let Ok(tcp) = tcp.into_std()
            && let Some(worker) = workers.iter().min_by_key(|worker| worker.connections())
        {
            worker.serve(AcceptedConnection { tcp, client, slot });
        }
    }
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
