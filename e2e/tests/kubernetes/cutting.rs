//! A way to a server on which one connection is cut.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Passes bytes on, until one connection has carried too many.
pub(crate) struct Cutting {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    server: SocketAddr,
    /// How often somebody has asked for a cut: connections of before are on their way out.
    asked: AtomicU64,
    limit: AtomicU64,
    cut: AtomicBool,
}

/// No connection is cut.
const NEVER: u64 = u64::MAX;

impl Cutting {
    pub(crate) async fn start(server: SocketAddr) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cutting = Arc::new(Self {
            address,
            server,
            asked: AtomicU64::new(0),
            limit: AtomicU64::new(NEVER),
            cut: AtomicBool::new(false),
        });
        let shared = Arc::downgrade(&cutting);
        tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let Some(cutting) = shared.upgrade() else {
                    return;
                };
                connections.spawn(async move { cutting.carry(client).await });
            }
        });
        cutting
    }

    /// The next new connection that carries so much, in both directions together, is cut.
    pub(crate) fn cut_after(&self, bytes: u64) {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.cut.store(false, Ordering::SeqCst);
        self.limit.store(bytes, Ordering::SeqCst);
    }

    /// Whether that has happened.
    pub(crate) fn has_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    async fn carry(&self, mut client: TcpStream) {
        let asked = self.asked.load(Ordering::SeqCst);
        let Ok(mut server) = TcpStream::connect(self.server).await else {
            return;
        };
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        let (mut up, mut down) = (vec![0; 64 << 10], vec![0; 64 << 10]);
        let mut carried = 0;
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
            carried += moved as u64;
            let is_new = asked == self.asked.load(Ordering::SeqCst);
            if is_new && carried >= self.limit.load(Ordering::SeqCst) {
                self.limit.store(NEVER, Ordering::SeqCst);
                self.cut.store(true, Ordering::SeqCst);
                return;
            }
        }
    }
}
