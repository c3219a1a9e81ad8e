use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::conn_context::{ConnContext, Handler, RespondWhen};
use super::recorded_request::Record;
use super::{
    ClientCertificate, RecordedRequest, Reply, any_local_port, bind_reserved, http1, http2, listen,
    negotiated_alpn,
};
use crate::pki::{ClientAuth, Leaf};
use crate::task::{OwnedTask, PanicFlag};
use crate::{TEST_TIMEOUT, eventually};

/// A well-behaved fake kube-apiserver over HTTP/1.1 and HTTP/2. It records each request and
/// responds with the reply of the test's handler.
///
/// A watch, fed by the test:
///
/// ```
/// use skewbridge_testkit::{ApiServer, Ca, Options, Reply, TlsClient};
/// use tokio::sync::mpsc;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let ca = Ca::new("cluster");
/// let (senders, mut watches) = mpsc::unbounded_channel();
/// let server = ApiServer::start(Options::new(ca.server(&["localhost"])), move |_request| {
///     let (reply, sender) = Reply::stream();
///     senders.send(sender).unwrap();
///     reply
/// })
/// .await;
///
/// let client = TlsClient::new(&ca).http2(server.addr()).await.unwrap();
/// let request = http::Request::get("https://localhost/api/v1/pods?watch=1").body(()).unwrap();
/// let mut stream = client.stream(request).await.unwrap();
/// stream.finish().unwrap();
/// let watch = watches.recv().await.unwrap();
/// watch.send("{}\n").await.unwrap();
/// assert_eq!(stream.head().await.unwrap().status, 200);
/// assert_eq!(stream.chunk().await.unwrap().unwrap(), "{}\n");
///
/// drop(stream);
/// watch.cancelled().await;
/// # });
/// ```
pub struct ApiServer {
    addr: SocketAddr,
    /// Reserves the port while the server does not listen.
    _reserved: TcpSocket,
    shared: Arc<Shared>,
    accept_task: Mutex<Option<OwnedTask<()>>>,
    connections: Connections,
}

/// The behaviour of an [`ApiServer`].
#[derive(Debug)]
pub struct Options<'a> {
    tls: Leaf,
    clients: ClientAuth<'a>,
    alpn: Vec<&'static str>,
    max_concurrent_streams: Option<u32>,
    respond_when: RespondWhen,
}

/// The tasks of the open connections. Separate from [`Shared`], which those tasks own.
type Connections = Arc<Mutex<JoinSet<()>>>;

struct Shared {
    acceptor: TlsAcceptor,
    handler: Arc<Handler>,
    max_concurrent_streams: Option<u32>,
    respond_when: RespondWhen,
    record: Record,
    panicked: PanicFlag,
    accepted: AtomicUsize,
    failed_handshakes: AtomicUsize,
    live: watch::Sender<usize>,
    goaway: watch::Sender<()>,
    kill: watch::Sender<()>,
}

impl<'a> Options<'a> {
    /// Presents `tls`, requests no client certificates, offers HTTP/2 before HTTP/1.1 and
    /// responds when a request is complete.
    pub fn new(tls: Leaf) -> Self {
        Self {
            tls,
            clients: ClientAuth::Off,
            alpn: vec!["h2", "http/1.1"],
            max_concurrent_streams: None,
            respond_when: RespondWhen::Complete,
        }
    }

    /// Requests client certificates.
    #[must_use]
    pub fn clients(mut self, clients: ClientAuth<'a>) -> Self {
        self.clients = clients;
        self
    }

