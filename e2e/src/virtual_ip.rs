//! The virtual IP of a control plane, behind which its servers change.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// A TCP load balancer that sends all connections to one server at a time. It stops when it
/// is dropped.
#[derive(Debug)]
pub struct VirtualIp {
    /// The address for clients.
    pub address: SocketAddr,
    backend: Arc<Mutex<Backend>>,
    _listening: JoinSet<()>,
}

/// The current server, and the connections to it.
#[derive(Debug)]
struct Backend {
    server: SocketAddr,
    connections: JoinSet<()>,
}

impl VirtualIp {
    /// Starts a load balancer in front of this server.
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let backend = Arc::new(Mutex::new(Backend {
            server,
            connections: JoinSet::new(),
        }));
        let mut listening = JoinSet::new();
        listening.spawn(listen(listener, Arc::clone(&backend)));
        Self {
            address,
            backend,
            _listening: listening,
        }
    }

    /// Sends new connections to this server; existing connections stay.
    pub async fn redirect(&self, server: SocketAddr) {
        self.backend.lock().await.server = server;
    }

    /// Closes all connections, and sends new ones to this server.
    pub async fn fail_over(&self, server: SocketAddr) {
        let mut backend = self.backend.lock().await;
        backend.server = server;
        backend.connections.shutdown().await;
    }
}

async fn listen(listener: TcpListener, backend: Arc<Mutex<Backend>>) {
    while let Ok((client, _)) = listener.accept().await {
        let mut backend = backend.lock().await;
        let server = backend.server;
        backend.connections.spawn(relay(client, server));
        while backend.connections.try_join_next().is_some() {}
    }
}

async fn relay(mut client: TcpStream, server: SocketAddr) {
    if let Ok(mut server) = TcpStream::connect(server).await {
        // The result does not matter: the connection has ended.
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}
