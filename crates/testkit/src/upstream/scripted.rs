use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::{any_local_port, listen, negotiated_alpn};
use crate::h2frames::{self, Frame};
use crate::pki::{Ca, ClientAuth, Leaf};
use crate::task::{OwnedTask, PanicFlag};
use crate::{Connection, TEST_TIMEOUT, h1_codec};

/// A TLS server whose every byte the test's script sends.
///
/// The script runs once per connection; when it returns, the connection is closed. A panic
/// in the script fails the test when the server is dropped.
///
/// ```
/// use skewbridge_testkit::{Ca, ScriptedServer, get};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let ca = Ca::new("cluster");
/// let tls = ca.server(&["localhost"]);
/// let server = ScriptedServer::start(&tls, None, &["http/1.1"], |mut conn| async move {
///     assert!(conn.read_head().await.starts_with("GET /healthz "));
///     conn.write("HTTP/1.1 200 OK\r\n\r\nclose ends me").await;
///     conn.half_close().await;
/// })
/// .await;
///
/// assert_eq!(get(server.addr(), &ca, "/healthz").await.text(), "close ends me");
/// assert_eq!(server.connections(), 1);
/// # });
/// ```
#[derive(Debug)]
pub struct ScriptedServer {
    addr: SocketAddr,
    counters: Arc<Counters>,
    _accepting: OwnedTask<()>,
}

/// One connection of a [`ScriptedServer`]. Its methods panic on unexpected behaviour of the
/// client; a test that expects such behaviour uses [`ScriptedConn::io`].
#[derive(Debug)]
pub struct ScriptedConn {
    /// The connection itself, a `tokio` stream, also for [`h2frames`].
    pub io: Connection,
    /// The index of the connection on this server, from 0.
    pub ordinal: usize,
    /// The negotiated protocol.
    pub alpn: Option<String>,
    /// The certificates that the client presented, the leaf first.
    pub client_certs: Vec<CertificateDer<'static>>,
}

#[derive(Debug)]
struct Counters {
    connections: watch::Sender<usize>,
    failed_handshakes: AtomicUsize,
    panicked: PanicFlag,
}

impl ScriptedServer {
    /// Listens on a free port. With a `client_ca`, clients must present a certificate of it.
    #[expect(
        clippy::unused_async,
        reason = "the listener is registered with the runtime of the caller"
    )]
    pub async fn start<F, Fut>(tls: &Leaf, client_ca: Option<&Ca>, alpn: &[&str], script: F) -> Self
    where
        F: Fn(ScriptedConn) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let clients = client_ca.map_or(ClientAuth::Off, ClientAuth::Require);
        let acceptor = TlsAcceptor::from(tls.server_config(clients, alpn));
        let listener = listen(any_local_port());
        let addr = listener.local_addr().unwrap();
        let counters = Arc::new(Counters {
            connections: watch::Sender::new(0),
            failed_handshakes: AtomicUsize::new(0),
            panicked: PanicFlag::default(),
        });
        let accepting = accept_all(listener, acceptor, Arc::clone(&counters), Arc::new(script));
        Self {
            addr,
            counters,
            _accepting: OwnedTask::spawn(accepting),
        }
    }

    /// The address it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many connections completed their handshake so far.
    pub fn connections(&self) -> usize {
        *self.counters.connections.borrow()
    }

    /// How many connections failed during their handshake so far.
    pub fn failed_handshakes(&self) -> usize {
        self.counters.failed_handshakes.load(Ordering::Relaxed)
    }

    /// Waits until `count` connections have completed their handshake.
    ///
    /// # Panics
    /// When that takes longer than [`TEST_TIMEOUT`].
    pub async fn wait_for_connections(&self, count: usize) {
        let mut connections = self.counters.connections.subscribe();
        let reached = connections.wait_for(|seen| *seen >= count);
        assert!(
            tokio::time::timeout(TEST_TIMEOUT, reached).await.is_ok(),
            "waited for {count} connections, got {}",
            self.connections()
        );
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.counters.panicked.check("a script");
    }
}

impl ScriptedConn {
    /// Reads a request head as sent, including the blank line.
    pub async fn read_head(&mut self) -> String {
        h1_codec::read_raw_head(&mut self.io).await.unwrap()
    }

    /// Reads `count` bytes.
    pub async fn read(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.io.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    /// Reads until the client disconnects, cleanly or not, and returns the bytes.
    pub async fn read_to_end(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = self.io.read_to_end(&mut bytes).await;
        bytes
    }

    /// Writes these bytes and flushes them.
    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.io.write_all(bytes.as_ref()).await.unwrap();
        self.io.flush().await.unwrap();
    }

    /// Starts HTTP/2 as a server does and sends these settings.
    pub async fn accept_h2(&mut self, settings: &[(u16, u32)]) {
        h2frames::accept(&mut self.io, settings).await.unwrap();
    }

    /// Reads the next HTTP/2 frame of this kind, skipping others.
    pub async fn read_frame(&mut self, kind: u8) -> Frame {
        h2frames::read_until(&mut self.io, kind).await.unwrap()
    }

    /// Closes the sending direction cleanly; reading continues.
    pub async fn half_close(&mut self) {
        self.io.shutdown().await.unwrap();
    }

    /// Closes the sending direction of TCP without TLS's `close_notify`: a truncation for
    /// the client.
    pub async fn truncate(&mut self) {
        let tcp = self.io.get_mut().get_mut().0;
        tcp.shutdown().await.unwrap();
    }

    /// Resets the TCP connection.
    pub fn reset(self) {
        let tcp = self.io.get_ref().get_ref().0;
        tcp.set_zero_linger().unwrap();
    }

    /// Keeps the connection open and idle until the server is dropped.
    pub async fn stall(self) {
        std::future::pending::<()>().await;
    }
}

async fn accept_all<F, Fut>(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    counters: Arc<Counters>,
    script: Arc<F>,
) where
    F: Fn(ScriptedConn) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let mut running = JoinSet::new();
    loop {
        let Ok((tcp, _)) = listener.accept().await else {
            continue;
        };
        while running.try_join_next().is_some() {}
        let (acceptor, counters, script) =
            (acceptor.clone(), Arc::clone(&counters), Arc::clone(&script));
        running.spawn(async move {
            let Ok(tls) = handshake(&acceptor, tcp).await else {
                counters.failed_handshakes.fetch_add(1, Ordering::Relaxed);
                return;
            };
            let conn = ScriptedConn::new(tls, &counters.connections);
            let _watch = counters.panicked.watch();
            script(conn).await;
        });
    }
}

impl ScriptedConn {
    fn new(tls: TlsStream<TcpStream>, connections: &watch::Sender<usize>) -> Self {
        let mut ordinal = 0;
        connections.send_modify(|count| {
            ordinal = *count;
            *count += 1;
        });
        let certificates = tls.get_ref().1.peer_certificates().unwrap_or_default();
        Self {
            ordinal,
            alpn: negotiated_alpn(&tls),
            client_certs: certificates
                .iter()
                .cloned()
                .map(CertificateDer::into_owned)
                .collect(),
            io: BufReader::new(tls),
        }
    }
}

async fn handshake(acceptor: &TlsAcceptor, tcp: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    tcp.set_nodelay(true)?;
    Ok(acceptor.accept(tcp).await?.into())
}
