//! API servers: HTTPS on loopback, of any release of the catalogue, over one [`SharedStore`].
//!
//! HTTP, TLS and the verification of certificates are the gateway's; this module has the
//! behaviour of a kube-apiserver. A request goes through `service` (authentication,
//! authorization), `dispatch` (by resource and verb), then `read`, `write`, `delete`,
//! `watch_stream` and others.

mod api_request;
mod authenticate;
mod controllers;
mod delete;
mod discovery;
mod dispatch;
mod health;
mod lease_heartbeat;
mod negotiate;
mod openapi;
pub mod pod_streams;
mod pod_subresources;
mod query;
mod read;
mod responses;
mod reviews;
mod scale;
mod schemas;
mod service;
pub mod shared_store;
mod watch_stream;
mod write;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use skewbridge_discovery::ParseError;
use skewbridge_gateway::authn::{ClientCertState, TrustConfig};
use skewbridge_gateway::config::TlsVersion;
use skewbridge_gateway::tls::files::{CaBundle, KeyPair};
use skewbridge_gateway::tls::server_config;
use skewbridge_http_engine::drain::{Drain, DrainTrigger, drain_channel};
use skewbridge_http_engine::server::ClientTimeouts;
use skewbridge_http_engine::server::h2::H2Limits;
use skewbridge_http_engine::server::{ClientIo, h1, h2};
use skewbridge_k8s_api::identity::{IdentityHeaders, User};
use skewbridge_k8s_api::status::Status;
use skewbridge_stream_io::ReadAhead;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::catalogue::{Catalogue, Release};
use crate::rbac::{Attributes, is_master, roles};
use authenticate::Authenticator;
use lease_heartbeat::LeaseHeartbeat;
use openapi::Documents;
use pod_streams::PodStreams;
use service::Requests;
pub use shared_store::{SharedStore, StoreWatch};

/// Maximum number of connections: a playground has a handful of clients, and its tests some
/// dozens.
const MAX_CONNECTIONS: usize = 1024;

/// Time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeouts of clients: kube-apiserver's.
const CLIENT_TIMEOUTS: ClientTimeouts = ClientTimeouts {
    head: Duration::from_secs(32),
    idle: Duration::from_secs(90),
    stall: Duration::from_mins(1),
};

/// Streams of one connection at a time: kube-apiserver's limit for its clients.
const MAX_STREAMS: u32 = 250;

