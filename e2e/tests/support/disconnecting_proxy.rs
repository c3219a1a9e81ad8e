//! A TCP proxy that cuts one connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Relays bytes, and cuts one connection after a number of bytes.
pub(crate) struct DisconnectingProxy {
    /// The address it listens on.
    pub(crate) address: SocketAddr,
    server: SocketAddr,
    /// How many cuts were requested: older connections are about to end.
    requests: AtomicU64,
    limit: AtomicU64,
    cut: AtomicBool,
}

/// No connection is cut.
const NO_LIMIT: u64 = u64::MAX;

impl DisconnectingProxy {
    pub(crate) async fn start(server: SocketAddr) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = Arc::new(Self {
            address,
            server,
            requests: AtomicU64::new(0),
            limit: AtomicU64::new(NO_LIMIT),
            cut: AtomicBool::new(false),
        });
        let shared = Arc::downgrade(&proxy);
        tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let Some(proxy) = shared.upgrade() else {
                    return;
                };
                connections.spawn(async move { proxy.relay(client).await });
            }
        });
        proxy
    }

    /// Cuts the next new connection that transfers this many bytes, in both directions together.
    pub(crate) fn cut_after(&self, bytes: u64) {
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.cut.store(false, Ordering::SeqCst);
        self.limit.store(bytes, Ordering::SeqCst);
    }

    /// Whether a connection was cut.
    pub(crate) fn has_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    async fn relay(&self, mut client: TcpStream) {
        let requests = self.requests.load(Ordering::SeqCst);
        let Ok(mut server) = TcpStream::connect(self.server).await else {
            return;
        };
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        let (mut up, mut down) = (vec![0; 64 << 10], vec![0; 64 << 10]);
        let mut relayed = 0;
        let (mut sends, mut receives) = (true, true);
        while sends || receives {
            let moved = tokio::select! {
                read = from_client.read(&mut up), if sends => {
                    if let Ok(length @ 1..) = read {
                        to_server.write_all(&up[..length]).await.map(|()| length)
                    } else {
                        sends = false;
                        to_server.shutdown().await.map(|()| 0)
                    }
                }
                read = from_server.read(&mut down), if receives => {
                    if let Ok(length @ 1..) = read {
                        to_client.write_all(&down[..length]).await.map(|()| length)
                    } else {
                        receives = false;
                        to_client.shutdown().await.map(|()| 0)
                    }
                }
            };
            let Ok(moved) = moved else {
                return;
            };
            relayed += moved as u64;
            let is_new = requests == self.requests.load(Ordering::SeqCst);
            if is_new && relayed >= self.limit.load(Ordering::SeqCst) {
                self.limit.store(NO_LIMIT, Ordering::SeqCst);
                self.cut.store(true, Ordering::SeqCst);
                return;
            }
        }
    }
}
