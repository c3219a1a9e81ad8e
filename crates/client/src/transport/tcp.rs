//! TCP connections with keepalive.

use std::io;
use std::time::Duration;

use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
};
use tokio::net::TcpStream;

use super::address::Address;

/// Go's default: after this idle time keepalive probes are sent.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// How many probes may stay unanswered: a lost network is detected within a minute.
///
/// `TCP_USER_TIMEOUT` is not set: on Linux it also ends connections to a live program that does
/// not read, and the input of a command may wait for hours. For data in flight when the network
/// is lost, the system gives up after about a quarter of an hour.
const KEEPALIVE_PROBES: u32 = 3;

pub(crate) async fn connect(address: &Address) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect((address.host.as_str(), address.port)).await?;
    set_socket_options(&tcp);
    Ok(tcp)
}

/// Disables Nagle's algorithm and enables keepalive. A socket that rejects an option still
/// works.
fn set_socket_options(tcp: &TcpStream) {
    let _ = tcp.set_nodelay(true);
    let _ = set_socket_keepalive(tcp, true);
    let _ = set_tcp_keepidle(tcp, KEEPALIVE_INTERVAL);
    let _ = set_tcp_keepintvl(tcp, KEEPALIVE_INTERVAL);
    let _ = set_tcp_keepcnt(tcp, KEEPALIVE_PROBES);
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt::{
        socket_keepalive, tcp_keepcnt, tcp_keepidle, tcp_keepintvl, tcp_nodelay, tcp_user_timeout,
    };
    use tokio::net::TcpListener;

    use super::*;
    use crate::transport::Scheme;

    #[tokio::test]
    async fn a_connection_detects_a_lost_network() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let address = Address::parse(&url, Scheme::Http).unwrap();
        let tcp = connect(&address).await.unwrap();
        assert!(tcp_nodelay(&tcp).unwrap());
        assert!(socket_keepalive(&tcp).unwrap());
        assert_eq!(tcp_keepidle(&tcp).unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(tcp_keepintvl(&tcp).unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(tcp_keepcnt(&tcp).unwrap(), KEEPALIVE_PROBES);
        // A live program that does not read is waited for.
        assert_eq!(tcp_user_timeout(&tcp).unwrap(), 0);
    }
}