/// Time for clients to finish when a server is stopped.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Delay after a failed accept: without file descriptors, each accept fails at once.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Configuration of a server.
pub struct ServerConfig {
    /// Its version.
    pub release: Release,
    /// The listener, bound to loopback.
    pub listener: std::net::TcpListener,
    /// The serving certificate.
    pub serving: KeyPair,
    /// The CA of user certificates (CN is the name, O are the groups).
    pub client_ca: CaBundle,
    /// The CA of front proxies, whose X-Remote-* headers are trusted.
    pub front_proxy_ca: CaBundle,
    /// Allowed common names of front proxies; empty allows any.
    pub front_proxy_names: Vec<String>,
    /// Users by bearer token.
    pub tokens: HashMap<String, User>,
    /// The input of its identity: different for each server.
    pub hostname: String,
    /// All objects.
    pub store: SharedStore,
    /// The streams of the node's pods.
    pub streams: Arc<dyn PodStreams>,
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without keys and tokens.
        f.debug_struct("ServerConfig")
            .field("release", &self.release)
            .field("listener", &self.listener)
            .field("hostname", &self.hostname)
            .finish_non_exhaustive()
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The listener.
    #[error("the listener cannot be used: {0}")]
    Listener(#[from] std::io::Error),
    /// The program's own data.
    #[error("the discovery documents of the playground cannot be read: {0}")]
    Catalogue(#[from] ParseError),
    /// The certificate and its key.
    #[error("the serving certificate cannot be used: {0}")]
    Serving(String),
    /// The client CA or the front proxies'.
    #[error("the CA of clients or of front proxies cannot be used: {0}")]
    ClientCa(String),
}

/// State that is shared by all requests to a server.
struct Server {
    release: Release,
    address: SocketAddr,
    catalogue: Catalogue,
    documents: Documents,
    authenticator: Authenticator,
    store: SharedStore,
    streams: Arc<dyn PodStreams>,
    drain: Drain,
}

impl Server {
    /// Whether a user may do something: as a member of `system:masters`, or by roles in the
    /// store.
    fn allows(&self, user: &User, attributes: Attributes<'_>) -> bool {
        is_master(user)
            || self
                .store
                .read(|store| roles::allows(store, user, attributes))
    }

    /// 403 if the user may not.
    fn authorize(&self, user: &User, attributes: Attributes<'_>) -> Result<(), Status> {
        if self.allows(user, attributes) {
            return Ok(());
        }
        Err(attributes.refused(user))
    }
}

/// Serves.
#[derive(Debug)]
pub struct ApiServer;

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct RunningServer {
    release: Release,
    address: SocketAddr,
    lease_heartbeat: LeaseHeartbeat,
    leave: DrainTrigger,
    /// Aborts all connections.
    abort: oneshot::Sender<()>,
    /// Accepting, and all connections.
    serving: JoinSet<()>,
    /// The Lease and the controllers.
    background: JoinSet<()>,
}

impl ApiServer {
    /// Starts a server on the runtime of the caller. When this returns, it accepts requests and
    /// its Lease exists.
    // Async to require a runtime.
    #[allow(clippy::unused_async)]
    pub async fn start(config: ServerConfig) -> Result<RunningServer, StartError> {
        let ServerConfig {
            release,
            listener,
            serving,
            client_ca,
            front_proxy_ca,
            front_proxy_names,
            tokens,
            hostname,
            store,
            streams,
        } = config;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let tls = server_config(&serving, &[&client_ca, &front_proxy_ca], TlsVersion::Tls12)
            .map_err(|error| StartError::Serving(error.to_string()))?;
        let front_proxies = Some((&front_proxy_ca, front_proxy_names.as_slice()));
        let trust = TrustConfig::new(Some(&client_ca), front_proxies, IdentityHeaders::default())
            .map_err(|error| StartError::ClientCa(error.to_string()))?;
        let (leave, drain) = drain_channel();
        let catalogue = Catalogue::new(release)?;
        let lease_heartbeat = LeaseHeartbeat::new(store.clone(), release, &hostname);
        if let Err(status) = lease_heartbeat.renew() {
            tracing::warn!(problem = %status.message, "the Lease of a server could not be made");
        }
        let server = Arc::new(Server {
            release,
            address,
            documents: Documents::new(catalogue.clone()),
            catalogue,
            authenticator: Authenticator::new(trust, &tokens, release.git_version()),
            store: store.clone(),
            streams,
            drain,
        });
        let mut serving = JoinSet::new();
        let (abort, aborted) = oneshot::channel();
        let tls = TlsAcceptor::from(Arc::new(tls));
        serving.spawn(serve(listener, tls, server, aborted));
        let mut background = JoinSet::new();
        background.spawn(lease_heartbeat.clone().run());
        background.spawn(controllers::run(store));
        Ok(RunningServer {
            release,
            address,
            lease_heartbeat,
            leave,
            abort,
            serving,
            background,
        })
    }
}

impl RunningServer {
    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its version.
    pub fn release(&self) -> Release {
        self.release
    }

    /// Its identity, which is the name of its Lease.
    pub fn identity(&self) -> &str {
        self.lease_heartbeat.identity().as_str()
    }

    /// Stops gracefully, like a server that gets SIGTERM: requests in flight are answered,
    /// watches end between two events, and from 1.35 on the Lease is deleted. Streams that still
    /// run after ten seconds (such as exec) are aborted.
    pub async fn stop(mut self) {
        self.leave.mark_not_ready();
        self.background.shutdown().await;
        self.lease_heartbeat.release();
        self.leave.drain(DRAIN_TIMEOUT);
        let _ = timeout(DRAIN_TIMEOUT, self.serving.join_next()).await;
        self.end_connections().await;
    }

    /// Ends at once, like a server that loses power: connections are aborted, requests are not
    /// answered, and the Lease stays. A write in flight may have been done. When this returns,
    /// all connections are closed and the port is free.
    pub async fn kill(mut self) {
        self.background.shutdown().await;
        self.end_connections().await;
    }

    async fn end_connections(self) {
        let Self {
            abort, mut serving, ..
        } = self;
        // The receiver is dropped if it has ended already.
        let _ = abort.send(());
        while serving.join_next().await.is_some() {}
    }
}

/// Serves until the server drains and all connections have ended, or until it is aborted. All
/// connections are closed when this returns.
async fn serve(
    listener: TcpListener,
    tls: TlsAcceptor,
    server: Arc<Server>,
    aborted: oneshot::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    tokio::select! {
        biased;
        _ = aborted => {}
        () = accept(listener, tls, server, &mut connections) => {}
    }
    connections.shutdown().await;
}

/// Accepts until the server drains, and then waits for the open connections.
async fn accept(
    listener: TcpListener,
    tls: TlsAcceptor,
    server: Arc<Server>,
    connections: &mut JoinSet<()>,
) {
    let mut drain = server.drain.clone();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // A permit comes before a connection: excess connections stay in the accept backlog.
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            biased;
            () = drain.draining() => break,
            accepted = accepted => accepted,
        };
        while connections.try_join_next().is_some() {}
        let (Ok((tcp, _)), Ok(place)) = (accepted, place) else {
            sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let (tls, server) = (tls.clone(), server.clone());
        connections.spawn(async move {
            connection(tcp, tls, server).await;
            drop(place);
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves one connection.
async fn connection(tcp: TcpStream, tls: TlsAcceptor, server: Arc<Server>) {
    // A socket without the option still works.
    let _ = tcp.set_nodelay(true);
    let accepted = timeout(HANDSHAKE_TIMEOUT, tls.accept(ReadAhead::new(tcp))).await;
    let tls = match accepted {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
        Err(_) => return,
    };
    let session = tls.get_ref().1;
    let chain = session
        .peer_certificates()
        .map(|chain| chain.iter().map(|it| it.clone().into_owned()).collect());
    let is_h2 = session.alpn_protocol() == Some(b"h2");
    let drain = server.drain.clone();
    let requests = Requests {
        server,
        presented: Arc::new(ClientCertState::new(chain.unwrap_or_default())),
    };
    let io = ClientIo::Tls(Box::new(tls));
    if is_h2 {
        let bounds = H2Limits {
            max_streams: MAX_STREAMS,
            timeouts: CLIENT_TIMEOUTS,
        };
        h2::serve(io, requests, bounds, drain).await;
    } else {
        h1::serve(io, requests, CLIENT_TIMEOUTS, drain).await;
    }
}
