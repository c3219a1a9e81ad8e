//! A load balancer that closes idle connections.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use skewbridge_testkit::{TEST_TIMEOUT, eventually};
use tokio::net::TcpStream;

use crate::control_plane::ControlPlane;
use crate::ports::free_address;
use crate::process::Process;

/// A real `HAProxy` in TCP mode. It stops when it is dropped.
pub struct Haproxy {
    /// The address for clients.
    pub address: SocketAddr,
    /// The process.
    pub process: Process,
}

impl ControlPlane {
    /// Starts one in front of this address that closes connections after this idle time.
    pub async fn start_haproxy(&self, server: SocketAddr, idle_timeout: Duration) -> Haproxy {
        let address = free_address();
        let name = format!("haproxy-{}", address.port());
        let idle_timeout = idle_timeout.as_millis();
        let config = self.file(
            &format!("{name}.cfg"),
            &format!(
                "\
global
    maxconn 100
defaults
    mode tcp
    timeout connect 5s
    timeout client {idle_timeout}ms
    timeout server {idle_timeout}ms
    timeout tunnel {idle_timeout}ms
listen streams
    bind {address}
    server one {server}
"
            ),
        );
        let arguments = ["-db".to_owned(), "-f".to_owned(), config];
        let program = Path::new("haproxy");
        let process = Process::start(&name, &name, program, &arguments, self.pki.path());
        eventually(&name, TEST_TIMEOUT, async || {
            TcpStream::connect(address).await.is_ok()
        })
        .await;
        Haproxy { address, process }
    }
}
