//! The one address of a control plane, behind which its servers change.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// A balancer of connections that sends them all to one server at a time. It
/// ends when it is dropped.
#[derive(Debug)]
pub struct VirtualIp {
    /// Where clients connect.
    pub address: SocketAddr,
    behind: Arc<Mutex<Behind>>,
    _listening: JoinSet<()>,
}

/// The server of the moment, and the connections to it.
#[derive(Debug)]
struct Behind {
    server: SocketAddr,
    connections: JoinSet<()>,
}

impl VirtualIp {
    /// Starts it in front of this server.
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let behind = Arc::new(Mutex::new(Behind {
            server,
            connections: JoinSet::new(),
        }));
        let mut listening = JoinSet::new();
        listening.spawn(listen(listener, Arc::clone(&behind)));
        Self {
            address,
            behind,
            _listening: listening,
        }
    }

    /// From now on new connections go there; whoever is connected stays.
    pub async fn turn(&self, server: SocketAddr) {
        self.behind.lock().await.server = server;
    }

    /// Cuts all connections; from then on new ones go there.
    pub async fn switch(&self, server: SocketAddr) {
        let mut behind = self.behind.lock().await;
        behind.server = server;
        behind.connections.shutdown().await;
    }
}

async fn listen(listener: TcpListener, behind: Arc<Mutex<Behind>>) {
    while let Ok((client, _)) = listener.accept().await {
        let mut behind = behind.lock().await;
        let server = behind.server;
        behind.connections.spawn(carry(client, server));
        while behind.connections.try_join_next().is_some() {}
    }
}

async fn carry(mut client: TcpStream, server: SocketAddr) {
    if let Ok(mut server) = TcpStream::connect(server).await {
        // However it ended, it is over.
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}
