//! Options of TCP connections, to clients and to servers.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Go's default: a remote host that vanished is noticed within two minutes, and the watches of a
/// client end.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Sends small writes at once, and notices a dead remote host.
pub(crate) fn tune(tcp: &TcpStream) {
    // A socket that refuses an option still works.
    let _ = tcp.set_nodelay(true);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE);
    let _ = SockRef::from(tcp).set_tcp_keepalive(&keepalive);
}
