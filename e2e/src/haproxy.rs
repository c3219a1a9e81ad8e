//! A real load balancer (`HAProxy`) in front of servers and bridges.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use skewbridge_testkit::{TEST_TIMEOUT, eventually};
use tokio::net::TcpStream;

use crate::control_plane::ControlPlane;
use crate::ports::free_address;
use crate::process::Process;

/// The idle timeout in kubeadm's guide for highly available clusters.
const GUIDE_IDLE_TIMEOUT: Duration = Duration::from_secs(35);

/// A real `HAProxy` in TCP mode. It stops when it is dropped.
pub struct Haproxy {
    /// The address for clients.
    pub address: SocketAddr,
    /// The process.
    pub process: Process,
}

impl ControlPlane {
    /// Starts an `HAProxy` in front of all servers, with the settings of kubeadm's guide for highly
    /// available clusters.
    pub async fn start_haproxy_in_front(&self) -> Haproxy {
        let servers = self.servers.iter().zip(1..).map(|(server, number)| {
            format!(
                "    server cp{number} {} check verify none\n",
                server.address
            )
        });
        let servers: String = servers.collect();
        let listen = format!(
            "    option redispatch
    retries 1
    timeout check 10s
    option httpchk
    http-check connect ssl
    http-check send meth GET uri /healthz
    http-check expect status 200
    balance roundrobin
{servers}"
        );
        self.run_haproxy(GUIDE_IDLE_TIMEOUT, &listen).await
    }

    /// Starts an `HAProxy` in front of this address. Each connection to the address begins with a
    /// PROXY header (`option`: `send-proxy` or `send-proxy-v2`), which has the address of the client.
    pub async fn start_haproxy_with_proxy_header(
        &self,
        server: SocketAddr,
        option: &str,
    ) -> Haproxy {
        let listen = format!("    server one {server} {option}\n");
        self.run_haproxy(GUIDE_IDLE_TIMEOUT, &listen).await
    }

    /// Starts an `HAProxy` in front of this address that closes connections after this idle time.
    pub async fn start_haproxy(&self, server: SocketAddr, idle_timeout: Duration) -> Haproxy {
        let listen = format!("    server one {server}\n");
        self.run_haproxy(idle_timeout, &listen).await
    }

    async fn run_haproxy(&self, idle_timeout: Duration, listen: &str) -> Haproxy {
        let address = free_address();
        let name = format!("haproxy-{}", address.port());
        let idle_timeout = idle_timeout.as_millis();
        let config = self.file(
            &format!("{name}.cfg"),
            &format!(
                "\
global
    maxconn 1000
defaults
    mode tcp
    timeout connect 5s
    timeout client {idle_timeout}ms
    timeout server {idle_timeout}ms
    timeout tunnel {idle_timeout}ms
listen streams
    bind {address}
{listen}"
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
