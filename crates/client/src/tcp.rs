//! Connections by TCP that notice when nobody is there any more.

use std::io;
use std::time::Duration;

use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
};
use tokio::net::TcpStream;

use crate::address::Address;

/// Go's default: what says nothing for so long is asked whether it is there.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// How often it is asked in vain: a network that is gone is noticed within a minute.
///
/// There is no `TCP_USER_TIMEOUT` beside it: Linux ends by that also what is not taken by
/// a program that lives and does not read, and the input of a command may wait for hours.
/// What was on its way when a network went is given up by the system, after a quarter of
/// an hour.
const KEEPALIVE_PROBES: u32 = 3;

/// Connects.
pub(crate) async fn connect(address: &Address) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect((address.host.as_str(), address.port)).await?;
    set_socket_options(&tcp);
    Ok(tcp)
}

/// Small writes leave at once, and a network that is gone is noticed. A socket that
/// refuses an option still works.
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
    use crate::address::Scheme;

    #[tokio::test]
    async fn a_connection_notices_a_network_that_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let address = Address::parse(&url, Scheme::Http).unwrap();
        let tcp = connect(&address).await.unwrap();
        assert!(tcp_nodelay(&tcp).unwrap());
        assert!(socket_keepalive(&tcp).unwrap());
        assert_eq!(tcp_keepidle(&tcp).unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(tcp_keepintvl(&tcp).unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(tcp_keepcnt(&tcp).unwrap(), KEEPALIVE_PROBES);
        // Whoever lives and does not read is waited for.
        assert_eq!(tcp_user_timeout(&tcp).unwrap(), 0);
    }
}
