//! Options of TCP connections, to clients and to servers.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Go's default: the loss of a remote host is detected within two minutes, and its watches end.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Sets `TCP_NODELAY`, and keepalive probes that detect a dead remote host.
pub(crate) fn tune(tcp: &TcpStream) {
    // A socket that rejects an option still works.
    let _ = tcp.set_nodelay(true);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_INTERVAL)
        .with_interval(KEEPALIVE_INTERVAL);
    let _ = SockRef::from(tcp).set_tcp_keepalive(&keepalive);
}
