//! A balancer that cuts what is silent for too long.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use skewbridge_testkit::{PATIENCE, eventually};
use tokio::net::TcpStream;

use crate::control_plane::ControlPlane;
use crate::ports::free_address;
use crate::process::Process;

/// A real `HAProxy` that carries connections. It ends when it is dropped.
pub struct Haproxy {
    /// Where clients connect.
    pub address: SocketAddr,
    /// The balancer itself.
    pub process: Process,
}

impl ControlPlane {
    /// Starts one in front of this address that cuts connections after so much
    /// silence.
    pub async fn haproxy_before(&self, behind: SocketAddr, silence: Duration) -> Haproxy {
        let address = free_address();
        let name = format!("haproxy-{}", address.port());
        let silence = silence.as_millis();
        let config = self.file(
            &format!("{name}.cfg"),
            &format!(
                "\
global
    maxconn 100
defaults
    mode tcp
    timeout connect 5s
    timeout client {silence}ms
    timeout server {silence}ms
    timeout tunnel {silence}ms
listen streams
    bind {address}
    server one {behind}
"
            ),
        );
        let arguments = ["-db".to_owned(), "-f".to_owned(), config];
        let program = Path::new("haproxy");
        let process = Process::start(&name, &name, program, &arguments, self.pki.path());
        eventually(&name, PATIENCE, async || {
            TcpStream::connect(address).await.is_ok()
        })
        .await;
        Haproxy { address, process }
    }
}