    /// Offers only these protocols. Without a common protocol HTTP/1.1 is used.
    #[must_use]
    pub fn alpn(mut self, protocols: &[&'static str]) -> Self {
        self.alpn = protocols.to_vec();
        self
    }

    /// Limits the streams of each HTTP/2 connection.
    #[must_use]
    pub fn max_concurrent_streams(mut self, max: u32) -> Self {
        self.max_concurrent_streams = Some(max);
        self
    }

    /// Calls the handler as soon as a head is read, with an empty body. Over HTTP/2 the
    /// body is read while the response is sent, over HTTP/1.1 after it; the record contains
    /// it in the end.
    #[must_use]
    pub fn respond_at_head(mut self) -> Self {
        self.respond_when = RespondWhen::AtHead;
        self
    }
}

impl ApiServer {
    /// Listens on a free port. A panic in the handler fails the test when the server is
    /// dropped.
    #[expect(
        clippy::unused_async,
        reason = "the listener is registered with the runtime of the caller"
    )]
    pub async fn start(
        options: Options<'_>,
        handler: impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let config = options.tls.server_config(options.clients, &options.alpn);
        let shared = Arc::new(Shared {
            acceptor: config.into(),
            handler: Arc::new(handler),
            max_concurrent_streams: options.max_concurrent_streams,
            respond_when: options.respond_when,
            record: Record::default(),
            panicked: PanicFlag::default(),
            accepted: AtomicUsize::new(0),
            failed_handshakes: AtomicUsize::new(0),
            live: watch::Sender::new(0),
            goaway: watch::Sender::new(()),
            kill: watch::Sender::new(()),
        });
        let listener = listen(any_local_port());
        let addr = listener.local_addr().unwrap();
        let server = Self {
            addr,
            _reserved: bind_reserved(addr),
            shared,
            accept_task: Mutex::new(None),
            connections: Connections::default(),
        };
        server.accept(listener);
        server
    }

    /// The address of the server, also while it does not listen.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// All requests so far, in the order of their heads.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.record.all()
    }

    /// Waits until the requests meet `condition`, and returns them.
    ///
    /// # Panics
    /// When `timeout` passes first; the message lists the requests.
    pub async fn wait_for(
        &self,
        condition: impl Fn(&[RecordedRequest]) -> bool,
        timeout: Duration,
    ) -> Vec<RecordedRequest> {
        self.shared.record.wait_for(condition, timeout).await
    }

    /// Waits until `count` requests have arrived, and returns them.
    ///
    /// # Panics
    /// When that takes longer than [`TEST_TIMEOUT`].
    pub async fn wait_for_requests(&self, count: usize) -> Vec<RecordedRequest> {
        self.wait_for(|request| request.len() >= count, TEST_TIMEOUT)
            .await
    }

    /// How many connections completed their handshake so far.
    pub fn connections(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// How many connections are open now.
    pub fn live_connections(&self) -> usize {
        *self.shared.live.borrow()
    }

    /// How many connections failed during their handshake so far.
    pub fn failed_handshakes(&self) -> usize {
        self.shared.failed_handshakes.load(Ordering::Relaxed)
    }

    /// Requests the clients of all open connections to disconnect: over HTTP/2 with a graceful
    /// GOAWAY, over HTTP/1.1 by closing after the current response.
    pub fn goaway(&self) {
        self.shared.goaway.send_replace(());
    }

    /// Resets all open connections at once, and waits until they are closed. Upgraded
    /// connections belong to the test and stay open.
    ///
    /// # Panics
    /// When that takes longer than [`TEST_TIMEOUT`].
    pub async fn kill_connections(&self) {
        self.shared.kill.send_replace(());
        self.wait_until_idle().await;
    }

    /// Waits until no connection is open.
    ///
    /// # Panics
    /// When that takes longer than [`TEST_TIMEOUT`].
    pub async fn wait_until_idle(&self) {
        let idle = async || self.live_connections() == 0;
        eventually("all connections closed", TEST_TIMEOUT, idle).await;
    }

    /// Stops listening: new connections are refused, open ones stay.
    pub async fn stop_listening(&self) {
        let accept_task = lock(&self.accept_task).take();
        if let Some(accept_task) = accept_task {
            accept_task.end().await;
        }
    }

    /// Listens again on the same port.
    pub async fn listen_again(&self) {
        self.stop_listening().await;
        self.accept(listen(self.addr));
    }

    fn accept(&self, listener: TcpListener) {
        let (shared, connections) = (Arc::clone(&self.shared), Arc::clone(&self.connections));
        let accept_task = OwnedTask::spawn(accept_all(listener, shared, connections));
        *lock(&self.accept_task) = Some(accept_task);
    }
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer")
            .field("addr", &self.addr)
            .finish_non_exhaustive()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        // The accept task owns the set as well and ends later than this.
        lock(&self.connections).abort_all();
        self.shared.panicked.check("a handler");
    }
}

async fn accept_all(listener: TcpListener, shared: Arc<Shared>, connections: Connections) {
    loop {
        let Ok((tcp, _)) = listener.accept().await else {
            continue;
        };
        let killed = shared.kill.subscribe();
        let mut connections = lock(&connections);
        while connections.try_join_next().is_some() {}
        connections.spawn(connection(tcp, Arc::clone(&shared), killed));
    }
}

async fn connection(tcp: TcpStream, shared: Arc<Shared>, mut killed: watch::Receiver<()>) {
    // A second handle: the first is inside TLS when the connection is reset.
    let Ok(socket) = SockRef::from(&tcp).try_clone() else {
        return;
    };
    let _ = tcp.set_nodelay(true);
    let Ok(tls) = shared.acceptor.accept(tcp).await else {
        shared.failed_handshakes.fetch_add(1, Ordering::Relaxed);
        return;
    };
    let _live = LiveGuard::enter(&shared.live);
    tokio::select! {
        () = serve(tls.into(), &shared) => {}
        _ = killed.changed() => {
            // The connection is dropped already; the reset is sent with this last handle.
            let _ = socket.set_linger(Some(Duration::ZERO));
        }
    }
    // Before the connection stops counting as live.
    drop(socket);
}

async fn serve(tls: TlsStream<TcpStream>, shared: &Shared) {
    let context = ConnContext {
        connection: shared.accepted.fetch_add(1, Ordering::Relaxed),
        client: ClientCertificate::of(&tls),
        record: shared.record.clone(),
        respond_when: shared.respond_when,
        handler: Arc::clone(&shared.handler),
        panicked: shared.panicked.clone(),
        goaway: shared.goaway.subscribe(),
    };
    // Tests check on the client side how a connection ended.
    if negotiated_alpn(&tls).as_deref() == Some("h2") {
        let _ = http2::serve(tls, context, shared.max_concurrent_streams).await;
    } else {
        let _ = http1::serve(tls, context).await;
    }
}

/// Counts a connection while it is open.
struct LiveGuard<'a>(&'a watch::Sender<usize>);

impl<'a> LiveGuard<'a> {
    fn enter(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for LiveGuard<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
