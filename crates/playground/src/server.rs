//! API servers over the rules of this crate: HTTPS on loopback, of any release of the
//! catalogue, over one [`SharedStore`].
//!
//! HTTP, TLS and the judging of certificates are the gateway's own; here is what a
//! kube-apiserver does with a request. It goes `service` (who asks, whether they may) →
//! `objects` (what is asked for) → `read`, `write`, `delete`, `watching` and the like.

mod answers;
mod ask;
mod authenticate;
mod controllers;
mod delete;
mod discovery;
mod health;
mod keeper;
mod negotiate;
mod objects;
mod openapi;
pub mod pod_streams;
mod pods;
mod query;
mod read;
mod reviews;
mod scale;
mod schemas;
mod service;
pub mod shared;
mod watching;
mod write;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use skewbridge_discovery::ParseError;
use skewbridge_gateway::authn::{ClientCertState, TrustConfig};
use skewbridge_gateway::config::TlsVersion;
use skewbridge_gateway::drain::{Drain, DrainTrigger, announcement};
use skewbridge_gateway::serve::h1::ClientTimeouts;
use skewbridge_gateway::serve::h2::H2Limits;
use skewbridge_gateway::serve::{ClientIo, h1, h2};
use skewbridge_gateway::tls::files::{CaBundle, KeyPair};
use skewbridge_gateway::tls::server_config;
use skewbridge_k8s_api::identity::{IdentityHeaders, User};
use skewbridge_k8s_api::status::Status;
use skewbridge_stream_io::ReadAhead;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::catalogue::{Catalogue, Release};
use crate::rbac::{Authorizer, Deed, stored};
use authenticate::Authenticator;
use keeper::Keeper;
use openapi::Documents;
use pod_streams::PodStreams;
use service::Requests;
pub use shared::{SharedStore, StoreWatch};

/// Connections of one server: a playground has a handful of clients, and its tests some
/// dozens.
const MAX_CONNECTIONS: usize = 1024;

/// What a connection has for its handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// What clients are allowed: kube-apiserver's own times.
const PATIENCE: ClientTimeouts = ClientTimeouts {
    head: Duration::from_secs(32),
    idle: Duration::from_secs(90),
    stall: Duration::from_mins(1),
};

/// Streams of one connection at a time: kube-apiserver's limit for its clients.
const MAX_STREAMS: u32 = 250;

/// How long a server that is told to end waits for its clients.
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// When accepting fails (no file descriptors are left), it fails at once, again and again.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// What a server needs.
pub struct ServerConfig {
    /// Which version it is.
    pub release: Release,
    /// Where it listens: bound already, to loopback.
    pub listener: std::net::TcpListener,
    /// What it presents.
    pub serving: KeyPair,
    /// Who signs the certificates of its users (CN is the name, O are the groups).
    pub client_ca: CaBundle,
    /// Who signs the certificates of those whose X-Remote-* headers are believed.
    pub front_proxy_ca: CaBundle,
    /// Their names; none: any.
    pub front_proxy_names: Vec<String>,
    /// Who has which bearer token.
    pub tokens: HashMap<String, User>,
    /// What its identity is made of: another one for each server.
    pub hostname: String,
    /// All objects.
    pub store: SharedStore,
    /// Who runs pods.
    pub streams: Arc<dyn PodStreams>,
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of keys and tokens.
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

/// What is the same for all requests to a server.
struct Server {
    release: Release,
    address: SocketAddr,
    catalogue: Catalogue,
    documents: Documents,
    authenticator: Authenticator,
    authorizer: Authorizer,
    store: SharedStore,
    streams: Arc<dyn PodStreams>,
    drain: Drain,
}

impl Server {
    /// Whether somebody may do something: those who may do all, and whoever is given it by
    /// an object of the store.
    fn allows(&self, user: &User, deed: Deed<'_>) -> bool {
        self.authorizer.allows(user, deed)
            || self.store.read(|store| stored::allows(store, user, deed))
    }

    /// 403 for those who may not.
    fn authorize(&self, user: &User, deed: Deed<'_>) -> Result<(), Status> {
        if self.allows(user, deed) {
            return Ok(());
        }
        Err(deed.refused(user))
    }
}

/// Serves.
#[derive(Debug)]
pub struct ApiServer;

/// A server that runs. Dropped, it is killed.
#[derive(Debug)]
pub struct RunningServer {
    release: Release,
    address: SocketAddr,
    keeper: Keeper,
    leave: DrainTrigger,
    /// Cuts all connections.
    cut: oneshot::Sender<()>,
    /// Accepting, and all connections.
    serving: JoinSet<()>,
    /// The Lease and the controllers.
    beside: JoinSet<()>,
}

impl ApiServer {
    /// Starts one on the runtime of the caller. When this returns, it can be asked and its
    /// Lease is there.
    // Async because it needs a runtime, which nothing else would say.
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
        let (leave, drain) = announcement();
        let catalogue = Catalogue::new(release)?;
        let keeper = Keeper::new(store.clone(), release, &hostname);
        if let Err(status) = keeper.renew() {
            tracing::warn!(problem = %status.message, "the Lease of a server could not be made");
        }
        let server = Arc::new(Server {
            release,
            address,
            documents: Documents::new(catalogue.clone()),
            catalogue,
            authenticator: Authenticator::new(trust, &tokens, release.git_version()),
            authorizer: Authorizer::masters(),
            store: store.clone(),
            streams,
            drain,
        });
        let mut serving = JoinSet::new();
        let (cut, cutting) = oneshot::channel();
        let tls = TlsAcceptor::from(Arc::new(tls));
        serving.spawn(serve(listener, tls, server, cutting));
        let mut beside = JoinSet::new();
        beside.spawn(keeper.clone().run());
        beside.spawn(controllers::run(store));
        Ok(RunningServer {
            release,
            address,
            keeper,
            leave,
            cut,
            serving,
            beside,
        })
    }
}

impl RunningServer {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Which version it is.
    pub fn release(&self) -> Release {
        self.release
    }

    /// Its name among servers, which is that of its Lease.
    pub fn identity(&self) -> &str {
        self.keeper.identity().as_str()
    }

    /// Finishes what is running and goes, as a server that is told to terminate: who has
    /// begun to ask is answered, watches end between two events, and from 1.35 on the Lease
    /// is deleted. What still runs after ten seconds (an exec, say) is cut.
    pub async fn stop(mut self) {
        self.leave.leave();
        self.beside.shutdown().await;
        self.keeper.give_up();
        self.leave.drain(DRAIN_TIME);
        let _ = timeout(DRAIN_TIME, self.serving.join_next()).await;
        self.end_connections().await;
    }

    /// Ends at once, as a server whose machine has lost its power: connections are cut
    /// whatever they carry, nobody is answered any more, and the Lease stays. What was being
    /// written may have been written. When this returns all connections are gone, and the
    /// port is free.
    pub async fn kill(mut self) {
        self.beside.shutdown().await;
        self.end_connections().await;
    }

    async fn end_connections(self) {
        let Self {
            cut, mut serving, ..
        } = self;
        // It has ended already if it does not listen.
        let _ = cut.send(());
        while serving.join_next().await.is_some() {}
    }
}

/// Serves until the server drains and all connections have ended, or until it is cut: then
/// they are gone when this is.
async fn serve(
    listener: TcpListener,
    tls: TlsAcceptor,
    server: Arc<Server>,
    cutting: oneshot::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    tokio::select! {
        biased;
        _ = cutting => {}
        () = accept(listener, tls, server, &mut connections) => {}
    }
    connections.shutdown().await;
}

/// Accepts until the server drains, and then waits for the connections that there are.
async fn accept(
    listener: TcpListener,
    tls: TlsAcceptor,
    server: Arc<Server>,
    connections: &mut JoinSet<()>,
) {
    let mut drain = server.drain.clone();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // First a place, then a connection: who finds none waits in the kernel's queue.
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
            sleep(AFTER_FAILURE).await;
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

/// One connection from its first byte to its last.
async fn connection(tcp: TcpStream, tls: TlsAcceptor, server: Arc<Server>) {
    // A socket that refuses an option still works.
    let _ = tcp.set_nodelay(true);
    let accepted = timeout(HANDSHAKE_TIME, tls.accept(ReadAhead::new(tcp))).await;
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
            patience: PATIENCE,
        };
        h2::serve(io, requests, bounds, drain).await;
    } else {
        h1::serve(io, requests, PATIENCE, drain).await;
    }
}
